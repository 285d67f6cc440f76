"""Remove the objects of a log in an object store that nobody needs."""

import os

from segmentlog.arguments import whole_number
from segmentlog.bucket.upkeep import DAY_MS, LONGEST_JOB_MS, Swept, sweep_objects
from segmentlog.dialects import one_dialect
from segmentlog.errors import LogDirectoryError
from segmentlog.maintain.places import place_in_store
from segmentlog.store.system_errors import storage_errors


@one_dialect()
@storage_errors()
def sweep(
    path: str | os.PathLike[str],
    *,
    longest_job_ms: int = LONGEST_JOB_MS,
    longest_read_ms: int = DAY_MS,
    dry_run: bool = False,
) -> Swept:
    """Remove the objects of a log in an object store that no record lies in.

    These are objects of jobs that have failed, of attempts of tasks that lost, and of records that
    have left the log.  Writers and readers may be at work.

    Parameters
    ----------
    path : the URL of the log.
    longest_job_ms : a job that has not committed, and whose youngest object is older, is ended:
        its commit fails if it still lives.  A week by default.
    longest_read_ms : objects of records that left the log less than these milliseconds ago stay,
        for reads that were planned before.  A day by default.
    dry_run : whether nothing is changed, and the result is what would be removed.

    Returns
    -------
    Swept
        The objects, their bytes, and the jobs that were ended.

    Raises
    ------
    OptionError
        If a number is negative.
    LogDirectoryError
        If `path` is not a log in an object store.
    CommitInDoubtError, StorageError
        If the store fails, or this user lacks a right.
    """
    whole_number("longest_job_ms", longest_job_ms, what="milliseconds")
    whole_number("longest_read_ms", longest_read_ms, what="milliseconds")
    location = place_in_store(path)
    if location is None:
        reason = "is no log in an object store: only such a log has objects to sweep"
        raise LogDirectoryError(str(path), reason)
    return sweep_objects(location, longest_job_ms, longest_read_ms, dry_run=dry_run)
