"""``segmentlog recover``: recover a log directory after a crash, with a line for each step."""

import os
from collections.abc import Callable
from typing import NamedTuple

from segmentlog.commit.guard import list_guards
from segmentlog.disk.lock import DirectoryLock
from segmentlog.disk.paths import local_path, why_not_there
from segmentlog.disk.readable import exists, list_names
from segmentlog.disk.system_errors import storage_errors
from segmentlog.errors import LogDirectoryError
from segmentlog.layout.partitions import list_partitions
from segmentlog.names import LOCK_FILE, META_PROPERTIES_FILE, parse_partition_directory
from segmentlog.recovery.recover_directory import DirectoryRecovery
from segmentlog.tools.progress import progress
from segmentlog.tools.text import counted, escape

__all__ = ["Recovered", "recover_directory"]

_NOTHING = """\
nothing to do: the directory was cleanly stopped, and no commit is unfinished
the ends of the logs were looked at, and not all of their bytes: segmentlog verify reads those
"""


class Recovered(NamedTuple):
    """The result of a recovery, or of its dry run.

    Attributes
    ----------
    is_whole : whether every log could be recovered.
    has_cut_batches : whether a log has lost whole batches after a bad one, or would lose them.
    """

    is_whole: bool
    has_cut_batches: bool


@storage_errors()
def recover_directory(
    path: str, write: Callable[[str], object], interval_bytes: int, *, dry_run: bool = False
) -> Recovered:
    """Recover a log directory and write each step.

    Parameters
    ----------
    path : the log directory.
    write : takes each line.
    interval_bytes : bytes of log from index entry to index entry.
    dry_run : whether nothing is changed, and the lines only name what would be done.

    Raises
    ------
    LogDirectoryError
        If `path` is not a log directory.
    LogLockedError
        If a broker or a writer holds the directory.
    """
    directory = local_path(path)
    _check(directory)
    if dry_run and not exists(os.path.join(directory, LOCK_FILE)):
        return _run(directory, write, interval_bytes, dry_run=True)  # no other process holds it
    with DirectoryLock(directory):
        return _run(directory, write, interval_bytes, dry_run=dry_run)


def _run(
    directory: str, write: Callable[[str], object], interval_bytes: int, *, dry_run: bool
) -> Recovered:
    n_logs = len(list_partitions(directory))
    is_idle = True
    with progress("recover", n_logs, is_bytes=False, write=write) as bar:

        def begin(name: str) -> None:
            bar.name(name)
            bar.advance(1)

        recovery = DirectoryRecovery(directory, interval_bytes, dry_run=dry_run, progress=begin)
        for sentence in recovery.run():
            bar.write(escape(sentence))
            is_idle = False
    if is_idle:
        write(_NOTHING)
    if recovery.cut:
        kept = "would keep" if dry_run else "keep"
        write(
            f"{counted(logs=len(recovery.cut))} with whole batches after a damaged one, which is "
            f"not a torn tail: {escape(', '.join(recovery.cut))}\nanother replica or a backup may "
            f"have the records; .broken files {kept} the bytes that are cut off\n"
        )
    return Recovered(not recovery.failed, bool(recovery.cut))


def _check(directory: str) -> None:
    """Refuse a path that is not a log directory: recovery leaves files there."""
    try:
        names = list_names(directory)
    except FileNotFoundError as error:
        raise LogDirectoryError(directory, why_not_there(directory)) from error
    except OSError as error:
        raise LogDirectoryError(directory, f"cannot be listed: {error.strerror}") from error
    if META_PROPERTIES_FILE in names or list_guards(directory):
        return
    if not any(map(parse_partition_directory, names)):
        reason = "is not a log directory: name the directory above directories like orders-0"
        raise LogDirectoryError(directory, reason)
