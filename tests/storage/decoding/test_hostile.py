"""Schemas and values that anybody may have written: an error of their own, in bounded time."""

import json
import os
import resource
import time
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import pytest
from registered import payloads

from segmentlog.decoding.avro import AvroSchema
from segmentlog.decoding.json_schema import JsonSchema
from segmentlog.decoding.protobuf import ProtobufSchema
from segmentlog.decoding.schema import UnusableSchemaError

pytest.importorskip("fastavro")
pytest.importorskip("ptars")
pytest.importorskip("grpc_tools")

SECONDS = float(os.environ.get("SECONDS_OF_DECODING", "20"))
_MOST_SECONDS = 30.0  #: of the processor, for one schema and its values
_MOST_BYTES = 2 << 30  #: of memory, for all of them


def doubled(n_levels: int) -> str:
    """A record whose fields are 2 ** `n_levels`."""
    kind: Any = {"type": "record", "name": "L0", "fields": [{"name": "n", "type": "int"}]}
    for n in range(n_levels):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"L{n}"}]
        kind = {"type": "record", "name": f"L{n + 1}", "fields": fields}
    return json.dumps(kind)


def test_types_that_are_used_twice_at_each_level() -> None:
    assert AvroSchema(doubled(5)).type.num_fields == 2
    with pytest.raises(UnusableSchemaError, match="more than 10000 fields"):
        AvroSchema(doubled(25))


WORDS = [
    "record", "array", "map", "enum", "fixed", "null", "int", "long", "string", "bytes", "double",
    "union", "decimal", "A", "B", "shop.A", "", "uuid", "date", "timestamp-millis", "object",
    "integer", "number", "boolean", "#/$defs/A", "#", "x.json", 0, 1, -1, 2**40, 1.5, None, True,
    [], {}, "\ud800", "é", "a" * 300,
]  # fmt: skip
NAMES = [
    "type", "name", "namespace", "fields", "items", "values", "symbols", "size", "default",
    "aliases", "logicalType", "precision", "scale", "properties", "additionalProperties", "$ref",
    "$defs", "oneOf", "anyOf", "allOf", "enum", "const", "title", "connect.type", "$id", "A",
]  # fmt: skip
OF_AVRO = [
    (
        '{"type":"record","name":"A","fields":[{"name":"a","type":["null","long"],"default":null},'
        '{"name":"b","type":{"type":"array","items":{"type":"map","values":"string"}}}]}'
    ),
    (
        '{"type":"record","name":"A","fields":[{"name":"a","type":{"type":"bytes","logicalType":'
        '"decimal","precision":9,"scale":2}},{"name":"e","type":{"type":"enum","name":"E","symbols":'
        '["X"]}},{"name":"f","type":{"type":"fixed","name":"F","size":3}},{"name":"g","type":"E"}]}'
    ),
    (
        '{"type":"record","name":"A","fields":[{"name":"a","type":"int"},{"name":"b","type":"string"},'
        '{"name":"c","type":{"type":"int","logicalType":"time-millis"}}]}'
    ),
]
UNION = [
    "null",
    "int",
    "string",
    {"type": "enum", "name": "E", "symbols": ["X"]},
    {"type": "map", "values": {"type": "record", "name": "B", "fields": []}},
]
A_RECORD = {"type": "record", "name": "C", "fields": [{"name": "b", "type": ["double", "B"]}]}
OF_UNIONS = {
    "type": "record",
    "name": "A",
    "fields": [
        {"name": "u", "type": UNION},
        {"name": "v", "type": [A_RECORD, "B"]},
    ],
}
OF_AVRO.append(json.dumps(OF_UNIONS))
OF_JSON = [
    (
        '{"type":"object","properties":{"a":{"type":"integer"},"b":{"$ref":"#/$defs/A"}},'
        '"$defs":{"A":{"type":"array","items":{"type":["null","string"]}}}}'
    ),
    '{"type":"object","additionalProperties":{"oneOf":[{"type":"null"},{"type":"number"}]}}',
]
OF_PROTOBUF = [
    (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message A { optional int32 n'
        " = 1; repeated B b = 2; map<string, B> m = 3; google.protobuf.Timestamp t = 4; }"
        " message B { oneof x { string s = 1; bytes r = 2; } E e = 3; } enum E { X = 0; }"
    ),
    (
        'syntax = "proto2"; package p; message A { required sint64 n = 1 [default = 7]; optional'
        " group G = 2 { optional bool b = 1; } extensions 5 to 9; }"
        " extend A { optional int32 x = 5; }"
    ),
]


def changed(random: Random, value: Any) -> Any:
    """JSON with something else in one place."""
    if random.random() < 0.2 or not isinstance(value, (dict, list)) or not value:
        return random.choice([*WORDS, {"type": random.choice(WORDS)}, [value, value], [value]])
    if isinstance(value, list):
        made = [*value]
        place = random.randrange(len(made))
        made[place : place + random.choice([0, 1, 1])] = [changed(random, made[place])]
        return made
    name = random.choice([*value])
    new = random.choice([name, name, name, random.choice(NAMES)])
    return {**value, new: changed(random, value[name])}


def mangled(random: Random, text: str) -> str:
    """A text with parts taken out, doubled or exchanged."""
    for _ in range(random.randrange(4)):
        begin = random.randrange(len(text) + 1)
        end = min(len(text), begin + random.randrange(12))
        parts = [text[begin:end] * random.choice([0, 2, 40]), random.choice("{}[];\"'=0 \x00é")]
        text = text[:begin] + random.choice(parts) + text[end:]
    return text


def of_json(texts: list[str]) -> Callable[[Random], str]:
    def one(random: Random) -> str:
        value = json.loads(random.choice(texts))
        for _ in range(random.randrange(4)):
            value = changed(random, value)
        return mangled(random, json.dumps(value)) if random.random() < 0.1 else json.dumps(value)

    return one


FORMATS: dict[str, tuple[Any, Callable[[Random], str], int]] = {
    "avro": (AvroSchema, of_json(OF_AVRO), 40),
    "json": (JsonSchema, of_json(OF_JSON), 40),
    "protobuf": (ProtobufSchema, lambda random: mangled(random, random.choice(OF_PROTOBUF)), 1),
}


def a_value(random: Random) -> bytes:
    data = random.choice(
        [
            random.randbytes(random.randrange(40)),
            b"\x02" * random.randrange(30),
            b"\xff" * random.randrange(20) + b"\x0f",
            b"\x00" * random.randrange(9),
            b'{"a": 1, "b": ["x", null]}',
            b"[" * 9_000,
            b'{"a":' * 9_000,
            b"\x0a\x02\x08\x01",
        ]
    )
    return data[: random.randrange(len(data) + 1)] if random.random() < 0.3 else data


@pytest.mark.parametrize("seconds", [0, pytest.param(SECONDS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMATS)
def test_any_schema_and_any_value(name: str, seconds: float) -> None:
    make, text_of, n_least = FORMATS[name]
    random, end, n_good = Random(int(seconds)), time.monotonic() + seconds, 0
    readers: list[Any] = []
    n_long = 0
    for n in count():
        if n >= n_least and time.monotonic() > end:
            break
        text, begin = text_of(random), time.process_time()
        try:
            schema = make(text)
        except UnusableSchemaError as error:
            n_long += len(str(error)) > 500
            continue
        n_good += 1
        readers = [*readers[-3:], schema]
        values = [a_value(random) for _ in range(random.choice([0, 1, 5, 50]))]
        for reader in {random.choice(readers), schema}:
            causes: dict[int, str] = {}
            found = schema.decode(payloads(values), reader, causes)
            found.validate(full=True)
            assert (reader.type, len(values)) == (found.type, len(found)), text
            assert all(not found[number].is_valid for number in causes), text
        assert time.process_time() - begin < _MOST_SECONDS, text
    assert n_good or not seconds
    assert n_long == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < _MOST_BYTES
