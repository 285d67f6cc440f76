"""Ids of schemas are replaced in frames and in headers, and nowhere else."""

import uuid
from typing import Any

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.maintain.cloning.cloned_rows import NewIds

HEADERS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
OLD, NEW = (str(uuid.UUID(int=each)) for each in (2**100 + 7, 2**90 + 9))


def frame(number: int, rest: bytes = b"rest") -> bytes:
    return b"\x00" + number.to_bytes(4, "big") + rest


def guid(text: str) -> bytes:
    return b"\x01" + uuid.UUID(text).bytes


ROWS: list[tuple[Any, Any, Any, Any]] = [
    (frame(17), [], frame(42), []),
    (frame(18), [], frame(18), []),  # an id that stays
    (None, None, None, None),
    (b"", [], b"", []),
    (b"\x00\x00\x00\x00", [], b"\x00\x00\x00\x00", []),  # too short
    (b"\x01\x00\x00\x00\x11", [], b"\x01\x00\x00\x00\x11", []),
    # The header alone counts, whatever the value begins with.
    (frame(17), [("__value_schema_id", frame(17, b""))],
     frame(17), [("__value_schema_id", frame(42, b""))]),
    (frame(17), [("a", frame(17)), ("__value_schema_id", guid(OLD) + b"\x00"), ("b", None)],
     frame(17), [("a", frame(17)), ("__value_schema_id", guid(NEW) + b"\x00"), ("b", None)]),
    (frame(17), [("__key_schema_id", frame(17, b""))],
     frame(42), [("__key_schema_id", frame(17, b""))]),
    (frame(2**31 - 1), [("__value_schema_id", None)],
     frame(2**31 - 1), [("__value_schema_id", None)]),
]  # fmt: skip


def batch(pairs: list[tuple[Any, Any]], *, extra: int = 0) -> pa.RecordBatch:
    made = [(b"before", [("__value_schema_id", b"x")])] * extra + pairs
    headers = [
        each and [(name.encode(), value) for name, value in each] if each is not None else None
        for _, each in made
    ]
    columns = {
        "value": pa.array([value for value, _ in made], pa.binary()),
        "headers": pa.array(headers, HEADERS),
    }
    return pa.RecordBatch.from_pydict(columns).slice(extra)


@pytest.mark.parametrize("extra", [0, 3])
def test_ids_are_replaced_where_a_registry_reads_them(extra: int) -> None:
    """Also in a slice of longer columns, and the given columns stay as they are."""
    given_ids: dict[int | str, int | str] = {17: 42, 99: 1, OLD: NEW}
    ids = NewIds(given_ids, "value")
    given = batch([(value, headers) for value, headers, _, _ in ROWS], extra=extra)
    copy = given.to_pylist()
    found = ids.replaced(given)
    found.validate(full=True)
    assert batch([row[2:] for row in ROWS]).to_pylist() == found.to_pylist()
    assert copy == given.to_pylist()
    assert {18} == ids.unknown


def test_the_new_id_of_a_key_chooses_its_partition(tmp_path: Any) -> None:
    """Keys and values have maps of their own: a long as a key may look as if it were framed."""
    keys = [frame(5, b"%d" % number) for number in range(50)]
    table = pa.table({"key": keys, "value": [frame(5)] * 50})
    with segmentlog.open_writer(tmp_path / "s", "t", num_partitions=3) as writer:
        writer.append(table)
    found = segmentlog.clone(
        tmp_path / "s",
        "t",
        "u",
        to=tmp_path / "c",
        num_partitions=4,
        key_schema_ids={5: 6},
        schema_ids={7: 8},
        order="timestamp",
    )
    new = [b"\x00\x00\x00\x00\x06" + key[5:] for key in keys]
    with segmentlog.open_writer(tmp_path / "fresh", "u", num_partitions=4) as writer:
        writer.append(pa.table({"key": new, "value": [frame(5)] * 50}))
    places = [
        sorted(
            segmentlog.read(path, "u", columns=["key", "partition", "value"]).to_pylist(), key=str
        )
        for path in (tmp_path / "c", tmp_path / "fresh")
    ]
    assert places[0] == places[1]
    assert (5,) == found.unknown_schema_ids
