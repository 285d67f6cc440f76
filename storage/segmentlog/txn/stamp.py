"""The stamp of a log directory: changed before a commit touches a log, and when it is decided.

A reader takes the stamp before and after it lists a partition.  If the stamp is the same, no
commit changed the partition meanwhile.  The stamp takes one ``fstat``.  A search for guards would
take a listing of the log directory, which may hold ten thousand partitions.

The stamp is the inode, the size and the times of `segmentlog.state`.  The decision of a commit
replaces this file and gives the new file a later time.  The inode and the size alone may equal
those of an earlier state, and so may the time, if the clock was set back or has coarse steps.

A commit also sets the file's time when it begins: after its guard and intent can be found, and
before it writes into a log.  So a listing with a byte of the commit was made after that moment.
Either the stamp has changed around the listing, or the guard could be found before it.  The stamp
is the only trace of a commit that has failed: its guard has come and gone.
"""

import contextlib
import os
import time
from typing import TypeAlias

from segmentlog.store.durable import replace_file
from segmentlog.store.readable import exists, open_file, status_of
from segmentlog.store.system_errors import is_gone
from segmentlog.txn.state import STATE_FILE, State, read_bytes

#: Inode, size, and times of modification and of change in nanoseconds.
Stamp: TypeAlias = tuple[int, int, int, int]

# Some file systems keep times in coarse steps: FAT has the coarsest, two seconds.
_STEPS_NS = (1_000_000, 2_000_000_000)


def read_stamp(directory: str) -> Stamp | None:
    """Stamp of a log directory; None before the first commit.

    The file is opened, because an NFS client asks the server only at an open.  The client also
    remembers a missing file, until the directory is opened.
    """
    try:
        return _stamp(directory)
    except OSError as error:
        if not is_gone(error):  # a file is also gone while it is being replaced
            raise
    with contextlib.suppress(FileNotFoundError):
        open_file(directory).close()
        return _stamp(directory)
    return None


def _stamp(directory: str) -> Stamp:
    with open_file(os.path.join(directory, STATE_FILE)) as file:
        found = file.status()
    return found.inode, found.size, found.modified_ns, found.changed_ns


def renew_stamp(directory: str) -> None:
    """Change the stamp; the caller holds the lock, and its guard stands with its intent.

    Only a file that is written, and not just given a later time, is synced: no reader outlives a
    power cut.
    """
    path = os.path.join(directory, STATE_FILE)
    if not exists(path):
        replace_file(path, State().encode())
        return
    try:
        set_later(path, path)
    except PermissionError:  # the mount forces another owner
        replace_file(path, read_bytes(path))


def set_later(path: str, before: str) -> None:
    """Give a file a later time than that of `before`, which may be the file itself.

    The time of `before` may lie in the future, set by a wrong clock, and still has to move on.
    """
    earlier = status_of(before)
    for step in _STEPS_NS:
        modified = max(time.time_ns(), earlier.modified_ns + step)
        os.utime(path, ns=(modified, modified), follow_symlinks=False)
        if status_of(path).modified_ns > earlier.modified_ns:
            return
