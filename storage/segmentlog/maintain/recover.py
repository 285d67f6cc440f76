"""Repair what a crash has left: recover a log directory as a starting broker does, or reindex.

`segmentlog.maintain.recover_directory` has the steps of a recovery.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Annotated, NamedTuple, Unpack

from segmentlog.arguments import LARGEST_INT, one_of, takes, whole_number
from segmentlog.declared import Declared
from segmentlog.errors import LogDirectoryError, SegmentLogError
from segmentlog.format.names import (
    parse_partition_directory,
)
from segmentlog.log.listing import list_segments
from segmentlog.log.segment import Segment, find_log_end
from segmentlog.log.swaps import has_swaps
from segmentlog.maintain.health.mend import RecoveryStep
from segmentlog.model import RecoverAt, TopicPartition
from segmentlog.operation_options import (
    OPERATION_OPTIONS,
    IndexOptions,
    LogOptions,
    WaitOptions,
    dry_run_of,
)
from segmentlog.store.other_systems import refuse_other_systems
from segmentlog.store.partitions import list_partitions
from segmentlog.store.paths import local_path, why_not_there
from segmentlog.store.readable import FileType, exists, is_directory, is_file, list_names
from segmentlog.store.system_errors import is_of_one, storage_error, storage_errors
from segmentlog.txn.change import take
from segmentlog.txn.guard import list_guards
from segmentlog.txn.state import OF_LOG_DIRECTORIES


class RecoverOptions(IndexOptions, WaitOptions, LogOptions, total=False):
    """Those of `segmentlog.recover`.

    Parameters
    ----------
    metadata : the log directory that holds ``__cluster_metadata-0``, if it is another directory:
        a damaged ``partition.metadata`` gets its topic id from there.
    on_corrupt_batch : ``skip`` reads all logs from their beginnings, and keeps the good batches
        after a bad one: the bad bytes alone go to ``.broken`` files, and their offsets are missing
        in the log, as after a compaction.
    on_step : called with each step once it is done: a recovery may take hours, or fail.
    """

    metadata: Annotated[str | os.PathLike[str] | None, OPERATION_OPTIONS["metadata"]]
    dry_run: Annotated[bool, dry_run_of("done")]
    on_corrupt_batch: Annotated[
        RecoverAt | str,
        Declared(
            default=RecoverAt.CUT,
            help="cut: end a log at its first bad batch, as a broker does. skip: read all logs "
            "from their beginnings, leave out bad bytes alone, and keep the batches after them.",
        ),
    ]
    on_step: Callable[[RecoveryStep], object]


@takes(RecoverOptions)
@storage_errors()
def recover(
    path: str | os.PathLike[str],
    **options: Unpack[RecoverOptions],
) -> list[RecoveryStep]:
    """Bring a directory that was not cleanly stopped to the state after a clean stop.

    Commits that a crash has interrupted are finished or undone.  Each log is read from its
    recovery point on, and cut at its first bad batch; bytes that are cut off are kept in
    ``.broken`` files next to the log.  Its indexes, its producer snapshots and its leader epochs
    are built again.  In a cleanly stopped directory, only the ends of the logs are checked.  Files
    that can be derived are derived in both cases if they are damaged: checkpoints, leader epochs,
    and topic ids.

    A log that cannot be recovered raises nothing: it is a step of the kind
    `RecoveryKind.LOG_FAILED`, the other logs are recovered, and the directory stays without the
    mark of a clean stop.

    Parameters
    ----------
    path : a log directory on which no broker is running.
    **options : those of `RecoverOptions`.

    Returns
    -------
    list of RecoveryStep
        In their order; empty if the directory was cleanly stopped and there was nothing to do.
        `RecoveryStep.has_lost_batches` shows a loss that is more than a torn tail.

    Raises
    ------
    OptionError
        If an argument is not accepted.
    LogDirectoryError
        If `path` is not a log directory.
    LogLockedError
        If a broker or a writer holds the directory.
    CorruptCheckpointError
        If the state of the directory, or an unfinished commit, cannot be read.
    SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    from segmentlog.maintain.recover_directory import DirectoryRecovery  # the kernels load here

    whole_number("index_interval_bytes", options["index_interval_bytes"], most=LARGEST_INT)
    salvages = one_of("on_corrupt_batch", options["on_corrupt_batch"], RecoverAt) == RecoverAt.SKIP
    directory = local_path(path)
    _refuse_other(directory)
    steps: list[RecoveryStep] = []
    with take(directory, options["lock_timeout_seconds"], dry_run=options["dry_run"]) as held:
        holder = options["metadata"]
        for step in DirectoryRecovery(
            held,
            options["index_interval_bytes"],
            options["on_log"],
            None if holder is None else local_path(holder),
            salvages=salvages,
        ).run():
            steps.append(step)
            options["on_step"](step)
    return steps


def _refuse_other(directory: str) -> None:
    """Refuse a path that is not a log directory: recovery leaves files there."""
    try:
        names = list_names(directory)
    except FileNotFoundError as error:
        raise LogDirectoryError(directory, why_not_there(directory)) from error
    except OSError as error:
        raise LogDirectoryError(directory, f"cannot be listed: {error.strerror}") from error
    if OF_LOG_DIRECTORIES & {*names} or list_guards(directory):
        return
    if not any(map(parse_partition_directory, names)):
        refuse_other_systems(directory)
        reason = "is not a log directory: name the directory above directories like orders-0"
        raise LogDirectoryError(directory, reason)


class IndexedSegment(NamedTuple):
    """A segment whose indexes were built again, or the damage that has prevented it.

    Attributes
    ----------
    path : of the ``.log`` file; of the partition's directory if its log cannot be read at all.
    base_offset : of the segment, or -1.
    changed : paths of the index files that were missing, or had other bytes.
    error : the damage; the segment and the later segments of the partition keep their indexes.
    """

    topic: str
    partition: int
    path: str
    base_offset: int
    changed: tuple[str, ...] = ()
    error: SegmentLogError | None = None

    @property
    def has_problem(self) -> bool:
        """Whether the segment keeps its indexes, because it is damaged."""
        return self.error is not None


class _Wanted(NamedTuple):
    """A partition to index."""

    topic_partition: TopicPartition
    path: str
    segment: str | None  # path of the only segment to index, or None for all

    @property
    def log_directory(self) -> str:
        """The directory whose lock covers the partition."""
        is_partition = parse_partition_directory(os.path.basename(self.path)) is not None
        return os.path.dirname(self.path) if is_partition else self.path


class ReindexOptions(IndexOptions, WaitOptions, LogOptions, total=False):
    """Those of `segmentlog.reindex`.

    Parameters
    ----------
    on_segment : called with each result once its files are on the disk.
    """

    on_segment: Callable[[IndexedSegment], object]


@takes(ReindexOptions)
@storage_errors()
def reindex(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    **options: Unpack[ReindexOptions],
) -> list[IndexedSegment]:
    """Build the index files of segments again, as a broker's recovery would.

    These are ``.index``, ``.timeindex`` and ``.txnindex``.  All batches are read, and their
    checksums verified, but no records.  A file that is missing or differs is replaced in one step,
    and files that were right stay.  A segment with a bad batch keeps its files: their entries may
    lead around the damage.

    Parameters
    ----------
    path, more : log directories on which no broker is running, partition directories or ``.log``
        files.
    **options : those of `ReindexOptions`.

    Returns
    -------
    list of IndexedSegment
        In the order of the paths and of the segments.

    Raises
    ------
    OptionError
        If an argument is not accepted.
    LogDirectoryError
        If a path is none of these, or a commit or a compaction was interrupted there.
    LogLockedError
        If a broker or a writer holds the log directory.
    SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    whole_number("index_interval_bytes", options["index_interval_bytes"], most=LARGEST_INT)
    wanted = [found for each in (path, *more) for found in _wanted(local_path(each))]
    done = []
    with ExitStack() as locks:
        for directory in sorted({each.log_directory for each in wanted}):
            locks.enter_context(
                take(directory, options["lock_timeout_seconds"])
            ).refuse_unfinished()
        for each in wanted:
            options["on_log"](os.path.basename(each.path))
            for result in _reindex(each, options["index_interval_bytes"]):
                done.append(result)
                options["on_segment"](result)
    return done


def _wanted(path: str) -> list[_Wanted]:
    parsed = parse_partition_directory(os.path.basename(path))
    if is_file(path) and path.endswith(".log"):
        refuse_other_systems(path)
        directory = os.path.dirname(path)
        name = os.path.basename(directory)
        named = parse_partition_directory(name)
        return [_Wanted(named[0] if named else TopicPartition(name, 0), directory, path)]
    if parsed and is_directory(path):
        return [_Wanted(parsed[0], path, None)]
    if not exists(path):
        raise LogDirectoryError(path, why_not_there(path))
    found = [
        _Wanted(each.topic_partition, each.path, None)
        for each in (list_partitions(path) if is_directory(path) else ())
        if each.is_current and each.type in {FileType.DIRECTORY, FileType.LINK}
    ]
    if not found:
        refuse_other_systems(path)
        reason = "is not a log directory, a partition directory or a .log file"
        raise LogDirectoryError(path, reason)
    return found


def _reindex(wanted: _Wanted, interval_bytes: int) -> Iterator[IndexedSegment]:
    """The result of each segment of a partition, up to the first that is damaged."""
    from segmentlog.log.index_builder import rebuild_indexes
    from segmentlog.log.producers import ProducerStates
    from segmentlog.log.walk import find_good_end  # the kernels load here

    at = IndexedSegment(*wanted.topic_partition, wanted.path, -1)
    try:
        if has_swaps(wanted.path):
            reason = "has an unfinished compaction; run segmentlog recover first"
            raise LogDirectoryError(wanted.path, reason)
        segments = [Segment(each, is_sealed=False) for each in list_segments(wanted.path)]
        if segments:
            segments[-1].size = find_log_end(segments[-1]).position
        meant = [each for each in segments if wanted.segment in {None, each.path}]
        if segments and not meant:
            reason = "is not a segment of the log in its directory"
            raise LogDirectoryError(wanted.segment or wanted.path, reason)
        begin = meant[0].base_offset if meant else 0
        producers = ProducerStates.load(wanted.path, begin)
        producers.follow_to(segments, begin)
        for segment in meant:
            at = at._replace(path=segment.path, base_offset=segment.base_offset)
            if (bad := find_good_end(segment).error) is not None:
                raise bad
            producers.advance(segment.base_offset)
            yield at._replace(changed=tuple(rebuild_indexes(segment, interval_bytes, producers)))
    except SegmentLogError as error:
        yield at._replace(error=error)
    except OSError as error:
        found = storage_error(error)
        if not is_of_one(found):
            raise
        yield at._replace(error=found)
