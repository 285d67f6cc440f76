"""Finish or undo a compaction whose broker died (``LogLoader``, steps before loading).

Compaction writes ``.cleaned`` files, renames them to ``.swap`` from the last to the first, and
then puts them in the place of the segments that they replace.  If a ``.cleaned`` file is left,
the compaction is undone; otherwise it is finished.

`exchange_end` uses the same names to replace the end of a log: readers meet the old segments or
the new ones.
"""

import contextlib
import os
from collections.abc import Collection

from segmentlog.format.names import (
    INDEXES,
    FileKind,
    FileState,
    SegmentFileName,
    parse_segment_file,
    segment_file_name,
)
from segmentlog.log.broken import keep_segment, keep_tail
from segmentlog.log.listing import SegmentFiles, replaced_by
from segmentlog.store.aside import put_file_aside
from segmentlog.store.durable import remove_file, rename, sync_directory
from segmentlog.store.readable import exists, list_names, status_of

__all__ = ["exchange_end", "finish_swaps", "has_swaps", "take_places"]


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
            remove_file(os.path.join(path, name))
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


def exchange_end(
    path: str, first: int, staged: Collection[str], cut: tuple[int, int, int] | None
) -> None:
    """Put new segments in the place of all segments from an offset on; it can be repeated.

    Parameters
    ----------
    path : the partition's directory; no other change may touch it until this has ended.
    first : base offset of the first segment that leaves, if there are any.
    staged : names of the new segments' files, which stand there as ``.cleaned`` files, synced.
    cut : an offset from which on the bytes that leave are kept as ``.broken`` files, and the base
        offset and the byte of the segment in which it lies; -1 for the base if in none.
    """
    logs = sorted(name for name in staged if name.endswith(f".{FileKind.LOG}"))
    # The oldest segment's files are renamed last: with them, all new segments count for readers.
    oldest = logs[0][:21] if logs else ""
    for is_oldest in (False, True):
        for name in sorted(staged, reverse=True):
            full = os.path.join(path, name)
            if name.startswith(oldest) is is_oldest:
                with contextlib.suppress(FileNotFoundError):  # done before a crash
                    rename(f"{full}.{FileState.CLEANED}", f"{full}.{FileState.SWAP}")
        sync_directory(path)
    swaps = [
        f"{name}.{FileState.SWAP}"
        for name in staged
        if exists(os.path.join(path, f"{name}.{FileState.SWAP}"))
    ]
    # The oldest new log takes its place first.  Until then, all live segments from `first` on are
    # old ones.
    if not logs or f"{logs[0]}.{FileState.SWAP}" in swaps:
        _remove_end(path, first, cut)
    take_places(path, swaps)


def _remove_end(path: str, first: int, cut: tuple[int, int, int] | None) -> None:
    live = {
        name: each
        for name, each in _parsed(path).items()
        if each.state == FileState.LIVE
        and each.offset >= first
        and each.kind is not FileKind.SNAPSHOT
    }
    logs = sorted(each.offset for each in live.values() if each.kind is FileKind.LOG)
    if cut is not None:
        offset, base, position = cut
        log = os.path.join(path, segment_file_name(max(base, 0), FileKind.LOG))
        if base in logs and status_of(log).size > position:
            keep_tail(log, position)
        for each in reversed(logs):
            if each >= offset:
                keep_segment(os.path.join(path, segment_file_name(each, FileKind.LOG)))
        logs = [each for each in logs if each < offset]
    for each in logs:
        put_file_aside(path, segment_file_name(each, FileKind.LOG))
    for name in sorted(live):
        if live[name].kind in INDEXES:
            put_file_aside(path, name)
    sync_directory(path)


def _take_place(path: str, name: str) -> None:
    full = os.path.join(path, name)
    rename(full, full.removesuffix(f".{FileState.SWAP}"))


def _parsed(path: str) -> dict[str, SegmentFileName]:
    """The parsed names of a partition's files; other names are left out."""
    found = {name: parse_segment_file(name) for name in list_names(path)}
    return {name: each for name, each in found.items() if each is not None}
