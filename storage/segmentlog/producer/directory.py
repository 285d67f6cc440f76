"""A log directory as a job begins: there, this user's, and rid of what jobs have left."""

import contextlib
import logging
import os
from pathlib import Path

from segmentlog.commit.stage import STAGE_SUFFIX
from segmentlog.errors import LogDirectoryError
from segmentlog.files.durable import create_file, sync_ancestors
from segmentlog.files.names import (
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    is_of_logs,
    parse_segment_file,
    segment_file_name,
)
from segmentlog.files.owners import MAY_WRITE, is_own, may_write, user, why_not_written
from segmentlog.files.paths import is_pattern, why_not_there
from segmentlog.files.readable import FileStatus, exists, list_names, status_of
from segmentlog.journal.state import STATE_FILE

__all__ = ["JOB_SUFFIX", "check_owner", "make_directory", "mark_new", "sweep"]

logger = logging.getLogger(__name__)

JOB_SUFFIX = ".job"  #: of the file that says that a job has begun

_ORPHAN_NS = 7 * 24 * 3600 * 10**9
_NOTICE = b"nothing was written for a week: removed a week later, unless the job goes on\n"


def make_directory(directory: str) -> None:
    """Make it if it is not there; refuse what cannot be one."""
    path = Path(directory)
    if is_pattern(directory) and not exists(directory):
        raise LogDirectoryError(directory, why_not_there(directory))
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = set(list_names(directory))
    except OSError as error:
        reason = _why_not_made(directory, error)
        if not reason:
            raise
        raise LogDirectoryError(directory, reason) from error
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise LogDirectoryError(directory, "its file system is mounted read-only")
    if not may_write(directory, MAY_WRITE | os.X_OK):
        raise LogDirectoryError(directory, why_not_written(directory))
    segments = filter(None, map(parse_segment_file, names))
    if any(segment_file_name(each.offset, each.kind) in names for each in segments):
        reason = f"is the directory of a partition; name the log directory, {path.parent}"
        raise LogDirectoryError(directory, reason)


def _why_not_made(directory: str, error: OSError) -> str:
    """Why a directory is none and cannot be made; nothing where its disk is to blame."""
    match error:
        case FileExistsError() | NotADirectoryError():
            path = Path(directory)
            found = next(each for each in (path, *path.parents) if exists(str(each)))
            where = "is a file, and no directory" if found == path else f"{found} is a file"
            return f"{where}: name a directory, or one that can be made"
        case PermissionError():
            said = f"{error.strerror} to {user(os.geteuid())}"
            return (
                f"cannot be made or listed: {said}; name a directory that this user may write to"
            )
        case FileNotFoundError():  # of /proc, and where a network's server has removed it
            return "cannot be made, not by anybody: its file system takes no directories there"
    return ""


def check_owner(directory: str, token: str) -> None:
    """Refuse, before anything is made, to make what the owner of the directory could not use.

    Whether files can be given away is not told by the user's number: a root may lack that right,
    and some file systems give everything one owner.  So one is made, and is gone again.
    """
    if not is_own(directory):
        probe = Path(directory, f"segmentlog.{token}{JOB_SUFFIX}")
        os.close(create_file(str(probe)))
        probe.unlink()  # after a crash, `sweep` takes it for a job's


def mark_new(directory: str) -> None:
    """A new log directory is a clean one, and what it is called is on the disk."""
    if not any(map(is_of_logs, list_names(directory))):
        os.close(create_file(os.path.join(directory, CLEAN_SHUTDOWN_FILE)))
    if not exists(
        os.path.join(directory, STATE_FILE)
    ):  # whoever made it may have died before it synced
        sync_ancestors(directory)


def sweep(directory: str) -> None:
    """Remove what jobs have left; the caller holds the lock.

    A job that has ended removes its mark and then what is staged.  A task that is killed after
    that, by an executor that goes or by Spark's ``killTimeout``, leaves what it has made since.
    Marks are made under the lock and before tasks begin, so files without one are of no job.

    Where a driver died, its mark stands.  A job that has written nothing for a week gets a notice
    into its mark, which makes that young again; it goes when a week later there has still been
    nothing of it.  One look does not do: where a clock jumps ahead, all that runs looks dead.
    Ages are those between two times that the file system has given, which on a network is not
    this machine's clock.
    """
    found: dict[str, dict[Path, FileStatus]] = {}
    for name in list_names(directory):
        if name.startswith("segmentlog.") and name.endswith((JOB_SUFFIX, STAGE_SUFFIX)):
            path = Path(directory, name)
            with contextlib.suppress(FileNotFoundError):
                found.setdefault(name.split(".")[1], {})[path] = status_of(str(path))
    lock = os.path.join(directory, LOCK_FILE)
    os.utime(lock)
    before_ns = status_of(lock).modified_ns - _ORPHAN_NS
    for token, files in found.items():
        mark = Path(directory, f"segmentlog.{token}{JOB_SUFFIX}")
        if mark in files:
            if max(each.modified_ns for each in files.values()) >= before_ns:
                continue
            if not files[mark].size:
                mark.write_bytes(_NOTICE)
                continue
        logger.warning("%s: removing what job %s has left", directory, token)
        for path in sorted(files, key=lambda each: each != mark):  # as `WriteJob.abort` does
            path.unlink(missing_ok=True)
