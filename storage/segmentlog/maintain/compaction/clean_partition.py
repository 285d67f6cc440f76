"""Compact one partition: as many passes as its keys need, each of which replaces segments at once.

The caller holds the lock of the log directory, and keeps ``cleaner-offset-checkpoint``.  A crash
between two passes, or before the checkpoint is written, only has a later compaction clean again
what is clean.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from segmentlog.errors import CorruptIndexError
from segmentlog.format.kernels import layout
from segmentlog.format.names import partition_path
from segmentlog.log.batches import EndMarkers, walk_batches
from segmentlog.log.indexes import AbortedTransaction, read_transaction_index
from segmentlog.log.producer_snapshot import ProducerSnapshot
from segmentlog.log.producers import ProducerStates
from segmentlog.log.segment import Segment
from segmentlog.log.swaps import settle_swaps, swap_in
from segmentlog.maintain.compaction.clean_segments import (
    BatchFates,
    CleanedSegment,
    SegmentCleaner,
    build_offset_map,
)
from segmentlog.maintain.compaction.compact import (
    CleanerConfig,
    CompactedPartition,
    LogToClean,
    find_cleanable,
)
from segmentlog.model import ReadUpTo
from segmentlog.reads.log import Log
from segmentlog.store.readable import status_of
from segmentlog.txn.guard import SegmentSizes

logger = logging.getLogger(__name__)


def clean_partition(
    directory: str,
    planned: LogToClean,
    cleaner: CleanerConfig,
    *,
    on_pass: Callable[[int], None] = lambda _: None,
    before_step: Callable[[], None] = lambda: None,
    on_phase: Callable[[str], object] = lambda _: None,
) -> CompactedPartition | None:
    """Compact a partition as far as a broker would; None if it is not due.

    The swap of an earlier attempt is finished or undone first.

    `directory`: the log directory, without unfinished commits; the caller holds its lock, or its
    share of this partition (`segmentlog.store.lock`).  `planned`: it is looked at again.
    `on_pass`: is called with the new first dirty offset once a pass is on the disk.
    `before_step`: is called before each segment is written, and before segments are replaced; if
    it raises, none is replaced.  `on_phase`: is called with the log, and what is done to it.
    Raises `CorruptLogError` or `UnsupportedFormatError` at a damaged batch, which it names;
    nothing of the pass is put in place.  Raises `SyncFailedError` or `OSError` if the disk is full
    or fails.
    """
    checkpoint, done = planned.checkpoint, None
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
        dirty = find_cleanable(log, checkpoint, planned.config, cleaner.now_ms)
        if not dirty.is_due:
            return done
        last = _clean_once(log, dirty, cleaner, before_step, on_phase)
        # "Before" is the rest after the last pass, and all that was removed.
        done = (
            last
            if done is None
            else last._replace(
                first_dirty_offset=done.first_dirty_offset,
                dirty_ratio=done.dirty_ratio,
                n_passes=done.n_passes + 1,
                segments_before=last.segments_before + done.segments_before - done.segments_after,
                bytes_before=last.bytes_before + done.bytes_before - done.bytes_after,
                records_before=last.records_before + done.records_before - done.records_after,
                records_without_key=last.records_without_key + done.records_without_key,
            )
        )
        checkpoint = done.clean_to
        on_pass(checkpoint)
        if checkpoint >= dirty.end_offset:
            return done


def _clean_once(
    log: Log,
    dirty: LogToClean,
    cleaner: CleanerConfig,
    before_step: Callable[[], None],
    on_phase: Callable[[str], object],
) -> CompactedPartition:
    """One pass (``Cleaner.doClean``); it logs what Kafka's cleaner logs."""
    name = log.topic_partition
    logger.info("beginning cleaning of log %s", name)
    active = _active_producers(log, cleaner.now_ms - cleaner.producer_expiration_ms)
    one = CleaningPass(log, dirty, cleaner, active, on_phase)
    made: list[CleanedSegment] = []
    try:
        for i, group in enumerate(one.groups):
            before_step()
            on_phase(f"{name}: writes segment {i + 1} of {len(one.groups)}")
            made.append(one.cleaner.clean(one.cleaned[group], one.ends[group]))
            logger.info(
                "cleaned %d segments of log %s, from offset %d on: %d bytes remain",
                len(one.cleaned[group]),
                name,
                made[-1].base_offset,
                made[-1].size,
            )
        before_step()
    except BaseException:
        for each in made:
            each.remove()
        raise
    # From here on, a failure leaves all files: they show a recovery whether to finish or to undo.
    logger.info("swapping in %d cleaned segments of log %s", len(made), name)
    old = {each.base_offset for each in one.cleaned}
    swap_in(log.path, old, {each.base_offset for each in made})
    return one.done([each.size for each in made])


class CleaningPass:
    """One pass over a log: what it reads, and what decides which records stay.

    `active`: producers whose last batches stay.

    Attributes
    ----------
    clean_to : the offset up to which the log is compacted afterwards.
    cleaned, ends : the segments that it replaces, and the base offset of each one's successor.
    groups : ranges of these segments, each of which becomes one segment.
    cleaner : makes them, in their order.
    """

    def __init__(
        self,
        log: Log,
        dirty: LogToClean,
        cleaner: CleanerConfig,
        active: Sequence[ProducerSnapshot],
        on_phase: Callable[[str], object],
    ) -> None:
        name, segments, config = log.topic_partition, log.segments, dirty.config
        self._name, self._dirty = name, dirty
        first_dirty, end_offset = dirty.first_dirty_offset, dirty.end_offset
        on_phase(f"{name}: reads the keys")
        logger.info(
            "building offset map for log %s in range [%d, %d)", name, first_dirty, end_offset
        )
        known = build_offset_map(segments, first_dirty, end_offset, cleaner)
        self.clean_to = clean_to = known.latest_offset + 1
        logger.info("offset map for log %s complete: %d keys", name, known.n_keys)
        self.cleaned = cleaned = [each for each in segments if each.base_offset < clean_to]
        clean_part = [each for each in segments if each.base_offset < first_dirty]
        from_ms = 0
        if clean_part:
            modified_ms = status_of(clean_part[-1].path).modified_ns // 10**6
            from_ms = modified_ms - config.delete_retention_ms
        transactions = EndMarkers(partial(walk_batches, segments))
        # An empty batch keeps the offset at which a follower or a reader goes on.  Kafka 4.4 has
        # seen that only the one at the high watermark is needed for that (KAFKA-20452).
        kept_end = end_offset
        if not cleaner.keeps_last_batch:
            kept_end = log.end_offset(ReadUpTo.HIGH_WATERMARK)
        fates = BatchFates(active, _indexed(segments), transactions, kept_end, cleaner.now_ms)
        self.cleaner = SegmentCleaner(
            log.path,
            config,
            known,
            fates,
            now_ms=cleaner.now_ms,
            old_tombstones_from_ms=from_ms,
        )
        self.groups = group_segments(
            [SegmentSizes.of(each) for each in cleaned],
            config.segment_bytes,
            config.segment_index_bytes,
            end_offset,
        )
        logger.info(
            "cleaning log %s (cleaning prior to offset %d, %d segments into %d, discarding "
            "tombstones of older formats prior to %d)",
            name,
            clean_to,
            len(cleaned),
            len(self.groups),
            from_ms,
        )
        self.ends = [each.base_offset for each in segments[1 : len(cleaned) + 1]]

    def done(self, sizes: Sequence[int]) -> CompactedPartition:
        """The result, once segments of these sizes have taken the places of the others."""
        counts = self.cleaner.counts
        done = CompactedPartition(
            *self._name,
            self._dirty.first_dirty_offset,
            self.clean_to,
            self._dirty.dirty_ratio,
            1,
            len(self.cleaned),
            len(sizes),
            sum(each.size for each in self.cleaned),
            sum(sizes),
            counts.n_read,
            counts.n_kept,
            counts.n_without_key,
        )
        logger.info(
            "cleaned log %s up to offset %d: %d of %d records and %d of %d bytes remain",
            self._name,
            self.clean_to,
            done.records_after,
            done.records_before,
            done.bytes_after,
            done.bytes_before,
        )
        return done


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


def _indexed(segments: Sequence[Segment]) -> list[AbortedTransaction]:
    """Entries of the transaction indexes of a log; those that cannot be read are made again."""
    found: list[AbortedTransaction] = []
    for each in segments:
        try:
            found += read_transaction_index(each.transaction_index_path)
        except CorruptIndexError as error:
            logger.warning("%s; its entries are built from the log instead", error)
    return found


def group_segments(
    segments: Sequence[SegmentSizes], most_bytes: int, most_index_bytes: int, end_offset: int
) -> list[slice]:
    """Ranges of segments, each of which becomes one segment (``Cleaner.groupSegmentsBySize``).

    A group is as large as its log, its indexes and the span of its offsets allow, by the sizes
    before compaction.

    `segments`: in the order of their base offsets.  `most_bytes`: of a log (``segment.bytes``).
    `most_index_bytes`: of either index (``segment.index.bytes``).  `end_offset`: the first offset
    that is not cleaned; the last segment ends there at the latest.
    """
    groups = []
    first, n_bytes = 0, (0, 0, 0)
    ends = [*(each.base_offset for each in segments[1:]), end_offset]
    for i, (each, end) in enumerate(zip(segments, ends, strict=False)):
        sizes = each.log, each.offset_index, each.time_index
        joined = n_bytes[0] + sizes[0], n_bytes[1] + sizes[1], n_bytes[2] + sizes[2]
        fits = (
            joined[0] <= most_bytes
            and max(joined[1:]) <= most_index_bytes
            and (not each.log or end - segments[first].base_offset <= layout.SEGMENT_OFFSETS)
        )
        if i > first and not fits:
            groups.append(slice(first, i))
            first, joined = i, sizes
        n_bytes = joined
    if segments:
        groups.append(slice(first, len(segments)))
    return groups
