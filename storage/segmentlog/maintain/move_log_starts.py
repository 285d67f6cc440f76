"""Move log starts up, in all partitions at once: retention and ``DeleteRecords``.

The steps are those of every change (`segmentlog.txn.change`).  In addition:

- The logs are prepared as for an append.  If the disk is too full for that, they stay as they are,
  and only what lies below the new starts goes: the command is there to free space.
- The work is done under the guard.  A snapshot keeps the producers that only records below the new
  start show.  A log of which no segment stays begins a new one at its end.  An undo removes the
  new segment, and the old start holds.
- The effects are the new log starts in the checkpoint, and then the segments below them, which are
  put aside, the oldest first.

``DeleteRecords`` also removes segments that lie wholly below the new start in the same call: a
broker leaves that to its retention.  As with a broker, the active segment stays, and its records
below the start are hidden.
"""

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

from segmentlog.arguments import LEAST_LONG, instance_of, whole_number
from segmentlog.bucket.upkeep import move_starts
from segmentlog.cluster.directory_settings import DirectorySettings
from segmentlog.dialects import one_dialect
from segmentlog.errors import OffsetOutOfRangeError, OptionError, SegmentLogError
from segmentlog.format.names import LOG_START_CHECKPOINT, partition_path
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import read_offsets
from segmentlog.log.listing import list_segments
from segmentlog.log.producers import save_producers
from segmentlog.maintain.places import log_directory, place_in_store
from segmentlog.maintain.retain import removed_below
from segmentlog.model import LOCK_TIMEOUT_SECONDS, TopicPartition
from segmentlog.reads.log import Log, find_offset
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.durable import SyncTogether, do_together
from segmentlog.store.failures import Failures
from segmentlog.store.system_errors import FULL, storage_errors
from segmentlog.times import Time, epoch_milliseconds
from segmentlog.txn.change import Change
from segmentlog.txn.effects import MoveBounds, PutAside
from segmentlog.txn.guard import PartitionIntent, SegmentSizes
from segmentlog.txn.held import HeldDirectory, hold
from segmentlog.txn.topics import check_partition_path
from segmentlog.writes.append import LogAppender, create_segment
from segmentlog.writes.prepare import as_they_are, ready_to_append, visible_ends

logger = logging.getLogger(__name__)


def first_kept(directory: str, topic_partition: TopicPartition, start: int) -> int:
    """Base offset of the segment that holds a new start: the segments below it go."""
    segments = list_segments(partition_path(directory, topic_partition))
    return max((each.base_offset for each in segments if each.base_offset <= start), default=0)


class LogStartMove:
    """Moves the starts of the logs of `partitions`, in a directory without unfinished changes.

    A log that is damaged, or that this user may not write to, goes to `failures`.  Without them,
    it is an error, and nothing is changed.
    """

    def __init__(
        self,
        held: HeldDirectory,
        partitions: Iterable[TopicPartition],
        failures: Failures | None = None,
    ) -> None:
        self._held = held
        self._directory = held.directory
        self._change = Change.begin(held)
        self._is_ready, self._ready = True, dict[TopicPartition, tuple[SegmentSizes, int]]()
        partitions = sorted(partitions)

        def prepare(some: Sequence[TopicPartition]) -> None:
            for each in some:
                check_partition_path(partition_path(held.directory, each))
            self._ready |= ready_to_append(held, some, flush=True)

        try:
            try:
                prepare(partitions)  # all together, which is quicker, unless one is refused
            except (SegmentLogError, OSError):
                if failures is None:
                    raise
                for each in partitions:
                    with failures.of(each):
                        prepare([each])
            held.checkpoints.write()
        except OSError as error:
            if error.errno not in FULL:
                raise
            logger.warning("%s: the disk is full, so no log is recovered yet", held.directory)
            held.forget_checkpoints()
            self._is_ready, self._ready = False, as_they_are(held.directory, partitions)
        self.partitions = [*self._ready]

    def commit(
        self,
        starts: Mapping[TopicPartition, int],
        rolls: Collection[TopicPartition] = (),
    ) -> None:
        """Move starts to offsets up to the high watermarks, and remove segments wholly below them.

        Logs of `rolls` begin a new segment at their end: because no other segment stays, or
        without a new start.  Their active segments have records.  An error other than
        `CommitInDoubtError` leaves all log starts as they were.
        """
        bounds = dict.fromkeys(rolls, -1) | dict(starts)
        ends = {each: self._ready[each][1] for each in bounds}
        known = self._held.checkpoints.high_watermarks.offsets
        visible = {each: min(known.get(each, end), end) for each, end in ends.items()}
        if self._is_ready:
            visible = visible_ends(self._held, ends)
        partitions = [
            PartitionIntent(
                *each, self._ready[each][0], ends[each], visible[each], visible[each], start
            )
            for each, start in bounds.items()
        ]
        segments = [
            (*each, ends[each] if each in rolls else first_kept(self._directory, each, start))
            for each, start in starts.items()
        ]
        self._change.carry_out(
            partitions,
            [MoveBounds(), PutAside(segments)],
            partial(self._prepare, partitions, rolls),
            is_flushed=self._is_ready,
        )

    def _prepare(
        self,
        partitions: Sequence[PartitionIntent],
        rolls: Collection[TopicPartition],
        syncs: SyncTogether,
    ) -> None:
        """Keep producers whose batches go, and begin new segments."""

        def save(each: PartitionIntent) -> None:
            path = partition_path(self._directory, each.topic_partition)
            save_producers(path, each.new_start, each.end_offset)

        do_together(save, [each for each in partitions if each.new_start >= 0])
        for each in partitions:
            if each.topic_partition in rolls:
                self._roll(each, syncs)

    def _roll(self, intent: PartitionIntent, syncs: SyncTogether) -> None:
        """Begin a new segment at the end of a log."""
        path = partition_path(self._directory, intent.topic_partition)
        if intent.sizes.base_offset < intent.end_offset <= intent.new_start:
            # The old segment goes: its time index needs no last entry, and may be gone already.
            create_segment(path, intent.end_offset)
            syncs.add_directory(path)
            return
        config = self._held.config_of(intent.topic)
        appender = LogAppender(path, config, intent.sizes, syncs=syncs)
        try:
            if intent.end_offset > appender.base_offset:  # preparing may have left it no records
                appender.roll(intent.end_offset)
            appender.close()
        except BaseException:
            appender.abandon()
            raise


class DeletedRecords(NamedTuple):
    """The old and the new start of a log, and the numbers of removed segments and bytes."""

    topic: str
    partition: int
    old_start: int
    new_start: int
    segments: int
    n_bytes: int


@one_dialect()
@storage_errors()
def delete_records(
    path: str | os.PathLike[str],
    topic: str,
    partition: int,
    *,
    offset: int | None = None,
    before: Time | None = None,
    settings: Mapping[str, str] | None = None,
    purge: bool = False,
    dry_run: bool = False,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
) -> DeletedRecords:
    """Delete the records of a partition below an offset, or before a time.

    Parameters
    ----------
    path : a log directory on which no broker is running.
    topic, partition : whose records.
    offset : the first offset that stays; -1 for the high watermark, as in Kafka's request.
    before : instead, a time, as `Log.scan` takes it: the first record at or after that time, and
        all later ones, stay.
    settings : of the topic, by Kafka's names; only ``file.delete.delay.ms`` matters.
    purge : see `segmentlog.retain`.
    dry_run : whether nothing is changed, and the result is what would be deleted.
    lock_timeout_seconds : how long to wait for a writer.

    Raises
    ------
    OptionError
        If not exactly one of `offset` and `before` is given, or `before` is not a time.
    OffsetOutOfRangeError
        If the offset lies beyond the high watermark, or is negative.
    UnknownTopicOrPartitionError
        If the directory does not hold the partition.
    LogDirectoryError
        If `path` is not a log directory; if the log is damaged, or may not be written to.
    LogLockedError
        If a broker or a writer holds the directory.
    CorruptLogError, CorruptCheckpointError
        If the log, or a checkpoint, cannot be read.
    CommitInDoubtError, SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    from segmentlog.maintain.move_log_starts import (
        LogStartMove,
        first_kept,
    )  # the compiled kernels load here

    if (offset is None) == (before is None):
        given = "" if offset is None else "given together with before"
        raise OptionError("offset", given, "give the first offset that stays, or a time")
    before_ms = None if before is None else epoch_milliseconds("before", before)
    instance_of("topic", topic, str, "give the name of a topic")
    location = place_in_store(path)
    if location is not None:
        log = open_log_dir(path).log(topic, partition)
        new_start = _new_start(log, offset, before_ms)
        found = _deleted(log, new_start)
        if not dry_run:
            move_starts(location, {log.topic_partition: new_start})
        return found
    directory = log_directory(path)
    TopicConfig.parse(settings or {})

    @cache  # called under the lock: another process may change settings while this one waits
    def known() -> DirectorySettings:
        return DirectorySettings.read(
            directory, settings, is_optional=True, topics=topic, purge=purge
        )

    def planned() -> int:
        start = _new_start(open_log_dir(directory).log(topic, partition), offset, before_ms)
        return first_kept(directory, TopicPartition(topic, partition), start)

    with hold(
        directory,
        lock_timeout_seconds,
        lambda topic: known().config(topic),
        dry_run=dry_run,
        make_room=lambda held: held.remove_due([topic]),
        effects=lambda: [PutAside([(topic, partition, planned())])],
    ) as held:
        log = open_log_dir(directory).log(topic, partition)
        if held.may_write:
            move = LogStartMove(held, [log.topic_partition])
            log = open_log_dir(directory).log(topic, partition)
        new_start = _new_start(log, offset, before_ms)
        found = _deleted(log, new_start)
        if held.may_write and (found.segments or new_start > found.old_start):
            move.commit({log.topic_partition: new_start})
    return found


def _deleted(log: Log, new_start: int) -> DeletedRecords:
    below = removed_below(log, new_start)
    n_bytes = sum(each.n_bytes for each in below)
    return DeletedRecords(*log.topic_partition, _start_of(log), new_start, len(below), n_bytes)


def _start_of(log: Log) -> int:
    """The start, which lies before the first file if only a tier has the first records."""
    starts = read_offsets(os.path.dirname(log.path), LOG_START_CHECKPOINT)
    start = starts.get(log.topic_partition, log.log_start_offset)
    # While the commit of a deletion is unfinished, the checkpoint has the start before it.
    return min(max(start, log.log_start_checkpoint), log.log_start_offset)


def _new_start(log: Log, offset: int | None, before_ms: int | None) -> int:
    """The offset at which the log is to begin; it never moves back."""
    start, end = _start_of(log), log.high_watermark
    end = log.log_end_offset if end is None else end
    if before_ms is not None:
        found = find_offset(log, before_ms)
        new_start = end if found is None else found.offset
        # Records that only a tier has may be as new as the first one here.
        return new_start if new_start > log.log_start_offset else start
    if offset == -1:
        return end
    if offset is None or not 0 <= whole_number("offset", offset, LEAST_LONG) <= end:
        raise OffsetOutOfRangeError(str(log.topic_partition), -1 if offset is None else offset,
                                    start, end)  # fmt: skip
    return max(start, offset)
