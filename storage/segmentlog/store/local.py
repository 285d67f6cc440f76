"""`Disk` for mounted file systems, network file systems too.

A read may leave the page cache as it found it, where the system shows what it holds (Linux).  A
scan of a broker's directory would fill the page cache with old segments, and push out the pages
that producers and consumers of the broker use.  ``mincore`` shows which pages of a range are in
the cache before the range is read.  The other pages are given back after they were read, with
``posix_fadvise``.  A page that a consumer of the broker asks for between the two calls is given
back, too: the consumer reads it from the disk the next time.
"""

import ctypes
import errno
import logging
import mmap
import os
import stat
import sys
from collections.abc import Iterable
from functools import cache, lru_cache

from segmentlog.store.contract import TYPES, Closing, Entry, FileStatus, FileType, Measured
from segmentlog.store.system_errors import is_planted

logger = logging.getLogger(__name__)

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
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                              ctypes.c_int, ctypes.c_longlong]  # fmt: skip
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return libc


_BLOCK_BYTES = 512  #: of ``st_blocks``, on every system


def device_of(path: str) -> int:
    """Number of the file system that holds a path: directories on one share its free space."""
    return os.stat(path).st_dev


class LocalFile(Closing):
    """A file that the system has opened."""

    __slots__ = ("_borrowed", "_descriptor", "path")

    never_cut = False
    never_overlaps = False

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._borrowed: BorrowedPages | None = None

    @property
    def number(self) -> int:
        """The descriptor, for copies of the file."""
        return self._descriptor

    @property
    def descriptor(self) -> int | None:
        """See `ReadableFile`; None while borrowed pages have to be given back."""
        return self._descriptor if self._borrowed is None else None

    def status(self) -> FileStatus:
        return _status(os.fstat(self._descriptor), is_open=True)

    def read(self, position: int, n_bytes: int) -> bytes:
        try:
            return os.pread(self._descriptor, n_bytes, position)
        except OSError as error:
            error.filename = self.path  # the system's error for a descriptor names no file
            raise

    def read_into(self, buffer: memoryview, position: int) -> int:
        if self._borrowed is not None:
            self._borrowed.read_up_to(position)
        try:
            return os.preadv(self._descriptor, [buffer], position)
        except OSError as error:
            error.filename = self.path
            raise

    def expect(self, start: int, end: int) -> None:
        """See `ReadableFile`; the system reads ahead by itself."""

    def spare_page_cache(self, start: int, end: int) -> None:
        """See `ReadableFile`; for one range of the file."""
        self._borrowed = BorrowedPages(self._descriptor, self.path, start, end)

    def check_unchanged(self) -> None:
        """See `ReadableFile`; an open file stays the same."""

    def map(self) -> mmap.mmap | None:
        """See `ReadableFile`; an empty file cannot be mapped."""
        if not os.fstat(self._descriptor).st_size:
            return None
        return mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        """See `ReadableFile`; twice is not an error."""
        if self._descriptor >= 0:
            if self._borrowed is not None:
                self._borrowed.give_back()
            os.close(self._descriptor)
            self._descriptor = -1


class LocalDisk:
    """Mounted file systems, network file systems too."""

    def open(self, path: str, *, follow: bool = True) -> LocalFile:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        if follow:
            return LocalFile(path, os.open(path, flags))
        descriptor = os.open(path, flags | os.O_NOFOLLOW)
        found = os.fstat(descriptor)
        if found.st_nlink > 1 and is_planted(found, os.stat(os.path.dirname(path))):
            os.close(descriptor)
            raise OSError(errno.ELOOP, "has other names, and the owner is another one", path)
        return LocalFile(path, descriptor)

    def status(self, path: str, *, follow: bool = False) -> FileStatus:
        return _status(os.stat(path) if follow else os.lstat(path))

    def measure(self, directory: str, names: Iterable[str]) -> Measured:
        lstat = os.lstat
        # A path is resolved name by name: 0.25 µs more for each of a million files.
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = [lstat(name, dir_fd=opened) for name in names]
        except OSError as error:
            error.filename = f"{directory}/{error.filename}"  # the system has only the name
            raise
        finally:
            os.close(opened)
        types: dict[int, FileType] = {}
        if not all(map(stat.S_ISREG, {each.st_mode for each in found})):
            kinds = [TYPES.get(stat.S_IFMT(each.st_mode), FileType.OTHER) for each in found]
            types = {i: kind for i, kind in enumerate(kinds) if kind is not FileType.FILE}
        return Measured(
            [each.st_size for each in found],
            [each.st_ino for each in found],
            types,
            not all(map(os.major, {each.st_dev for each in found})),
        )

    def names(self, path: str) -> list[str]:
        return os.listdir(path)

    def entries(self, path: str) -> list[Entry]:
        """See `Disk`; types come with the names, without a call for each."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    kind = FileType.DIRECTORY
                elif entry.is_symlink():
                    kind = FileType.LINK
                else:
                    kind = FileType.FILE if entry.is_file() else FileType.OTHER
                found.append(Entry(entry.name, kind))
        return found

    def inodes(self, path: str) -> dict[str, int]:
        """See `Disk`; they come with the names, too."""
        with os.scandir(path) as entries:
            return {entry.name: entry.inode() for entry in entries}


def _status(found: os.stat_result, *, is_open: bool = False) -> FileStatus:
    # File systems without their own disk have no major number: network file systems and FUSE, but
    # also overlay, btrfs and tmpfs.
    return FileStatus(
        found.st_mode,
        found.st_size,
        found.st_ino,
        found.st_mtime_ns,
        found.st_ctime_ns,
        not is_open and not os.major(found.st_dev),
        found.st_blocks * _BLOCK_BYTES,
    )
