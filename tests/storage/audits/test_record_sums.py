"""Checksums of rows: the same for the same contents in any type, and another for any change."""

import importlib.util
import itertools
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from segmentlog import native
from segmentlog.audits import record_sums
from segmentlog.audits.record_sums import RowSums, compared_columns, sums_of
from segmentlog.audits.spill import SpillFile
from segmentlog.errors import ColumnError, OptionError
from segmentlog.format.kernels import value_hashes

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def sums(name: str, column: Any) -> list[int]:
    """The checksums of a column."""
    found: list[int] = sums_of([(name, column)], len(column)).tolist()
    return found


def test_the_same_contents_in_other_types() -> None:
    """Text and bytes, units and zones, parts of arrays; nulls are values of their own."""
    texts = ["", "a", None, "ab", "\0", "long enough for a view of its own", "é"]
    data = [None if each is None else each.encode() for each in texts]
    expected = sums("key", pa.array(data, pa.binary()))
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.large_binary()):
        given = data if "binary" in str(kind) else texts
        longer = pa.array([given[1], *given, None], kind)
        assert expected == sums("key", pa.array(given, kind)) == sums("key", longer[1:-1])
    assert sums("key", pa.array([b"ab"], pa.binary(2))) == expected[3:4]
    assert sums("key", pa.nulls(1)) == expected[2:3]
    assert len({*expected}) == len(texts)

    times = [1_700_000_000_123, None, -1, 0]
    expected = sums("timestamp", pa.array(times, pa.int64()))
    for unit, zone in itertools.product(("ms", "us", "ns"), (None, "UTC", "Asia/Kolkata")):
        column = pa.array(times, pa.timestamp("ms", zone)).cast(pa.timestamp(unit, zone))
        assert expected == sums("timestamp", column)
    between = pa.array([1_700_000_000_123_000_001], pa.timestamp("ns"))
    assert sums("timestamp", between) != expected[:1]

    pairs: Any = [("a", b"1"), ("b", None)]
    lists = [pairs, pairs[::-1], pairs[:1], [], None, [pairs[0], pairs[0]]]
    column = pa.array(
        [
            each and [dict(zip(("key", "value"), pair, strict=True)) for pair in each]
            for each in lists
        ],
        HEADERS,
    )
    found = sums("headers", column)
    assert found[3] == found[4] == sums("headers", pa.nulls(1))[0]
    assert len({*found}) == 5
    assert found[2:] == sums("headers", column[2:])


@pytest.mark.parametrize("seed", range(3))
def test_any_change_gives_another_checksum(seed: int) -> None:
    """Values that move between columns and rows; flipped bits at any place."""
    draw = random.Random(seed)
    rows = [(draw.randbytes(draw.randrange(40)), draw.randbytes(draw.randrange(3)))]
    key, value = rows[0]
    rows += [(value, key), (key + value, b""), (b"", key + value), (key, value + b"\0")]
    for at in range(len(key)):
        bit = 1 << draw.randrange(8)
        rows.append((key[:at] + bytes([key[at] ^ bit]) + key[at + 1 :], value))
    keys, values = (pa.array(each, pa.binary()) for each in zip(*rows, strict=True))
    found = sums_of([("key", keys), ("value", values)], len(rows)).tolist()
    assert len({*found}) == len({*rows})


def test_the_kernel_is_its_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of all lengths near those at which the hash takes other steps."""
    monkeypatch.setattr(native, "kernel", lambda func: func)
    spec = importlib.util.find_spec(value_hashes.__name__)
    assert spec is not None
    assert spec.loader is not None
    in_python = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(in_python)
    data = np.frombuffer(random.Random(1).randbytes(600), np.uint8)
    ends = np.append(0, np.cumsum([*range(26), *range(0, 25, 7)]))
    compiled, slow = (np.zeros(len(ends) - 1, np.int64) for _ in range(2))
    assert value_hashes.hash_values is not in_python.hash_values

    assert len(slow) == in_python.hash_values(data, ends, slow)
    value_hashes.hash_values(data, ends, compiled)
    assert slow.tolist() == compiled.tolist()


def test_rows_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in memory and in the file have the rows of each range."""
    monkeypatch.setattr(record_sums, "_MOST_COLLECTED", 50)
    monkeypatch.setattr(record_sums, "_MOST_IN_MEMORY", 120)
    draw = random.Random(2)
    rows = [(draw.randrange(3), draw.randrange(90), draw.randrange(9)) for _ in range(700)]
    held = RowSums(SpillFile())
    for at in range(0, len(rows), 70):
        held.add(*np.array(rows[at : at + 70], np.int64).T)
    held.finish()
    for code, begin in itertools.product(range(4), range(-5, 95, 9)):
        offsets, found = held.within(code, begin, begin + 20)
        expected = [each[1:] for each in rows if each[0] == code and 0 <= each[1] - begin < 20]
        assert sorted(expected) == sorted(zip(offsets.tolist(), found.tolist(), strict=True))


def test_columns_and_types_are_checked() -> None:
    """Words in the dialects of Spark and of Python; names that are none; types that do not fit."""
    assert compared_columns("timestamp_type, key=k.v") == (("timestampType", ""), ("key", "k.v"))
    for wrong in ("offset", "key,key", "key=", ""):
        with pytest.raises(OptionError, match="columns are timestamp, "):
            compared_columns(wrong)
    record_sums.check_type("key", "k", pa.null(), "")
    for column, kind in (
        ("key", pa.int64()),
        ("timestamp", pa.string()),
        ("headers", pa.string()),
    ):
        with pytest.raises(ColumnError, match="give "):
            record_sums.check_type(column, "k", kind, "a.parquet")
