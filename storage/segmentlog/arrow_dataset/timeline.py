"""Rows of several partitions, merged by time.

A partition has the order of its offsets, and its timestamps need not rise: producers set them, and
clocks differ.  So a row takes its place by the largest timestamp up to it in its partition.  The
rows of a partition keep their order, and a row that is older than one before it comes directly
behind that time, not at its own.  If timestamps rise within each partition, the result is sorted
by them.  Rows of the same place come in the order of topic, partition and offset.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["merge_by_timestamp"]

_MOST_ROWS = 50_000
_BEFORE_ALL = int(np.iinfo(np.int64).min)


class _Placed(NamedTuple):
    """Rows of one partition, their places, and the bytes that they keep in memory."""

    rows: pa.Table
    places: NDArray[np.int64]
    n_bytes: int


class _Source:
    """One partition: the rows that are read and not yet handed out.

    Parameters
    ----------
    tables : its rows in order, with a column ``timestamp``.
    """

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
            self.held[0] = first._replace(
                rows=first.rows.slice(n_rows), places=first.places[n_rows:]
            )
            if n_rows:
                yield _Placed(first.rows.slice(0, n_rows), first.places[:n_rows], 0)
            return


def merge_by_timestamp(
    partitions: Sequence[Iterable[pa.Table]], most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Rows of all partitions in the order of time.

    Parameters
    ----------
    partitions : rows of each in the order of offsets, with a column ``timestamp``; partitions
        themselves in the order of topic and partition.
    most_bytes : of rows to read before some are handed out.

    Notes
    -----
    One table of each partition is in memory, or `most_bytes` and one table, if that is more, and
    the rows of the next result.
    """
    sources = [_Source(each) for each in partitions]
    # The partitions that are not read to their ends, by the places of the last rows read.  Unread
    # rows of the first one are not below its place, and those of the others are behind it: above
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
    rows = pa.concat_tables([each.rows for each in taken]).combine_chunks()
    taken.clear()  # the rows were copied: the memory is free while the consumer works
    for begin in range(0, len(order), _MOST_ROWS):
        part = rows.take(pa.array(order[begin : begin + _MOST_ROWS]))
        yield from part.combine_chunks().to_batches()
