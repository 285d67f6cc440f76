"""The one door for reading: every byte and every name of a log directory comes through it.

`segmentlog.store.contract` is the contract.  `segmentlog.store.local` meets it for mounted file
systems, and `segmentlog.store.remote` for copies at URLs; `disk_of` chooses.  No module
above `segmentlog.store` calls the system to read.  Writing has no such door: it needs locks,
renames and syncs.

Small files are read whole, safely for any kind of file.  An open of a pipe would wait for a
writer, and a sparse file of a terabyte would take all memory before its first byte is looked at.
On a network file system, a file that another machine replaces while it is read is gone
(``ESTALE``) until it is opened again.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable

from segmentlog.errors import SegmentLogError, StorageError
from segmentlog.store.contract import (
    Disk,
    Entry,
    FileStatus,
    FileType,
    Measured,
    ReadableFile,
    SurveyedDisk,
)
from segmentlog.store.local import LocalDisk

_LOCAL = LocalDisk()

#: Errors that say that a name leads to no file.
_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


_virtual: dict[str, Callable[[str], SurveyedDisk]] = {}


def add_disk(prefix: str, disk: Callable[[str], SurveyedDisk]) -> None:
    """Let a higher room serve the paths with a prefix: it may read logs to do so."""
    _virtual[prefix] = disk


def is_url(path: str) -> bool:
    """Whether a path names a file at a URL: local paths are absolute and have no empty names."""
    return "://" in path


def disk_of(path: str) -> Disk:
    """The disk that holds a path."""
    return _disk_at_url(path) if is_url(path) else _LOCAL


def _disk_at_url(path: str) -> SurveyedDisk:
    for prefix, disk in _virtual.items():
        if path.startswith(prefix):
            return disk(path)
    from segmentlog.store.remote.object_store import remote_disk  # and clients of stores

    return remote_disk(path)


def survey(path: str) -> None:
    """List a log directory at a URL, to answer later questions; a local path is left alone."""
    if is_url(path):
        _disk_at_url(path).survey(path)


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
