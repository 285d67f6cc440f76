"""The columns of a record: their schema, and their memory, which kernels fill and Arrow hands out.

The columns are those of Spark's ``kafka`` source, so Spark, Polars and DuckDB all show the columns
that users of Spark know.  As in Spark, every column is nullable.

The memory comes from a pool of buffers, which are reused once nobody holds their rows, or from
Arrow.  Keys and values become text for readers that ask for strings: Arrow validates the column of
a batch without a copy, and only if that fails are its values looked at one by one.
"""

import functools
import itertools
import re
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from segmentlog.arguments import texts
from segmentlog.errors import InvalidUtf8Error, OptionError
from segmentlog.format.kernels import output
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int32s, Int64s
from segmentlog.model import OnInvalidUtf8, TimestampType, TopicPartition


def n_bytes_of(rows: pa.Array | pa.RecordBatch | pa.Table) -> int:
    """Bytes of rows; where they are views, of all that these may show."""
    columns = [rows] if isinstance(rows, pa.Array) else rows.columns
    # Before pyarrow 24, `nbytes` of views is an error.
    return sum(
        each.get_total_buffer_size() if "view" in str(each.type) else each.nbytes
        for each in columns
    )


def where(condition: pa.Array, values: pa.Array, other: pa.Scalar) -> pa.Array:
    """`values` where the condition is true, and `other` where it is false."""
    # Before pyarrow 24, `if_else` of a scalar and a slice of bytes gives wrong bytes.
    return pc.if_else(condition, values, pa.repeat(other, len(values)))


def binary_views(values: pa.Array) -> tuple[Bytes, Int32s]:
    """The bytes of a column of plain binary, and the bounds of its values in them, read-only.

    The bounds have shape (n_values + 1,).  Raises `pa.ArrowInvalid` if they do not rise.
    """
    _, bounds, data = values.buffers()
    # Not every library makes the buffers of a column without bytes.
    found = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    if not len(values):
        return found, np.zeros(1, np.int32)
    taken: Int32s = np.frombuffer(bounds, np.int32, len(values) + 1, 4 * values.offset)
    if taken[0] < 0 or taken[-1] > len(found) or (taken[1:] < taken[:-1]).any():
        raise pa.ArrowInvalid("the bounds of its values are not in order")
    return found, taken


def _headers_type(names: pa.DataType) -> pa.ListType:
    pair = pa.struct([pa.field("key", names), pa.field("value", pa.binary())])
    return pa.list_(pa.field("element", pair))


#: All columns.  ``headers`` comes last, because it is optional.
_ALL = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", _headers_type(pa.string())),
    ]
)

COLUMNS: tuple[str, ...] = tuple(_ALL.names)

#: Columns with one value for all rows of a batch on disk: its header and its partition have them.
CONSTANT_COLUMNS = frozenset({"topic", "partition", "timestampType"})

#: The columns that a scan yields by default: all but ``headers``.
RECORD_SCHEMA: pa.Schema = pa.schema([_ALL.field(name) for name in COLUMNS[:-1]])

_A_LIST = 'give a list of names: columns=["offset"]'


def record_schema(
    columns: Sequence[str] | None = None,
    *,
    include_headers: bool = False,
    text: Sequence[str] = (),
    in_milliseconds: bool = False,
    header_names_as_bytes: bool = False,
) -> pa.Schema:
    """Arrow schema of `columns`, in their order; of all columns when it is None.

    The columns of `text`, some of `segmentlog.model.BYTES_OR_TEXT`, are strings.  With
    `in_milliseconds`, the timestamp is a stored one: an integer of any size.  With
    `header_names_as_bytes`, the names of headers are binary.

    Raises `OptionError` if a name is not a column, or is repeated; if `columns` is a string and
    not a list.
    """
    if isinstance(columns, str | bytes):
        raise OptionError("columns", str(columns), _A_LIST)
    if columns is None:
        columns = COLUMNS if include_headers else COLUMNS[:-1]
    columns = texts("columns", columns, _A_LIST)
    for name in columns:
        if name not in COLUMNS or columns.count(name) > 1:
            accepted = f"columns are {', '.join(COLUMNS)}, each at most once"
            raise OptionError("columns", name, accepted)
    return _schema_of(columns, tuple(text), in_milliseconds, header_names_as_bytes)


@functools.lru_cache
def _schema_of(
    columns: tuple[str, ...],
    text: tuple[str, ...],
    in_milliseconds: bool,
    header_names_as_bytes: bool,
) -> pa.Schema:
    types = dict.fromkeys(text, pa.string())
    if header_names_as_bytes:
        types["headers"] = _headers_type(pa.binary())
    if in_milliseconds:
        types["timestamp"] = pa.int64()
    fields = [_ALL.field(name) for name in columns]
    return pa.schema([f.with_type(types.get(f.name, f.type)) for f in fields])


def is_in_milliseconds(schema: pa.Schema) -> bool:
    """Whether the timestamps of a schema of `record_schema` are integers, as they are stored."""
    return "timestamp" in schema.names and pa.types.is_integer(schema.field("timestamp").type)


def with_times(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows whose timestamps are integers, as a writer takes them: with times of milliseconds."""
    at = rows.schema.get_field_index("timestamp")
    times = rows.column(at).view(pa.timestamp("ms", "UTC"))
    return rows.set_column(at, "timestamp", times)


Lent: TypeAlias = tuple[pa.Buffer, Bytes]  #: the same memory, as Arrow's and as numpy's

#: Two threads that read ahead hold 10 batches of records of 100 bytes, and more of small records.
#: With 12, two threads took 4 % longer for records of 16 bytes; with 60, as long as with 24.
_N_ARENAS = 24
_FEW_SPARE = 12  # fewer than these: somebody collects rows


class Arenas:
    """Areas of memory of one size, each of which is lent again when its last holder drops it.

    Arrow's pool soon returns freed memory to the system, and gets it back as cleared pages.
    On a virtual machine that reports free pages to its host, 3 to 7 of 15 reads by two threads
    took more than 1.5 times as long as the others.  With this memory none did, and such a read
    takes 200 MB instead of 300.

    A thread of another library takes the interpreter's lock to drop an arena.  So the columns of a
    batch are parts of one arena, and a user who holds one of these columns holds the others, too.

    `n_bytes`: of each part of an arena.
    """

    def __init__(self, n_bytes: int, n_parts: int) -> None:
        self.n_bytes = n_bytes
        self._n_parts = n_parts
        # The last one is the warmest.  None stands for memory that nobody has needed yet.
        self._spare: deque[Bytes | None] = deque([None] * _N_ARENAS)

    @property
    def are_scarce(self) -> bool:
        """Whether so many are lent that somebody seems to collect batches."""
        # Then small rows are copied, and their arena serves the next batch. A scan that hands out
        # batches of records of 10 bytes would take a tenth longer if it always copied them.
        return len(self._spare) < _FEW_SPARE

    def lend(self) -> list[Lent] | None:
        """Lend the parts of an arena, which is not cleared; None if all arenas are lent."""
        try:
            memory = self._spare.pop()
        except IndexError:
            return None
        if memory is None:
            memory = np.empty(self._n_parts * self.n_bytes, np.uint8)
        held = _Held(memory, self._spare)
        buffer, view = pa.foreign_buffer(memory.ctypes.data, memory.nbytes, held), np.asarray(held)
        return [
            (buffer.slice(at, self.n_bytes), view[at : at + self.n_bytes])
            for at in range(0, memory.nbytes, self.n_bytes)
        ]


class _Held:
    """An arena that Arrow and numpy hold; when both have dropped it, it can be lent again.

    Any thread may be the last to drop it, at any time, even in the middle of `Arenas.lend`.  So
    there is no lock: the operations of a deque are atomic.
    """

    __slots__ = ("__array_interface__", "_memory", "_spare")

    def __init__(self, memory: Bytes, spare: "deque[Bytes | None]") -> None:
        self._memory = memory
        self._spare = spare
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._spare.append(self._memory)


_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")

_DENSE = 4  # the least part of a room that keys and values must fill to keep a scarce arena
_NO_BUFFER = pa.py_buffer(b"")
_NO_ITEMS: dict[type[np.generic], NDArray[Any]] = {
    dtype: np.empty(0, dtype) for dtype in (np.uint8, np.int32, np.int64)
}


class Constants:
    """Columns with one value for all rows of a partition, or of none, built once and sliced."""

    def __init__(self, topic_partition: TopicPartition | None = None) -> None:
        self._values = {} if topic_partition is None else topic_partition._asdict()
        self._arrays: dict[str | TimestampType, pa.Array] = {}

    @staticmethod
    @functools.lru_cache(maxsize=8)
    def of(topic_partition: TopicPartition) -> "Constants":
        """The columns of a partition; slices that are read one after the other share them."""
        # A slice has few Arrow batches: to build these columns again took 5 % of its time.
        return Constants(topic_partition)

    def array(self, name: str | TimestampType, n_rows: int) -> pa.Array:
        """`n_rows` of column `name`, or of ``timestampType`` when `name` is one of its values."""
        known = self._arrays.get(name)
        if known is None or len(known) < n_rows:
            value = int(name) if isinstance(name, TimestampType) else self._values[name]
            kind = pa.string() if name == "topic" else pa.int32()
            known = pa.repeat(scalar(value, kind), n_rows)
            self._arrays[name] = known
        return known.slice(0, n_rows)

    def record_batch(
        self, schema: pa.Schema, n_rows: int, timestamp_type: TimestampType
    ) -> pa.RecordBatch:
        """`n_rows` of a schema whose columns all have one value."""
        arrays = [
            self.array(timestamp_type if name == "timestampType" else name, n_rows)
            for name in schema.names
        ]
        return _record_batch(arrays, schema, n_rows)


def _record_batch(arrays: list[pa.Array], schema: pa.Schema, n_rows: int) -> pa.RecordBatch:
    """The arrays as a batch, which has `n_rows` rows even if it has no columns."""
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    rows = pa.Array.from_buffers(pa.struct([]), n_rows, [None])
    return pa.RecordBatch.from_struct_array(rows)


class _Buffer:
    """Memory for Arrow, and its numpy view."""

    arrow: pa.Buffer
    view: NDArray[Any]

    def __init__(self, n_items: int, dtype: type[np.generic], lent: Lent | None = None) -> None:
        n_bytes = n_items * np.dtype(dtype).itemsize
        if not n_items:  # the column was not requested
            self.arrow, self.view = _NO_BUFFER, _NO_ITEMS[dtype]
        elif lent is not None:
            self.arrow, self.view = lent
        else:
            self.arrow = pa.allocate_buffer(n_bytes)
            self.view = np.frombuffer(self.arrow, dtype)

    def filled(self, n_items: int, *, is_dense: bool = False) -> pa.Buffer:
        """The first items; copied, unless `is_dense`, if they take less than half of it all."""
        # Otherwise a batch of 50,000 rows of 10 bytes would hold 16 MiB of Arrow's pool.
        if is_dense or 2 * n_items >= len(self.view):
            return self.arrow.slice(0, n_items * self.view.itemsize)
        kept = _Buffer(n_items, self.view.dtype.type)
        kept.view[:] = self.view[:n_items]
        return kept.arrow


class _Bounds(_Buffer):
    """Arrow's n+1 positions of variable-length values."""

    def __init__(self, n_rows: int) -> None:
        super().__init__(n_rows + 1 if n_rows else 0, np.int32)
        if n_rows:
            self.view[0] = 0


class _Bitmap(_Buffer):
    """One bit a row, all set: a kernel clears the bits of nulls."""

    def __init__(self, n_rows: int) -> None:
        super().__init__((n_rows + 7) // 8, np.uint8)
        if n_rows:
            self.view.fill(0xFF)

    def unless(self, n_nulls: int, n_rows: int) -> pa.Buffer | None:
        """The bitmap of the first rows, or None when no row is null."""
        return self.filled((n_rows + 7) // 8) if n_nulls else None


class _Binary:
    """Room for `n_rows` keys or values with `n_bytes` in total; no room if `n_rows` is 0."""

    def __init__(self, n_rows: int, n_bytes: int, lent: Lent | None = None) -> None:
        self.ends = _Bounds(n_rows)
        self.valid = _Bitmap(n_rows)
        self.data = _Buffer(n_bytes + COPY_SLACK if n_rows else 0, np.uint8, lent)

    def to_arrow(
        self, kind: pa.DataType, n_rows: int, n_bytes: int, n_nulls: int, *, is_dense: bool = False
    ) -> pa.Array:
        """The first `n_rows`."""
        data = self.data.filled(n_bytes, is_dense=is_dense)
        buffers = [self.valid.unless(n_nulls, n_rows), self.ends.filled(n_rows + 1), data]
        return pa.Array.from_buffers(kind, n_rows, buffers, n_nulls)


_NO_VALUES = _Binary(0, 0)


class Output:
    """Room for one Arrow batch: at most this many rows, bytes of records, and headers.

    `arenas`: of two parts, for keys and for values, each of `n_bytes` and `COPY_SLACK`; by
    default, the memory is Arrow's.
    """

    def __init__(
        self,
        schema: pa.Schema,
        n_rows: int,
        n_bytes: int,
        n_headers: int,
        arenas: Arenas | None = None,
    ) -> None:
        names = schema.names  # builds a list

        def rows(name: str) -> int:
            return n_rows if name in names else 0

        has_bytes = rows("key") or rows("value")
        lent = arenas.lend() if arenas is not None and has_bytes else None
        for_keys, for_values = lent or (None, None)
        self._arenas = arenas if lent else None
        self._schema = schema
        self._limits = (n_rows, n_bytes, n_headers)
        self._offsets = _Buffer(rows("offset"), np.int64)
        self._timestamps = _Buffer(rows("timestamp"), np.int64)
        self._keys = _Binary(rows("key"), n_bytes, for_keys)
        self._values = _Binary(rows("value"), n_bytes, for_values)
        self._list_ends = _Bounds(rows("headers"))
        self._list_valid = _Bitmap(rows("headers"))
        has_headers = n_headers and rows("headers")
        self._header_keys = _Binary(n_headers, n_bytes) if has_headers else _NO_VALUES
        self._header_values = _Binary(n_headers, n_bytes) if has_headers else _NO_VALUES
        self.arrays = output.ColumnArrays(
            self._offsets.view,
            self._timestamps.view,
            self._keys.ends.view,
            self._keys.valid.view,
            self._keys.data.view,
            self._values.ends.view,
            self._values.valid.view,
            self._values.data.view,
            self._list_ends.view,
            self._list_valid.view,
            self._header_keys.ends.view,
            self._header_keys.data.view,
            self._header_values.ends.view,
            self._header_values.valid.view,
            self._header_values.data.view,
        )

    @property
    def plain_arrays(self) -> output.PlainArrays:
        """`arrays` without the arrays of headers."""
        return output.PlainArrays._make(self.arrays[: len(output.PlainArrays._fields)])

    def begin(self, state: Int64s) -> None:
        """Mark the output as empty, and set its limits."""
        state[output.N_ROWS : output.ROW_LIMIT] = 0
        state[output.ROW_LIMIT : output.HEADER_LIMIT + 1] = self._limits

    def to_arrow(
        self, state: Int64s, constants: Constants, timestamp_type: TimestampType
    ) -> pa.RecordBatch:
        """The rows that the kernel has written, as an Arrow batch of the schema.

        A buffer is not copied if they take at least half of it.
        """
        n_rows = int(state[output.N_ROWS])
        arrays = [
            self._array(field.name, field.type, n_rows, state, constants, timestamp_type)
            for field in self._schema
        ]
        return _record_batch(arrays, self._schema, n_rows)

    def _array(
        self,
        name: str,
        kind: pa.DataType,
        n_rows: int,
        state: Int64s,
        constants: Constants,
        timestamp_type: TimestampType,
    ) -> pa.Array:
        match name:
            case "offset":
                return pa.Array.from_buffers(kind, n_rows, [None, self._offsets.filled(n_rows)], 0)
            case "timestamp":
                filled = self._timestamps.filled(n_rows)
                return pa.Array.from_buffers(kind, n_rows, [None, filled], 0)
            case "key" | "value":
                n_key_bytes = int(state[output.KEY_BYTES])
                n_value_bytes = int(state[output.VALUE_BYTES])
                is_dense = self._arenas is not None and (
                    n_key_bytes + n_value_bytes >= self._limits[1] // _DENSE
                    or not self._arenas.are_scarce
                )
                column, n_bytes, nulls_at = (
                    (self._keys, n_key_bytes, output.KEY_NULLS)
                    if name == "key"
                    else (self._values, n_value_bytes, output.VALUE_NULLS)
                )
                n_nulls = int(state[nulls_at])
                return column.to_arrow(kind, n_rows, n_bytes, n_nulls, is_dense=is_dense)
            case "headers":
                return self._headers(kind, n_rows, state)
            case "timestampType":
                return constants.array(timestamp_type, n_rows)
            case _:
                return constants.array(name, n_rows)

    def _headers(self, kind: pa.ListType, n_rows: int, state: Int64s) -> pa.Array:
        pair = kind.value_type
        n_headers = int(state[output.N_HEADERS])
        n_bytes, n_nulls = int(state[output.HEADER_KEY_BYTES]), int(state[output.LIST_NULLS])
        if n_nulls == n_rows:
            return pa.nulls(n_rows, kind)
        keys = self._header_keys.to_arrow(pa.binary(), n_headers, n_bytes, 0)
        if pa.types.is_string(pair.field("key").type):
            keys = _as_utf8(keys)
        values = self._header_values.to_arrow(
            pair.field("value").type,
            n_headers,
            int(state[output.HEADER_VALUE_BYTES]),
            int(state[output.HEADER_VALUE_NULLS]),
        )
        pairs = pa.StructArray.from_arrays([keys, values], fields=[pair.field(0), pair.field(1)])
        ends = self._list_ends.filled(n_rows + 1)
        buffers = [self._list_valid.unless(n_nulls, n_rows), ends]
        return pa.Array.from_buffers(kind, n_rows, buffers, n_nulls, children=[pairs])


def headers_as_java(headers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Headers whose names are bytes, as a type whose names are text; bad bytes as in Java."""
    try:
        return headers.cast(kind)
    except pa.ArrowInvalid:
        rows = headers.to_pylist()
    for pair in itertools.chain.from_iterable(row or () for row in rows):
        pair["key"] = decode_as_java(pair["key"])
    return pa.array(rows, kind)


def _as_utf8(keys: pa.Array) -> pa.Array:
    """Header keys as strings; bytes that are not UTF-8 become U+FFFD, as in a Java consumer."""
    # Nearly all keys are valid. Valid keys are checked, but not copied.
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([decode_as_java(key) for key in keys.to_pylist()], pa.string())


def decode_as_java(text: bytes) -> str:
    """``new String(text, UTF_8)``: Java replaces an encoded surrogate by one bad character."""
    # Python replaces it by three. Everything else is decoded alike.
    return _SURROGATE.sub(b"\xff", text).decode("utf-8", "replace")


def scalar(value: int | str, kind: pa.DataType) -> pa.Scalar:
    """A scalar of an integer type, of timestamps (in their unit), or of strings."""
    # `pyarrow.scalar` and `pyarrow.array` import pandas if it is installed. That import took 0.2 s
    # of the half second before a process's first row.
    if isinstance(value, str):
        text = value.encode()
        ends = np.array([0, len(text)], np.int32)
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(ends), pa.py_buffer(text)])[0]
    number = value.to_bytes(kind.bit_width // 8, "little", signed=True)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(number)])[0]


class TextColumns:
    """Makes text of the keys or values of `columns` that `text` names.

    `scanned`: names of the columns to scan; an error needs the offsets.
    """

    def __init__(
        self,
        columns: Sequence[str],
        text: Sequence[str],
        on_invalid: OnInvalidUtf8,
    ) -> None:
        self._columns = tuple(columns)
        self._text = frozenset(text) & frozenset(columns)
        self._on_invalid = on_invalid
        fails = bool(self._text) and on_invalid == OnInvalidUtf8.FAIL
        needs_offset = fails and "offset" not in columns
        self.scanned = (*columns, "offset") if needs_offset else tuple(columns)

    def convert(self, batch: pa.RecordBatch, topic_partition: TopicPartition) -> pa.RecordBatch:
        """The requested columns of a batch with the scanned columns, which is not copied.

        Raises `InvalidUtf8Error` if bytes are not UTF-8, and `on_invalid` does not allow them.
        """
        if not self._text:
            return batch
        arrays = [
            self._to_text(batch, name, topic_partition)
            if name in self._text
            else batch.column(name)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=self._columns)

    def _to_text(
        self, batch: pa.RecordBatch, name: str, topic_partition: TopicPartition
    ) -> pa.Array:
        column = batch.column(name)
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            values = column.to_pylist()
        if self._on_invalid == OnInvalidUtf8.FAIL:
            row = next(row for row, value in enumerate(values) if not _is_utf8(value))
            raise InvalidUtf8Error(*topic_partition, batch.column("offset")[row].as_py(), name)
        if self._on_invalid == OnInvalidUtf8.NULL:
            found = [value if _is_utf8(value) else None for value in values]
        else:
            found = [None if value is None else decode_as_java(value) for value in values]
        return pa.array(found, pa.string())


def _is_utf8(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False
