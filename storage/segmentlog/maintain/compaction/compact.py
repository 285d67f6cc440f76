"""Compaction without a broker: keep the last record of each key, as a broker's cleaner does.

A compaction holds the directory, finishes what earlier compactions left, plans, and keeps the
checkpoint.  `segmentlog.maintain.compaction.clean_partition` cleans a log; `segmentlog.log.swaps`
has the durable steps.  Which logs are due, and up to where they are cleaned, is decided as by
Kafka's ``LogCleanerManager``::

    log start       first dirty offset      end offset                        log end
    |  clean        |  dirty, cleanable     |  dirty, not cleanable yet       |

The clean part was compacted before: ``cleaner-offset-checkpoint`` has the offset where it ends.
The dirty part is cleanable up to the first of these: the last stable offset, which is never
beyond the high watermark; the active segment; the first segment with a record that is younger than
``min.compaction.lag.ms``.  It ends where a segment begins.

A log is due if the cleanable share of its bytes is above ``min.cleanable.dirty.ratio``, or if its
oldest dirty record is older than ``max.compaction.lag.ms``.

Several processes can share a compaction.  One leads: it holds the lock of the log directory,
plans, and keeps ``cleaner-offset-checkpoint``.  A process that cleans a partition (`clean_task`)
has a share in the lock (`segmentlog.store.lock`).  So

- a second attempt at a partition, after a lost machine or by speculative execution, waits until
  the first has ended, finishes or undoes what that has left, and cleans the log that it finds;
- no broker, no writer and no other compaction has the directory before the last task has ended,
  even if the leader dies.  A task that notices this ends before it replaces segments.

The locks are the file system's: all processes need the directory at the same path, on one machine
or on a network file system with locks.
"""

import contextlib
import logging
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated, NamedTuple

from segmentlog.arguments import instance_of, keywords_of, one_dialect, whole_number
from segmentlog.bucket.upkeep import place_in_store
from segmentlog.cluster.directory_settings import (
    OF_COMPACTION,
    DirectorySettings,
    log_directory,
    partitions_for_upkeep,
)
from segmentlog.declared import Declared
from segmentlog.errors import LogDirectoryError, OnFailure, OptionError, SegmentLogError
from segmentlog.format.names import partition_path
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.segment import Segment
from segmentlog.log.swaps import settle_swaps
from segmentlog.model import LOCK_TIMEOUT_SECONDS, TopicPartition
from segmentlog.operation_options import OPERATION_OPTIONS, dry_run_of, settings_of
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.lock import DirectoryLock, LockShare, TaskLock
from segmentlog.store.partitions import remove_deleted
from segmentlog.store.system_errors import Failures, storage_errors
from segmentlog.txn.change import HeldDirectory, hold
from segmentlog.txn.topics import check_partition_path

logger = logging.getLogger(__name__)

_FIRST_LEVEL_OF_4_4 = 31  #: of ``metadata.version``: 4.4-IV0
_POLL_SECONDS = 0.2
_MANY_BYTES = 8 << 20  #: of a log: to compact it again costs more than to write the checkpoint
#: Bytes of an entry in Kafka's offset map, and in ours: a hash of 16 bytes, and an offset.
ENTRY_BYTES = 24


class CompactedPartition(NamedTuple):
    """The result of compacting a partition, or of a dry run.

    Attributes
    ----------
    first_dirty_offset : where the part of the log began that had not been compacted; -1 if small
        segments of a log in a store were joined, and nothing else.
    clean_to : where it begins now; in a dry run, where it would begin at best; or -1.
    dirty_ratio : its cleanable bytes, divided by its clean and cleanable bytes together.
    n_passes : how often the log was gone through; 0 in a dry run.
    segments_before, segments_after, bytes_before, bytes_after, records_before, records_after : of
        the segments that were read; a dry run knows only `segments_before` and `bytes_before`, and
        the others are -1.
    records_without_key : records that went because they had no key.
    """

    topic: str
    partition: int
    first_dirty_offset: int
    clean_to: int
    dirty_ratio: float
    n_passes: int = 0
    segments_before: int = -1
    segments_after: int = -1
    bytes_before: int = -1
    bytes_after: int = -1
    records_before: int = -1
    records_after: int = -1
    records_without_key: int = -1


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """The arguments of `segmentlog.compact` after the path.

    Parameters
    ----------
    topics : one name or several; by default all whose ``cleanup.policy`` has ``compact``, but none
        of brokers' own if `settings` are given.  In a log in a store, the segments of the others
        are joined.
    dedupe_buffer_bytes : memory for the keys of a pass (``log.cleaner.dedupe.buffer.size``), 24
        bytes each; a log with more keys takes several passes.
    load_factor : share of this memory that is used (``log.cleaner.io.buffer.load.factor``).
    producer_expiration_ms : time after which an idle producer's last sequence is not kept any more
        (``producer.id.expiration.ms``).
    now_ms : the time by which ages are computed (epoch); by default now.
    roll : whether active segments with records are closed first, because only closed segments are
        compacted.  A dry run closes none, and shows the logs as they are.
    on_log : called with the name of each log's directory before the log is compacted, such as
        ``orders-0``; from Spark, before the job begins.
    on_phase : called with a log and with what is done to it, such as ``orders-0: writes segment 2
        of 7``; not from Spark.
    on_failure : called with the name of each log that cannot be compacted, and its error; the
        other logs are compacted.  Without it, the first of these errors is raised at the end.
    """

    topics: str | Collection[str] = ()
    _: KW_ONLY
    settings: Annotated[Mapping[str, str] | None, settings_of("min.cleanable.dirty.ratio")] = None
    dry_run: Annotated[
        bool,
        dry_run_of(
            "compacted. The records are not read, so that damage among them is not noticed; "
            "`verify` finds it"
        )._replace(help="Show what would be compacted, and change nothing."),
    ] = False
    dedupe_buffer_bytes: Annotated[int, Declared(metavar="BYTES")] = 128 << 20
    load_factor: float = 0.9
    producer_expiration_ms: int = 24 * 3600 * 1000
    now_ms: int | None = None
    lock_timeout_seconds: Annotated[float, OPERATION_OPTIONS["lock_timeout_seconds"]] = (
        LOCK_TIMEOUT_SECONDS
    )
    metadata: Annotated[str | os.PathLike[str] | None, OPERATION_OPTIONS["metadata"]] = None
    server_properties: Annotated[
        str | os.PathLike[str] | None, OPERATION_OPTIONS["server_properties"]
    ] = None
    roll: bool = False
    purge: Annotated[bool, OPERATION_OPTIONS["purge"]] = False
    on_log: Callable[[str], object] = lambda _: None
    on_phase: Callable[[str], object] = lambda _: None
    on_failure: OnFailure | None = None

    def __post_init__(self) -> None:
        memory, factor = self.dedupe_buffer_bytes, self.load_factor
        whole_number("dedupe_buffer_bytes", memory)
        accepted = "give the part of the map that is filled, above 0 and below 1"
        instance_of("load_factor", factor, (float, int), accepted)
        if not 0 < factor < 1:
            raise OptionError("load_factor", str(factor), accepted)
        if memory // ENTRY_BYTES * factor < 1:
            accepted = f"give at least {int(ENTRY_BYTES * (1 / factor + 1))} bytes"
            raise OptionError("dedupe_buffer_bytes", str(memory), accepted)
        whole_number("producer_expiration_ms", self.producer_expiration_ms, what="milliseconds")
        if self.now_ms is not None:
            whole_number("now_ms", self.now_ms, what="epoch milliseconds")


@one_dialect()
@storage_errors()
@keywords_of(CompactionSettings)
def compact(path: str | os.PathLike[str], given: CompactionSettings) -> list[CompactedPartition]:
    """Compact the logs of a directory on which no broker is running, as a broker would now.

    Operations that a crash has interrupted are finished or undone first.  Each partition is
    compacted by itself: a reader, or a broker after a crash, finds the partition either as it was
    before a pass or as it is after the pass.

    In an object store, small segments of all topics are joined first, and each segment counts as
    closed.  Writers and readers may be at work; a partition whose segments another commit has
    changed meanwhile stays as it is.

    Parameters
    ----------
    path : the log directory, or the URL of a log in an object store.
    **options : those of `CompactionSettings`.

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
        If `path` is not a log directory; if a log is damaged, or may not be written to; if a log
        in a store has layout 1, and is to be compacted by key.
    LogLockedError
        If a broker or a writer holds the directory.
    LogChangedError
        If another log was made at the place in a store meanwhile.
    CorruptLogError, UnsupportedFormatError, CorruptCheckpointError
        If a batch is damaged: the error names the batch, and this pass over the partition replaces
        nothing; if a checkpoint or the settings cannot be read.  The other logs are compacted
        before an error about one log is raised; notes name the other logs that failed.
    CommitInDoubtError, SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    if (location := place_in_store(path)) is not None:
        from segmentlog.maintain.compaction.compact_in_store import compact_in_store

        return compact_in_store(location, given)
    # The kernels load here.
    from segmentlog.maintain.compaction.clean_partition import clean_partition
    from segmentlog.writes.prepare import check_ready

    done: list[CompactedPartition] = []
    with begin_compaction(path, given) as job:
        if job.lock is None:
            for each in job.due:
                with job.failures.of(each.topic_partition):
                    check_ready(job.held, each.topic_partition)
                    done.append(each.summary)
            return done
        for each in job.due:
            with job.failures.of(each.topic_partition):
                job.begin(each)
                found = clean_partition(
                    job.held.directory,
                    each,
                    job.cleaner,
                    on_pass=partial(job.reached, each),
                    on_phase=given.on_phase,
                )
                done += [found] if found else []
                job.end(each)
    return done


class CleanerConfig(NamedTuple):
    """What is the same for all logs of a compaction; it can be pickled."""

    dedupe_buffer_bytes: int  # memory for the keys of a pass
    load_factor: float  # share of this memory that is used
    #: time after which a producer is no longer active (``producer.id.expiration.ms``)
    producer_expiration_ms: int
    now_ms: int  # the time by which ages are computed (epoch)
    keeps_last_batch: bool  # whether each pass keeps the batch at its end, as up to Kafka 4.3


class LogToClean(NamedTuple):
    """The cleanable part of a log, and all that is needed to clean it; it can be pickled."""

    topic_partition: TopicPartition
    first_dirty_offset: int  # where the part begins
    end_offset: int  # base of the segment at which it ends
    #: of the segments before it, and in it.  A segment that is partly clean counts in both, as
    #: with a broker.
    clean_bytes: int
    cleanable_bytes: int
    #: of the segments that a pass over all of it goes through
    n_segments: int
    n_bytes: int
    config: TopicConfig
    checkpoint: int | None  # its entry in ``cleaner-offset-checkpoint``
    #: the bounds of the log, which do not move while the lock is held
    log_start: int
    high_watermark: int | None
    is_overdue: bool  # whether a record is older than ``max.compaction.lag.ms``
    #: whether the checkpoint has an offset that the log cannot have, and does not count
    is_reset: bool
    #: whether all closed segments are clean, and the active one has records
    is_active_dirty: bool
    waits_for: str  # what holds closed segments with new records back, or empty

    @property
    def dirty_ratio(self) -> float:
        """The cleanable bytes, divided by the clean and cleanable bytes together."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether a broker would compact the log now."""
        is_dirty = self.dirty_ratio > self.config.min_cleanable_dirty_ratio
        return self.cleanable_bytes > 0 and (self.is_overdue or is_dirty)

    def why_not(self) -> str:
        """The reason for which a broker would not compact it now, in words."""
        if self.cleanable_bytes:
            ratio = self.config.min_cleanable_dirty_ratio
            return f"at most the min.cleanable.dirty.ratio of {ratio} is dirty"
        if self.is_active_dirty:
            return "only the active segment has new records (--roll closes it)"
        return self.waits_for or "no new records"

    @property
    def summary(self) -> CompactedPartition:
        """The result of a dry run."""
        return CompactedPartition(
            *self.topic_partition,
            self.first_dirty_offset,
            self.end_offset,
            self.dirty_ratio,
            segments_before=self.n_segments,
            bytes_before=self.n_bytes,
        )


class CompactionJob(NamedTuple):
    """The logs that are due, and the steps before and after a log is cleaned."""

    held: HeldDirectory  # the log directory
    due: list[LogToClean]  # the logs to compact, in their order
    cleaner: CleanerConfig  # of all logs
    #: called with the name of each log's directory before the log is made ready
    on_log: Callable[[str], object]
    failures: Failures  # the logs that could not be compacted

    @property
    def lock(self) -> DirectoryLock | None:
        """The lock of the directory; None in a dry run, which changes no file."""
        return self.held.lock

    def begin(self, log: LogToClean) -> None:
        """Make a log ready, as for an append: nothing of it is lost or half written then."""
        from segmentlog.writes.prepare import ready_to_append

        self.on_log(str(log.topic_partition))
        ready_to_append(self.held, [log.topic_partition], flush=True)

    def reached(self, log: LogToClean, offset: int) -> None:
        """Say where the compacted part of a log ends: durably, unless it is one of very many.

        A crash before that is durable only has the log compacted again.
        """
        cleaned = self.held.checkpoints.cleaned
        cleaned.put({log.topic_partition: offset})
        if log.n_bytes >= _MANY_BYTES:
            cleaned.write()

    def end(self, log: LogToClean) -> None:
        """Remove files that left the log ``file.delete.delay.ms`` ago."""
        self.remove_deleted(log.topic_partition, log.config.file_delete_delay_ms)

    def remove_deleted(self, topic_partition: TopicPartition, delay_ms: int) -> None:
        """Remove files that left a log some time ago."""
        where = partition_path(self.held.directory, topic_partition)
        # Readers detect by one of the two that they were overtaken (`DirectorySnapshot`).
        remove_deleted(where, delay_ms, self.held.checkpoints.cleaned.write)

    def task(self, log: LogToClean, share: LockShare, number: int) -> "CompactionTask":
        """The cleaning of one log, for another process; `number`: of the log, from 1 on."""
        return CompactionTask(self.held.directory, share, number, log, self.cleaner)

    def close(self) -> None:
        """Make durable how far all logs are compacted."""
        self.held.checkpoints.cleaned.write()
        self.held.checkpoints.write()


@contextlib.contextmanager
def begin_compaction(
    path: str | os.PathLike[str], given: CompactionSettings
) -> Iterator[CompactionJob]:
    """Hold the lock of a log directory, and plan its compaction.

    The errors are those of `segmentlog.compact`.
    """
    settings, failures = given.settings, Failures(given.on_failure)
    directory = log_directory(path)
    with (
        storage_errors(directory),
        hold(directory, given.lock_timeout_seconds, dry_run=given.dry_run) as held,
    ):
        # Under the lock: its previous holder may have changed the settings.
        known = DirectorySettings.read(
            directory, settings, given.metadata, given.server_properties, needs=OF_COMPACTION
        )
        held.config_of = known.config
        cleaner = CleanerConfig(
            given.dedupe_buffer_bytes,
            given.load_factor,
            given.producer_expiration_ms,
            int(time.time() * 1000) if given.now_ms is None else given.now_ms,
            keeps_last_batch=(known.metadata_level or 0) < _FIRST_LEVEL_OF_4_4,
        )
        partitions = partitions_for_upkeep(directory, given.topics, has_settings=bool(settings))
        if held.may_write:
            # Finish or undo interrupted compactions, and remove files that left the logs long ago.
            for each in partitions:
                config, where = known.config(each.topic), partition_path(directory, each)
                if "compact" in config.cleanup_policy:
                    with failures.of(each):
                        check_partition_path(where)
                        settle_swaps(where)
                        remove_deleted(where, config.file_delete_delay_ms)
            if given.roll:
                _roll(held, partitions, failures)
        cleaned = held.checkpoints.cleaned
        logs = logs_to_clean(
            directory, partitions, known.config, cleaned.offsets, cleaner.now_ms, failures
        )
        for log in logs if held.may_write else ():
            if log.is_reset:  # a broker replaces such a checkpoint even if it cleans nothing
                logger.warning(
                    "%s: the compacted part ended at offset %s, outside of the log; compaction "
                    "starts at offset %d",
                    log.topic_partition,
                    log.checkpoint,
                    log.first_dirty_offset,
                )
                cleaned.put({log.topic_partition: log.first_dirty_offset})
        due = [
            log for log in logs if log.is_due and str(log.topic_partition) not in failures.errors
        ]
        job = CompactionJob(held, due, cleaner, given.on_log, failures)
        try:
            yield job
            for each in partitions if held.may_write and given.purge else ():
                job.remove_deleted(each, 0)
        except BaseException:
            with contextlib.suppress(SegmentLogError, OSError):  # the first error says more
                job.close()
            raise
        job.close()
    failures.end()


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


def logs_to_clean(
    directory: str,
    partitions: Iterable[TopicPartition],
    config_of: Callable[[str], TopicConfig],
    checkpoints: Mapping[TopicPartition, int],
    now_ms: int,
    failures: Failures,
) -> list[LogToClean]:
    """The cleanable part of each log whose ``cleanup.policy`` has ``compact``.

    Headers and checkpoints are read, and no more.  `checkpoints`: the entries of
    ``cleaner-offset-checkpoint``.  `now_ms`: the time by which ages are computed (epoch).
    `failures`: gets the logs that cannot be listed, or whose headers cannot be true.
    """
    opened = open_log_dir(directory)
    found = []
    for each in partitions:
        config = config_of(each.topic)
        if "compact" in config.cleanup_policy:
            with failures.of(each):
                found.append(
                    find_cleanable(opened.log(*each), checkpoints.get(each), config, now_ms)
                )
    return found


def find_cleanable(
    log: Log, checkpoint: int | None, config: TopicConfig, now_ms: int
) -> LogToClean:
    """The cleanable part of a log.

    `checkpoint`: the log's entry in ``cleaner-offset-checkpoint``, or None.  `now_ms`: the time by
    which ages are computed (epoch).
    """
    segments = log.segments
    start = first_dirty = log.log_start_offset
    is_reset = checkpoint is not None and not start <= checkpoint <= log.log_end_offset
    if checkpoint is not None and not is_reset:
        first_dirty = checkpoint
    end, clean, cleanable, is_overdue, waits_for = first_dirty, 0, 0, False, ""
    below: list[Segment] = []
    if len(segments) > 1:
        bases = [each.base_offset for each in segments]
        dirty = segments[_floor(bases, first_dirty) : -1] if first_dirty <= bases[-1] else ()
        bounds = [stable := log.last_stable_offset(), bases[-1]]
        if config.min_compaction_lag_ms > 0:
            newest = now_ms - config.min_compaction_lag_ms
            bounds += [each.base_offset for each in dirty if each.newest_ms() > newest][:1]
        uncleanable = max(first_dirty, min(bounds))
        end = bases[-1] if uncleanable >= bases[-1] else bases[_floor(bases, uncleanable)]
        if end < bases[-1]:
            waits_for = (
                "their new records are younger than min.compaction.lag.ms"
                if min(bounds) < stable
                else "a transaction is open, or the high watermark lies, before their new records"
            )
        below = [each for each in segments if each.base_offset < end]
        clean = sum(each.size for each in segments if each.base_offset < first_dirty)
        cleanable = sum(each.size for each in below[_floor(bases, min(first_dirty, end)) :])
        is_overdue = _is_overdue(dirty, now_ms - config.max_compaction_lag_ms)
    is_active_dirty = (
        not cleanable
        and bool(segments)
        and segments[-1].size > 0
        and (len(segments) == 1 or end == segments[-1].base_offset)
    )
    return LogToClean(
        log.topic_partition, first_dirty, end, clean, cleanable,
        len(below), sum(each.size for each in below), config, checkpoint, start,
        # A damaged checkpoint of high watermarks does not matter to a log that stays as it is.
        log.high_watermark_checkpoint if cleanable else None,
        is_overdue, is_reset, is_active_dirty, waits_for,
    )  # fmt: skip


def _floor(bases: Sequence[int], offset: int) -> int:
    """Number of the segment that may hold an offset; 0 if no segment may hold it."""
    return max(bisect_right(bases, offset) - 1, 0)


def _is_overdue(dirty: Sequence[Segment], before_ms: int) -> bool:
    """Whether the first batch of a dirty segment has a timestamp before `before_ms`."""
    if before_ms <= 0:
        return False
    for each in dirty:
        first = next(each.headers(0), None)
        if first is not None and 0 < first.header.max_timestamp < before_ms:
            return True
    return False


class CompactionTask(NamedTuple):
    """A log to clean; it can be pickled."""

    directory: str  # the absolute path of the log directory
    share: LockShare  # of the leader's lock, which tasks have
    number: int  # of the log among those of the leader, from 1 on
    log: LogToClean
    cleaner: CleanerConfig


@storage_errors()
def clean_task(task: CompactionTask) -> CompactedPartition | None:
    """Clean the partition of a task; None if nothing was left to do.

    Raises `LogDirectoryError` if the leader has ended; nothing of the pass is replaced then.
    """
    # The kernels load here.
    from segmentlog.maintain.compaction.clean_partition import clean_partition

    def check_leader() -> None:
        if not lock.is_shared():
            raise LogDirectoryError(task.directory, ended)

    ended = (
        "the process that led the compaction has ended, or cannot be seen from this machine; "
        f"{task.log.topic_partition} is unchanged: compact again"
    )
    try:
        lock = TaskLock(task.share, task.number)
    except FileNotFoundError as error:
        raise LogDirectoryError(task.directory, ended) from error

    with lock:
        check_leader()
        while not lock.take():
            time.sleep(_POLL_SECONDS)
            check_leader()
        check_leader()  # nobody else can have the directory from here on
        return clean_partition(task.directory, task.log, task.cleaner, before_step=check_leader)
