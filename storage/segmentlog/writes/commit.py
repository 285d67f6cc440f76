"""Commit staged batches: visible in all partitions at once, or in none, at any crash.

The steps are those of every change (`segmentlog.txn.change`).  Its work is to write batches and
index entries after the ends of the logs; an overwrite puts the earlier segments aside.

Before any change, logs are made ready as a starting broker would do it.  In a directory without
the mark of a clean stop, bytes that may not have reached the disk are recovered.  A writer
recovers only if no promised byte is lost: at and after the recovery point no byte was ever known
to be synced.  Damage below that point is left to `segmentlog recover`, and so are whole batches
below the high watermark that follow a damaged one: readers have seen them.
"""

import logging
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from segmentlog.errors import (
    CorruptLogError,
    LogDirectoryError,
    OffsetsOutOfOrderError,
    UnsupportedFormatError,
)
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    partition_path,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import read_leader_epochs, write_leader_epochs
from segmentlog.log.index_builder import rebuild_indexes
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.log.listing import list_segments, remove_indexes_without_log
from segmentlog.log.producers import save_producers
from segmentlog.log.segment import Segment, find_log_end
from segmentlog.log.swaps import settle_swaps
from segmentlog.model import LARGEST_LONG, Appended, TopicPartition
from segmentlog.store.durable import SyncTogether, do_together, sync_directory
from segmentlog.store.readable import exists, status_of
from segmentlog.txn.change import Change, HeldDirectory
from segmentlog.txn.effects import Effect, KeepProducers, MoveBounds, PutAside
from segmentlog.txn.guard import Guard, PartitionIntent, SegmentSizes
from segmentlog.txn.recover_log import RecoveryPlan, plan_recovery, recover_log
from segmentlog.txn.state import FORGOTTEN_AFTER_MS, NumberedWrite, State, StreamBatch
from segmentlog.txn.topics import check_partition_path
from segmentlog.writes.append import (
    Extent,
    LogAppender,
    enter_partition,
    move_segment,
    plan_segment,
)
from segmentlog.writes.leader_checks import without_duplicates
from segmentlog.writes.staged_files import JobExtents, TaskStage, staged_batches, staged_errors

logger = logging.getLogger(__name__)


_ANY_OFFSET = LARGEST_LONG
_REMEDY = (
    "nothing can be appended to this log: segmentlog verify shows the place, and segmentlog "
    "recover cuts the log there, as a broker would, or leaves out the damage alone "
    "(--on-corrupt-batch skip)"
)

#: `segmentlog.recover` believes the mark, as a starting broker does.
_REMEDY_OF_CLEAN = (
    f"nothing can be appended to this log: segmentlog verify shows the place; without "
    f"{CLEAN_SHUTDOWN_FILE}, segmentlog recover cuts the log there, as a broker would; segmentlog "
    "recover --on-corrupt-batch skip leaves out the damage alone"
)


class ReadyLog(NamedTuple):
    """A log that a change may append to."""

    sizes: SegmentSizes  # of its active segment
    end: int  # its log end offset


def ready_to_append(
    held: HeldDirectory,
    partitions: Collection[TopicPartition],
    *,
    flush: bool,
    no_reboot: bool = False,
) -> dict[TopicPartition, ReadyLog]:
    """Make logs ready for a change that appends to them.

    The caller writes the checkpoints of `held`: after several calls, perhaps.

    `held`: the log directory; its `config_of` has the settings of the topics.  `flush`: whether an
    active segment that may not be synced is synced.  `no_reboot`: whether all bytes that may not
    be synced were written since the machine has started, so that none can be lost.  Unless `flush`
    is set, only the end of an active segment is checked then: to check the segment would take
    longer with each commit.  Raises `LogDirectoryError` if a log has no segment, is damaged where
    it had been synced, or has committed records after damage.
    """
    # With the mark of a clean stop, all bytes are synced, and indexes can be trusted.
    directory, checkpoints, is_clean = held.directory, held.checkpoints, held.is_clean
    starts, points = checkpoints.starts, checkpoints.points.offsets
    configs = {partition_path(directory, each): held.config_of(each.topic) for each in partitions}
    plans, ready, synced_to = {}, {}, {}
    for each in partitions:
        path, point = partition_path(directory, each), points.get(each, 0)
        committed_to = checkpoints.high_watermarks.offsets.get(each, _ANY_OFFSET)
        plans[each] = _plan(
            path, point, starts.get(each, 0), committed_to,
            is_clean=is_clean, no_reboot=no_reboot and not flush,
        )  # fmt: skip
    # All logs stay as they are if one is refused.
    for each in plans:
        remove_indexes_without_log(partition_path(directory, each))

    def recover(plan: RecoveryPlan) -> None:
        loss = plan.loss
        last_epoch = EpochStarts(plan.path).last
        kept = recover_log(plan, configs[plan.path].index_interval_bytes, syncs_active=flush)
        epochs = os.path.join(plan.path, LEADER_EPOCH_CHECKPOINT)
        if not read_leader_epochs(epochs):
            # Consumers ask for the epoch of the batches to come.  The last leader has written its
            # epoch before any batch; the recovery has forgotten it with the offset at which it
            # began.
            write_leader_epochs(epochs, [(max(last_epoch, 0), plan.end_offset)])
        if kept:
            logger.warning("%s: %s; kept in %s", plan.path, loss, ", ".join(kept))

    do_together(recover, [plan for plan, _ in plans.values() if plan is not None])
    for each, (_, end) in plans.items():
        path, point = partition_path(directory, each), points.get(each, 0)
        sizes = _sizes(path, configs[path])
        ready[each] = ReadyLog(sizes, end)
        # The mark vouches for all bytes, also in a directory that was copied without the points.
        # Without the point, a recovery would not know that retention or compaction has removed
        # batches, and that they were not lost.
        synced_to[each] = end if flush or is_clean else max(sizes.base_offset, point)
    # A writer that died while it made a partition may not have synced its name, or those in it.
    empty = [each for each, log in ready.items() if not log.sizes.log]
    do_together(sync_directory, [partition_path(directory, each) for each in empty])
    if empty:
        sync_directory(directory)
    # Points move once all logs are recovered.  If a crash came between a point that moved first
    # and its log, the next writer would refuse the log, as one that has lost synced bytes.
    moved = {each: point for each, point in synced_to.items() if points.get(each) != point}
    checkpoints.points.put(moved)
    held.lower_to({each: log.end for each, log in ready.items()})
    return ready


def as_they_are(
    directory: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ReadyLog]:
    """What `ready_to_append` returns, for a change that appends nothing: no file is changed.

    A full disk may not take the indexes and copies of a log that is made ready.
    """
    found = {}
    for each in partitions:
        active = Segment(list_segments(partition_path(directory, each))[-1], is_sealed=False)
        end = find_log_end(active, warns=False).offset
        found[each] = ReadyLog(SegmentSizes.of(active), end)
    return found


def visible_ends(
    held: HeldDirectory, ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The ends of reads of some logs: their high watermarks, or else the log ends.

    A log without a high watermark gets one, because readers would take the log end that a commit
    moves.
    """
    high_watermarks = held.checkpoints.high_watermarks
    known = high_watermarks.offsets
    visible = {each: min(known.get(each, end), end) for each, end in ends.items()}
    if not visible.keys() <= known.keys():
        high_watermarks.put(visible)
        high_watermarks.write()
    return visible


def _plan(
    path: str,
    point: int,
    log_start: int,
    committed_to: int,
    *,
    is_clean: bool,
    no_reboot: bool,
) -> tuple[RecoveryPlan | None, int]:
    """The recovery of a log, if it needs one, and its end; refused if it would lose records."""
    settle_swaps(path)
    segments = list_segments(path)
    if not segments:
        raise LogDirectoryError(path, "holds no segment; segmentlog recover mends that")
    # Closed segments that were never synced are checked and synced once, before the recovery point
    # moves after them.
    damaged_from = None
    if is_clean or (no_reboot and segments[-1].base_offset <= point):
        active = Segment(segments[-1], is_sealed=False)
        end = find_log_end(active, warns=False)
        damaged_from = end.damaged_from
        is_short = end.offset < committed_to < _ANY_OFFSET
        if is_clean and is_short and damaged_from is None:
            # A broker does the same in silence when it starts on such a log.
            logger.warning(
                "%s: offsets [%d, %d) were below the high watermark of a cleanly stopped log and "
                "are gone; new records get these offsets again",
                path, end.offset, committed_to,
            )  # fmt: skip
        is_whole = active.size == end.position and damaged_from is None
        if is_whole and (is_clean or not is_short):
            if end.offset < log_start:
                raise _start_beyond(path, log_start, end.offset)
            return None, end.offset
    read_from = segments[-1].base_offset if is_clean else point
    plan = plan_recovery(
        path, read_from, log_start, -1 if committed_to == _ANY_OFFSET else committed_to
    )
    if plan.log_start < log_start:
        raise _start_beyond(path, log_start, plan.end_offset)
    if is_clean and damaged_from is not None:  # and not of a newer format, which nothing may cut
        reason = f"is damaged from offset {damaged_from} on; {_REMEDY_OF_CLEAN}"
        raise LogDirectoryError(segments[-1].path, reason)
    if plan.end_offset < point:
        reason = (
            f"has lost its records from offset {plan.end_offset} on, although it was synced up "
            f"to {point}; {_REMEDY}"
        )
        raise LogDirectoryError(path, reason)
    if plan.good_from is not None and plan.good_from < committed_to:
        to = min(plan.lost_to, committed_to)
        reason = (
            f"is damaged at offset {plan.end_offset}, before committed records up to {to}: a cut "
            f"there would lose these records; {_REMEDY}, and keeps the bytes that it cuts off in "
            ".broken files"
        )
        raise LogDirectoryError(path, reason)
    return plan, plan.end_offset


def _start_beyond(path: str, log_start: int, end: int) -> LogDirectoryError:
    reason = (
        f"has its log start at {log_start}, beyond its log end {end}, so that no reader would see "
        f"new records: segmentlog recover corrects {LOG_START_CHECKPOINT}"
    )
    return LogDirectoryError(path, reason)


def _sizes(path: str, config: TopicConfig) -> SegmentSizes:
    """Sizes of the active segment, once its indexes are there and trimmed."""
    active = Segment(list_segments(path)[-1], is_sealed=False)
    if not _are_trimmed(active):
        rebuild_indexes(active, config.index_interval_bytes)
    return SegmentSizes.of(active)


def _are_trimmed(segment: Segment) -> bool:
    """Whether both indexes exist, hold whole entries and no zeros, and fit the log."""
    paths = (segment.offset_index_path, segment.time_index_path)
    if not all(map(exists, paths)):
        return False
    with segment.opened() as opened:
        index, times = opened.offset_index, opened.time_index
        if any(
            each.n_entries * each.entry_bytes != status_of(each.path).size
            for each in (index, times)
        ):
            return False
        if times.n_entries and opened.indexed_time()[0].timestamp_ms < 0:
            return False
        if not index.n_entries:
            return True
        entry = index.entry(index.n_entries - 1)
        return opened.header_at(entry.position, up_to_offset=entry.offset) is not None


_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """Settings of one commit."""

    flush: bool = True  # whether everything is synced before it is decided
    #: topics that have the version of this write, or a later one, are left out
    numbered: NumberedWrite | None = None
    #: of a streaming query; the last batch is not written again, and an empty batch changes
    #: nothing
    batch: StreamBatch | None = None
    topic: str | None = None  # a topic for which `numbered` counts even without extents
    #: partitions that keep no earlier record (``DeleteRecords``)
    emptied: Collection[TopicPartition] = ()
    rolls: bool = False  # whether each partition begins a new segment first
    #: partitions whose batches may have producers.  These batches are checked, and left out if the
    #: log has them.
    with_producers: Collection[TopicPartition] = ()


class Committed(NamedTuple):
    """The result of a commit."""

    is_new: bool  # False if the batch, or the numbered write in all topics, was committed before
    appended: tuple[Appended, ...] = ()  # the answers to the producers of the batches


def commit_staged(
    held: HeldDirectory, token: str, staged: JobExtents, settings: CommitSettings
) -> Committed:
    """Commit staged batches.

    `held`: the log directory, without unfinished changes.  `token`: of the job, without a dash.
    `staged`: in the order in which their records are to follow each other.  Raises
    `StreamBatchError` if the log knows a later batch of the query, or the batch with other
    records.  Raises `OffsetsOutOfOrderError` if records are to keep offsets that the log has given
    already.  Raises `OutOfOrderSequenceError` or `InvalidProducerEpochError` or
    `InvalidTxnStateError` if a leader would refuse a batch of a producer; nothing is visible
    then.  Raises `LogDirectoryError` if a log is damaged, or may not be written to; nothing is
    visible then.
    """
    directory, change, flush = held.directory, Change.begin(held, token), settings.flush
    partitions = [*dict.fromkeys([*sorted({*settings.emptied}), *staged.topic_partitions])]
    topics = {each.topic for each in partitions}
    if settings.topic:
        topics.add(settings.topic)

    # 1. A write that was committed before is not repeated, if its records are still there: a log
    # that is prepared shows whether they have been lost since.
    if done := _done_in(settings, change.before, topics):
        done = {each for each in done if exists(partition_path(directory, each))}
        ready_to_append(held, done, flush=flush, no_reboot=change.boot != "")
        held.checkpoints.write()
        change = Change.begin(held, token)
    unneeded = _needs_nothing(directory, settings, change.before, staged.n_records)
    if unneeded is not None:
        return unneeded
    numbered = settings.numbered
    left_out = numbered.left_out(change.before.versions, topics) if numbered else {}
    if numbered and left_out:
        numbered.warn(directory, left_out)
        if len(left_out) == len(topics):
            return Committed(is_new=False)
    topics -= left_out.keys()
    partitions = [each for each in partitions if each.topic in topics]

    # 2. The logs are prepared.
    for each in partitions:
        check_partition_path(partition_path(directory, each))
    ready = ready_to_append(held, partitions, flush=flush, no_reboot=change.boot != "")
    held.checkpoints.write()

    # 3. Batches of producers are checked, and left out if a log has them.
    appended: tuple[Appended, ...] = ()
    ends = {each: log.end for each, log in ready.items()}
    if settings.with_producers:
        staged, appended = _without_duplicates(held, token, settings, ends, staged)

    # 4. What is about to happen to each log.  Each gets a high watermark: a reader that has looked
    # for guards before ours stands has no other bound, and would take the log end while batches
    # are appended.
    visible, intents = visible_ends(held, ends), []
    for each, (sizes, end) in ready.items():
        start, new_end = _new_bounds(
            partition_path(directory, each), each, end, staged.spans(each),
            is_emptied=each in settings.emptied,
        )  # fmt: skip
        intents.append(PartitionIntent(*each, sizes, end, visible[each], new_end, start))
    replaced = [each for each in intents if each.new_start >= 0]

    # 5. The change: batches are written after the ends of the logs, and then it is decided.
    def append(syncs: SyncTogether) -> None:
        do_together(lambda intent: _save_producers(directory, intent), replaced)
        guard = Guard.of_job(directory, token)
        for each in intents:
            _append(
                held, guard, each, staged.extents(each.topic_partition),
                rolls=settings.rolls, syncs=syncs if flush else None,
            )  # fmt: skip

    effects: list[Effect] = [MoveBounds()]
    if replaced:
        effects.append(
            PutAside([(each.topic, each.partition, each.new_start) for each in replaced])
        )
    if settings.with_producers:
        effects.append(KeepProducers())
    change.carry_out(
        intents,
        effects,
        append,
        is_flushed=flush,
        is_repeatable=False,  # moved files are gone after an undo
        noted=lambda state: _noted(state, settings, topics, staged.n_records, intents),
    )
    return Committed(is_new=True, appended=appended)


def _needs_nothing(
    directory: str, settings: CommitSettings, state: State, n_records: int
) -> Committed | None:
    """The result of a streaming query's batch without a commit; None if it needs a commit."""
    batch = settings.batch
    if batch is None:
        return None
    if batch.is_repeated(directory, state.streams, n_records):
        return Committed(is_new=False)
    if not n_records and not settings.emptied:
        # To write it down would cost syncs, and its repetition changes nothing.
        return Committed(is_new=True)
    if batch.number and batch.query not in state.streams:
        logger.warning(
            "%s: query %s continues with batch %d, and no earlier batch of it is noted here; "
            "if the batch was committed before, its records are now written twice. Batches "
            "are forgotten %d days after the commit, and with lost records",
            directory, batch.query, batch.number, FORGOTTEN_AFTER_MS // _DAY_MS,
        )  # fmt: skip
    return None


def _without_duplicates(
    held: HeldDirectory,
    token: str,
    settings: CommitSettings,
    ends: Mapping[TopicPartition, int],
    staged: JobExtents,
) -> tuple[JobExtents, tuple[Appended, ...]]:
    """`without_duplicates`, with a stage for what stays of extents that lose batches."""
    stage = TaskStage(
        held.directory,
        token,
        0,
        min(held.config_of(each).segment_bytes for each in staged.topics),
        flush=settings.flush,
        most_held=0 if staged.has_files else sys.maxsize,  # what is in memory stays there
    )
    try:
        return without_duplicates(held.directory, stage, settings.with_producers, ends, staged)
    except BaseException:
        stage.discard()  # its files are open
        raise


def _noted(
    state: State,
    settings: CommitSettings,
    topics: Set[str],
    n_records: int,
    intents: Iterable[PartitionIntent],
) -> State:
    """The state that decides the commit, with the writes that may be repeated."""
    ranges = {}
    for each in intents:
        begin = max(each.end_offset, each.new_start)
        if each.new_end > begin:
            ranges[each.topic_partition] = begin, each.new_end
    if settings.numbered is not None:
        state = state.with_version(settings.numbered, topics, ranges)
    if settings.batch is not None:
        committed = settings.batch.committed(n_records)
        state = state.with_batch(settings.batch.query, committed, ranges)
    return state


def _save_producers(directory: str, intent: PartitionIntent) -> None:
    """Keep the producers of batches that the overwrite of a partition removes."""
    path = partition_path(directory, intent.topic_partition)
    try:
        save_producers(path, intent.new_start, intent.end_offset)
    except (CorruptLogError, UnsupportedFormatError) as error:  # damage may be overwritten
        logger.warning("%s: its producers get no new snapshot: %s", path, error)


def _append(
    held: HeldDirectory,
    guard: Guard,
    intent: PartitionIntent,
    extents: Iterable[Extent],
    *,
    rolls: bool,
    syncs: SyncTogether | None,
) -> None:
    """Write the batches of one partition; they are on the disk once `syncs` has finished."""
    directory, config = held.directory, held.config_of(intent.topic)
    path = partition_path(directory, intent.topic_partition)
    epochs = read_leader_epochs(os.path.join(path, LEADER_EPOCH_CHECKPOINT))
    epoch = epochs[-1][0] if epochs else 0
    appender = LogAppender(path, config, intent.sizes, syncs=syncs)
    try:
        next_offset = max(intent.end_offset, intent.new_start)
        if (rolls or intent.new_start >= 0) and next_offset > appender.base_offset:
            appender.roll(next_offset)
        for extent in extents:
            shift = extent.shift_to(next_offset)
            # A moved file takes the place of an empty active segment.
            base_offset = max(extent.first_offset, next_offset)
            base_offset = base_offset if appender.size else appender.base_offset
            with staged_errors():
                plan = plan_segment(directory, extent, base_offset, shift, epoch, config)
                if plan is not None and enter_partition(guard.path, path, extent, plan):
                    appender.close()
                    sizes = move_segment(directory, guard.path, path, extent, plan)
                    # This appender syncs the moved files.
                    appender = LogAppender(path, config, sizes, syncs=syncs, is_moved=True)
                else:
                    for batches in staged_batches(directory, extent, shift, epoch):
                        appender.append(batches)
            next_offset = extent.end_offset(next_offset)
        appender.close()
    except BaseException:
        appender.abandon()
        raise


def _done_in(settings: CommitSettings, state: State, topics: Set[str]) -> set[TopicPartition]:
    """Partitions with the records of a write that counts as done; none if it does not."""
    keys = []
    numbered, batch = settings.numbered, settings.batch
    if batch is not None:
        known = state.streams.get(batch.query)
        if known is not None and batch.number <= known[0].number:
            keys.append((batch.query, ""))
    if numbered is not None:
        keys += [(numbered.app_id, each) for each in numbered.left_out(state.versions, topics)]
    return {each for key in keys for each in state.spans.get(key, ())}


def _new_bounds(
    path: str,
    topic_partition: TopicPartition,
    end: int,
    extents: Sequence[Extent],
    *,
    is_emptied: bool,
) -> tuple[int, int]:
    """Log start and log end of a partition after the commit; the start is -1 if it stays.

    `extents`: staged for the partition, in their order.  `is_emptied`: whether the partition keeps
    no earlier record.
    """
    new_start = end if is_emptied else -1
    if extents and extents[0].first_offset > end:
        # A log that never held a record, or was emptied, begins at its first restored one.
        bases = [each.base_offset for each in list_segments(path)]
        new_start = extents[0].first_offset if bases == [end] else new_start
    new_end = max(end, new_start)
    for extent in extents:
        if extent.has_offsets and extent.first_offset < new_end:
            raise OffsetsOutOfOrderError(*topic_partition, extent.first_offset, new_end)
        new_end = extent.end_offset(new_end)
    if new_end > LARGEST_LONG:
        raise OffsetsOutOfOrderError(*topic_partition, new_end - 1, end)
    return new_start, new_end
