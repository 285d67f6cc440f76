"""Columns of the tables: their types, and rows of Python's values to Arrow."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from segmentlog.format.kernels import layout
from segmentlog.format.messages.reader import uuid_text

if TYPE_CHECKING:
    from segmentlog.format.kernels.memory import Int64s

#: Type of a time: microseconds since 1970, as in rows of records.
TIME = pa.timestamp("us", tz="UTC")


class Column(NamedTuple):
    """A column: its name, its Arrow type, and its meaning, as the documentation has it."""

    name: str
    type: pa.DataType
    meaning: str


#: Where a row comes from: the last columns of tables of records.
ORIGIN = (
    Column("record_partition", pa.int32(), "partition of the topic that has the record"),
    Column("record_offset", pa.int64(), "offset of the record; null in a snapshot"),
    Column("record_timestamp", TIME, "time of the record"),
)

#: The last column of a history.
CHANGE = Column("change", pa.string(), "`set` or `removed`")


def schema_of(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of columns; all are nullable."""
    return pa.schema([(each.name, each.type) for each in columns])


def printed_id(value: uuid.UUID | None) -> str | None:
    """An id as Kafka prints it (``Uuid.toString``): 22 characters; None for the zero id."""
    if value is None or not value.int:
        return None
    return uuid_text(value)


def time_of(milliseconds: int | None) -> int | None:
    """Microseconds of a time in milliseconds; None without one, and if Arrow cannot hold it."""
    if milliseconds is None or not 0 <= milliseconds <= layout.LARGEST_MS:
        return None
    return milliseconds * 1000


def times(milliseconds: "Int64s") -> pa.Array:
    """Times of numbers of milliseconds; null as by `time_of`."""
    is_null = (milliseconds < 0) | (milliseconds > layout.LARGEST_MS)
    microseconds = np.where(is_null, 0, milliseconds) * 1000
    return pa.array(microseconds, mask=is_null).cast(TIME)


def known_times(times: pa.Array) -> pa.Array:
    """Times, with null in place of a time before 1970, which Kafka uses for no time."""
    import pyarrow.compute as pc  # a tenth of the time that `import segmentlog` takes

    is_none = pc.less(times, pa.scalar(0, times.type))
    return pc.if_else(is_none, pa.scalar(None, times.type), times)


def rows_to_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pa.Table:
    """A table of rows by the names of columns; a name that a row lacks is null.

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
