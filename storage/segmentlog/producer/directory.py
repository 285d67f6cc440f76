"""Prepare a log directory for a job: make it, check its owner, remove leftovers of jobs."""

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

JOB_SUFFIX = ".job"  #: of the mark, a file that stands from the start of a job to its end

_ORPHAN_NS = 7 * 24 * 3600 * 10**9
_NOTICE = b"nothing was written for a week: removed a week later, unless the job goes on\n"


def make_directory(directory: str) -> None:
    """Make the directory if it is missing; refuse a path that cannot be a log directory."""
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
    """Why a path is no directory and cannot be made one; empty if its disk is the cause."""
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
        case FileNotFoundError():  # in /proc, and if a network's server has removed it
            return "cannot be made, not by anybody: its file system takes no directories there"
    return ""


def check_owner(directory: str, token: str) -> None:
    """Refuse early to make files that the owner of the directory could not use.

    The user's number does not tell whether files can be given away: a root user may lack this
    right, and some file systems give all files one owner.  So a file is made and removed again.
    """
    if not is_own(directory):
        probe = Path(directory, f"segmentlog.{token}{JOB_SUFFIX}")
        os.close(create_file(str(probe)))
        probe.unlink()  # after a crash, `sweep` removes it like a job's file


def mark_new(directory: str) -> None:
    """Mark a new log directory as cleanly stopped, and sync its name."""
    if not any(map(is_of_logs, list_names(directory))):
        os.close(create_file(os.path.join(directory, CLEAN_SHUTDOWN_FILE)))
    if not exists(
        os.path.join(directory, STATE_FILE)
    ):  # the process that made it may have died before its sync
        sync_ancestors(directory)


def sweep(directory: str) -> None:
    """Remove the leftovers of jobs; the caller holds the lock.

    A job that has ended removes its mark and then its staged files.  A task that is killed later,
    with its executor or by Spark's ``killTimeout``, leaves the files that it has made since.
    Marks are made under the lock and before tasks begin, so files without a mark belong to no job.

    The mark of a job stays if its driver died.  A job that has written nothing for a week gets a
    notice in its mark, which makes the mark young again.  If the job has still written nothing a
    week later, its files are removed.  One look is not enough: if a clock jumps ahead, every
    running job looks dead.  An age is the difference of two times of the file system, which on a
    network is not this machine's clock.
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
