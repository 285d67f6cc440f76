"""The offsets of a table's rows by partition, sorted in bounded memory, whatever their order.

Rows come in any order.  They are collected, sorted and packed as stretches: a run.  Runs are
joined in memory as long as they are small, as those of a table are that is nearly in order.
Larger ones go to a temporary file, and are merged when the offsets are asked for, part by part.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from segmentlog.audits.bitmaps import OffsetBitmaps
from segmentlog.audits.spill import SpillFile
from segmentlog.audits.stretches import (
    NO_STRETCHES,
    Stretches,
    in_order,
    joined,
    stretches_of,
)
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.kernels.offset_bitmaps import WINDOW_BITS
from segmentlog.model import LARGEST_LONG

#: Offsets that are sorted together: 4 MiB, and several times as much while they are packed.
_MOST_COLLECTED = 1 << 19
#: Stretches of all runs in memory: 12 MiB.
_MOST_IN_MEMORY = 1 << 19
_MOST_RUNS = 32  # in memory, before they are joined
#: Stretches that are merged together.
_MOST_MERGED = 1 << 19


class _StretchRun(NamedTuple):
    """Stretches of several partitions, one partition after the other."""

    codes: Int64s  # the partitions, in order
    begins: Int64s  # of each, and the end of the last one
    stretches: Stretches

    def of(self, code: int) -> Stretches | None:
        """The stretches of a partition; None without any."""
        i = int(self.codes.searchsorted(code))
        if i == len(self.codes) or self.codes[i] != code:
            return None
        begin, end = self.begins[i : i + 2].tolist()
        return Stretches(*(each[begin:end] for each in self.stretches))


class OffsetCollector:
    """Packs the offsets of rows: ranges in order, bitmaps where they are dense, and sorted runs.

    `take`: gets each run, the stretches by partition.  `bitmaps` has the rest of the rows.
    """

    def __init__(self, spill: SpillFile, take: Callable[[dict[int, Stretches]], object]) -> None:
        self._take = take
        self.bitmaps = OffsetBitmaps(spill)
        self._collected: defaultdict[int, list[Int64s]] = defaultdict(list)
        self._n_collected = 0
        #: Ranges that came in order, and of which only the bounds are kept, by partition.
        self._in_order: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    def add(self, codes: Int64s, offsets: Int64s) -> None:
        """Take rows; `codes`: the caller's numbers of their partitions, none of them negative."""
        if not len(codes):
            return
        if codes[0] == codes[-1] and (codes == codes[0]).all():
            first, last = int(offsets[0]), int(offsets[-1])
            # The end of a range is a number, too.  No broker ever writes the last offset.
            if last - first == len(offsets) - 1 and last < LARGEST_LONG and is_in_order(offsets):
                self._add_range(int(codes[0]), first, last + 1)
                return
        rest = self.bitmaps.mark(codes, offsets)
        if rest is None:
            return
        if len(rest) < len(codes):
            codes, offsets = codes[rest], offsets[rest]
        for code, found in by_code(codes, offsets):
            self._collected[code].append(np.minimum(found, LARGEST_LONG - 1))
        self._n_collected += len(codes)
        self._sort_many()

    def _add_range(self, code: int, first: int, end: int) -> None:
        ranges = self._in_order[code]
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], end)
            return
        ranges.append((first, end))
        self._n_collected += 2
        self._sort_many()

    def _sort_many(self) -> None:
        if self._n_collected >= _MOST_COLLECTED:
            self._sort()

    def _sort(self) -> None:
        """Make windows and a run of what was collected."""
        run = {}
        for code in sorted({*self._collected, *self._in_order}):
            parts = []
            if code in self._collected:
                offsets = np.concatenate(self._collected.pop(code))
                offsets.sort()
                offsets = self.bitmaps.take_dense(code, offsets)
                if len(offsets):
                    parts.append(stretches_of(offsets))
            if code in self._in_order:
                ranges = np.array(self._in_order.pop(code), np.int64)
                once = np.ones(len(ranges), np.int64)
                parts.append(in_order(Stretches(ranges[:, 0], ranges[:, 1], once)))
            if parts:
                run[code] = joined(parts)
        self._n_collected = 0
        if run:
            self._take(run)

    def finish(self) -> None:
        """All rows were added."""
        self._sort()


def is_in_order(offsets: Int64s) -> bool:
    """Whether each offset is the one after that before it."""
    return bool((offsets[1:] - offsets[:-1] == 1).all())


def by_code(codes: Int64s, offsets: Int64s) -> Iterator[tuple[int, Int64s]]:
    """The offsets of each partition, in the order of rows."""
    # Whole numbers of 16 bits are sorted by radix.
    small = codes.astype(np.int16) if codes.max() < 1 << 15 else codes
    order = small.argsort(kind="stable")
    codes, offsets = codes[order], offsets[order]
    cuts = (np.flatnonzero(np.diff(codes)) + 1).tolist()
    for begin, end in zip([0, *cuts], [*cuts, len(codes)], strict=True):
        yield int(codes[begin]), offsets[begin:end]


class TableOffsets:
    """The offsets of all rows; first `add` is called for all of them, then `cursor`.

    `spill`: the temporary file for runs that are too large for memory.
    """

    def __init__(self, spill: SpillFile) -> None:
        self._spill = spill
        self._collector = OffsetCollector(spill, self._keep)
        self._windows: dict[int, list[int]] = {}
        self._pieces: defaultdict[int, list[Stretches]] = defaultdict(list)
        self._n_pieces = 0  # stretches
        self._runs: list[_StretchRun] = []
        self._spilled: list[_StretchRun] = []
        self.n_rows: defaultdict[int, int] = defaultdict(int)  #: by partition

    def add(self, codes: Int64s, offsets: Int64s) -> None:
        """Take rows; `codes`: the caller's numbers of their partitions, none of them negative."""
        for code, n_rows in enumerate(np.bincount(codes).tolist()):
            if n_rows:
                self.n_rows[code] += n_rows
        self._collector.add(codes, offsets)

    def add_stretches(self, code: int, stretches: Stretches) -> None:
        """Take rows of a partition that are in any order, and may overlap; not empty."""
        first, end, times = stretches
        self.n_rows[code] += int(((end - first) * times).sum())
        self._pieces[code].append(stretches)
        self._n_pieces += len(first)
        if self._n_pieces >= _MOST_IN_MEMORY // 2:
            self._keep_pieces()

    def _keep_pieces(self) -> None:
        if not self._pieces:
            return
        pieces = sorted(self._pieces.items())
        self._pieces, self._n_pieces = defaultdict(list), 0
        self._keep(
            {
                code: in_order(Stretches(*map(np.concatenate, zip(*each, strict=True))))
                for code, each in pieces
            }
        )

    def _keep(self, by_code: dict[int, Stretches]) -> None:
        self._runs.append(_as_run(by_code))
        n_stretches = sum(len(each.stretches.first) for each in self._runs)
        if n_stretches < _MOST_IN_MEMORY and len(self._runs) < _MOST_RUNS:
            return
        if len(self._runs) > 1:
            codes = np.unique(np.concatenate([each.codes for each in self._runs])).tolist()
            found = {code: joined([*_parts(self._runs, code)]) for code in codes}
            self._runs = [_as_run(found)]
        if len(self._runs[0].stretches.first) >= _MOST_IN_MEMORY // 2:
            run = self._runs.pop()
            arrays = (run.codes, run.begins, *run.stretches)
            places = [self._spill.write(each) for each in arrays]
            codes, begins, *stretches = (
                self._spill.mapped(at, len(each)) for at, each in zip(places, arrays, strict=True)
            )
            self._spilled.append(_StretchRun(codes, begins, Stretches(*stretches)))

    def finish(self) -> None:
        """All rows were added."""
        self._collector.finish()
        self._keep_pieces()
        self._windows = self._collector.bitmaps.by_code()

    def cursor(self, code: int) -> "Cursor":
        """The offsets of a partition, from the first one on."""
        parts = [*_parts([*self._spilled, *self._runs], code)]
        windows = self._windows.get(code, [])
        return Cursor(parts, windows, partial(self._collector.bitmaps.stretches, code))


def _parts(runs: list[_StretchRun], code: int) -> Iterator[Stretches]:
    for run in runs:
        found = run.of(code)
        if found is not None:
            yield found


def _as_run(by_code: dict[int, Stretches]) -> _StretchRun:
    lengths = [len(each.first) for each in by_code.values()]
    stretches = Stretches(*map(np.concatenate, zip(*by_code.values(), strict=True)))
    begins = np.concatenate([[0], np.cumsum(lengths)])
    return _StretchRun(np.array([*by_code], np.int64), begins, stretches)


class Cursor:
    """The stretches of one partition, taken part by part in the order of offsets.

    `windows`: the numbers of its windows, in order; `read` gives the stretches of one of them.
    """

    def __init__(
        self, parts: list[Stretches], windows: list[int], read: Callable[[int], Stretches]
    ) -> None:
        self._parts, self._windows, self._read = parts, windows, read
        self._next = [0] * len(parts)
        self._next_window = 0
        self._window = NO_STRETCHES  # the next one, once it is read

    @property
    def end(self) -> int:
        """The offset after the largest one; -1 without rows."""
        ends = [int(each.end[-1]) for each in self._parts]
        if self._windows:
            ends += self._read(self._windows[-1]).end[-1:].tolist()
        return max(ends, default=-1)

    def again(self) -> "Cursor":
        """The offsets from the first one on."""
        return Cursor(self._parts, self._windows, self._read)

    def reach(self, end: int) -> int:
        """An offset, at most `end`, below which there are not too many stretches to take."""
        most = max(_MOST_MERGED // max(len(self._parts), 1), 1)
        for part, at in zip(self._parts, self._next, strict=True):
            if at + most < len(part.first):
                end = min(end, int(part.first[at + most]))
        if self._next_window < len(self._windows):
            end = min(end, (self._windows[self._next_window] + 1) << WINDOW_BITS)
        return end

    def take(self, begin: int, end: int) -> Stretches:
        """The stretches within ``[begin, end)``, joined; `begin` is where the last call ended.

        `end`: at most what `reach` has returned.
        """
        found = []
        for i, (part, at) in enumerate(zip(self._parts, self._next, strict=True)):
            until = at + int(part.first[at:].searchsorted(end))
            if until > at:
                cut = Stretches(*(each[at:until] for each in part))
                found.append(cut.clipped(begin, end))
                # The last one may reach beyond, into the next part.
                self._next[i] = until - int(part.end[until - 1] > end)
        if self._next_window < len(self._windows):
            found.append(self._of_window(self._windows[self._next_window], begin, end))
        return joined(found)

    def _of_window(self, number: int, begin: int, end: int) -> Stretches:
        if end <= number << WINDOW_BITS:
            return NO_STRETCHES
        if not len(self._window.first):
            self._window = self._read(number)
        whole = self._window
        if end == (number + 1) << WINDOW_BITS:
            self._next_window += 1
            self._window = NO_STRETCHES
        low = int(whole.end.searchsorted(begin, "right"))
        high = int(whole.first.searchsorted(end))
        return Stretches(*(each[low:high] for each in whole)).clipped(begin, end)
