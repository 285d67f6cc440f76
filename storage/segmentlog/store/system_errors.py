"""Errors of the system, at the outermost doors: with the file, a remedy, and owners in words.

Within the engine they stay unchanged: a file that is gone is looked up again, and a file that
exists already is taken.

A broker opens its files as one user.  A member of its group may make files of another owner beside
them.  The broker can neither append to such a file nor lock it, and takes its whole log directory
offline.  So a message names the user that may write, and the user that may not.

`Failures` is the rule of work over many things: one that fails ends no other, each is named, and
all count.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from segmentlog.errors import (
    CommitInDoubtError,
    LogLockedError,
    OnFailure,
    OptionError,
    SegmentLogError,
    StorageError,
    SyncFailedError,
)

MAY_WRITE = os.R_OK | os.W_OK  #: a log is read before it is appended to


def user(number: int) -> str:
    """A user, by number and name."""
    import pwd

    try:
        return f"user {number} ({pwd.getpwuid(number).pw_name})"
    except KeyError:
        return f"user {number}"


def another_owner(owner: int, writer: int) -> str:
    """The reason why `writer` must not make files in a directory of `owner`, to end a sentence."""
    return (
        f"belongs to {user(owner)}, who can neither lock nor append to files that {user(writer)} "
        "creates there: write as the owner, or give the directory to the writer: chown -R "
        f"{writer}"
    )


def is_own(path: str) -> bool:
    """Whether a file belongs to the effective user."""
    return os.stat(path).st_uid == os.geteuid()


def is_planted(file: os.stat_result, directory: os.stat_result) -> bool:
    """Whether the owner of a directory may have given a file of another user a name in it."""
    # The system may allow such hard links. A backup has hard links, too, but no other owners.
    is_trusted = directory.st_uid in {0, os.geteuid(), file.st_uid}
    return file.st_nlink > 1 and not is_trusted and not stat.S_ISDIR(file.st_mode)


def owner_of(directory: str) -> os.stat_result:
    """The status of a directory, which has its owner and group."""
    return os.stat(directory)


def why_not_opened(path: str, mode: int, owner: os.stat_result) -> str | None:
    """Why the owner of a directory may not open a file of it; None if they may, or are root."""
    found = os.stat(path)
    group = found.st_gid == owner.st_gid
    shift = 6 if found.st_uid == owner.st_uid else 3 if group else 0
    if not owner.st_uid or found.st_mode >> shift & mode == mode:
        return None
    belongs = f"it belongs to {user(found.st_uid)}, {stat.filemode(found.st_mode)}"
    does = "write to" if mode & os.W_OK else "read"
    return f"{user(owner.st_uid)}, the owner of the log directory, may not {does} it: {belongs}"


def may_write(path: str, mode: int = MAY_WRITE) -> bool:
    """Whether the effective user may write; another user may have started the process."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def why_not_written(path: str) -> str:
    """The user that may not write to a path, and the user that may, to end a sentence."""
    found = os.stat(path)
    mode = stat.filemode(found.st_mode)
    return (
        f"{user(os.geteuid())} may not write to it: it belongs to {user(found.st_uid)}, {mode}; "
        "write as its owner, or give it to the owner of the log directory: chown"
    )


#: Errors of a write if the file system, or a quota, has no room.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = {errno.EACCES, errno.EPERM}


@contextlib.contextmanager
def storage_errors(path: str = "") -> Iterator[None]:
    """Raise a `StorageError` for an error of the system; a context, or a decorator."""
    # If doors are nested, the inner one raises it. The error of a broken pipe stays unchanged: a
    # pipe is no storage.
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


def in_words(error: SegmentLogError | OSError) -> str:
    """An error as messages word it, with the remedy for an error of the system."""
    return str(error if isinstance(error, SegmentLogError) else storage_error(error))


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


_OF_ALL = (LogLockedError, CommitInDoubtError, OptionError, SyncFailedError)
_ERRNOS_OF_ALL = FULL | {errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}


def is_of_one(error: SegmentLogError) -> bool:
    """Whether an error is about one thing alone, so that others need not fail as well."""
    is_of_all = isinstance(error, OSError) and error.errno in _ERRNOS_OF_ALL
    return not (is_of_all or isinstance(error, _OF_ALL))


class Failures:
    """The things of a work that failed.

    A failure that the others would meet as well ends the work at once: a wrong option, a lock, a
    full disk, a disk that could not keep what was written.

    `on_failure`: is told of each failure at once; without it, `end` raises the first one.
    `errors`: by the names of the things, in their order.
    """

    def __init__(self, on_failure: OnFailure | None = None) -> None:
        self._on_failure = on_failure
        self.errors: dict[str, SegmentLogError] = {}

    @contextmanager
    def of(self, name: object) -> Iterator[None]:
        """Do the work of one thing, and continue after it if it fails."""
        try:
            yield
        except SegmentLogError as error:
            self.add(name, error)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.add(name, storage_error(error))

    def add(self, name: object, error: SegmentLogError) -> None:
        """Note a failure; one thing fails once.  Raises it if the other things would fail, too."""
        if not is_of_one(error):
            raise error
        if str(name) not in self.errors:
            self.errors[str(name)] = error
            if self._on_failure is not None:
                self._on_failure(str(name), error)

    def end(self) -> None:
        """Raise the first failure, with a note about each other one, if nobody was told of it."""
        if self._on_failure is not None or not self.errors:
            return
        (_, first), *others = self.errors.items()
        for name, error in others:
            first.add_note(f"{name} failed, too: {error}")
        raise first
