"""The option ``decode`` of reads: the same rows, whichever way they are asked for."""

import pickle
import shutil
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from registered import CITY, DEGREES, OSLO, ROME, framed, readings, record, register, write

import segmentlog
from segmentlog.polars import scan_log

pytest.importorskip("fastavro")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
FOUND = [
    {"city": "Oslo", "degrees": None},
    {"city": "Rome", "degrees": 30},
    {"city": "Bern", "degrees": None},
]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Values of two schemas, one that names none, and none."""
    path = tmp_path_factory.mktemp("decoded") / "logs"
    readings(path, b"no schema", None)
    return path


def decoded(path: Path, topics: str = "readings", **options: Any) -> segmentlog.LogDataset:
    return segmentlog.dataset(path, topics, **{"decode": "value"} | options)


def test_values_are_columns_and_the_others_stay(logs: Path) -> None:
    plain = segmentlog.read(logs, "readings")
    found = segmentlog.read(logs, "readings", decode="value", on_undecodable="null")
    assert [*FOUND, None, None] == found["value"].to_pylist()
    assert [None, None, None, "it names no schema", None] == found["undecodable"].to_pylist()
    assert plain.drop_columns("value").equals(found.drop_columns(["value", "undecodable"]))
    assert decoded(logs, on_undecodable="null").schema == found.schema
    first = segmentlog.read(
        logs, "readings", decode=["value"], decode_version=1, ending_offsets={("readings", 0): 2}
    )
    assert [{"city": "Oslo"}, {"city": "Rome"}] == first["value"].to_pylist()
    with pytest.raises(segmentlog.UndecodableValueError, match=r"offset 3 .* names no schema"):
        segmentlog.read(logs, "readings", decode="value")


def test_every_way_to_ask_leaves_out_the_same_rows(
    logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also those that need no value, and those of other libraries."""
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("polars")
    found = decoded(logs, on_undecodable="skip")
    rows = found.to_table()
    assert [*FOUND, None] == rows["value"].to_pylist()
    assert caplog.text.count("1 row of which the value cannot be decoded is left out: 1:") == 1
    assert rows.num_rows == found.count_rows() == len(found.to_table(["offset"]))
    assert [0, 1, 2, 4] == found.to_table(["offset"], order="timestamp")["offset"].to_pylist()
    counted = found.count_by_time(timedelta(days=1))["count"].to_pylist()
    assert rows.num_rows == sum(counted)
    assert rows.equals(pickle.loads(pickle.dumps(found)).to_table())
    assert rows.equals(pa.Table.from_batches(b for f in found.get_fragments() for b in f.scan()))
    assert [(30,)] == duckdb.sql(
        "select value.degrees from found where value.city = 'Rome'"
    ).fetchall()
    lazy = scan_log(logs, topics="readings", decode="value", on_undecodable="skip")
    assert lazy.collect()["value"].to_list() == [*FOUND, None]
    assert lazy.select("offset").collect().height == rows.num_rows


def test_a_value_that_is_not_asked_for_fails_nothing(logs: Path) -> None:
    found = decoded(logs)
    assert FOUND == found.to_table(filter=pc.field("offset") < 3)["value"].to_pylist()
    assert 5 == found.count_rows() == found.to_table(["offset", "key"]).num_rows
    some = decoded(logs, on_undecodable="null")
    rome = some.to_table(filter=pc.field("value", "city") == "Rome")
    assert [FOUND[1]] == rome["value"].to_pylist()
    failed = some.to_table(["offset"], filter=pc.field("undecodable").is_valid())
    assert [3] == failed["offset"].to_pylist()
    assert 1 == some.filter(pc.field("value", "degrees") > 0).count_rows()
    text = decoded(logs, strings=True, on_undecodable="null")
    assert pa.string() == text.schema.field("key").type
    assert FOUND[0] == text.head(1)["value"][0].as_py()


def test_a_value_after_the_first_rows_fails_nothing(logs: Path) -> None:
    """Nor one after the last row that a filter keeps of them."""
    rows = decoded(logs)
    warm, cities = pc.field("value", "degrees") > 20, pc.field("value", "city")
    assert ["Oslo", "Rome", "Bern"] == rows.head(3, {"it": cities})["it"].to_pylist()
    assert [1] == rows.head(1, ["offset"], warm)["offset"].to_pylist()
    assert [0, 1] == rows.head(2, ["offset"], cities != "Bern")["offset"].to_pylist()
    for n, condition in ((4, None), (2, warm)):
        with pytest.raises(segmentlog.UndecodableValueError, match="offset 3"):
            rows.head(n, ["offset", "value"], condition)


def test_a_timeline_decodes_what_is_taken_of_it(tmp_path: Path) -> None:
    """Of several partitions, with ids in headers; an error has the place of its value."""
    register(tmp_path, "readings-value", 2, 2, record(CITY, DEGREES))
    named = [{"key": "__value_schema_id", "value": framed(2, b"")}]
    config = segmentlog.ProducerConfig(use_timestamps=True)
    with segmentlog.open_writer(tmp_path, "t", num_partitions=2, config=config) as writer:
        writer.append(
            pa.table(
                {
                    "value": [ROME, b"no schema", b"\x08Bern\0", b"\x08Oslo\0"],
                    "partition": pa.array([1, 0, 0, 1], pa.int32()),
                    "timestamp": pa.array([1, 9, 10, 2], pa.timestamp("ms", "UTC")),
                    "headers": pa.array([None, None, named, named], HEADERS),
                }
            )
        )
    asked: dict[str, Any] = {"decode": "value", "decode_subject": "readings-value"}
    rows = segmentlog.dataset(tmp_path, "t", **asked)
    line = rows.scanner(["value"], order="timestamp")
    assert ["Rome", "Oslo"] == [each["city"] for each in line.head(2)["value"].to_pylist()]
    with pytest.raises(segmentlog.UndecodableValueError, match=r"t-0.* offset 0"):
        line.head(3)
    told = segmentlog.dataset(tmp_path, "t", **asked, on_undecodable="null")
    for columns in (["value"], ["offset", "value", "undecodable"], ["key"]):
        made = told.scanner(columns, order="timestamp").to_table()
        assert columns == made.schema.names
        assert 4 == made.num_rows
    names = told.scanner(
        {"it": pc.field("value", "city")}, pc.field("offset") == 1, order="timestamp"
    )
    assert ["Oslo", "Bern"] == names.to_table()["it"].to_pylist()
    left = segmentlog.dataset(tmp_path, "t", **asked, on_undecodable="skip")
    assert 3 == left.scanner(["value"], order="timestamp").count_rows()


def test_the_latest_record_of_a_key_is_that_of_its_bytes(tmp_path: Path) -> None:
    """A tombstone deletes its key; a value that cannot be decoded hides no other, and no key."""
    readings(tmp_path)
    keys = [b"gone", b"bad", b"kept", b"gone", b"bad"]
    write(tmp_path, "t", [OSLO, OSLO, ROME, None, b"x"], key=keys)
    asked: dict[str, Any] = {"decode": "value", "decode_subject": "readings-value"}
    found = segmentlog.latest(tmp_path, "t", **asked, on_undecodable="null")
    assert [(b"kept", FOUND[1], None), (b"bad", None, "it names no schema")] == [
        (row["key"], row["value"], row["undecodable"]) for row in found.to_pylist()
    ]
    left = segmentlog.latest(tmp_path, "t", columns=["key"], **asked, on_undecodable="skip")
    assert [b"kept"] == left["key"].to_pylist()
    with pytest.raises(segmentlog.UndecodableValueError, match="offset 4"):
        segmentlog.latest(tmp_path, "t", **asked)
    rows = segmentlog.dataset(tmp_path, "t", **asked, on_undecodable="skip", strings=True)
    of_rome = rows.filter(pc.field("value", "city") == "Rome").latest()
    assert [("kept", FOUND[1])] == [(r["key"], r["value"]) for r in of_rome.to_pylist()]


def test_keys_and_values_at_once_and_ids_in_headers(tmp_path: Path) -> None:
    readings(tmp_path)
    register(tmp_path, "t-key", 1, 7, "long")
    register(tmp_path, "t-value", 1, 2, record(CITY, DEGREES))
    in_header = [{"key": "__value_schema_id", "value": framed(2, b"")}]
    keys = [framed(7, b"\x02"), framed(7, b"\x04"), b"?", framed(7, b"\x08")]
    values = [ROME, ROME[5:], ROME, b"?"]
    headers = pa.array([None, in_header, None, None], HEADERS)
    write(tmp_path, "t", values, key=keys, headers=headers)
    found = segmentlog.read(tmp_path, "t", decode="key,value", on_undecodable="null")
    assert [1, 2, None, 4] == found["key"].to_pylist()
    assert [FOUND[1], FOUND[1], FOUND[1], None] == found["value"].to_pylist()
    why = [None, None, "key: it names no schema", "value: it names no schema"]
    assert why == found["undecodable"].to_pylist()
    left = decoded(tmp_path, "t", decode=["value", "key"], on_undecodable="skip").to_table()
    assert [1, 2] == left["key"].to_pylist()
    assert "headers" not in left.schema.names


def test_a_dataset_finds_schemas_that_it_has_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is unpickled, it has those of its subject; a deleted one stays known."""
    readings(tmp_path)
    register(tmp_path, "others", 1, 9, record(CITY))
    write(tmp_path, "readings", [framed(9, b"\x08Lima"), framed(8, b"\x08Lima")] * 2)
    found = decoded(tmp_path, on_undecodable="null")
    register(tmp_path, "readings-value", 1, 1, None)
    register(tmp_path, "readings-value", 3, 3, record(CITY, DEGREES, {**CITY, "name": "more"}))
    there = pickle.loads(pickle.dumps(found))
    assert b"others" not in pickle.dumps(found)
    lima = {"city": "Lima", "degrees": None}
    rows = there.to_table()
    assert [*FOUND, lima, None, lima, None] == rows["value"].to_pylist()
    assert found.to_table().equals(rows)
    assert "no schema has the id 8" in rows["undecodable"][4].as_py()


def test_a_schema_that_comes_after_looks_in_vain_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that only look like ids make further looks seldom, and do not end them."""
    readings(tmp_path)
    write(tmp_path, "readings", [framed(9, b"\x08Lima")])
    found = decoded(tmp_path, on_undecodable="null")
    for _ in range(4):
        assert found.to_table()["value"].to_pylist() == [*FOUND, None]
    register(tmp_path, "others", 1, 9, record(CITY))
    assert found.to_table()["value"].to_pylist() == [*FOUND, None]  # it is too early
    monkeypatch.setattr("segmentlog.decoding.decode.time.monotonic", lambda: 1e12)
    assert found.to_table()["value"].to_pylist() == [*FOUND, {"city": "Lima", "degrees": None}]


def test_a_registry_that_is_gone_ends_nothing_that_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    readings(tmp_path, framed(9, b"\x08Lima"))
    found = pickle.loads(pickle.dumps(decoded(tmp_path, on_undecodable="null")))
    shutil.rmtree(tmp_path / "_schemas-0")
    rows = found.to_table()
    assert [*FOUND, None] == rows["value"].to_pylist()
    assert "no schema has the id 9" in rows["undecodable"][3].as_py()
    assert "the schemas of readings-value cannot be looked up" in caplog.text


@pytest.mark.parametrize(
    ("options", "option", "expected"),
    [
        ({"decode": "values"}, "decode", "give 'key', 'value' or 'key,value'"),
        ({"decode": []}, "", ""),
        ({"decode": "key"}, "decode", "subject readings-key: subjects are readings-value"),
        ({"topics": None}, "decode", "topics are _schemas, readings: read one topic, or give"),
        ({"decode_subject": "x"}, "decode_subject", "subjects are readings-value"),
        ({"decode_version": 9}, "decode_version", "versions of readings-value are 1, 2"),
        ({"decode": None, "decode_version": 1}, "decode_version", "it belongs to decode"),
        ({"decode": "key,value", "decode_version": 1}, "decode_version", "decode one of the two"),
        ({"decode": None, "decode_subject": "a"}, "decode_subject", "it belongs to decode"),
    ],
)
def test_what_does_not_lead_to_one_schema(
    logs: Path, options: dict[str, Any], option: str, expected: str
) -> None:
    given = {"topics": "readings", "decode": "value"} | options
    if not option:
        assert segmentlog.read(logs, **given).equals(segmentlog.read(logs, "readings"))
        return
    with pytest.raises(segmentlog.OptionError, match=expected) as caught:
        segmentlog.read(logs, **given)
    assert option == caught.value.option


def test_a_directory_without_a_registry_and_one_topic_that_is_empty(tmp_path: Path) -> None:
    write(tmp_path, "t", [])
    with pytest.raises(segmentlog.LogDirectoryError, match="holds no partition of _schemas"):
        segmentlog.read(tmp_path, "t", decode="value")
    register(tmp_path, "t-value", 1, 1, record(CITY))
    found = segmentlog.read(tmp_path, "t", decode="value")
    assert 0 == found.num_rows
    assert pa.struct([("city", pa.string())]) == found["value"].type


_CITIES = ("Oslo", "Rome", "Lima")


def _value(random: Random) -> tuple[bytes | None, object, bool]:
    """Bytes, what they are decoded to, and whether they can be."""
    city, degrees = random.choice(_CITIES), random.randrange(60)
    name = b"\x08" + city.encode()
    return random.choice(
        [
            (None, None, True),
            (b"junk", None, False),
            (framed(9, name), None, False),
            (framed(2, b"\x08Os"), None, False),
            (framed(1, name), {"city": city, "degrees": None}, True),
            (
                framed(2, name + b"\2" + bytes([2 * degrees])),
                {"city": city, "degrees": degrees},
                True,
            ),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_topics_are_those_of_a_model(tmp_path: Path, seed: int) -> None:
    """Each way to ask, in each mode, returns the rows and values that a loop over records does."""
    random = Random(seed)
    readings(tmp_path)
    n_partitions, model = random.randrange(1, 4), list[dict[str, Any]]()
    ends = dict.fromkeys(range(n_partitions), 0)
    for _ in range(random.randrange(1, 4)):
        rows = []
        for _ in range(random.randrange(1, 60)):
            data, value, ok = _value(random)
            at, key = random.randrange(n_partitions), b"k%d" % random.randrange(8)
            rows.append({"key": key, "value": data, "partition": at})
            row = {"partition": at, "offset": ends[at], "key": key, "value": value}
            model.append(row | {"ok": ok, "deletes": data is None})
            ends[at] += 1
        with segmentlog.open_writer(tmp_path, "t", num_partitions=n_partitions) as writer:
            kinds = [("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32())]
            writer.append(pa.Table.from_pylist(rows, pa.schema(kinds)))
    model.sort(key=lambda row: (row["partition"], row["offset"]))
    modes = {
        mode: decoded(tmp_path, "t", decode_subject="readings-value", on_undecodable=mode)
        for mode in ("null", "skip")
    }
    of_rome = pc.field("value", "city") == "Rome"
    first = random.randrange(20)
    last = {(row["partition"], row["key"]): row for row in model}
    for mode, found in modes.items():
        expected = [row for row in model if row["ok"] or mode == "null"]
        assert len(expected) == found.count_rows()
        for names in (["partition", "offset", "key", "value"], ["offset"], ["value"]):
            for condition, keeps in (
                (None, lambda _: True),
                (pc.field("offset") >= first, lambda row: row["offset"] >= first),
                (of_rome, lambda row: row["value"] and row["value"]["city"] == "Rome"),
            ):
                rows = [{name: row[name] for name in names} for row in expected if keeps(row)]
                assert rows == found.to_table(names, filter=condition).to_pylist()
                merged = found.to_table(names, filter=condition, order="timestamp").to_pylist()
                assert sorted(map(str, rows)) == sorted(map(str, merged))
        kept = [row for row in last.values() if not row["deletes"]]
        kept = [row for row in kept if row["ok"] or mode == "null"]
        assert sorted((row["partition"], row["offset"]) for row in kept) == [
            (row["partition"], row["offset"]) for row in found.latest().to_pylist()
        ]
