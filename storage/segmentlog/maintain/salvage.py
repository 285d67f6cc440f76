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
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from segmentlog.format.kernels import layout
from segmentlog.format.names import INDEXES, SPARSE_INDEXES
from segmentlog.log.damage import first_offset, sound_headers
from segmentlog.log.index_builder import rebuild_indexes
from segmentlog.log.listing import list_segments
from segmentlog.log.segment import Segment
from segmentlog.log.swaps import keep_segment, keep_tail
from segmentlog.model import OffsetRange
from segmentlog.store.durable import (
    create_file,
    remove_file,
    rename,
    sync_directory,
    sync_file,
    write_all,
)
from segmentlog.store.readable import after_zeros, open_file
from segmentlog.txn.recover_log import find_good_end

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
        segment = Segment(
            each, is_sealed=False, is_active=limit is None, offset_limit=limit
        )  # fmt: skip
        end = find_good_end(segment, committed_to if limit is None else limit)
        if end.position < segment.size:
            found = _planned(segment)
            if found.bad:
                yield found


def _planned(segment: Segment) -> Salvage:
    good: list[tuple[int, int]] = []
    bad: list[tuple[int, int]] = []
    left_out: list[OffsetRange] = []
    at, next_offset, n_saved = 0, segment.base_offset, 0
    with segment.opened() as opened:
        for placed in sound_headers(opened, skips=True, warns=False):
            header = placed.header
            if placed.position > at:
                first = first_offset(opened.file, placed.position, header)
                bad.append((at, placed.position))
                left_out.append(OffsetRange(next_offset, first))
            if bad:
                n_saved += max(header.records_count, 1)
            begin = good.pop()[0] if good and good[-1][1] == placed.position else placed.position
            good.append((begin, placed.end))
            at, next_offset = placed.end, header.last_offset + 1
    if at < segment.size and not segment.is_active:
        bad.append((at, segment.size))
        left_out.append(OffsetRange(next_offset, max(segment.offset_limit, next_offset)))
    is_far = next_offset - segment.base_offset > layout.SEGMENT_OFFSETS
    return Salvage(segment, tuple(good), tuple(bad), tuple(left_out), n_saved, is_far)


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
