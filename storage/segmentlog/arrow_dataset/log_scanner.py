"""One query of a dataset: its columns, what it reads, and the ways to take the result.

Rows come in the order of topic, partition and offset, or as a timeline, which merges partitions by
time (`merge_by_timestamp`).  A partition has the order of its offsets, and its timestamps need not
rise: producers set them, and clocks differ.  So the place of a row in the timeline is the largest
timestamp up to that row in its partition.  The rows of a partition keep their order, and a row
that is older than an earlier row is placed after that row, not at its own timestamp.  If
timestamps rise within each partition, the result is sorted by them.  Rows of the same place come
in the order of topic, partition and offset.
"""

import contextlib
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import acero

from segmentlog.arguments import class_of_one_dialect, instance_of, refused, texts, whole_number
from segmentlog.arrow_dataset.bounds import timestamp_range
from segmentlog.errors import UndecodableValueError
from segmentlog.format.records.columns import COLUMNS, Arenas, n_bytes_of, record_schema
from segmentlog.format.records.interleaved import InterleavedRows
from segmentlog.format.records.one_pass import ReadMemory
from segmentlog.model import LogSlice, ScanPolicy, TopicPartition
from segmentlog.reads.ordered_reads import n_threads_of, read_in_order
from segmentlog.reads.scan import scan_slice

if TYPE_CHECKING:
    from segmentlog.arrow_dataset.log_dataset import Scannable
    from segmentlog.decoding.rows import Decoding, Skipped

#: How Arrow prints a column that is given by its number.
_BY_NUMBER = "FieldPath("

_Columns = Sequence[str] | Mapping[str, pc.Expression] | None


class Projection:
    """The filter and the columns of one query.

    `columns`: names, or expressions by name; None for all.  `condition`: rows for which it is true
    are kept; None keeps all.  `needed`: names of the columns to decode, in the order of the
    dataset; at least one.  `scanned`: names of the columns of records that they are made of.

    Of `decoding`, keys and values are decoded after rows are left out by other columns: a value
    that nobody asks for cannot fail a query.
    """

    def __init__(
        self,
        schema: pa.Schema,
        columns: _Columns,
        condition: pc.Expression | None,
        decoding: "Decoding | None" = None,
    ) -> None:
        self._condition = condition
        self._names: list[str] | None = None
        self._expressions: list[pc.Expression] = []
        if columns is None:
            self._names = schema.names
        elif isinstance(columns, Mapping):
            self._expressions = list(columns.values())
        else:
            self._names = list(texts("columns", columns, "give a list of names, or a dict"))
            for name in self._names:
                if name not in schema.names:
                    reason = f"No column {name!r}: columns are {', '.join(schema.names)}"
                    raise pa.ArrowInvalid(reason)
        used = [*self._expressions, *([] if condition is None else [condition])]
        found = named_in(schema, used) | {*(self._names or ())}
        self.needed = [name for name in schema.names if name in found]
        if not self.needed:  # a column that costs nothing if it can be had, to count rows
            self.needed = ["partition"] if "partition" in schema.names else schema.names[:1]
        self._outputs = list(columns) if isinstance(columns, Mapping) else []
        decoded = pa.schema([schema.field(name) for name in self.needed])
        # Without rows it shows whether the filter can be evaluated, and the resulting schema.
        empty = pa.Table.from_batches([], decoded)
        self.schema: pa.Schema = self._apply(empty).schema
        self.scanned, self._decoding = self.needed, decoding
        self._before: Projection | None = None
        if decoding is not None:
            self.scanned = decoding.scanned(self.needed)
            if condition is not None and not named_in(schema, [condition]) & decoding.made:
                kept = [name for name in self.scanned if name in {*schema.names} - decoding.made]
                fields = {name: schema.field(name) for name in kept}
                scanned = [fields.get(each.name, each) for each in record_schema(self.scanned)]
                self._before = Projection(pa.schema(scanned), self.scanned, condition)
                self._condition = None

    @property
    def decodes_last(self) -> bool:
        """Whether all rows that are decoded are kept."""
        return self._condition is None and self._decoding is not None and not self._decoding.skips

    def apply(
        self,
        batch: pa.RecordBatch,
        topic_partition: TopicPartition | None = None,
        skipped: "Skipped | None" = None,
        wanted: Callable[[], int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows of `batch`, which has at least the columns `scanned`, that are kept.

        `skipped`: gets what is left out because it cannot be decoded.  `wanted`: the number of
        rows that are still wanted; a value after the last of them fails nothing.
        """
        if self._decoding is None:
            yield from self._kept(batch)
            return
        decode = partial(
            self._decoding.decoded,
            wanted=self.needed,
            skipped=skipped,
            topic_partition=topic_partition,
        )
        for rows in [batch] if self._before is None else self._before.apply(batch):
            parts = map(decode, [rows]) if wanted is None else _in_turn(rows, decode, wanted)
            for decoded in parts:
                if decoded.num_rows:
                    yield from self._kept(decoded)

    def _kept(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if self._condition is None and self._names is not None:
            yield batch if self._names == batch.schema.names else batch.select(self._names)
            return
        yield from self._apply(pa.Table.from_batches([batch])).to_batches()

    def _apply(self, table: pa.Table) -> pa.Table:
        steps = [acero.Declaration("table_source", acero.TableSourceNodeOptions(table))]
        if self._condition is not None:
            steps.append(acero.Declaration("filter", acero.FilterNodeOptions(self._condition)))
        if self._names is None:
            options = acero.ProjectNodeOptions(self._expressions, self._outputs)
            steps.append(acero.Declaration("project", options))
        done = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
        return done if self._names is None else done.select(self._names)


_Decode = Callable[[pa.RecordBatch], pa.RecordBatch]


def _in_turn(
    rows: pa.RecordBatch, decode: _Decode, wanted: Callable[[], int]
) -> Iterator[pa.RecordBatch]:
    """Rows in parts of those that are wanted, or if a filter keeps few, of more and more."""
    begin = 0
    while begin < rows.num_rows:
        part = rows.slice(begin, max(wanted(), begin))
        yield from _halved(part, decode, wanted)
        begin += part.num_rows


def _halved(
    rows: pa.RecordBatch, decode: _Decode, wanted: Callable[[], int]
) -> Iterator[pa.RecordBatch]:
    """Rows; if one fails, those before it first, which may be all that are wanted."""
    try:
        decoded = decode(rows)
    except UndecodableValueError:
        if rows.num_rows <= wanted():
            raise
        half = rows.num_rows // 2
        for part in (rows.slice(0, half), rows.slice(half)):
            yield from _halved(part, decode, wanted)
    else:
        yield decoded


def named_in(schema: pa.Schema, expressions: Sequence[pc.Expression]) -> set[str]:
    """Names of the columns that expressions use."""
    # Arrow shows no parts of an expression. But it refuses an expression over a table that lacks
    # one of its columns. If columns are given by their numbers, all are taken as used.
    names: set[str] = set()
    for expression in expressions:
        if _BY_NUMBER in str(expression):
            return set(schema.names)
        _binds(schema, expression)
        for i, name in enumerate(schema.names):
            try:
                _binds(schema.remove(i), expression)
            except pa.ArrowInvalid:
                names.add(name)
    return names


def _binds(schema: pa.Schema, expression: pc.Expression) -> Any:  # noqa: ANN401
    source = acero.TableSourceNodeOptions(pa.Table.from_batches([], schema))
    project = acero.ProjectNodeOptions([expression], ["it"])
    steps = [acero.Declaration("table_source", source), acero.Declaration("project", project)]
    return acero.Declaration.from_sequence(steps).to_table(use_threads=False)


#: Bytes that a merge holds of all partitions together, and at least and at most of one.  Each
#: piece opens its segment again: with 1 MiB, a merge of four partitions took a quarter longer.
MERGED_BYTES, _LEAST_BYTES, _MOST_BYTES = 32 << 20, 32 << 10, 4 << 20

#: Reads of so many partitions stay open: to begin each again for each table took a fifth of the
#: time of a merge of four.
_FEW_PARTITIONS = 8

_NEAR_BYTES = 1 << 20  # of log that a merge may skip to go on in a partition


@class_of_one_dialect()
class LogScanner:
    """A query, with the methods of ``pyarrow.dataset.Scanner``; it can be run several times.

    It is not a ``Scanner`` by type: Arrow's C++ would read from a ``Scanner`` without calling
    Python.  ``pyarrow.dataset.write_dataset`` and similar functions take it as a stream.

    `columns`, `condition`: see `Projection`.  `order`: ``offset``: topics and partitions one after
    the other; or ``timestamp``, for a timeline.  `batch_size`: most rows of a batch.
    `use_threads`: whether several slices are read side by side; the order of rows is the same.
    """

    def __init__(
        self,
        source: "Scannable",
        dataset_schema: pa.Schema,
        columns: _Columns = None,
        condition: pc.Expression | None = None,
        *,
        order: str = "offset",
        batch_size: int | None = None,
        use_threads: bool = True,
    ) -> None:
        instance_of("order", order, str, "it is 'offset' or 'timestamp'")
        if order not in ("offset", "timestamp"):
            raise refused("order", order, "it is 'offset' or 'timestamp'")
        self._source = source
        self._condition = condition
        self._is_timeline = order == "timestamp"
        self._columns = dataset_schema.names if columns is None else columns
        self._decoding = source.decoding
        self._projection = Projection(dataset_schema, columns, condition, self._decoding)
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
            times = timestamp_range(self._condition, self.dataset_schema)
            return policy._replace(timestamps=times)
        return policy

    @property
    def projected_schema(self) -> pa.Schema:
        """Schema of the result."""
        return self._projection.schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Batches in the order of the scan, read while they are taken."""
        return self._batches(self._n_threads)

    def _batches(
        self, n_threads: int, wanted: Callable[[], int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        skipped = None if self._decoding is None else self._decoding.new_count()
        try:
            if self._is_timeline:
                yield from self._merged(skipped, wanted)
                return
            slices = self._source.slices(self._condition, self._policy.timestamps)
            with ReadMemory() as memory:
                reads = (partial(self._read, each, memory, skipped, wanted) for each in slices)
                yield from read_in_order(reads, n_threads)
        finally:
            if skipped is not None:
                skipped.warn()

    def _read(
        self,
        log_slice: LogSlice,
        memory: ReadMemory,
        skipped: "Skipped | None",
        wanted: Callable[[], int] | None,
    ) -> Iterator[pa.RecordBatch]:
        columns, policy = self._projection.scanned, self._policy
        for scanned in scan_slice(log_slice, columns=columns, policy=policy, memory=memory):
            for batch in self._projection.apply(
                scanned, log_slice.topic_partition, skipped, wanted
            ):
                yield from _cut(batch, self._batch_size)

    def _merged(
        self, skipped: "Skipped | None", wanted: Callable[[], int] | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of all partitions by time: filtered, then merged, then made into the columns."""
        kept, apply = self._before_and_after_merge(skipped, wanted)
        slices = list(self._source.slices(self._condition, self._policy.timestamps))
        partitions = [list(each) for _, each in groupby(slices, lambda each: each[:2])]
        n_bytes = MERGED_BYTES // 2 // max(len(partitions), 1)
        n_bytes = min(max(n_bytes, _LEAST_BYTES), _MOST_BYTES)
        most_bytes = max(MERGED_BYTES, 2 * n_bytes * len(partitions))
        with ReadMemory(n_bytes) as memory:
            are_few = len(partitions) <= _FEW_PARTITIONS
            tables = [
                self._tables(each, kept, n_bytes, memory, skipped, stays_open=are_few)
                for each in partitions
            ]
            for merged in merge_by_timestamp(tables, most_bytes):
                for batch in apply(merged):
                    yield from _cut(batch, self._batch_size)

    def _before_and_after_merge(
        self, skipped: "Skipped | None", wanted: Callable[[], int] | None
    ) -> "tuple[Projection, Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]]":
        """What is done with the rows of each partition, and what with the merged ones.

        Values are decoded after the merge, which then holds fewer bytes, and `head` decodes no
        others.  But a row that a field leaves out, or that cannot be decoded, has no place among
        those that are merged.
        """
        schema, whole = self.dataset_schema, self._projection
        if self._decoding is not None and whole.decodes_last:
            needed = {*whole.scanned, "topic", "partition", "offset", "timestamp"}
            fields = [
                schema.field(each.name)
                if each.name in {*schema.names} - self._decoding.made
                else each
                for each in record_schema([name for name in COLUMNS if name in needed])
            ]
            records = pa.schema(fields)
            kept = Projection(records, records.names, self._condition)
            made = Projection(schema, self._columns, None, self._decoding)
            return kept, partial(made.apply, skipped=skipped, wanted=wanted)
        names = {*whole.needed, "timestamp"}
        decoded = [name for name in schema.names if name in names]
        kept = Projection(schema, decoded, self._condition, self._decoding)
        return kept, Projection(kept.schema, self._columns, None).apply

    def _tables(
        self,
        slices: Sequence[LogSlice],
        projection: Projection,
        n_bytes: int,
        memory: ReadMemory,
        skipped: "Skipped | None",
        *,
        stays_open: bool,
    ) -> Iterator[pa.Table]:
        """Rows of one partition in tables of about `n_bytes`, or of one batch of the log.

        `stays_open`: whether a read waits for its turn with its decoder's memory and its file.
        Otherwise it ends with each table, and the next one begins after it.
        """
        columns = list(dict.fromkeys(["offset", *projection.scanned]))
        todo = deque(slices)
        while todo:
            piece, held, n_held = todo.popleft(), list[pa.Table](), 0
            can_resume = not stays_open
            if can_resume and piece.n_bytes > _NEAR_BYTES:
                # An index has to lead near each offset of the slice.
                last = self._source.cut(piece._replace(start_offset=piece.end_offset - 1), 0)
                can_resume = sum(each.n_bytes for each in last) <= _NEAR_BYTES
            scan = scan_slice(piece, columns=columns, policy=self._policy, memory=memory)
            with contextlib.closing(scan):
                for batch in scan:
                    scanned = batch.select(projection.scanned)
                    for rows in projection.apply(scanned, piece.topic_partition, skipped):
                        of_rows = n_bytes_of(rows)
                        n_held += of_rows
                        fills_memory = 2 * of_rows >= n_bytes
                        held.append(
                            pa.Table.from_batches([rows]) if fills_memory else _compact(rows)
                        )
                    if n_held < n_bytes:
                        continue
                    if can_resume:
                        next_offset = batch["offset"][-1].as_py() + 1
                        rest = piece._replace(start_offset=next_offset)
                        if next_offset < piece.end_offset:
                            todo.extendleft(reversed(self._source.cut(rest, 0)))
                        break
                    yield pa.concat_tables(held)
                    held, n_held = [], 0
            if held:
                yield pa.concat_tables(held)

    def to_reader(self) -> pa.RecordBatchReader:
        """The result as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The result as a stream, by Arrow's protocol for all libraries."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_table(self) -> pa.Table:
        """The result in memory."""
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """The first rows; nothing after their batch is read, and nothing after them is decoded."""
        taken: list[pa.RecordBatch] = []
        missing = whole_number("num_rows", num_rows)
        batches = self._batches(1, lambda: missing)
        while missing > 0 and (batch := next(batches, None)) is not None:
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
    """A copy of the rows: a decoder's batch keeps memory for more rows than it has."""
    # ``combine_chunks`` does not copy a table of one batch.
    columns = [pa.concat_arrays([column]) for column in batch.columns]
    return pa.Table.from_arrays(columns, schema=batch.schema)


def _cut(batch: pa.RecordBatch, n_rows: int | None) -> Iterator[pa.RecordBatch]:
    """`batch` in parts of at most `n_rows` rows, not copied; nothing if it is empty."""
    for begin in range(0, batch.num_rows, n_rows or max(batch.num_rows, 1)):
        yield batch.slice(begin, n_rows)


_MOST_ROWS = 50_000  # of a result, as of a scan
_ARENA_BYTES = 8 << 20  # of keys, or of values, of a result; larger ones are Arrow's
_BEFORE_ALL = int(np.iinfo(np.int64).min)


class _Placed(NamedTuple):
    """Rows of one partition, their places, and the bytes that they keep in memory."""

    rows: pa.RecordBatch
    places: NDArray[np.int64]
    n_bytes: int


class _PartitionRows:
    """One partition: the rows that are read and not yet handed out."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = iter(tables)
        self.last = _BEFORE_ALL  # the place of the last row that was read
        self.held: deque[_Placed] = deque()

    def load(self) -> int | None:
        """Read on, and return the bytes of the new rows; None at the end."""
        for table in self._tables:
            n_before = len(self.held)
            for rows in filter(len, table.to_batches()):
                times = rows["timestamp"].cast(pa.int64()).to_numpy()
                places = np.maximum.accumulate(np.maximum(times, self.last))
                self.last = int(places[-1])
                self.held.append(_Placed(rows, places, n_bytes_of(rows)))
            if len(self.held) > n_before:
                return sum(each.n_bytes for each in islice(self.held, n_before, None))
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
    sources = [_PartitionRows(each) for each in partitions]
    arenas = Arenas(_ARENA_BYTES, 1)
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
        yield from _in_order(taken, arenas)


def _in_order(taken: list[_Placed], arenas: Arenas) -> Iterator[pa.RecordBatch]:
    """Rows by their places; those of the same place in the order of `taken`, which is emptied."""
    if not taken:
        return
    # A stable sort of numpy merges the runs that it finds.
    order = np.concatenate([each.places for each in taken]).argsort(kind="stable")
    batches = [each.rows for each in taken]
    taken.clear()  # a piece is freed once its rows are handed out
    interleaved = InterleavedRows(batches, order, arenas)
    for begin in range(0, len(order), _MOST_ROWS):
        yield from interleaved.rows(begin, min(begin + _MOST_ROWS, len(order)))
