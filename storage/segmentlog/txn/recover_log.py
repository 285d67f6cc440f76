"""Recover one log after an unclean stop, as a starting broker does (``LogLoader.recoverLog``).

Batches are read from the segment that holds the recovery point to the first bad batch.  The log
ends before this batch.  A broker deletes the bytes that it cuts off; here they are kept beside
the log.

Each step is on the disk before the next begins, and all steps can be repeated from the start:

1. The bytes after the last good batch of its segment are copied to a ``.broken`` file.
2. The indexes of later segments are removed, and then these segments are renamed to such files.
   Until all of them are out of the log, the bad batch that condemns them stays where it is.
   If the log start lies after that batch, its segment and the earlier ones go last.
3. The segment is cut.  Every segment that was read is synced.
4. A segment with offsets that its indexes cannot hold is split, as compaction replaces segments.
5. Indexes, producer snapshots and leader epochs are built again from the batches.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from segmentlog.errors import CorruptLogError, LogDirectoryError, UnsupportedFormatError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.names import INDEXES, FileKind, FileState, segment_file_name
from segmentlog.format.records.header import parse_header
from segmentlog.log.damage import good_batch_after
from segmentlog.log.index_builder import rebuild_indexes
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.log.listing import list_segments
from segmentlog.log.producer_snapshot import list_snapshots, read_snapshots, remove_snapshots
from segmentlog.log.producers import ProducerStates
from segmentlog.log.segment import Segment, find_log_end
from segmentlog.log.swaps import copy_bytes, is_zeros, keep_segment, keep_tail, swap_in
from segmentlog.log.walk import (
    GoodEnd,
    Verdict,
    find_good_end,
    first_offset_at,
    is_whole_batch,
    walk,
)
from segmentlog.log.windows import BatchWindows
from segmentlog.model import LARGEST_LONG
from segmentlog.store.durable import (
    cut_file,
    remove_file,
    sync_directory,
    sync_file,
    writable,
    write_new_file,
)
from segmentlog.store.readable import exists, open_file

_WINDOW_BYTES = 4 << 20


_ANY_OFFSET = LARGEST_LONG
_MOST_GAPS = 1000  #: after so many, the batches that are cut off are not counted further


class LostBatches(NamedTuple):
    """Whole batches that are cut off, because they follow a bad one."""

    good_from: int  # offset of the first of them
    n_records: int = 0  # records in them
    #: the least and the largest of their timestamps, or -1
    first_ms: int = -1
    last_ms: int = -1

    def add(self, n_records: int, times: Int64s) -> "LostBatches":
        """With further records, of which some have timestamps."""
        first_ms, last_ms = self.first_ms, self.last_ms
        if times.size:
            least = int(times.min())
            first_ms = least if first_ms < 0 else min(least, first_ms)
            last_ms = max(int(times.max()), last_ms)
        return LostBatches(self.good_from, self.n_records + n_records, first_ms, last_ms)


class Cut(NamedTuple):
    """The words for what is cut off, and for what else is to be said of it."""

    what: str
    why: str = ""


class RecoveryPlan(NamedTuple):
    """The plan of a log's recovery.

    ::

        log_start    recovery_point    end_offset      good_from               lost_to
        |  synced    |  read, good     |  a bad batch  |  whole, cut off, too  |  a torn tail
    """

    path: str  # of the partition's directory
    log_start: int  # by its checkpoint, or 0
    recovery_point: int  # offset up to which all records have been synced
    segments: tuple[Segment, ...]  # all of them, before any cut
    first: int  # number of the first segment that is read
    last: int  # number of the last segment that stays, or -1 if none stays
    end: GoodEnd  # end of the last segment
    lost_to: int  # offset after the last good batch that is cut off, or the log end if none is
    n_reached: int  # number of segments up to the bad batch, or of all segments if none is bad
    #: the whole batches after the bad one, which are cut off, too.  None if there are none: the
    #: bad bytes are a torn tail.
    lost: LostBatches | None = None
    #: `GoodEnd.splits` of the segments that are split, by their numbers
    splits: Mapping[int, tuple[tuple[int, int], ...]] = MappingProxyType({})
    copies: tuple[Segment, ...] = ()  # that repeat the segments before them, and are put aside

    @property
    def n_cut_bytes(self) -> int:
        """Bytes after the log end, zeros of preallocation included."""
        after = sum(each.size for each in self.segments[self.last + 1 :])
        return after + (self.segments[self.last].size - self.end.position if self.last >= 0 else 0)

    @property
    def good_from(self) -> int | None:
        """Offset of the first whole batch that is cut off."""
        return None if self.lost is None else self.lost.good_from

    @property
    def end_offset(self) -> int:
        """The log end afterwards."""
        return self.end.offset

    @property
    def cut(self) -> "Cut":
        """What is cut off, in words, if anything is."""
        if self.lost_to <= self.end_offset:
            return Cut(f"{self.n_cut_bytes} bytes after offset {self.end_offset}, the log end,")
        why = f" ({self.end.error})" if self.end.error else ""
        good = f", with whole batches from offset {self.good_from} on"
        also = "" if self.good_from is None else good
        return Cut(f"offsets [{self.end_offset}, {self.lost_to})", also + why)

    @property
    def loss(self) -> str:
        """The loss in words; empty if nothing is cut off."""
        cut = self.cut
        return f"{cut.what} are cut off{cut.why}" if self.n_cut_bytes else ""

    @property
    def n_read(self) -> int:
        """Number of segments that are read, and whose indexes are built again."""
        return max(self.last + 1 - self.first, 0)


def plan_recovery(
    path: str, recovery_point: int, log_start: int, committed_to: int = -1
) -> RecoveryPlan:
    """Read the bytes that may not have reached the disk, and plan the recovery.

    Records below `recovery_point` have been synced.  `committed_to`: the high watermark, or -1.
    Raises `UnsupportedFormatError` at a batch of a newer format, which cannot be judged, and
    `LogDirectoryError` if a segment has a name that lies within its first batch.
    """
    segments, copies = _without_copies(path, recovery_point)
    if not segments:
        none_good = GoodEnd(0, log_start)
        return RecoveryPlan(path, log_start, recovery_point, (), 0, -1, none_good, log_start, 0)
    follows = [*(each.base_offset for each in segments[1:]), committed_to]
    below = [i for i, each in enumerate(segments) if each.base_offset <= recovery_point]
    first = last = max(below, default=0)
    splits = {}
    unsplit = first_unsplit(segments, committed_to)
    if unsplit is not None and unsplit < first:
        first = last = unsplit
    before: int | None = None if first else 0
    for last in range(first, len(segments)):
        end = find_good_end(segments[last], follows[last])
        if not end.position and segments[last].size:
            if before is None:
                before = find_log_end(segments[last - 1], warns=False).offset
            _refuse_misnamed(segments[last], before)
        before = end.offset
        if end.splits:
            splits[last] = end.splits
        if end.position < segments[last].size:
            break
    reached = find_log_end(segments[-1], committed_to, warns=False).offset
    n_reached = last + 1
    is_cut = last + 1 < len(segments) or end.position < segments[last].size
    lost = _lost_batches(segments[last:], end) if is_cut else None
    if end.offset < log_start and 0 <= committed_to <= end.offset:
        # Records below the high watermark alone can be deleted: the entry must be wrong, and a
        # broker would delete the whole log because of it.
        log_start = 0
    if end.offset < log_start:  # only what DeleteRecords has deleted is left
        last, end, splits = -1, GoodEnd(0, log_start), {}
        if lost is not None:
            is_lost = reached > log_start
            lost = lost._replace(good_from=max(lost.good_from, log_start)) if is_lost else None
    lost_to = max(reached, end.offset)
    return RecoveryPlan(
        path,
        log_start,
        recovery_point,
        segments,
        first,
        last,
        end,
        lost_to,
        n_reached,
        lost,
        splits,
        copies,
    )


def _without_copies(
    path: str, recovery_point: int
) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """The segments of a log, and those that only repeat the batches of the segment before them.

    Such a copy has a name above its first offset.  A broker serves the log up to its end, but a
    walk would end the log at the name of the copy.  Only segments that are read are looked at.
    """
    segments, copies = list[Segment](), list[Segment]()
    files = list_segments(path)
    ends = [*(each.base_offset for each in files[1:]), _ANY_OFFSET]
    for each, end in zip(files, ends, strict=False):  # a log may have none
        segment = Segment(each, is_sealed=False, is_active=end == _ANY_OFFSET)
        is_copy = bool(segments) and end > recovery_point and _repeats(segment, segments[-1])
        (copies if is_copy else segments).append(segment)
    if segments:
        segments[-1].is_active = segments[-1].may_be_torn = True
    return tuple(segments), tuple(copies)


def _repeats(segment: Segment, before: Segment) -> bool:
    """Whether a segment begins below its name, and has nothing but batches of the one before."""
    with open_file(segment.path, follow=False) as file:
        begin = int.from_bytes(file.read(0, layout.BATCH_LENGTH_AT), "big", signed=True)
        if not 0 <= begin < segment.base_offset or not is_whole_batch(file, 0, segment.size):
            return False
        with open_file(before.path, follow=False) as other:
            # A copy of a whole segment, or of its end, as it was when it was copied.
            placed = None
            with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
                placed = before.find(begin)
            if placed is None or placed.position + segment.size > before.size:
                return False
            return all(
                file.read(at, _WINDOW_BYTES)
                == other.read(placed.position + at, min(_WINDOW_BYTES, segment.size - at))
                for at in range(0, segment.size, _WINDOW_BYTES)
            )


def _refuse_misnamed(segment: Segment, before: int) -> None:
    """Refuse a segment whose first batch begins below the segment's name, and ends above it.

    `before`: the end of the log before the segment.
    """
    # A broker compares names only with the last offset of a batch: it would serve all records that
    # a cut would take away.
    with open_file(segment.path, follow=False) as file:
        if not is_whole_batch(file, 0, segment.size):
            return
        begin = first_offset_at(file, 0)
        header = parse_header(file.read(0, layout.HEADER_BYTES).ljust(layout.HEADER_BYTES, b"\0"))
    if not begin < segment.base_offset <= header.last_offset:
        return
    if begin < before:
        reason = (
            f"begins with offset {begin}, below its name, and the segment before it ends at "
            f"offset {before}: a broker serves both; move the file out of the directory, with its "
            "indexes, if the segment before it has the same records"
        )
    else:
        name = segment_file_name(begin, FileKind.LOG)
        reason = (
            f"begins with offset {begin}, below its name; a broker serves the records, and they "
            f"are not read here: rename the file to {name}, and remove its indexes; if it had its "
            "name from the beginning, its first batch is damaged, and segmentlog recover "
            "--on-corrupt-batch skip leaves this batch out"
        )
    raise LogDirectoryError(segment.path, reason)


def first_unsplit(segments: Sequence[Segment], end_offset: int) -> int | None:
    """The first segment that lacks indexes, and whose indexes may not hold its offsets."""
    # A broker builds missing indexes in any case, and may have to split such a segment.
    follows = [*(each.base_offset for each in segments[1:]), end_offset]
    for i, (segment, after) in enumerate(zip(segments, follows, strict=True)):
        is_wide = after - segment.base_offset > layout.SEGMENT_OFFSETS
        if is_wide and not _is_indexed(segment):
            return i
    return None


def _is_indexed(segment: Segment) -> bool:
    return exists(segment.offset_index_path) and exists(segment.time_index_path)


def _lost_batches(segments: Sequence[Segment], end: GoodEnd) -> LostBatches | None:
    """The whole batches after `end`, which lies in the first of the segments; None if none."""
    lost: LostBatches | None = None
    for good_from, headers in _batches_after(segments, end):
        lost = lost or LostBatches(good_from)
        kept = headers[headers[:, layout.ATTRIBUTES] & layout.CONTROL_MASK == 0]
        times = kept[:, [layout.BASE_TIMESTAMP, layout.MAX_TIMESTAMP]]
        lost = lost.add(int(kept[:, layout.RECORDS_COUNT].clip(0).sum()), times[times >= 0])
    return lost


def _batches_after(segments: Sequence[Segment], end: GoodEnd) -> Iterator[tuple[int, Int64s]]:
    """First offsets and headers (none of a newer format) of the good batches after a bad one."""
    windows = BatchWindows(_WINDOW_BYTES)
    n_gaps = 0
    for segment in segments:
        with open_file(segment.path, follow=False) as file:
            begin: tuple[int, int] | None = (0, segment.base_offset)
            if segment is segments[0]:
                begin = good_batch_after(file, end.position, segment.size, end.offset)
            if begin is None:
                continue
            for stretch in walk(
                segment.path, file, begin[0], segment.size, begin[1], windows=windows
            ):
                if stretch.batches is not None:
                    yield stretch.offset, stretch.batches.headers
                    continue
                if stretch.verdict is Verdict.NEWER:
                    yield stretch.offset, np.empty((0, layout.N_HEADER_COLUMNS), np.int64)
                    break
                n_gaps += 1
                if n_gaps == _MOST_GAPS:
                    return


def recover_log(
    plan: RecoveryPlan, interval_bytes: int, *, syncs_active: bool = True
) -> list[str]:
    """Carry out a plan under the lock under which it was made; the ``.broken`` files it leaves."""
    kept = _cut(plan, syncs_active=syncs_active)
    segments = list(plan.segments[: plan.last + 1])
    if not segments:
        # An empty segment at the log start.  Epochs go before it comes: once it exists, a recovery
        # that is repeated keeps the epochs that it finds, and these would be of lost records.
        epochs = EpochStarts(plan.path)
        epochs.truncate_from_end(0)
        epochs.write()
        name = segment_file_name(plan.log_start, FileKind.LOG)
        write_new_file(os.path.join(plan.path, name), b"")
        sync_directory(plan.path)
        segments = [Segment(list_segments(plan.path)[0], is_sealed=False)]
    else:
        segments[-1].size = plan.end.position
        for i, parts in plan.splits.items():
            _split(plan.path, segments[i], parts)
        if plan.splits:
            segments = [Segment(each, is_sealed=False) for each in list_segments(plan.path)]
    _rebuild(plan, segments, interval_bytes)
    return kept


def _split(path: str, segment: Segment, parts: Sequence[tuple[int, int]]) -> None:
    """Put the parts of a segment in its place (``LogLoader``, ``splitOverflowedSegment``)."""
    new = [
        os.path.join(path, f"{segment_file_name(base_offset, FileKind.LOG)}.{FileState.CLEANED}")
        for _, base_offset in parts
    ]
    ends = [*(at for at, _ in parts[1:]), segment.size]
    try:
        for to, (begin, _), end in zip(new, parts, ends, strict=True):
            copy_bytes(segment.path, to, begin, end)
    except BaseException:
        for each in new:
            remove_file(each, missing_ok=True)
        raise
    swap_in(path, {segment.base_offset}, {base_offset for _, base_offset in parts})


def _cut(plan: RecoveryPlan, *, syncs_active: bool) -> list[str]:
    """Steps 1 to 3."""
    kept = _put_copies_aside(plan)
    stay, go = plan.segments[: plan.last + 1], plan.segments[plan.last + 1 :]
    is_cut = bool(stay) and plan.end.position < stay[-1].size
    if is_cut and not is_zeros(stay[-1].path, plan.end.position):
        kept.append(keep_tail(stay[-1].path, plan.end.position))
    # The indexes go first.  A crash after their removal leaves segments without indexes.  These
    # are legal, and the next recovery finds them again after the same bad batch.  In the other
    # order a crash leaves indexes without a segment.  No recovery finds those by a segment, and a
    # segment that later begins at their offset fails, or takes a `.txnindex` for its own.
    for segment in go:
        for kind in INDEXES:
            name = segment_file_name(segment.base_offset, kind)
            remove_file(os.path.join(plan.path, name), missing_ok=True)
    if go:
        sync_directory(plan.path)
    # The segments after the bad batch go next.  They are good by themselves: a recovery that
    # found them without the bad batch would take them for the log.  The sync also covers segments
    # that an interrupted recovery has renamed.
    kept += [keep_segment(segment.path) for segment in plan.segments[plan.n_reached :]]
    sync_directory(plan.path)
    # The other segments go if the log start lies after all of them.  Each of them ends below the
    # log start, so a recovery that finds any of them empties the log again.
    if not stay:
        kept += [keep_segment(segment.path) for segment in plan.segments[: plan.n_reached]]
        sync_directory(plan.path)
    for segment in stay[plan.first :]:
        is_active = segment is stay[-1]
        with writable(segment.path) as descriptor:
            if is_active and is_cut:
                cut_file(descriptor, plan.end.position)
            if syncs_active or not is_active or is_cut:
                sync_file(descriptor, segment.path)
    return kept


def _put_copies_aside(plan: RecoveryPlan) -> list[str]:
    """Take segments that repeat others out of the log; all their batches stay in it."""
    for segment in plan.copies:
        for kind in INDEXES:
            name = segment_file_name(segment.base_offset, kind)
            remove_file(os.path.join(plan.path, name), missing_ok=True)
    if plan.copies:
        sync_directory(plan.path)
    kept = [keep_segment(segment.path) for segment in plan.copies]
    if kept:
        sync_directory(plan.path)
    return kept


def _rebuild(plan: RecoveryPlan, segments: list[Segment], interval_bytes: int) -> None:
    """Step 5; snapshots are taken where a recovering broker takes them."""
    # A producer whose batches retention or compaction has removed is in snapshots alone, perhaps
    # only in one after `first`, or after the end. Its last batch was synced before it was removed.
    # A batch at or after the recovery point that is missing may be lost: the producer may send it
    # again.
    first = segments[min(plan.first, len(segments) - 1)].base_offset
    log_start = max(plan.log_start, segments[0].base_offset)
    removed_before = max(plan.recovery_point, plan.log_start)
    later = [producers for _, producers in read_snapshots(plan.path, first + 1, _ANY_OFFSET)]
    epochs = EpochStarts(plan.path, warns=False)
    epochs.truncate_from_end(plan.end_offset if plan.last >= 0 else 0)
    if not epochs.are_known:
        epochs.follow_all([each for each in segments if each.base_offset < first])
    producers = ProducerStates.load(plan.path, first)

    def add_removed() -> None:
        for each in later:
            producers.add_removed(each, removed_before)

    def take_snapshot() -> None:
        if producers.end_offset > log_start or len(producers.states):
            producers.take_snapshot()

    bases = [each.base_offset for each in plan.segments]
    on_the_way = [each for each in bases[-2:] if each > log_start]
    producers.follow_to(segments, first, on_the_way)
    for segment in segments:
        if segment.base_offset >= first:
            producers.advance(segment.base_offset)
            if segment is segments[-1]:  # not at each base: there may be a thousand snapshots
                add_removed()
            take_snapshot()
            rebuild_indexes(segment, interval_bytes, producers, epochs)
        elif not _is_indexed(segment):
            rebuild_indexes(segment, interval_bytes)
    add_removed()
    take_snapshot()
    epochs.truncate_from_start(plan.log_start)
    epochs.write()
    # Last: until the snapshot at the end is on the disk, a later one may be the only one that
    # knows a producer.
    kept = {each.base_offset for each in segments if each.base_offset > log_start}
    if plan.end_offset > log_start or len(producers.states):
        kept.add(plan.end_offset)
    remove_snapshots(plan.path, {*list_snapshots(plan.path)} - kept)
