"""Reads that leave the page cache as they found it, where the system shows what it holds (Linux).

A scan of a broker's directory would fill the page cache with old segments, and push out the pages
that producers and consumers of the broker use.  ``mincore`` shows which pages of a range are in
the cache before the range is read.  The other pages are given back after they were read, with
``posix_fadvise``.

A page that a consumer of the broker asks for between the two calls is given back, too: the
consumer reads it from the disk the next time.
"""

import ctypes
import logging
import mmap
import os
import sys
from functools import cache, lru_cache

logger = logging.getLogger(__name__)

_PAGE = mmap.PAGESIZE
_SHARED, _FAILED = 1, ctypes.c_void_p(-1).value

_RESIDENT = bytes(each & 1 for each in range(256))


class BorrowedPages:
    """The pages of a range that are not in the page cache before the range is read.

    `descriptor`: of the file; the caller keeps it open until `give_back` was called.  `path`: of
    the file, for messages.
    """

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
        """Give back all pages.

        Pages that were in use when their part was given back stayed in the cache, so all parts are
        given back again.
        """
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
    """Whether the system shows this user which pages of a file are in the cache.

    Since Linux 5.2, ``mincore`` shows the owner of a file and users who may write to it; for
    others, all pages seem to be there.
    """
    if sys.platform != "linux" or _libc() is None:
        return False
    status = os.fstat(descriptor)
    if os.geteuid() in (0, status.st_uid) or os.access(path, os.W_OK, effective_ids=True):
        return True
    _warn_once(os.path.dirname(os.path.dirname(path)))
    return False


@lru_cache
def _warn_once(directory: str) -> None:
    logger.warning(
        "%s: the system shows the page cache of these files only to users who may write to them: "
        "pages that this read brings into the cache stay in the cache",
        directory,
    )


def _residency(descriptor: int, start: int, end: int) -> bytes:
    """A byte for each page of ``[start, end)``: 1 if it is in the page cache.

    The file is mapped without access: no page is touched, so a file that is cut meanwhile cannot
    end the process with SIGBUS.
    """
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
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                              ctypes.c_int, ctypes.c_longlong]  # fmt: skip
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return libc
