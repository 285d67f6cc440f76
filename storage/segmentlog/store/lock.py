"""The lock that brokers and writers share: one of them at a time in a log directory.

A broker locks the whole of ``.lock`` (Java's ``FileChannel.tryLock``: a POSIX record lock), and
deletes the file when it stops cleanly.  A broker runs for days, so nobody waits for one.  We take
an open-file-description lock, which excludes POSIX locks, too, but belongs to the descriptor: a
POSIX lock is lost as soon as any code in the process closes any descriptor of the file.  A
description outlives its process in forked children, so a forked child closes the descriptors that
it has inherited.

**Tasks** have a share in the lock of a log directory: one byte of ``.lock``.  The process that
holds the lock opens a hole in it (`DirectoryLock.shared`), and each task, in any process, locks a
byte of the hole.  So

- a broker or a writer, which locks the whole file, is kept out until the last task has ended,
  even if the holder is killed before its tasks;
- a second attempt of a task waits until the first has ended;
- a task that comes after the holder does nothing: its byte is locked as a part of the whole file,
  or the byte is free and the start of the file is free, too.

No two holders have the same hole.  So a task that has its byte and finds the start of the file
locked knows that its own holder lives, and that nobody else has the directory until the task ends.

**A lock may be lost** while its holder is held up: a lease of a network file system expires, or
the machine is suspended.  Each holder of ours gives the lock file another time than the one
before.  A holder that finds another time there, or cannot lock the file again, has lost its lock,
and changes nothing more (`segmentlog.store.durable.check_held`).
"""

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import secrets
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from segmentlog.arguments import seconds
from segmentlog.errors import LogDirectoryError, LogLockedError
from segmentlog.format.names import LOCK_FILE
from segmentlog.model import LOCK_TIMEOUT_SECONDS
from segmentlog.store.durable import TIME_STEPS_NS, create_file, holder_checks, replace_file
from segmentlog.store.readable import Closing
from segmentlog.store.system_errors import why_not_written

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.05
_POLL_THREADS_SECONDS = 0.005

#: How long a holder waits for its tasks at its end.  Then it leaves, and they keep others out.
_TASKS_END_SECONDS = 10.0

#: The holes for tasks lie from here on, far beyond the bytes that a lock file has.
_TASKS = 1 << 62

#: ``struct flock``: type, whence, start, length (0: to the end), pid (0, for these locks).
_FLOCK = struct.Struct("hhqqi4x")

#: Errors if there are no such locks: the lock daemon of an NFS server is away, the file system has
#: no locks, or the kernel has no locks of this kind.
_NO_LOCKS = {errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}

#: Numbers of the objects that open lock files; none is used again, as an ``id`` would be.
_numbers = itertools.count()

#: The number of the `DirectoryLock` that holds or opens the lock of a directory.  A second thread
#: of the process waits here, and can name the process.
_threads: dict[str, int] = {}

#: All open descriptors of lock files, with the number of the object that has opened them.  A
#: forked child inherits their locks, and would keep them after its parent is killed.
_descriptors: dict[int, int] = {}

#: Held while these two change, and while a process is forked: a child finds them consistent.
_guard = threading.RLock()


def _begin_child() -> None:
    """Forget the parent's locks in a forked child: no thread is left here to unlock them."""
    # The locks stay with the parent. Closing a descriptor unlocks nothing while another is open;
    # unlocking would take the lock from the parent.
    for descriptor in _descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()
    _threads.clear()
    holder_checks.clear()
    _guard.release()


os.register_at_fork(
    before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_begin_child
)


class LockShare(NamedTuple):
    """A hole for tasks in the lock of a directory; it can be pickled."""

    path: str  # of the lock file
    #: the byte that is unlocked as long as tasks may begin; their own bytes come after it
    first: int
    mark: int  # of the holder (`_mark_of`)


class DirectoryLock:
    """The lock of one log directory, held from ``__enter__`` to ``__exit__``.

    It waits so long for a writer, and never for a broker; `LogLockedError` says who has it. Raises
    `LogDirectoryError` if the system or the file system has no such locks, or if this user may not
    open or make the file.
    """

    _process = -1  # that has entered, and must release

    def __init__(self, directory: str, timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> None:
        if sys.platform != "linux":
            raise LogDirectoryError(directory, "can be written and recovered only on Linux")
        self._directory = directory
        self._path = os.path.join(directory, LOCK_FILE)
        self._timeout_seconds = min(
            seconds("lock_timeout_seconds", timeout_seconds), threading.TIMEOUT_MAX
        )
        self._real, self._number = os.path.realpath(directory), next(_numbers)
        self._descriptor = -1
        self._mark, self._check = -1, partial(_check_mark, self._path, -1, -1)

    def __enter__(self) -> Self:
        begin = time.monotonic()
        self._process = os.getpid()
        try:
            while _threads.setdefault(self._real, self._number) != self._number:
                if time.monotonic() - begin >= self._timeout_seconds:
                    raise LogLockedError(self._directory, os.getpid(), self._timeout_seconds)
                time.sleep(_POLL_THREADS_SECONDS)
            while not self._try():
                process, is_task = self._holder()
                passed = time.monotonic() - begin
                if process or passed >= self._timeout_seconds:
                    waited = min(round(passed, 1), self._timeout_seconds)
                    raise LogLockedError(self._directory, process, waited, is_task=is_task)
                time.sleep(_POLL_SECONDS)
            self._mark = _new_mark(self._path)
            # Without a reference to this object: after Ctrl-C, `__del__` gives up the lock.
            self._check = partial(_check_mark, self._path, self._mark, self._descriptor)
            holder_checks[self._directory] = self._check
            return self
        except BaseException:
            self._release()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._release()
        finally:
            self._release()  # Ctrl-C may have cut the first one anywhere

    def __del__(self) -> None:
        self._release()  # Ctrl-C may come before the first line of the others

    def _release(self) -> None:
        """Give up what this object holds; a second call does nothing."""
        if self._process != os.getpid():  # forked inside the block: the lock is the parent's
            return
        if holder_checks.get(self._directory) is self._check:
            del holder_checks[self._directory]
        _close_kept(self._number)
        if _threads.get(self._real) == self._number:
            del _threads[self._real]
        self._process = -1

    @contextlib.contextmanager
    def shared(self, n_tasks: int) -> Iterator[LockShare]:
        """Let tasks work in the directory, each with a byte of the lock (`TaskLock`)."""
        # At the end of the block, no further task begins, and the block waits for a limited time
        # for tasks that are running. The directory stays locked until the last task has ended.
        share = LockShare(self._path, _TASKS + secrets.randbelow(_TASKS >> 1), self._mark)
        _unlock(self._descriptor, share.first, 1 + n_tasks)
        try:
            yield share
        finally:
            if self._process == os.getpid():  # otherwise forked inside the block
                self._end_tasks(share, n_tasks)

    def _end_tasks(self, share: LockShare, n_tasks: int) -> None:
        """Close the hole: first the byte that tasks look at, then theirs."""
        _try_lock(self._descriptor, share.first, 1)
        until = time.monotonic() + _TASKS_END_SECONDS
        while not _try_lock(self._descriptor, share.first, 1 + n_tasks):
            if time.monotonic() >= until:
                logger.warning(
                    "%s: a task still works in the directory, which stays locked until the task "
                    "ends",
                    self._directory,
                )
                return
            time.sleep(_POLL_SECONDS)

    def _try(self) -> bool:
        """Open and lock the file, unless another process holds it or has just removed it."""
        self._descriptor = _open_kept(self._number, self._open)
        if not self._lock(self._descriptor):
            _close_kept(self._number)
            return False
        if not self._is_of_root():
            return True
        with contextlib.suppress(LogDirectoryError):  # its owner may be able to open it anyway
            replace_file(self._path, b"", sync_name=False)
            _close_kept(self._number)
            return self._try()
        return True

    def _is_of_root(self) -> bool:
        """Whether root has left the file to an owner of the directory who cannot open it."""
        is_ours = os.stat(self._descriptor).st_uid == os.geteuid() == 0
        return is_ours and os.stat(self._directory).st_uid != 0

    def _open(self) -> int:
        while True:
            try:
                return _open_lock(self._path)
            except PermissionError as error:
                reason = f"{error.strerror}: {why_not_written(self._path)}"
                raise LogDirectoryError(self._path, reason) from error
            except IsADirectoryError as error:
                reason = (
                    f"cannot be locked: {error.strerror}; a broker has a file with this name: "
                    "move the directory away"
                )
                raise LogDirectoryError(self._path, reason) from error
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):  # another was quicker
                    return create_file(self._path)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                reason = "cannot be locked: it is a link, which is not followed; remove the link"
                raise LogDirectoryError(self._path, reason) from error

    def _lock(self, descriptor: int) -> bool:
        try:
            # If the inodes differ, the path no longer names the file that we locked.
            return (
                _try_lock(descriptor)
                and os.fstat(descriptor).st_ino == os.lstat(self._path).st_ino
            )
        except (PermissionError, FileNotFoundError):
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            reason = (
                f"its file system does not lock files ({error.strerror}), so a broker or another "
                "writer could write at the same time; mount it with locks (NFS 4, or NFS 3 with "
                "lockd), or write to a local file system"
            )
            raise LogDirectoryError(self._directory, reason) from error

    def _holder(self) -> tuple[int, bool]:
        """The process id of a broker that holds the lock, or 0; and whether a task holds it."""
        # For a POSIX lock, as a broker has it, the system knows the process. It does not for our
        # locks, nor for those of another container or machine: any of these may be a writer's.
        try:
            descriptor = _open_lock(self._path)
        except OSError:
            return 0, False
        try:
            reply = fcntl.fcntl(descriptor, fcntl.F_GETLK, _request(fcntl.F_WRLCK, 0, _TASKS))
            lock_type, _, _, _, process = _FLOCK.unpack(reply)
            if lock_type != fcntl.F_UNLCK:
                return max(int(process), 0), False
            return 0, _is_locked(descriptor, _TASKS, 0)
        except OSError:
            return 0, False
        finally:
            os.close(descriptor)


def is_locked(directory: str) -> bool | None:
    """Whether a broker or a writer holds a directory; no lock is taken.  None if it is unknown."""
    if sys.platform != "linux":
        return None
    try:
        descriptor = os.open(
            os.path.join(directory, LOCK_FILE), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        )
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        return _is_locked(descriptor, 0, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _open_lock(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def _mark_of(path: str) -> int:
    """The time of the lock file in nanoseconds, by which its holders differ; -1 without a file."""
    # A broker that stops removes the file. Opened: a network file system remembers times, and asks
    # its server at an open.
    try:
        descriptor = _open_lock(path)
    except FileNotFoundError:
        return -1
    try:
        return os.stat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)


def _new_mark(path: str) -> int:
    """Give the lock file the present time of its file system, or a later one; the mark."""
    before = _mark_of(path)
    os.utime(path, follow_symlinks=False)
    for step_ns in TIME_STEPS_NS:
        if (mark := _mark_of(path)) != before:
            break
        with contextlib.suppress(PermissionError):  # of another owner
            os.utime(path, ns=(mark + step_ns,) * 2, follow_symlinks=False)
    return _mark_of(path)


def _check_mark(path: str, mark: int, descriptor: int) -> None:
    """Raise `LogLockedError` if the lock of a holder is lost; -1 for the descriptor of a task."""
    # To lock again what is locked changes nothing, and asks the server. A lock that was lost is
    # taken back if nobody has it now; the mark shows whether somebody had it.
    is_held = descriptor < 0 or _try_lock(descriptor, 0, _TASKS)
    if not is_held or _mark_of(path) != mark:
        raise LogLockedError(os.path.dirname(path), 0, 0.0, is_lost=True)


def _try_lock(descriptor: int, start: int = 0, n_bytes: int = 0) -> bool:
    """Lock some bytes, which need not exist, or all from `start` on; False if another has one."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _request(fcntl.F_WRLCK, start, n_bytes))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is_locked(descriptor: int, start: int, n_bytes: int) -> bool:
    """Whether another has locked some of these bytes; see `_try_lock`."""
    request = _request(fcntl.F_WRLCK, start, n_bytes)
    reply = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, request)
    return bool(_FLOCK.unpack(reply)[0] != fcntl.F_UNLCK)


def _unlock(descriptor: int, start: int = 0, n_bytes: int = 0) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _request(fcntl.F_UNLCK, start, n_bytes))


def _request(lock_type: int, start: int, n_bytes: int) -> bytes:
    return _FLOCK.pack(lock_type, os.SEEK_SET, start, n_bytes, 0)


def _open_kept(owner: int, open_file: Callable[[], int]) -> int:
    """Open a file whose locks a forked child must not inherit; it is kept before it is locked."""
    with _guard:
        _descriptors[descriptor := open_file()] = owner
    return descriptor


def _close_kept(owner: int) -> None:
    """Unlock and close what `_open_kept` has opened; a forked child has closed it already."""
    # A process that was started without `os.fork` may have the descriptor for a moment, too:
    # closing it alone would leave the locks there.
    with _guard:
        for descriptor, number in _descriptors.copy().items():
            if number == owner:
                with contextlib.suppress(OSError):
                    _unlock(descriptor)
                del _descriptors[descriptor]  # after Ctrl-C above, the next call finds it again
                os.close(descriptor)


class TaskLock(Closing):
    """The byte of one task, from `take` until it is closed or the process ends.

    `number`: of the task, from 1 on.  Raises `FileNotFoundError` if there is no lock file.
    """

    _is_in_block = False

    def __init__(self, share: LockShare, number: int) -> None:
        self._directory = os.path.dirname(share.path)
        self._check = partial(_check_mark, share.path, share.mark, -1)
        self._first, self._byte = share.first, share.first + number
        self._number = next(_numbers)
        self._descriptor = _open_kept(self._number, partial(_open_lock, share.path))

    def take(self) -> bool:
        """Lock the byte; False if an earlier attempt of the task has it."""
        is_taken = _try_lock(self._descriptor, self._byte, 1)
        if is_taken:  # in the process of the holder, the check of the holder stays
            holder_checks.setdefault(self._directory, self._check)
        return is_taken

    def is_shared(self) -> bool:
        """Whether the holder lives and lets tasks work; a guess until the byte is taken."""
        return not _is_locked(self._descriptor, self._first, 1) and _is_locked(
            self._descriptor, 0, 1
        )

    def close(self) -> None:
        """Give the byte up; a second call does nothing."""
        if holder_checks.get(self._directory) is self._check:
            del holder_checks[self._directory]
        try:
            _close_kept(self._number)
        finally:
            _close_kept(self._number)  # Ctrl-C may have cut the first one anywhere

    def __enter__(self) -> Self:
        self._is_in_block = True
        return self

    def __del__(self) -> None:
        if self._is_in_block:  # Ctrl-C may have come before the first line of `close`
            _close_kept(self._number)
