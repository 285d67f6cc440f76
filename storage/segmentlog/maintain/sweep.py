"""Remove the objects of a log in an object store that nobody needs."""

import os

from segmentlog.arguments import refused
from segmentlog.bucket.upkeep import Swept, sweep_objects
from segmentlog.dialects import one_dialect
from segmentlog.errors import LogDirectoryError
from segmentlog.maintain.places import place_in_store
from segmentlog.store.paths import readable_path
from segmentlog.store.remote.location import without_options
from segmentlog.store.system_errors import storage_errors

__all__ = ["Swept", "sweep"]

_DAY_MS = 24 * 3600 * 1000


@one_dialect()
@storage_errors()
def sweep(
    path: str | os.PathLike[str],
    *,
    longest_job_days: float = 7,
    longest_read_days: float = 1,
    dry_run: bool = False,
) -> Swept:
    """Remove the objects of a log in an object store that no record lies in.

    These are objects of jobs that have failed, of attempts of tasks that lost, and of records that
    have left the log.  Writers and readers may be at work.

    Parameters
    ----------
    path : the URL of the log.
    longest_job_days : a job that has not committed, and whose youngest object is older, is ended:
        its commit fails if it still lives.
    longest_read_days : objects of records that left the log less than these days ago stay, for
        reads that were planned before.
    dry_run : whether nothing is changed, and the result is what would be removed.

    Returns
    -------
    Swept
        The objects, their bytes, and the jobs that were ended.

    Raises
    ------
    OptionError
        If a number is negative, or none.
    LogDirectoryError
        If `path` is not a log in an object store.
    CommitInDoubtError, StorageError
        If the store fails, or this user lacks a right.
    """
    days: dict[str, object] = {
        "longest_job_days": longest_job_days,
        "longest_read_days": longest_read_days,
    }
    for name, value in days.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise refused(name, value, "give days, 0 or more")
    location = place_in_store(path)
    if location is None:
        reason = "is no log in an object store: only such a log has objects to sweep"
        raise LogDirectoryError(without_options(readable_path(path)), reason)
    job_ms, read_ms = longest_job_days * _DAY_MS, longest_read_days * _DAY_MS
    return sweep_objects(location, job_ms, read_ms, dry_run=dry_run)
