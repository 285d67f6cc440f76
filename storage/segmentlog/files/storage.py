"""Errors of the system, at the engine's outermost doors: with the file, and what to do about it.

Within the engine they stay what they are: a file that is gone is looked for again, and one that is
there already is taken.
"""

import contextlib
import errno
import os
from collections.abc import Iterator

from segmentlog.errors import SegmentLogError, StorageError
from segmentlog.files.owners import user

__all__ = ["is_gone", "naming", "storage_error", "storage_errors"]

_FORBIDDEN = {errno.EACCES, errno.EPERM}


@contextlib.contextmanager
def storage_errors(path: str = "") -> Iterator[None]:
    """Raise a `StorageError` for an error of the system; a context, or a decorator of functions.

    Where doors are nested, the inner one raises it.  An error of a pipe that nobody reads from any
    more stays what it is: a pipe is no storage.

    Parameters
    ----------
    path : to name where the system names none.
    """
    try:
        yield
    except (SegmentLogError, BrokenPipeError):
        raise
    except OSError as error:
        raise storage_error(error, path) from error


def storage_error(error: OSError, path: str = "") -> StorageError:
    """The error to raise in the place of the system's; `path` where that names none."""
    said = error.strerror or str(error) or type(error).__name__
    if error.errno in _FORBIDDEN:  # here: who reads the message may be another user
        said += f" to {user(os.geteuid())}"
    name = path if error.filename is None else error.filename
    return StorageError(error.errno or 0, said, _text(name))


def is_gone(error: OSError) -> bool:
    """Whether a file is not there any more; an open one is, but where a server has removed it."""
    return error.errno in {errno.ENOENT, errno.ESTALE}


@contextlib.contextmanager
def naming(descriptor: int) -> Iterator[None]:
    """Have an error say which file: the system does not tell whoever holds a descriptor."""
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            error.filename = os.readlink(f"/proc/self/fd/{descriptor}")
        raise


def _text(name: object) -> str:
    """A path as text; of a descriptor, the number is what the system names."""
    return os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else str(name)
