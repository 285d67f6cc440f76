"""The offsets of a table's rows by partition, sorted in bounded memory, whatever their order.

Rows come in any order.  They are collected, sorted and packed as stretches: a run.  Runs are
joined in memory as long as they are small, as those of a table are that is nearly in order.
Larger ones go to a temporary file, and are merged when the offsets are asked for, part by part.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from segmentlog.audits.spill import SpillFile
from segmentlog.audits.stretches import Stretches, in_order, joined, stretches_of
from segmentlog.format.kernels.memory import Int64s

#: Offsets that are sorted together: 16 MiB, and five times as much while they are packed.
_MOST_COLLECTED = 2 << 20
#: Stretches of all runs in memory: 24 MiB.
_MOST_IN_MEMORY = 1 << 20
_MOST_RUNS = 32  # in memory, before they are joined
#: Stretches that are merged together.
_MOST_MERGED = 1 << 20

_LEAST, _LARGEST = -(2**63), 2**63 - 1


class _Run(NamedTuple):
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
    """Packs the offsets of rows as stretches, many at a time.

    `take`: gets each run, the stretches by partition.
    """

    def __init__(self, take: Callable[[dict[int, Stretches]], object]) -> None:
        self._take = take
        self._collected: defaultdict[int, list[Int64s]] = defaultdict(list)
        self._n_collected = 0
        #: Ranges that came in order, and of which only the bounds are kept, by partition.
        self._in_order: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    def add(self, code: int, offsets: Int64s) -> None:
        """Take rows of a partition, which has a number of the caller's; not empty."""
        first, last = int(offsets[0]), int(offsets[-1])
        # The end of a stretch is a number, too.  Neither offset was ever written by a broker.
        if last - first == len(offsets) - 1 and last < _LARGEST and (np.diff(offsets) == 1).all():
            ranges = self._in_order[code]
            if ranges and ranges[-1][1] == first:
                ranges[-1] = (ranges[-1][0], last + 1)
                return
            ranges.append((first, last + 1))
            self._n_collected += 2
        else:
            self._collected[code].append(np.minimum(offsets, _LARGEST - 1))
            self._n_collected += len(offsets)
        if self._n_collected >= _MOST_COLLECTED:
            self.finish()

    def finish(self) -> None:
        """All rows were added."""
        by_code = {}
        for code in sorted({*self._collected, *self._in_order}):
            parts = []
            if code in self._collected:
                parts.append(stretches_of(np.sort(np.concatenate(self._collected.pop(code)))))
            if code in self._in_order:
                ranges = np.array(self._in_order.pop(code), np.int64)
                once = np.ones(len(ranges), np.int64)
                parts.append(in_order(Stretches(ranges[:, 0], ranges[:, 1], once)))
            by_code[code] = joined(parts)
        self._n_collected = 0
        if by_code:
            self._take(by_code)


class TableOffsets:
    """The offsets of all rows; first `add` is called for all of them, then `cursor`.

    `spill`: the temporary file for runs that are too large for memory.
    """

    def __init__(self, spill: SpillFile) -> None:
        self._spill = spill
        self._collector = OffsetCollector(self._keep)
        self._pieces: defaultdict[int, list[Stretches]] = defaultdict(list)
        self._n_pieces = 0  # stretches
        self._runs: list[_Run] = []
        self._spilled: list[_Run] = []
        self.n_rows: defaultdict[int, int] = defaultdict(int)  #: by partition

    def add(self, code: int, offsets: Int64s) -> None:
        """Take rows of a partition, which has a number of the caller's; not empty."""
        self.n_rows[code] += len(offsets)
        self._collector.add(code, offsets)

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
            {code: in_order(Stretches(*map(np.concatenate, zip(*each, strict=True))))
             for code, each in pieces}
        )  # fmt: skip

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
            self._spilled.append(_Run(codes, begins, Stretches(*stretches)))

    def finish(self) -> None:
        """All rows were added."""
        self._collector.finish()
        self._keep_pieces()

    def cursor(self, code: int) -> "Cursor":
        """The offsets of a partition, from the first one on."""
        return Cursor([*_parts([*self._spilled, *self._runs], code)])


def _parts(runs: list[_Run], code: int) -> Iterator[Stretches]:
    for run in runs:
        found = run.of(code)
        if found is not None:
            yield found


def _as_run(by_code: dict[int, Stretches]) -> _Run:
    lengths = [len(each.first) for each in by_code.values()]
    stretches = Stretches(*map(np.concatenate, zip(*by_code.values(), strict=True)))
    begins = np.concatenate([[0], np.cumsum(lengths)])
    return _Run(np.array([*by_code], np.int64), begins, stretches)


class Cursor:
    """The stretches of one partition, taken part by part in the order of offsets."""

    def __init__(self, parts: list[Stretches]) -> None:
        self._parts = parts
        self._next = [0] * len(parts)

    @property
    def end(self) -> int:
        """The offset after the largest one; -1 without rows."""
        return max((int(each.end[-1]) for each in self._parts), default=-1)

    def again(self) -> "Cursor":
        """The offsets from the first one on."""
        return Cursor(self._parts)

    def reach(self, end: int) -> int:
        """An offset, at most `end`, below which there are not too many stretches to take."""
        most = max(_MOST_MERGED // max(len(self._parts), 1), 1)
        for part, at in zip(self._parts, self._next, strict=True):
            if at + most < len(part.first):
                end = min(end, int(part.first[at + most]))
        return end

    def take(self, begin: int, end: int) -> Stretches:
        """The stretches within ``[begin, end)``, joined; `begin` is where the last call ended."""
        found = []
        for i, (part, at) in enumerate(zip(self._parts, self._next, strict=True)):
            until = at + int(part.first[at:].searchsorted(end))
            if until > at:
                cut = Stretches(*(each[at:until] for each in part))
                found.append(cut.clipped(begin, end))
                # The last one may reach beyond, into the next part.
                self._next[i] = until - int(part.end[until - 1] > end)
        return joined(found)
