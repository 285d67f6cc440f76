"""Prepare a log directory for a job: make it, check permissions, mark a new one."""

import os
from pathlib import Path

from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    is_of_logs,
    parse_segment_file,
    segment_file_name,
)
from segmentlog.store.destinations import refuse_object_store
from segmentlog.store.durable import create_file, make_directory, sync_ancestors
from segmentlog.store.owners import MAY_WRITE, is_own, may_write, user, why_not_written
from segmentlog.store.paths import is_pattern, why_not_there
from segmentlog.store.readable import exists, list_names
from segmentlog.txn.state import STATE_FILE
from segmentlog.writes.job_files import JobFiles


def prepare_directory(directory: str, token: str) -> None:
    """Make the directory if it is missing; refuse one that this user cannot write to.

    Raises `LogDirectoryError` if the path cannot be a log directory, or this user cannot write for
    its owner.
    """
    refuse_object_store(directory)
    _make_directory(directory)
    if not is_own(directory):
        _check_owner(directory, token)


def _make_directory(directory: str) -> None:
    """Make the directory if it is missing; refuse a path that cannot be a log directory."""
    path = Path(directory)
    if is_pattern(directory) and not exists(directory):
        raise LogDirectoryError(directory, why_not_there(directory))
    try:
        make_directory(directory)
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
    """Why a path is not a directory and cannot be made one; empty if its disk is the cause."""
    match error:
        case FileExistsError() | NotADirectoryError():
            path = Path(directory)
            found = next(each for each in (path, *path.parents) if exists(str(each)))
            where = "is a file, not a directory" if found == path else f"{found} is a file"
            return f"{where}: name a directory, or a path where a directory can be created"
        case PermissionError():
            said = f"{error.strerror} to {user(os.geteuid())}"
            return (
                f"cannot be created or listed: {said}; name a directory to which this user may "
                "write"
            )
        case FileNotFoundError():  # in /proc, and if a network's server has removed it
            return "cannot be created by any user: its file system allows no new directories there"
    return ""


def _check_owner(directory: str, token: str) -> None:
    """Refuse early if the owner of the directory could not use files that are made here.

    The user's number does not show whether files can be given away: root may lack this right, and
    some file systems give all files one owner.  So a file is made, and removed again.
    """
    probe = JobFiles(directory, token)
    probe.make_mark()
    probe.mark.unlink()  # after a crash, `sweep_jobs` removes it like a job's file


def mark_new(directory: str) -> None:
    """Mark a new log directory as cleanly stopped, and sync its name."""
    if not any(map(is_of_logs, list_names(directory))):
        os.close(create_file(os.path.join(directory, CLEAN_SHUTDOWN_FILE)))
    if not exists(
        os.path.join(directory, STATE_FILE)
    ):  # the process that made it may have died before its sync
        sync_ancestors(directory)
