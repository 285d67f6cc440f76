"""Sets of offsets as stretches: an ordered table of billions of rows is a few numbers.

A stretch has consecutive offsets that the same number of rows have.  Operations on arrays of
stretches take time and memory by the number of stretches, not of offsets.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from segmentlog.format.kernels.memory import Int64s
from segmentlog.model import OffsetRange

#: If the offsets of stretches are at most this many times as many as the stretches, they are
#: counted one by one, which takes a fifth of the time of a sort.
_DENSE = 4


class Stretches(NamedTuple):
    """Int64 arrays of the same shape: of each stretch its first offset, its end, and its rows."""

    first: Int64s
    end: Int64s
    times: Int64s  # number of rows that each offset has

    def clipped(self, begin: int, end: int) -> "Stretches":
        """The parts within ``[begin, end)`` of stretches that all overlap this range."""
        return Stretches(np.maximum(self.first, begin), np.minimum(self.end, end), self.times)


_NONE: Int64s = np.empty(0, np.int64)
NO_STRETCHES = Stretches(_NONE, _NONE, _NONE)


def stretches_of(offsets: Int64s) -> Stretches:
    """The stretches of sorted offsets, of which some may be equal."""
    begins = np.flatnonzero(np.append(True, offsets[1:] != offsets[:-1]))
    values = offsets[begins]
    times = np.diff(begins, append=len(offsets))
    is_first = np.ones(len(values), np.bool_)
    is_first[1:] = (np.diff(values) != 1) | (np.diff(times) != 0)
    at = np.flatnonzero(is_first)
    lasts = np.append(at[1:], len(values)) - 1
    return Stretches(values[at], values[lasts] + 1, times[at])


def joined(parts: Sequence[Stretches]) -> Stretches:
    """Several arrays of stretches as one; each of them is in order and has no overlaps."""
    parts = [each for each in parts if len(each.first)]
    if len(parts) < 2:
        return parts[0] if parts else NO_STRETCHES
    return in_order(Stretches(*map(np.concatenate, zip(*parts, strict=True))))


def in_order(stretches: Stretches) -> Stretches:
    """Stretches in order and without overlaps, where rows add up; there is at least one."""
    first, end, times = stretches
    base = int(first.min())
    width = int(end.max()) - base
    if width <= _DENSE * len(first):
        is_once = bool((times == 1).all())
        weights = None if is_once else times
        # Each array has a number for every offset between: at most two of them are there at once.
        every = np.bincount(first - base, weights, width + 1)
        every -= np.bincount(end - base, weights, width + 1)
        np.cumsum(every, out=every)
        at = np.append(0, np.flatnonzero(every[1:] != every[:-1]) + 1)
        heights, at = every[at].astype(np.int64), at + base
    else:
        at = np.concatenate([first, end])
        order = np.argsort(at, kind="stable")
        at, heights = at[order], np.concatenate([times, -times])[order].cumsum()
        is_last = np.append(np.diff(at) != 0, True)
        at, heights = at[is_last], heights[is_last]
        differs = np.diff(heights, prepend=0) != 0
        at, heights = at[differs], heights[differs]
    is_covered = heights[:-1] > 0
    return Stretches(at[:-1][is_covered], at[1:][is_covered], heights[:-1][is_covered])


#: Takes the first offsets and the ends of ranges, in order.
TakeRanges = Callable[[Int64s, Int64s], object]


class Tally:
    """Counts offsets of one kind as they come, in order, and keeps the first ranges of them.

    `most_ranges`: number of ranges to keep.  `take`: gets all ranges, once they are known to end.
    """

    def __init__(self, most_ranges: int, take: TakeRanges | None = None) -> None:
        self.n_offsets = self.n_rows = self.n_ranges = 0
        self.ranges: list[OffsetRange] = []
        self.first = self.last = OffsetRange(0, 0)  # of all ranges, once they end
        self._most_ranges, self._take = most_ranges, take
        self._open: OffsetRange | None = None  # the last range, which the next one may extend

    def add(self, found: Stretches) -> None:
        """Take the next stretches; all of them are after those before."""
        first, end, times = found
        if not len(first):
            return
        lengths = end - first
        self.n_offsets += int(lengths.sum())
        self.n_rows += int((lengths * times).sum())
        begins = np.flatnonzero(np.append(True, first[1:] != end[:-1]))
        first, end = first[begins], end[np.append(begins[1:], len(end)) - 1]
        if self._open is not None:
            if self._open.end_offset == first[0]:
                first[0] = self._open.start_offset
            else:
                first = np.concatenate([[self._open.start_offset], first])
                end = np.concatenate([[self._open.end_offset], end])
        self._open = OffsetRange(int(first[-1]), int(end[-1]))
        self._emit(first[:-1], end[:-1])

    def finish(self) -> None:
        """The last range ends: nothing follows."""
        if self._open is not None:
            self._emit(*(np.array([each], np.int64) for each in self._open))
            self._open = None

    def _emit(self, first: Int64s, end: Int64s) -> None:
        if not len(first):
            return
        if not self.n_ranges:
            self.first = OffsetRange(int(first[0]), int(end[0]))
        self.last = OffsetRange(int(first[-1]), int(end[-1]))
        room = self._most_ranges - len(self.ranges)
        self.ranges += map(OffsetRange, first[:room].tolist(), end[:room].tolist())
        self.n_ranges += len(first)
        if self._take is not None:
            self._take(first, end)
