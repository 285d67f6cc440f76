"""Writes that a crash leaves whole or absent: the files to sync, and the order.

A rename is atomic, but neither the rename nor the bytes of the file outlive a power cut by
themselves.  First the file is synced, then it is renamed, then the directory that holds its name
is synced.  An error from ``fsync`` is final: Linux has dropped the pages and does not report the
error again.  It is never retried, and reaches the caller as a `SyncFailedError`.

New files get the owner of their directory: a broker takes its whole log directory offline if it
cannot open one file.  A user who cannot give them to this owner makes no file there.

That owner may be a stranger to root, and may put links into the directory at any moment.
So files are opened, renamed and removed by their name in an open directory, no link is followed,
and only what was just made changes its owner, by its descriptor.

A lock of a network file system is lost without a word while its holder is held up.  So whoever
holds a log directory leaves a check here (`holder_checks`).  The check is made before each step
that could change what the next holder has committed: a rename, a removal, a new file, a file that
is opened to write, and each write to one that stays open.

Syncs of many partitions are made together (`SyncTogether`).  A file system that journals writes
its journal once for all syncs that wait at that moment.  600 small files of 300 directories take
2.1 s one after the other, and 0.1 s from eight threads.
"""

import contextlib
import errno
import functools
import io
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar

from segmentlog.errors import LogDirectoryError, OptionError, SyncFailedError
from segmentlog.store.readable import Closing
from segmentlog.store.system_errors import another_owner, is_planted, naming, user

_BOOT_ID = "/proc/sys/kernel/random/boot_id"

#: Steps to a later time of a file: some file systems keep coarse times, FAT the coarsest.
TIME_STEPS_NS = (1_000_000, 2_000_000_000)

#: One ``write`` takes at most 2 GiB less a page on Linux; larger data is written in pieces.
_MOST_AT_ONCE = 1 << 30

#: Errors of a system for a directory that cannot be synced, or not by this user.
_NOT_TO_BE_SYNCED = {
    errno.EINVAL,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTSUP,
    errno.EROFS,
    errno.ENOSYS,
}

#: Errors of an open for writing that follows no link, and waits for no reader of a pipe.
_NO_FILE = {errno.ELOOP, errno.ENXIO}

#: Why a name is not written to, to end a sentence.
_REFUSED = "{}, and is not written to: bytes outside the directory would change; move it away"

#: Errors for a file that cannot be given away, by this user or to this owner.
_NOT_GIVEN = {errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}


#: What refuses a change of a log directory that this process holds, once its lock is lost; by the
#: path of the directory.
holder_checks: dict[str, Callable[[], None]] = {}


def check_held(path: str) -> None:
    """Refuse to change a file of a log directory whose lock this process had, and has lost.

    Raises `LogLockedError`.  Files in a guard have their own protection: the next holder renames
    the guard.
    """
    if not holder_checks:
        return
    parent = os.path.dirname(path)
    check = holder_checks.get(parent)
    if check is None and "-" in os.path.basename(parent):  # a partition's, and no guard
        check = holder_checks.get(os.path.dirname(parent))
    if check is not None:
        check()


def write_all(descriptor: int, data: bytes | memoryview, position: int) -> None:
    """Write all of `data` at byte `position`; ``pwrite`` alone may stop short without an error."""
    view = memoryview(data)
    while len(view):
        with naming(descriptor):
            written = os.pwrite(descriptor, view[:_MOST_AT_ONCE], position)
        view, position = view[written:], position + written


def write_pieces(descriptor: int, data: bytes, size: int, positions: Iterable[int]) -> None:
    """Write each piece of `size` bytes of `data` at its own position."""
    with naming(descriptor):
        for start, position in zip(range(0, len(data), size), positions, strict=True):
            written = os.pwrite(descriptor, data[start : start + size], position)
            if written < size:
                write_all(descriptor, data[start + written : start + size], position + written)


def open_to_write(path: str) -> int:
    """A descriptor of an existing file, to change it in place.

    Raises `LogDirectoryError` if the name is that of a link, of something that is no file, or of a
    file of another owner that has more names: its bytes are in another directory, too.
    """
    check_held(path)
    with parent_of(path) as (parent, name):
        try:  # an open of a pipe would wait for its reader
            flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(name, flags, dir_fd=parent)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise LogDirectoryError(path, _REFUSED.format("is a link or no file")) from error
            raise
        found = os.stat(descriptor)
        what = "" if stat.S_ISREG(found.st_mode) else "is no file"
        if is_planted(found, os.stat(parent)):
            what = "has other names, and another owner than its directory"
    if what:
        os.close(descriptor)
        raise LogDirectoryError(path, _REFUSED.format(what))
    return descriptor


@contextlib.contextmanager
def writable(path: str) -> Iterator[int]:
    """A file open for writing, which is closed at the end of the block."""
    descriptor = open_to_write(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def cut_file(descriptor: int, size: int) -> None:
    """Set the size of a file: cut it, or add a hole at its end."""
    with naming(descriptor):
        os.ftruncate(descriptor, size)


class _Blocks(threading.local):
    """Blocks of `unsynced` that run in a thread now."""

    number = 0


_unsynced = _Blocks()


def is_synced() -> bool:
    """Whether this thread syncs: it is in no block of `unsynced`."""
    return not _unsynced.number


@contextlib.contextmanager
def unsynced() -> Iterator[None]:
    """Sync nothing in this thread until the block ends: for directories of tests."""
    # Such a directory does not outlive a power cut. Half the time of a small write is syncs.
    _unsynced.number += 1
    try:
        yield
    finally:
        _unsynced.number -= 1


def sync_file(descriptor: int, path: str) -> None:
    """Sync a file's bytes to the disk; after a `SyncFailedError` their state is unknown."""
    if not is_synced():
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise SyncFailedError(path, error.strerror or str(error)) from error


@contextlib.contextmanager
def opened_directory(path: str) -> Iterator[int]:
    """A descriptor of a directory, to sync its names."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(path: str) -> None:
    """Sync the names in a directory to the disk; see `sync_file`."""
    with opened_directory(path) as descriptor:
        sync_file(descriptor, path)


def sync_ancestors(path: str) -> None:
    """Sync the names that lead to a directory, up to the mount point of its disk."""
    # A writer that died makes directories only below the mount, on the disk of the log directory.
    # Above the mount there may be an automounter or another server, which may not answer. A
    # directory that cannot be synced at all has no disk under its names (autofs, proc, some FUSE
    # file systems), or is not ours to open, and then its names were there before us.
    path = os.path.realpath(path)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
        try:
            sync_directory(path)
        except (SyncFailedError, OSError) as error:
            cause = error.__cause__ if isinstance(error, SyncFailedError) else error
            if not isinstance(cause, OSError) or cause.errno not in _NOT_TO_BE_SYNCED:
                raise


@contextlib.contextmanager
def parent_of(path: str) -> Iterator[tuple[int, str]]:
    """A descriptor of the directory that holds a name, and the name."""
    # The owner of the log directory may put another directory under its path at any moment.
    directory, name = os.path.split(path)
    descriptor = -1
    try:
        descriptor = _open_directory(directory or os.curdir)
        yield descriptor, name
    except OSError as error:
        if error.filename in {name, directory}:  # the system knows no more
            error.filename = path
        raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _open_directory(path: str) -> int:
    # A link to it is followed if it belongs to root, to this user or to the owner of the
    # directory: nobody else may choose where this user writes.
    flags = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENOTDIR} or not os.path.islink(path):
            raise
    if not hasattr(os, "O_PATH"):  # only on Linux are log directories written to
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    link = os.open(path, flags)
    try:
        owner, target = os.stat(link).st_uid, os.readlink("", dir_fd=link)
    finally:
        os.close(link)
    descriptor = _open_directory(os.path.join(os.path.dirname(path), target))
    if owner not in {0, os.geteuid(), os.stat(descriptor).st_uid}:
        os.close(descriptor)
        reason = (
            f"is a link of {user(owner)} to a directory of another owner, and is not followed: "
            "name the directory itself, or let its owner or root make the link"
        )
        raise LogDirectoryError(path, reason)
    return descriptor


def _give(descriptor: int, parent: int, path: str) -> None:
    """Give what was just made to the owner of its directory, or raise `LogDirectoryError`.

    The group is set only if the system allows it: the owner can use the file in any case.
    """
    owner, made = os.stat(parent), os.stat(descriptor)
    if (owner.st_uid, owner.st_gid) == (made.st_uid, made.st_gid):
        return
    try:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    except OSError as error:
        if error.errno not in _NOT_GIVEN:
            raise
        if made.st_uid != owner.st_uid:
            reason = another_owner(owner.st_uid, made.st_uid)
            raise LogDirectoryError(os.path.dirname(path), reason) from error


def create_directory(path: str, *, must_be_given: bool = True) -> None:
    """Make a directory that must not exist yet, for the owner of the directory above it.

    Raises `LogDirectoryError` if it cannot be given to that owner, and must be; it is then
    removed.
    """
    check_held(path)
    with parent_of(path) as (parent, name):
        os.mkdir(name, dir_fd=parent)
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=parent)
            try:
                # Another may have put an older directory under the name meanwhile.
                if not os.listdir(descriptor):
                    _give(descriptor, parent, path)
            finally:
                os.close(descriptor)
        except LogDirectoryError:
            if must_be_given:
                os.rmdir(name, dir_fd=parent)
                raise


def make_directory(path: str) -> None:
    """Make a directory and its ancestors, where they are missing; the names are not synced."""
    # Each belongs to the owner of the directory above it, if the system allows that: files in it
    # belong to its owner, and a broker could not use those of root. Other users own what they
    # make, as in ``/tmp``.
    missing, at = [], path
    while not os.path.lexists(at):
        missing.append(at)
        at = os.path.dirname(at)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another was quicker
            create_directory(each, must_be_given=False)
    if not os.path.isdir(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def create_file(path: str, *, mode: int = 0o644) -> int:
    """Make a file for the owner of its directory, or none; returns a descriptor to write it."""
    check_held(path)
    with parent_of(path) as (parent, name):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, mode, dir_fd=parent)
        try:
            _give(descriptor, parent, path)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=parent)
            raise
    return descriptor


def write_new_file(path: str, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write a new file, and sync its bytes if `sync`; the caller syncs its name."""
    descriptor = create_file(path, mode=mode)
    try:
        write_all(descriptor, data, 0)
        if sync:
            sync_file(descriptor, path)
    finally:
        os.close(descriptor)


def rename(path: str, to: str) -> None:
    """Rename a file or a directory, over what has the new name; the caller syncs the names."""
    check_held(path)
    with parent_of(path) as (before, name), parent_of(to) as (after, new):
        try:
            os.rename(name, new, src_dir_fd=before, dst_dir_fd=after)
        except OSError as error:
            error.filename, error.filename2 = path, to
            raise


def rename_directory(path: str, to: str) -> None:
    """Rename a small directory of files; the caller syncs the names above it.

    An overlay cannot rename a directory of a lower layer, such as one of a container's image
    (``EXDEV``).  Then its files move one by one, and it goes once it is empty.  A crash leaves
    files under both names, and the next attempt moves the rest.
    """
    try:
        rename(path, to)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        return
    with contextlib.suppress(FileExistsError):  # of an attempt that was cut off
        create_directory(to)
    for name in os.listdir(path):
        rename(os.path.join(path, name), os.path.join(to, name))
    sync_directory(to)
    remove_directory(path)


def remove_file(path: str, *, missing_ok: bool = False) -> None:
    """Remove a name of a file, or a link."""
    check_held(path)
    try:
        with parent_of(path) as (parent, name):
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        if not missing_ok:
            raise


def remove_directory(path: str) -> None:
    """Remove an empty directory."""
    with parent_of(path) as (parent, name):
        os.rmdir(name, dir_fd=parent)


def replace_file(path: str, data: bytes, *, sync_name: bool = True) -> None:
    """Replace a file, as Kafka does with its checkpoints; its permissions stay.

    An open of `path` at any moment, also after a crash, finds the old bytes or the new bytes.
    Without `sync_name`, the caller syncs the directory, once for several files.
    """
    temporary = f"{path}.tmp"
    remove_file(temporary, missing_ok=True)  # left by a crash
    mode = 0o644
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(path, follow_symlinks=False).st_mode
        mode = found & 0o777 if stat.S_ISREG(found) else mode
    try:
        write_new_file(temporary, data, mode=mode)
        rename(temporary, path)
    except Exception:  # a full disk needs the space
        with contextlib.suppress(OSError):
            remove_file(temporary)
        raise
    if sync_name:
        sync_directory(os.path.dirname(path))


class _NamedFile(io.FileIO):
    """A file whose name is in the error of a write: a full disk is that of one of several."""

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - as its base
        with naming(self.fileno()):
            return super().write(data)


class OutputFile(Closing):
    """Writes a file under a temporary name in the same directory.

    `publish` gives the file its name.  A block that ends without it leaves no new file, and an
    earlier file of the name as it was.

    `option`: the argument that names the file, for messages.  `path`: of the file.  An earlier
    file of this name is replaced, and its permissions stay; a link is followed.  A pipe or a
    device takes the bytes as they come.
    """

    def __init__(self, option: str, path: str | os.PathLike[str]) -> None:
        given = os.fsdecode(path)
        self._path, self._temporary = os.path.realpath(given), ""
        self._directory, name = os.path.split(self._path)
        if os.path.isdir(self._path):
            raise OptionError(option, given, "is a directory; give the path of a file")
        if os.path.exists(given) and not os.path.isfile(given):
            self.file: BinaryIO = io.BufferedWriter(_NamedFile(given, "wb"))
            return
        if not os.path.isdir(self._directory):
            raise OptionError(option, given, "give a file in a directory that exists")
        # Made as any new file: the system applies the umask, which a library cannot ask for
        # without changing it for all threads.
        temporary = os.path.join(self._directory, f".{name}.{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor, self._temporary = os.open(temporary, flags, 0o666), temporary
        self.file = io.BufferedWriter(_NamedFile(descriptor, "wb"))
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(descriptor, os.stat(given).st_mode & 0o777)

    def finish(self) -> None:
        """Sync all bytes to the disk: a full disk is an error now, and not in `publish`."""
        self.file.flush()
        if self._temporary:
            sync_file(self.file.fileno(), self._temporary)

    def publish(self) -> None:
        """Give the finished file its name, durably."""
        if self._temporary:
            os.replace(self._temporary, self._path)
            sync_directory(self._directory)

    def close(self) -> None:
        """Forget the file, unless it has been published."""
        with contextlib.suppress(OSError):  # its last bytes, on a full disk
            self.file.close()
        if self._temporary:
            with contextlib.suppress(OSError):  # the error of the block says more
                os.unlink(self._temporary)


@functools.cache
def boot_id() -> str:
    """Id of this boot of the machine, or ``""`` where the system does not give one."""
    # Bytes that were not synced survive the crash of a process, but not a reboot. Containers of a
    # machine share the id, as they share its page cache.
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


_T = TypeVar("_T")

_THREADS = 16
#: Descriptors that wait: a process may have only 256 descriptors, and other code needs some, too.
MOST_OPEN = 64
#: With fewer files, threads take longer to begin than they save.
_LEAST_FOR_THREADS = 8


class SyncTogether:
    """Takes written files, and directories with new names."""

    def __init__(self) -> None:
        # Files stay open until they are synced: an error of writing back is reported only to
        # descriptors that were open then.
        self._files: list[tuple[int, str]] = []
        self._directories: dict[str, None] = {}

    def add_file(self, descriptor: int, path: str) -> None:
        """Sync a file and close its descriptor, now or later; may raise for an earlier one."""
        self._files.append((descriptor, path))
        if len(self._files) >= MOST_OPEN:
            self._sync_files()

    def add_directory(self, path: str) -> None:
        """Sync the names in a directory in the end."""
        self._directories[path] = None

    def finish(self) -> None:
        """Sync everything, files before names."""
        self._sync_files()
        directories, self._directories = [*self._directories], {}
        do_together(sync_directory, directories)

    def abandon(self) -> None:
        """Close the open files as they are."""
        files, self._files = self._files, []
        for descriptor, _ in files:
            os.close(descriptor)

    def _sync_files(self) -> None:
        files = list(self._files)
        try:
            do_together(lambda each: sync_file(*each), files)
        finally:
            self.abandon()


def do_together(act: Callable[[_T], object], items: Iterable[_T]) -> None:
    """Call `act`, which syncs, with each item; the first error ends it, and is raised."""
    several = list(items)
    if len(several) < _LEAST_FOR_THREADS or not is_synced():
        for item in several:
            act(item)
        return
    with ThreadPoolExecutor(_THREADS, "segmentlog-sync") as pool:
        for _ in pool.map(act, several):
            pass
