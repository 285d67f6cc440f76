"""Commit staged batches: visible in all partitions at once, or in none, at any crash.

The steps are those of every change (`segmentlog.txn.change`), on logs that were made ready for it
(`segmentlog.writes.prepare`).  Its work is to write batches and index entries after the ends of
the logs; an overwrite puts the earlier segments aside.
"""

import logging
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from segmentlog.errors import (
    CorruptLogError,
    LogDirectoryError,
    OffsetsOutOfOrderError,
    UnsupportedFormatError,
)
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT, partition_path
from segmentlog.log.checkpoint import known_topic_id, read_leader_epochs
from segmentlog.log.listing import left_out as files_left_out
from segmentlog.log.listing import list_segments
from segmentlog.log.producers import save_producers
from segmentlog.model import LARGEST_LONG, Appended, TopicPartition
from segmentlog.store.durable import SyncTogether, do_together
from segmentlog.store.readable import exists
from segmentlog.txn.change import Change, HeldDirectory
from segmentlog.txn.effects import AlterSettings, Effect, KeepProducers, MoveBounds, PutAside
from segmentlog.txn.guard import Guard, PartitionIntent
from segmentlog.txn.settings_file import SettingsFile
from segmentlog.txn.state import FORGOTTEN_AFTER_MS, NumberedWrite, State, StreamBatch
from segmentlog.txn.topics import check_partition_path
from segmentlog.writes.append import (
    Extent,
    LogAppender,
    enter_partition,
    move_segment,
    plan_segment,
)
from segmentlog.writes.prepare import ready_to_append, visible_ends
from segmentlog.writes.sequences import without_duplicates
from segmentlog.writes.staged_files import JobExtents, TaskStage, staged_batches, staged_errors

logger = logging.getLogger(__name__)

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
    #: by Kafka's names, which `topic` gets together with the records
    topic_settings: Mapping[str, str] = field(default_factory=dict)


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

    # PREPARE.  A write that was committed before is not repeated, if its records are still there:
    # the topic may be another one, and a log that is prepared shows whether they have been lost.
    ids = _ids_of(directory, topics, partitions) if settings.numbered is not None else {}
    if change.before.without_former(ids) is not change.before:
        held.forget_former(ids)
        change = Change.begin(held, token)
    if done := _done_in(settings, change.before, topics):
        done = {each for each in done if exists(partition_path(directory, each))}
        ready = ready_to_append(held, done, flush=flush, no_reboot=change.boot != "")
        for each, log in ready.items():  # an empty one may be of another topic, without its id yet
            held.forget_cut(each, log.end)
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
    written = {each: ids.get(each, "") for each in topics}
    partitions = [each for each in partitions if each.topic in topics]

    for each in partitions:
        path = partition_path(directory, each)
        check_partition_path(path)
        # A broker reads these files, and might find the offsets of new records in them.
        for file, _, why in files_left_out(path) if exists(path) else ():
            raise LogDirectoryError(file, f"{why}; nothing is written to this log before")
    ready = ready_to_append(held, partitions, flush=flush, no_reboot=change.boot != "")
    held.checkpoints.write()

    # Batches of producers are checked, and left out if a log has them.
    appended: tuple[Appended, ...] = ()
    ends = {each: log.end for each, log in ready.items()}
    if settings.with_producers:
        staged, appended = _without_duplicates(held, token, settings, ends, staged)

    # What is about to happen to each log.  Each gets a high watermark: a reader that has looked
    # for guards before ours stands has no other bound, and would take the log end while batches
    # are appended.
    visible, intents = visible_ends(held, ends), []
    for each, (sizes, end) in ready.items():
        start, new_end = _new_bounds(
            partition_path(directory, each),
            each,
            end,
            staged.spans(each),
            is_emptied=each in settings.emptied,
        )
        intents.append(PartitionIntent(*each, sizes, end, visible[each], new_end, start))
    replaced = [each for each in intents if each.new_start >= 0]

    def append(syncs: SyncTogether) -> None:
        do_together(lambda intent: _save_producers(directory, intent), replaced)
        guard = Guard.of_job(directory, token)
        for each in intents:
            _append(
                held,
                guard,
                each,
                staged.extents(each.topic_partition),
                rolls=settings.rolls,
                syncs=syncs if flush else None,
            )

    effects: list[Effect] = [MoveBounds()]
    if replaced:
        effects.append(
            PutAside([(each.topic, each.partition, each.new_start) for each in replaced])
        )
    if settings.with_producers:
        effects.append(KeepProducers())
    if settings.topic_settings and settings.topic is not None:
        # Before the decision: nobody could finish a change whose file of settings is damaged.
        SettingsFile.read(directory)
        effects.append(AlterSettings(settings.topic, dict(settings.topic_settings)))
    change.carry_out(
        intents,
        effects,
        append,
        is_flushed=flush,
        is_repeatable=False,  # moved files are gone after an undo
        noted=lambda state: _noted(state, settings, written, staged.n_records, intents),
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
            directory,
            batch.query,
            batch.number,
            FORGOTTEN_AFTER_MS // _DAY_MS,
        )
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
    topics: Mapping[str, str],
    n_records: int,
    intents: Iterable[PartitionIntent],
) -> State:
    """The state that decides the commit, with the writes that may be repeated.

    `topics`: each with its id, or with ``""`` if that is not known.
    """
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


def _ids_of(
    directory: str, topics: Set[str], partitions: Iterable[TopicPartition]
) -> dict[str, str]:
    """The ids of topics, by the directory of one of these partitions, or of the first one."""
    places = {each: TopicPartition(each, 0) for each in topics}
    places |= {each.topic: each for each in partitions}
    return {topic: known_topic_id(partition_path(directory, at)) for topic, at in places.items()}


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
