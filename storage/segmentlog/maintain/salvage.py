"""Keep the good batches after damage, where a broker would cut its log.

A recovery ends a log at its first bad batch.  A salvage leaves out the bad bytes alone: the
segment is written again with its good batches, in their order.  The gap is legal: offsets rise as
before, and compaction leaves such gaps, too.  The bad bytes stay beside the log, in ``.broken``
files.

For each segment, these steps are on the disk in this order, and can be repeated from the start:

1. The bad bytes are copied to ``.broken`` files, and the good batches to a new file.
2. The ``.index`` and ``.timeindex`` are removed, because their positions lead into other batches.
   A segment without them is legal.  The ``.txnindex``, the snapshots and the leader epochs name
   offsets, and stay right.
3. The new file is renamed over the segment, and the two indexes are built again.

Bad bytes at the end of the active segment are left to the recovery: no good batch follows them.
"""

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.names import INDEXES, SPARSE_INDEXES
from segmentlog.log.index_builder import rebuild_indexes
from segmentlog.log.listing import list_segments
from segmentlog.log.segment import Segment
from segmentlog.log.swaps import keep_segment, keep_tail
from segmentlog.log.walk import Verdict, find_good_end, first_offset_at, walk
from segmentlog.model import LARGEST_LONG, OffsetRange
from segmentlog.store.durable import (
    create_file,
    remove_file,
    rename,
    sync_directory,
    sync_file,
    write_all,
)
from segmentlog.store.readable import after_zeros, open_file

_PIECE_BYTES = 16 << 20


class Salvage(NamedTuple):
    """What stays of a damaged segment, and what does not."""

    segment: Segment
    #: ranges of bytes, in their order; a torn tail of the active segment is in neither
    good: tuple[tuple[int, int], ...]
    bad: tuple[tuple[int, int], ...]
    left_out: tuple[OffsetRange, ...]  # the offsets of each range of bad bytes
    n_saved: int  # number of records after the first bad byte that stay
    #: whether no index can hold the offsets that stay: the recovery that follows splits it
    is_far: bool


def plan_salvages(path: str, log_start: int, committed_to: int = -1) -> Iterator[Salvage]:
    """Read all segments of a log, and find those that have good batches around or after damage.

    `path`: of the partition's directory.  `log_start`: by its checkpoint, or 0.  `committed_to`:
    the high watermark, or -1 if it is unknown.  Raises `UnsupportedFormatError` if a batch has a
    format that is newer than this version, and cannot be judged.
    """
    files = list_segments(path)
    limits = [after.base_offset for _, after in pairwise(files)]
    for each, limit in zip(files, [*limits, None], strict=False):  # a log may have none
        if limit is not None and limit <= log_start:
            continue
        segment = Segment(each, is_sealed=False, is_active=limit is None, offset_limit=limit)
        end = find_good_end(segment, committed_to if limit is None else limit)
        if end.position < segment.size:
            found = _planned(segment)
            if found.bad:
                yield found


def _planned(segment: Segment) -> Salvage:
    batches = _whole_batches(segment)
    stays = _longest_chain(batches, segment)
    good: list[tuple[int, int]] = []
    bad: list[tuple[int, int]] = []
    left_out: list[OffsetRange] = []
    at, next_offset, n_saved = 0, segment.base_offset, 0
    for begin, end, first, last, n_records in batches[stays].tolist():
        if begin > at:
            bad.append((at, begin))
            left_out.append(OffsetRange(next_offset, first))
        if bad:
            n_saved += max(n_records, 1)
        good.append((good.pop()[0] if good and good[-1][1] == begin else begin, end))
        at, next_offset = end, last + 1
    if at < segment.size and not segment.is_active:
        bad.append((at, segment.size))
        left_out.append(OffsetRange(next_offset, max(segment.offset_limit, next_offset)))
    is_far = next_offset - segment.base_offset > layout.SEGMENT_OFFSETS
    return Salvage(segment, tuple(good), tuple(bad), tuple(left_out), n_saved, is_far)


_BEGIN, _END, _FIRST, _LAST, _RECORDS = range(5)  #: columns of a table of whole batches


def _whole_batches(segment: Segment) -> Int64s:
    """Bytes, offsets and record counts of all batches with right checksums, in any order.

    Raises `UnsupportedFormatError` at a batch of a newer format.
    """
    tables = [np.empty((0, 5), np.int64)]
    with open_file(segment.path, follow=False) as file:
        for stretch in walk(
            segment.path, file, 0, segment.size, segment.base_offset, is_ordered=False
        ):
            batches = stretch.batches
            if batches is None:
                if stretch.verdict is Verdict.NEWER and stretch.error is not None:
                    raise stretch.error
                continue
            headers = batches.headers
            begins = headers[:, layout.POSITION] + batches.file_position
            first = headers[:, layout.BASE_OFFSET].copy()
            is_wrapper = headers[:, layout.ATTRIBUTES] & layout.LEGACY_MASK != 0
            for row in np.flatnonzero(is_wrapper):
                first[row] = first_offset_at(file, int(begins[row]))
            tables.append(
                np.column_stack(
                    (
                        begins,
                        begins + headers[:, layout.SIZE],
                        first,
                        headers[:, layout.LAST_OFFSET],
                        headers[:, layout.RECORDS_COUNT],
                    )
                )
            )
    return np.concatenate(tables)


def _longest_chain(batches: Int64s, segment: Segment) -> NDArray[np.bool_]:
    """Which batches stay: those whose offsets rise, with the most records in all.

    A block of the disk that was written to a wrong place, or lost and replaced by an older one,
    leaves whole batches of other places, or of other logs.  They contradict many batches, and each
    of these contradicts only them.
    """
    first, last = batches[:, _FIRST], batches[:, _LAST]
    stays = first >= segment.base_offset
    if not segment.is_active:
        stays &= first < segment.offset_limit
    at = np.flatnonzero(stays)
    first, last = first[at], last[at]
    # A batch above all before it, and below all after it, is in each of the longest chains.
    before = np.concatenate(([-1], np.maximum.accumulate(last)[:-1]))
    after = np.concatenate((np.minimum.accumulate(first[::-1])[::-1][1:], [LARGEST_LONG]))
    is_sure = (first > before) & (last < after)
    stays[at[~is_sure]] = False
    begin = 0
    for end in (*np.flatnonzero(is_sure).tolist(), len(at)):
        if begin < end:  # between two sure ones
            rows = at[begin:end]
            joins = int(batches[at[begin - 1], _LAST]) + 1 if begin else segment.base_offset
            stays[rows[_heaviest(batches[rows], joins)]] = True
        begin = end + 1
    return _without_strays(batches, stays, segment)


def _heaviest(batches: Int64s, joins: int) -> list[int]:
    """Rows of the chain with the most records; among such, with the fewest gaps after `joins`."""
    ranks = {offset: i for i, offset in enumerate(np.unique(batches[:, _LAST]).tolist(), 1)}
    lasts = [*ranks]
    best = [(0, -1)] * (len(lasts) + 1)  # a Fenwick tree: score and row of the best chain
    exact: dict[int, tuple[int, int]] = {joins: (0, -1)}  # by the offset after the chain
    before, unit = list[int](), len(batches) + 1
    for row, (_, _, first, last, n_records) in enumerate(batches.tolist()):
        score, previous = max(_up_to(best, bisect_left(lasts, first)), key=_score)
        if first in exact and exact[first][0] + 1 > score:
            score, previous = exact[first][0] + 1, exact[first][1]
        score += max(n_records, 1) * unit
        before.append(previous)
        if exact.get(last + 1, (-1, -1))[0] < score:
            exact[last + 1] = score, row
        at = ranks[last]
        while at < len(best):
            best[at] = max(best[at], (score, row), key=_score)
            at += at & -at
    _, row = max(_up_to(best, len(lasts)), key=_score)
    chain = list[int]()
    while row >= 0:
        chain.append(row)
        row = before[row]
    return chain[::-1]


def _up_to(best: Sequence[tuple[int, int]], at: int) -> Iterator[tuple[int, int]]:
    """The nodes of a Fenwick tree that cover its first entries."""
    yield 0, -1
    while at > 0:
        yield best[at]
        at -= at & -at


def _score(found: tuple[int, int]) -> int:
    return found[0]


def _without_strays(
    batches: Int64s, stays: NDArray[np.bool_], segment: Segment
) -> NDArray[np.bool_]:
    """Without batches that fit between others, and are no part of this log.

    A log that was never compacted has no gap between two batches that touch each other.  If all
    gaps of this segment are beside single batches, these are of another log.  The last batch is
    one, too, if it alone reaches beyond the segment.
    """
    rows = np.flatnonzero(stays)
    if len(rows) and batches[rows[-1], _LAST] >= segment.offset_limit:
        is_beyond = len(rows) < 2 or batches[rows[-2], _LAST] < segment.offset_limit
        if is_beyond:
            stays[rows[-1]] = False
            rows = rows[:-1]
    found = batches[rows]
    offsets = found[:, _LAST] - found[:, _FIRST] + 1
    touches = found[1:, _BEGIN] == found[:-1, _END]
    gaps = touches & (found[1:, _FIRST] > found[:-1, _LAST] + 1)
    if not gaps.any() or (found[:, _RECORDS] != offsets).any():
        return stays
    joined = found[1:, _FIRST] == found[:-1, _LAST] + 1
    is_alone = ~np.concatenate(([False], joined)) & ~np.concatenate((joined, [False]))
    strays = is_alone & (np.concatenate(([False], gaps)) | np.concatenate((gaps, [False])))
    is_explained = (strays[1:] | strays[:-1])[gaps].all()
    if is_explained and 10 * int(strays.sum()) <= len(rows):
        stays[rows[strays]] = False
    return stays


def salvage(plan: Salvage, interval_bytes: int) -> list[str]:
    """Carry out a plan; the caller holds the lock.

    `plan`: made under the same lock.  `interval_bytes`: bytes of log between index entries
    (``index.interval.bytes``).  Returns the ``.broken`` files that hold the bad bytes; zeros are
    not kept.
    """
    segment = plan.segment
    directory, name = os.path.split(segment.path)
    if not plan.good:  # a closed segment, of which nothing stays
        for kind in INDEXES:
            remove_file(segment.index_path(kind), missing_ok=True)
        sync_directory(directory)
        kept = [keep_segment(segment.path)]
        sync_directory(directory)
        return kept
    ranges, kept = list(plan.good), []
    with open_file(segment.path) as file:
        for begin, end in plan.bad:
            if after_zeros(file, begin, end) < end:
                kept.append(keep_tail(segment.path, begin, end))
        if segment.is_active:
            ranges.append((plan.good[-1][1], segment.size))
        temporary = os.path.join(directory, f"segmentlog.{name}.good.broken.tmp")
        remove_file(temporary, missing_ok=True)  # left by a crash
        target = create_file(temporary)
        try:
            size = 0
            for begin, end in ranges:
                at = begin
                while at < end and (piece := file.read(at, min(_PIECE_BYTES, end - at))):
                    write_all(target, piece, size)
                    at, size = at + len(piece), size + len(piece)
            sync_file(target, temporary)
        except BaseException:  # a full disk needs the space
            remove_file(temporary, missing_ok=True)
            raise
        finally:
            os.close(target)
    for kind in SPARSE_INDEXES:
        remove_file(segment.index_path(kind), missing_ok=True)
    sync_directory(directory)
    rename(temporary, segment.path)
    sync_directory(directory)
    segment.size = sum(end - begin for begin, end in plan.good)
    if not plan.is_far:
        rebuild_indexes(segment, interval_bytes)
    return kept
