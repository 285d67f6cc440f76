"""One compaction by several processes: one leads, the others clean a partition each.

The leader holds the lock of the log directory, plans, and keeps ``cleaner-offset-checkpoint``.  It
makes a mark in the directory, and locks the mark's first byte for as long as it lives.  A process
that cleans a partition locks another byte.  So

- a second attempt at a partition, after a lost machine or out of speculation, waits until the
  first has ended, and then finds the log compacted already;
- nobody replaces segments after the leader has died, when a broker or a writer may hold the
  directory.  Between this look and the last rename some milliseconds remain.

The locks are the file system's: all processes need the directory at the same path, on one machine
or on a network file system with locks.
"""

import contextlib
import secrets
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from segmentlog.cleanup.compaction_plan import CompactedPartition, PlannedPartition
from segmentlog.commit.job_files import JobFiles
from segmentlog.errors import LogDirectoryError
from segmentlog.files.byte_locks import ByteLocks
from segmentlog.files.system_errors import storage_errors

__all__ = ["CompactionTask", "clean_task", "lead"]

_LEADER = 0
_POLL_SECONDS = 0.2


class CompactionTask(NamedTuple):
    """A partition to clean; it can be pickled.

    Attributes
    ----------
    directory : the absolute path of the log directory.
    mark : path of the leader's mark.
    number : of the partition among those of the leader, from 1 on.
    planned : the partition.
    dedupe_buffer_bytes, load_factor, producer_expiration_ms, now_ms : see `segmentlog.compact`.
    """

    directory: str
    mark: str
    number: int
    planned: PlannedPartition
    dedupe_buffer_bytes: int
    load_factor: float
    producer_expiration_ms: int
    now_ms: int


@contextlib.contextmanager
def lead(directory: str) -> Iterator[str]:
    """Make the mark of a leader, who holds the lock of the directory; yields its path."""
    files = JobFiles(directory, secrets.token_hex(8))
    files.make_mark()
    try:
        with ByteLocks(str(files.mark)) as locks:
            locks.take(_LEADER)
            yield str(files.mark)
    finally:
        files.remove()


@storage_errors()
def clean_task(task: CompactionTask) -> CompactedPartition | None:
    """Clean the partition of a task; None if nothing was left to do.

    Raises
    ------
    LogDirectoryError
        If the leader has ended; nothing of the pass is replaced then.
    CorruptLogError, UnsupportedFormatError, SyncFailedError, StorageError
        See `segmentlog.compact`.
    """
    from segmentlog.cleanup.clean_partition import clean_partition  # the kernels load here
    from segmentlog.cleanup.offset_map import MapBounds

    try:
        locks = ByteLocks(task.mark)
    except FileNotFoundError as error:
        raise _ended(task) from error
    with locks:
        _check_leader(locks, task)
        while not locks.take(task.number):
            time.sleep(_POLL_SECONDS)
            _check_leader(locks, task)
        return clean_partition(
            task.directory,
            task.planned,
            bounds=MapBounds(task.dedupe_buffer_bytes, task.load_factor),
            now_ms=task.now_ms,
            producer_expiration_ms=task.producer_expiration_ms,
            before_swap=partial(_check_leader, locks, task),
        )


def _check_leader(locks: ByteLocks, task: CompactionTask) -> None:
    if not locks.is_taken(_LEADER):
        raise _ended(task)


def _ended(task: CompactionTask) -> LogDirectoryError:
    reason = (
        f"the process that led the compaction has ended, or cannot be seen from this machine; "
        f"{task.planned.topic_partition} stays as it was: compact again"
    )
    return LogDirectoryError(task.directory, reason)
