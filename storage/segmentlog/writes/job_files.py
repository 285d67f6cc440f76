"""The log directory of a job: made, checked, marked; the files of jobs, and their removal."""

import contextlib
import hashlib
import logging
import os
import secrets
from pathlib import Path
from typing import NamedTuple

from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    STAGE_SUFFIX,
    is_of_logs,
    parse_segment_file,
    segment_file_name,
)
from segmentlog.store.durable import (
    create_file,
    cut_file,
    make_directory,
    sync_ancestors,
    writable,
    write_all,
)
from segmentlog.store.other_systems import refuse_other_systems
from segmentlog.store.paths import is_pattern, refuse_object_store, why_not_there
from segmentlog.store.readable import FileStatus, exists, list_names, status_of
from segmentlog.store.system_errors import MAY_WRITE, is_own, may_write, user, why_not_written
from segmentlog.txn.state import STATE_FILE

logger = logging.getLogger(__name__)

_MARK_SUFFIX = ".job"

_RANDOM_BYTES = 8

_ORPHAN_NS = 7 * 24 * 3600 * 10**9
_NOTICE = b"no file of this job was written for a week; after another such week they are removed\n"


def new_token(stream: str | None = None) -> str:
    """The token of a new job.  Those of one stream's jobs begin alike, so that they are found.

    A stream loses the token of its job if its driver dies, and if all of its tasks fail.
    """
    return _stream_token(stream) + secrets.token_hex(_RANDOM_BYTES)


def _stream_token(stream: str | None) -> str:
    if stream is None:
        return ""
    return hashlib.blake2b(stream.encode(), digest_size=_RANDOM_BYTES).hexdigest()


def end_stream(directory: str, stream: str) -> None:
    """End the jobs of a stream that have not ended: those of its earlier batches and runs.

    Their commits find no mark any more, and fail.
    """
    of_stream, length = _stream_token(stream), len(new_token(stream))
    for token in _files_by_token(directory):
        if token.startswith(of_stream) and len(token) == length:
            JobFiles(directory, token).remove()


class JobFiles(NamedTuple):
    """The files of one job; `token` is a part of all their names."""

    directory: str
    token: str

    @property
    def mark(self) -> Path:
        """The file that stands as long as the job runs."""
        return Path(self.directory, f"segmentlog.{self.token}{_MARK_SUFFIX}")

    def make_mark(self) -> None:
        """Begin: from here on the job's staged files are not swept."""
        os.close(create_file(str(self.mark)))

    def renew(self) -> None:
        """Mark the job as alive, so that it is not swept as one whose driver died.

        Raises `FileNotFoundError` if the job has ended, or has been swept.
        """
        # If this user may not write to the mark, the staged files of its tasks show life as well.
        with contextlib.suppress(PermissionError):
            if status_of(str(self.mark)).size:
                with writable(str(self.mark)) as descriptor:
                    cut_file(descriptor, 0)  # the notice of `sweep_jobs`
            os.utime(self.mark, follow_symlinks=False)

    def remove(self) -> None:
        """End: remove the mark and the staged files.

        The job has ended in any case.  So a file that cannot be removed is only a warning: a later
        job sweeps it.
        """
        try:
            self.mark.unlink(missing_ok=True)  # first: a late task finds no job any more
            prefix = f"segmentlog.{self.token}."
            for name in list_names(self.directory):
                if name.startswith(prefix) and name.endswith(STAGE_SUFFIX):
                    Path(self.directory, name).unlink(missing_ok=True)
        except OSError as error:
            logger.warning(
                "files that job %s has staged could not be removed: %s", self.token, error
            )


def sweep_jobs(directory: str) -> None:
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
    found = _files_by_token(directory)
    # The holder has given the lock file the present time.
    before_ns = status_of(os.path.join(directory, LOCK_FILE)).modified_ns - _ORPHAN_NS
    for token, files in found.items():
        mark = JobFiles(directory, token).mark
        if mark in files:
            if max(each.modified_ns for each in files.values()) >= before_ns:
                continue
            if not files[mark].size:
                with writable(str(mark)) as descriptor:
                    write_all(descriptor, _NOTICE, 0)
                continue
        logger.warning("%s: removing files that job %s has left", directory, token)
        for path in sorted(files, key=lambda each: each != mark):  # as `JobFiles.remove` does
            path.unlink(missing_ok=True)


def _files_by_token(directory: str) -> dict[str, dict[Path, FileStatus]]:
    found: dict[str, dict[Path, FileStatus]] = {}
    for name in list_names(directory):
        if name.startswith("segmentlog.") and name.endswith((_MARK_SUFFIX, STAGE_SUFFIX)):
            path = Path(directory, name)
            with contextlib.suppress(FileNotFoundError):
                found.setdefault(name.split(".")[1], {})[path] = status_of(str(path))
    return found


def prepare_directory(directory: str, token: str) -> None:
    """Make the directory if it is missing; refuse one that this user cannot write to.

    Raises `LogDirectoryError` if the path cannot be a log directory, or this user cannot write for
    its owner.
    """
    refuse_object_store(directory)
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
    if names and not any(map(is_of_logs, names)):
        refuse_other_systems(directory)
    if not is_own(directory):
        # The user's number does not show whether files can be given to the owner: root may lack
        # this right, and some file systems give all files one owner.  So a file is made, and
        # removed again; after a crash, `sweep_jobs` removes it like a job's file.
        probe = JobFiles(directory, token)
        probe.make_mark()
        probe.mark.unlink()


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


def mark_new(directory: str) -> None:
    """Mark a new log directory as cleanly stopped, and sync its name."""
    if not any(map(is_of_logs, list_names(directory))):
        os.close(create_file(os.path.join(directory, CLEAN_SHUTDOWN_FILE)))
    # The process that made the directory may have died before its sync.
    if not exists(os.path.join(directory, STATE_FILE)):
        sync_ancestors(directory)
