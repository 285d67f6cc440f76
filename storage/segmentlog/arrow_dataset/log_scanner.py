"""One query of a dataset: what it reads, and the ways to take the result."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.arguments import refused, whole_number
from segmentlog.arrow_dataset.narrowing import timestamp_range
from segmentlog.arrow_dataset.projection import Projection
from segmentlog.arrow_dataset.timeline import merge_by_timestamp
from segmentlog.errors import OptionError
from segmentlog.model import LogSlice, ScanPolicy, TimestampRange
from segmentlog.reads.ordered_reads import n_threads_of, read_in_order

if TYPE_CHECKING:
    from segmentlog.records.read_memory import ReadMemory

__all__ = ["LogScanner", "LogSource"]

_Columns = Sequence[str] | Mapping[str, pc.Expression] | None

#: Bytes that a merge holds of all partitions together, and at least and at most of one.  Each
#: piece opens its segment again: with 1 MiB, a merge of four partitions took a quarter longer.
_MERGED_BYTES, _LEAST_BYTES, _MOST_BYTES = 32 << 20, 32 << 10, 4 << 20

#: Bytes of log in the first piece of a partition, before it is known what rows they make.
_FIRST_BYTES = 16 << 10


class LogSource(Protocol):
    """The source of a scanner: a dataset, or one slice of it."""

    @property
    def policy(self) -> ScanPolicy:
        """The policy of its reads."""

    def slices(
        self, condition: pc.Expression | None, timestamps: TimestampRange | None
    ) -> Iterator[LogSlice]:
        """Slices that may hold rows for which `condition` is true, in the order of their rows."""

    def cut(self, log_slice: LogSlice, n_bytes: int) -> list[LogSlice]:
        """A slice in smaller pieces."""


class LogScanner:
    """A query, with the methods of ``pyarrow.dataset.Scanner``; it can be run several times.

    It is not a ``Scanner`` by type: Arrow's C++ would read from a ``Scanner`` without calling
    Python.  For ``pyarrow.dataset.write_dataset`` and similar functions, take `to_reader`.

    Parameters
    ----------
    source : what to read.
    dataset_schema : its columns.
    columns, condition : see `segmentlog.arrow_dataset.projection.Projection`.
    order : ``offset``: topics and partitions one after the other; or ``timestamp``, see
        `segmentlog.arrow_dataset.timeline`.
    batch_size : most rows of a batch.
    use_threads : whether several slices are read side by side; the order of rows is the same.
    """

    def __init__(
        self,
        source: LogSource,
        dataset_schema: pa.Schema,
        columns: _Columns = None,
        condition: pc.Expression | None = None,
        *,
        order: str = "offset",
        batch_size: int | None = None,
        use_threads: bool = True,
    ) -> None:
        if order not in ("offset", "timestamp"):
            raise OptionError("order", str(order), "it is 'offset' or 'timestamp'")
        self._source = source
        self._condition = condition
        self._is_timeline = order == "timestamp"
        self._columns = dataset_schema.names if columns is None else columns
        self._projection = Projection(dataset_schema, columns, condition)
        if batch_size is not None:
            batch_size = whole_number("batch_size", batch_size, 1)
        self._batch_size = batch_size
        self._n_threads = n_threads_of(use_threads=use_threads)
        self.dataset_schema = dataset_schema

    @cached_property
    def _policy(self) -> ScanPolicy:
        """The policy of reads: batches of times that the filter leaves out are not decoded."""
        policy = self._source.policy
        if policy.timestamps is None:
            return policy._replace(timestamps=timestamp_range(self._condition))
        return policy

    @property
    def projected_schema(self) -> pa.Schema:
        """Schema of the result."""
        return self._projection.schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Batches in the order of the scan, read while they are taken."""
        return self._batches(self._n_threads)

    def _batches(self, n_threads: int) -> Iterator[pa.RecordBatch]:
        if self._is_timeline:
            return self._merged()
        slices = self._source.slices(self._condition, self._policy.timestamps)
        return self._in_order(slices, n_threads)

    def _in_order(self, slices: Iterable[LogSlice], n_threads: int) -> Iterator[pa.RecordBatch]:
        from segmentlog.records.read_memory import ReadMemory

        with ReadMemory() as memory:
            reads = (partial(self._read, each, memory) for each in slices)
            yield from read_in_order(reads, n_threads)

    def _read(self, log_slice: LogSlice, memory: "ReadMemory") -> Iterator[pa.RecordBatch]:
        """Rows of one slice that are kept."""
        scanned = self._scan(log_slice, self._projection, memory)
        if self._batch_size is None:
            return (batch for batch in scanned if batch.num_rows)
        return (part for batch in scanned for part in _cut(batch, self._batch_size))

    def _scan(
        self, log_slice: LogSlice, projection: Projection, memory: "ReadMemory | None" = None
    ) -> Iterator[pa.RecordBatch]:
        from segmentlog.reads.scan import scan_slice  # the compiled kernels load here

        columns, policy = projection.needed, self._policy
        for batch in scan_slice(log_slice, columns=columns, policy=policy, memory=memory):
            yield from projection.apply(batch)

    def _merged(self) -> Iterator[pa.RecordBatch]:
        """Rows of all partitions by time: filtered, then merged, then made into the columns."""
        decoded = [
            name
            for name in self.dataset_schema.names
            if name in (*self._projection.needed, "timestamp")
        ]
        kept = Projection(self.dataset_schema, decoded, self._condition)
        made = Projection(kept.schema, self._columns, None)
        slices = list(self._source.slices(self._condition, self._policy.timestamps))
        partitions = [list(each) for _, each in groupby(slices, lambda each: each[:2])]
        n_bytes = _MERGED_BYTES // 2 // max(len(partitions), 1)
        n_bytes = min(max(n_bytes, _LEAST_BYTES), _MOST_BYTES)
        most_bytes = max(_MERGED_BYTES, 2 * n_bytes * len(partitions))
        tables = [self._tables(each, kept, n_bytes) for each in partitions]
        for merged in merge_by_timestamp(tables, most_bytes):
            for batch in made.apply(merged):
                yield from _cut(batch, self._batch_size)

    def _tables(
        self, slices: Sequence[LogSlice], projection: Projection, n_bytes: int
    ) -> Iterator[pa.Table]:
        """Rows of one partition in tables of about `n_bytes`; no file and no decoder stays open.

        Compressed rows take many times the bytes of their log.  So the first piece is small, and
        shows how much log makes a table.
        """
        growth = 0.0  # most bytes of rows that a byte of log has made
        for log_slice in slices:
            pieces = self._pieces(log_slice, n_bytes, growth)
            while pieces:
                piece = pieces.popleft()
                n_made = 0
                for table in self._read_whole(piece, projection):
                    n_made += table.nbytes
                    yield table
                found = max(n_made / max(piece.n_bytes, 1), 1.0)
                if found > 2 * growth:
                    growth = found
                    if pieces:
                        rest = log_slice._replace(start_offset=pieces[0].start_offset)
                        pieces = self._pieces(rest, n_bytes, growth)

    def _pieces(self, log_slice: LogSlice, n_bytes: int, growth: float) -> deque[LogSlice]:
        """A slice in pieces of about `n_bytes` of rows; at first a small one and the rest."""
        if growth:
            return deque(self._source.cut(log_slice, max(int(n_bytes / growth), 1)))
        start, end = log_slice.offsets
        middle = start + (end - start) * _FIRST_BYTES // max(log_slice.n_bytes, 1)
        if not start < middle < end:
            return deque([log_slice])
        first = self._source.cut(log_slice._replace(end_offset=middle), 0)
        return deque([*first, log_slice._replace(start_offset=middle)])

    def _read_whole(self, piece: LogSlice, projection: Projection) -> Iterator[pa.Table]:
        """Rows of a piece, at once if that does not take much more memory than was meant.

        A read that waits for its turn keeps the memory of its decoder: 8 MiB of a compressed log.
        """
        held, n_bytes = [], 0
        for table in (_compact(batch) for batch in self._scan(piece, projection)):
            held.append(table)
            n_bytes += table.nbytes
            if n_bytes >= _MOST_BYTES:
                yield pa.concat_tables(held)
                held, n_bytes = [], 0
        if held:
            yield pa.concat_tables(held)

    def to_reader(self) -> pa.RecordBatchReader:
        """The result as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """The result in memory."""
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """The first rows; nothing after their batch is read."""
        taken: list[pa.RecordBatch] = []
        missing = whole_number("num_rows", num_rows)
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
        numbers = np.asarray(indices)
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise refused("indices", indices, "give row numbers, counted from 0")
        wanted = numbers.astype(np.int64)
        rising = np.unique(wanted)
        if len(rising) and rising[0] < 0:
            raise pa.ArrowIndexError(f"Index {rising[0]} out of bounds: rows count from 0")
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


def _compact(batch: pa.RecordBatch) -> pa.Table:
    """A copy of the rows: a decoder's batch keeps memory for more rows than it has.

    ``combine_chunks`` does not copy a table of one batch.
    """
    columns = [pa.concat_arrays([column]) for column in batch.columns]
    return pa.Table.from_arrays(columns, schema=batch.schema)


def _cut(batch: pa.RecordBatch, n_rows: int | None) -> Iterator[pa.RecordBatch]:
    """`batch` in parts of at most `n_rows` rows, not copied; nothing if it is empty."""
    for begin in range(0, batch.num_rows, n_rows or max(batch.num_rows, 1)):
        yield batch.slice(begin, n_rows)
