"""Other values in fields, written by the schema and in the frame that the values have."""

import io
import json
import pickle
import struct
import uuid
import zlib
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from registered import CITY, DEGREES, framed, readings, record, register, write

import segmentlog
from segmentlog.decoding.decode import Registered
from segmentlog.decoding.masks import FieldMasks
from segmentlog.decoding.protobuf import ProtobufSchema
from segmentlog.model import ValueFrame

fastavro = pytest.importorskip("fastavro")

GUID = "89791762-2336-186f-9674-299b90a8e15b"
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "email", "type": ["null", "string"]},
        {"name": "cents", "type": "long"},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID"]}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
        {"name": "token", "type": {"type": "fixed", "name": "Token", "size": 3}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}],
                },
            },
        },
        {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "either", "type": ["null", "Item", "int", "Token"]},
    ],
}
VALUE: dict[str, Any] = {
    "email": "ada@example.com",
    "cents": 7,
    "status": "PAID",
    "price": Decimal(12),
    "token": b"abc",
    "id": str(uuid.UUID(int=5)),
    "at": 1_700_000_000_000,
    "items": [{"sku": "A1", "n": 1}, {"sku": "B2", "n": 2}],
    "tags": {"a": "x", "b": None},
    "either": ("shop.Token", b"xyz"),
}


def schemas(*texts: tuple[str, object], subject: str = "t-value") -> Registered:
    """A registry with schemas, whose ids are 1, 2 and so on."""
    rows = [
        {
            "subject": subject,
            "version": n,
            "id": n,
            "guid": GUID if n == 1 else None,
            "schema_type": kind,
            "schema": text if isinstance(text, str) else json.dumps(text),
            "references": [],
            "deleted": False,
        }
        for n, (kind, text) in enumerate(texts, 1)
    ]
    return Registered(rows)


def batch_of(*values: bytes | None, headers: list[Any] | None = None) -> pa.RecordBatch:
    kind = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
    n = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(headers or [[]] * n, kind),
            "partition": pa.array([3] * n, pa.int32()),
            "offset": pa.array(range(n), pa.int64()),
        }
    )


def masks_of(
    known: Registered, *paths: str, frame: ValueFrame = ValueFrame.CONFLUENT, **given: Any
) -> FieldMasks:
    masks: Mapping[str, Any] = dict.fromkeys(paths) | given.pop("masks", {})
    return FieldMasks(known, "value", masks, "t-value", frame)


def written(value: object, schema: object = ORDER) -> bytes:
    into = io.BytesIO()
    fastavro.schemaless_writer(into, fastavro.parse_schema(schema), value)
    return into.getvalue()


def read(data: bytes, schema: object = ORDER) -> Any:
    parsed = fastavro.parse_schema(schema)
    return fastavro.schemaless_reader(io.BytesIO(data), parsed, return_named_type=True)


def test_fields_of_avro() -> None:
    """The others keep their bytes, also in a union."""
    known = schemas(("AVRO", ORDER))
    (found,) = (
        masks_of(
            known,
            *("value.email", "value.price", "value.token", "value.id", "value.at"),
            "value.items[].sku",
            masks={"value.status": "NEW", "value.cents": lambda cents: cents * 2},
        )
        .masked(batch_of(framed(1, written(VALUE))), "t")
        .to_pylist()
    )
    expected = VALUE | {
        "email": "[hidden]",
        "price": Decimal(0),
        "token": bytes(3),
        "id": str(uuid.UUID(int=0)),
        "at": 0,
        "items": [{"sku": "[hidden]", "n": 1}, {"sku": "[hidden]", "n": 2}],
        "status": "NEW",
        "cents": 14,
    }
    assert framed(1, written(expected)) == found
    plain = read(written(expected))
    assert {"a": "x", "b": None} == plain["tags"]
    (tags,) = (
        masks_of(known, "value.tags[].value")
        .masked(batch_of(framed(1, written(VALUE))), "t")
        .to_pylist()
    )
    assert {"a": "[hidden]", "b": None} == read(tags[5:])["tags"]


def test_the_schema_of_each_value_is_kept() -> None:
    """A version without the field has nothing to hide; null and tombstones stay."""
    known = schemas(("AVRO", record(CITY)), ("AVRO", record(CITY, DEGREES)))
    given = [framed(1, b"\x08Oslo"), framed(2, b"\x08Rome\2\x3c"), framed(2, b"\x08Bern\0"), None]
    found = masks_of(known, "value.degrees").masked(batch_of(*given), "t").to_pylist()
    assert [given[0], framed(2, b"\x08Rome\2\0"), given[2], None] == found
    kept = pickle.loads(pickle.dumps(masks_of(known, "value.city")))
    assert framed(1, b"\x10[hidden]") == kept.masked(batch_of(given[0]), "t")[0].as_py()


@pytest.mark.parametrize(
    ("name", "put", "headers"),
    [
        ("header", lambda data: data, [(b"__value_schema_id", b"\1" + uuid.UUID(GUID).bytes)]),
        ("none", lambda data: data, []),
        ("apicurio", lambda data: b"\0" + struct.pack(">q", 1) + data, []),
        ("glue", lambda data: b"\3\0" + uuid.UUID(GUID).bytes + data, []),
        ("glue-zlib", lambda data: b"\3\5" + uuid.UUID(GUID).bytes + zlib.compress(data), []),
    ],
)
def test_each_frame_stays(name: str, put: Callable[[bytes], bytes], headers: list[Any]) -> None:
    frame = {"header": "confluent"}.get(name, name.partition("-")[0])
    masks = masks_of(schemas(("AVRO", record(CITY))), "value.city", frame=ValueFrame(frame))
    batch = batch_of(put(b"\x08Oslo"), headers=[[{"key": k, "value": v} for k, v in headers]])
    assert [put(b"\x10[hidden]")] == masks.masked(batch, "t").to_pylist()


PROTO = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Order { optional string email = 1; int32 n = 2; Status status = 3; repeated Item items = 4;
  map<string, string> tags = 5; google.protobuf.Timestamp at = 6; repeated string more = 7;
  google.protobuf.StringValue label = 8; oneof by { string card = 9; bytes token = 10; }
  message Item { string sku = 1; int32 n = 2; } enum Status { NONE = 0; PAID = 1; } }
"""


def test_fields_of_protobuf() -> None:
    """Fields that the schema lacks stay; the path of the message stays in the frame."""
    pytest.importorskip("ptars")
    pytest.importorskip("grpc_tools")
    from segmentlog.decoding.protobuf import ProtobufSchema

    known = schemas(("PROTOBUF", PROTO))
    schema = ProtobufSchema(PROTO)
    message = schema.message_of(b"")
    message.email, message.n, message.status, message.token = "ada", 5, 1, b"abc"
    message.items.add(sku="A1", n=1)
    message.items.add(n=2)
    message.tags["a"] = "x"
    message.at.seconds, message.label.value = 99, "x"
    message.more.extend(["p", "q"])
    data = message.SerializeToString() + b"\xfa\x01\x02hi"  # field 31
    columns = [
        "email",
        "status",
        "at",
        "label",
        "more[]",
        "token",
        "card",
        "tags[].value",
        "items[].sku",
    ]
    masks = masks_of(known, *(f"value.{each}" for each in columns))
    (found,) = masks.masked(batch_of(framed(1, b"\0" + data)), "t").to_pylist()
    assert framed(1, b"\0") == found[:6]
    new = schema.message_of(found[6:])
    assert ("[hidden]", 5, 0, bytes(3), "[hidden]") == (
        new.email, new.n, new.status, new.token, new.label.value,
    )  # fmt: skip
    assert [("[hidden]", 1), ("", 2)] == [(each.sku, each.n) for each in new.items]
    assert new.HasField("at")
    assert (0, "[hidden]", ["[hidden]"] * 2) == (new.at.seconds, new.tags["a"], [*new.more])
    assert new.WhichOneof("by") == "token"
    assert b"\xfa\x01\x02hi" in found
    empty = batch_of(framed(1, b"\0"))
    assert empty.column("value").equals(masks.masked(empty, "t"))
    given = masks_of(known, masks={"value.status": "NONE", "value.n": "8"})
    (found,) = given.masked(batch_of(framed(1, b"\0" + data)), "t").to_pylist()
    assert (0, 8) == (schema.message_of(found[6:]).status, schema.message_of(found[6:]).n)
    with pytest.raises(segmentlog.OptionError, match=r"value\.items\[\].*is a record"):
        masks_of(known, "value.items[]")


JSON = {
    "type": "object",
    "properties": {
        "email": {"type": "string"},
        "items": {"type": "array", "items": {"properties": {"sku": {"type": "string"}}}},
        "rate": {"type": "number"},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def test_fields_of_json() -> None:
    """Members that the schema lacks stay; a number that Python would round is refused."""
    known = schemas(("JSON", JSON))
    masks = masks_of(known, "value.email", "value.items[].sku", "value.tags[].value")
    text = (
        '{"email": "ada", "rate": 1.10, "items": [{"sku": "A", "n": 1e2}, null], "x": [1e30],'
        '"tags": {"a": "é"}}'
    )
    (found,) = masks.masked(batch_of(framed(1, text.encode())), "t").to_pylist()
    expected = json.loads(text) | {"email": "[hidden]", "tags": {"a": "[hidden]"}}
    expected["items"][0]["sku"] = "[hidden]"
    assert expected == json.loads(found[5:])
    for bad in ('{"rate": 1.00000000000000000001}', '{"rate"', "[]", '{"items": 3}'):
        with pytest.raises(
            segmentlog.UndecodableValueError, match="so nothing of it can be masked"
        ):
            masks.masked(batch_of(framed(1, bad.encode())), "t")


def test_names_with_dots() -> None:
    """Of two fields with one path, both are hidden."""
    text = {"type": "string"}
    inner = {"type": "object", "properties": {"b": text, "": text}}
    schema = {"type": "object", "properties": {"a.b": text, "a": inner, "[]": text}}
    masks = masks_of(schemas(("JSON", schema)), "value.a.b", "value.a.", "value.[]")
    given = {"a.b": "x", "a": {"b": "y", "": "z", "c": "kept"}, "[]": "w"}
    (found,) = masks.masked(batch_of(framed(1, json.dumps(given).encode())), "t").to_pylist()
    hidden = "[hidden]"
    assert {"a.b": hidden, "a": {"b": hidden, "": hidden, "c": "kept"}, "[]": hidden} == (
        json.loads(found[5:])
    )


def test_what_cannot_be_masked_is_an_error_at_its_place() -> None:
    known = schemas(("AVRO", ORDER))
    good, cut = framed(1, written(VALUE)), framed(1, written(VALUE)[:4])
    for bad, said in ((b"plain", "it names no schema"), (framed(9, b""), "no schema"), (cut, "E")):
        with pytest.raises(segmentlog.UndecodableValueError, match=said) as caught:
            masks_of(known, "value.email").masked(batch_of(good, bad), "t")
        assert ("t", 3, 1) == (caught.value.topic, caught.value.partition, caught.value.offset)
    with pytest.raises(segmentlog.UndecodableValueError, match=r"\[hidden\]"):
        masks_of(known, "value.status").masked(batch_of(good), "t")
    with pytest.raises(segmentlog.UndecodableValueError, match="union of several types"):
        masks_of(known, "value.either.member0.sku").masked(batch_of(good), "t")


@pytest.mark.parametrize(
    ("masks", "said"),
    [
        ({"value.emial": None}, "no schema of t-value has this field; fields are value.at"),
        ({"value.items[]": None}, "it is a record; name its fields: value.items[].sku"),
        ({"value.cents": "x"}, "the field is no text, but int64"),
        ({"value.price": "x"}, "the field is no text, but decimal128"),
        ({"value": None}, "it is a record; name its fields"),
    ],
)
def test_masks_that_mean_nothing(masks: dict[str, Any], said: str) -> None:
    with pytest.raises(segmentlog.OptionError) as caught:
        masks_of(schemas(("AVRO", ORDER)), masks=masks)
    assert said in str(caught.value)


def test_random_values_keep_all_but_the_masked_fields() -> None:
    """Each value is decoded before and after: the rest is equal."""
    random, known = Random(3), schemas(("AVRO", ORDER))
    masks = masks_of(known, "value.email", "value.items[].n")
    items: list[Any] = []
    for _ in range(200):
        items = [
            {"sku": random.choice(["", "é", "x" * 200]), "n": random.randrange(-9, 9)}
            for _ in range(random.randrange(4))
        ]
        value = VALUE | {
            "email": random.choice([None, "", "ada"]),
            "cents": random.getrandbits(62),
            "items": items,
            "tags": random.choice([{}, {"k": "v"}, {"k": None}]),
            "either": random.choice(
                [None, 5, ("shop.Token", b"xyz"), ("shop.Item", {"sku": "s", "n": 1})]
            ),
        }
        (found,) = masks.masked(batch_of(framed(1, written(value))), "t").to_pylist()
        expected = read(written(value)) | {
            "email": None if value["email"] is None else "[hidden]",
            "items": [each | {"n": 0} for each in items],
        }
        assert expected == read(found[5:])


def test_a_clone_with_masked_fields(tmp_path: Path) -> None:
    """With new ids, too, which replace those by which the values were decoded."""
    readings(tmp_path / "logs", None)
    found = segmentlog.clone(
        tmp_path / "logs",
        "readings",
        "masked",
        to=tmp_path / "to",
        mask="value.city",
        schema_ids={1: 11, 2: 12},
    )
    assert (3, 0) == (found.n_changed_values, found.n_left_out)
    rows = segmentlog.read(tmp_path / "to", "masked")["value"].to_pylist()
    hidden = b"\x10[hidden]"
    assert [
        framed(11, hidden),
        framed(12, hidden + b"\2\x3c"),
        framed(12, hidden + b"\0"),
        None,
    ] == rows


def test_keys_that_are_masked_choose_their_partitions(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    register(logs, "t-key", 1, 7, record(CITY))
    keys = [framed(7, b"\x08Oslo"), framed(7, b"\x08Rome"), framed(7, b"\x08Bern")]
    write(logs, "t", [b"1", b"2", b"3"], key=keys)
    segmentlog.clone(logs, "t", "u", to=tmp_path / "to", mask={"key.city": "X"}, num_partitions=4)
    rows = segmentlog.read(tmp_path / "to", "u")
    assert {framed(7, b"\2X")} == {*rows["key"].to_pylist()}
    assert 1 == len({*rows["partition"].to_pylist()})


def test_a_clone_ends_at_a_value_that_cannot_be_masked(tmp_path: Path) -> None:
    """Nothing of it is visible; a transform that leaves the record out comes first."""
    logs = tmp_path / "logs"
    readings(logs, b"secret")
    asked: dict[str, Any] = {"to": tmp_path / "to", "mask": ["value.city"]}
    with pytest.raises(segmentlog.UndecodableValueError, match="readings-0"):
        segmentlog.clone(logs, "readings", "u", **asked)
    assert not (tmp_path / "to" / "u-0").exists()
    found = segmentlog.clone(
        logs, "readings", "u", **asked, transform=lambda batch: batch.slice(0, 3)
    )
    assert (1, 3) == (found.n_left_out, found.n_changed_values)


def test_schemas_from_elsewhere_and_words_that_mean_nothing(tmp_path: Path) -> None:
    register(tmp_path / "registry", "t-value", 1, 1, record(CITY))
    write(tmp_path / "logs", "t", [b"\x08Oslo"])
    asked: dict[str, Any] = {"to": tmp_path / "to", "decode_frame": "none"}
    segmentlog.clone(
        tmp_path / "logs",
        "t",
        "u",
        **asked,
        mask=["value.city"],
        decode_schemas=tmp_path / "registry",
    )
    assert [b"\x10[hidden]"] == segmentlog.read(tmp_path / "to", "u")["value"].to_pylist()
    for given, said in (
        ({"decode_frame": "none"}, "belongs to mask"),
        ({"mask": ["city"]}, "a path begins with value or key"),
        ({"mask": 7}, "give paths"),
        ({"mask": ["value.city"], "decode_frame": "avro"}, "confluent"),
    ):
        with pytest.raises(segmentlog.OptionError, match=said):
            segmentlog.clone(tmp_path / "logs", "t", "v", to=tmp_path / "to2", **given)


def test_a_field_is_masked_under_each_name_that_a_version_has_for_it() -> None:
    """Reads show all of them as one field, by the aliases of the newest version."""
    lines = {"type": "array", "items": {"type": "record", "name": "Line", "fields": []}}
    old, new = ({**ORDER, "fields": [dict(each) for each in ORDER["fields"][:1]]} for _ in "ab")
    old["fields"].append({"name": "lines", "type": json.loads(json.dumps(lines))})
    new["fields"].append({"name": "rows", "type": json.loads(json.dumps(lines))})
    old["fields"][1]["type"]["items"]["fields"] = [{"name": "sku", "type": "string"}]
    new["fields"][1] |= {"aliases": ["lines"]}
    new["fields"][1]["type"]["items"]["fields"] = [
        {"name": "code", "type": "string", "aliases": ["sku"]}
    ]
    new["fields"][0] |= {"name": "address", "aliases": ["email", "rows"]}
    known = schemas(("AVRO", old), ("AVRO", new))
    values = [
        framed(1, written({"email": "ada@example.com", "lines": [{"sku": "A1"}]}, old)),
        framed(2, written({"address": "ada@example.com", "rows": [{"code": "A1"}]}, new)),
    ]
    hidden = [
        framed(1, written({"email": "[hidden]", "lines": [{"sku": "[hidden]"}]}, old)),
        framed(2, written({"address": "[hidden]", "rows": [{"code": "[hidden]"}]}, new)),
    ]
    for paths in (
        ("value.address", "value.rows[].code"),
        ("value.email", "value.lines[].sku"),
    ):
        masks = pickle.loads(pickle.dumps(masks_of(known, *paths)))
        assert hidden == masks.masked(batch_of(*values), "t").to_pylist(), paths


def test_a_field_of_protobuf_is_masked_by_its_number() -> None:
    pytest.importorskip("ptars")
    head = 'syntax = "proto3"; package shop; '
    old = head + "message Order { string mail = 2; map<string, Line> tags = 3; } "
    new = head + "message Order { map<string, Row> rows = 3; string email = 2; string mail = 4; } "
    old, new = (
        f"{old} message Line {{ string sku = 1; }}",
        f"{new} message Row {{ string code = 1; }}",
    )
    known = schemas(("PROTOBUF", old), ("PROTOBUF", new))
    one, two = (ProtobufSchema(each)._message for each in (old, new))
    order = two(email="ada", mail="letters")
    order.rows["a"].code = "A1"
    before = one(mail="ada")
    before.tags["a"].sku = "A1"
    values = [
        b"\0\0\0\0\1\0" + before.SerializeToString(),
        b"\0\0\0\0\2\0" + order.SerializeToString(),
    ]
    masked = masks_of(known, "value.email", "value.rows[].value.code").masked(
        batch_of(*values), "t"
    )
    found = [
        kind.FromString(each[6:])
        for kind, each in zip((one, two), masked.to_pylist(), strict=True)
    ]
    assert ("[hidden]", "[hidden]") == (found[0].mail, found[0].tags["a"].sku)
    assert ("[hidden]", "letters") == (found[1].email, found[1].mail)
    assert "[hidden]" == found[1].rows["a"].code


def _longer(old: str) -> str:
    return old + "+"


def test_fields_of_json_that_only_another_version_has_are_masked() -> None:
    """A service that knows an older version passes on what it was given, and readers see it."""
    old = {
        "type": "object",
        "properties": {"rate": {"type": "number"}, "user": {"type": "string"}},
    }
    user = {"type": "object", "properties": {"mail": {"type": "string"}}}
    lines = {"type": "array", "items": user}
    new = {
        "type": "object",
        "properties": {"email": {"type": "string"}, "user": user, "lines": lines},
    }
    known = schemas(("JSON", old), ("JSON", new), ("JSON", new | {"title": "the newest"}))
    hidden = {"value.email": _longer, "value.user.mail": None, "value.lines[].mail": None}
    masks = FieldMasks(known, "value", hidden, "t-value", ValueFrame.CONFLUENT)
    texts = [
        {"rate": 1, "email": "ada", "lines": [{"mail": "a"}, {}]},
        {"user": "ada", "lines": "none", "email": None},
        {"user": {"mail": "ada"}, "x": "ada"},
    ]
    masked = masks.masked(batch_of(*(framed(1, json.dumps(each).encode()) for each in texts)), "t")
    assert [
        {"rate": 1, "email": "ada+", "lines": [{"mail": "[hidden]"}, {}]},
        {"user": "ada", "lines": "none", "email": None},
        {"user": {"mail": "[hidden]"}, "x": "ada"},
    ] == [json.loads(each[5:]) for each in masked.to_pylist()]


def test_fields_of_protobuf_that_only_another_version_has_are_masked() -> None:
    pytest.importorskip("ptars")
    head = 'syntax = "proto3"; package shop; message Order { int64 rate = 1; '
    old, new = head + "}", head + "string email = 2; repeated string tags = 3; int32 n = 4; }"
    other = head + "string email = 2; int64 tags = 3; }"
    known = schemas(("PROTOBUF", old), ("PROTOBUF", new), ("PROTOBUF", other))
    kind = ProtobufSchema(new)._message
    values = [kind(rate=1, email="ada", tags=["a", "b"], n=7), kind(rate=2, n=8)]
    framed_values = [b"\0\0\0\0\1\0" + each.SerializeToString() for each in values]
    # A value that is no message of the other version is decoded by nobody as one.
    framed_values.append(b"\0\0\0\0\1\0" + b"\x08\x03\x12\x01\xff")
    hidden = {"value.email": _longer, "value.tags": None}
    masks = FieldMasks(known, "value", hidden, "t-value", ValueFrame.CONFLUENT)
    masks = pickle.loads(pickle.dumps(masks))
    masked = masks.masked(batch_of(*framed_values), "t").to_pylist()
    found = [kind.FromString(each[6:]) for each in masked[:2]]
    assert (1, "ada+", [], 7) == (found[0].rate, found[0].email, [*found[0].tags], found[0].n)
    assert values[1] == found[1]
    assert framed_values[2] == masked[2]
