"""Index files whose segment is gone: a crash between two removals leaves them.

They hold nothing that the log does not hold, and they do harm: a segment that begins at their
offset cannot be made, and a broker would take a ``.txnindex`` for that segment's own.  A starting
broker removes them (``LogLoader.loadSegmentFiles``).
"""

import os

from segmentlog.disk.durable import sync_directory
from segmentlog.disk.readable import list_names
from segmentlog.names import INDEXES, FileKind, FileState, parse_segment_file

__all__ = ["indexes_without_log", "remove_indexes_without_log"]


def indexes_without_log(path: str) -> list[tuple[int, str]]:
    """Base offset and path of each such file of a partition directory, in their order.

    A ``.log.swap`` file counts as a log: compaction puts the indexes in their place first.
    """
    logs, indexes = set(), []
    for name in sorted(list_names(path)):
        parsed = parse_segment_file(name)
        if parsed is None:
            continue
        if parsed.kind == FileKind.LOG and parsed.state in {FileState.LIVE, FileState.SWAP}:
            logs.add(parsed.offset)
        elif parsed.kind in INDEXES and parsed.state == FileState.LIVE:
            indexes.append((parsed.offset, os.path.join(path, name)))
    return [each for each in indexes if each[0] not in logs]


def remove_indexes_without_log(path: str) -> int:
    """Remove them durably, and return how many there were; the caller holds the lock."""
    found = indexes_without_log(path)
    for _, each in found:
        os.unlink(each)
    if found:  # a ``.txnindex`` that comes back after a power cut would be the next segment's
        sync_directory(path)
    return len(found)
