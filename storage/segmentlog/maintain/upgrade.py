"""Move a log in an object store to the newest layout."""

import os

from segmentlog.arguments import one_dialect
from segmentlog.bucket.upkeep import Upgraded, place_in_store, upgrade_layout
from segmentlog.errors import LogDirectoryError
from segmentlog.store.paths import readable_path
from segmentlog.store.remote.location import without_options


@one_dialect()
def upgrade(path: str | os.PathLike[str]) -> Upgraded:
    """Move a log in an object store to the newest layout; one that has it stays as it is.

    A log of layout 1 does not know itself: a place that was emptied and made again, or filled from
    a backup, is noticed later and less surely.  Writers and readers need not stop.  Those of
    earlier versions refuse the log from then on, and change nothing.

    Parameters
    ----------
    path : the URL of the log.

    Returns
    -------
    Upgraded
        The layout, the id of the log, and the commit with which it begins.

    Raises
    ------
    LogDirectoryError
        If `path` is not a log in an object store, or its layout is not known here.
    CommitInDoubtError, StorageError
        If the store fails, or this user lacks a right.  Call it again then.
    """
    location = place_in_store(path)
    if location is None:
        reason = "is no log in an object store: only such a log has a layout to upgrade"
        raise LogDirectoryError(without_options(readable_path(path)), reason)
    return upgrade_layout(location)
