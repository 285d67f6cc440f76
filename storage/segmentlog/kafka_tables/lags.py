"""How far behind the end of a log an offset is: records, and time.

A lag in offsets counts end markers of transactions, and what compaction has removed.  The headers
of batches tell how many records follow an offset; they are walked once for all offsets of a log.
Most offsets are near the end of a log, whose last batches were walked to find it: those of all
logs are computed at once, and no file is opened again.
"""

from array import array
from typing import Any, NamedTuple

import numpy as np

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Int64s
from segmentlog.log.batches import walk_batches
from segmentlog.log.segment import TAIL_COLUMNS, from_offset
from segmentlog.reads.listed import retry_if_relisted
from segmentlog.reads.log import Log

#: More bytes of log are not walked: their headers alone would take minutes.
_MOST_BYTES = 4 << 30

#: Of a tail that is computed with others: the offsets of all of them follow each other in 64 bits.
_MOST_OFFSETS = 1 << 40

_NOT_OF_FIRST = (
    layout.LEGACY_MASK | layout.TIMESTAMP_TYPE_MASK | layout.DELETE_HORIZON_MASK
)  # the base timestamp is then another's


class _Batches(NamedTuple):
    """What headers tell of the records of batches."""

    bases: Int64s
    lasts: Int64s
    counts: Int64s  # 0 for end markers
    firsts: Int64s  # timestamps of the first records, as far as headers know them
    largest: Int64s  # timestamps; -1 without records

    @classmethod
    def of(cls, table: Int64s, reached: int) -> "_Batches":
        """Those of a table of headers, which follow the offsets below `reached`."""
        bases, lasts = table[:, layout.BASE_OFFSET], table[:, layout.LAST_OFFSET]
        attributes = table[:, layout.ATTRIBUTES]
        # Messages of magic 0 or 1 that are compressed together have their last offset alone.
        is_legacy = attributes & layout.LEGACY_MASK != 0
        is_wrapper = is_legacy & (attributes & layout.CODEC_MASK != 0)
        bases = np.where(is_wrapper, np.append(reached, lasts[:-1] + 1), bases)
        counts = np.where(is_legacy, lasts - bases + 1, table[:, layout.RECORDS_COUNT])
        times = table[:, layout.BASE_TIMESTAMP], table[:, layout.MAX_TIMESTAMP]
        return cls._of(bases, lasts, counts, attributes, *times)

    @classmethod
    def of_tails(cls, tails: "array[int]") -> "_Batches":
        """Those of some tails, one after the other."""
        return cls._of(*np.frombuffer(tails, np.int64).reshape(-1, TAIL_COLUMNS).T)

    @classmethod
    def _of(
        cls,
        bases: Int64s,
        lasts: Int64s,
        counts: Int64s,
        attributes: Int64s,
        base_times: Int64s,
        max_times: Int64s,
    ) -> "_Batches":
        counts = np.where(attributes & layout.CONTROL_MASK, 0, counts)
        firsts = np.where(attributes & _NOT_OF_FIRST, max_times, base_times)
        return cls(bases, lasts, counts, firsts, np.where(counts > 0, max_times, -1))


_Flags = np.ndarray[Any, np.dtype[np.bool_]]
#: Of offsets: records, times of the first and of the newest one, and whether there is a time.
_Sums = tuple[Int64s, Int64s, Int64s, _Flags]


class Lags:
    """How far offsets of several logs are behind."""

    def __init__(self) -> None:
        self._rows: list[Int64s] = []
        self._found: list[Int64s] = []
        self._tails = array("q")
        self._ends: list[tuple[int, int, int]] = []  # of a log: start, end, number of batches
        self._asked: list[Int64s] = []
        self._rows_of_tails: list[int] = []

    def add(self, row: int, log: Log, offsets: Int64s, lowest: int) -> None:
        """Add offsets of a log, which belong to a row of the caller's, and the lowest of them."""
        start, end = log.log_start_offset, log.log_end_offset  # which walks the tail
        tail = log.segments[-1].tail if log.segments else None
        first = max(lowest, start)
        is_narrow = tail is not None and end - tail.first_offset < _MOST_OFFSETS
        if tail is not None and is_narrow and tail.batches and first >= tail.first_offset:
            self._tails += tail.batches
            self._ends.append((start, end, len(tail.batches) // TAIL_COLUMNS))
            self._asked.append(offsets)
            self._rows_of_tails.append(row)
            return
        self._found.append(lags_of(log, offsets))
        self._rows.append(_rows(row, offsets))

    @property
    def n_from_tails(self) -> int:
        """The number of logs, of those that were added, of which no file is read again."""
        return len(self._asked)

    def found(self) -> Int64s:
        """The rows of all offsets, the offsets, and their lags (`lags_of`): shape (4, n)."""
        lags, rows = self._found, self._rows
        if self._asked:
            lags = [*lags, self._of_tails()]
            rows = [*rows, *map(_rows, self._rows_of_tails, self._asked)]
        if not rows:
            return np.empty((4, 0), np.int64)
        made: Int64s = np.concatenate([np.concatenate(rows, axis=1), np.concatenate(lags, axis=1)])
        return made

    def _of_tails(self) -> Int64s:
        batches = _Batches.of_tails(self._tails)
        starts, ends, sizes = np.array(self._ends, np.int64).T
        stops = sizes.cumsum()
        begins = stops - sizes
        log = np.repeat(np.arange(len(ends)), [*map(len, self._asked)])
        given = np.concatenate(self._asked)
        asked = np.maximum(given, starts[log])
        # The offsets of each log are moved beyond those of the log before.
        lowest = batches.bases[begins]
        widths = batches.lasts[stops - 1] - lowest + 2
        moved = widths.cumsum() - widths - lowest
        of_batch = np.repeat(np.arange(len(ends)), sizes)
        most = batches.lasts[stops - 1][log] + 1
        within = np.minimum(np.maximum(asked, lowest[log]), most)
        at = (batches.lasts + moved[of_batch]).searchsorted(within + moved[log])
        # The largest times of each log from each batch on: ranks that are higher for earlier logs.
        times, ranks = np.unique(batches.largest, return_inverse=True)
        higher = (len(ends) - 1 - of_batch) * len(times)
        largest = times[np.maximum.accumulate((ranks + higher)[::-1])[::-1] - higher]
        sums = _sums(asked, ends[log])
        _add(batches, asked, (at, stops[log]), largest, sums)
        return _lags(asked, ends[log], asked <= ends[log], sums)


def _rows(row: int, offsets: Int64s) -> Int64s:
    return np.stack([np.full(len(offsets), row), offsets])


@retry_if_relisted
def lags_of(log: Log, offsets: Int64s) -> Int64s:
    """Records at or after each offset, and milliseconds from the first of them to the newest.

    Both are 0 at the end of the log, and -1 for an offset beyond it, and for one too far
    from it.  The time is that of batches, and -1 without timestamps.  The shape is
    (2, n_offsets).
    """
    start, end = log.log_start_offset, log.log_end_offset
    asked = np.maximum(offsets, start)
    sums = _sums(asked, end)
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
                    batches = _Batches.of(table, reached)
                    at = batches.lasts.searchsorted(asked)  # the one that has it, or follows it
                    largest = np.maximum.accumulate(batches.largest[::-1])[::-1]
                    stop = np.full(len(asked), len(table))
                    _add(batches, asked, (at, stop), largest, sums)
                    reached = int(table[-1, layout.LAST_OFFSET]) + 1
    return _lags(asked, end, is_known, sums)


def _sums(asked: Int64s, end: "Int64s | int") -> _Sums:
    records, first, newest = (np.zeros(len(asked), np.int64) for _ in range(3))
    return records, first, newest, asked >= end


def _lags(
    asked: Int64s,
    end: "Int64s | int",
    is_known: "np.ndarray[Any, np.dtype[np.bool_]]",
    sums: _Sums,
) -> Int64s:
    records, first, newest, has_time = sums
    behind = np.where(asked < end, np.maximum(newest - first, 0), 0)
    found: Int64s = np.stack([records, behind])
    found[:, ~is_known] = -1
    found[1, ~has_time] = -1
    return found


def _add(
    batches: _Batches, asked: Int64s, places: tuple[Int64s, Int64s], largest: Int64s, sums: _Sums
) -> None:
    """Add batches, which follow those before.

    `places`: of each offset, the row of the batch that has it or follows it, and the row after the
    last batch of its log.  `largest`: times, from each batch to the last one of its log.
    """
    records, first, newest, has_time = sums
    at, stop = places
    is_here = at < stop
    i, stops = at[is_here], stop[is_here]
    before = np.append(0, batches.counts.cumsum())
    offsets = np.maximum(asked[is_here], batches.bases[i])
    inside = np.minimum(batches.counts[i], np.maximum(batches.lasts[i] - offsets + 1, 0))
    records[is_here] += before[stops] - before[i + 1] + inside
    filled = np.append(np.flatnonzero(batches.counts > 0), len(batches.counts))
    following = filled[filled.searchsorted(i)]
    has_next = following < stops
    rows = np.flatnonzero(is_here)[has_next]
    times = batches.firsts[following[has_next]]
    of_rows = largest[i[has_next]]
    newest[rows] = np.where(has_time[rows], np.maximum(newest[rows], of_rows), of_rows)
    is_new = ~has_time[rows] & (times >= 0)
    first[rows[is_new]] = times[is_new]
    has_time[rows[is_new]] = True
