"""The share that a task has in the lock of a log directory: one byte of ``.lock``.

The process that holds the lock opens a hole in it (`DirectoryLock.shared`), and each task, in any
process, locks a byte of the hole.  So

- a broker or a writer, which locks the whole file, is kept out until the last task has ended,
  also if the holder is killed before its tasks;
- a second attempt of a task waits until the first has ended;
- a task that comes after the holder does nothing: its byte is locked as a part of the whole file,
  or the byte is free and the start of the file is free, too.

No two holders have the same hole.  So a task that has its byte and finds the start of the file
locked knows that its own holder lives, and that nobody else has the directory until the task ends.
"""

import os
from functools import partial

from segmentlog.disk.closing import Closing
from segmentlog.disk.lock import LockShare, close_kept, is_locked, open_kept, try_lock

__all__ = ["TaskLock"]


class TaskLock(Closing):
    """The byte of one task, from `take` until it is closed or the process ends.

    Parameters
    ----------
    share : of the holder of the lock.
    number : of the task, from 1 on.

    Raises
    ------
    FileNotFoundError
        If there is no lock file.
    """

    def __init__(self, share: LockShare, number: int) -> None:
        self._first, self._byte = share.first, share.first + number
        self._descriptor = open_kept(partial(os.open, share.path, os.O_RDWR | os.O_CLOEXEC))

    def take(self) -> bool:
        """Lock the byte; False if an earlier attempt of the task has it."""
        return try_lock(self._descriptor, self._byte, 1)

    def is_shared(self) -> bool:
        """Whether the holder lives and lets tasks work; a guess until the byte is taken."""
        return not is_locked(self._descriptor, self._first, 1) and is_locked(
            self._descriptor, 0, 1
        )

    def close(self) -> None:
        """Give the byte up; a second call does nothing."""
        if self._descriptor >= 0:
            close_kept(self._descriptor)
            self._descriptor = -1
