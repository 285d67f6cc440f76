"""Which URLs lead to a log that can be appended to, and which to a copy of a log directory.

The user writes ``s3://bucket/logs`` for both.  The marker object of the former decides, with one
request; the copy of a log directory has none.  A URL may also name a partition of the log, or a
segment.
"""

import os
import time

from segmentlog.bucket.objects import MARKER, objects_at
from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import parse_partition_directory, parse_segment_file
from segmentlog.store.bucket_location import BucketLocation, bucket_at, is_bucket

#: Seconds for which a URL without a marker is not asked for again.  One with a marker keeps it.
_FORGOTTEN_AFTER = 10.0

_known: dict[tuple[int, str], tuple[bool, float]] = {}


def recognized(url: str) -> str | None:
    """The path of a log that a URL leads to, or of something in it; None if it is none.

    Raises `StorageError` if the store cannot be asked.
    """
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
    try:
        is_there = objects_at(location).get(MARKER) is not None
    except LogDirectoryError:  # no client, or options that only a read takes
        is_there = False
    _known[key] = is_there, time.monotonic()
    return is_there


def forget(location: BucketLocation) -> None:
    """Ask again for a log: this process has made it."""
    _known.pop((os.getpid(), location.root), None)
