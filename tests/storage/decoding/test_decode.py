"""Values that Confluent's serializer has written become the columns of their schemas."""

import io
import json
import logging
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from registered import payloads

import segmentlog
from segmentlog.decoding import avro_columns
from segmentlog.decoding.avro import AvroSchema

registry = pytest.importorskip("confluent_kafka.schema_registry")
pytest.importorskip("fastavro")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMAS = pa.schema(
    [("subject", pa.string()), ("version", pa.int32()), ("id", pa.int32()), ("guid", pa.string()),
     ("schema_type", pa.string()), ("schema", pa.string()),
     ("references", pa.list_(pa.struct([("name", pa.string()), ("subject", pa.string()),
                                        ("version", pa.int32())]))), ("deleted", pa.bool_())]
)  # fmt: skip
SUBJECT = "orders-value"


def record(*fields: dict[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "shop", "fields": [*fields]}


def field(name: str, kind: Any, **others: Any) -> dict[str, Any]:
    return {"name": name, "type": kind} | others


FLAT = record(
    field("id", "long"),
    field("customer", "string"),
    field("cents", "int"),
    field("paid", "boolean"),
    field("rate", "double"),
    field("note", ["null", "string"]),
    field("day", {"type": "int", "logicalType": "date"}),
    field("at", ["null", {"type": "long", "logicalType": "timestamp-millis"}]),
)
NESTED = record(
    field("id", {"type": "fixed", "name": "Id", "size": 2}),
    field("raw", "bytes"),
    field("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    field("lines", {"type": "array", "items": record(field("n", "float"), name="Line")}),
    field("tags", {"type": "map", "values": ["null", "long"]}),
    field("state", {"type": "enum", "name": "State", "symbols": ["OPEN", "SHUT"]}),
    field("other", ["null", "Line"]),
    field("at", {"type": "long", "logicalType": "timestamp-micros"}),
)


def schemas(*given: tuple[Any, ...]) -> pa.Table:
    """Rows of the table: subject, version, id, schema, and perhaps other columns."""
    rows = [
        {
            "subject": subject,
            "version": version,
            "id": number,
            "schema_type": "AVRO",
            "schema": json.dumps(schema),
            "references": [],
            "deleted": False,
        }
        | (more or {})
        for subject, version, number, schema, *rest in given
        for more in [rest[0] if rest else {}]
    ]
    return pa.Table.from_pylist(rows, SCHEMAS)


def rows_of(*values: bytes | None) -> pa.Table:
    n = len(values)
    return pa.table(
        {
            "topic": ["orders"] * n,
            "partition": pa.array([3] * n, pa.int32()),
            "offset": pa.array([70 + i for i in range(n)], pa.int64()),
            "value": pa.array(values, pa.binary()),
        }
    )


def serialized(
    schema: dict[str, Any], values: list[Any], *, in_header: bool = False
) -> tuple[pa.Table, pa.Table]:
    """Rows as Confluent's serializer writes them, and the schemas of its registry."""
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    client = registry.SchemaRegistryClient.new_client({"url": "mock://registry"})
    settings = {"auto.register.schemas": True}
    if in_header:
        settings["schema.id.serializer"] = registry.header_schema_id_serializer
    write = AvroSerializer(client, json.dumps(schema), conf=settings)
    written, headers = [], []
    for each in values:
        found: list[tuple[str, Any]] = []
        written.append(write(each, SerializationContext("orders", MessageField.VALUE, found)))
        headers.append([{"key": name, "value": value} for name, value in found])
    known = client.get_latest_version(SUBJECT)
    table = schemas((SUBJECT, 1, known.schema_id, schema, {"guid": known.guid}))
    return rows_of(*written).append_column("headers", pa.array(headers, HEADERS)), table


@pytest.mark.parametrize("in_header", [False, True])
def test_flat_values_of_the_serializer(in_header: bool) -> None:
    given = [
        {
            "id": 2**40 + n,
            "customer": f"é{n}",
            "cents": -n,
            "paid": n % 2 == 0,
            "rate": n / 2,
            "note": None if n else "first",
            "day": date(2026, 1, 1 + n),
            "at": datetime(2026, 1, 2, 3, 4, 5, 6000, UTC) if n else None,
        }
        for n in range(3)
    ]
    rows, known = serialized(FLAT, given, in_header=in_header)
    decoded = segmentlog.decode(rows, known, SUBJECT)
    assert given == decoded["value"].to_pylist()
    assert decoded.drop_columns("value").equals(rows.drop_columns("value"))
    assert pa.timestamp("ms", "UTC") == decoded.schema.field("value").type.field("at").type


def test_values_of_every_kind_of_type_of_the_serializer() -> None:
    given = {
        "id": b"ab",
        "raw": b"\xff",
        "price": Decimal("-12.30"),
        "lines": [{"n": 0.5}, {"n": 2.0}],
        "tags": {"a": 1, "b": None},
        "state": "SHUT",
        "other": {"n": 1.0},
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    }
    rows, known = serialized(NESTED, [given, given])
    found = segmentlog.decode(rows, known, SUBJECT)["value"].to_pylist()
    assert [given | {"tags": [("a", 1), ("b", None)]}] * 2 == found


def framed(number: int, rest: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + rest


def test_older_values_are_resolved_to_the_newest_schema_that_is_not_deleted() -> None:
    first = record(field("cents", "int"), field("gone", "string"))
    second = record(
        field("amount", "long", aliases=["cents"]), field("note", "string", default="none")
    )
    third = record(field("never", "int"))
    known = schemas(
        (SUBJECT, 1, 1, first, {"deleted": True}),
        (SUBJECT, 2, 2, second),
        (SUBJECT, 3, 3, third, {"deleted": True}),
    )
    rows = rows_of(framed(1, b"\x06\x02x"), framed(2, b"\x08\x02y"), None)
    newest = segmentlog.decode(rows, known, SUBJECT)["value"].to_pylist()
    assert [{"amount": 3, "note": "none"}, {"amount": 4, "note": "y"}, None] == newest
    without = schemas((SUBJECT, 1, 1, first), (SUBJECT, 2, 2, record()))
    assert [{}, None] == segmentlog.decode(rows.take([0, 2]), without, SUBJECT)[
        "value"
    ].to_pylist()
    odd = schemas((SUBJECT, 1, 1, N), (SUBJECT, 2, 2, record(field("n", "int", aliases=[{}]))))
    told = segmentlog.decode(rows.take([0]), odd, SUBJECT, on_undecodable="null")
    assert "TypeError" in told["undecodable"][0].as_py()
    of_first = segmentlog.decode(rows.slice(0, 1), known, SUBJECT, version=1)
    assert [{"cents": 3, "gone": "x"}] == of_first["value"].to_pylist()


def test_a_schema_of_another_subject_that_is_referred_to() -> None:
    line = record(field("n", "long"), name="Line")
    order = record(field("line", "shop.Line"), field("more", {"type": "array", "items": "Line"}))
    refers = [{"name": "shop.Line", "subject": "line", "version": 1}]
    known = schemas(("line", 1, 1, line), (SUBJECT, 1, 2, order, {"references": refers}))
    decoded = segmentlog.decode(rows_of(framed(2, b"\x02\x02\x04\x00")), known, SUBJECT)
    assert [{"line": {"n": 1}, "more": [{"n": 2}]}] == decoded["value"].to_pylist()


N, TEXT = record(field("n", "int")), record(field("text", "string"))
UNDECODABLE = {
    b"no frame": "it names no schema",
    framed(9, b"\x02"): "no schema has the id 9",
    framed(1, b""): "its bytes end too early",
    framed(1, b"\x80\x80\x80\x80\x80\x40"): "it does not fit",
    framed(2, b"\x02x"): "several schemas: b version 1, c version 1",
    framed(3, b"\x02x"): "its schema is JSON, and not AVRO",
    framed(4, b"\x02x"): "SchemaResolutionError",
    framed(5, b"\x02x"): "it is not a schema of Avro",
    framed(6, b"\x00"): "n: a union of int and long, and of others",
    framed(7, b"\x00"): "other version 1 is not here",
    framed(8, b"\x00"): "contains itself",
    framed(10, b"\xfe\xff\xff\xff\xff\x7f"): "items of the list take no bytes",
}


@pytest.fixture
def hostile() -> pa.Table:
    deep: Any = "int"
    for _ in range(500):
        deep = {"type": "array", "items": deep}
    refers = [{"name": "x", "subject": "other", "version": 1}]
    several = record(field("n", ["int", "long", "string"]))
    itself = record(field("next", ["null", "shop.Order"]))
    empty = record(field("n", {"type": "array", "items": record(name="Empty")}))
    return schemas(
        (SUBJECT, 1, 1, N),
        ("b", 1, 2, N),
        ("c", 1, 2, TEXT),
        ("d", 1, 3, N, {"schema_type": "JSON"}),
        ("e", 1, 4, TEXT),
        ("f", 1, 5, {"type": "nothing"}),
        ("g", 1, 6, several),
        ("h", 1, 7, N, {"references": refers}),
        ("i", 1, 8, itself),
        ("j", 1, 10, empty),
        ("k", 1, 11, deep),
    )


def test_each_cause_is_told_and_ends_nothing_else(
    hostile: pa.Table, caplog: pytest.LogCaptureFixture
) -> None:
    good = framed(1, b"\x0e")
    rows = rows_of(good, *UNDECODABLE, framed(11, b"\0"), None, good)
    found = segmentlog.decode(rows, hostile, SUBJECT, on_undecodable="null")
    assert {"n": 7} == found["value"][0].as_py() == found["value"][-1].as_py()
    assert [None] * (len(UNDECODABLE) + 2) == found["value"].to_pylist()[1:-1]
    causes = found["undecodable"].to_pylist()
    assert [None, None, None] == [causes[0], *causes[-2:]]
    for expected, cause in zip(
        [*UNDECODABLE.values(), "types in each other"], causes[1:-2], strict=True
    ):
        assert expected in cause
    caplog.set_level(logging.WARNING)
    left = segmentlog.decode(rows, hostile, SUBJECT, on_undecodable="skip")
    assert [{"n": 7}, None, {"n": 7}] == left["value"].to_pylist()
    assert f"{len(UNDECODABLE) + 1} rows of which the value cannot be decoded" in caplog.text
    with pytest.raises(segmentlog.UndecodableValueError, match="no schema has the id 9") as caught:
        segmentlog.decode(rows.slice(2), hostile, SUBJECT)
    error = caught.value
    assert ("orders", 3, 72, "value") == (error.topic, error.partition, error.offset, error.column)


def test_a_wrong_value_among_columns_is_found() -> None:
    """A text that is not UTF-8, a time that no day has, and a number that is too large."""
    time = {"type": "int", "logicalType": "time-millis"}
    known = schemas((SUBJECT, 1, 1, record(field("text", "string"), field("at", time))))
    good = framed(1, b"\x02x\x02")
    bad = [
        framed(1, each) for each in (b"\x02\xff\x02", b"\x02x\x01", b"\x02x" + b"\x80" * 5 + b"\1")
    ]
    found = segmentlog.decode(rows_of(good, *bad, good), known, SUBJECT, on_undecodable="null")
    assert [True, False, False, False, True] == found["value"].is_valid().to_pylist()
    for cause, expected in zip(
        found["undecodable"].to_pylist()[1:-1], ("UnicodeDecodeError", "range", "fit"), strict=True
    ):
        assert expected in cause


def test_values_that_are_decoded_one_by_one_stand_between_those_in_columns() -> None:
    of_one = field("name", ["string"])  # a union of one type, whose number is written
    schema = record(
        of_one, field("n", "int"), field("on", "boolean"), field("x", ["null", "long"])
    )
    known = schemas((SUBJECT, 1, 1, schema))
    good = b"\0\6abc\x03\1\2\x09"
    bad = {
        1: (b"\2" + good[1:], "Error"),  # a type that the union does not have
        2: (good[:-1], "its bytes end too early"),
        4: (b"\0\6abc\x80\x80\x80\x80\x10\1\0", "fit"),  # 2**31 as an int
        6: (b"\0\5abc\x03\1\0", ""),  # a negative length
    }
    values = [framed(1, bad[n][0] if n in bad else good) for n in range(9)]
    found = segmentlog.decode(rows_of(*values), known, SUBJECT, on_undecodable="null")
    row = {"name": "abc", "n": -2, "on": True, "x": -5}
    causes = found["undecodable"].to_pylist()
    assert [None if n in bad else row for n in range(9)] == found["value"].to_pylist()
    assert [*bad] == [n for n, cause in enumerate(causes) if cause is not None]
    for n, (_, expected) in bad.items():
        assert expected in causes[n]


def test_a_wide_record_is_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_columns, "_MOST_CELLS", 4)
    schema = record(field("a", "long"), field("b", ["null", "string"]))
    values = [framed(1, b"\x02\2\2x"), framed(1, b"\x04\0"), framed(1, b"")] * 3
    known = schemas((SUBJECT, 1, 1, schema))
    found = segmentlog.decode(rows_of(*values), known, SUBJECT, on_undecodable="null")
    assert 3 * [{"a": 1, "b": "x"}, {"a": 2, "b": None}, None] == found["value"].to_pylist()


def evolved(random: Random, schema: dict[str, Any], kinds: list[Any]) -> dict[str, Any]:
    """A later schema: fields are moved, renamed, promoted, taken out and added."""
    fields = []
    for each in schema["fields"]:
        kind = each["type"]
        if random.random() < 0.3:
            of = next(one for one in kind if one != "null") if isinstance(kind, list) else kind
            wider = {
                "int": ["long", "float", "double"],
                "long": ["double", "float"],
                "float": ["double"],
            }.get(of if isinstance(of, str) else of["type"], ["string"])
            kind = random.choice(wider)
        if random.random() < 0.3 and not isinstance(kind, list):
            kind = random.choice([["null", kind], [kind, "null"]])
        if random.random() < 0.8:
            name = f"new_{each['name']}" if random.random() < 0.3 else each["name"]
            fields.append(field(name, kind, aliases=[each["name"]]))
    if random.random() < 0.5:
        defaults: dict[str, Any] = {
            "added": ["null", None],
            "text": ["string", "é"],
            "n": ["double", 1],
        }
        name, (kind, default) = random.choice([*defaults.items()])
        fields.append(field(name, [kind, "string"] if kind == "null" else kind, default=default))
    random.shuffle(fields)
    return record(*fields or [field("f0", "int", default=0)])


@pytest.mark.slow
def test_columns_of_flat_records_are_those_of_records_one_by_one() -> None:
    """Random schemas and values, and values that are cut or changed."""
    fastavro = pytest.importorskip("fastavro")
    random = Random(7)
    kinds: list[Any] = [
        "int",
        "long",
        "string",
        "float",
        "double",
        "boolean",
        ["null", "long"],
        ["string", "null"],
        ["null", "boolean"],
        ["string"],
        {"type": "int", "logicalType": "date"},
        {"type": "int", "logicalType": "time-millis"},
        ["null", {"type": "long", "logicalType": "timestamp-micros"}],
        {"type": "string", "logicalType": "uuid"},
    ]
    values: dict[str, Callable[[], Any]] = {
        "null": lambda: None,
        "int": lambda: random.randrange(-(2**31), 2**31),
        "long": lambda: random.choice([random.randrange(-(2**63), 2**63), -1, 2**31, -(2**63)]),
        "float": random.random,
        "string": lambda: random.choice(["", "é", "abc" * 9]),
        "double": random.random,
        "boolean": lambda: random.random() < 0.5,
    }
    n_quick = 0
    for _ in range(1_500):
        chosen = [random.choice(kinds) for _ in range(random.randrange(1, 6))]
        schema = record(*(field(f"f{n}", kind) for n, kind in enumerate(chosen)))
        quick, slow = AvroSchema(json.dumps(schema)), AvroSchema(json.dumps(schema))
        assert quick._flat is not None
        slow.__dict__["_flat"] = None
        reader = AvroSchema(json.dumps(evolved(random, schema, kinds)))
        written = []
        for _ in range(6):
            into, made = io.BytesIO(), {}
            for n, kind in enumerate(chosen):
                one = random.choice(kind) if isinstance(kind, list) else kind
                made[f"f{n}"] = values[one["type"] if isinstance(one, dict) else one]()
            fastavro.schemaless_writer(into, quick.parsed, made)
            data = bytearray(into.getvalue())
            if random.random() < 0.4:
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            if random.random() < 0.1:
                del data[random.randrange(len(data)) :]
            written.append(bytes(data))
        for each in [written, *([value] for value in written)]:
            for of_quick, of_slow in [(quick, slow), (reader, reader)]:
                causes: list[dict[int, str]] = [{}, {}]
                found = quick.decode(payloads(each), of_quick, causes[0])
                one_by_one = slow.decode(payloads(each), of_slow, causes[1])
                assert str(one_by_one) == str(found)  # NaN is not itself
                assert causes[0] == causes[1]
                n_quick += quick._quick(payloads(each), reader) is not None
    assert n_quick > 2_000


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"subject": "nothing"}, "subjects are"),
        ({"version": 2}, "are 1"),
        ({"subject": "d"}, "its types are"),
        ({"column": "headers"}, "'key' or 'value'"),
        ({"column": "key"}, "the column key is missing"),
        ({"rows": 7}, "a stream of Arrow"),
        ({"schemas": pa.table({"a": [1]})}, "the table 'schemas'"),
        ({"on_undecodable": "replace"}, "'fail' or 'null' or 'skip'"),
    ],
)
def test_arguments_that_mean_nothing(
    hostile: pa.Table, arguments: dict[str, Any], expected: str
) -> None:
    given: dict[str, Any] = {"rows": rows_of(), "schemas": hostile, "subject": SUBJECT}
    with pytest.raises(segmentlog.OptionError, match=expected):
        segmentlog.decode(**given | arguments)


def test_a_dataset_is_decoded_with_the_registry_of_its_own_directory(tmp_path: Any) -> None:
    """Of a stream, batches are decoded as they are read."""
    key = b'{"keytype":"SCHEMA","subject":"orders-key","version":1,"magic":1}'
    text = json.dumps(record(field("id", "long")))
    value = {"subject": "orders-key", "version": 1, "id": 1, "schema": text}
    with segmentlog.open_writer(tmp_path, "_schemas") as writer:
        writer.append(pa.table({"key": [key], "value": [json.dumps(value).encode()]}))
    with segmentlog.open_writer(tmp_path, "orders") as writer:
        keys = [framed(1, b"\x0a"), framed(1, b"\x0c")]
        writer.append(pa.table({"key": keys, "value": [b"1", b"2"]}))
    logs = segmentlog.dataset(tmp_path, "orders")
    found = segmentlog.decode(logs, tmp_path, "orders-key", column="key")
    assert isinstance(found, pa.RecordBatchReader)
    assert [{"id": 5}, {"id": 6}] == found.read_all()["key"].to_pylist()
