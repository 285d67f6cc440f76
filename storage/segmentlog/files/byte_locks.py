"""Locks of single bytes of a file: who of several processes does which part of a work."""

import fcntl
import os
from functools import partial

from segmentlog.files.closing import Closing
from segmentlog.files.lock import FLOCK, close_kept, open_kept

__all__ = ["ByteLocks"]


class ByteLocks(Closing):
    """Locks that a process takes on bytes of a file, until it closes the file or ends.

    The bytes need not exist.  These are open-file-description locks, as `DirectoryLock` has: two
    objects exclude each other in one process, too.

    Parameters
    ----------
    path : of the file, which must exist.

    Raises
    ------
    FileNotFoundError
        If it does not.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = open_kept(partial(os.open, path, os.O_RDWR | os.O_CLOEXEC))

    def take(self, number: int) -> bool:
        """Lock a byte; False if another has locked it."""
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, self._request(number))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def is_taken(self, number: int) -> bool:
        """Whether another has locked a byte."""
        reply = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, self._request(number))
        return bool(FLOCK.unpack(reply)[0] != fcntl.F_UNLCK)

    @staticmethod
    def _request(number: int) -> bytes:
        return FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)

    def close(self) -> None:
        """Give up all locks; a second call does nothing."""
        if self._descriptor >= 0:
            close_kept(self._descriptor)
            self._descriptor = -1
