"""Kafka's ``DeleteRecords`` without a broker: a log begins at a later offset.

`segmentlog.maintain.move_log_starts` has the durable steps.  The same call removes segments that
lie wholly below the new start: a broker leaves that to its retention.  As with a broker, the
active segment stays, and its records below the start are hidden.
"""

import os
from collections.abc import Mapping
from functools import cache, partial
from typing import NamedTuple

from segmentlog.arguments import instance_of, whole_number
from segmentlog.bucket.upkeep import move_starts
from segmentlog.cluster.directory_settings import DirectorySettings
from segmentlog.dialects import one_dialect
from segmentlog.errors import OffsetOutOfRangeError, OptionError
from segmentlog.format.names import LOG_START_CHECKPOINT
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import read_offsets
from segmentlog.maintain.places import log_directory, place_in_store
from segmentlog.maintain.retain import removed_below
from segmentlog.model import LEAST_LONG, LOCK_TIMEOUT_SECONDS, TopicPartition
from segmentlog.reads.log import Log, find_offset
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.system_errors import storage_errors
from segmentlog.times import Time, epoch_milliseconds
from segmentlog.txn.effects import PutAside
from segmentlog.txn.held import hold


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
    # The compiled kernels load here.
    from segmentlog.maintain.move_log_starts import LogStartMove, first_kept

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
            at = log.topic_partition
            move_starts(location, {at: new_start}, {at: log.known_topic_id})
        return found
    directory = log_directory(path)
    TopicConfig.parse(settings or {})

    # Called under the lock: another process may change settings while this one waits.
    known = cache(partial(
        DirectorySettings.read, directory, settings,
        is_optional=True, topics=topic, purge=purge,
    ))  # fmt: skip

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
