"""Commit staged batches: visible in all partitions at once, or in none, at any crash.

The steps are those of every change (`segmentlog.txn.change`).  Its work is to write batches and
index entries after the ends of the logs; an overwrite puts the earlier segments aside.
"""

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from segmentlog.errors import CorruptLogError, OffsetsOutOfOrderError, UnsupportedFormatError
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT, partition_path
from segmentlog.log.checkpoint import read_leader_epochs
from segmentlog.log.listing import list_segments
from segmentlog.model import Appended, TopicPartition
from segmentlog.store.readable import exists
from segmentlog.store.sync_together import SyncTogether, do_together
from segmentlog.txn.change import Change
from segmentlog.txn.effects import Effect, KeepProducers, MoveBounds, PutAside
from segmentlog.txn.guard import Guard, PartitionIntent
from segmentlog.txn.held import HeldDirectory
from segmentlog.txn.keep_producers import save_producers
from segmentlog.txn.repeated_writes import FORGOTTEN_AFTER_MS, NumberedWrite, StreamBatch
from segmentlog.txn.state import State
from segmentlog.txn.topics import check_partition_path
from segmentlog.writes.append import LogAppender
from segmentlog.writes.extents import Extent, JobExtents
from segmentlog.writes.ingest import enter_partition, move_segment, plan_segment
from segmentlog.writes.prepare import ready_to_append, visible_ends
from segmentlog.writes.sequences import without_duplicates
from segmentlog.writes.staged_batches import staged_batches, staged_errors
from segmentlog.writes.staged_files import TaskStage

logger = logging.getLogger(__name__)

_DAY_MS = 24 * 3600 * 1000
_MOST_NAMED = 10  #: topics in a warning
_LARGEST_END = 2**63 - 1  #: Java's largest long, which checkpoints are written with


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
    change = Change.begin(held, token)
    partitions = [*dict.fromkeys([*sorted(settings.emptied), *staged.topic_partitions])]
    topics = {each.topic for each in partitions}
    if settings.topic:
        topics.add(settings.topic)
    batch = settings.batch
    if done := _done_in(settings, change.before, topics):
        # The records may have been lost since: a log that is prepared shows it.
        done = {each for each in done if exists(partition_path(held.directory, each))}
        ready_to_append(held, done, flush=settings.flush, no_reboot=change.boot != "")
        held.checkpoints.write()
        change = Change.begin(held, token)
    if batch is not None:
        if batch.is_repeated(change.before.streams, staged.n_records):
            logger.warning(
                "%s: batch %d of query %s was committed before, and is not written again",
                held.directory, batch.number, batch.query,
            )  # fmt: skip
            return Committed(is_new=False)
        if not staged.n_records and not settings.emptied:
            # To write it down would cost syncs, and its repetition changes nothing.
            return Committed(is_new=True)
        if batch.number and batch.query not in change.before.streams:
            logger.warning(
                "%s: query %s continues with batch %d, and no earlier batch of it is noted here; "
                "if the batch was committed before, its records are now written twice. Batches "
                "are forgotten %d days after the commit, and with lost records",
                held.directory, batch.query, batch.number, FORGOTTEN_AFTER_MS // _DAY_MS,
            )  # fmt: skip
    left_out = _left_out(held.directory, settings.numbered, change.before, topics)
    if left_out and len(left_out) == len(topics):
        return Committed(is_new=False)
    topics -= left_out
    commit = _Commit(held, Guard.of_job(held.directory, token), settings)
    partitions = [each for each in partitions if each.topic in topics]
    intents, staged, appended = commit.intend(partitions, staged, no_reboot=change.boot != "")

    def append(syncs: SyncTogether) -> None:
        do_together(commit.save_producers, [each for each in intents if each.new_start >= 0])
        for each in intents:
            commit.append(
                each, staged.extents(each.topic_partition), syncs if settings.flush else None
            )

    ranges = {
        each.topic_partition: (max(each.end_offset, each.new_start), each.new_end)
        for each in intents
        if each.new_end > max(each.end_offset, each.new_start)
    }

    def noted(state: State) -> State:
        if settings.numbered is not None:
            state = state.with_version(settings.numbered, topics, ranges)
        if batch is not None:
            state = state.with_batch(batch.query, batch.committed(staged.n_records), ranges)
        return state

    change.carry_out(
        intents,
        commit.effects(intents),
        append,
        is_flushed=settings.flush,
        is_repeatable=False,  # moved files are gone after an undo
        noted=noted,
    )
    return Committed(is_new=True, appended=appended)


@dataclass(frozen=True, slots=True)
class _Commit:
    """The work of a commit, and what it needs to know before."""

    held: HeldDirectory
    guard: Guard
    settings: CommitSettings

    @property
    def directory(self) -> str:
        """The log directory."""
        return self.held.directory

    def intend(
        self,
        topic_partitions: Sequence[TopicPartition],
        staged: JobExtents,
        *,
        no_reboot: bool,
    ) -> tuple[list[PartitionIntent], JobExtents, tuple[Appended, ...]]:
        """The partitions now and afterwards, the extents to append, and answers to producers."""
        for topic_partition in topic_partitions:
            check_partition_path(partition_path(self.directory, topic_partition))
        ready = ready_to_append(
            self.held, topic_partitions, flush=self.settings.flush, no_reboot=no_reboot
        )
        self.held.checkpoints.write()
        appended: tuple[Appended, ...] = ()
        if self.settings.with_producers:
            staged, appended = self._checked(
                {each: end for each, (_, end) in ready.items()}, staged
            )
        # Before the guard stands: a reader that has looked for guards by then has no other bound,
        # and would take the log end while batches are appended.
        visible = visible_ends(self.held, {each: ready[each][1] for each in topic_partitions})
        emptied = set(self.settings.emptied)
        partitions = []
        for topic_partition in topic_partitions:
            sizes, end = ready[topic_partition]
            new_start, new_end = _new_bounds(
                partition_path(self.directory, topic_partition),
                topic_partition,
                end,
                staged.spans(topic_partition),
                is_emptied=topic_partition in emptied,
            )
            partitions.append(
                PartitionIntent(
                    *topic_partition, sizes, end, visible[topic_partition], new_end, new_start
                )
            )
        return partitions, staged, appended

    def effects(self, intents: Iterable[PartitionIntent]) -> list[Effect]:
        """The effects of the commit, in their order."""
        effects: list[Effect] = [MoveBounds()]
        emptied = [
            (each.topic, each.partition, each.new_start) for each in intents if each.new_start >= 0
        ]
        if emptied:
            effects.append(PutAside(emptied))
        if self.settings.with_producers:
            effects.append(KeepProducers())
        return effects

    def _checked(
        self, ends: Mapping[TopicPartition, int], staged: JobExtents
    ) -> tuple[JobExtents, tuple[Appended, ...]]:
        """The extents without batches that the log has; a leader would accept the others."""
        segment_bytes = min(self.held.config_of(each).segment_bytes for each in staged.topics)
        flush = self.settings.flush
        stage = TaskStage(self.directory, self.guard.token, 0, segment_bytes, flush=flush)
        return without_duplicates(
            self.directory, stage, self.settings.with_producers, ends, staged
        )

    def save_producers(self, intent: PartitionIntent) -> None:
        """Keep the producers of batches that the overwrite of a partition removes."""
        path = partition_path(self.directory, intent.topic_partition)
        try:
            save_producers(path, intent.new_start, intent.end_offset)
        except (CorruptLogError, UnsupportedFormatError) as error:  # damage may be overwritten
            logger.warning("%s: its producers get no new snapshot: %s", path, error)

    def append(
        self, intent: PartitionIntent, extents: Iterable[Extent], syncs: SyncTogether | None
    ) -> None:
        """Write the batches of one partition; they are on the disk once `syncs` has finished."""
        path = partition_path(self.directory, intent.topic_partition)
        epochs = read_leader_epochs(os.path.join(path, LEADER_EPOCH_CHECKPOINT))
        epoch = epochs[-1][0] if epochs else 0
        config = self.held.config_of(intent.topic)
        appender = LogAppender(path, config, intent.sizes, syncs=syncs)
        try:
            next_offset = max(intent.end_offset, intent.new_start)
            has_to_roll = intent.new_start >= 0 or self.settings.rolls
            if has_to_roll and next_offset > appender.base_offset:
                appender.roll(next_offset)
            for extent in extents:
                with staged_errors():
                    appender = self._append_extent(
                        path, appender, extent, next_offset, epoch, syncs
                    )
                next_offset = extent.end_offset(next_offset)
            appender.close()
        except BaseException:
            appender.abandon()
            raise

    def _append_extent(
        self,
        path: str,
        appender: LogAppender,
        extent: Extent,
        next_offset: int,
        epoch: int,
        syncs: SyncTogether | None,
    ) -> LogAppender:
        """Move the file of an extent to the end of a log, or copy its batches there."""
        shift = extent.shift_to(next_offset)
        base_offset = max(extent.first_offset, next_offset)
        if not appender.size:  # the new segment replaces an empty one
            base_offset = appender.base_offset
        config = self.held.config_of(extent.topic)
        plan = plan_segment(self.directory, extent, base_offset, shift, epoch, config)
        if plan is None or not enter_partition(self.guard.path, path, extent, plan):
            for batches in staged_batches(self.directory, extent, shift, epoch):
                appender.append(batches)
            return appender
        appender.close()
        sizes = move_segment(self.directory, self.guard.path, path, extent, plan)
        # This appender syncs the moved files.
        return LogAppender(path, config, sizes, syncs=syncs, is_moved=True)


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


def _left_out(
    directory: str, numbered: NumberedWrite | None, state: State, topics: Set[str]
) -> Set[str]:
    """Topics that have the write already.

    They are named in a warning: a counter that has begun again would lose job after job in
    silence.
    """
    left_out = numbered.left_out(state.versions, topics) if numbered else {}
    if numbered and left_out:
        named = [f"{topic!r}, which has version {left_out[topic]}" for topic in sorted(left_out)]
        if len(named) > _MOST_NAMED:
            named[_MOST_NAMED:] = [f"{len(named) - _MOST_NAMED} more"]
        logger.warning(
            "%s: version %d of %r is not written to %s",
            directory, numbered.version, numbered.app_id, "; ".join(named),
        )  # fmt: skip
    return left_out.keys()


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
    no earlier record.  Raises `OffsetsOutOfOrderError` if records are to keep offsets that the log
    has given already, or that exceed a long.
    """
    new_start = end if is_emptied else -1
    if extents and extents[0].first_offset > end and _is_empty(path, end):
        new_start = extents[0].first_offset  # the restored log begins there
    new_end = max(end, new_start)
    for extent in extents:
        if extent.has_offsets and extent.first_offset < new_end:
            raise OffsetsOutOfOrderError(*topic_partition, extent.first_offset, new_end)
        new_end = extent.end_offset(new_end)
    if new_end > _LARGEST_END:
        raise OffsetsOutOfOrderError(*topic_partition, new_end - 1, end)
    return new_start, new_end


def _is_empty(path: str, end: int) -> bool:
    """Whether a log holds no record: it never held one, or it was emptied."""
    return [end] == [each.base_offset for each in list_segments(path)]
