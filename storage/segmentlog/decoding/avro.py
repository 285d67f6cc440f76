"""A schema of Avro as a type of Arrow, and the bytes of its values as a column of this type.

A schema comes from a registry that anybody may have filled, and so does a value.  What Arrow
cannot hold is refused by its path in the schema: types that contain themselves.  A list of items
that take no bytes is refused, too: five bytes could say that it has billions of them.  All other
values cost memory in proportion to their bytes.

Logical types are those of Arrow over the same numbers, so that a time beyond the year 9999 is no
error.  A uuid is its text.

Flat records are decoded as columns where that is certain.  `fastavro` decodes all other values,
and those that the other way has left out.
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from segmentlog.decoding.avro_columns import FlatRecord
from segmentlog.decoding.avro_unions import Convert, Unions, indistinct, merged, not_null
from segmentlog.decoding.payloads import Payloads
from segmentlog.decoding.schema import (
    FAILS,
    MOST_FIELDS,
    MOST_LEVELS,
    Steps,
    UnusableSchemaError,
    checked,
    needed,
)
from segmentlog.format.kernels.memory import Int64s

_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}


class AvroSchema:
    """A schema: `text`, and the schemas that it refers to, each before those that need it.

    `references`: their names in it, and their texts.  Raises `UnusableSchemaError`.
    """

    def __init__(self, text: str, references: Iterable[tuple[str, str]] = ()) -> None:
        fastavro = needed("fastavro")
        names: dict[str, Any] = {}
        texts = dict.fromkeys(each for _, each in references)
        try:
            self._referred = [
                fastavro.parse_schema(_without_logical(json.loads(each)), names) for each in texts
            ]
            self._plain = json.loads(text)
            self.parsed = fastavro.parse_schema(_without_logical(self._plain), names)
            self._named = names
            if isinstance(self.parsed, list):  # fastavro forgets what its names stand for
                known = {each["name"]: each for each in self._referred if "name" in each}
                self.parsed = [
                    known.get(each, each) if isinstance(each, str) else each
                    for each in self.parsed
                ]
            types = _AvroTypes()
            for each in texts:
                types.of(json.loads(each), "", "")
            self.type, _ = types.of(self._plain, "", "")
            self._has_unions = types.has_unions
            self._convert(resolves=False)  # which raises for what is no schema of Avro
        except UnusableSchemaError:
            raise
        except (*FAILS, fastavro.schema.SchemaParseException) as error:
            reason = f"it is not a schema of Avro ({type(error).__name__}: {error})"
            raise UnusableSchemaError(reason[:400]) from None

    def decode(self, values: Payloads, reader: "AvroSchema", causes: dict[int, str]) -> pa.Array:
        """Values of this schema as a column of the type of `reader`; null where there is a cause.

        `causes`: gets why a value cannot be decoded, by its number in `values`.
        """
        quick = self._quick(values, reader)
        if quick is None:
            return self._one_by_one(values, reader, causes)
        found, left_out = quick
        if not len(left_out):
            return found
        of_rest: dict[int, str] = {}
        rest = self._one_by_one(values.only(left_out), reader, of_rest)
        causes.update({int(left_out[number]): cause for number, cause in of_rest.items()})
        index = np.arange(len(values))
        index[left_out] = len(values) + np.arange(len(left_out))
        return pa.concat_arrays([found, rest]).take(pa.array(index))

    def _one_by_one(
        self, values: Payloads, reader: "AvroSchema", causes: dict[int, str]
    ) -> pa.Array:
        read, parsed = needed("fastavro").schemaless_reader, reader.parsed
        later = None if reader is self else parsed
        of_unions: dict[str, Any] = {"return_named_type": True} if reader._has_unions else {}
        convert = reader._convert(resolves=later is not None)
        decoded: list[Any] = []
        for number, value in enumerate(values.to_list()):
            try:
                found = read(io.BytesIO(value), self.parsed, later, **of_unions)
                decoded.append(found if convert is None else convert(found))
            except EOFError:
                decoded.append(None)
                causes[number] = "its bytes end too early"
            except (*FAILS, needed("fastavro").read.SchemaResolutionError) as error:
                decoded.append(None)
                causes[number] = f"{type(error).__name__}: {error}"[:200]
        try:
            return checked(pa.array(decoded, reader.type))
        except FAILS:
            return pa.concat_arrays(
                [_fitting(each, reader.type, n, causes) for n, each in enumerate(decoded)]
            )

    def names_of(self, steps: Steps) -> list[Steps]:
        """The steps by which older versions may reach a field: by its name, and by aliases."""
        return [*_names_of(self.parsed, self._named, steps)]

    def _convert(self, *, resolves: bool) -> Convert | None:
        if not self._has_unions:
            return None
        return Unions(self.parsed, self._referred, resolves=resolves).convert

    def _quick(self, values: Payloads, reader: "AvroSchema") -> tuple[pa.Array, Int64s] | None:
        """The values, decoded as columns, and the numbers of those that have to be looked at.

        None if each has to be.
        """
        try:
            sources = None if self._flat is None else self._flat.sources(reader.parsed)
            if self._flat is None or sources is None:
                return None
            found, left_out = self._flat.decode(values, sources, reader.type)
            return checked(found), left_out
        except FAILS:
            return None  # which value it is follows from decoding each

    @cached_property
    def _flat(self) -> FlatRecord | None:
        return FlatRecord.of(self.parsed)


def _names_of(schema: Any, named: Mapping[str, Any], steps: Steps) -> Iterator[Steps]:  # noqa: ANN401
    if isinstance(schema, str):
        schema = named.get(schema, schema)
    if isinstance(schema, list):
        own = not_null(schema)
        yield from _names_of(own[0], named, steps) if len(own) == 1 else ()
    elif not steps:
        yield ()
    elif isinstance(schema, dict):
        kind, (step, *rest) = schema["type"], steps
        if kind == "array":
            yield from ((None, *more) for more in _names_of(schema["items"], named, tuple(rest)))
        elif kind == "map":
            of_values = _names_of(schema["values"], named, tuple(rest[1:]))
            yield from ((None, "value", *more) for more in of_values)
        elif kind not in ("record", "error"):
            yield from _names_of(kind, named, steps)
        else:
            fields = {each["name"]: each for each in schema["fields"]}
            # A field that has the name goes before one that had it.
            former = {*fields[step].get("aliases", ())} - {*fields}
            for name in (step, *sorted(former)):
                for more in _names_of(fields[step]["type"], named, tuple(rest)):
                    yield (name, *more)


def _fitting(value: object, kind: pa.DataType, number: int, causes: dict[int, str]) -> pa.Array:
    """A column of one value, or of null if its type cannot hold it."""
    try:
        return checked(pa.array([value], kind))
    except FAILS as error:
        causes[number] = f"it does not fit {kind} ({error})"[:200]
        return pa.nulls(1, kind)


def _without_logical(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """A schema whose values are numbers, texts and bytes; decimals alone stay."""
    if isinstance(schema, list):
        return [_without_logical(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: each for name, each in schema.items() if name != "logicalType"}
    if schema.get("logicalType") == "decimal" and _decimal(schema) is not None:
        kept["logicalType"] = "decimal"
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = _without_logical(kept[name])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [_without_logical(each) for each in kept["fields"]]
    return kept


def _decimal(schema: Mapping[str, Any]) -> pa.DataType | None:
    """The type of a decimal; None if Avro or Arrow has no such decimal: its bytes count then."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return None
    if schema["type"] not in ("bytes", "fixed") or not 0 <= scale <= precision or precision < 1:
        return None
    if precision > 76:
        return None
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


class _AvroTypes:
    """Types of Arrow, and those of names, once they are known."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[pa.DataType, bool] | None] = {}  # None: while it is made
        self._n_fields_of: dict[str, int] = {}  # in all levels, of named types
        self._n_levels = self._n_fields = 0
        self.has_unions = False  #: of several types

    def of(self, schema: Any, space: str, path: str) -> tuple[pa.DataType, bool]:  # noqa: ANN401
        """The type, and whether each of its values takes a byte at least.

        `space`: the namespace around it.  `path`: its fields, for a reason.
        """
        self._n_levels += 1
        self._add(1)
        if self._n_levels > MOST_LEVELS:
            raise UnusableSchemaError(f"{path}: more than {MOST_LEVELS} types in each other")
        try:
            return self._of(schema, space, path)
        finally:
            self._n_levels -= 1

    def _add(self, n_fields: int) -> None:
        self._n_fields += n_fields
        if self._n_fields > MOST_FIELDS:
            raise UnusableSchemaError(f"more than {MOST_FIELDS} fields in all levels")

    def _of(self, schema: Any, space: str, path: str) -> tuple[pa.DataType, bool]:  # noqa: ANN401
        if isinstance(schema, list):
            return self._union(schema, space, path)
        if isinstance(schema, str):
            if schema in _PLAIN:
                return _PLAIN[schema], schema != "null"
            name = schema if "." in schema else f"{space}.{schema}"
            name = name if name in self._named else f".{schema}"
            found = self._named[name]
            self._add(self._n_fields_of.get(name, 0))
            if found is None:
                raise UnusableSchemaError(f"{path}: the type {schema} contains itself")
            return found
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.of(kind, space, path)
        if kind == "array":
            item, takes_bytes = self.of(schema["items"], space, f"{path}[]")
            if not takes_bytes:
                raise UnusableSchemaError(f"{path}: items of the list take no bytes")
            return pa.list_(item), True
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"], space, f"{path}[]")[0]), True
        if kind in ("record", "error", "enum", "fixed"):
            return self._name(schema, space, path)
        if schema.get("logicalType") == "decimal" and (decimal := _decimal(schema)):
            return decimal, True
        logical = _LOGICAL.get((kind, schema.get("logicalType")))
        return (logical, True) if logical is not None else self.of(kind, space, path)

    def _union(self, schema: list[Any], space: str, path: str) -> tuple[pa.DataType, bool]:
        if any(isinstance(each, list) for each in schema):
            raise UnusableSchemaError(f"{path or 'the schema'}: a union within a union")
        others = not_null(schema)
        if len(others) < 2:
            return (self.of(others[0], space, path)[0] if others else pa.null()), True
        if kind := merged(others):
            return _PLAIN[kind], True
        if alike := indistinct(others):
            raise UnusableSchemaError(f"{path or 'the schema'}: a union of {alike}, and of others")
        self.has_unions = True
        members = [self.of(each, space, path)[0] for each in others]
        return pa.struct([(f"member{n}", kind) for n, kind in enumerate(members)]), True

    def _name(self, schema: Mapping[str, Any], space: str, path: str) -> tuple[pa.DataType, bool]:
        space, _, name = (
            schema["name"]
            if "." in schema["name"]
            else f"{schema.get('namespace', space)}.{schema['name']}"
        ).rpartition(".")
        whole = f"{space}.{name}"
        found: tuple[pa.DataType, bool]
        if schema["type"] == "enum":
            found = pa.string(), True
        elif schema["type"] == "fixed":
            decimal = _decimal(schema) if schema.get("logicalType") == "decimal" else None
            found = decimal or pa.binary(schema["size"]), schema["size"] > 0
        else:
            self._named[whole] = None
            n_before = self._n_fields
            made = [
                (each["name"], *self.of(each["type"], space, f"{path}.{each['name']}".strip(".")))
                for each in schema["fields"]
            ]
            kind = pa.struct([(name, kind) for name, kind, _ in made])
            found = kind, any(takes for _, _, takes in made)
            self._n_fields_of[whole] = self._n_fields - n_before
        self._named[whole] = found
        for alias in schema.get("aliases", ()):
            name = alias if "." in alias else f"{space}.{alias}"
            self._named.setdefault(name, found)
            self._n_fields_of.setdefault(name, self._n_fields_of.get(whole, 0))
        return found
