"""Finish or undo a compaction whose broker died (``LogLoader``, steps before loading).

Compaction writes ``.cleaned`` files, renames them to ``.swap`` from the last to the first, and
then puts them in the place of the segments that they replace.  If a ``.cleaned`` file is left,
the compaction is undone; otherwise it is finished.
"""

import os
from collections.abc import Collection

from segmentlog.disk.aside import put_file_aside
from segmentlog.disk.durable import sync_directory
from segmentlog.disk.readable import list_names
from segmentlog.names import FileKind, FileState, SegmentFileName, parse_segment_file
from segmentlog.segments.listing import SegmentFiles, replaced_by

__all__ = ["finish_swaps", "has_swaps", "take_places"]


def has_swaps(path: str) -> bool:
    """Whether a compaction was interrupted in a partition directory; False if it is missing."""
    try:
        names = list_names(path)
    except FileNotFoundError:
        return False
    # Each commit asks this, and to parse all names would take twenty times as long.
    return any(
        name.endswith((FileState.SWAP, FileState.CLEANED)) and parse_segment_file(name) is not None
        for name in names
    )


def finish_swaps(path: str) -> None:
    """Undo or finish the compaction; the caller holds the lock.  Every step can be repeated."""
    files = _parsed(path)
    cleaned = {name: each for name, each in files.items() if each.state == FileState.CLEANED}
    swaps = {name: each for name, each in files.items() if each.state == FileState.SWAP}
    first_cleaned = min((each.offset for each in cleaned.values()), default=2**63)
    undone = [name for name, each in swaps.items() if each.offset >= first_cleaned]
    for names in (undone, cleaned):  # a .swap is finished once no .cleaned says otherwise
        for name in names:
            os.unlink(os.path.join(path, name))
        sync_directory(path)
    finished = {name: each for name, each in swaps.items() if name not in undone}
    swap_logs, live_logs = (
        [
            SegmentFiles(each.offset, os.path.join(path, name), 0)
            for name, each in files.items()
            if (each.kind, each.state) == (FileKind.LOG, state) and name not in undone
        ]
        for state in (FileState.SWAP, FileState.LIVE)
    )
    replaced = replaced_by(swap_logs, live_logs)
    # The old segments go before any new file takes its place: the first new log has the name of
    # the first old one.  That is synced: an old segment that came back once no .swap is left would
    # hold offsets that the new ones hold, too.  A read under way may still need the old segments,
    # so they are put aside.  A starting broker removes them at once; a read then lost the last
    # values of a thousand keys.
    for name, each in files.items():
        if each.state == FileState.LIVE and each.offset in replaced:
            put_file_aside(path, name)
    sync_directory(path)
    take_places(path, finished)


def take_places(path: str, swaps: Collection[str]) -> None:
    """Give ``.swap`` files their names, in an order that a power cut does not change.

    The logs go first, the oldest one before the others, and each is synced.  A recovery that finds
    the ``.swap`` files of two logs removes the live segments between them, and those are new ones
    if an older log has lost its place again.  It also removes the indexes in their range.

    Parameters
    ----------
    path : the partition's directory.
    swaps : names of the files; the old segments are gone.
    """
    logs = sorted(name for name in swaps if f".{FileKind.LOG}." in name)
    for name in logs:
        _take_place(path, name)
        sync_directory(path)
    for name in sorted({*swaps} - {*logs}):
        _take_place(path, name)
    sync_directory(path)


def _take_place(path: str, name: str) -> None:
    full = os.path.join(path, name)
    os.replace(full, full.removesuffix(f".{FileState.SWAP}"))


def _parsed(path: str) -> dict[str, SegmentFileName]:
    """The parsed names of a partition's files; other names are left out."""
    found = {name: parse_segment_file(name) for name in list_names(path)}
    return {name: each for name, each in found.items() if each is not None}
