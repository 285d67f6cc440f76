"""One compaction by several processes: one leads, the others clean a partition each.

The leader holds the lock of the log directory, plans, and keeps ``cleaner-offset-checkpoint``.  A
process that cleans a partition has a share in the lock (`segmentlog.store.lock`).  So

- a second attempt at a partition, after a lost machine or by speculative execution, waits until
  the first has ended, finishes or undoes what that has left, and cleans the log that it finds;
- no broker, no writer and no other compaction has the directory before the last task has ended,
  even if the leader dies.  A task that notices this ends before it replaces segments.

The locks are the file system's: all processes need the directory at the same path, on one machine
or on a network file system with locks.
"""

import time
from typing import NamedTuple

from segmentlog.errors import LogDirectoryError
from segmentlog.maintain.compaction.plan import CompactedPartition, PlannedPartition
from segmentlog.maintain.compaction.settings import CleanerLimits
from segmentlog.store.lock import LockShare, TaskLock
from segmentlog.store.system_errors import storage_errors

_POLL_SECONDS = 0.2


class CompactionTask(NamedTuple):
    """A partition to clean; it can be pickled."""

    directory: str  # the absolute path of the log directory
    share: LockShare  # of the leader's lock, which tasks have
    number: int  # of the partition among those of the leader, from 1 on
    planned: PlannedPartition
    limits: CleanerLimits  # of all partitions


@storage_errors()
def clean_task(task: CompactionTask) -> CompactedPartition | None:
    """Clean the partition of a task; None if nothing was left to do.

    Raises `LogDirectoryError` if the leader has ended; nothing of the pass is replaced then.
    """
    from segmentlog.maintain.compaction.clean_partition import (
        clean_partition,  # the kernels load here
    )

    try:
        lock = TaskLock(task.share, task.number)
    except FileNotFoundError as error:
        raise _ended(task) from error

    def check_leader() -> None:
        if not lock.is_shared():
            raise _ended(task)

    with lock:
        check_leader()
        while not lock.take():
            time.sleep(_POLL_SECONDS)
            check_leader()
        check_leader()  # nobody else can have the directory from here on
        return clean_partition(task.directory, task.planned, task.limits, before_step=check_leader)


def _ended(task: CompactionTask) -> LogDirectoryError:
    reason = (
        "the process that led the compaction has ended, or cannot be seen from this machine; "
        f"{task.planned.topic_partition} is unchanged: compact again"
    )
    return LogDirectoryError(task.directory, reason)
