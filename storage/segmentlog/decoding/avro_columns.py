"""Flat records of Avro as columns, and as columns of another record by Avro's rules.

A kernel decodes them, some tens of times as quickly as `fastavro` makes objects.  Resolution is
then a choice of columns, their casts, and columns of defaults.

Whatever is not certain here is left out, raises or is no plan: the caller decodes such values one
by one, and so finds out what is wrong with them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from segmentlog.decoding.payloads import Payloads
from segmentlog.format.kernels import serialized
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int32s, Int64s
from segmentlog.format.kernels.serialized import copy_texts, read_flat_records

_KINDS = {
    "boolean": serialized.BOOLEAN,
    "int": serialized.INT,
    "long": serialized.LONG,
    "float": serialized.FLOAT,
    "double": serialized.DOUBLE,
    "string": serialized.TEXT,
}

#: Types of Arrow, and of numpy, for kinds that are numbers.
_NUMBERS = {
    serialized.INT: (pa.int32(), np.int32),
    serialized.LONG: (pa.int64(), np.int64),
    serialized.FLOAT: (pa.float32(), np.uint32),
    serialized.DOUBLE: (pa.float64(), np.int64),
}

#: Cells of records that are decoded together: a wide record takes no more memory than others.
_MOST_CELLS = 1 << 20

#: Which types of a reader take a type of a writer.
_PROMOTED = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}


class _Field(NamedTuple):
    """A field of a writer or a reader, without its logical type."""

    name: str
    members: list[str]  #: of its union, or its one type
    kind: str  #: the member that is not null
    branches: tuple[int, int]  #: the numbers of this member and of null in its union, or -1


class _FieldSource(NamedTuple):
    """Where a field of the reader comes from: a column of the writer, or else a default."""

    column: int | None
    takes_null: bool = True
    default: Any = None


class FlatRecord:
    """A record of numbers, texts and booleans.  `parsed`: by fastavro, without logical types."""

    def __init__(self, parsed: Mapping[str, Any], fields: Sequence[_Field]) -> None:
        self._parsed = parsed
        self._fields = fields
        self._kinds: Int64s = np.array([_KINDS[each.kind] for each in fields], np.int64)
        self._branches: Int64s = np.array([each.branches for each in fields], np.int64).T.copy()

    @classmethod
    def of(cls, parsed: object) -> "FlatRecord | None":
        """The record; None for any other schema."""
        if not isinstance(parsed, dict) or parsed["type"] != "record" or not parsed["fields"]:
            return None
        fields = [_field(each) for each in parsed["fields"]]
        known = [each for each in fields if each is not None]
        return cls(parsed, known) if len(known) == len(fields) else None

    def sources(self, reader: object) -> list[_FieldSource] | None:
        """The sources of the fields of `reader`, parsed; None if Avro's rules ask for more."""
        if not isinstance(reader, dict) or reader["type"] != "record" or not reader["fields"]:
            return None  # without fields, columns have no length
        if reader is not self._parsed and not _is_named_alike(self._parsed, reader):
            return None
        names = {each["name"] for each in reader["fields"]}
        aliases = {
            alias: each["name"] for each in reader["fields"] for alias in each.get("aliases", ())
        }
        columns: dict[str, int] = {}
        for number, each in enumerate(self._fields):
            name = each.name if each.name in names else aliases.get(each.name)
            if name in columns:
                return None
            if name is not None:
                columns[name] = number
        made = [self._source(each, columns.get(each["name"])) for each in reader["fields"]]
        known = [each for each in made if each is not None]
        return known if len(known) == len(made) else None

    def _source(self, wanted: Mapping[str, Any], column: int | None) -> _FieldSource | None:
        if column is None:
            return _FieldSource(None, default=wanted["default"]) if "default" in wanted else None
        here, there = self._fields[column], _field(wanted)
        if there is None or there.kind not in (here.kind, *_PROMOTED.get(here.kind, ())):
            return None
        return _FieldSource(column, takes_null="null" in there.members)

    def decode(
        self, values: Payloads, sources: Sequence[_FieldSource], kind: pa.StructType
    ) -> tuple[pa.Array, Int64s]:
        """Values as columns of `kind`, and the numbers of those that are left out."""
        n_together = max(1, _MOST_CELLS // len(self._fields))
        parts, left_out = [], []
        for begin in range(0, len(values), n_together):
            part = values.only(slice(begin, begin + n_together))
            made, is_read = self._decode(part, sources, kind)
            parts.append(made)
            left_out.append(begin + np.flatnonzero(is_read == 0))
        if len(parts) == 1:
            return parts[0], left_out[0]
        return (
            pa.concat_arrays([pa.nulls(0, kind), *parts]),
            np.concatenate([np.empty(0, np.int64), *left_out]),
        )

    def _decode(
        self, values: Payloads, sources: Sequence[_FieldSource], kind: pa.StructType
    ) -> tuple[pa.Array, Bytes]:
        cells = _Cells(values, self._kinds, *self._branches)
        made = []
        for source, field in zip(sources, kind, strict=True):
            if source.column is None:
                made.append(pa.repeat(pa.scalar(source.default, field.type), len(values)))
                continue
            if not source.takes_null:
                cells.is_read &= cells.valid[source.column]
            made.append(_cast(cells.column(source.column), field.type))
        return pa.StructArray.from_arrays(made, fields=[*kind]), cells.is_read


class _Cells:
    """The cells of flat records, as `read_flat_records` describes them, with a row for a field.

    `is_read`: shape (n_values,).
    """

    def __init__(
        self, values: Payloads, kinds: Int64s, value_branches: Int64s, null_branches: Int64s
    ) -> None:
        self._data, self._kinds = values.data, kinds
        shape = len(kinds), len(values)
        self._cells: NDArray[np.int64] = np.empty(shape, np.int64)
        self._lengths: NDArray[np.int32] = np.empty(shape, np.int32)
        self.valid: NDArray[np.uint8] = np.ones(shape, np.uint8)
        self.is_read: Bytes = np.ones(len(values), np.uint8)
        read_flat_records(
            values.data,
            values.begins,
            values.ends,
            kinds,
            value_branches,
            null_branches,
            self._cells.reshape(-1),
            self._lengths.reshape(-1),
            self.valid.reshape(-1),
            self.is_read,
        )

    def column(self, number: int) -> pa.Array:
        """The column of a field, in the type of Arrow for its type of Avro."""
        kind, cells, valid = int(self._kinds[number]), self._cells[number], self.valid[number]
        n_nulls = len(valid) - int(np.count_nonzero(valid))
        bits = pa.py_buffer(np.packbits(valid, bitorder="little")) if n_nulls else None
        if kind == serialized.TEXT:
            return self._texts(number, bits, n_nulls)
        if kind == serialized.BOOLEAN:
            type_, data = pa.bool_(), np.packbits(cells.astype(np.uint8), bitorder="little")
        else:
            type_, dtype = _NUMBERS[kind]
            data = cells.astype(dtype, copy=False)
        return pa.Array.from_buffers(type_, len(cells), [bits, pa.py_buffer(data)], n_nulls)

    def _texts(self, number: int, bits: pa.Buffer | None, n_nulls: int) -> pa.Array:
        lengths = self._lengths[number]
        n_bytes = int(lengths.sum(dtype=np.int64))
        ends: Int32s = np.zeros(len(lengths) + 1, np.int32)
        target = pa.allocate_buffer(n_bytes + COPY_SLACK)
        view: Bytes = np.frombuffer(target, np.uint8)
        copy_texts(self._data, self._cells[number], lengths, view, ends)
        buffers = [bits, pa.py_buffer(ends), target.slice(0, n_bytes)]
        return pa.Array.from_buffers(pa.string(), len(lengths), buffers, n_nulls)


def _field(schema: Mapping[str, Any]) -> _Field | None:
    kind = schema["type"]
    union = kind if isinstance(kind, list) else [kind]
    members = [each if isinstance(each, str) else each.get("type") for each in union]
    kinds = [each for each in members if each != "null"]
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        return None
    branches = (-1, -1)
    if isinstance(kind, list):
        branches = members.index(kinds[0]), members.index("null") if "null" in members else -1
    return _Field(schema["name"], members, kinds[0], branches)


def _is_named_alike(writer: Mapping[str, Any], reader: Mapping[str, Any]) -> bool:
    short = writer["name"].rpartition(".")[2]
    aliases = reader.get("aliases", ())
    return (
        short == reader["name"].rpartition(".")[2] or short in aliases or writer["name"] in aliases
    )


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    if pa.types.is_floating(kind) and pa.types.is_integer(column.type):
        # A number that no double has is rounded, as Python rounds it.
        return column.cast(pa.float64(), safe=False).cast(kind, safe=False)
    return column.cast(kind)
