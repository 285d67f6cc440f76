"""Which schemas the records of a topic have."""

from pathlib import Path

import pyarrow as pa
from registered import CITY, OSLO, ROME, framed, readings, record, register

import segmentlog

PLACE = ["column", "subject", "version", "id", "records", "first_offset"]


def places(found: pa.Table) -> list[tuple]:
    return [*zip(*(found[name].to_pylist() for name in PLACE), strict=True)]


def test_versions_that_records_have_and_those_that_none_has(tmp_path: Path) -> None:
    """An id that the registry lacks has no subject; nulls are left out."""
    readings(tmp_path, b"no schema", None, framed(9, b"x"), ROME)
    register(tmp_path, "another-value", 1, 1, record(CITY))
    register(tmp_path, "readings-value", 3, 3, record())
    register(tmp_path, "readings-key", 1, 4, "long")
    found = segmentlog.schema_use(tmp_path, "readings")
    assert places(found) == [
        ("key", "readings-key", 1, 4, 0, None),
        ("value", None, None, None, 1, 3),
        ("value", None, None, 9, 1, 5),
        ("value", "readings-value", 1, 1, 1, 0),
        ("value", "readings-value", 2, 2, 3, 1),
        ("value", "readings-value", 3, 3, 0, None),
    ]
    late = segmentlog.schema_use(tmp_path, "readings", last=1)
    assert {2: 1} == {row["version"]: row["records"] for row in late.to_pylist() if row["records"]}


def test_keys_guids_and_times_without_a_registry(tmp_path: Path) -> None:
    """A GUID in a header counts before the bytes; times need no calendar."""
    guid = bytes(range(16))
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = [[{"key": "__value_schema_id", "value": b"\1" + guid}], []]
    times = pa.array([2**52, 1_000], pa.int64())
    with segmentlog.open_writer(
        tmp_path, "t", config=segmentlog.ProducerConfig(use_timestamps=True)
    ) as writer:
        writer.append(
            pa.table(
                {
                    "key": [framed(7, b"a"), framed(7, b"b")],
                    "value": [OSLO, OSLO],
                    "headers": pa.array(headers, kind),
                    "timestamp": times.cast(pa.timestamp("ms", "UTC")),
                }
            )
        )
    found = segmentlog.schema_use(tmp_path)
    rows = zip(found["column"].to_pylist(), found["id"].to_pylist(), strict=True)
    assert [("key", 7), ("value", None), ("value", 1)] == [*rows]
    assert [None, "00010203-0405-0607-0809-0a0b0c0d0e0f", None] == found["guid"].to_pylist()
    assert [2, 1, 1] == found["records"].to_pylist()
    first, last = (found[name].cast(pa.int64())[0].as_py() for name in found.schema.names[7:9])
    assert (1_000_000, 2**52 * 1_000) == (first, last)
