"""The stamp of a log directory: changed before a commit touches a log, and when it is decided.

A reader that lists a partition between two looks at the stamp, and finds it the same, has listed
what no commit was changing meanwhile.  One ``fstat`` tells that; the guards of a directory with
ten thousand partitions would have to be looked for among ten thousand names.

The stamp is that of `segmentlog.state`: its inode, size and times.  The decision of a commit puts
a new file in its place, with a later time: inode and size may be those of an earlier state again,
and where the clock was set back, or has coarse steps, so may its time.  A commit that begins sets
the file's time, once its guard and intent can be found and before it writes anything into a log.
So a listing that holds a byte of the commit was made after that, and either the stamp has changed
around it, or the guard was there to be seen before it.  A commit that fails leaves no other trace:
its guard has come and gone.
"""

import contextlib
import os
import time
from typing import TypeAlias

from segmentlog.files.durable import replace_file
from segmentlog.files.readable import exists, open_file, status_of
from segmentlog.files.storage import is_gone
from segmentlog.journal.state import STATE_FILE, State

__all__ = ["Stamp", "read_stamp", "renew_stamp", "set_later"]

#: Inode, size, and times of modification and of change in nanoseconds.
Stamp: TypeAlias = tuple[int, int, int, int]

# Some file systems keep times in coarse steps: FAT has the coarsest, two seconds.
_STEPS_NS = (1_000_000, 2_000_000_000)


def read_stamp(directory: str) -> Stamp | None:
    """Stamp of a log directory; None before the first commit.

    The file is opened, not only looked at: a client of NFS asks the server then.  That it is not
    there is remembered, too, until the directory is opened.
    """
    try:
        return _stamp(directory)
    except OSError as error:
        if not is_gone(error):  # or it was replaced right now
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

    Nothing is synced but a file that was not there: no reader outlives a power cut.
    """
    path = os.path.join(directory, STATE_FILE)
    if not exists(path):
        replace_file(path, State().encode())
        return
    try:
        set_later(path, path)
    except PermissionError:  # of another owner, as a mount that forces one says
        with open_file(path) as file:
            replace_file(path, file.read(0, file.status().size))


def set_later(path: str, before: str) -> None:
    """Give a file a later time than another one has, or than itself.

    Times that a clock once set wrongly lie in the future, and still have to move on.
    """
    earlier = status_of(before)
    for step in _STEPS_NS:
        modified = max(time.time_ns(), earlier.modified_ns + step)
        os.utime(path, ns=(modified, modified))
        if status_of(path).modified_ns > earlier.modified_ns:
            return
