"""Commits that are read at once equal commits that are read one by one, whatever the bytes."""

import random
from typing import Any

import pyarrow as pa
from coordinator_logs import commit_key, commit_value
from hypothesis import given
from hypothesis import strategies as st

from segmentlog.format.messages.records import read_coordinator_record
from segmentlog.kafka_tables.columns import printed_id, time_of
from segmentlog.kafka_tables.offset_commits import commit_columns

TAILS = [b"\0", bytes([1, 0, 16]) + bytes(range(16)), bytes([1, 5, 1, 9]), b"\1\0\17", b"\x80\0"]
VALUES = [commit_value(7, version, "m" * 70) for version in range(5)]
VALUES += [commit_value(8, 4, "ü", tail) for tail in TAILS]
KEYS = [commit_key("group", "topic", 3), commit_key("", ""), commit_key("ü", "t" * 300, 2**31 - 1)]


def alone(key: bytes, value: bytes | None) -> dict[str, Any] | None:
    """The columns of a commit, read by itself; None if it cannot be read."""
    try:
        record = read_coordinator_record("__consumer_offsets", key, value)
    except ValueError:
        return None
    assert record is not None
    fields: dict[str, Any] = {
        "offset": None,
        "leader_epoch": None,
        "metadata": None,
        "commit_timestamp": None,
        "expire_timestamp": None,
        "topic_id": None,
    } | dict(record.key)
    if record.value is not None:
        fields |= record.value
        fields.pop("unknown_tagged_fields", None)
        fields["topic_id"] = printed_id(fields["topic_id"])
        if fields["leader_epoch"] is not None and fields["leader_epoch"] < 0:
            fields["leader_epoch"] = None
        for name in ("commit_timestamp", "expire_timestamp"):
            fields[name] = time_of(fields[name])
    return fields


def at_once(keys: list[bytes], values: list[bytes | None]) -> list[dict[str, Any] | None]:
    """The columns of commits, read together; they begin inside a larger array."""
    refused: set[int] = set()
    columns = commit_columns(
        pa.array([b"before", *keys], pa.binary())[1:],
        pa.array([b"before", *values], pa.binary())[1:],
        lambda row, reason: refused.add(row),
    )
    is_read = columns.pop("is_read").to_pylist()
    assert refused == {row for row, each in enumerate(is_read) if not each}
    for name in ("commit_timestamp", "expire_timestamp"):
        columns[name] = columns[name].cast(pa.int64())
    rows = pa.table(columns).to_pylist()
    return [row if read else None for row, read in zip(rows, is_read, strict=True)]


def mutated(source: random.Random, data: bytes) -> bytes:
    """Bytes with a change, a cut or an addition, or without any."""
    changed = bytearray(data)
    match source.randrange(4):
        case 0:
            changed[source.randrange(2, len(data))] = source.choice([0, 1, 4, 0x7F, 0x80, 0xFF])
        case 1:
            del changed[source.randrange(2, len(data)) :]
        case 2:
            changed += bytes(source.randrange(5))
    return bytes(changed)


def test_mutated_commits_have_the_fields_of_the_reader_of_one() -> None:
    """Both readers refuse the same records, and find the same fields in all others."""
    source = random.Random(1)
    keys, values = [], []
    for _ in range(4000):
        keys.append(mutated(source, source.choice(KEYS)))
        value = source.choice([*VALUES, None])
        values.append(value if value is None else mutated(source, value))
    expected = [alone(key, value) for key, value in zip(keys, values, strict=True)]

    assert 500 < sum(each is None for each in expected) < 3000
    assert expected == at_once(keys, values)


@given(st.lists(st.tuples(st.binary(max_size=30), st.none() | st.binary(max_size=40)), min_size=1))
def test_noise_is_refused_by_both(pairs: list[tuple[bytes, bytes | None]]) -> None:
    """Bytes after the type are noise, and values are noise with any version."""
    keys = [b"\0\1" + key for key, _ in pairs]
    values = [value for _, value in pairs]

    assert [alone(*each) for each in zip(keys, values, strict=True)] == at_once(keys, values)


def test_times_that_arrow_cannot_hold_are_null() -> None:
    """A time of a damaged or strange clock gives null."""
    value = commit_value(7)[:-8] + b"\x7f" + b"\xff" * 7
    (row,) = at_once([KEYS[0]], [value])

    assert row is not None
    assert (7, None) == (row["offset"], row["commit_timestamp"])
