"""The one door for reading: every byte and every name of a log directory comes through it.

`Disk` is the contract, and `LocalDisk` is the implementation for mounted file systems.  No module
above `segmentlog.disk` calls the system to read.  `segmentlog.disk.object_store` has the
implementation for copies at URLs; `disk_of` tells them apart.  Writing has no such door: it needs
locks, renames and syncs.

The contract is short, because little is the same everywhere:

- An open file stays the same file: a later rename, replacement or deletion changes nothing for its
reader.  Only its size may change.  A missing file raises `FileNotFoundError`; on a network file
system an open file may be gone, too (`segmentlog.disk.system_errors.is_gone`).
- A read returns how many bytes it got; fewer than requested means the end of the file then.
- A listing holds all names that were there throughout, and perhaps names that came or went.
- `FileStatus.inode` distinguishes two files of the same name.
"""

import mmap
import os
import stat
from collections.abc import Iterable
from enum import Enum, auto
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from segmentlog.disk.closing import Closing
from segmentlog.errors import StorageError

__all__ = [
    "Disk", "Entry", "FileStatus", "FileType", "LocalDisk", "LocalFile", "Measured",
    "ReadableFile", "disk_of", "exists", "is_directory", "is_file", "list_entries", "list_names",
    "measure", "open_file", "status_of", "survey",
]  # fmt: skip


class FileType(Enum):
    """Type of the file with a name."""

    FILE = auto()
    DIRECTORY = auto()
    LINK = auto()
    OTHER = auto()  #: a pipe, a socket, a device: opening it may wait for ever


_TYPES = {
    stat.S_IFREG: FileType.FILE,
    stat.S_IFDIR: FileType.DIRECTORY,
    stat.S_IFLNK: FileType.LINK,
}


class FileStatus(NamedTuple):
    """Facts about a file that need no read.

    Attributes
    ----------
    mode : permissions and type, as ``stat`` gives them.
    size : in bytes.
    inode : another number means another file; never 0.
    modified_ns : time of the last write (epoch, nanoseconds), by the clock of the file system.
    changed_ns : the same for changes of bytes, times or owner.
    is_remembered : whether the size may be out of date: clients of network file systems remember
        sizes, and ask the server only when the file is opened.
    """

    mode: int
    size: int
    inode: int
    modified_ns: int
    changed_ns: int
    is_remembered: bool

    @property
    def is_file(self) -> bool:
        """Whether it is a plain file."""
        return stat.S_ISREG(self.mode)

    @property
    def type(self) -> FileType:
        """Type of the file; computed, because listings of a million files ask for few."""
        return _TYPES.get(stat.S_IFMT(self.mode), FileType.OTHER)


class Measured(NamedTuple):
    """Facts about the files of a listing, in its order: a column takes less than an object each.

    Attributes
    ----------
    sizes, inodes : as in `FileStatus`.
    types : types of those that are no plain files, by their number in the listing.
    is_remembered : whether the size of one of them may be out of date.
    """

    sizes: list[int]
    inodes: list[int]
    types: dict[int, FileType]
    is_remembered: bool


class Entry(NamedTuple):
    """A name in a directory, and the type of its file."""

    name: str
    type: FileType


class ReadableFile(Protocol):
    """An open file, for positioned reads; a context that closes it."""

    path: str

    #: Whether no byte of the open file ever goes: then it may be mapped.
    never_cut: bool

    def status(self) -> FileStatus:
        """Status of the open file, even if its name leads to another file by now."""

    def read(self, position: int, n_bytes: int) -> bytes:
        """At most `n_bytes` from byte `position`; fewer at the end of the file."""

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from byte `position`; returns their number, fewer at the file's end."""

    def expect(self, start: int, end: int) -> None:
        """Prepare for a read of the bytes ``[start, end)``, in their order.

        A file in a store is opened anew for it: then `status` is that of the opened file.
        """

    def check_unchanged(self) -> None:
        """Check, after such a read, that all of its bytes were of the same file.

        Raises
        ------
        StorageError
            If another file has taken its place.
        """

    def map(self) -> mmap.mmap | bytes | None:
        """All of the file as memory, or None if it cannot be mapped; outlives the context.

        Map only files that nobody writes to any more: a process that touches a page after the end
        of a file that was cut dies of SIGBUS.
        """

    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class Disk(Protocol):
    """A store of log directories.  Paths are absolute, or relative to the process."""

    def open(self, path: str, *, follow: bool = True) -> ReadableFile:
        """Open a file; a pipe is opened without waiting for its writer.

        Raises
        ------
        OSError
            If that fails; `FileNotFoundError` if the file is missing.
        """

    def status(self, path: str, *, follow: bool = False) -> FileStatus:
        """Status of the file with a name; of a link's target, if `follow`.

        Raises
        ------
        OSError
            If there is no such file.
        """

    def measure(self, directory: str, names: Iterable[str]) -> Measured:
        """Measure some files in a directory, links not followed: a call for a listing.

        Raises
        ------
        OSError
            If one of them is not there any more.
        """

    def names(self, path: str) -> list[str]:
        """Names in a directory, in no order.

        Raises
        ------
        OSError
            If the directory cannot be listed.
        """

    def entries(self, path: str) -> list[Entry]:
        """The same, with types."""


class LocalFile(Closing):
    """A file that the system has opened."""

    __slots__ = ("_descriptor", "path")

    never_cut = False

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def status(self) -> FileStatus:
        """See `ReadableFile`."""
        return _status(os.fstat(self._descriptor), is_open=True)

    def read(self, position: int, n_bytes: int) -> bytes:
        """See `ReadableFile`."""
        try:
            return os.pread(self._descriptor, n_bytes, position)
        except OSError as error:
            error.filename = self.path  # the system's error for a descriptor names no file
            raise

    def read_into(self, buffer: memoryview, position: int) -> int:
        """See `ReadableFile`."""
        try:
            return os.preadv(self._descriptor, [buffer], position)
        except OSError as error:
            error.filename = self.path
            raise

    def expect(self, start: int, end: int) -> None:
        """See `ReadableFile`; the system reads ahead by itself."""

    def check_unchanged(self) -> None:
        """See `ReadableFile`; an open file stays the same."""

    def map(self) -> mmap.mmap | None:
        """See `ReadableFile`; an empty file cannot be mapped."""
        if not os.fstat(self._descriptor).st_size:
            return None
        return mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        """See `ReadableFile`; twice is no error."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalDisk:
    """Mounted file systems, network file systems too."""

    def open(self, path: str, *, follow: bool = True) -> LocalFile:
        """See `Disk`."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        return LocalFile(path, os.open(path, flags if follow else flags | os.O_NOFOLLOW))

    def status(self, path: str, *, follow: bool = False) -> FileStatus:
        """See `Disk`."""
        return _status(os.stat(path) if follow else os.lstat(path))

    def measure(self, directory: str, names: Iterable[str]) -> Measured:
        """See `Disk`."""
        lstat = os.lstat
        found = [lstat(f"{directory}/{name}") for name in names]
        types: dict[int, FileType] = {}
        if not all(map(stat.S_ISREG, {each.st_mode for each in found})):
            kinds = [_TYPES.get(stat.S_IFMT(each.st_mode), FileType.OTHER) for each in found]
            types = {i: kind for i, kind in enumerate(kinds) if kind is not FileType.FILE}
        return Measured(
            [each.st_size for each in found],
            [each.st_ino for each in found],
            types,
            not all(map(os.major, {each.st_dev for each in found})),
        )

    def names(self, path: str) -> list[str]:
        """See `Disk`."""
        return os.listdir(path)

    def entries(self, path: str) -> list[Entry]:
        """See `Disk`; types come with the names, without a call for each."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_symlink():
                    kind = FileType.LINK
                elif entry.is_dir(follow_symlinks=False):
                    kind = FileType.DIRECTORY
                else:
                    kind = FileType.FILE if entry.is_file() else FileType.OTHER
                found.append(Entry(entry.name, kind))
        return found


def _status(found: os.stat_result, *, is_open: bool = False) -> FileStatus:
    # File systems without a disk of their own have no major number: those of networks and of
    # processes (FUSE), but overlay, btrfs and tmpfs as well.
    return FileStatus(
        found.st_mode,
        found.st_size,
        found.st_ino,
        found.st_mtime_ns,
        found.st_ctime_ns,
        not is_open and not os.major(found.st_dev),
    )


_LOCAL = LocalDisk()


def disk_of(path: str) -> Disk:
    """The disk that holds a path."""
    if "://" in path:  # local paths are absolute, without empty names
        from segmentlog.disk.object_store import remote_disk  # and clients of stores

        return remote_disk(path)
    return _LOCAL


def survey(path: str) -> None:
    """Take one listing of a log directory at a URL, which answers what comes; else nothing.

    Raises
    ------
    StorageError
        If the store cannot be asked.
    """
    if "://" in path:
        from segmentlog.disk.object_store import remote_disk

        remote_disk(path).survey(path)


def open_file(path: str, *, follow: bool = True) -> ReadableFile:
    """`Disk.open` of the disk that holds `path`."""
    return disk_of(path).open(path, follow=follow)


def status_of(path: str, *, follow: bool = False) -> FileStatus:
    """`Disk.status`, the same way."""
    return disk_of(path).status(path, follow=follow)


def measure(directory: str, names: Iterable[str]) -> Measured:
    """`Disk.measure`, the same way."""
    return disk_of(directory).measure(directory, names)


def list_names(path: str) -> list[str]:
    """`Disk.names`, the same way."""
    return disk_of(path).names(path)


def list_entries(path: str) -> list[Entry]:
    """`Disk.entries`, the same way."""
    return disk_of(path).entries(path)


def _type_behind(path: str) -> FileType | None:
    """Type of the file to which a name leads, or None if there is none."""
    try:
        return status_of(path, follow=True).type
    except StorageError:  # a store could not be asked
        raise
    except (OSError, ValueError):  # a path with a null byte leads nowhere either
        return None


def exists(path: str) -> bool:
    """Whether a name leads to an existing file."""
    return _type_behind(path) is not None


def is_file(path: str) -> bool:
    """Whether a name leads to a plain file."""
    return _type_behind(path) is FileType.FILE


def is_directory(path: str) -> bool:
    """Whether a name leads to a directory."""
    return _type_behind(path) is FileType.DIRECTORY
