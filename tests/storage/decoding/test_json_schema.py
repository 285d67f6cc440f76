"""Values in JSON that Confluent's serializer has written become the columns of their schemas."""

import json
import os
import time
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from registered import payloads

import segmentlog
from segmentlog.decoding.json_schema import JsonSchema
from segmentlog.decoding.schema import UnusableSchemaError

registry = pytest.importorskip("confluent_kafka.schema_registry")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SUBJECT = "orders-value"
LINE = {
    "$id": "https://shop/line.json",
    "title": "Line",
    "type": "object",
    "properties": {"item": {"type": "string"}, "n": {"type": ["null", "integer"]}},
}
ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "rate": {"type": "number"},
        "paid": {"type": "boolean"},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "state": {"enum": ["a", "b"]},
        "lines": {"type": "array", "items": {"$ref": "https://shop/line.json"}},
        "first": {"$ref": "#/definitions/Place"},
        "next": {"$ref": "#/definitions/Place"},
        "tags": {"type": "object", "additionalProperties": {"type": "integer"}},
        "open": {"type": "object"},
        "any": {},
        "either": {"type": ["string", "integer"]},
        "tree": {"$ref": "#/definitions/Tree"},
    },
    "definitions": {
        "Place": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "Tree": {"type": "object", "properties": {"of": {"$ref": "#/definitions/Tree"}}},
    },
}


def known_as(*rows: tuple[Any, ...]) -> pa.Table:
    """The table ``schemas``: subject, version, id, schema; names and subjects it refers to."""
    return pa.table(
        {
            "subject": [each[0] for each in rows],
            "version": [each[1] for each in rows],
            "id": [each[2] for each in rows],
            "guid": pa.nulls(len(rows), pa.string()),
            "schema_type": ["JSON"] * len(rows),
            "schema": [json.dumps(each[3]) for each in rows],
            "references": [
                [{"name": name, "subject": subject, "version": 1} for name, subject in each[4:]]
                for each in rows
            ],
            "deleted": [False] * len(rows),
        }
    )


def rows_of(*values: bytes | None) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.binary())})


def framed(number: int, rest: Any) -> bytes:
    data = rest if isinstance(rest, bytes) else json.dumps(rest).encode()
    return b"\0" + number.to_bytes(4, "big") + data


@pytest.mark.parametrize("in_header", [False, True])
def test_values_of_the_serializer(in_header: bool) -> None:
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    client = registry.SchemaRegistryClient.new_client({"url": "mock://registry"})
    refers = registry.SchemaReference("https://shop/line.json", "line", 1)
    client.register_schema("line", registry.Schema(json.dumps(LINE), "JSON"))
    settings = {"auto.register.schemas": True}
    if in_header:
        settings["schema.id.serializer"] = registry.header_schema_id_serializer
    schema = registry.Schema(json.dumps(ORDER), "JSON", [refers])
    write = JSONSerializer(schema, client, conf=settings)
    given = {
        "id": 2**60,
        "rate": 0.1,
        "paid": True,
        "note": None,
        "state": "b",
        "lines": [{"item": "é", "n": 1}, {"item": "", "n": None}],
        "first": {"x": 1},
        "tags": {"k": 1},
        "open": {"a": [1, "é"]},
        "any": [1.5],
        "either": 7,
        "tree": {"of": {"of": {}}},
    }
    found: list[tuple[str, Any]] = []
    value = write(given, SerializationContext("orders", MessageField.VALUE, found))
    of_order = client.get_latest_version(SUBJECT)
    known = known_as(
        ("line", 1, client.get_latest_version("line").schema_id, LINE),
        (SUBJECT, 1, of_order.schema_id, ORDER, ("https://shop/line.json", "line")),
    )
    known = known.set_column(3, "guid", pa.array([None, of_order.guid], pa.string()))
    headers = pa.array([[{"key": name, "value": each} for name, each in found]], HEADERS)
    decoded = segmentlog.decode(rows_of(value).append_column("headers", headers), known, SUBJECT)
    expected = given | {
        "next": None,
        "tags": [("k", 1)],
        "open": '{"a":[1,"é"]}',
        "any": "[1.5]",
        "either": "7",
        "tree": {"of": '{"of":{}}'},
    }
    assert [expected] == decoded["value"].to_pylist()


OF_FLAT = {
    "a": {"type": "integer"},
    "s": {"type": "string"},
    "f": {"type": "number"},
    "b": {"type": "boolean"},
}
FLAT: dict[str, Any] = {"type": "object", "properties": OF_FLAT}


def test_values_of_other_versions_and_those_that_do_not_fit() -> None:
    """By names; and a value of the wrong type is not made one of the right type."""
    first = {"type": "object", "properties": {"a": {"type": "integer"}, "gone": {"type": "null"}}}
    known = known_as((SUBJECT, 1, 1, first), (SUBJECT, 2, 2, FLAT))
    good = [
        framed(1, {"a": 1, "gone": None}),
        framed(2, {"s": "x", "f": 1, "b": None, "new": []}),
        framed(2, None),
        None,
    ]
    decoded = segmentlog.decode(rows_of(*good), known, SUBJECT)["value"].to_pylist()
    none = {"a": None, "s": None, "f": None, "b": None}
    assert [none | {"a": 1}, none | {"s": "x", "f": 1.0}, None, None] == decoded
    bad = {
        b'{"a": "1"}': "a is a string, and not an integer",
        b'{"a": 1.5}': "not an integer",
        b'{"a": true}': "a is a boolean",
        b'{"s": 1}': "s is a number, and not a string",
        b'{"f": NaN}': "f does not fit a double",
        b'{"f": 1e999}': "f does not fit",
        b'{"a": 9223372036854775808}': "a does not fit int64",
        b"[]": "it is an array, and not an",
        b"": "it is not JSON",
        b'{"a": 1} 2': "it is not JSON",
        b'{"s": "\xff"}': "s is not Uni",
        b'{"s": "\\ud800"}': "s is not Unicode",
        b"[" * 100_000: "recursion",
    }
    for quick in (good, []):
        rows = rows_of(*quick, *(framed(2, each) for each in bad), framed(2, {"a": 1.0}))
        found = segmentlog.decode(rows, known, SUBJECT, on_undecodable="null")
        for cause, expected in zip(
            found["undecodable"].to_pylist()[len(quick) :], [*bad.values(), None], strict=True
        ):
            assert (cause is None) == (expected is None)
            assert expected is None or expected in cause
        assert none | {"a": 1} == found["value"].to_pylist()[-1]


def test_a_value_cannot_be_several() -> None:
    """The first would end its own row and begin the next, and the second would be in the first."""
    schema = JsonSchema(json.dumps(FLAT))
    values = [
        b'{"a":1}}\n{"n":1,"value":{"a":2}',
        b"",
        b'{"a":3}',
        b'{"a":4}}\n{"n":5,"value":"',
        b'"',
        b'{"a":6}',
    ]
    causes: dict[int, str] = {}
    found = schema.decode(payloads(values), schema, causes)
    assert {0, 1, 3} == causes.keys() - {4}
    assert [3, 6] == [each["a"] for each in (found[2].as_py(), found[5].as_py())]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer", "connect.type": "int16"}, pa.int16()),
        ({"type": "number", "connect.type": "float32"}, pa.float32()),
        (
            {"type": "integer", "title": "org.apache.kafka.connect.data.Timestamp"},
            pa.timestamp("ms", "UTC"),
        ),
        ({"type": "integer", "title": "org.apache.kafka.connect.data.Date"}, pa.date32()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"enum": [1, None]}, pa.int64()),
        ({"const": "x"}, pa.string()),
        ({"type": "null"}, pa.null()),
        (True, pa.string()),
        ({"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"type": "boolean"}}}, pa.bool_()),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, pa.string()),
        ({"type": "array", "items": [{"type": "integer"}]}, pa.string()),
        ({"properties": {"a": {"type": "null"}}}, pa.struct([("a", pa.null())])),
    ],
)
def test_the_type_of_a_schema(schema: Any, expected: pa.DataType) -> None:
    assert expected == JsonSchema(json.dumps(schema)).type


def nested(n_levels: int) -> dict[str, Any]:
    names = [{"$ref": f"#/$defs/{n + 1}"} for n in range(n_levels)]
    defined = {str(n): {"properties": {"a": each, "b": each}} for n, each in enumerate(names)}
    return {"$ref": "#/$defs/0", "$defs": defined | {str(n_levels): {"type": "integer"}}}


REFUSED = {
    "{": "it is not a JSON Schema",
    "[]": "is not a JSON Schema",
    '{"type": "text"}': "its types",
    '{"$ref": "other.json"}': "other.json that it refers to is not here",
    '{"$ref": "#/a"}': "#/a is not in its schema",
    '{"$ref": "#/$ref"}': "is not a JSON Schema",
    json.dumps(nested(14)): "more than 10000 fields",
    '{"properties": 1}': "not a JSON Schema",
    json.dumps(nested(40)): "more than 32 types",
}


@pytest.mark.parametrize("text", REFUSED)
def test_schemas_that_are_refused(text: str) -> None:
    with pytest.raises(UnusableSchemaError) as caught:
        JsonSchema(text)
    assert REFUSED[text] in str(caught.value)


def any_json(random: Random, depth: int = 0) -> str:
    kind = random.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return random.choice(["null", "true", "false", "NaN", "-0", "1.0", "01", "1e400"])
    if kind == 1:
        return repr(random.choice([random.randrange(-9, 9), 2**63, random.getrandbits(70)]))
    if kind == 2:
        return repr(random.random() * 10 ** random.randrange(-320, 308))
    if kind in (3, 4, 5):
        texts = ["", "é", "\\u00e9", "\\ud83d\\ude00", "\\ud800", 'a\\"b', "a\nb", "\x00", "}"]
        return f'"{random.choice(texts)}"'
    if kind == 6:
        return f"[{','.join(any_json(random, depth + 1) for _ in range(random.randrange(4)))}]"
    comma = random.choice([",", " ,", ",\n"])
    members = (
        f'"{random.choice("asfbox")}":{any_json(random, depth + 1)}'
        for _ in range(random.randrange(5))
    )
    return f"{{{comma.join(members)}}}"


SECONDS = float(os.environ.get("SECONDS_OF_DECODING", "20"))


@pytest.mark.parametrize("seconds", [0, pytest.param(SECONDS, marks=pytest.mark.slow)])
def test_columns_are_those_of_values_one_by_one(seconds: float) -> None:
    random, end, n_quick = Random(int(seconds)), time.monotonic() + seconds, 0
    more = {"o": FLAT, "x": {"type": "array", "items": FLAT}}
    text = json.dumps({"properties": {**OF_FLAT, **more}})
    quick, slow = JsonSchema(text), JsonSchema(text)
    slow._is_quick = False
    assert quick._is_quick
    for n in count():
        if n > 60 and time.monotonic() > end:
            break
        values = []
        for _ in range(random.choice([1, 1, 2, 5])):
            good = {"a": random.choice([1, None]), "s": "x", "x": [{"a": 2, "f": random.random()}]}
            data = bytearray(
                (any_json(random) if random.random() < 0.5 else json.dumps(good)).encode()
            )
            if random.random() < 0.2 and data:
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            values.append(bytes(data))
        causes: list[dict[int, str]] = [{}, {}]
        found = quick.decode(payloads(values), quick, causes[0])
        one_by_one = slow.decode(payloads(values), slow, causes[1])
        n_quick += not causes[0]
        assert one_by_one.equals(found), values
        assert causes[0] == causes[1], values
    assert n_quick > 10
