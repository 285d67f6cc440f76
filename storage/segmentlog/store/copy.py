"""Copy bytes between files without reading them: the system may share their blocks.

Holes stay holes: a broker preallocates the indexes of its active segment.
"""

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator

from segmentlog.errors import StorageError
from segmentlog.store.durable import check_held, cut_file, write_all
from segmentlog.store.readable import LocalDisk, open_file
from segmentlog.store.system_errors import naming

_PIECE_BYTES = 16 << 20
_READ_BYTES = 1 << 20

#: Errors of a system that cannot copy between these two files.
_NOT_COPIED = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}

_SHORTER = "the file is shorter than it was listed"
_OTHER = "another file has taken its place since it was listed"


def copy_range(
    source: int, target: int, path: str, start: int, end: int, on_bytes: Callable[[int], object]
) -> None:
    """Copy the bytes from `start` to `end` to the same place of a file, which then ends there.

    Holes stay holes, and `on_bytes` is not called for them.  `path`: of the target.  Raises
    `OSError` if the source is shorter, or a disk fails or is full; `LogLockedError` if the lock of
    the log directory is lost: the next holder may have copied more.
    """
    check_held(path)
    cut_file(target, start)
    for begin, after in _data(source, start, end):
        at = begin
        while at < after:
            check_held(path)
            n_copied = _copy(source, target, at, min(after - at, _PIECE_BYTES))
            at += n_copied
            on_bytes(n_copied)
    if size_of(source) < end:  # its missing bytes look like a hole
        with naming(source):
            raise OSError(errno.EIO, _SHORTER)
    check_held(path)
    cut_file(target, end)


def _data(source: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The ranges between `start` and `end` that are no holes."""
    at = start
    while at < end:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # the rest is a hole
                return
            yield at, end  # the file system knows no holes
            return
        if at >= end:
            return
        after = min(os.lseek(source, at, os.SEEK_HOLE), end)
        yield at, after
        at = after


def _copy(source: int, target: int, at: int, size: int) -> int:
    try:
        n_copied = os.copy_file_range(source, target, size, at, at)
    except OSError as error:
        if error.errno not in _NOT_COPIED:
            with naming(target):
                raise
    else:
        if n_copied:
            return n_copied
    # Some file systems copy nothing, without an error.
    with naming(source):
        piece = os.pread(source, min(size, _READ_BYTES), at)
        if not piece:
            raise OSError(errno.EIO, _SHORTER)
    write_all(target, piece, at)
    return len(piece)


def digest_of(descriptor: int, end: int, start: int = 0) -> bytes:
    """SHA-256 of the first `end` bytes of a file, or of those from `start` on."""
    return digest_up_to(descriptor, end, start).digest()


def digest_up_to(
    descriptor: int, end: int, start: int = 0, digest: "hashlib._Hash | None" = None
) -> "hashlib._Hash":
    """A digest continued with the bytes of a file from `start` to `end`."""
    digest, at = digest or hashlib.sha256(), start
    with naming(descriptor):
        while at < end and (piece := os.pread(descriptor, min(end - at, _READ_BYTES), at)):
            digest.update(piece)
            at += len(piece)
    return digest


@contextlib.contextmanager
def opened_source(path: str, inode: int = 0) -> Iterator[int]:
    """A descriptor that shows a copied file until the block ends; ``ESTALE`` if it is another."""
    if "://" in path:
        with open_file(path) as remote, tempfile.TemporaryFile() as here:
            size, position = remote.status().size, 0
            remote.expect(0, size)
            if inode not in (0, remote.status().inode):
                raise OSError(errno.ESTALE, _OTHER, path)
            while position < size:
                piece = remote.read(position, min(size - position, _READ_BYTES))
                if not piece:
                    raise StorageError(errno.EIO, _SHORTER, path)
                write_all(here.fileno(), piece, position)
                position += len(piece)
            yield here.fileno()
        return
    with LocalDisk().open(path, follow=False) as file:
        if inode not in (0, inode_of(file.number)):
            raise OSError(errno.ESTALE, _OTHER, path)
        yield file.number


def has_other_names(descriptor: int) -> bool:
    """Whether an open file has several names: hard links, which change together."""
    return os.fstat(descriptor).st_nlink > 1


def size_of(descriptor: int) -> int:
    """Bytes of a file."""
    return os.fstat(descriptor).st_size


def inode_of(descriptor: int) -> int:
    """The number that the file has in its file system."""
    return os.fstat(descriptor).st_ino


def digest_of_file(path: str, end: int) -> bytes:
    """SHA-256 of the first `end` bytes of the file that has a name now."""
    with opened_source(path) as descriptor:
        return digest_of(descriptor, end)
