"""Fields of decoded keys and values in an analysis."""

import random
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from registered import CITY, DEGREES, framed, readings, record, register, write

import segmentlog
from segmentlog.analysis.fields import as_bytes, leaves
from segmentlog.analysis.report import DecodedFigures, FieldFigures

pytest.importorskip("fastavro")


def decoded(path: Path, topic: str = "readings", **options: Any) -> DecodedFigures:
    (report,) = segmentlog.analyze(path, topics=topic, **{"decode": "value"} | options).topics
    (found,) = report.decoded
    return found


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fields") / "logs"
    readings(path, b"no schema", None, framed(9, b"x"))
    write(path, "plain", [b"x"])
    return path


def test_nulls_distinct_values_and_ranges(logs: Path) -> None:
    """Of the values that can be decoded; the others are counted, and their causes are named."""
    found = decoded(logs)
    assert (6, 1, 2) == (found.n_records, found.n_null, found.n_undecodable)
    assert ("it names no schema", "no schema has the id 9") == found.causes
    assert (
        FieldFigures("value.city", "string", 3, 0, 3, 0.0, None, None, 4),
        FieldFigures("value.degrees", "int32", 3, 2, 1, 0.0, 30, 30, 4),
    ) == found.fields
    shown = decoded(logs, show_values=True).fields[0]
    assert ("Bern", "Rome") == (shown.least, shown.largest)


def test_a_topic_without_a_schema_says_so(logs: Path) -> None:
    every = segmentlog.analyze(logs, decode="key,value").topics
    (plain,) = (each.decoded for each in every if each.topic == "plain")
    assert [
        ("key", "no schema has the subject plain-key"),
        ("value", "no schema has the subject plain-value"),
    ] == [(each.column, each.reason) for each in plain]
    assert (
        "fields" in segmentlog.analyze(logs, decode="value").to_json()["topics"][2]["decoded"][0]
    )
    register(logs, "odd-value", 1, 3, {"type": "record", "name": "Odd"})
    write(logs, "odd", [b"x"])
    assert "is not a schema of Avro" in decoded(logs, "odd").reason
    assert "decode_subject" not in decoded(logs, "odd").reason


def test_schemas_from_elsewhere(logs: Path, tmp_path: Path) -> None:
    write(tmp_path, "readings", [b"\x08Kiel"])
    with pytest.raises(segmentlog.LogDirectoryError, match="_schemas"):
        decoded(tmp_path)
    found = decoded(tmp_path, decode_schemas=logs)
    assert ("it names no schema",) == found.causes
    register(tmp_path / "more", "readings-value", 1, 1, record(CITY))
    found = decoded(tmp_path, decode_schemas=tmp_path / "more", decode_frame="none")
    assert ["value.city"] == [each.name for each in found.fields]


def test_what_means_nothing_without_decode(logs: Path) -> None:
    for given in ({"show_values": True}, {"decode_frame": "none"}, {"decode_schemas": "x.avsc"}):
        with pytest.raises(segmentlog.OptionError, match="belongs to decode"):
            segmentlog.analyze(logs, **given)


def test_damage_leaves_the_rest(logs: Path, tmp_path: Path) -> None:
    """The damaged batch is a problem of the analysis, and the fields are those of the others."""
    readings(tmp_path)
    write(tmp_path, "readings", [framed(2, b"\x08Kiel\2\x0a")])
    (log,) = (tmp_path / "readings-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[70] ^= 255
    log.write_bytes(data)
    found = decoded(tmp_path)
    assert (1, 5) == (found.n_records, found.fields[1].largest)


def test_more_fields_than_are_looked_at_are_counted(tmp_path: Path) -> None:
    many = [{"name": f"f{n}", "type": "boolean"} for n in range(120)]
    register(tmp_path, "readings-value", 1, 1, record(*many))
    write(tmp_path, "readings", [framed(1, bytes(120)), framed(1, b"\1" + bytes(119))])
    found = decoded(tmp_path)
    assert (100, 20) == (len(found.fields), found.n_other_fields)
    assert (False, True, 2) == (
        found.fields[0].least,
        found.fields[0].largest,
        found.fields[0].distinct,
    )


def by_hand(name: str, kind: pa.DataType, values: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """`leaves` in plain Python."""
    if pa.types.is_struct(kind):
        for each in kind:
            own = [None if value is None else value[each.name] for value in values]
            yield from by_hand(f"{name}.{each.name}", each.type, own)
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        yield f"len({name})", [None if value is None else len(value) for value in values]
        items = [item for value in values if value is not None for item in value]
        if pa.types.is_map(kind):
            items = [{"key": key, "value": value} for key, value in items]
            inner = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        else:
            inner = kind.value_type
        yield from by_hand(f"{name}[]", inner, items)
    else:
        yield name, values


LEAVES: dict[pa.DataType, list[Any]] = {
    pa.int32(): [1, -1, None],
    pa.string(): ["", "é", None],
    pa.bool_(): [True, False, None],
    pa.binary(2): [b"ab", b"\0\0", None],
    pa.decimal128(9, 2): [Decimal("1.20"), Decimal("-3.00"), None],
    pa.date32(): [date(2026, 1, 1), None],
    pa.null(): [None],
}


def any_type(chosen: random.Random, depth: int) -> pa.DataType:
    kind = chosen.randrange(4) if depth else 3
    if kind == 0:
        names = [f"f{n}" for n in range(chosen.randrange(1, 4))]
        return pa.struct([(name, any_type(chosen, depth - 1)) for name in names])
    if kind == 1:
        return pa.list_(any_type(chosen, depth - 1))
    if kind == 2:
        return pa.map_(pa.string(), any_type(chosen, depth - 1))
    return chosen.choice([*LEAVES])


def any_value(chosen: random.Random, kind: pa.DataType) -> Any:
    if kind in LEAVES:
        return chosen.choice(LEAVES[kind])
    if chosen.random() < 0.2:
        return None
    if pa.types.is_struct(kind):
        return {each.name: any_value(chosen, each.type) for each in kind}
    n_items = chosen.randrange(4)
    if pa.types.is_map(kind):
        return [(f"k{n}", any_value(chosen, kind.item_type)) for n in range(n_items)]
    return [any_value(chosen, kind.value_type) for _ in range(n_items)]


@pytest.mark.parametrize("seed", range(30))
def test_leaves_are_those_of_plain_python(seed: int) -> None:
    """Of columns that are cut, too; and values are equal if their bytes are."""
    chosen = random.Random(seed)
    kind = any_type(chosen, 3)
    values = [any_value(chosen, kind) for _ in range(20)]
    found = dict(leaves("v", pa.array(values, kind)[3:17]))
    expected = dict(by_hand("v", kind, values[3:17]))
    assert expected == {name: each.to_pylist() for name, each in found.items()}
    for name, each in found.items():
        whole = expected[name]
        assert len({*whole} - {None}) == len({*as_bytes(each).to_pylist()} - {None})


def test_keys_are_fields_too(tmp_path: Path) -> None:
    register(tmp_path, "t-key", 1, 7, "long")
    register(tmp_path, "t-value", 1, 8, record(CITY, DEGREES))
    write(tmp_path, "t", [framed(8, b"\x08Oslo\0")] * 2, key=[framed(7, b"\2"), framed(7, b"\4")])
    (report,) = segmentlog.analyze(tmp_path, topics="t", decode=["key", "value"]).topics
    keys, values = report.decoded
    assert FieldFigures("key", "int64", 2, 0, 2, 0.0, 1, 2, 8) == keys.fields[0]
    assert 1 == values.fields[0].distinct
