"""One query of a dataset: what it reads, and the ways to take the result."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.arrow_dataset.ordered_reads import read_in_order
from segmentlog.arrow_dataset.projection import Projection
from segmentlog.model import LogSlice, ScanPolicy

__all__ = ["LogScanner", "Slices"]

#: Finds the slices that may hold rows for which a filter is true, in the order of their rows.
Slices = Callable[[pc.Expression | None], Iterator[LogSlice]]

_MOST_THREADS = 8  # more of them would wait for the consumer
_Columns = Sequence[str] | Mapping[str, pc.Expression] | None


class LogScanner:
    """A query, with the methods of ``pyarrow.dataset.Scanner``; it can be run several times.

    It is no ``Scanner`` by type: Arrow's C++ reads from those past Python.  For
    ``pyarrow.dataset.write_dataset`` and the like take `to_reader`.

    Parameters
    ----------
    slices : finds what to read.
    policy : how to read it.
    dataset_schema : its columns.
    columns, condition : see `segmentlog.arrow_dataset.projection.Projection`.
    batch_size : most rows of a batch.
    use_threads : whether several slices are read side by side; the order of rows is the same.
    """

    def __init__(
        self,
        slices: Slices,
        policy: ScanPolicy,
        dataset_schema: pa.Schema,
        columns: _Columns = None,
        condition: pc.Expression | None = None,
        *,
        batch_size: int | None = None,
        use_threads: bool = True,
    ) -> None:
        self._slices = slices
        self._policy = policy
        self._condition = condition
        self._projection = Projection(dataset_schema, columns, condition)
        self._batch_size = batch_size
        self._n_threads = min(pa.cpu_count(), _MOST_THREADS) if use_threads else 1
        self.dataset_schema = dataset_schema

    @property
    def projected_schema(self) -> pa.Schema:
        """Schema of the result."""
        return self._projection.schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Batches in the order of topic, partition and offset, read while they are taken."""
        return self._batches(self._n_threads)

    def _batches(self, n_threads: int) -> Iterator[pa.RecordBatch]:
        slices = self._slices(self._condition)
        return read_in_order((partial(self._read, each) for each in slices), n_threads)

    def _read(self, log_slice: LogSlice) -> Iterator[pa.RecordBatch]:
        """Rows of one slice that are kept."""
        from segmentlog.read.scan import scan_slice  # the compiled kernels load here

        projection = self._projection
        scanned = scan_slice(log_slice, columns=projection.needed, policy=self._policy)
        for batch in scanned:
            for kept in projection.apply(batch):
                yield from _cut(kept, self._batch_size)

    def to_reader(self) -> pa.RecordBatchReader:
        """The result as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """The result in memory."""
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """The first rows; nothing behind their batch is read."""
        taken: list[pa.RecordBatch] = []
        missing = num_rows
        batches = self._batches(1)
        while missing > 0:
            batch = next(batches, None)
            if batch is None:
                break
            taken.append(batch.slice(0, missing))
            missing -= taken[-1].num_rows
        return pa.Table.from_batches(taken, self.projected_schema)

    def count_rows(self) -> int:
        """Number of rows of the result."""
        return sum(batch.num_rows for batch in self.to_batches())

    def take(self, indices: Any) -> pa.Table:  # noqa: ANN401
        """Rows by their numbers in the result, in the order of `indices`."""
        wanted = np.asarray(indices, np.int64)
        rising = np.unique(wanted)
        taken, begin = [], 0
        for batch in self.to_batches():
            end = begin + batch.num_rows
            first, last = np.searchsorted(rising, (begin, end))
            if first < last:
                taken.append(batch.take(pa.array(rising[first:last] - begin)))
            begin = end
            if last == len(rising):
                break
        found = pa.Table.from_batches(taken, self.projected_schema)
        if found.num_rows < len(rising):
            reason = f"Index {rising[found.num_rows]} out of bounds: there are {begin} rows"
            raise pa.ArrowIndexError(reason)
        return found.take(pa.array(np.searchsorted(rising, wanted)))


def _cut(batch: pa.RecordBatch, n_rows: int | None) -> Iterator[pa.RecordBatch]:
    """`batch` in parts of at most `n_rows` rows, not copied; nothing if it is empty."""
    for begin in range(0, batch.num_rows, n_rows or max(batch.num_rows, 1)):
        yield batch.slice(begin, n_rows)
