"""The lock that brokers and writers share: one of them at a time in a log directory.

A broker locks the whole of ``.lock`` (Java's ``FileChannel.tryLock``: a POSIX record lock), and
deletes the file when it stops cleanly.  Here it is an open-file-description lock, which excludes
POSIX locks, too, but belongs to the descriptor: a POSIX lock is lost as soon as any code in the
process closes any descriptor of the file.  A description outlives its process in forked children,
so a forked child closes the descriptors that it has inherited.
"""

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from segmentlog.errors import LogDirectoryError, LogLockedError
from segmentlog.files.durable import adopt, create_file
from segmentlog.files.names import LOCK_FILE
from segmentlog.files.owners import why_not_written

__all__ = ["FLOCK", "DirectoryLock", "close_kept", "open_kept"]

_POLL_SECONDS = 0.05

#: ``struct flock``: type, whence, start, length (0: to the end), pid (0, for these locks).
FLOCK = struct.Struct("hhqqi4x")

#: Errors if there are no such locks: the lock daemon of an NFS server is away, the file system has
#: no locks, or the kernel has no locks of this kind.
_NO_LOCKS = {errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}

#: Threads share a description only through this table: a second thread of the process that opened
#: the file again would be excluded by the lock, as another process is.
_threads: dict[str, threading.Lock] = {}

#: All open descriptors of lock files.  A forked child inherits their locks, and would keep them
#: after its parent is killed.
_descriptors: set[int] = set()

#: Held while these two change, and while a process is forked: a child finds them consistent.
_guard = threading.RLock()


def _begin_child() -> None:
    """Forget the parent's locks in a forked child: no thread is left here to unlock them.

    The locks stay with the parent.  Closing a descriptor unlocks nothing while another is open;
    unlocking would take the lock from the parent.
    """
    for descriptor in _descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()
    _threads.clear()
    _guard.release()


os.register_at_fork(
    before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_begin_child
)


class DirectoryLock:
    """The lock of one log directory, held from ``__enter__`` to ``__exit__``.

    Parameters
    ----------
    directory : absolute path of the log directory.
    timeout_seconds : how long to wait for the lock.

    Raises
    ------
    LogDirectoryError
        On a system without such locks.  On entering, if the file system has none, or if this user
        may not open or make the file.
    LogLockedError
        On entering, if a broker or another writer still has it then.
    """

    def __init__(self, directory: str, timeout_seconds: float = 0.0) -> None:
        if sys.platform != "linux":
            raise LogDirectoryError(directory, "is written to and recovered on Linux only")
        self._directory = directory
        self._path = os.path.join(directory, LOCK_FILE)
        self._timeout_seconds = min(max(timeout_seconds, 0), threading.TIMEOUT_MAX)
        self._descriptor = -1
        self._thread_lock = threading.Lock()  # replaced on entering, in the process that enters
        self._process = -1

    def __enter__(self) -> Self:
        until = time.monotonic() + self._timeout_seconds
        with _guard:
            shared = _threads.setdefault(os.path.realpath(self._directory), threading.Lock())
        self._thread_lock, self._process = shared, os.getpid()
        if not self._thread_lock.acquire(timeout=self._timeout_seconds):
            raise LogLockedError(self._directory, os.getpid(), self._timeout_seconds)
        try:
            while not self._try():
                if time.monotonic() >= until:
                    raise LogLockedError(self._directory, self._holder(), self._timeout_seconds)
                time.sleep(_POLL_SECONDS)
        except BaseException:
            self._thread_lock.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process != os.getpid():  # forked inside the block: the lock is the parent's
            return
        # Unlocked, and not only closed: a process that was started without `os.fork` may have the
        # descriptor, too.
        with contextlib.suppress(OSError):
            unlock = FLOCK.pack(fcntl.F_UNLCK, 0, 0, 0, 0)
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, unlock)
        close_kept(self._descriptor)
        self._thread_lock.release()

    def _try(self) -> bool:
        """Open and lock the file, unless another process holds it or has just removed it."""
        descriptor = open_kept(self._open)
        try:
            is_locked = self._lock(descriptor)
        except BaseException:
            close_kept(descriptor)
            raise
        if is_locked:
            self._descriptor = descriptor
        else:
            close_kept(descriptor)
        return is_locked

    def _open(self) -> int:
        while True:
            try:
                return os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            except PermissionError as error:
                reason = f"{error.strerror}: {why_not_written(self._path)}"
                raise LogDirectoryError(self._path, reason) from error
            except IsADirectoryError as error:
                reason = f"cannot be locked: {error.strerror}; brokers have a file there: move it"
                raise LogDirectoryError(self._path, reason) from error
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):  # another was quicker
                    return create_file(self._path)

    def _lock(self, descriptor: int) -> bool:
        try:
            with contextlib.suppress(LogDirectoryError):  # the owner may open it all the same
                adopt(self._path)
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
            # Otherwise the path no longer names the file that we locked.
            return os.fstat(descriptor).st_ino == os.stat(self._path).st_ino
        except (BlockingIOError, PermissionError, FileNotFoundError):
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            reason = (
                f"its file system does not lock files ({error.strerror}), so nothing keeps a "
                "broker or another writer out; mount it with locks (NFS 4, or NFS 3 with lockd), "
                "or write to a local file system"
            )
            raise LogDirectoryError(self._directory, reason) from error

    def _holder(self) -> int:
        """Process that holds the lock, or 0 if the system does not tell."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            # The request is for a POSIX lock, like a broker's: only for these does the system know
            # the process.
            reply = fcntl.fcntl(descriptor, fcntl.F_GETLK, FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
        except OSError:
            return 0
        finally:
            os.close(descriptor)
        lock_type, _, _, _, process = FLOCK.unpack(reply)
        return int(process) if lock_type != fcntl.F_UNLCK and process > 0 else 0


def open_kept(open_file: Callable[[], int]) -> int:
    """Open a file whose locks a forked child must not inherit.

    Parameters
    ----------
    open_file : opens it, and returns its descriptor.
    """
    with _guard:
        descriptor = open_file()
        _descriptors.add(descriptor)
    return descriptor


def close_kept(descriptor: int) -> None:
    """Close what `open_kept` has opened; its locks go."""
    with _guard:
        _descriptors.discard(descriptor)
        os.close(descriptor)
