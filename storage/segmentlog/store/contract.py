"""The contract of a store of log directories: reads at a position, names, sizes and times.

The contract is short, because stores have little in common:

- An open file stays the same file: a later rename, replacement or deletion changes nothing for its
reader.  Only its size may change.  A missing file raises `FileNotFoundError`; on a network file
system an open file may be gone, too (`segmentlog.store.system_errors.is_gone`).
- A read returns how many bytes it got.  Fewer than requested means that the file ended there at
that moment.
- A listing holds all names that were there throughout, and perhaps names that came or went.
- `FileStatus.inode` distinguishes two files of the same name.
"""

import mmap
import stat
from collections.abc import Iterable
from enum import Enum, auto
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeAlias


class Closing:
    """A context that calls `close` at its end, with or without an error."""

    __slots__ = ()

    def close(self) -> None:
        """Close it; twice is not an error."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class FileType(Enum):
    """Type of the file with a name."""

    FILE = auto()
    DIRECTORY = auto()
    LINK = auto()
    OTHER = auto()  #: a pipe, a socket, a device: opening it may wait for ever


#: Types of plain files, directories and links, by their format in a mode.
TYPES = {
    stat.S_IFREG: FileType.FILE,
    stat.S_IFDIR: FileType.DIRECTORY,
    stat.S_IFLNK: FileType.LINK,
}


#: Inode, size, and times of modification and of change in nanoseconds.
Stamp: TypeAlias = tuple[int, int, int, int]


class FileStatus(NamedTuple):
    """Facts about a file that need no read."""

    mode: int  # permissions and type, as ``stat`` gives them
    size: int  # in bytes
    inode: int  # another number means another file; never 0
    #: time of the last write (epoch, nanoseconds), by the clock of the file system
    modified_ns: int
    changed_ns: int  # time of the last change of bytes, name, times, owner or permissions
    #: whether the size may be out of date: clients of network file systems remember sizes, and ask
    #: the server only when the file is opened
    is_remembered: bool
    n_allocated: int  # bytes that the file takes on its disk: fewer than its size if it has holes

    @property
    def is_file(self) -> bool:
        """Whether it is a plain file."""
        return stat.S_ISREG(self.mode)

    @property
    def type(self) -> FileType:
        """Type of the file; computed, because listings of a million files ask for few."""
        return TYPES.get(stat.S_IFMT(self.mode), FileType.OTHER)

    @property
    def stamp(self) -> Stamp:
        """Differs after most changes (`segmentlog.store.fingerprint`)."""
        return self.inode, self.size, self.modified_ns, self.changed_ns


class Measured(NamedTuple):
    """Facts about the files of a listing, in its order: columns take less than objects."""

    #: as in `FileStatus`
    sizes: list[int]
    inodes: list[int]
    #: types of those that are no plain files, by their number in the listing
    types: dict[int, FileType]
    is_remembered: bool  # whether the size of one of them may be out of date


class Entry(NamedTuple):
    """A name in a directory, and the type of its file."""

    name: str
    type: FileType


class ReadableFile(Protocol):
    """An open file, for positioned reads; a context that closes it."""

    path: str

    #: Whether no byte of the open file is ever removed: only then may it be mapped.
    never_cut: bool

    #: Whether its batches end where the next segment of the log begins: it is never a merged
    #: segment beside those that it replaces.
    never_overlaps: bool

    @property
    def descriptor(self) -> int | None:
        """Number by which kernels may read the file themselves; None if only `read_into` may."""

    def status(self) -> FileStatus:
        """Status of the open file, even if its name now leads to another file."""

    def read(self, position: int, n_bytes: int) -> bytes:
        """At most `n_bytes` from byte `position`; fewer at the end of the file."""

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from byte `position`.

        Returns the number of bytes, fewer at the end of the file.
        """

    def expect(self, start: int, end: int) -> None:
        """Prepare for a read of the bytes ``[start, end)``, in their order.

        A file in a store is opened again for it: then `status` is that of the opened file.
        """

    def spare_page_cache(self, start: int, end: int) -> None:
        """Leave the page cache as it is before a read of the bytes ``[start, end)``.

        Pages that the read brings into the cache leave it after they were read, where the system
        shows which pages these are; elsewhere nothing is done.
        """

    def check_unchanged(self) -> None:
        """Check, after such a read, that all of its bytes were of the same file.

        Raises `StorageError` if another file has taken its place.
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

        Without `follow`, neither a symbolic link is opened, nor a file of another user to which
        the owner of the directory may have made a hard link.

        Raises `OSError` if that fails; `FileNotFoundError` if the file is missing.
        """

    def status(self, path: str, *, follow: bool = False) -> FileStatus:
        """Status of the file with a name; of a link's target, if `follow`.

        Raises `OSError` if there is no such file.
        """

    def measure(self, directory: str, names: Iterable[str]) -> Measured:
        """Measure some files in a directory, all in one call; links are not followed.

        Raises `OSError` if one of them no longer exists.
        """

    def names(self, path: str) -> list[str]:
        """Names in a directory, in any order.

        Raises `OSError` if the directory cannot be listed.
        """

    def entries(self, path: str) -> list[Entry]:
        """Names in a directory, with the type of each; raises as `names` does."""

    def inodes(self, path: str) -> dict[str, int]:
        """Names in a directory, with the inode of each; raises as `names` does.

        It shows which of ten thousand names have come, gone or been replaced, in half of the time
        that `entries` takes.  At a URL the inodes are 0.
        """


class SurveyedDisk(Disk, Protocol):
    """A disk whose listings cost so much that an opened directory keeps them."""

    def forget(self, path: str) -> None:
        """Forget the listings of a log directory: later questions are answered by the store."""

    def survey(self, path: str) -> None:
        """Take a new listing of a log directory, which answers later questions.

        Raises `StorageError` if the store cannot be asked.
        """
