"""Disjoint directories: neither is, contains or lies inside the other.

A log directory that is written must not share files with the log directories that are read.  A
broker does not start if its log directory holds a directory whose name is not that of a partition.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator

from segmentlog.errors import LogDirectoryError
from segmentlog.store.remote.location import is_url


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
