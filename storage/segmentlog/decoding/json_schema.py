"""A JSON Schema as a type of Arrow, and values in JSON as a column of this type.

A JSON Schema allows whatever it does not forbid, and Arrow has one type for a column.  So the
schema is read as a declaration of types: an object with properties is a struct, and other members
of the object are left out.  What has no one type, or no end, stays JSON, as text.  Conditions on
values, such as ranges, patterns, formats and required properties, are not checked.

Arrow reads JSON as columns where it is as strict as the rules here.  Other values are looked at
one by one, and so are those of a batch that Arrow has refused.  Both take bytes that are not UTF-8
and NaN in what is left out.
"""

import io
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from segmentlog.decoding.payloads import Payloads
from segmentlog.decoding.schema import (
    FAILS,
    MOST_FIELDS,
    MOST_LEVELS,
    UnusableSchemaError,
    checked,
)

_MOST_BYTES = 16 << 20  #: that Arrow's reader is given at once

#: Hints of Kafka Connect.
_INTS = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32()}

_PLAIN = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
    "null": pa.null(),
}

#: Titles that Kafka Connect gives to its logical types.
_OF_CONNECT = {
    ("integer", "org.apache.kafka.connect.data.Date"): pa.date32(),
    ("integer", "org.apache.kafka.connect.data.Time"): pa.time32("ms"),
    ("integer", "org.apache.kafka.connect.data.Timestamp"): pa.timestamp("ms", "UTC"),
}

#: What Arrow's reader takes as strictly as this module.
_QUICK = (pa.bool_(), pa.int64(), pa.float64(), pa.string())

_NAMES = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


class _Type(NamedTuple):
    """A type of Arrow, and the function that makes its values of parsed JSON.

    The function is called with a value that is not null, and with its place.  It raises a
    ValueError.
    """

    arrow: pa.DataType
    value: Callable[[Any, str], Any]


class JsonSchema:
    """A schema: `text`, and the schemas that it refers to, each before those that need it.

    `references`: their names in it, and their texts.  Raises `UnusableSchemaError`.
    """

    def __init__(self, text: str, references: Sequence[tuple[str, str]] = ()) -> None:
        try:
            self._type = _JsonTypes(text, references).of_root()
            self.type = self._type.arrow
        except UnusableSchemaError:
            raise
        except FAILS as error:
            reason = f"it is not a JSON Schema ({type(error).__name__}: {error})"
            raise UnusableSchemaError(reason[:400]) from None
        self._is_quick = _is_quick(self.type)

    def decode(self, values: Payloads, reader: "JsonSchema", causes: dict[int, str]) -> pa.Array:
        """Values of this schema as a column of the type of `reader`; null where there is a cause.

        `causes`: gets why a value cannot be decoded, by its number in `values`.
        """
        texts = values.to_list()
        if reader._is_quick and texts:
            try:
                return _as_columns(texts, reader.type)
            except FAILS:
                pass  # which value it is follows from decoding each
        decoded: list[Any] = []
        for number, value in enumerate(texts):
            try:
                parsed = json.loads(value.decode(errors="surrogateescape"))
                decoded.append(None if parsed is None else reader._type.value(parsed, ""))
            except FAILS as error:
                decoded.append(None)
                is_json = not isinstance(error, json.JSONDecodeError)
                causes[number] = f"{'' if is_json else 'it is not JSON: '}{error}"[:200]
        return checked(pa.array(decoded, reader.type))


def _as_columns(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Values as Arrow's own reader takes them, which raises if one of them is not of the type.

    Each is a member of an object with its number, from a begin that nobody knows.  A value that
    ends this object, and begins another, does not have the right numbers.
    """
    begin = secrets.randbelow(2**62)
    schema = pa.schema([("n", pa.int64()), ("value", kind)])
    parts = [pa.nulls(0, kind)]
    for first, last in _cuts(values):
        framed: list[bytes] = []
        for number in range(first, last):
            framed += (b'{"n":%d,"value":' % (begin + number), values[number], b"}\n")
        joined = b"".join(framed)
        found = pyarrow.json.read_json(
            io.BytesIO(joined),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            pyarrow.json.ParseOptions(
                schema, newlines_in_values=True, unexpected_field_behavior="ignore"
            ),
        )
        numbers = found["n"].to_numpy()
        if not np.array_equal(numbers, np.arange(begin + first, begin + last)):
            raise ValueError("a value is several")
        parts += [checked(each) for each in found["value"].chunks]
    if not all(_is_finite(each) for each in parts):
        raise ValueError("a number that JSON does not have")
    return pa.concat_arrays(parts)


def _cuts(values: Sequence[bytes]) -> list[tuple[int, int]]:
    n_bytes = np.cumsum([len(each) for each in values], dtype=np.int64) // _MOST_BYTES
    ends = [*(np.flatnonzero(np.diff(n_bytes)) + 1).tolist(), len(values)]
    return list(zip([0, *ends], ends, strict=False))


def _is_finite(values: pa.Array) -> bool:
    if pa.types.is_struct(values.type):
        return all(_is_finite(each) for each in values.flatten())
    if pa.types.is_list(values.type):
        return _is_finite(values.flatten())
    if not pa.types.is_floating(values.type):
        return True
    return pc.all(pc.is_finite(values)).as_py() is not False


def _is_quick(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_is_quick(each.type) for each in kind)
    if pa.types.is_list(kind):
        return _is_quick(kind.value_type)
    return kind in _QUICK


class _JsonTypes:
    """The types of a schema.  `references`: names and texts of the schemas that it refers to."""

    def __init__(self, text: str, references: Sequence[tuple[str, str]]) -> None:
        self._root = json.loads(text)
        self._documents: dict[str, Any] = {}
        for name, each in references:
            found = json.loads(each)
            self._documents[name] = found
            if isinstance(found, dict) and isinstance(found.get("$id"), str):
                self._documents.setdefault(urldefrag(found["$id"]).url, found)
        self._above: list[int] = []  # the schemas around a schema, by identity
        self._n_fields = 0

    def of_root(self) -> _Type:
        return self._of(self._root, self._root)

    def _of(self, schema: Any, document: Any) -> _Type:  # noqa: ANN401 - JSON
        """The type of a schema, whose references are those of `document`."""
        self._n_fields += 1
        if self._n_fields > MOST_FIELDS:
            raise UnusableSchemaError(f"more than {MOST_FIELDS} fields in all levels")
        if not isinstance(schema, (dict, bool)):
            raise UnusableSchemaError(f"{schema!r:.40} is not a JSON Schema")
        if isinstance(schema, bool) or id(schema) in self._above:
            return _TEXT
        if len(self._above) >= MOST_LEVELS:
            raise UnusableSchemaError(f"more than {MOST_LEVELS} types in each other")
        self._above.append(id(schema))
        try:
            return self._of_members(schema, document)
        finally:
            self._above.pop()

    def _of_members(self, schema: Mapping[str, Any], document: Any) -> _Type:  # noqa: ANN401
        if "$ref" in schema:
            return self._of(*self._referred(schema["$ref"], document))
        choices = schema.get("oneOf", schema.get("anyOf", schema.get("allOf")))
        if choices is not None and "properties" not in schema:
            others = [each for each in choices if each != {"type": "null"}]
            return self._of(others[0], document) if len(others) == 1 else _TEXT
        kinds = schema.get("type", _kinds_of_values(schema))
        kinds = {kinds} if isinstance(kinds, str) else {*kinds}
        if not kinds <= {*_PLAIN, "array", "object"}:
            raise UnusableSchemaError(f"its types are {sorted(map(str, kinds))}"[:200])
        kinds -= {"null"} if len(kinds) > 1 else set()
        kinds -= {"integer"} if kinds == {"integer", "number"} else set()
        if not kinds and "properties" in schema:
            kinds = {"object"}
        if len(kinds) != 1:
            return _TEXT
        (kind,) = kinds
        if kind == "object":
            return self._object(schema, document)
        if kind == "array":
            return self._array(schema, document)
        return _plain(kind, schema)

    def _object(self, schema: Mapping[str, Any], document: Any) -> _Type:  # noqa: ANN401
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if properties:
            fields = {name: self._of(each, document) for name, each in properties.items()}
            arrow = pa.struct([(name, each.arrow) for name, each in fields.items()])

            def members(value: Any, place: str) -> dict[str, Any]:  # noqa: ANN401
                _expect(value, dict, place)
                return {
                    name: kind.value(value[name], f"{place}.{name}")
                    for name, kind in fields.items()
                    if value.get(name) is not None
                }

            return _Type(arrow, members)
        if not isinstance(others, dict) or schema.get("patternProperties"):
            return _TEXT
        item = self._of(others, document)

        def pairs(value: Any, place: str) -> list[tuple[str, Any]]:  # noqa: ANN401
            _expect(value, dict, place)
            return [
                (_text(name, place), None if each is None else item.value(each, f"{place}.{name}"))
                for name, each in value.items()
            ]

        return _Type(pa.map_(pa.string(), item.arrow), pairs)

    def _array(self, schema: Mapping[str, Any], document: Any) -> _Type:  # noqa: ANN401
        if not isinstance(schema.get("items"), dict) or "prefixItems" in schema:
            return _TEXT
        item = self._of(schema["items"], document)

        def items(value: Any, place: str) -> list[Any]:  # noqa: ANN401
            _expect(value, list, place)
            return [None if each is None else item.value(each, f"{place}[]") for each in value]

        return _Type(pa.list_(item.arrow), items)

    def _referred(self, name: str, document: Any) -> tuple[Any, Any]:  # noqa: ANN401
        """What a ``$ref`` names, and the document that has it."""
        file, fragment = urldefrag(name)
        within = document
        if file:
            base = document.get("$id", "") if isinstance(document, dict) else ""
            whole = urljoin(base, file)
            root = self._root.get("$id") if isinstance(self._root, dict) else None
            known: dict[Any, Any] = {**self._documents, root: self._root}
            within = known.get(file, known.get(whole))
            if within is None:
                raise UnusableSchemaError(f"the schema {file:.100} that it refers to is not here")
        found = within
        for part in fragment.split("/")[1:] if fragment.startswith("/") else [fragment][:1]:
            if not part:
                continue
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(key)] if isinstance(found, list) else found[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise UnusableSchemaError(f"{name:.100} is not in its schema") from None
        return found, within


def _kinds_of_values(schema: Mapping[str, Any]) -> set[str]:
    """The types of the values that an ``enum`` or a ``const`` lists."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    found = {names.get(type(each), "object") for each in values}
    return found if "object" not in found else set()


def _plain(kind: str, schema: Mapping[str, Any]) -> _Type:
    arrow = _PLAIN[kind]
    of_connect = schema.get("connect.type")
    if kind == "integer":
        arrow = _INTS.get(str(of_connect), arrow)
    elif kind == "number" and of_connect == "float32":
        arrow = pa.float32()
    arrow = _OF_CONNECT.get((kind, str(schema.get("title"))), arrow)
    if kind == "boolean":
        return _Type(arrow, _boolean)
    if kind == "string":
        return _Type(arrow, _text)
    if kind == "number":
        return _Type(arrow, _number)
    if kind == "null":
        return _Type(arrow, _nothing)
    bits = 63 if arrow == pa.timestamp("ms", "UTC") else arrow.bit_width - 1
    most = 86_400_000 if arrow == pa.time32("ms") else 2**bits
    least = 0 if arrow == pa.time32("ms") else -most

    def integer(value: Any, place: str) -> int:  # noqa: ANN401
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _other(value, "an integer", place)
        if not least <= value < most:
            raise ValueError(f"{place.lstrip('.') or 'it'} does not fit {arrow}")
        return value

    return _Type(arrow, integer)


def _boolean(value: Any, place: str) -> bool:  # noqa: ANN401
    if not isinstance(value, bool):
        raise _other(value, "a boolean", place)
    return value


def _number(value: Any, place: str) -> float:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _other(value, "a number", place)
    if not math.isfinite(value):
        raise ValueError(f"{place.lstrip('.') or 'it'} does not fit a double")
    return float(value)


def _text(value: Any, place: str) -> str:  # noqa: ANN401
    if not isinstance(value, str):
        raise _other(value, "a string", place)
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can name halves of characters
        raise ValueError(f"{place.lstrip('.') or 'it'} is not Unicode") from None
    return value


def _nothing(value: Any, place: str) -> None:  # noqa: ANN401
    raise _other(value, "null", place)


def _json(value: Any, place: str) -> str:  # noqa: ANN401
    return _text(json.dumps(value, ensure_ascii=False, separators=(",", ":")), place)


def _expect(value: object, kind: type, place: str) -> None:
    if not isinstance(value, kind):
        raise _other(value, _NAMES[kind], place)


def _other(value: object, expected: str, place: str) -> ValueError:
    found = _NAMES.get(type(value), "null")
    return ValueError(f"{place.lstrip('.') or 'it'} is {found}, and not {expected}")


_TEXT = _Type(pa.string(), _json)
