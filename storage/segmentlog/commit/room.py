"""Room on a full disk for a commit that frees space.

A guard, an intent and a state take a few kilobytes.  Without them, a full disk would keep out the
very commands that empty it.  The bytes come from the offset and time indexes of segments that are
about to go, the active one among them if the log keeps no segment.  If the commit fails all the
same, these segments stay as a broker knows them from a crash: readers scan them without an index,
and `segmentlog reindex` and brokers build it again (``LogLoader.recoverSegment``).
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from segmentlog.disk.system_errors import FULL
from segmentlog.names import SPARSE_INDEXES, segment_file_name

__all__ = ["drop_indexes", "with_room"]

_T = TypeVar("_T")


def with_room(commit: Callable[[], _T], make_room: Callable[[], bool]) -> _T:
    """Commit; if the disk is full, make room and commit again.

    Parameters
    ----------
    commit : leaves nothing of itself if it fails with an `OSError`.
    make_room : returns whether there is more space now.
    """
    try:
        return commit()
    except OSError as error:
        if error.errno not in FULL or not make_room():
            raise
    return commit()


def drop_indexes(path: str, base_offsets: Iterable[int]) -> bool:
    """Remove the indexes of these segments of a partition; whether there were any."""
    is_freed = False
    for base_offset in base_offsets:
        for kind in SPARSE_INDEXES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(path, segment_file_name(base_offset, kind)))
                is_freed = True
    return is_freed
