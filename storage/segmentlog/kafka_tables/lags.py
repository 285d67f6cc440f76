"""How far behind the end of a log an offset is: records, and time.

A lag in offsets counts end markers of transactions, and what compaction has removed.  The headers
of batches tell how many records follow an offset; they are walked once for all offsets of a log.
"""

import numpy as np

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Int64s
from segmentlog.log.batches import walk_batches
from segmentlog.log.segment import from_offset
from segmentlog.reads.listed import retry_if_relisted
from segmentlog.reads.log import Log

#: More bytes of log are not walked: their headers alone would take minutes.
_MOST_BYTES = 4 << 30

_NOT_OF_FIRST = (
    layout.LEGACY_MASK | layout.TIMESTAMP_TYPE_MASK | layout.DELETE_HORIZON_MASK
)  # the base timestamp is then another's


@retry_if_relisted
def lags_of(log: Log, offsets: Int64s) -> Int64s:
    """Records at or after each offset, and milliseconds from the first of them to the newest.

    Both are 0 at the end of the log, and -1 for an offset beyond it, and for one too far
    from it.  The time is that of batches, and -1 without timestamps.  The shape is
    (2, n_offsets).
    """
    start, end = log.log_start_offset, log.log_end_offset
    asked = np.maximum(offsets, start)
    records, first, newest = (np.zeros(len(asked), np.int64) for _ in range(3))
    has_time = asked >= end
    is_known = asked <= end
    if (asked < end).any():
        begin = int(asked.min())
        segments = from_offset(log.untorn_segments, begin)
        if sum(each.size for each in segments) > _MOST_BYTES:
            is_known &= asked == end
        else:
            reached = begin
            for walked in walk_batches(segments, begin):
                table = walked.scanned.headers
                table = table[table[:, layout.LAST_OFFSET] >= reached]
                if len(table):
                    _add(table, asked, reached, (records, first, newest, has_time))
                    reached = int(table[-1, layout.LAST_OFFSET]) + 1
    behind = np.where(asked < end, np.maximum(newest - first, 0), 0)
    found: Int64s = np.stack([records, behind])
    found[:, ~is_known] = -1
    found[1, ~has_time] = -1
    return found


def _add(
    table: Int64s,
    asked: Int64s,
    reached: int,
    sums: tuple[Int64s, Int64s, Int64s, "np.ndarray[tuple[int], np.dtype[np.bool_]]"],
) -> None:
    """Add batches, which follow those before; `reached`: the offset after them."""
    records, first, newest, has_time = sums
    bases, lasts = table[:, layout.BASE_OFFSET], table[:, layout.LAST_OFFSET]
    attributes = table[:, layout.ATTRIBUTES]
    is_legacy = attributes & layout.LEGACY_MASK != 0
    # The header of a message of magic 0 or 1 has its last offset alone.
    bases = np.where(is_legacy, np.append(reached, lasts[:-1] + 1), bases)
    counts = np.where(is_legacy, lasts - bases + 1, table[:, layout.RECORDS_COUNT])
    is_control = attributes & layout.CONTROL_MASK != 0
    counts[is_control] = 0
    before = np.append(0, counts.cumsum())
    at = lasts.searchsorted(asked)  # the batch that has the offset, or follows it
    is_here = at < len(lasts)
    i = at[is_here]
    inside = np.minimum(
        counts[i], np.maximum(lasts[i] - np.maximum(asked[is_here], bases[i]) + 1, 0)
    )
    records[is_here] += before[-1] - before[i + 1] + inside
    # Times of batches that have records; the largest and the next one from each batch on.
    largest = np.where(counts > 0, table[:, layout.MAX_TIMESTAMP], -1)
    largest = np.maximum.accumulate(largest[::-1])[::-1]
    of_first = np.where(
        attributes & _NOT_OF_FIRST, table[:, layout.MAX_TIMESTAMP], table[:, layout.BASE_TIMESTAMP]
    )
    filled = np.flatnonzero(counts > 0)
    following = filled.searchsorted(i)
    has_next = following < len(filled)
    rows = np.flatnonzero(is_here)[has_next]
    times = of_first[filled[following[has_next]]]
    newest[rows] = np.where(
        has_time[rows], np.maximum(newest[rows], largest[i[has_next]]), largest[i[has_next]]
    )
    is_new = ~has_time[rows] & (times >= 0)
    first[rows[is_new]] = times[is_new]
    has_time[rows[is_new]] = True
