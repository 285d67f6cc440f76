"""Rows of Arrow columns to record batches of magic 2: cut, write, optionally compress, seal.

Kafka's producer and ``MemoryRecordsBuilder`` work record by record; a call here encodes all rows
of a partition.  Base offsets count from 0 and leader epochs are 0 until
`segmentlog.format.kernels.encode.assign_offsets` sets those of the log, as a broker does on
arrival.

`record_source` shows Arrow columns in the form that `format.kernels.encode` takes: mostly views,
few copies.  `cut_rows` first cuts the rows of one Arrow batch into pieces that stay small when
they are decoded.  The bytes of a column show little about its rows if many rows share one value:
an entry of a dictionary, or bytes that many views point to.  A dictionary of one value of 1 MiB
with an index of 3,000 rows takes 1 MiB, but makes 3 GiB of records.  So each row is measured by
its decoded size.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from segmentlog.errors import ColumnError, InvalidRecordError, RecordTooLargeError
from segmentlog.format.kernels import layout, status
from segmentlog.format.kernels.encode import (
    FIRST_ROW,
    MAX_TIMESTAMP_OFFSET,
    MOST_OVERHEAD,
    N_BATCH_COLUMNS,
    seal_batches,
    write_batches,
)
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.format.kernels.source import (
    BinaryArrays,
    Ends,
    SourceArrays,
    measure_rows,
    most_row_bytes,
)
from segmentlog.format.records.columns import n_bytes_of
from segmentlog.format.records.compression import Deflater
from segmentlog.model import (
    BATCH_SIZE,
    LARGEST_LONG,
    MAX_INFLATED_BATCH_BYTES,
    MAX_MESSAGE_BYTES,
    Codec,
    TopicPartition,
)

_ACCEPTED = {
    "key": "a key is binary or string",
    "value": "a value is binary or string",
    "headers": "headers are array<struct<key: string, value: binary>>",
}
_OUT_OF_ORDER = "bounds of a column of {} are not in order, or lie outside its values"
#: Matches the names of Arrow's types that have bounds of 64 bits, or whose values may need them.
_WIDE = re.compile("large|view")
#: A column is copied, to get `COPY_SLACK` bytes after it, if it has at most this many bytes
#: for each row that lacks them: keys that are nearly all null, for example.
_SPARSE_BYTES = 16


def record_source(batch: pa.RecordBatch, timestamps: Int64s) -> SourceArrays:
    """Columns ``key``, ``value`` and ``headers`` of `batch`; a missing column is all null.

    The views keep the memory of the columns alive.  Keys and values are binary or string, also of
    a fixed size, in dictionaries, large or as views; headers are lists of them.  `timestamps`:
    int64 array, shape (n_rows,); epoch milliseconds, -1 for none.  Raises `ColumnError` if a
    column has another type; `pyarrow.ArrowInvalid` or `pyarrow.ArrowIndexError` if the buffers of
    `batch` are smaller than its lengths, or bounds lie outside the buffers.
    """
    if timestamps.shape != (batch.num_rows,):
        message = f"{len(timestamps)} timestamps for {batch.num_rows} rows"
        raise ValueError(message)
    batch.validate()
    n_rows = batch.num_rows
    columns = {name: batch.column(name) for name in _ACCEPTED if name in batch.schema.names}
    # All columns get one width: a kernel is compiled for each of two, and for no mixture.
    is_wide = any(_WIDE.search(str(column.type)) for column in columns.values())
    kind = pa.large_binary() if is_wide else pa.binary()
    keys = _binary(_cast(columns, "key", n_rows, kind))
    values = _binary(_cast(columns, "value", n_rows, kind))
    headers = _headers(columns, n_rows, kind)
    list_ends, pairs = headers[0], headers[3:]
    # Rows without headers, or whose headers have `COPY_SLACK` bytes after them.
    n_wide_lists = _n_below(list_ends, min(map(_n_wide_rows, pairs))) if len(list_ends) else n_rows
    source = SourceArrays(
        array_view(timestamps),
        keys,
        values,
        *headers,
        pooled_array(n_rows, np.int64),
        min(_n_wide_rows(keys), _n_wide_rows(values), n_wide_lists),
    )
    if not measure_rows(source):
        raise pa.ArrowInvalid(_OUT_OF_ORDER.format(kind))
    return source


def array_view(array: NDArray[Any]) -> NDArray[Any]:
    """The array, read-only and without gaps."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def pooled_array(n_items: int, dtype: DTypeLike) -> NDArray[Any]:
    """An array that is not filled, in memory of Arrow's pool, which keeps freed memory."""
    # Numpy returns arrays as large as a task's rows to the system at once, and gets them back with
    # a page fault for each 4 KiB, which took a fifth of the time of staging.
    return np.frombuffer(pa.allocate_buffer(n_items * np.dtype(dtype).itemsize), dtype)


def buffer_view(
    buffer: pa.Buffer, dtype: DTypeLike, n_items: int = -1, start: int = 0
) -> NDArray[Any]:
    """Items of an Arrow buffer from byte `start` on, read-only."""
    return array_view(np.frombuffer(buffer, dtype, n_items, start))


_NO_BYTES: Bytes = array_view(np.empty(0, np.uint8))


def bitmap_view(array: pa.Array) -> tuple[Bytes, int]:
    """Bitmap of the rows that are not null, empty if no row is null, and the bit of the first."""
    if not array.null_count:
        return _NO_BYTES, 0
    return buffer_view(array.buffers()[0], np.uint8), array.offset


def _cast(columns: dict[str, pa.Array], name: str, n_rows: int, kind: pa.DataType) -> pa.Array:
    """The column as `kind`; all null if it is missing."""
    column = columns.get(name)
    return pa.nulls(n_rows, kind) if column is None else cast_column(name, column, kind)


def cast_column(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column ``key``, ``value`` or ``headers`` as `kind`.

    Raises `ColumnError` if its type cannot be written; `pyarrow.ArrowInvalid` or
    `pyarrow.ArrowIndexError` if its values point outside of it, or are too many for `kind`.
    """
    if pa.types.is_dictionary(column.type) and not _are_bytes(column.type.value_type):
        raise ColumnError(name, str(column.type), _ACCEPTED[name])
    if "view" in str(column.type):
        column.validate(full=True)  # a cast reads the targets of views unchecked
    try:
        return column.cast(kind)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ColumnError(name, str(column.type), _ACCEPTED[name]) from error


def _are_bytes(kind: pa.DataType) -> bool:
    """Whether values of a dictionary can be written; a cast refuses numbers with another error."""
    is_narrow = pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_null(kind)
    is_wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    return bool(is_narrow or is_wide or pa.types.is_fixed_size_binary(kind))


def _ends(array: pa.Array, n_items: int) -> Ends:
    """Bounds of a column of `n_items` bytes or headers; the first and the last one are checked."""
    ends: Ends = array_view(_bounds(array))
    if ends[0] < 0 or ends[-1] > n_items:
        raise pa.ArrowInvalid(_OUT_OF_ORDER.format(array.type))
    return ends


def _binary(array: pa.Array) -> BinaryArrays:
    buffer = array.buffers()[2]
    data = _NO_BYTES if buffer is None else buffer_view(buffer, np.uint8)
    column = BinaryArrays(_ends(array, data.size), *bitmap_view(array), data)
    if data.size <= _SPARSE_BYTES * (len(array) - _n_wide_rows(column)):
        padded = np.concatenate([data, np.zeros(COPY_SLACK, np.uint8)])
        return column._replace(data=array_view(padded))
    return column


def _n_wide_rows(column: BinaryArrays) -> int:
    """The number of rows that have `COPY_SLACK` bytes of the column after them."""
    return _n_below(column.ends, min(column.data.size - COPY_SLACK, int(column.ends[-1])))


def _n_below(ends: Ends, limit: int) -> int:
    # The limit has the type of the bounds, or numpy would convert all bounds.
    after = np.searchsorted(ends, ends.dtype.type(limit), side="right")
    return max(0, int(after) - 1)


def _headers(
    columns: dict[str, pa.Array], n_rows: int, kind: pa.DataType
) -> tuple[Ends, Bytes, int, BinaryArrays, BinaryArrays]:
    """Bounds, bitmap and its first bit of the lists of headers; their keys and their values."""
    if "headers" not in columns:
        nothing = _binary(pa.nulls(0, kind))
        return nothing.ends[:0], _NO_BYTES, 0, nothing, nothing
    of_pairs = headers_type(columns["headers"].type, kind)
    lists = _cast(columns, "headers", n_rows, of_pairs)
    pairs = lists.values.flatten()  # a pair that is null has a null key
    keys, values = (_binary(each) for each in pairs)
    ends = _ends(lists, len(pairs[0]))
    for each in (ends, keys.ends, values.ends):  # `measure_rows` looks at keys and values only
        if np.any(each[1:] < each[:-1]):
            raise pa.ArrowInvalid(_OUT_OF_ORDER.format(lists.type))
    return ends, *bitmap_view(lists), keys, values


def headers_type(given: pa.DataType, kind: pa.DataType) -> pa.DataType:
    """Lists of headers whose keys and values have the type `kind`; or `ColumnError`."""
    if not _are_headers(given):
        raise ColumnError("headers", str(given), _ACCEPTED["headers"])
    pair = pa.struct([pa.field("key", kind), pa.field("value", kind)])
    return pa.large_list(pair) if _WIDE.match(str(kind)) else pa.list_(pair)


def _are_headers(kind: pa.DataType) -> bool:
    """Whether these are lists of pairs, or nothing but nulls: a cast would invent the fields."""
    if pa.types.is_null(kind):
        return True
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return (
        is_list
        and pa.types.is_struct(kind.value_type)
        and [field.name for field in kind.value_type] == ["key", "value"]
    )


#: The limit of 32-bit bounds of a decoded column, and of a batch's length.
MOST_ROW_BYTES = 2**31 - 1

#: Types in which many rows may share one value.
_SHARING = re.compile("dictionary|view")
#: Rows that are measured at once: each takes 8 bytes, in several arrays.
_WINDOW_ROWS = 1 << 20
#: Most bytes of a piece, below the limit of 32-bit bounds of a decoded column.
_MOST_BYTES = 1 << 30
_BOUNDED = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
_NAMES = ("key", "value", "headers")

Piece = tuple[pa.RecordBatch, int]


def cut_rows(batch: pa.RecordBatch, most_bytes: int, least_row_bytes: int) -> Iterator[Piece]:
    """Pieces of rows in their order, without shared values, and the approximate size of each.

    Only a piece of one row is larger, decoded, than `most_bytes`, or than 1 GiB.  A row counts as
    `least_row_bytes` at least: columns of nulls alone have no bytes.  Errors are those of
    `record_source`, also for indices that lie outside a dictionary.
    """
    most_bytes = min(most_bytes, _MOST_BYTES)
    shares = any(_SHARING.search(str(batch.schema.field(name).type)) for name in _shown(batch))
    if not shares:
        n_bytes = max(batch.nbytes, least_row_bytes * batch.num_rows)
        if n_bytes <= most_bytes:
            yield batch, n_bytes
            return
    batch.validate()
    for start in range(0, batch.num_rows, _WINDOW_ROWS):
        window = batch.slice(start, _WINDOW_ROWS)
        rows = np.arange(window.num_rows)
        n_bytes_of_rows = sum((_lengths(column, rows) for column in window.columns), 0 * rows)
        ends = np.cumsum(np.maximum(n_bytes_of_rows, least_row_bytes))
        begin, before = 0, 0
        while begin < len(ends):
            end = max(int(np.searchsorted(ends, before + most_bytes, "right")), begin + 1)
            piece = window.slice(begin, end - begin)
            n_bytes = int(ends[end - 1]) - before
            is_small = n_bytes <= MOST_ROW_BYTES  # otherwise it is one row, to be refused
            yield decoded(piece) if shares and is_small else piece, n_bytes
            begin, before = end, int(ends[end - 1])


def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with each value in its own bytes."""
    for name in _shown(batch):
        column = batch.column(name)
        written = str(column.type)
        if not _SHARING.search(written):
            continue
        kind = pa.large_binary() if _WIDE.search(written) else pa.binary()
        if name == "headers":
            kind = headers_type(column.type, kind)
            # A cast of lists decodes everything after the first list, and a slice shares this
            # with its whole column.  A copy has only its own headers, still as indices.
            column = pa.concat_arrays([column])
        number = batch.schema.get_field_index(name)
        batch = batch.set_column(number, name, cast_column(name, column, kind))
    return batch


def _shown(batch: pa.RecordBatch) -> list[str]:
    return [name for name in _NAMES if name in batch.schema.names]


def _lengths(array: pa.Array, at: NDArray[np.integer]) -> Int64s:
    """Bytes of the values at some places of a column; the other values are not read."""
    kind, start = array.type, array.offset
    if pa.types.is_dictionary(kind):
        return _dictionary_lengths(array, at)
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32, 4 * (start + len(array)))
        lengths: Int64s = views[4 * (at + start)].astype(np.int64)
        return np.maximum(lengths, 0, out=lengths)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_lengths(array, at)
    if kind not in _BOUNDED:
        return np.full(len(at), -(-n_bytes_of(array) // max(len(array), 1)), np.int64)
    ends = _bounds(array)
    found: Int64s = (ends[at + 1] - ends[at]).astype(np.int64)
    return found


def _dictionary_lengths(array: pa.Array, at: NDArray[np.integer]) -> Int64s:
    """Bytes of the values that the indices at some places name."""
    n_values = len(array.dictionary)
    if not n_values:
        return np.zeros(len(at), np.int64)
    indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False)[at]
    # An index outside the dictionary is an error once the values are taken.
    lengths = _lengths(array.dictionary, np.clip(indices, 0, n_values - 1))
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)[at]] = 0
    return lengths


def _list_lengths(array: pa.Array, at: NDArray[np.integer]) -> Int64s:
    """Bytes of the lists at some places, whose items are structs or anything else."""
    ends = _bounds(array)
    first, last = int(ends[0]), int(ends[-1])
    ends = np.clip(ends, first, last)  # bounds that fall are an error once they are read
    items = array.values.slice(first, last - first)
    fields = [items]
    if pa.types.is_struct(items.type):
        fields = [items.field(number) for number in range(items.type.num_fields)]
    sums: Int64s = np.zeros(last - first + 1, np.int64)
    for each in fields:
        sums[1:] += _lengths(each, np.arange(len(each)))
    sums = np.cumsum(sums)
    found: Int64s = sums[ends[at + 1] - first] - sums[ends[at] - first]
    return found


def _bounds(array: pa.Array) -> NDArray[np.integer]:
    """Bounds of the rows of a column of variable length; an empty column may lack them."""
    is_large = str(array.type).startswith("large")
    dtype = np.dtype(np.int64 if is_large else np.int32)
    if not len(array):
        return np.zeros(1, dtype)
    found: NDArray[np.integer] = np.frombuffer(
        array.buffers()[1], dtype, len(array) + 1, array.offset * dtype.itemsize
    )
    return found


#: Most bytes of a batch before compression: readers refuse a batch that inflates to more.
_LARGEST_INFLATED = layout.HEADER_BYTES + MAX_INFLATED_BATCH_BYTES
_DEFLATE_BYTES = 4 << 20  # written before compression: small enough for the processor's caches
_TABLE_LINES = 1 << 10
_NO_TABLE: Int64s = np.empty((0, N_BATCH_COLUMNS), np.int64)


class EncodedBatches(NamedTuple):
    """Batches one after another, with the fields of each that an append needs.

    `buffer`: uint8 array, shape (n_bytes,); assigning offsets writes to it.  `table`: int64 array,
    shape (n_batches, `kernels.encode.N_BATCH_COLUMNS`); its first columns are those of
    `format.kernels.layout`, as `kernels.scan.scan_batches` would fill them.
    """

    buffer: Bytes
    table: Int64s

    @property
    def positions(self) -> Int64s:
        """Bytes of `buffer` at which the batches begin."""
        return self.table[:, layout.POSITION]

    @property
    def sizes(self) -> Int64s:
        """Bytes of the batches, headers included."""
        return self.table[:, layout.SIZE]

    @property
    def base_offsets(self) -> Int64s:
        """Offsets of the first records."""
        return self.table[:, layout.BASE_OFFSET]

    @property
    def last_offset_deltas(self) -> Int64s:
        """Distances from the first offset of a batch to its last."""
        return self.table[:, layout.LAST_OFFSET] - self.base_offsets

    @property
    def records_counts(self) -> Int64s:
        """Numbers of records."""
        return self.table[:, layout.RECORDS_COUNT]

    @property
    def max_timestamps(self) -> Int64s:
        """The largest timestamps in epoch milliseconds, or the append time; -1 for none."""
        return self.table[:, layout.MAX_TIMESTAMP]

    @property
    def max_timestamp_offsets(self) -> Int64s:
        """Offsets of the first records with the largest timestamps.

        If all records have the append time or no timestamp, the offsets of the last records
        (``MemoryRecordsBuilder.info``).
        """
        return self.table[:, MAX_TIMESTAMP_OFFSET]


class RecordEncoder:
    """Encodes rows for any number of partitions.

    `batch_size`: bytes, before compression, at which a batch ends.  `max_message_bytes`: bytes,
    after compression, that no batch may be larger than.  Raises `OptionError` for a level that the
    codec does not have.
    """

    def __init__(
        self,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        *,
        batch_size: int = BATCH_SIZE,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._codec = codec
        self._deflater = Deflater(codec, level) if codec else None
        self._batch_size = batch_size
        self._max_message_bytes = max_message_bytes
        self._counting: Int64s = array_view(np.arange(0))

    def encode(
        self,
        partition: TopicPartition,
        source: SourceArrays,
        rows: Int64s,
        *,
        offsets: Int64s | None = None,
        append_time_ms: int | None = None,
    ) -> EncodedBatches:
        """Batches of some rows of `source` for one partition, which is named in errors.

        `offsets`: int64 array, shape (n,), rising; by default 0, 1, 2, ….  `append_time_ms`: time
        of appending, as the timestamp of all records; their own timestamps stay in the bytes, as
        in a broker.  Raises `InvalidRecordError` if a row cannot be a record: a header without a
        key, a timestamp below -1, an offset that does not rise; or if `source` has no such
        row.  Raises `RecordTooLargeError` if a record alone takes more than `max_message_bytes`.
        """
        if offsets is None:
            if len(self._counting) < len(rows):  # 0, 1, 2, …, made once
                self._counting = array_view(np.arange(2 * len(rows)))
            offsets = self._counting[: len(rows)]
        elif offsets.shape != rows.shape:
            message = f"{len(offsets)} offsets for {len(rows)} rows"
            raise ValueError(message)
        else:
            _check_offsets(partition, rows, offsets)
        attributes, append_time = int(self._codec), -1
        if append_time_ms is not None:
            attributes, append_time = attributes | layout.TIMESTAMP_TYPE_MASK, append_time_ms
        todo = _RowsToEncode(
            partition, source, array_view(rows), array_view(offsets), attributes, append_time
        )
        if self._deflater is None:
            return self._plain(todo)
        return self._compressed(todo, self._deflater)

    def _plain(self, todo: "_RowsToEncode") -> EncodedBatches:
        most_bytes, _ = todo.most_bytes(self._batch_size)
        out = pooled_array(most_bytes + COPY_SLACK, np.uint8)
        tables, at, end = [_NO_TABLE], 0, 0
        while at < len(todo.rows):
            table, at = todo.write(at, self._batch_size, self._max_message_bytes, out, end)
            tables.append(table)
            end = int(table[-1, layout.RECORDS_END])
        return EncodedBatches(out[:end], np.concatenate(tables))

    def _compressed(self, todo: "_RowsToEncode", deflater: Deflater) -> EncodedBatches:
        tables, payloads = [_NO_TABLE], [b""]
        for table, compressed in self._deflate(todo, deflater):
            table[:, layout.SIZE] = [layout.HEADER_BYTES + len(each) for each in compressed]
            tables.append(table)
            payloads += compressed
        # Each payload follows a gap for its header, so the bytes of a batch are copied once.
        buffer = np.frombuffer(bytearray(layout.HEADER_BYTES).join(payloads), np.uint8)
        table = np.concatenate(tables)
        ends = np.cumsum(table[:, layout.SIZE])
        table[:, layout.POSITION] = ends - table[:, layout.SIZE]
        table[:, layout.RECORDS_START] = table[:, layout.POSITION] + layout.HEADER_BYTES
        table[:, layout.RECORDS_END] = ends
        seal_batches(buffer, table)
        return EncodedBatches(buffer, table)

    def _deflate(
        self, todo: "_RowsToEncode", deflater: Deflater
    ) -> Iterator[tuple[Int64s, list[bytes]]]:
        """Runs of batches, and their compressed records; batches that are too large are halved."""
        most_bytes, most_of_one = todo.most_bytes(self._batch_size)
        n_bytes = min(most_bytes, max(_DEFLATE_BYTES, most_of_one))
        out = pooled_array(n_bytes + COPY_SLACK, np.uint8)
        at = 0
        while at < len(todo.rows):
            try:
                run, at = todo.write(at, self._batch_size, _LARGEST_INFLATED, out, 0)
            except RecordTooLargeError as error:
                reason = f"it takes {error.size} bytes, and readers refuse a batch that inflates "
                reason += f"to more than {MAX_INFLATED_BATCH_BYTES}: write it without a codec"
                raise InvalidRecordError(*todo.partition, error.row, reason) from error
            compressed = [
                deflater.compress(out.data[start:end])
                for start, end in run[:, layout.RECORDS_START : layout.RECORDS_END + 1].tolist()
            ]
            yield from self._within_limit(todo, deflater, run, compressed)

    def _within_limit(
        self, todo: "_RowsToEncode", deflater: Deflater, run: Int64s, compressed: list[bytes]
    ) -> Iterator[tuple[Int64s, list[bytes]]]:
        """The run with batches larger than `max_message_bytes` divided."""
        most = self._max_message_bytes - layout.HEADER_BYTES
        begin = 0
        for number, payload in enumerate(compressed):
            if len(payload) <= most:
                continue
            yield run[begin:number], compressed[begin:number]
            begin = number + 1
            first, count = int(run[number, FIRST_ROW]), int(run[number, layout.RECORDS_COUNT])
            if count == 1:
                size = layout.HEADER_BYTES + len(payload)
                row = int(todo.rows[first])
                raise RecordTooLargeError(*todo.partition, row, size, self._max_message_bytes)
            middle = first + count // 2
            yield from self._deflate(todo.part(first, middle), deflater)
            yield from self._deflate(todo.part(middle, first + count), deflater)
        yield run[begin:], compressed[begin:]


class _RowsToEncode(NamedTuple):
    """The rows of one call; arrays as in `RecordEncoder.encode`."""

    partition: TopicPartition
    source: SourceArrays
    rows: Int64s
    offsets: Int64s
    attributes: int
    append_time_ms: int

    def part(self, begin: int, end: int) -> "_RowsToEncode":
        return self._replace(rows=self.rows[begin:end], offsets=self.offsets[begin:end])

    def most_bytes(self, batch_size: int) -> tuple[int, int]:
        """Most bytes of all batches together, and of any single batch."""
        total, longest = most_row_bytes(self.source, self.rows)
        all_alone = total + len(self.rows) * MOST_OVERHEAD
        return all_alone, max(batch_size, longest + MOST_OVERHEAD)

    def write(
        self, at: int, batch_size: int, max_bytes: int, out: Bytes, to: int
    ) -> tuple[Int64s, int]:
        """Write batches from row `at` on, as many as fit; return their table, and the next row."""
        table = np.empty((min(_TABLE_LINES, len(self.rows) - at), N_BATCH_COLUMNS), np.int64)
        code, at, n_batches = write_batches(
            self.source,
            self.rows,
            self.offsets,
            at,
            batch_size,
            max_bytes,
            self.attributes,
            self.append_time_ms,
            table,
            out,
            to,
        )
        if code == status.RECORD_TOO_LARGE:
            size = int(table[n_batches, layout.SIZE])
            raise RecordTooLargeError(*self.partition, int(self.rows[at]), size, max_bytes)
        if code in status.ROW_REASONS:
            row = int(self.rows[at])
            raise InvalidRecordError(*self.partition, row, status.ROW_REASONS[code])
        return table[:n_batches], at


def _check_offsets(partition: TopicPartition, rows: Int64s, offsets: Int64s) -> None:
    """Refuse offsets that are negative, do not rise, or leave no offset for a next row."""
    wrong = (np.diff(offsets, prepend=-1) <= 0) | (offsets == LARGEST_LONG)
    wrong |= offsets < 0  # the difference of negative offsets may wrap
    if wrong.any():
        row = int(rows[np.argmax(wrong)])
        raise InvalidRecordError(*partition, row, status.ROW_REASONS[status.BAD_OFFSET])
