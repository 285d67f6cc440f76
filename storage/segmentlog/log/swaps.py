"""Segments enter and leave a log: swaps, settled after a crash; bytes that leave and are kept.

A swap puts compacted, split or mirrored segments in the place of old ones (`SwapStep`).  A crash
between two steps is met by any starting broker (``LogLoader``), by `segmentlog recover`, and by
the next compaction or job.

`exchange_end` uses the same names to replace the end of a log.

Bytes that recovery removes from a log are kept beside it:
``segmentlog.<segment>.log.<byte>.broken`` holds the bytes of that segment from that byte on, up to
its end, or to the next good batch if the batches after the bad bytes stay in the log.  No reader
and no broker takes such a file for part of the log.  A broker looks at the end of a name and at
the digits at its beginning.  The end keeps the file from being loaded.  The beginning keeps it
from being removed when an interrupted compaction is finished.
"""

import contextlib
import itertools
import logging
import os
from collections.abc import Collection, Iterator, Set
from enum import Enum

from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import (
    INDEXES,
    LOG_AND_ALL_INDEXES,
    FileKind,
    FileState,
    SegmentFileName,
    parse_segment_file,
    segment_file_name,
)
from segmentlog.log.listing import SegmentFiles, replaced_by
from segmentlog.store.durable import (
    create_file,
    cut_file,
    remove_file,
    rename,
    sync_directory,
    sync_file,
    write_all,
)
from segmentlog.store.partitions import put_file_aside
from segmentlog.store.readable import (
    ReadableFile,
    after_zeros,
    exists,
    list_names,
    open_file,
    status_of,
)

logger = logging.getLogger(__name__)

_PIECE_BYTES = 16 << 20
_LOG_CLEANED = f".{FileKind.LOG}.{FileState.CLEANED}"


class SwapStep(Enum):
    """The steps of a swap (``LocalLog.replaceSegments``); each is on the disk before the next.

    ``docs/upkeep.md`` prints them.
    """

    WRITE = "the new segments are written as `….cleaned` files, and synced"
    SWAP = (
        "they are renamed to `….swap`, the last one first; once no `.cleaned` file is left, "
        "readers and brokers take them for the log, in place of all segments in the range of "
        "their offsets; a crash before that undoes the swap, and a later one finishes it"
    )
    ASIDE = (
        "the old segments are renamed to `….deleted`, the oldest first; a reader that has planned "
        "to read one finds it under its new name"
    )
    NAME = (
        "the new segments get their names: logs first, and then indexes, which a recovery would "
        "take for those of an old segment"
    )
    REMOVAL = (
        "the `.deleted` files are removed `file.delete.delay.ms` later, by the next compaction or "
        "retention; a broker removes them as soon as it starts"
    )


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


def settle_swaps(path: str) -> None:
    """Finish or undo a compaction that was interrupted, if there is one, as a broker does."""
    # Without it, files of a new swap beside those would look like parts of one: the segments of
    # both would be replaced by the files of one.
    if has_swaps(path):
        finish_swaps(path)
        logger.warning("%s: finished or undid an interrupted compaction", path)


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
    _take_places(path, finished)


def swap_in(path: str, old_bases: Set[int], new_bases: Set[int]) -> None:
    """Replace segments by those that stand beside them as ``.cleaned`` files, synced.

    The caller holds the lock of the directory.  A producer snapshot at another base than the new
    ones goes.  Raises `LogDirectoryError` if a ``.cleaned`` file is missing, or if files of
    another compaction stand there: nothing is replaced.  If the disk fails, a recovery finishes or
    undoes what is done then.
    """
    found = _parsed(path)
    cleaned = [
        (-each.offset, LOG_AND_ALL_INDEXES.index(each.kind), name)
        for name, each in found.items()
        if each.state is FileState.CLEANED and each.kind in LOG_AND_ALL_INDEXES
    ]
    old = [
        (each.offset, name)
        for name, each in found.items()
        if each.state is FileState.LIVE
        and each.offset in old_bases
        and (each.kind in LOG_AND_ALL_INDEXES or each.offset not in new_bases)
    ]
    bases = {-minus_base for minus_base, _, name in cleaned if _LOG_CLEANED in name}
    swaps = {name for name, each in found.items() if each.state is FileState.SWAP}
    if wrong := swaps | {f"{each:020d}{_LOG_CLEANED}" for each in bases ^ new_bases}:
        reason = (
            f"either {min(wrong)} is missing, or the file comes from another compaction, which "
            "is running or was interrupted; nothing was replaced: recover or compact again"
        )
        raise LogDirectoryError(path, reason)
    sync_directory(path)
    names = [name.removesuffix(f".{FileState.CLEANED}") for _, _, name in sorted(cleaned)]
    # A recovery that finds a .cleaned file undoes all new segments that are not older.  So the
    # oldest segment's files are renamed last: they decide that the new segments count.
    oldest = f"{min(new_bases):020d}."
    for is_oldest in (False, True):
        for name in names:
            if name.startswith(oldest) is is_oldest:
                full = os.path.join(path, name)
                rename(f"{full}.{FileState.CLEANED}", f"{full}.{FileState.SWAP}")
        sync_directory(path)
    for _, name in sorted(old):
        put_file_aside(path, name)
    sync_directory(path)
    _take_places(path, [f"{name}.{FileState.SWAP}" for name in names])


def _take_places(path: str, swaps: Collection[str]) -> None:
    """Give ``.swap`` files their names, in an order that a power cut does not change."""
    # The logs go first, the oldest one before the others, and each is synced. A recovery that
    # finds the ``.swap`` files of two logs removes the live segments between them, and those are
    # new ones if an older log has lost its place again. It also removes the indexes in their
    # range.
    logs = sorted(name for name in swaps if f".{FileKind.LOG}." in name)
    for number, name in enumerate([*logs, *sorted({*swaps} - {*logs})]):
        full = os.path.join(path, name)
        rename(full, full.removesuffix(f".{FileState.SWAP}"))
        if number < len(logs):
            sync_directory(path)
    sync_directory(path)


def exchange_end(
    path: str, first: int, staged: Collection[str], cut: tuple[int, int, int] | None
) -> None:
    """Put new segments in the place of all segments from an offset on; it can be repeated.

    No other change may touch the partition until this has ended.  `first`: base offset of the
    first segment that leaves, if there are any.  `staged`: names of the new segments' files, which
    stand there as ``.cleaned`` files, synced.  `cut`: an offset from which on the bytes that leave
    are kept as ``.broken`` files, and the base offset and the byte of the segment in which it
    lies; -1 for the base if in none.
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
    _take_places(path, swaps)


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


def _parsed(path: str) -> dict[str, SegmentFileName]:
    found = {name: parse_segment_file(name) for name in list_names(path)}
    return {name: each for name, each in found.items() if each is not None}


def is_zeros(path: str, position: int) -> bool:
    """Whether a file holds only zeros from byte `position` on: preallocation."""
    with open_file(path, follow=False) as file:
        size = file.status().size
        return after_zeros(file, position, size) >= size


def keep_tail(path: str, position: int, end: int | None = None) -> str:
    """Copy the bytes of a segment from `position` to `end`, and return the path of the copy."""
    # A recovery that is repeated after a crash finds its own copy, and makes no other.
    for kept in _names(path, position):
        if not exists(kept):
            break
        with open_file(path, follow=False) as segment, open_file(kept, follow=False) as copy:
            to, size = segment.status().size if end is None else end, copy.status().size
            pieces = itertools.zip_longest(_pieces(segment, position, to), _pieces(copy, 0, size))
            if to - position == size and all(piece == copied for piece, copied in pieces):
                return kept
    temporary = f"{kept}.tmp"
    remove_file(temporary, missing_ok=True)  # left by a crash
    copy_bytes(path, temporary, position, end)
    rename(temporary, kept)
    sync_directory(os.path.dirname(path))
    return kept


def copy_bytes(path: str, to: str, begin: int, end: int | None = None) -> None:
    """Copy bytes of a file to a new file, and sync them; the caller syncs its name.

    Zeros stay holes.  A copy that fails, as on a full disk, leaves nothing.
    """
    with open_file(path, follow=False) as source:
        target = create_file(to)
        try:
            end = source.status().size if end is None else end
            for at, piece in _pieces(source, begin, end):
                write_all(target, piece, at)
            cut_file(target, end - begin)
            sync_file(target, to)
        except BaseException:
            with contextlib.suppress(OSError):
                remove_file(to)
            raise
        finally:
            os.close(target)


def keep_segment(path: str) -> str:
    """Rename a whole segment, so that it leaves the log; the caller syncs the directory."""
    kept = next(name for name in _names(path, 0) if not exists(name))
    rename(path, kept)
    return kept


def _names(path: str, position: int) -> "itertools.chain[str]":
    """Possible names for the copy; the first one is taken only after earlier damage."""
    directory, name = os.path.split(path)
    stem = os.path.join(directory, f"segmentlog.{name}.{position}")
    again = (f"{stem}.{number}.broken" for number in itertools.count(2))
    return itertools.chain([f"{stem}.broken"], again)


def _pieces(file: ReadableFile, position: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of a file up to `end`, but for zeros, each with its distance from `position`."""
    at = position
    while (at := after_zeros(file, at, end)) < end:
        piece = file.read(at, min(_PIECE_BYTES, end - at))
        yield at - position, piece.rstrip(b"\0")  # zeros of a piece stay a hole, too
        at += len(piece)
