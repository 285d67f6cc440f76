"""Errors of the system, at the engine's outermost doors: with the file, and a remedy.

Within the engine they stay unchanged: a file that is gone is looked up again, and a file that
exists already is taken.
"""

import contextlib
import errno
import os
from collections.abc import Iterator

from segmentlog.errors import SegmentLogError, StorageError
from segmentlog.store.owners import user

#: Errors of a write if the file system, or a quota, has no room.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = {errno.EACCES, errno.EPERM}


@contextlib.contextmanager
def storage_errors(path: str = "") -> Iterator[None]:
    """Raise a `StorageError` for an error of the system; a context, or a decorator of functions.

    If doors are nested, the inner one raises it.  The error of a broken pipe stays unchanged: a
    pipe is no storage.

    `path`: to name if the system names no file.
    """
    try:
        yield
    except (SegmentLogError, BrokenPipeError):
        raise
    except OSError as error:
        raise storage_error(error, path) from error


def storage_error(error: OSError, path: str = "") -> StorageError:
    """The error to raise instead of the system's; `path` is used if that names no file."""
    said = error.strerror or str(error) or type(error).__name__
    if error.errno in _FORBIDDEN:  # here: the reader of the message may be another user
        said += f" to {user(os.geteuid())}"
    name = path if error.filename is None else error.filename
    # For a descriptor, the system names its number.
    text = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else str(name)
    return StorageError(error.errno or 0, said, text)


def is_gone(error: OSError) -> bool:
    """Whether a file is gone; an open file is gone only if a server has removed it."""
    return error.errno in {errno.ENOENT, errno.ESTALE}


@contextlib.contextmanager
def naming(descriptor: int) -> Iterator[None]:
    """Add the file to an error: the system names no file for a descriptor."""
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            error.filename = os.readlink(f"/proc/self/fd/{descriptor}")
        raise
