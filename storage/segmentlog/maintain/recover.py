"""Recover a log directory after a crash, as a starting broker does."""

import os
from collections.abc import Callable

from segmentlog.arguments import LARGEST_INT, one_of, whole_number
from segmentlog.dialects import one_dialect
from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_CHECKPOINT,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_CHECKPOINT,
    parse_partition_directory,
)
from segmentlog.model import INDEX_INTERVAL_BYTES, LOCK_TIMEOUT_SECONDS, RecoverAt
from segmentlog.store.paths import local_path, why_not_there
from segmentlog.store.readable import list_names
from segmentlog.store.system_errors import storage_errors
from segmentlog.txn.guard import list_guards
from segmentlog.txn.held import take
from segmentlog.txn.state import STATE_FILE
from segmentlog.txn.steps import RecoveryStep


@one_dialect()
@storage_errors()
def recover(
    path: str | os.PathLike[str],
    *,
    index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    metadata: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    on_corrupt_batch: RecoverAt | str = RecoverAt.CUT,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    on_step: Callable[[RecoveryStep], object] = lambda _: None,
    on_log: Callable[[str], object] = lambda _: None,
) -> list[RecoveryStep]:
    """Bring a directory that was not cleanly stopped to the state after a clean stop.

    Commits that a crash has interrupted are finished or undone.  Each log is read from its
    recovery point on, and cut at its first bad batch; bytes that are cut off stay beside the log
    in ``.broken`` files.  Its indexes, its producer snapshots and its leader epochs are built
    again.  In a cleanly stopped directory, only the ends of the logs are checked.  Files that can
    be derived are derived in both cases if they are damaged: checkpoints, leader epochs, and topic
    ids.

    A log that cannot be recovered raises nothing: it is a step of the kind
    `RecoveryKind.LOG_FAILED`, the other logs are recovered, and the directory stays without the
    mark of a clean stop.

    Parameters
    ----------
    path : a log directory on which no broker is running.
    index_interval_bytes : bytes of log between two index entries (``index.interval.bytes``).
    metadata : the log directory that holds ``__cluster_metadata-0``, if it is another directory:
        a damaged ``partition.metadata`` gets its topic id from there.
    dry_run : whether nothing is changed, and the steps are those that would be taken.
    on_corrupt_batch : ``skip`` reads all logs from their beginnings, and keeps the good batches
        after a bad one: the bad bytes alone go to ``.broken`` files, and their offsets are missing
        in the log, as after a compaction.
    lock_timeout_seconds : how long to wait for a writer.
    on_step : called with each step once it is done: a recovery may take hours, or fail.
    on_log : called with the name of each log's directory before the log is read.

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

    whole_number("index_interval_bytes", index_interval_bytes, most=LARGEST_INT)
    salvages = one_of("on_corrupt_batch", on_corrupt_batch, RecoverAt) == RecoverAt.SKIP
    directory = local_path(path)
    _refuse_other(directory)
    steps: list[RecoveryStep] = []
    with take(directory, lock_timeout_seconds, dry_run=dry_run) as held:
        metadata = None if metadata is None else local_path(metadata)
        for step in DirectoryRecovery(
            held, index_interval_bytes, on_log, metadata, salvages=salvages
        ).run():
            steps.append(step)
            on_step(step)
    return steps


#: Files of a log directory that may have no partition, after the deletion of its last topic.
_OF_LOG_DIRECTORIES = {
    CLEAN_SHUTDOWN_FILE, HIGH_WATERMARK_CHECKPOINT, META_PROPERTIES_FILE,
    RECOVERY_POINT_CHECKPOINT, STATE_FILE,
}  # fmt: skip


def _refuse_other(directory: str) -> None:
    """Refuse a path that is not a log directory: recovery leaves files there."""
    try:
        names = list_names(directory)
    except FileNotFoundError as error:
        raise LogDirectoryError(directory, why_not_there(directory)) from error
    except OSError as error:
        raise LogDirectoryError(directory, f"cannot be listed: {error.strerror}") from error
    if _OF_LOG_DIRECTORIES & {*names} or list_guards(directory):
        return
    if not any(map(parse_partition_directory, names)):
        reason = "is not a log directory: name the directory above directories like orders-0"
        raise LogDirectoryError(directory, reason)
