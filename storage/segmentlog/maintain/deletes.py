"""Remove what a user names, without a broker: records below an offset, or a topic.

`delete_records` is Kafka's ``DeleteRecords``: a log begins at a later offset.
`segmentlog.maintain.move_log_starts` has the durable steps.  The same call removes segments that
lie wholly below the new start: a broker leaves that to its retention.  As with a broker, the
active segment stays, and its records below the start are hidden.

`delete_topic`: after a crash, either all or none of the partitions remain.  The steps are those of
every change (`segmentlog.txn.change`), without any work: nothing of the topic is touched before
the decision.  The next state lacks the entries of the topic.  From then on, readers that open the
directory leave the topic out, and readers that have opened it fail with `LogChangedError` when
they list a partition again.  The effect renames the partitions as a broker renames them, and
removes their entries from the checkpoints, and the settings of the topic.  The renamed directories
are removed last, without the guard.  If a crash or a failure leaves some, a starting broker or the
same command removes them.

`sweep` removes objects of a log in an object store that nobody needs.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Annotated, NamedTuple, TypedDict, Unpack

from segmentlog.arguments import instance_of, refused, takes, whole_number
from segmentlog.bucket.upkeep import (
    Swept,
    move_starts,
    place_in_store,
    remove_topic,
    sweep_objects,
)
from segmentlog.cluster.directory_settings import DirectorySettings, log_directory
from segmentlog.declared import Declared
from segmentlog.errors import (
    CorruptLogError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    OptionError,
)
from segmentlog.format.names import LOG_START_CHECKPOINT, check_topic_name
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import read_offsets
from segmentlog.log.listing import list_segments
from segmentlog.maintain.retain import removed_below
from segmentlog.model import LEAST_LONG, TopicPartition
from segmentlog.operation_options import PurgeOptions, WaitOptions, dry_run_of
from segmentlog.reads.log import Log, find_offset
from segmentlog.reads.log_directory import open_log_dir, open_without_listing
from segmentlog.store.paths import readable_path
from segmentlog.store.remote.location import without_options
from segmentlog.store.system_errors import storage_errors
from segmentlog.times import Time, epoch_milliseconds
from segmentlog.txn.change import Change, HeldDirectory, hold
from segmentlog.txn.effects import PutAside, TakeOut
from segmentlog.txn.settings_file import SettingsFile
from segmentlog.txn.topics import (
    CHECKPOINTS,
    check_partition_path,
    is_known,
    partition_directories,
    remove_taken_out,
    taken_out,
)


class DeletedRecords(NamedTuple):
    """The old and the new start of a log, and the numbers of removed segments and bytes."""

    topic: str
    partition: int
    old_start: int
    new_start: int
    segments: int
    n_bytes: int


class DeleteRecordsOptions(PurgeOptions, WaitOptions, total=False):
    """Those of `segmentlog.delete_records`.

    Parameters
    ----------
    offset : the first offset to keep; -1 is the high watermark.
    before : instead, a time, as `Log.scan` takes it: the first record at or after that time, and
        all later ones, stay.
    settings : of the topic, by Kafka's names; only ``file.delete.delay.ms`` matters.
    """

    offset: Annotated[int | None, Declared(least=LEAST_LONG)]
    before: Annotated[Time | None, Declared(help="Delete the records before this time.")]
    settings: Mapping[str, str] | None
    dry_run: Annotated[bool, dry_run_of("deleted")]


@takes(DeleteRecordsOptions)
@storage_errors()
def delete_records(
    path: str | os.PathLike[str],
    topic: str,
    partition: int,
    **options: Unpack[DeleteRecordsOptions],
) -> DeletedRecords:
    """Delete the records of a partition below an offset, or before a time.

    Parameters
    ----------
    path : a log directory on which no broker is running.
    topic, partition : whose records.
    **options : those of `DeleteRecordsOptions`.

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
    from segmentlog.writes.prepare import check_ready

    if (options["offset"] is None) == (options["before"] is None):
        given = "" if options["offset"] is None else "given together with before"
        raise OptionError("offset", given, "give the first offset that stays, or a time")
    before_ms = (
        None if options["before"] is None else epoch_milliseconds("before", options["before"])
    )
    instance_of("topic", topic, str, "give the name of a topic")
    location = place_in_store(path)
    if location is not None:
        log = open_log_dir(path).log(topic, partition)
        new_start = _new_start(log, options["offset"], before_ms)
        found = _deleted(log, new_start)
        if not options["dry_run"]:
            at = log.topic_partition
            move_starts(location, {at: new_start}, {at: log.known_topic_id})
        return found
    directory = log_directory(path)
    TopicConfig.parse(options["settings"] or {})

    # Called under the lock: another process may change settings while this one waits.
    known = cache(
        partial(
            DirectorySettings.read,
            directory,
            options["settings"],
            is_optional=True,
            topics=topic,
            purge=options["purge"],
            needs=(),
        )
    )

    def planned() -> int:
        start = _new_start(
            open_without_listing(directory).log(topic, partition), options["offset"], before_ms
        )
        return first_kept(directory, TopicPartition(topic, partition), start)

    with hold(
        directory,
        options["lock_timeout_seconds"],
        lambda topic: known().config(topic),
        dry_run=options["dry_run"],
        make_room=lambda held: held.remove_due([topic]),
        effects=lambda: [PutAside([(topic, partition, planned())])],
    ) as held:
        log = open_without_listing(directory).log(topic, partition)
        if not held.may_write:
            check_ready(held, log.topic_partition)
        else:
            move = LogStartMove(held, [log.topic_partition])
            log = open_without_listing(directory).log(topic, partition)
        new_start = _new_start(log, options["offset"], before_ms)
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
        raise OffsetOutOfRangeError(
            str(log.topic_partition), -1 if offset is None else offset, start, end
        )
    return max(start, offset)


class DeletedTopic(NamedTuple):
    """A deleted topic: its numbers of partitions and segments, and bytes of ``.log`` files."""

    topic: str
    partitions: int
    segments: int
    n_bytes: int


class DeleteTopicOptions(WaitOptions, total=False):
    """Those of `segmentlog.delete_topic`."""

    dry_run: Annotated[bool, dry_run_of("deleted")]


@takes(DeleteTopicOptions)
@storage_errors()
def delete_topic(
    path: str | os.PathLike[str],
    topic: str,
    **options: Unpack[DeleteTopicOptions],
) -> DeletedTopic:
    """Delete a topic from a log directory on which no broker is running.

    Operations that a crash has interrupted are finished or undone first.  The cluster of a broker
    may still know the topic: the broker then creates the topic again, empty, when it starts.

    Parameters
    ----------
    path : the log directory.
    topic : its name.  If somebody has removed its directories by hand, its entries in checkpoints
        and settings are removed.
    **options : those of `DeleteTopicOptions`.

    Raises
    ------
    OptionError
        If Kafka does not allow the name, or the topic is reserved for brokers.
    UnknownTopicOrPartitionError
        If the directory does not hold the topic.
    LogDirectoryError
        If `path` is not a log directory, or a partition cannot be renamed.
    LogLockedError
        If a broker or a writer holds the directory.
    CorruptCheckpointError
        If the checkpoints, the state or the settings cannot be read.
    CommitInDoubtError, SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    check_topic_name(topic)
    location = place_in_store(path)
    if location is not None:
        log_dir = open_log_dir(path)
        partitions = [each for each in log_dir.topic_partitions() if each.topic == topic]
        if not partitions:
            log_dir.log(topic, -1)  # raises, and names the nearest topic
        found = _counted(topic, [log_dir.log(*each).path for each in partitions])
        if not options["dry_run"]:
            remove_topic(location, topic, log_dir.log(*partitions[0]).known_topic_id)
        return found
    directory = log_directory(path)

    def make_room(held: HeldDirectory) -> None:
        with contextlib.suppress(LogDirectoryError, CorruptLogError):  # metadata of a cluster
            held.config_of = DirectorySettings.read(directory, is_optional=True).config
            held.remove_due([topic])

    with hold(
        directory,
        options["lock_timeout_seconds"],
        dry_run=options["dry_run"],
        make_room=make_room,
        effects=lambda: [TakeOut(topic)],
    ) as held:
        found = _found(directory, topic)
        if held.may_write and is_known(directory, topic):
            Change.begin(held).carry_out((), [TakeOut(topic)])
        elif held.may_write:
            remove_taken_out(directory, topic)
    return found


def _found(directory: str, topic: str) -> DeletedTopic:
    """Count what would be deleted; raise if the topic cannot be deleted."""
    known = partition_directories(directory, topic)
    paths = [path for _, path in known]
    for path in paths:
        check_partition_path(path)
        if os.path.ismount(path):
            reason = "is a mount point and cannot be renamed: first empty and unmount it"
            raise LogDirectoryError(path, reason)
    paths += taken_out(directory, topic)  # by a deletion that was cut off
    if not paths and not is_known(directory, topic):
        open_log_dir(directory).log(topic, -1)  # raises, and names the nearest topic
    for name in CHECKPOINTS:
        read_offsets(directory, name)
    SettingsFile.read(directory)
    return _counted(topic, paths)


def _counted(topic: str, paths: Sequence[str]) -> DeletedTopic:
    sizes = [list_segments(path).sizes for path in paths]
    return DeletedTopic(topic, len(paths), sum(map(len, sizes)), sum(map(sum, sizes)))


_DAY_MS = 24 * 3600 * 1000


class SweepOptions(TypedDict, total=False):
    """Those of `segmentlog.sweep`.

    Parameters
    ----------
    longest_job_days : a job that has not committed after these days is ended, by its youngest
        object: its commit fails if it still lives.
    longest_read_days : days for which objects of deleted records stay, for reads that were planned
        before.
    """

    longest_job_days: Annotated[float, Declared(default=7.0)]
    longest_read_days: Annotated[float, Declared(default=1.0)]
    dry_run: Annotated[bool, dry_run_of("removed")]


@takes(SweepOptions)
@storage_errors()
def sweep(
    path: str | os.PathLike[str],
    **options: Unpack[SweepOptions],
) -> Swept:
    """Remove the objects of a log in an object store that have none of its records.

    These are objects of jobs that have failed, of attempts of tasks that lost, and of records that
    have left the log.  Writers and readers need not stop.

    Parameters
    ----------
    path : the URL of the log.
    **options : those of `SweepOptions`.

    Returns
    -------
    Swept
        The objects, their bytes, and the jobs that were ended.

    Raises
    ------
    OptionError
        If a number is negative, or none.
    LogDirectoryError
        If `path` is not a log in an object store.
    CommitInDoubtError, StorageError
        If the store fails, or this user lacks a right.
    """
    days: dict[str, object] = {
        "longest_job_days": options["longest_job_days"],
        "longest_read_days": options["longest_read_days"],
    }
    for name, value in days.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise refused(name, value, "give days, 0 or more")
    location = place_in_store(path)
    if location is None:
        reason = "is no log in an object store: only such a log has objects to sweep"
        raise LogDirectoryError(without_options(readable_path(path)), reason)
    job_ms, read_ms = options["longest_job_days"] * _DAY_MS, options["longest_read_days"] * _DAY_MS
    return sweep_objects(location, job_ms, read_ms, dry_run=options["dry_run"])
