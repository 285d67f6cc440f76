"""Delete the segments that a commit has removed from a log, once nobody reads them any more.

As with a broker's ``DeleteRecords``, the log start moves at once, and the files stay for a minute,
so that a reader with the old bounds still finds the old records.  Segments that retention removes
have other names meanwhile (`segmentlog.recovery.put_aside`), as with a broker.
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
    FileState,
    parse_segment_file,
    partition_path,
    segment_file_name,
)
from segmentlog.files.readable import list_names
from segmentlog.journal.state import Replaced
from segmentlog.segments.listing import list_segments

__all__ = ["delete_replaced"]

#: Kafka's default of ``file.delete.delay.ms``.
_DELAY_MS = 60_000

# The log goes last: a broker ignores indexes without a log.
_KINDS = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX, FileKind.LOG)


def delete_replaced(
    directory: str, replaced: Iterable[Replaced], delay_ms: int | None = None
) -> list[Replaced]:
    """Delete what was replaced `delay_ms` ago or longer; the caller holds the lock.

    Accepted: a clock that has jumped forward by a minute or more deletes files that readers of the
    old bounds still need.  Such a reader fails with `LogChangedError`, and reads nothing wrong.
    If a clock has gone back, the files stay until it reaches that time again, but at most a minute
    longer.

    Parameters
    ----------
    delay_ms : ``file.delete.delay.ms``; a minute by default.

    Returns
    -------
    later : segments to be deleted by a later call.
    """
    delay_ms = _DELAY_MS if delay_ms is None else delay_ms
    now_ms = int(time.time() * 1000)
    starts = read_offsets(directory, LOG_START_CHECKPOINT)
    later = []
    for each in replaced:
        if each.time_ms > now_ms - delay_ms:
            # A time in the future comes from a clock that was ahead, and counts as now: otherwise
            # an overwritten topic would keep its disk space for as long as that clock was ahead.
            is_ahead = each.time_ms > now_ms + max(delay_ms, _DELAY_MS)
            later.append(each._replace(time_ms=now_ms) if is_ahead else each)
        # If the log begins earlier, its topic was deleted and another log has taken its place.
        elif starts.get(each.topic_partition, 0) >= each.end_offset:
            _delete(partition_path(directory, each.topic_partition), each.end_offset)
    return later


def _delete(path: str, end_offset: int) -> None:
    """Delete the segments that lie wholly below an offset.

    A segment that compaction has merged with its successor stays.
    """
    try:
        segments = list_segments(path)
    except LogDirectoryError:  # the topic is gone
        return
    for segment, behind in pairwise(segments):
        if behind.base_offset > end_offset:
            break
        for kind in _KINDS:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(path, segment_file_name(segment.base_offset, kind)))
    for name in sorted(list_names(path)):
        parsed = parse_segment_file(name)
        if parsed and parsed.state is FileState.DELETED and parsed.offset < end_offset:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(path, name))
