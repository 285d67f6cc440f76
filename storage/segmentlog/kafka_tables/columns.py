"""A table: its columns, its key and what makes its rows; and rows of Python's values to Arrow.

Columns that are fields of a message of Kafka have the types of these fields.

Large topics are read without an object of Python for a value: `Cells` takes a field of many binary
values at once.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.messages.reader import Field, parse_schemas, uuid_text
from segmentlog.format.records.columns import binary_views
from segmentlog.kafka_tables.source import TableSource
from segmentlog.reads.log import Log

_MOST_VARINT_BYTES = 5

#: Bytes after the last byte, so that a field can be gathered from any place.
_SLACK = 16


class Cells:
    """The bytes of many values, and a place in each of them.

    `is_right`: whether the value has had all bytes that were taken, shape (n_values,); false for
    null.
    """

    def __init__(self, array: pa.Array) -> None:
        data, bounds = binary_views(array)
        ends: Int64s = bounds.astype(np.int64)
        n_bytes = int(ends[-1])
        self._data: Bytes = np.zeros(n_bytes + _SLACK, np.uint8)
        self._data[:n_bytes] = data[:n_bytes]
        self._begins, self._at, self._ends = ends[:-1], ends[:-1].copy(), ends[1:]
        self.is_right = array.is_valid().to_numpy(zero_copy_only=False)

    @property
    def n_taken(self) -> Int64s:
        """The number of bytes of each value that were taken."""
        return self._at - self._begins

    def only(self, rows: Int64s) -> "Cells":
        cells = Cells.__new__(Cells)
        cells._data = self._data
        cells._begins, cells._at, cells._ends = (
            each[rows] for each in (self._begins, self._at, self._ends)
        )
        cells.is_right = np.ones(len(rows), np.bool_)
        return cells

    def number(self, width: int) -> Int64s:
        """The next big-endian number of each value; 0 after its end."""
        raw = self.bytes(width)
        found: Int64s = raw.view(f">i{width}")[:, 0].astype(np.int64)
        return found

    def text(self, *, is_compact: bool = False) -> tuple[Int64s, Int64s]:
        """Places and lengths of the next text of each value, which may not be null."""
        lengths: Int64s = self.varint() - 1 if is_compact else self.number(2)
        self.is_right &= (lengths >= 0) & (lengths <= self._ends - self._at)
        lengths = np.where(self.is_right, lengths, 0).astype(np.int64)
        starts = self._at.copy()
        self._at += lengths
        return starts, lengths

    def topic_id(self) -> Bytes:
        """The only tagged field of a value, or zeros; other tagged fields are not right here."""
        n_tags = self.varint()
        is_tagged = self.is_right & (n_tags == 1)
        self.is_right &= n_tags <= 1
        cells = self.only(np.flatnonzero(is_tagged))
        is_known = (cells.varint() == 0) & (cells.varint() == 16)
        found = cells.bytes(16)
        ids: Bytes = np.zeros((len(self._at), 16), np.uint8)
        ids[is_tagged] = found
        self.is_right[is_tagged] &= is_known & cells.is_right
        return ids

    def gathered(self, starts: Int64s, lengths: Int64s) -> pa.Array:
        """Parts of the bytes as an Arrow array of bytes."""
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        which = np.repeat(starts - ends[:-1], lengths) + np.arange(ends[-1])
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(self._data[which])]
        return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)

    def varint(self, of: Int64s | None = None) -> Int64s:
        """The next unsigned varint of each value, or of some of them alone."""
        found = np.zeros(len(self._at), np.int64)
        is_open = np.ones(len(self._at), np.bool_)
        if of is not None:
            is_open[:] = False
            is_open[of] = True
        for number in range(_MOST_VARINT_BYTES):
            is_open &= self.is_right
            rows = np.flatnonzero(is_open)
            if not len(rows):
                break
            cells = self.only(rows)
            byte = cells.bytes(1)[:, 0].astype(np.int64)
            self._at[rows] += 1
            self.is_right[rows] &= cells.is_right
            found[rows] |= (byte & 0x7F) << 7 * number
            is_open[rows] = byte >= 0x80
        self.is_right &= ~is_open
        return found if of is None else found[of]

    def bytes(self, width: int) -> Bytes:
        """The next bytes of each value, shape (n_values, width); zeros after its end."""
        self.is_right &= self._ends - self._at >= width
        at = np.where(self.is_right, self._at, len(self._data) - _SLACK)
        self._at += width
        found: Bytes = self._data[at[:, None] + np.arange(width)]
        return found


#: Cells by the names of columns; a cell that a row lacks is null.
Row: TypeAlias = dict[str, Any]

#: Type of a time: microseconds since 1970, as in rows of records.
TIME = pa.timestamp("us", tz="UTC")
TEXT, INT, LONG, BOOL = pa.string(), pa.int32(), pa.int64(), pa.bool_()

#: Arrow's types of the kinds of `Field`; Spark has no unsigned numbers.
_TYPES = {
    "str": TEXT,
    "uuid": TEXT,
    "bytes": pa.binary(),
    "bool": BOOL,
    "i8": INT,
    "i16": INT,
    "u16": INT,
    "i32": INT,
    "i64": LONG,
    "f64": pa.float64(),
}


class Column(NamedTuple):
    """A column: its name, its Arrow type, and its meaning, as the documentation has it."""

    name: str
    type: pa.DataType
    meaning: str
    field: str = ""  # of a message that `shown` takes the cell from
    words: Mapping[int, str] | None = None  # for numbers of the field
    unknown: int | None = None  # the value of the field that stands for null

    def cell(self, value: Any) -> Any:  # noqa: ANN401 (each column has its type)
        if value is None or value == self.unknown:
            return None
        if self.words is not None:
            return self.words.get(value, f"UNKNOWN({value})")
        if self.type == TIME:
            return time_of(value)
        return printed_id(value) if isinstance(value, uuid.UUID) else value


def fields_of(lines: str, *messages: str) -> Callable[..., Column]:
    """A function that makes columns of the fields of some messages, by name and meaning.

    It takes the name of the field, if it is another one, as `of`, and then what `Column` takes.  A
    column whose name ends in ``timestamp`` is a time.
    """
    schemas = parse_schemas(lines)
    fields = {field.column: field for each in messages for field in schemas[each].fields}

    def column(
        name: str,
        meaning: str,
        of: str = "",
        words: Mapping[int, str] | None = None,
        unknown: int | None = None,
    ) -> Column:
        given = of or (name if name in fields else f"{name}_ms")
        kind = TEXT if words else _type_of(fields[given])
        kind = TIME if name.endswith("timestamp") else kind
        return Column(name, kind, meaning, given, words, unknown)

    return column


def _type_of(field: Field) -> pa.DataType:
    kind = (
        pa.struct([(each.column, _type_of(each)) for each in field.fields])
        if field.kind == "struct"
        else _TYPES[field.kind]
    )
    return pa.list_(kind) if field.is_array else kind


def shown(columns: Iterable[Column], fields: Mapping[str, Any]) -> Row:
    """The cells of columns that are fields of a message."""
    return {each.name: each.cell(fields.get(each.field)) for each in columns if each.field}


#: Where a row comes from: the last columns of tables of records.
ORIGIN = (
    Column("record_partition", INT, "partition of the topic that has the record"),
    Column("record_offset", LONG, "offset of the record; null in a snapshot"),
    Column("record_timestamp", TIME, "time of the record"),
)

#: The same, for tables that may be made of several topics.
ORIGIN_IN_TOPIC = (Column("record_topic", TEXT, "topic that has the record"), *ORIGIN)

#: The last column of a history.
CHANGE = Column("change", TEXT, "`set` or `removed`")


@dataclass(frozen=True)
class Table:
    """A table of the logs of a topic, or of more than that."""

    topic: str  # that has to be in the directory
    meaning: str  # one line, as the documentation has it
    columns: tuple[Column, ...]  # of the last state
    #: every change in one log, in order: the rows of the history, with the column ``change``
    changes: Callable[[TableSource, Log], Iterable[Row]] | None = None
    #: names of columns; the last state has the last row of each key that was not removed
    key: tuple[str, ...] = ()
    #: the last state of one log, if it is not the last row of each key
    state: Callable[[TableSource, Log], Iterable[Row]] | None = None
    #: the whole table, or its history, if it is not made of one log after the other
    whole: Callable[[TableSource, bool], Iterable[Row] | pa.Table] | None = None
    history_columns: tuple[Column, ...] = ()  # if they are others
    #: of the names of topics, for tables whose topic a worker's settings name; or empty
    pattern: str = ""

    @property
    def history(self) -> tuple[Column, ...]:
        """Columns of the changes; empty for a table that has no history."""
        if not (self.changes or self.history_columns):
            return ()
        return (*(self.history_columns or self.columns), CHANGE)

    def topics(self, names: Iterable[str]) -> list[str]:
        """Those of some topics that the table is made of."""
        if not self.pattern:
            return [name for name in names if name == self.topic]
        return [name for name in names if re.fullmatch(self.pattern, name)]


def last_rows(changes: Iterable[Row], key: Sequence[str]) -> Iterable[Row]:
    """The last row of each key that was not removed."""
    last: dict[tuple[object, ...], Row] = {}
    for row in changes:
        values = tuple(row.get(each) for each in key)
        if row["change"] == "removed":
            last.pop(values, None)
        else:
            last[values] = row
    return last.values()


def schema_of(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of columns; all are nullable."""
    return pa.schema([(each.name, each.type) for each in columns])


def printed_id(value: uuid.UUID | None) -> str | None:
    """An id as Kafka prints it (``Uuid.toString``): 22 characters; None for the zero id."""
    return None if value is None or not value.int else uuid_text(value)


def time_of(milliseconds: int | None) -> int | None:
    """Microseconds of a time in milliseconds; None without one, and if Arrow cannot hold it."""
    if milliseconds is None or not 0 <= milliseconds <= layout.LARGEST_MS:
        return None
    return milliseconds * 1000


def times(milliseconds: Int64s) -> pa.Array:
    """Times of numbers of milliseconds; null as by `time_of`."""
    is_null = (milliseconds < 0) | (milliseconds > layout.LARGEST_MS)
    microseconds = np.where(is_null, 0, milliseconds) * 1000
    return pa.array(microseconds, mask=is_null).cast(TIME)


def known_times(times: pa.Array) -> pa.Array:
    """Times, with null in place of a time before 1970, which Kafka uses for no time."""
    is_none = pc.less(times, pa.scalar(0, times.type))
    return pc.if_else(is_none, pa.scalar(None, times.type), times)


def rows_to_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pa.Table:
    """A table of rows.

    Times are microseconds.  A negative one is null: messages of format 0 have the time -1.
    """
    schema = schema_of(columns)
    arrays = [
        known_times(pa.array([row.get(field.name) for row in rows], pa.int64()).cast(field.type))
        if pa.types.is_timestamp(field.type)
        else pa.array([row.get(field.name) for row in rows], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
