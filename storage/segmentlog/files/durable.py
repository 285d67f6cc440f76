"""Writes that are there after a crash, or not at all: what has to be synced, and in which order.

A rename is atomic, but neither it nor the bytes of the file outlive a power cut by themselves:
first the file is synced, then renamed, then the directory that holds its name.  An error from
``fsync`` is final (Linux has dropped the pages and will not say so twice), so it is never retried:
it reaches the caller as the `OSError` that it is.
"""

import contextlib
import os

__all__ = ["replace_file", "sync_directory", "write_all", "write_new_file"]

#: What one ``write`` takes at the most on Linux (2 GiB less a page); more comes in pieces.
_MOST_AT_ONCE = 1 << 30


def write_all(descriptor: int, data: bytes | memoryview, position: int) -> None:
    """Write all of `data` at byte `position`; ``pwrite`` alone may stop short without an error."""
    view = memoryview(data)
    while len(view):
        written = os.pwrite(descriptor, view[:_MOST_AT_ONCE], position)
        view, position = view[written:], position + written


def sync_directory(path: str) -> None:
    """Have the names in a directory reach the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_new_file(path: str, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file that must not exist yet, and sync it; its name is for the caller to sync."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        write_all(descriptor, data, 0)
        os.fsync(descriptor)
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
