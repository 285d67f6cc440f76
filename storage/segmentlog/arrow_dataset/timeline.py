"""Rows of several partitions, merged by time.

A partition has the order of its offsets, and its timestamps need not rise: producers set them, and
clocks differ.  So a row takes its place by the largest timestamp up to it in its partition.  The
rows of a partition keep their order, and a row that is older than one before it comes directly
behind that time, not at its own.  If timestamps rise within each partition, the result is sorted
by them.  Rows of the same place come in the order of topic, partition and offset.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["merge_by_timestamp"]

_MOST_ROWS = 50_000


class _Source:
    """One partition: the rows that are read and not yet handed out.

    Parameters
    ----------
    tables : its rows in order, with a column ``timestamp``.
    """

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = iter(tables)
        self._newest = np.iinfo(np.int64).min
        self.rows: pa.Table
        self.places: NDArray[np.int64]  # of the rows; they never fall

    def load(self) -> bool:
        """Take the next rows in the place of the rows that were handed out; False at the end."""
        for table in self._tables:
            if table.num_rows:
                times = table["timestamp"].cast(pa.int64()).to_numpy()
                self.places = np.maximum.accumulate(np.maximum(times, self._newest))
                self._newest = self.places[-1]
                self.rows = table
                return True
        return False

    def take(self, n_rows: int) -> tuple[pa.Table, NDArray[np.int64]]:
        """Hand out the first rows, and their places."""
        taken = self.rows.slice(0, n_rows), self.places[:n_rows]
        self.rows, self.places = self.rows.slice(n_rows), self.places[n_rows:]
        return taken


def merge_by_timestamp(partitions: Sequence[Iterable[pa.Table]]) -> Iterator[pa.RecordBatch]:
    """Rows of all partitions in the order of time.

    Parameters
    ----------
    partitions : rows of each in the order of offsets, with a column ``timestamp``; partitions
        themselves in the order of topic and partition.

    Notes
    -----
    One table of each partition is in memory, and the rows of the next result.
    """
    sources = [source for source in map(_Source, partitions) if source.load()]
    while sources:
        firsts = np.array([each.places[0] for each in sources])
        lasts = np.array([each.places[-1] for each in sources])
        # Unread rows of this source are not below its last place, and those of other sources are
        # behind it: above the place, or equal to it in a later partition.
        least = int(lasts.argmin())
        bound = lasts[least]
        taken = []
        for i in np.flatnonzero(firsts <= bound).tolist():
            side: Any = "right" if i <= least else "left"
            taken.append(sources[i].take(int(sources[i].places.searchsorted(bound, side))))
        order = np.concatenate([places for _, places in taken]).argsort(kind="stable")
        rows = pa.concat_tables([table for table, _ in taken])
        for begin in range(0, len(order), _MOST_ROWS):
            batch = rows.take(pa.array(order[begin : begin + _MOST_ROWS])).combine_chunks()
            yield from batch.to_batches()
        sources = [each for each in sources if len(each.places) or each.load()]
