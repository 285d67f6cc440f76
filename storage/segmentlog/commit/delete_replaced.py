"""Delete the segments that a commit has removed from a log, once nobody reads them any more.

As with a broker's ``DeleteRecords``, the log start moves at once, and the files stay for the
topic's ``file.delete.delay.ms``, so that a reader with the old bounds still finds the old records.
Segments that retention removes have other names meanwhile (`segmentlog.commit.put_aside`), as
with a broker.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TypeAlias

from segmentlog.commit.state import Replaced, State
from segmentlog.disk.aside import remove_deleted
from segmentlog.errors import LogDirectoryError
from segmentlog.layout.checkpoint import read_offsets
from segmentlog.names import (
    INDEXES,
    LOG_START_CHECKPOINT,
    FileKind,
    partition_path,
    segment_file_name,
)
from segmentlog.segments.listing import list_segments

__all__ = ["DelayOf", "delete_due", "delete_replaced"]

logger = logging.getLogger(__name__)

#: ``file.delete.delay.ms`` of a topic.
DelayOf: TypeAlias = Callable[[str], int]

_MINUTE_MS = 60_000

# The log goes last: a broker ignores indexes without a log.
_KINDS = (*INDEXES, FileKind.LOG)


def delete_due(directory: str, delay_of: DelayOf) -> None:
    """Delete what is due by now; the state forgets it with its next commit.

    The caller holds the lock.  See `delete_replaced`.
    """
    delete_replaced(directory, State.read(directory).replaced, delay_of)


def delete_replaced(
    directory: str, replaced: Iterable[Replaced], delay_of: DelayOf
) -> list[Replaced]:
    """Delete what was replaced ``file.delete.delay.ms`` ago or longer; the caller holds the lock.

    A file that cannot be removed is a warning: its log begins after that file already.

    Accepted: a clock that has jumped forward by the delay or more deletes files that readers of
    the old bounds still need.  Such a reader fails with `LogChangedError`, and reads nothing
    wrong.  If a clock has gone back, the files stay until it reaches that time again, but at most
    a minute longer.

    Parameters
    ----------
    delay_of : ``file.delete.delay.ms`` of a topic; it is not called if nothing was replaced.

    Returns
    -------
    later : segments to be deleted by a later call.
    """
    replaced = list(replaced)
    if not replaced:
        return []
    now_ms = int(time.time() * 1000)
    starts = read_offsets(directory, LOG_START_CHECKPOINT)
    later = []
    for each in replaced:
        delay_ms = delay_of(each.topic)
        if each.time_ms > now_ms - delay_ms:
            # A time in the future comes from a clock that was ahead, and counts as now: otherwise
            # an overwritten topic would keep its disk space for as long as that clock was ahead.
            is_ahead = each.time_ms > now_ms + max(delay_ms, _MINUTE_MS)
            later.append(each._replace(time_ms=now_ms) if is_ahead else each)
        # If the log begins earlier, its topic was deleted and another log has taken its place.
        elif starts.get(each.topic_partition, 0) >= each.end_offset and not _delete(
            partition_path(directory, each.topic_partition), each.end_offset, delay_ms
        ):
            later.append(each)
    return later


def _delete(path: str, end_offset: int, delay_ms: int) -> bool:
    """Delete the segments that lie wholly below an offset; False if some are left.

    A segment that compaction has merged with its successor stays.  Files that were put aside have
    a delay of their own: compaction may have put them aside since.
    """
    try:
        segments = list_segments(path)
    except LogDirectoryError:  # the topic is gone
        return True
    for segment, successor in pairwise(segments):
        if successor.base_offset > end_offset:
            break
        for kind in _KINDS:
            file = os.path.join(path, segment_file_name(segment.base_offset, kind))
            try:
                os.unlink(file)
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.warning("%s is not removed: %s", file, error)
                return False
    return remove_deleted(path, delay_ms, below=end_offset)
