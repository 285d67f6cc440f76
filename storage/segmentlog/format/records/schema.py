"""The columns of a record: names and types, without the memory to fill.

The columns are those of Spark's ``kafka`` source, so Spark, Polars and DuckDB all show the columns
that users of Spark know.  As in Spark, every column is nullable.
"""

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

from segmentlog.arguments import texts
from segmentlog.errors import OptionError


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


@lru_cache
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
