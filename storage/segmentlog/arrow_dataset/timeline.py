"""Rows of several partitions, merged by time.

A partition has the order of its offsets, and its timestamps need not rise: producers set them, and
clocks differ.  So the place of a row is the largest timestamp up to that row in its partition. The
rows of a partition keep their order, and a row that is older than an earlier row is placed after
that row, not at its own timestamp.  If timestamps rise within each partition, the result is sorted
by them.  Rows of the same place come in the order of topic, partition and offset.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_MOST_ROWS = 20_000  # their bytes, 100 each, stay in a cache of 2 MiB from one copy to the next
_LONG_RUN = 200  # rows: a run of them is copied quicker as a slice than row by row
_BEFORE_ALL = int(np.iinfo(np.int64).min)


class _Placed(NamedTuple):
    """Rows of one partition, their places, and the bytes that they keep in memory."""

    rows: pa.Table
    places: NDArray[np.int64]
    n_bytes: int


class _Source:
    """One partition: the rows that are read and not yet handed out."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = iter(tables)
        self.last = _BEFORE_ALL  # the place of the last row that was read
        self.held: deque[_Placed] = deque()

    def load(self) -> int | None:
        """Read on, and return the bytes of the new rows; None at the end."""
        for table in self._tables:
            if table.num_rows:
                times = table["timestamp"].cast(pa.int64()).to_numpy()
                places = np.maximum.accumulate(np.maximum(times, self.last))
                self.last = int(places[-1])
                self.held.append(_Placed(table, places, table.nbytes))
                return int(table.nbytes)
        return None

    def take(self, bound: int, side: Any) -> Iterator[_Placed]:  # noqa: ANN401 - numpy's literals
        """Hand out the rows below `bound`, or up to it if `side` is ``right``."""
        while self.held and self.held[0].places[0] <= bound:
            first = self.held[0]
            n_rows = int(first.places.searchsorted(bound, side))
            if n_rows == len(first.places):
                yield self.held.popleft()
                continue
            rows, places = first.rows.slice(n_rows), first.places[n_rows:]
            self.held[0] = first._replace(rows=rows, places=places)
            if n_rows:
                yield _Placed(first.rows.slice(0, n_rows), first.places[:n_rows], 0)
            return


def merge_by_timestamp(
    partitions: Sequence[Iterable[pa.Table]], most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Rows of all partitions in the order of time.

    `partitions`: rows of each in the order of offsets, with a column ``timestamp``; partitions
    themselves in the order of topic and partition.  `most_bytes`: of rows to read before some are
    handed out.  One table of each partition is in memory, or `most_bytes` and one table, if that
    is more, and the rows of the next result.
    """
    sources = [_Source(each) for each in partitions]
    # The partitions that are not read to their ends, by the places of the last rows read.  Unread
    # rows of the first one are not below its place, and those of the others are after it: above
    # the place, or equal to it in a later partition.
    unread = [(each.last, i) for i, each in enumerate(sources)]
    n_bytes = 0
    while unread or any(each.held for each in sources):
        while unread and (n_bytes < most_bytes or not sources[unread[0][1]].held):
            i = unread[0][1]
            loaded = sources[i].load()
            if loaded is None:
                heapq.heappop(unread)
            else:
                n_bytes += loaded
                heapq.heapreplace(unread, (sources[i].last, i))
        bound, least = unread[0] if unread else (np.iinfo(np.int64).max, len(sources))
        taken = [
            placed
            for i, source in enumerate(sources)
            for placed in source.take(bound, "right" if i <= least else "left")
        ]
        n_bytes -= sum(each.n_bytes for each in taken)
        yield from _in_order(taken)


def _in_order(taken: list[_Placed]) -> Iterator[pa.RecordBatch]:
    """Rows by their places; those of the same place in the order of `taken`, which is emptied."""
    if not taken:
        return
    order = np.concatenate([each.places for each in taken]).argsort(kind="stable")
    pieces = _Pieces([each.rows for each in taken])
    taken.clear()  # a piece is freed once its rows are handed out
    for begin in range(0, len(order), _MOST_ROWS):
        yield from pieces.rows(order[begin : begin + _MOST_ROWS]).combine_chunks().to_batches()


class _Pieces:
    """Tables of which each hands out its rows in their order."""

    # The rows of one result are copied together: they are few enough to stay in a cache, and all
    # rows are not.
    def __init__(self, tables: list[pa.Table]) -> None:
        n_rows = np.array([each.num_rows for each in tables])
        self._tables = tables
        self._ends = n_rows.cumsum()
        self._next = self._ends - n_rows  # the number of the row that each hands out next

    def rows(self, wanted: NDArray[np.int64]) -> pa.Table:
        """The rows of these numbers, of each table the next ones."""
        sources = self._ends.searchsorted(wanted, "right")
        begins = np.flatnonzero(np.diff(sources, prepend=-1))
        counts = np.bincount(sources, minlength=len(self._tables))
        if len(begins) * _LONG_RUN <= len(wanted):
            lengths = np.diff(begins, append=len(wanted))
            rows = self._joined(sources[begins], lengths)
        else:
            used = counts.nonzero()[0]
            shifts = self._next - (counts.cumsum() - counts)
            joined = self._joined(used, counts[used]).combine_chunks()
            rows = joined.take(pa.array(wanted - shifts[sources]))
        self._next += counts
        return rows

    def _joined(self, sources: NDArray[np.int64], lengths: NDArray[np.int64]) -> pa.Table:
        """The next rows of these tables, the given number of each, one run after the other."""
        runs = []
        for i, length in zip(sources.tolist(), lengths.tolist(), strict=True):
            table = self._tables[i]
            runs.append(table.slice(0, length))
            is_left = length < table.num_rows
            self._tables[i] = table.slice(length) if is_left else table.schema.empty_table()
        return pa.concat_tables(runs)
