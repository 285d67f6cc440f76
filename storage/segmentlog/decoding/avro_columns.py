"""Flat records of Avro as columns, and as columns of another record by Avro's rules.

`pyruhvro` decodes them, some tens of times as quickly as `fastavro` makes objects.  It is given no
other types, because it ends the process, or returns zeros, for some of them.  Resolution is then a
choice of columns, their casts, and columns of defaults.

Whatever is not certain here raises or is no plan: the caller decodes such values one by one, and
so finds out which of them is wrong.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import pyarrow as pa

#: What pyruhvro decodes rightly, and as what: an int that is too large for it would be 0.
_DECODED = {
    "boolean": "boolean",
    "int": "long",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
}

#: Which types of a reader take a type of a writer.
_PROMOTED = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}


class _Field(NamedTuple):
    """A field of a writer or a reader, without its logical type."""

    name: str
    members: list[str]  #: of its union, or its one type
    kind: str  #: the member that is not null


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
        kinds = [[_DECODED.get(kind, kind) for kind in each.members] for each in fields]
        listed = [
            {"name": each.name, "type": made if len(made) > 1 else made[0]}
            for each, made in zip(fields, kinds, strict=True)
        ]
        self._text = json.dumps({"type": "record", "name": "record", "fields": listed})

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
        self, values: Sequence[bytes], sources: Sequence[_FieldSource], kind: pa.StructType
    ) -> pa.Array:
        """Values as columns of `kind`."""
        found = import_module("pyruhvro").deserialize_array([*values], self._text)
        made = []
        for source, field in zip(sources, kind, strict=True):
            if source.column is None:
                made.append(pa.repeat(pa.scalar(source.default, field.type), len(values)))
                continue
            column = found.column(source.column)
            if not source.takes_null and column.null_count:
                raise ValueError("a null for a field that has none")
            made.append(_cast(column, field.type))
        return pa.StructArray.from_arrays(made, fields=[*kind])


def _field(schema: Mapping[str, Any]) -> _Field | None:
    kind = schema["type"]
    union = kind if isinstance(kind, list) else [kind]
    members = [each if isinstance(each, str) else each.get("type") for each in union]
    kinds = [each for each in members if each != "null"]
    if len(kinds) != 1 or kinds[0] not in _DECODED:
        return None
    return _Field(schema["name"], members, kinds[0])


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
