"""Files that leave the log: renamed, as a broker renames them, and removed after a while.

A read that was planned before needs the bytes that it has planned.  Compaction puts another file
under the name.  That file may lack records, because newer records after the end of the read have
replaced them.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable

from segmentlog.format.names import FileKind, FileState, parse_segment_file
from segmentlog.store.durable import parent_of, remove_file, rename
from segmentlog.store.readable import list_names, status_of

logger = logging.getLogger(__name__)

_LOG = f".{FileKind.LOG}"
_MINUTE_NS = 60 * 10**9


def put_file_aside(directory: str, name: str) -> None:
    """Rename a file of a segment to ``.deleted``; the caller syncs the directory."""
    # Two compactions within ``file.delete.delay.ms`` put aside two files of one name. The earlier
    # log gets a name with its inode, and stays as long as the later one. Brokers remove both when
    # they start (``LogLoader`` looks at the ending).
    aside = os.path.join(directory, f"{name}.{FileState.DELETED}")
    if name.endswith(_LOG):
        with contextlib.suppress(FileNotFoundError):
            _, by_inode = names_aside(os.path.join(directory, name), os.stat(aside).st_ino)
            rename(aside, by_inode)
    rename(os.path.join(directory, name), aside)


def names_aside(path: str, inode: int) -> tuple[str, str]:
    """The two possible paths of a file that has left the log."""
    return f"{path}.{FileState.DELETED}", f"{path}.{inode}.{FileState.DELETED}"


def remove_deleted(
    path: str, delay_ms: int, before: Callable[[], None] | None = None, *, below: int | None = None
) -> bool:
    """Remove files that left the log `delay_ms` ago or longer; a failure is only a warning.

    A rename changes the time at which a file's entry was last changed, and nothing else does.  The
    log no longer needs these files, so their removal only frees disk space.

    Accepted: a clock that has jumped forward by the delay or more removes files that readers still
    need.  Such a reader fails with `LogChangedError`, and reads nothing wrong.  A time that is
    ahead of the clock by more than a minute, and by more than the delay, comes from a clock that
    was ahead.  It is set to now: otherwise the files would keep their disk space for as long as
    that clock was ahead.

    `path`: of the partition's directory; the caller holds the lock of its log directory.
    `delay_ms`: ``file.delete.delay.ms`` of the topic.  `before`: is called before a file is
    removed.  `below`: only files of segments whose base offset is below this one; all by default.
    Returns whether none of these files is left.
    """
    now_ns, delay_ns = int(time.time() * 10**9), delay_ms * 10**6
    try:
        names = sorted(list_names(path))
    except FileNotFoundError:  # its topic is gone
        return True
    is_done = True
    for name in names:
        parsed = parse_segment_file(name)
        if parsed is None or parsed.state is not FileState.DELETED:
            continue
        if below is not None and parsed.offset >= below:
            continue
        file = os.path.join(path, name)
        try:
            changed_ns = status_of(file).changed_ns
            is_due = changed_ns <= now_ns - delay_ns
            if changed_ns > now_ns + max(delay_ns, _MINUTE_NS):
                with parent_of(file) as (parent, own_name):
                    os.utime(own_name, dir_fd=parent, follow_symlinks=False)
            if is_due and before is not None:
                before()
            if is_due:
                remove_file(file)
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("%s is not removed: %s", file, error)
            is_due = False
        is_done = is_done and is_due
    return is_done
