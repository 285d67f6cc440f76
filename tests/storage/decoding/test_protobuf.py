"""Messages that Confluent's serializer has written become the columns of their schemas."""

import json
import os
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from registered import payloads

import segmentlog
from segmentlog.decoding.proto_files import descriptors
from segmentlog.decoding.protobuf import ProtobufSchema
from segmentlog.decoding.schema import UnusableSchemaError

registry = pytest.importorskip("confluent_kafka.schema_registry")
pytest.importorskip("ptars")
pytest.importorskip("grpc_tools")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SUBJECT = "orders-value"
LINE = 'syntax = "proto3"; package shop; message Line { string item = 1; optional int32 n = 2; }'
ORDER = """
syntax = "proto3"; package shop;
import "shop/line.proto"; import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto"; import "google/protobuf/wrappers.proto";
message Order {
  int64 id = 1; string customer = 2; optional string note = 3; uint32 cents = 4; uint64 total = 5;
  repeated Line lines = 6; map<string, Line> named = 7; State state = 8; Inside inside = 9;
  oneof way { string post = 10; bytes box = 11; } google.protobuf.Timestamp at = 12;
  google.protobuf.Duration took = 13; google.protobuf.StringValue label = 14; double rate = 15;
  repeated State states = 16;
  enum State { OPEN = 0; SHUT = 1; }
  message Inside { bool deep = 1; Deeper next = 2; message Deeper { repeated sint32 n = 1; } }
}
"""


def message_class(text: str, name: str, references: list[tuple[str, str]] = []) -> Any:  # noqa: B006
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool, files = DescriptorPool(), descriptors(text, references)
    for each in files:
        pool.Add(each)
    return GetMessageClass(pool.FindMessageTypeByName(name))


def known_as(*rows: tuple[Any, ...]) -> pa.Table:
    """The table ``schemas``: subject, version, id, guid, text; names and subjects it refers to."""
    return pa.table(
        {
            "subject": [each[0] for each in rows],
            "version": [each[1] for each in rows],
            "id": [each[2] for each in rows],
            "guid": [each[3] for each in rows],
            "schema_type": ["PROTOBUF"] * len(rows),
            "schema": [each[4] for each in rows],
            "references": [
                [{"name": name, "subject": subject, "version": 1} for name, subject in each[5:]]
                for each in rows
            ],
            "deleted": [False] * len(rows),
        }
    )


def rows_of(values: list[bytes | None], headers: list[Any] | None = None) -> pa.Table:
    rows = pa.table({"value": pa.array(values, pa.binary())})
    return rows if headers is None else rows.append_column("headers", pa.array(headers, HEADERS))


def framed(number: int, rest: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + rest


def an_order(kind: Any) -> tuple[Any, dict[str, Any]]:
    order = kind(id=7, customer="é", note="", cents=2**32 - 1, total=2**64 - 1, state=1, rate=0.5)
    order.box = b"\xff"
    order.states.extend([0, 1])
    order.lines.add(item="a", n=0)
    order.lines.add(item="b")
    order.named["x"].item = "c"
    order.inside.next.n.extend([-1, 2])
    order.at.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, 6))
    order.took.FromTimedelta(timedelta(seconds=-3, microseconds=4))
    order.label.value = "l"
    return order, {
        "id": 7,
        "customer": "é",
        "note": "",
        "cents": 2**32 - 1,
        "total": Decimal(2**64 - 1),
        "lines": [{"item": "a", "n": 0}, {"item": "b", "n": None}],
        "named": [("x", {"item": "c", "n": None})],
        "state": "SHUT",
        "inside": {"deep": False, "next": {"n": [-1, 2]}},
        "post": None,
        "box": b"\xff",
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        "took": timedelta(seconds=-3, microseconds=4),
        "label": "l",
        "rate": 0.5,
        "states": ["OPEN", "SHUT"],
    }


@pytest.mark.parametrize("in_header", [False, True])
def test_messages_of_the_serializer(in_header: bool) -> None:
    """By the descriptors that the serializer registers, and by texts with a reference."""
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    kind = message_class(ORDER, "shop.Order", [("shop/line.proto", LINE)])
    order, expected = an_order(kind)
    client = registry.SchemaRegistryClient.new_client({"url": "mock://registry"})
    settings = {"auto.register.schemas": True, "use.deprecated.format": False}
    if in_header:
        settings["schema.id.serializer"] = registry.header_schema_id_serializer
    write = ProtobufSerializer(kind, client, settings)
    found: list[tuple[str, Any]] = []
    value = write(order, SerializationContext("orders", MessageField.VALUE, found))
    headers = [[{"key": name, "value": each} for name, each in found]]
    registered = {each: client.get_latest_version(each) for each in client.get_subjects()}
    of_line, of_order = registered["shop/line.proto"], registered[SUBJECT]
    for line, text in [(of_line.schema.schema_str, of_order.schema.schema_str), (LINE, ORDER)]:
        known = known_as(
            ("line", 1, of_line.schema_id, None, line),
            (SUBJECT, 1, of_order.schema_id, of_order.guid, text, ("shop/line.proto", "line")),
        )
        decoded = segmentlog.decode(rows_of([value, None], headers * 2), known, SUBJECT)
        assert [expected, None] == decoded["value"].to_pylist()


def test_values_of_other_versions_and_other_messages() -> None:
    """Fields are matched by number; a message is that of its path, and has to be the same."""
    first = 'syntax = "proto3"; package p; message A { int32 n = 1; string gone = 2; }'
    second = """syntax = "proto3"; package p; message Other { message A { int32 x = 1; } }
        message A { int64 renamed = 1; optional int32 added = 3; }"""
    third = """syntax = "proto3"; package p; message A { int64 renamed = 1;
        optional int32 added = 3; } message Other { message A { int32 x = 1; } }"""
    known = known_as(
        (SUBJECT, 1, 1, None, first), (SUBJECT, 2, 2, None, second), (SUBJECT, 3, 3, None, third)
    )
    values = [
        framed(1, b"\0\x08\5\x12\1x"),
        framed(2, b"\2\2\x08\6"),
        framed(3, b"\0\x18\7"),
        framed(2, b"\4\0\0"),
        framed(2, b"\2\x12"),
        framed(1, b""),
        framed(1, b"\0\x08"),
        framed(9, b"\0"),
    ]
    found = segmentlog.decode(rows_of(values), known, SUBJECT, on_undecodable="null")
    expected: list[Any] = [
        {"renamed": n, "added": more} for n, more in [(5, None), (6, None), (0, 7)]
    ]
    assert expected + [None] * 5 == found["value"].to_pylist()
    causes = found["undecodable"].to_pylist()
    for cause, part in zip(
        causes[3:],
        [
            "it is a message p.Other.A, and not p.A",
            "no message with the indexes [9]",
            "it has no indexes",
            "not those of a message p.A, with the schema 1",
            "no schema has",
        ],
        strict=True,
    ):
        assert part in cause
    assert [None] * 3 == causes[:3]


def nested(n_levels: int) -> str:
    """A message with two fields of a message with two fields, and so on."""
    each = [f"message L{n} {{ L{n + 1} a = 1; L{n + 1} b = 2; }}" for n in range(n_levels)]
    return f'syntax = "proto3"; {" ".join(each)} message L{n_levels} {{ int32 n = 1; }}'


A = 'syntax = "proto3"; message A { int32 n = 1; }'
REFUSED = [
    ("message", "Expected message name"),
    ("", "no message with the indexes"),
    ('syntax = "proto3"; message A { A next = 1; }', "the message A contains itself"),
    ('syntax = "proto3"; import "/etc/passwd"; message A {}', "/etc/passwd: File not found"),
    ('syntax = "proto3"; import "../known"; message A {}', "not allowed in the virtual path"),
    (
        """syntax = "proto3"; import "google/protobuf/struct.proto";
     message A { google.protobuf.Value v = 1; }""",
        "google.protobuf.Value contains itself",
    ),
    ('syntax = "proto2"; message A { repeated group G = 1 { required int32 n = 2; } }', "a group"),
    ('edition = "2023"; message A { int32 n = 1; }', "an edition"),
    (nested(20), "more than 10000 fields"),
    ("\ud800", "cannot be written"),
    (A + " " * (9 << 20), "characters"),
]


@pytest.mark.parametrize(("text", "expected"), REFUSED)
def test_schemas_that_are_refused(text: str, expected: str) -> None:
    with pytest.raises(UnusableSchemaError) as caught:
        ProtobufSchema(text)
    assert expected in str(caught.value)


@pytest.mark.parametrize("name", ["../a.proto", "/a.proto", "a//b", "__schema__.proto", "", "a\0"])
def test_names_of_references_that_are_no_files_here(name: str) -> None:
    with pytest.raises(UnusableSchemaError, match="is not the name of a file"):
        ProtobufSchema(A, [(name, A)])


def test_files_that_protobuf_and_confluent_bring() -> None:
    made = ProtobufSchema(
        """syntax = "proto3"; import "google/type/date.proto"; import "confluent/meta.proto";
        import "confluent/type/decimal.proto"; message A { google.type.Date day = 1;
        confluent.type.Decimal cents = 2 [(confluent.field_meta).doc = "x"]; }"""
    )
    assert "struct<day: struct<year: int32, month: int32, day: int32>, cents: struct" in str(
        made.type
    )


def test_times_that_protobuf_does_not_have() -> None:
    """The nearest time is what ptars makes of them."""
    made = ProtobufSchema(
        """syntax = "proto3"; import "google/protobuf/timestamp.proto";
        message A { google.protobuf.Timestamp at = 1; }"""
    )
    values = []
    for seconds in (253402300799, 253402300800, -62135596800, -62135596801, 2**62):
        message = made._message()
        message.at.seconds = seconds
        values.append(message.SerializeToString())
    causes: dict[int, str] = {}
    found = made.decode(payloads(values), made, causes)
    assert [True, False, True, False, False] == found.is_valid().to_pylist()
    assert all("a time is not one of protobuf" in each for each in causes.values())


def as_columns(message: Any) -> dict[str, Any]:
    """A message as its columns, by protobuf's own objects: what ptars has to make."""

    def of(field: Any, value: Any) -> Any:
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return str(value) if known is None else known.name
        if field.message_type is None:
            return value
        name = field.message_type.full_name
        if name.startswith("google.protobuf.") and name.endswith("Value"):
            return value.value
        if name == "google.protobuf.Timestamp":
            return value.seconds * 10**6 + value.nanos // 1000
        return as_columns(value)

    made: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            item = field.message_type.fields_by_name["value"]
            made[field.name] = sorted(
                ((key, of(item, value[key])) for key in value), key=lambda each: str(each[0])
            )
        elif field.is_repeated:
            made[field.name] = [of(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            made[field.name] = None
        else:
            made[field.name] = of(field, value)
    return made


FUZZED = """
syntax = "proto3"; import "google/protobuf/wrappers.proto"; import "google/protobuf/any.proto";
message A {
  double d = 1; float f = 2; int32 i = 3; int64 l = 4; uint32 u = 5; uint64 v = 6; sint32 s = 7;
  sint64 t = 8; fixed32 w = 9; sfixed64 x = 10; bool b = 11; string text = 12; bytes raw = 13;
  E e = 14; optional int32 maybe = 15; repeated int32 many = 16; repeated string texts = 17;
  map<string, int64> by_text = 18; map<int32, In> by_number = 19; In in = 20; repeated In ins = 21;
  oneof one { int32 first = 22; string second = 23; In third = 24; } repeated E es = 25;
  google.protobuf.StringValue label = 26; google.protobuf.Int64Value number = 27;
  google.protobuf.Any any = 28; map<bool, E> by_bool = 29; repeated double doubles = 30;
  message In { int32 n = 1; repeated Deeper deeper = 2; } message Deeper { string t = 1; }
  enum E { NONE = 0; ONE = 1; FIVE = 5; }
}
"""


def varint(number: int) -> bytes:
    made, number = bytearray(), number % 2**64
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


def hostile(random: Random, wires: dict[int, int], depth: int = 0) -> bytes:
    """Bytes like those of a message: fields of any number, often with their own wire type."""
    made = b""
    for _ in range(random.randrange(5)):
        number = random.choice([*range(32), random.randrange(1, 2**29)])
        wire = wires.get(number, 0) if random.random() < 0.8 else random.randrange(7)
        made += varint(number << 3 | wire)
        if wire == 0:
            made += varint(random.choice([0, 1, 5, 2**31, 2**32, 2**63, random.getrandbits(64)]))
        elif wire in (1, 5):
            made += random.randbytes(8 if wire == 1 else 4)
        elif wire == 2:
            texts = [b"", b"abc", "é".encode(), b"\xff", random.randbytes(random.randrange(6))]
            is_deep = depth < 3 and random.random() < 0.6
            inner = hostile(random, wires, depth + 1) if is_deep else random.choice(texts)
            lying = random.random() < 0.03
            made += varint(random.choice([2**31, 2**63, 99]) if lying else len(inner)) + inner
        elif wire == 3:
            made += hostile(random, wires, depth + 1)[:9] + varint(number << 3 | 4)
    return made


SECONDS = float(os.environ.get("SECONDS_OF_DECODING", "20"))


@pytest.mark.parametrize("seconds", [0, pytest.param(SECONDS, marks=pytest.mark.slow)])
def test_any_bytes_are_columns_as_protobuf_reads_them_or_a_cause(seconds: float) -> None:
    from google.protobuf.message import DecodeError

    schema, random = ProtobufSchema(FUZZED), Random(int(seconds))
    fields = schema._message.DESCRIPTOR.fields
    of_types = {1: 1, 2: 5, 6: 1, 7: 5, 9: 2, 11: 2, 12: 2, 15: 5, 16: 1}
    by_number = {each.number: of_types.get(each.type, 0) for each in fields}
    n_bad, end = 0, time.monotonic() + seconds
    for n in count():
        if n > 15 and time.monotonic() > end:
            break
        values = [hostile(random, by_number) for _ in range(random.choice([1, 3, 20]))]
        causes: dict[int, str] = {}
        found = schema.decode(payloads(values), schema, causes).to_pylist()
        for number, value in enumerate(values):
            try:
                expected = as_columns(schema._message.FromString(value))
            except DecodeError:
                assert "not those of a message A" in causes[number]
                n_bad += 1
                continue
            assert number not in causes
            assert json.dumps(expected, default=str) == json.dumps(
                as_plain(found[number]), default=str
            )
    assert n_bad > 2


def as_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: as_plain(each) for name, each in value.items()}
    if isinstance(value, list):
        made = [as_plain(each) for each in value]
        is_map = made and isinstance(made[0], tuple)
        return sorted(made, key=lambda each: str(each[0])) if is_map else made
    if isinstance(value, tuple):
        return tuple(as_plain(each) for each in value)
    return int(value) if isinstance(value, Decimal) else value
