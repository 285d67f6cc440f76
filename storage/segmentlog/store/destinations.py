"""Where no log directory is written: in or around one that is read, and in an object store.

A log directory that is written must not share files with the log directories that are read.  A
broker does not start if its log directory holds a directory whose name is not that of a partition.

On a FUSE mount of an object store, a rename copies, locks hold on one machine only, and a sync
guarantees nothing.  A commit rests on all three.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator

from segmentlog.errors import LogDirectoryError
from segmentlog.store.readable import is_url


def identity_of(path: str) -> tuple[object, ...]:
    """Names a file: equal for all paths to it, through links and other mounts of its disk."""
    real = os.path.realpath(path)
    with contextlib.suppress(OSError):
        found = os.stat(real)
        if found.st_ino:  # some network file systems have no inodes
            return found.st_dev, found.st_ino
    return (real,)


def refuse_overlap(directory: str, sources: Iterable[str]) -> None:
    """Refuse to write to a directory that is a source, lies in a source or holds one.

    `sources`: directories that are read; those at a URL lie apart from any local one.  Raises
    `LogDirectoryError` if they do not lie apart.
    """
    own, own_parents = identity_of(directory), {*_parents(directory)}
    for each in sources:
        if is_url(each):
            continue
        source = identity_of(each)
        if source == own:
            reason = "is a source, too; give another directory as the destination"
        elif source in own_parents:
            reason = f"lies in the source {each}; give a destination outside of all sources"
        elif own in _parents(each):
            reason = f"holds the source {each}; give a destination outside of it"
        else:
            continue
        raise LogDirectoryError(directory, reason)


def _parents(path: str) -> Iterator[tuple[object, ...]]:
    """The identities of the directories that hold a directory, up to the root."""
    real = os.path.realpath(path)
    while (parent := os.path.dirname(real)) != real:
        real = parent
        yield identity_of(real)


_MOUNTS = "/proc/self/mountinfo"
_OBJECT_STORES = re.compile(
    r"s3fs|gcsfuse|goofys|geesefs|blobfuse2?|rclone|mountpoint-s3|ossfs|cosfs|dbfs|hdfs|tigrisfs",
    re.IGNORECASE,
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


def refuse_object_store(directory: str, mounts: str = _MOUNTS) -> None:
    """Refuse to write where an object store is mounted.

    `directory`: absolute path, of something that exists.  `mounts`: the system's table of mounts;
    nothing is refused if there is none (macOS).
    """
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as table:
            lines = table.readlines()
    except OSError:
        return
    path = os.path.realpath(directory)
    longest, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), before.split()[4])
        within = path == point or path.startswith(point.rstrip("/") + "/")
        if within and len(point) >= len(longest):  # a later mount hides an earlier one
            longest, kind = point, " ".join(after.split()[:2])
    if kind.startswith("fuse") and _OBJECT_STORES.search(kind):
        reason = (
            f"is an object store ({kind} at {longest}), which has neither the locks nor the "
            "renames that a commit needs; write to a local file system or to NFS 4, and copy the "
            "log to the store"
        )
        raise LogDirectoryError(directory, reason)
