"""Compact one partition: as many passes as its keys need, each of which replaces segments at once.

The caller holds the lock of the log directory, and keeps ``cleaner-offset-checkpoint``.  A crash
between two passes, or before the checkpoint is written, only has a later compaction clean again
what is clean.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from segmentlog.errors import CorruptIndexError
from segmentlog.format.kernels import layout
from segmentlog.format.names import partition_path
from segmentlog.log.batches import walk_batches
from segmentlog.log.end_markers import EndMarkers
from segmentlog.log.producer_snapshot import ProducerSnapshot
from segmentlog.log.producer_state import ProducerStates
from segmentlog.log.segment import Segment
from segmentlog.log.swaps import settle_swaps, swap_in
from segmentlog.log.transaction_index import AbortedTransaction, read_transaction_index
from segmentlog.maintain.compaction.batch_fates import BatchFates
from segmentlog.maintain.compaction.clean_segments import Cleaning, Counts, SegmentCleaner
from segmentlog.maintain.compaction.cleanable import Cleanable, find_cleanable
from segmentlog.maintain.compaction.cleaned_segment import CleanedSegment
from segmentlog.maintain.compaction.key_map import build_offset_map
from segmentlog.maintain.compaction.plan import CompactedPartition, PlannedPartition
from segmentlog.maintain.compaction.settings import CleanerLimits
from segmentlog.model import ReadUpTo, TopicPartition
from segmentlog.reads.log import Log
from segmentlog.store.readable import status_of

logger = logging.getLogger(__name__)


class _Pass(NamedTuple):
    """The result of one pass; numbers of segments and bytes are before and after."""

    clean_to: int
    n_segments: tuple[int, int]
    n_bytes: tuple[int, int]
    counts: Counts


def clean_partition(
    directory: str,
    planned: PlannedPartition,
    limits: CleanerLimits,
    *,
    on_pass: Callable[[int], None] | None = None,
    before_step: Callable[[], None] = lambda: None,
    on_phase: Callable[[str], object] = lambda _: None,
) -> CompactedPartition | None:
    """Compact a partition as far as a broker would; None if it is not due.

    The swap of an earlier attempt is finished or undone first.  All positional arguments
    can be pickled.

    `directory`: the log directory, without unfinished commits; the caller holds its lock, or its
    share of this partition (`segmentlog.store.lock`).  `planned`: by
    `segmentlog.maintain.compaction.plan`; it is looked at again.  `limits`: of all partitions of
    the compaction.  `on_pass`: is called with the new first dirty offset once a pass is on the
    disk.  `before_step`: is called before each segment is written, and before segments are
    replaced; if it raises, none is replaced.  `on_phase`: is called with the log, and what is done
    to it.  Raises `CorruptLogError` or `UnsupportedFormatError` at a damaged batch, which it
    names; nothing of the pass is put in place.  Raises `SyncFailedError` or `OSError` if the disk
    is full or fails.
    """
    config, checkpoint = planned.config, planned.checkpoint
    first, passes = planned.cleanable, list[_Pass]()
    path = partition_path(directory, planned.topic_partition)
    settle_swaps(path)
    while True:
        # Opening the whole directory for each of very many partitions would take very long.
        log = Log(
            planned.topic_partition,
            path,
            log_start_checkpoint=planned.log_start,
            high_watermark_checkpoint=planned.high_watermark,
            is_file=False,
        )
        cleanable = find_cleanable(log, checkpoint, config, limits.now_ms)
        if not cleanable.is_due(config.min_cleanable_dirty_ratio):
            break
        first = first if passes else cleanable
        active = _active_producers(log, limits.now_ms - limits.producer_expiration_ms)
        passes.append(_clean_once(log, cleanable, planned, limits, active, before_step, on_phase))
        checkpoint = passes[-1].clean_to
        if on_pass is not None:
            on_pass(checkpoint)
        if checkpoint >= cleanable.end_offset:
            break
    return _summed(planned.topic_partition, first, passes) if passes else None


def _active_producers(log: Log, since_ms: int) -> list[ProducerSnapshot]:
    """The producers of a log at its end, but for those that have written nothing since a time.

    The cleaner keeps the last batch of these only.  The others stay known by a snapshot that no
    pass removes: one at or after the base of the active segment.
    """
    end = log.log_end_offset
    producers = ProducerStates.load(log.path, end)
    has_to_stay = producers.end_offset < log.segments[-1].base_offset
    producers.follow_to(log.segments, end)
    if has_to_stay and len(producers.states):
        producers.take_snapshot()
    return [
        each
        for each in producers.known
        if each.timestamp_ms > since_ms or each.current_txn_first_offset >= 0
    ]


def _clean_once(
    log: Log,
    cleanable: Cleanable,
    planned: PlannedPartition,
    limits: CleanerLimits,
    active: Sequence[ProducerSnapshot],
    before_step: Callable[[], None],
    on_phase: Callable[[str], object],
) -> _Pass:
    """One pass (``Cleaner.doClean``)."""
    on_phase(f"{log.topic_partition}: reads the keys")
    path, segments, end_offset = log.path, log.segments, cleanable.end_offset
    config = planned.config
    known = build_offset_map(segments, cleanable.first_dirty_offset, end_offset, limits.bounds)
    clean_to = known.latest_offset + 1
    cleaned = [each for each in segments if each.base_offset < clean_to]
    clean_part = [each for each in segments if each.base_offset < cleanable.first_dirty_offset]
    from_ms = 0
    if clean_part:
        from_ms = _modified_ms(clean_part[-1]) - config.delete_retention_ms
    transactions = EndMarkers(partial(walk_batches, segments))
    # An empty batch keeps the offset at which a follower or a reader goes on.  Kafka 4.4 has seen
    # that only the one at the high watermark is needed for that (KAFKA-20452).
    kept_end = end_offset
    if not planned.keeps_last_batch:
        kept_end = log.end_offset(ReadUpTo.HIGH_WATERMARK)
    fates = BatchFates(active, _indexed(segments), transactions, kept_end, limits.now_ms)
    cleaning = Cleaning(path, config, known, fates, limits.now_ms, from_ms)
    cleaner = SegmentCleaner(cleaning)
    made: list[CleanedSegment] = []
    sizes = [_sizes_of(each) for each in cleaned]
    ends = [each.base_offset for each in segments[1 : len(cleaned) + 1]]
    groups = group_segments(sizes, config.segment_bytes, config.segment_index_bytes, end_offset)
    try:
        for i, group in enumerate(groups):
            before_step()
            on_phase(f"{log.topic_partition}: writes segment {i + 1} of {len(groups)}")
            made.append(cleaner.clean(cleaned[group], ends[group]))
        before_step()
    except BaseException:
        for each in made:
            each.remove()
        raise
    # From here on, a failure leaves all files: they show a recovery whether to finish or to undo.
    swap_in(path, {each.base_offset for each in cleaned}, {each.base_offset for each in made})
    n_bytes = sum(each.size for each in cleaned), sum(each.size for each in made)
    return _Pass(clean_to, (len(cleaned), len(made)), n_bytes, cleaner.counts)


def _modified_ms(segment: Segment) -> int:
    return status_of(segment.path).modified_ns // 10**6


class SegmentSize(NamedTuple):
    """Base offset of a segment, and bytes of its files."""

    base_offset: int
    log_bytes: int
    offset_index_bytes: int = 0
    time_index_bytes: int = 0


def _sizes_of(segment: Segment) -> SegmentSize:
    """Bytes of a segment's files; a missing index counts as empty."""
    with segment.offset_index() as index, segment.time_index() as times:
        indexes = [each.n_entries * each.entry_bytes for each in (index, times)]
    return SegmentSize(segment.base_offset, segment.size, *indexes)


def _indexed(segments: Sequence[Segment]) -> list[AbortedTransaction]:
    """Entries of the transaction indexes of a log; those that cannot be read are made again."""
    found: list[AbortedTransaction] = []
    for each in segments:
        try:
            found += read_transaction_index(each.transaction_index_path)
        except CorruptIndexError as error:
            logger.warning("%s; its entries are built from the log instead", error)
    return found


def _summed(
    topic_partition: TopicPartition, first: Cleanable, passes: Sequence[_Pass]
) -> CompactedPartition:
    """All passes together; "before" is the rest after the last pass, and all that was removed."""
    last = passes[-1]

    def before_and_after(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
        return pairs[-1][1] + sum(a - b for a, b in pairs), pairs[-1][1]

    return CompactedPartition(
        *topic_partition,
        first.first_dirty_offset,
        last.clean_to,
        first.dirty_ratio,
        len(passes),
        *before_and_after([each.n_segments for each in passes]),
        *before_and_after([each.n_bytes for each in passes]),
        *before_and_after([each.counts[:2] for each in passes]),
        sum(each.counts.n_without_key for each in passes),
    )


def group_segments(
    segments: Sequence[SegmentSize], most_bytes: int, most_index_bytes: int, end_offset: int
) -> list[slice]:
    """Ranges of segments, each of which becomes one segment (``Cleaner.groupSegmentsBySize``).

    A group is as large as its log, its indexes and the span of its offsets allow, by the sizes
    before compaction.

    `segments`: in the order of their base offsets.  `most_bytes`: of a log (``segment.bytes``).
    `most_index_bytes`: of either index (``segment.index.bytes``).  `end_offset`: the first offset
    that is not cleaned; the last segment ends there at the latest.
    """
    groups = []
    first = 0
    sizes = SegmentSize(0, 0)
    for i, each in enumerate(segments):
        joined = SegmentSize(
            segments[first].base_offset, *(a + b for a, b in zip(sizes[1:], each[1:], strict=True))
        )
        is_last = i + 1 == len(segments)
        after = end_offset if is_last else segments[i + 1].base_offset
        fits = (
            joined.log_bytes <= most_bytes
            and joined.offset_index_bytes <= most_index_bytes
            and joined.time_index_bytes <= most_index_bytes
            and (not each.log_bytes or after - joined.base_offset <= layout.SEGMENT_OFFSETS)
        )
        if i > first and not fits:
            groups.append(slice(first, i))
            first, joined = i, each
        sizes = joined
    if segments:
        groups.append(slice(first, len(segments)))
    return groups
