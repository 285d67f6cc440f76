"""Writes that are there after a crash, or not at all: what has to be synced, and in which order.

A rename is atomic, but neither it nor the bytes of the file outlive a power cut by themselves:
first the file is synced, then renamed, then the directory that holds its name.  An error from
``fsync`` is final (Linux has dropped the pages and will not say so twice), so it is never retried:
it reaches the caller as a `SyncFailedError`.

What is made belongs to whom its directory belongs to: a broker that runs under a user of its own
takes its whole log directory for lost over one file that it may not open.  A user who cannot have
it so makes nothing there.
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator

from segmentlog.errors import LogDirectoryError, SyncFailedError
from segmentlog.files.owners import another_owner
from segmentlog.files.storage import naming

__all__ = [
    "adopt",
    "create_file",
    "cut_file",
    "open_to_write",
    "replace_file",
    "sync_ancestors",
    "sync_directory",
    "sync_file",
    "writable",
    "write_all",
    "write_new_file",
    "write_pieces",
]

#: What one ``write`` takes at the most on Linux (2 GiB less a page); more comes in pieces.
_MOST_AT_ONCE = 1 << 30

#: How a system says that a directory is none that can be synced, or not by this user.
_NOT_TO_BE_SYNCED = {
    errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENOTSUP, errno.EROFS, errno.ENOSYS,
}  # fmt: skip

#: How it says that a file is not given away: not by this user, or not to one that it knows.
_NOT_GIVEN = {errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}


def write_all(descriptor: int, data: bytes | memoryview, position: int) -> None:
    """Write all of `data` at byte `position`; ``pwrite`` alone may stop short without an error."""
    view = memoryview(data)
    while len(view):
        with naming(descriptor):
            written = os.pwrite(descriptor, view[:_MOST_AT_ONCE], position)
        view, position = view[written:], position + written


def write_pieces(descriptor: int, data: bytes, size: int, positions: Iterable[int]) -> None:
    """Write each `size` bytes of `data` at a position of their own."""
    with naming(descriptor):
        for start, position in zip(range(0, len(data), size), positions, strict=True):
            written = os.pwrite(descriptor, data[start : start + size], position)
            if written < size:
                write_all(descriptor, data[start + written : start + size], position + written)


def open_to_write(path: str) -> int:
    """A descriptor of a file that is there, to change it in place."""
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def writable(path: str) -> Iterator[int]:
    """The same, closed behind the block."""
    descriptor = open_to_write(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def cut_file(descriptor: int, size: int) -> None:
    """Cut a file to its first `size` bytes."""
    with naming(descriptor):
        os.ftruncate(descriptor, size)


def sync_file(descriptor: int, path: str) -> None:
    """Have a file's bytes reach the disk.

    Raises
    ------
    SyncFailedError
        If the disk says that they have not; nothing is known of them then.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise SyncFailedError(path, error.strerror or str(error)) from error


def sync_directory(path: str) -> None:
    """Have the names in a directory reach the disk; see `sync_file`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(descriptor, path)
    finally:
        os.close(descriptor)


def sync_ancestors(path: str) -> None:
    """Have the names that lead to a directory reach the disk, up to where its disk is mounted.

    A writer that died makes directories only below the mount, on the disk of the log directory.
    Above the mount there may be an automounter or another server, which may not answer.

    A directory that cannot be synced at all has no disk behind its names (autofs, proc, some FUSE
    file systems), or is not ours to open, and then its names were there before us.

    Raises
    ------
    SyncFailedError
        If the disk of one says that they have not reached it.
    """
    path = os.path.realpath(path)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
        try:
            sync_directory(path)
        except (SyncFailedError, OSError) as error:
            cause = error.__cause__ if isinstance(error, SyncFailedError) else error
            if not isinstance(cause, OSError) or cause.errno not in _NOT_TO_BE_SYNCED:
                raise


def adopt(path: str) -> None:
    """Give what was just made to the owner of its directory.

    The group follows where the system lets it: the owner can use the file without.

    Raises
    ------
    LogDirectoryError
        If it stays another's: this user is not the owner, nor one who may give files away.
    """
    directory = os.path.dirname(path)
    parent, made = os.stat(directory), os.stat(path)
    if (parent.st_uid, parent.st_gid) == (made.st_uid, made.st_gid):
        return
    try:
        os.chown(path, parent.st_uid, parent.st_gid)
    except OSError as error:
        if error.errno not in _NOT_GIVEN:
            raise
        if made.st_uid != parent.st_uid:
            reason = another_owner(parent.st_uid, made.st_uid)
            raise LogDirectoryError(directory, reason) from error


def create_file(path: str, *, mode: int = 0o644) -> int:
    """Descriptor to write a file with that must not exist yet.

    Raises
    ------
    LogDirectoryError
        If the owner of its directory could not use it; then it is not there.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        adopt(path)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return descriptor


def write_new_file(path: str, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write a file that must not exist yet, and sync it; its name is for the caller to sync.

    Without `sync`, so are its bytes.
    """
    descriptor = create_file(path, mode=mode)
    try:
        write_all(descriptor, data, 0)
        if sync:
            sync_file(descriptor, path)
    finally:
        os.close(descriptor)


def replace_file(path: str, data: bytes) -> None:
    """Put a file in the place of another, as Kafka does with its checkpoints.

    ``<path>.tmp``, synced, renamed over the old one, and the directory synced: whoever opens
    `path` at any moment, also after a crash, finds the old bytes or the new ones.
    """
    temporary = f"{path}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # left by a crash
    write_new_file(temporary, data, mode=_mode_of(path))
    os.replace(temporary, path)
    sync_directory(os.path.dirname(path))


def _mode_of(path: str) -> int:
    """Permissions that the file has now, for the one that takes its place."""
    try:
        return os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        return 0o644
