"""Compaction without a broker: keep the last record of each key, as a broker's cleaner does.

A compaction holds the directory, finishes what earlier compactions left, plans, and keeps the
checkpoint.  `segmentlog.maintain.compaction.cleanable` decides which logs are due, and up to where
they are cleaned; `segmentlog.maintain.compaction.clean_partition` cleans one;
`segmentlog.log.swaps` has the durable steps.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from segmentlog.arguments import keywords_of
from segmentlog.cluster.directory_settings import DirectorySettings
from segmentlog.dialects import one_dialect
from segmentlog.errors import SegmentLogError
from segmentlog.format.names import partition_path
from segmentlog.log.checkpoint import OffsetCheckpoint
from segmentlog.log.swaps import settle_swaps
from segmentlog.maintain.compaction.plan import (
    CompactedPartition,
    PlannedPartition,
    plan_compaction,
)
from segmentlog.maintain.compaction.settings import CleanerLimits, CompactionSettings
from segmentlog.maintain.places import log_directory, partitions_for_upkeep
from segmentlog.model import TopicPartition
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.aside import remove_deleted
from segmentlog.store.failures import Failures
from segmentlog.store.lock import DirectoryLock
from segmentlog.store.system_errors import storage_errors
from segmentlog.txn.held import HeldDirectory, hold
from segmentlog.txn.topics import check_partition_path

logger = logging.getLogger(__name__)

_MANY_BYTES = 8 << 20  #: of a log: to compact it again costs more than to write the checkpoint


class CompactionJob(NamedTuple):
    """The partitions that are due, and the steps before and after a partition is cleaned."""

    held: HeldDirectory  # the log directory
    partitions: list[TopicPartition]  # all that were looked at
    due: list[PlannedPartition]  # of these, the partitions to compact, in their order
    limits: CleanerLimits  # of all partitions
    #: called with the name of each log's directory before the log is made ready
    on_log: Callable[[str], object]
    failures: Failures  # the logs that could not be compacted

    @property
    def directory(self) -> str:
        """Absolute path of the log directory."""
        return self.held.directory

    @property
    def lock(self) -> DirectoryLock | None:
        """The lock of the directory; None in a dry run, which changes no file."""
        return self.held.lock

    @property
    def cleaned(self) -> OffsetCheckpoint:
        """``cleaner-offset-checkpoint``."""
        return self.held.checkpoints.cleaned

    def begin(self, planned: PlannedPartition) -> None:
        """Make a log ready, as for an append: nothing of it is lost or half written then.

        Raises `LogDirectoryError` if the log is damaged.
        """
        from segmentlog.writes.prepare import ready_to_append

        self.on_log(str(planned.topic_partition))
        ready_to_append(self.held, [planned.topic_partition], flush=True)

    def reached(self, planned: PlannedPartition, offset: int) -> None:
        """Say where the compacted part of a log ends: durably, unless it is one of very many.

        A crash before that is durable only has the log compacted again.
        """
        self.cleaned.put({planned.topic_partition: offset})
        if planned.cleanable.n_bytes >= _MANY_BYTES:
            self.cleaned.write()

    def end(self, planned: PlannedPartition) -> None:
        """Remove files that left the log ``file.delete.delay.ms`` ago."""
        where = partition_path(self.directory, planned.topic_partition)
        # Readers detect by one of the two that they were overtaken (`DirectorySnapshot`).
        remove_deleted(where, planned.config.file_delete_delay_ms, self.cleaned.write)

    def purge(self) -> None:
        """Remove all files that left the logs, whenever that was."""
        for each in self.partitions:
            remove_deleted(partition_path(self.directory, each), 0, self.cleaned.write)

    def close(self) -> None:
        """Make durable how far all logs are compacted."""
        self.cleaned.write()
        self.held.checkpoints.write()


@contextlib.contextmanager
def begin_compaction(
    path: str | os.PathLike[str], given: CompactionSettings
) -> Iterator[CompactionJob]:
    """Hold the lock of a log directory, and plan its compaction.

    The errors are those of `segmentlog.compact`.
    """
    limits, settings = given.limits(), given.settings
    failures = Failures(given.on_failure)
    directory = log_directory(path)
    with (
        storage_errors(directory),
        hold(directory, given.lock_timeout_seconds, dry_run=given.dry_run) as held,
    ):
        # Under the lock: its previous holder may have changed the settings.
        known = DirectorySettings.read(
            directory, settings, given.metadata, given.server_properties
        )
        held.config_of = known.config
        partitions = partitions_for_upkeep(directory, given.topics, has_settings=bool(settings))
        if held.may_write:
            _finish_earlier(held, partitions, failures)
            if given.roll:
                _roll(held, partitions, failures)
        cleaned = held.checkpoints.cleaned
        planned = plan_compaction(
            directory, partitions, known, cleaned.offsets, limits.now_ms, failures
        )
        if held.may_write:
            _reset(cleaned, planned)
        failed = failures.errors
        due = [each for each in planned if each.is_due and str(each.topic_partition) not in failed]
        job = CompactionJob(held, partitions, due, limits, given.on_log, failures)
        try:
            yield job
            if held.may_write and given.purge:
                job.purge()
        except BaseException:
            with contextlib.suppress(SegmentLogError, OSError):  # the first error says more
                job.close()
            raise
        job.close()
    failures.end()


def _finish_earlier(
    held: HeldDirectory, partitions: Iterable[TopicPartition], failures: Failures
) -> None:
    """Finish or undo interrupted compactions, and remove files that left the logs long ago."""
    for each in partitions:
        config = held.config_of(each.topic)
        if "compact" in config.cleanup_policy:
            where = partition_path(held.directory, each)
            with failures.of(each):
                check_partition_path(where)
                settle_swaps(where)
                remove_deleted(where, config.file_delete_delay_ms)


def _roll(held: HeldDirectory, partitions: Iterable[TopicPartition], failures: Failures) -> None:
    """Begin a new segment in logs that are compacted and whose active segment has records."""
    from segmentlog.maintain.move_log_starts import LogStartMove  # the compiled kernels load here

    opened = open_log_dir(held.directory)
    rolls = []
    for each in partitions:
        if "compact" in held.config_of(each.topic).cleanup_policy:
            with failures.of(each):
                log = opened.log(*each)
                rolls += [each] if log.segments and log.end.position else []
    if rolls:
        move = LogStartMove(held, rolls, failures)
        move.commit({}, move.partitions)


def _reset(cleaned: OffsetCheckpoint, planned: Iterable[PlannedPartition]) -> None:
    """Replace checkpoints that their logs cannot have, as a broker does even without cleaning."""
    for each in planned:
        if each.cleanable.is_reset:
            offset = each.cleanable.first_dirty_offset
            logger.warning(
                "%s: the compacted part ended at offset %s, outside of the log; compaction "
                "starts at offset %d", each.topic_partition, each.checkpoint, offset,
            )  # fmt: skip
            cleaned.put({each.topic_partition: offset})


@one_dialect()
@storage_errors()
@keywords_of(CompactionSettings)
def compact(path: str | os.PathLike[str], given: CompactionSettings) -> list[CompactedPartition]:
    """Compact the logs of a directory on which no broker is running, as a broker would now.

    Operations that a crash has interrupted are finished or undone first.  Each partition is
    compacted by itself: a reader, or a broker after a crash, finds the partition either as it was
    before a pass or as it is after the pass.

    Parameters
    ----------
    path : the log directory.
    topics : one name or several; by default all whose ``cleanup.policy`` has ``compact``, but none
        of brokers' own if `settings` are given.
    settings : of all these topics, by Kafka's names (``min.cleanable.dirty.ratio``); they override
        the settings of the directory.
    dry_run : whether nothing is changed, and the result is what would be compacted.
    dedupe_buffer_bytes : memory for the keys of a pass (``log.cleaner.dedupe.buffer.size``), 24
        bytes each; a log with more keys takes several passes.
    load_factor : share of this memory that is used (``log.cleaner.io.buffer.load.factor``).
    producer_expiration_ms : time after which an idle producer's last sequence is not kept any more
        (``producer.id.expiration.ms``).
    now_ms : the time by which ages are computed (epoch); by default now.
    lock_timeout_seconds : how long to wait for a writer.
    metadata, server_properties : see `segmentlog.topic_settings`.
    roll : whether active segments with records are closed first, so that they are compacted, too.
        A dry run closes none, and shows the logs as they are.
    purge : whether deleted files of these logs are removed at once, and not
        ``file.delete.delay.ms`` later. A reader that still needs one fails with `LogChangedError`.
    on_log : called with the name of each log's directory before the log is compacted, such as
        ``orders-0``; from Spark, before the job begins.
    on_phase : called with a log and with what is done to it, such as ``orders-0: writes segment 2
        of 7``; not from Spark.
    on_failure : called with the name of each log that cannot be compacted, and its error; the
        other logs are compacted.  Without it, the first of these errors is raised at the end.

    Returns
    -------
    list of CompactedPartition
        The partitions that were due, in their order.

    Raises
    ------
    OptionError
        If a setting is unknown, or has a value that is not accepted; if no file
        contains the settings of a broker's topics; if the memory holds no key.
    UnknownTopicOrPartitionError
        If the directory does not hold a topic.
    LogDirectoryError
        If `path` is not a log directory; if a log is damaged, or may not be written to.
    LogLockedError
        If a broker or a writer holds the directory.
    CorruptLogError, UnsupportedFormatError, CorruptCheckpointError
        If a batch is damaged: the error names the batch, and this pass over the partition replaces
        nothing; if a checkpoint or the settings cannot be read.  The other logs are compacted
        before an error about one log is raised; notes name the other logs that failed.
    CommitInDoubtError, SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    from segmentlog.maintain.compaction.clean_partition import (
        clean_partition,  # the kernels load here
    )

    done: list[CompactedPartition] = []
    with begin_compaction(path, given) as job:
        if job.lock is None:
            return [each.summary for each in job.due]
        for each in job.due:
            with job.failures.of(each.topic_partition):
                job.begin(each)
                reached = partial(job.reached, each)
                found = clean_partition(
                    job.directory, each, job.limits, on_pass=reached, on_phase=given.on_phase
                )
                done += [found] if found else []
                job.end(each)
    return done
