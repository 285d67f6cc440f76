"""Which places hold a log: the marker, and places inside one another.

The user writes ``s3://bucket/logs`` for a log and for a copy of a log directory.  The marker
object of the former decides, with one request.  A URL may also name a partition of the log, or a
segment.
"""

import errno
import os
import time
from functools import partial

from segmentlog.bucket.clients import connect, objects_at
from segmentlog.bucket.objects import MARKER
from segmentlog.errors import LogDirectoryError, StorageError
from segmentlog.format.names import parse_partition_directory, parse_segment_file
from segmentlog.store.paths import BucketLocation, bucket_at, is_bucket
from segmentlog.store.readable import exists
from segmentlog.store.remote.location import location_of
from segmentlog.store.remote.requests import request
from segmentlog.store.remote.stores import Store, store_at

#: Seconds for which a URL without a marker is not asked for again.  One with a marker keeps it.
_FORGOTTEN_AFTER = 10.0

_stores: dict[tuple[int, str], Store] = {}
_known: dict[tuple[int, str], tuple[bool, float]] = {}


def recognized(url: str) -> str | None:
    """The path of a log that a URL leads to, or of something in it; None if it is none."""
    location = bucket_at(url)
    if location is None:
        return None
    if ";prefix=" in url and is_bucket(url):
        return url  # made here
    place = location
    names: list[str] = []
    while True:
        if _has_marker(location):
            return "/".join([location.root, *reversed(names)])
        before, _, name = location.prefix.rpartition("/")
        is_part = parse_partition_directory(name) or parse_segment_file(name)
        if not is_part or len(names) == 2:
            return place.root if is_bucket(url) else None
        names.append(name)
        location = location._replace(prefix=before)


def _has_marker(location: BucketLocation) -> bool:
    key = os.getpid(), location.root
    is_there, asked = _known.get(key, (False, 0.0))
    if is_there or (asked and time.monotonic() - asked < _FORGOTTEN_AFTER):
        return is_there
    if location.scheme == "file":
        is_there = exists(f"{location.prefix}/{MARKER}")
    else:
        is_there = _is_in_store(location)
    _known[key] = is_there, time.monotonic()
    return is_there


def _is_in_store(location: BucketLocation) -> bool:
    """Whether a store has the marker.

    The client of logs says so, as it reads all other objects.  The client that reads copies of log
    directories is asked only if that one cannot tell: it needs no other package, and finds
    credentials where the other one finds none.  If neither can, the read of a copy reports that.
    """
    last: StorageError | None = None
    reads_copies = True
    for finds in (_finds_as_log, _finds_as_copy):
        try:
            return finds(location)
        except LogDirectoryError:  # no package, or an option that the client does not know
            reads_copies = finds is not _finds_as_copy
        except StorageError as error:
            last = error
    # A store that fails for a moment has not said that there is no log: its objects would be taken
    # for a directory without partitions.  And if no copy can be read (``az:`` without adlfs), the
    # user has to hear of a wrong key.
    if last is None or (last.errno == errno.EACCES and reads_copies):
        return False
    raise last


def _finds_as_copy(location: BucketLocation) -> bool:
    key = f"{location.prefix}/{MARKER}".lstrip("/")
    path = f"{location.store}/{key}"
    client = os.getpid(), location.store
    try:
        if client not in _stores:
            _stores[client] = request(
                path, "connecting", partial(store_at, location_of(location.store))
            )
        return not request(path, "looking up", partial(_stores[client].facts, key)).is_directory
    except FileNotFoundError:
        return False


def _finds_as_log(location: BucketLocation) -> bool:
    return objects_at(location).get(MARKER) is not None


def log_above(location: BucketLocation) -> BucketLocation | None:
    """The nearest log whose place a place lies in, or None.

    Raises `StorageError` if the store cannot be asked.
    """
    least = 0
    if location.scheme == "abfs" and ":" in location.store.rpartition("@")[2].partition(";")[0]:
        least = 1  # a server, whose paths begin with the container
    prefix = location.prefix
    while prefix.strip("/").count("/") + bool(prefix.strip("/")) > least:
        prefix = prefix.rpartition("/")[0]
        above = location._replace(prefix=prefix)
        try:
            if location.scheme == "file":
                is_there = exists(f"{prefix}/{MARKER}")
            else:
                is_there = connect(above).get(MARKER) is not None
        except StorageError as error:
            if error.errno != errno.EACCES:
                raise
            is_there = False  # the rights of many end at their own place
        if is_there:
            return above
    return None


def forget(location: BucketLocation) -> None:
    """Ask again for a log: this process has made it."""
    _known.pop((os.getpid(), location.root), None)
