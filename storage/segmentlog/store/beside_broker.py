"""Reads and writes beside a broker: a limit of bytes a second, and a page cache left as it was.

All processes of a user on one machine share the limit.  Spark does not tell a task how many tasks
run beside it, so a limit cannot be divided among them.  Tasks, which are processes, share one
token bucket instead.  The bucket is a file of eight bytes in the directory for temporary files:
the time at which all bytes taken so far have passed at the limited rate.  A task that takes bytes
moves this time on, and sleeps until then.  There is one file for each user and log directory,
however many queries have a limit.  The system frees the lock of a task that dies, and the bucket
has no other state of tasks.

A scan of a broker's directory would fill the page cache with old segments, and push out the pages
that producers and consumers of the broker use.  ``mincore`` shows which pages of a range are in
the cache before the range is read (Linux).  The other pages are given back after they were read,
with ``posix_fadvise``.  A page that a consumer of the broker asks for between the two calls is
given back, too: the consumer reads it from the disk the next time.
"""

import ctypes
import fcntl
import hashlib
import logging
import mmap
import os
import struct
import sys
import tempfile
import threading
import time
from functools import cache, lru_cache

logger = logging.getLogger(__name__)

_clock = time.monotonic  # it counts from the start of the machine, for all processes
_sleep = time.sleep

_STATE = struct.Struct("<d")

#: After an idle time, the bytes of at most this number of seconds may be taken at once.
_BURST_SECONDS = 0.1

#: Bytes are taken in pieces: a disk that is busy for longer at a time delays others.
_PIECE_SECONDS, _LEAST_PIECE = 0.05, 64 << 10

#: A debt of more pieces than this is ignored: the machine has started again since.
_MOST_PIECES = 10_000


class Pace:
    """Bytes that may pass in a second; threads and processes with this name share them.

    `name`: of what is read or written, such as a log directory.  `piece`: the most bytes to take
    at once.
    """

    def __init__(self, bytes_per_second: int, name: str) -> None:
        self._rate = bytes_per_second
        self.piece = max(int(bytes_per_second * _PIECE_SECONDS), _LEAST_PIECE)
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
        self._path = os.path.join(
            tempfile.gettempdir(), f"segmentlog-{os.geteuid()}-{digest}.pace"
        )
        # Threads take under the lock, because a lock of a file does not tell threads apart.
        self._alone = 0.0  # the state, if there is no file
        self._lock = threading.Lock()

    def take(self, n_bytes: int) -> None:
        """Take bytes that were read or are to be written, and sleep until others may."""
        with self._lock:
            now = _clock()
            until = self._moved(now, n_bytes / self._rate)
        if until > now:
            _sleep(until - now)

    def _moved(self, now: float, seconds: float) -> float:
        descriptor = self._opened()
        if descriptor < 0:
            self._alone = self._after(self._alone, now, seconds)
            return self._alone
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            state = os.pread(descriptor, _STATE.size, 0)
            found = _STATE.unpack(state)[0] if len(state) == _STATE.size else 0.0
            until = self._after(found, now, seconds)
            os.pwrite(descriptor, _STATE.pack(until), 0)
        except OSError as error:  # a full disk, or no locks: the log is not at fault
            _warn_once(self._path, error.strerror or str(error))
            until = self._after(self._alone, now, seconds)
        finally:
            os.close(descriptor)  # and the lock goes
        self._alone = until
        return until

    def _after(self, found: float, now: float, seconds: float) -> float:
        most = _MOST_PIECES * self.piece / self._rate
        if not found - now < most:  # of an earlier start of the machine, or not a number
            found = now
        return max(found, now - _BURST_SECONDS) + seconds

    def _opened(self) -> int:
        """The descriptor of the file, or -1 if this user cannot have it."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            _warn_once(self._path, error.strerror or str(error))
            return -1
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_nlink > 1:  # a link to a file of this user
            os.close(descriptor)
            _warn_once(self._path, "it belongs to another user, or has other names")
            return -1
        return descriptor


@lru_cache
def _warn_once(path: str, reason: str) -> None:
    logger.warning(
        "%s: %s: the limit of bytes per second applies to each process, and not to all processes "
        "together",
        path,
        reason,
    )


@lru_cache(64)
def pace_of(bytes_per_second: int, name: str) -> Pace:
    """The pace of this process for a name; its threads share it."""
    return Pace(bytes_per_second, name)


_PAGE = mmap.PAGESIZE
_SHARED, _FAILED = 1, ctypes.c_void_p(-1).value

_RESIDENT = bytes(each & 1 for each in range(256))


class BorrowedPages:
    """The pages of a range of an open file that are not in the page cache before it is read."""

    __slots__ = ("_at", "_descriptor", "_first", "_known")

    def __init__(self, descriptor: int, path: str, start: int, end: int) -> None:
        self._descriptor = descriptor
        self._first = start // _PAGE * _PAGE
        self._known = b""  # a byte for each page: 1 if the page stays, because it was there
        self._at = 0  # number of the first page that is not given back yet
        size = os.fstat(descriptor).st_size
        if start < size and _is_shown(descriptor, path):
            # The system would read ahead beyond the range, by 8 MiB on some machines.  There, the
            # pages would seem to have been in the cache before, to a read of the next range.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            self._known = _residency(descriptor, self._first, min(end, size))

    def read_up_to(self, position: int) -> None:
        """Give back pages before byte `position`: a reader is done with them."""
        n_pages = (position - self._first) // _PAGE
        if n_pages > self._at:
            self._give_back(self._at, n_pages)
            self._at = n_pages

    def give_back(self) -> None:
        """Give back all pages."""
        # Pages that were in use when their part was given back stayed in the cache, so all parts
        # are given back again.
        self._give_back(0, len(self._known))

    def _give_back(self, begin: int, end: int) -> None:
        known = self._known
        end = min(end, len(known))
        while (begin := known.find(b"\0", begin, end)) >= 0:
            stop = known.find(b"\1", begin, end)
            stop = end if stop < 0 else stop
            # One advice for a whole run: the cache may keep pages in larger blocks.
            position, n_bytes = self._first + begin * _PAGE, (stop - begin) * _PAGE
            os.posix_fadvise(self._descriptor, position, n_bytes, os.POSIX_FADV_DONTNEED)
            begin = stop


def _is_shown(descriptor: int, path: str) -> bool:
    """Whether the system shows this user which pages of a file are in the cache."""
    # Since Linux 5.2, ``mincore`` shows the owner of a file and users who may write to it; for
    # others, all pages seem to be there.
    if sys.platform != "linux" or _libc() is None:
        return False
    status = os.fstat(descriptor)
    if os.geteuid() in (0, status.st_uid) or os.access(path, os.W_OK, effective_ids=True):
        return True
    _warn_of_owner(os.path.dirname(os.path.dirname(path)))
    return False


@lru_cache
def _warn_of_owner(directory: str) -> None:
    logger.warning(
        "%s: the system shows the page cache of these files only to users who may write to them: "
        "pages that this read brings into the cache stay in the cache",
        directory,
    )


def _residency(descriptor: int, start: int, end: int) -> bytes:
    """A byte for each page of ``[start, end)``: 1 if it is in the page cache."""
    # The file is mapped without access: no page is touched, so a file that is cut meanwhile cannot
    # end the process with SIGBUS.
    libc = _libc()
    if libc is None:
        return b""
    length = end - start
    address = libc.mmap(None, length, 0, _SHARED, descriptor, start)
    if address in (None, _FAILED):
        return b""
    try:
        pages = (ctypes.c_ubyte * (-(-length // _PAGE)))()
        failed = libc.mincore(address, length, pages)
    finally:
        libc.munmap(address, length)
    return b"" if failed else bytes(pages).translate(_RESIDENT)


@cache
def _libc() -> "ctypes.CDLL | None":
    """The C library of the process, or None if it has no such functions."""
    try:
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_longlong,
        ]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return libc
