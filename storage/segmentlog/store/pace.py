"""A limit of bytes a second that all processes of a user on one machine share.

Spark does not tell a task how many tasks run beside it: a limit cannot be divided among them.  So
tasks, which are processes, share one token bucket.  The bucket is a file of eight bytes in the
directory for temporary files: the time at which all bytes taken so far have passed at the limited
rate.  A task that takes bytes moves this time on, and sleeps until then.  There is one file for
each user and log directory, however many queries have a limit.

The system frees the lock of a task that dies, and the bucket has no other state of tasks.
"""

import fcntl
import hashlib
import logging
import os
import struct
import tempfile
import threading
import time
from functools import lru_cache

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
        path, reason,
    )  # fmt: skip


@lru_cache(64)
def pace_of(bytes_per_second: int, name: str) -> Pace:
    """The pace of this process for a name; its threads share it."""
    return Pace(bytes_per_second, name)
