"""The one door for reading: every byte and every name of a log directory comes through it.

`Disk` and `ReadableFile` are the contract.  `LocalDisk` meets it for mounted file systems, network
file systems too, and `segmentlog.store.remote` for copies at URLs; `tiered` and `bucket` have
virtual disks.  `disk_of` chooses.  No module above `segmentlog.store` calls the system to read.
Writing has no such door: it needs locks, renames and syncs.

The contract is short, because stores have little in common:

- An open file stays the same file: a later rename, replacement or deletion changes nothing for its
reader.  Only its size may change.  A missing file raises `FileNotFoundError`; on a network file
system an open file may be gone, too (`segmentlog.store.system_errors.is_gone`).
- A read returns how many bytes it got.  Fewer than requested means that the file ended there at
that moment.
- A listing holds all names that were there throughout, and perhaps names that came or went.
- `FileStatus.inode` distinguishes two files of the same name.

Small files are read whole, safely for any kind of file.  An open of a pipe would wait for a
writer, and a sparse file of a terabyte would take all memory before its first byte is looked at.
On a network file system, a file that another machine replaces while it is read is gone
(``ESTALE``) until it is opened again.
"""

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterable
from enum import Enum, auto
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeAlias

from segmentlog.errors import SegmentLogError, StorageError
from segmentlog.store.beside_broker import BorrowedPages
from segmentlog.store.system_errors import is_planted
from segmentlog.store.virtual_disks import virtual_disk


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

    @classmethod
    def made(cls, size: int, inode: int) -> "FileStatus":
        """Status of a plain file of a virtual disk, which nobody writes to."""
        mode = stat.S_IFREG | 0o444
        return cls(mode, size, inode, 0, 0, is_remembered=False, n_allocated=size)

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

    @classmethod
    def of(cls, found: Iterable[FileStatus]) -> "Measured":
        """Columns of files that no client remembers."""
        found = [*found]
        types = {i: each.type for i, each in enumerate(found) if not each.is_file}
        sizes, inodes = [each.size for each in found], [each.inode for each in found]
        return cls(sizes, inodes, types, is_remembered=False)


#: Status of a directory of a virtual disk.
MADE_DIRECTORY = FileStatus(stat.S_IFDIR | 0o555, 0, 1, 0, 0, is_remembered=False, n_allocated=0)


class Entry(NamedTuple):
    """A name in a directory, and the type of its file."""

    name: str
    type: FileType


class ReadableFile(Closing):
    """An open file, for positioned reads; a context that closes it.

    What is not overridden is that of bytes which nobody changes, such as those of an object; but
    that none is removed, a class has to promise (`never_cut`).
    """

    __slots__ = ()

    path: str

    #: Whether no byte of the open file is ever removed: only then may it be mapped.  A process
    #: that touches a page after the end of a file that was cut dies of SIGBUS.
    never_cut = False

    #: Whether its batches end where the next segment of the log begins: it is never a merged
    #: segment beside those that it replaces.
    never_overlaps = False

    @property
    def descriptor(self) -> int | None:
        """Number by which kernels may read the file themselves; None if only `read_into` may."""
        return None

    def status(self) -> FileStatus:
        """Status of the open file, even if its name now leads to another file."""
        raise NotImplementedError

    def read(self, position: int, n_bytes: int) -> bytes:
        """At most `n_bytes` from byte `position`; fewer at the end of the file."""
        raise NotImplementedError

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from byte `position`.

        Returns the number of bytes, fewer at the end of the file.
        """
        found = self.read(position, len(buffer))
        buffer[: len(found)] = found
        return len(found)

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

        Map only files that nobody writes to any more, or that are `never_cut`.
        """
        return None

    def whole(self) -> bytes | None:
        """All bytes of a small segment whose batches may be read with those of the next one.

        Their headers lead to its last byte, and to no offset that the next segment may have.  None
        if that is not so, or is not known.
        """
        return None

    def close(self) -> None:
        """Close the file; twice is not an error."""


class MadeFile(ReadableFile):
    """A small file of a virtual disk that no disk has."""

    never_cut = True  # it is memory

    def __init__(self, path: str, data: bytes, inode: int = 1) -> None:
        self.path = path
        self._data, self._inode = data, inode

    def status(self) -> FileStatus:
        return FileStatus.made(len(self._data), self._inode)

    def read(self, position: int, n_bytes: int) -> bytes:
        return self._data[position : position + n_bytes]

    def map(self) -> bytes | None:
        return self._data or None


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

    def log_identity(self, path: str) -> str:
        """A text that is another one if another log was found where this process knew one."""
        return ""

    def newest_mark(self, path: str) -> str:
        """A text that names the newest commit that the disk knows of the log; or empty."""
        return ""

    def has_mark(self, path: str, mark: str) -> bool:
        """Whether the log has the commit of an earlier `newest_mark`."""
        return True

    def noted_timestamp(self, path: str, inode: int) -> int | None:
        """The largest timestamp of a segment, if the disk knows it without reading the file.

        `inode`: of the segment that is meant.
        """
        return None

    def names(self, path: str) -> list[str]:
        return [each.name for each in self.entries(path)]

    def inodes(self, path: str) -> dict[str, int]:
        return dict.fromkeys(self.names(path), 0)


def gone(path: str, number: int = errno.ENOENT) -> OSError:
    """The error for a file that a disk does not have."""
    return OSError(number, os.strerror(number), path)


_BLOCK_BYTES = 512  #: of ``st_blocks``, on every system


def device_of(path: str) -> int:
    """Number of the file system that holds a path: directories on one share its free space."""
    return os.stat(path).st_dev


class LocalFile(ReadableFile):
    """A file that the system has opened."""

    __slots__ = ("_borrowed", "_descriptor", "path")

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

    def spare_page_cache(self, start: int, end: int) -> None:
        """See `ReadableFile`; for one range of the file."""
        self._borrowed = BorrowedPages(self._descriptor, self.path, start, end)

    def map(self) -> mmap.mmap | None:
        """See `ReadableFile`; an empty file cannot be mapped."""
        if not os.fstat(self._descriptor).st_size:
            return None
        return mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
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
                if entry.is_file(follow_symlinks=False):
                    kind = FileType.FILE
                elif entry.is_dir(follow_symlinks=False):
                    kind = FileType.DIRECTORY
                else:
                    kind = FileType.LINK if entry.is_symlink() else FileType.OTHER
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


_LOCAL = LocalDisk()

#: Errors that say that a name leads to no file.
_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


def is_url(path: str) -> bool:
    """Whether a path names a file at a URL: local paths are absolute and have no empty names."""
    return "://" in path


def disk_of(path: str) -> Disk:
    """The disk that holds a path."""
    return _disk_at_url(path) if is_url(path) else _LOCAL


def _disk_at_url(path: str) -> SurveyedDisk:
    if (disk := virtual_disk(path)) is not None:
        return disk
    from segmentlog.store.remote.object_store import remote_disk  # and clients of stores

    return remote_disk(path)


def survey(path: str) -> None:
    """List a log directory at a URL, to answer later questions; a local path is left alone."""
    if is_url(path):
        _disk_at_url(path).survey(path)


def log_identity(path: str) -> str:
    """`SurveyedDisk.log_identity` of a path; empty for a local one."""
    return _disk_at_url(path).log_identity(path) if is_url(path) else ""


def newest_mark(path: str) -> str:
    """`SurveyedDisk.newest_mark`; empty for a local path."""
    return _disk_at_url(path).newest_mark(path) if is_url(path) else ""


def has_mark(path: str, mark: str) -> bool:
    """`SurveyedDisk.has_mark`; true for a local path."""
    return not is_url(path) or _disk_at_url(path).has_mark(path, mark)


def noted_timestamp(path: str, inode: int) -> int | None:
    """`SurveyedDisk.noted_timestamp` of a path; None for a local one."""
    return _disk_at_url(path).noted_timestamp(path, inode) if is_url(path) else None


_plan = ""


def keep_for(plan: str, paths: Iterable[str]) -> None:
    """Forget what this process knows of directories at URLs, unless it was learnt for a plan."""
    # A process that runs one task after the other would answer the second query from the listing
    # of the first one.
    global _plan  # noqa: PLW0603 - the state of the process
    if plan != _plan:
        for each in paths:
            if is_url(each):
                _disk_at_url(each).forget(each)
        _plan = plan


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


def list_inodes(path: str) -> dict[str, int]:
    """`Disk.inodes`, the same way."""
    return disk_of(path).inodes(path)


def _type_of_target(path: str) -> FileType | None:
    """Type of the file to which a name leads, or None if there is none."""
    # Any other error is raised. An undo that took a failing disk for a missing partition left the
    # records of a crashed commit in the log.
    try:
        return status_of(path, follow=True).type
    except StorageError:  # a store could not be asked
        raise
    except ValueError:  # a path with a null byte leads nowhere
        return None
    except OSError as error:
        if error.errno not in _NOWHERE:
            raise
        return None


def exists(path: str) -> bool:
    """Whether a name leads to an existing file."""
    return _type_of_target(path) is not None


def is_file(path: str) -> bool:
    """Whether a name leads to a plain file."""
    return _type_of_target(path) is FileType.FILE


def is_directory(path: str) -> bool:
    """Whether a name leads to a directory."""
    return _type_of_target(path) is FileType.DIRECTORY


_FIRST_PIECE_BYTES = 4 << 10
_ZEROS = bytes(1 << 20)


def after_zeros(file: ReadableFile, position: int, end: int) -> int:
    """The first byte from `position` on that is not zero, or `end`."""
    # This is the only test for preallocated bytes and lost pages. A file system that knows the
    # holes of a file skips them, so that a sparse file of a terabyte takes no longer than its
    # data.
    n_bytes = _FIRST_PIECE_BYTES  # most callers are at damage, and stop in the first piece
    while position < end:
        position = min(_after_hole(file, position, end), end)
        piece = file.read(position, min(n_bytes, end - position))
        if piece != _ZEROS[: len(piece)]:
            return position + len(piece) - len(piece.lstrip(b"\0"))
        if not piece:
            return end
        position += len(piece)
        n_bytes = len(_ZEROS)
    return end


def _after_hole(file: ReadableFile, position: int, end: int) -> int:
    """The first byte from `position` on that the file system has stored, at the most `end`."""
    if file.descriptor is None:  # at a URL, or nobody has to know where the holes are
        return position
    try:
        return os.lseek(file.descriptor, position, os.SEEK_DATA)
    except OSError as error:  # without data after the position, or on a file system without holes
        return end if error.errno == errno.ENXIO else position


#: A checkpoint of a million partitions with the longest names takes as much.
LARGEST_BYTES = 1 << 28

_ATTEMPTS = 5  # a file is rarely replaced more often than this during a read


def read_whole(
    path: str, refusal: Callable[[str], SegmentLogError], *, follow: bool = False
) -> bytes:
    """The bytes of a file; the error that `refusal` makes from a reason, or `FileNotFoundError`.

    `follow`: whether the file may be a link: one that the user names, not one of a log directory.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _read(path, refusal, follow=follow)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return _read(path, refusal, follow=follow)


def _read(path: str, refusal: Callable[[str], SegmentLogError], *, follow: bool) -> bytes:
    try:
        opened = open_file(path, follow=follow)
    except StorageError:
        raise
    except OSError as error:
        if follow or error.errno != errno.ELOOP:
            raise
        raise refusal("is a link, which is not followed: put the file itself there") from error
    with opened as file:
        found = file.status()
        if found.type is not FileType.FILE:
            raise refusal(f"is not a plain file ({stat.filemode(found.mode)})")
        return bytes_of(file, refusal)


def bytes_of(file: ReadableFile, refusal: Callable[[str], SegmentLogError]) -> bytes:
    """All bytes of an open file that is read whole; see `read_whole`."""
    # A sparse file would take memory for its holes: none of these files has as many zeros in a
    # row.
    size = file.status().size
    if size > LARGEST_BYTES:
        raise refusal(f"has {size} bytes; at the most {LARGEST_BYTES} are read")
    pieces, position = [], 0
    while piece := file.read(position, min(max(size - position, 0) + 1, len(_ZEROS))):
        if piece == _ZEROS:
            zeros = f"[{position}, {position + len(piece)}) are all zeros"
            raise refusal(f"has {size} bytes, and bytes {zeros}, as in no such file")
        pieces.append(piece)
        position += len(piece)
    return b"".join(pieces)
