"""Delete the segments that a commit has taken out of a log, once nobody reads them any more.

As with a broker's ``DeleteRecords``, the log start moves first, and the files stay: a reader that
has found the old bounds finds the old records, too.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from itertools import pairwise

from segmentlog.errors import LogDirectoryError
from segmentlog.files.checkpoint import read_offsets
from segmentlog.files.names import (
    LOG_START_CHECKPOINT,
    FileKind,
    partition_path,
    segment_file_name,
)
from segmentlog.journal.state import Replaced
from segmentlog.segments.listing import list_segments

__all__ = ["delete_replaced"]

#: Kafka's default of ``file.delete.delay.ms``.
_DELAY_MS = 60_000

# The log last: without it, its indexes are nothing that a broker would look at.
_KINDS = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX, FileKind.LOG)


def delete_replaced(directory: str, replaced: Iterable[Replaced]) -> list[Replaced]:
    """Delete what was replaced a minute ago or longer; the caller holds the lock.

    Accepted: a clock that has jumped forward since by a minute or more takes from readers of the
    old bounds what is left of theirs.  Such a reader fails with `LogChangedError`, and reads
    nothing that is wrong.  A clock that has gone back keeps the files for as long as it takes to
    come up to the time again, but a minute longer at most.

    Returns
    -------
    later : what is to be deleted another time.
    """
    now_ms = int(time.time() * 1000)
    starts = read_offsets(directory, LOG_START_CHECKPOINT)
    later = []
    for each in replaced:
        if each.time_ms > now_ms - _DELAY_MS:
            # By a clock that was ahead: as if it were now, or a topic that was overwritten would
            # keep its disk space for as long as that clock was ahead.
            is_ahead = each.time_ms > now_ms + _DELAY_MS
            later.append(each._replace(time_ms=now_ms) if is_ahead else each)
        # Another log has come in its place, if this one begins earlier: its topic was deleted.
        elif starts.get(each.topic_partition, 0) >= each.end_offset:
            _delete(partition_path(directory, each.topic_partition), each.end_offset)
    return later


def _delete(path: str, end_offset: int) -> None:
    """Delete the segments that lie wholly below an offset.

    Compaction may have merged one of them with its successor: then it stays.
    """
    try:
        segments = list_segments(path)
    except LogDirectoryError:  # the topic is gone
        return
    for segment, behind in pairwise(segments):
        if behind.base_offset > end_offset:
            return
        for kind in _KINDS:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(path, segment_file_name(segment.base_offset, kind)))
