"""Unions of several types are structs, as Spark's ``from_avro`` makes them."""

import io
import json
from decimal import Decimal
from typing import Any

import pytest
from registered import payloads

from segmentlog.decoding.avro import AvroSchema
from segmentlog.decoding.schema import UnusableSchemaError

fastavro = pytest.importorskip("fastavro")


def record(name: str, **fields: Any) -> dict[str, Any]:
    listed = [{"name": each, "type": kind} for each, kind in fields.items()]
    return {"type": "record", "name": name, "namespace": "shop", "fields": listed}


LINE, PLACE = record("Line", n="long"), record("Place", n="long", more=["null", "Line"])
STATE = {"type": "enum", "name": "State", "symbols": ["OPEN", "SHUT"]}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


def written(schema: Any, *values: Any) -> list[bytes]:
    parsed, made = fastavro.parse_schema(schema, {}), []
    for each in values:
        into = io.BytesIO()
        fastavro.schemaless_writer(into, parsed, each)
        made.append(into.getvalue())
    return made


def decoded(writer: Any, reader: Any, *values: Any) -> tuple[list[Any], dict[int, str]]:
    of_writer, causes = AvroSchema(json.dumps(writer)), dict[int, str]()
    of_reader = of_writer if reader is writer else AvroSchema(json.dumps(reader))
    found = of_writer.decode(payloads(written(writer, *values)), of_reader, causes).to_pylist()
    return found, causes


def as_members(number: int, value: Any, n_members: int) -> dict[str, Any]:
    return {f"member{n}": value if n == number else None for n in range(n_members)}


def test_members_of_every_kind() -> None:
    kinds = ["null", "boolean", "int", "double", "string", "bytes", LINE, PLACE, STATE, PRICE,
             {"type": "array", "items": "shop.Line"}, {"type": "map", "values": ["null", "Line"]},
             {"type": "fixed", "name": "Id", "size": 2}]  # fmt: skip
    schema = record(
        "A", u=kinds, one=["null", "Line"], number=["null", "int", "long"], e=["null", "State"]
    )
    given = [True, 7, 0.5, "OPEN", b"raw", ("shop.Line", {"n": 1}),
             ("shop.Place", {"n": 2, "more": {"n": 3}}), ("shop.State", "SHUT"), Decimal("1.20"),
             [{"n": 4}], {"k": {"n": 5}, "z": None}, ("shop.Id", b"ab")]  # fmt: skip
    others = {"one": {"n": 9}, "number": 2**40, "e": "OPEN"}
    found, causes = decoded(
        schema,
        schema,
        {"u": None, "one": None, "number": None, "e": None},
        *({"u": each} | others for each in given),
    )
    assert {} == causes
    assert {"u": None, "one": None, "number": None, "e": None} == found[0]
    for number, (value, row) in enumerate(zip(given, found[1:], strict=True)):
        plain: Any = value[1] if isinstance(value, tuple) else value
        expected = [*plain.items()] if number == 10 else plain
        assert {"u": as_members(number, expected, 12)} | others == row


def test_a_union_within_a_union_is_none_of_avro() -> None:
    with pytest.raises(UnusableSchemaError, match="u: a union within a union"):
        AvroSchema(json.dumps(record("A", u=["null", ["int"]])))


def test_a_union_of_records_that_a_topic_has() -> None:
    """The schema itself is a union; later versions have one more record.

    Confluent's are names of records in other subjects.
    """
    first, second = [LINE, PLACE], [LINE, PLACE, record("More", n="long")]
    values = [("shop.Place", {"n": 2, "more": None}), ("shop.Line", {"n": 1})]
    expected = [as_members(1, {"n": 2, "more": None}, 3), as_members(0, {"n": 1}, 3)]
    assert (expected, {}) == decoded(first, second, *values)
    box = record("Box", n=["long", "string"])
    named = AvroSchema(
        '["shop.Line", "shop.Box"]', [("", json.dumps(each)) for each in (LINE, box)]
    )
    causes: dict[int, str] = {}
    data = written([LINE, box], ("shop.Box", {"n": "x"}))
    found = named.decode(payloads(data), named, causes).to_pylist()
    assert ([as_members(1, {"n": as_members(1, "x", 2)}, 2)], {}) == (found, causes)


def test_a_type_that_resolution_does_not_tell() -> None:
    """Fastavro takes the first record that has a name of the writer's, and does not say which."""
    found, causes = decoded(LINE, [LINE, PLACE], {"n": 1})
    assert [None] == found
    assert "which type of a union" in causes[0]
    numbers, none = decoded("int", ["null", "string", "double"], 7)
    assert ([{"member0": None, "member1": 7.0}], {}) == (numbers, none)
