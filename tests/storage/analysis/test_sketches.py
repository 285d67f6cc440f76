"""Sketches: as in plain Python, near the truth, and the same in parts."""

import zlib
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from segmentlog.analysis.record_sketch import COLUMNS, DISTINCT_ERROR, EARLIEST_MS, RecordSketch
from segmentlog.format.kernels import sketches

NOW = 1_700_000_000_000


def rows(
    keys: list[bytes | None], values: list[bytes | None], times: list[int] | None = None
) -> pa.RecordBatch:
    """Records at the offsets from 0 on."""
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "offset": pa.array(range(len(keys)), pa.int64()),
        "timestamp": pa.array(times or [NOW] * len(keys), pa.int64()),
    }
    return pa.record_batch([columns[name] for name in COLUMNS], names=[*COLUMNS])


def sketched(*batches: pa.RecordBatch) -> RecordSketch:
    """One sketch of all."""
    sketch = RecordSketch(NOW)
    for batch in batches:
        sketch.add(batch, 3)
    return sketch


def drawn(seed: int, n: int = 3000) -> pa.RecordBatch:
    """Records of every kind: long and short, null, framed, JSON, with any time."""
    rng = np.random.default_rng(seed)
    keys: list[bytes | None] = [rng.bytes(int(size)) for size in rng.integers(0, 40, n)]
    heads = [b"", b"\0\0\0\0\1", b"\0\0\1\2\3", b"{", b"[", b"\0", b"\0\xff\0\0\0"]
    values: list[bytes | None] = [
        heads[int(kind)] + rng.bytes(int(size)) + (b"}" if kind == 3 else b"")
        for kind, size in zip(rng.integers(0, 7, n), rng.integers(0, 30, n), strict=True)
    ]
    for column in (keys, values):
        for row in rng.integers(0, n, n // 9).tolist():
            column[row] = None
    times = rng.choice([-1, 0, NOW, NOW + 1, NOW - 5000, NOW - 9], n)
    return rows(keys, values, times.tolist())


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernels as Python runs them, without compiled code."""
    import importlib.util

    from segmentlog import native

    monkeypatch.setattr(native, "_compiled", None)
    spec = importlib.util.find_spec(sketches.__name__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("seed", "n"), [(0, 1200), (1, 1200), (2, sketches.MOST_SEEN)])
def test_compiled_as_in_plain_python(
    seed: int, n: int, in_python: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters, registers and tables are the same, through purges, merges, and full filters."""
    batches = [drawn(seed, n), drawn(seed + 10, n)]

    def merged() -> RecordSketch:
        first, second = sketched(batches[0], batches[1]), sketched(batches[1])
        first.merge(second)
        return first

    compiled = merged()
    monkeypatch.setattr(sketches, "sketch_records", in_python.sketch_records)
    monkeypatch.setattr(sketches, "merge_sketches", in_python.merge_sketches)
    assert sketches.sketch_records is in_python.sketch_records
    assert compiled.to_json() == merged().to_json()
    assert compiled[sketches.HEAVY_ERROR] > 0


def test_counters_are_those_of_a_plain_count() -> None:
    """Nulls, sizes, formats and times of records are counted as a reader would count them."""
    batch = drawn(5)
    found = sketched(batch.slice(7))
    keys, values, _, times = (column.to_pylist()[7:] for column in batch.columns)
    present = [each for each in values if each is not None]
    framed = [each for each in present if len(each) > 4 and each[0] == 0 and each[1] < 0x80]
    timed = [each for each in times if each != -1]

    assert {
        sketches.N_RECORDS: len(keys),
        sketches.NULL_KEYS: keys.count(None),
        sketches.KEY_BYTES: sum(len(each) for each in keys if each is not None),
        sketches.LARGEST_KEY: max(len(each) for each in keys if each is not None),
        sketches.NULL_VALUES: values.count(None),
        sketches.TOMBSTONES: sum(
            k is not None and v is None for k, v in zip(keys, values, strict=True)
        ),
        sketches.VALUE_BYTES: sum(map(len, present)),
        sketches.LARGEST_VALUE: max(map(len, present)),
        sketches.NO_TIME: times.count(-1),
        sketches.BEFORE: times.count(0),
        sketches.AFTER: times.count(NOW + 1),
        sketches.N_BACK: sum(b < a for a, b in pairwise(timed)),
        sketches.MOST_BACK_MS: max(max(timed[: i + 1]) - each for i, each in enumerate(timed)),
        sketches.LEAST_MS: min(timed),
        sketches.LARGEST_MS: max(timed),
        sketches.FIRST_MS: timed[0],
        sketches.LAST_MS: timed[-1],
        sketches.EARLIEST_MS: EARLIEST_MS,
        sketches.NOW_MS: NOW,
    } == {
        counter: found[counter]
        for counter in range(sketches.N_COUNTERS)
        if counter
        not in (
            sketches.OTHER_IDS,
            sketches.N_IDS,
            sketches.N_HEAVY,
            sketches.HEAVY_ERROR,
            sketches.N_SEEN,
        )
    }
    ids = Counter(int.from_bytes(each[1:5], "big") for each in framed)
    assert {1: ids[1], 0x10203: ids[0x10203]} == dict(found.schema_ids()[:2])
    assert sum(ids.values()) == sum(n for _, n in found.schema_ids()) + found[sketches.OTHER_IDS]


@pytest.mark.parametrize("n_parts", [2, 5, 40])
def test_parts_give_what_the_whole_gives(n_parts: int) -> None:
    """Also if each part has travelled, and however they are put together."""
    batch = drawn(2)
    whole = sketched(batch)
    step = -(-batch.num_rows // n_parts)
    parts = [sketched(batch.slice(at, step)) for at in range(0, batch.num_rows, step)]
    left = RecordSketch(NOW)
    for each in parts:
        left.merge(RecordSketch.from_json(each.to_json()))
    while len(parts) > 1:  # the last two first
        last = parts.pop()
        parts[-1].merge(last)
    depends = {
        sketches.N_HEAVY,
        sketches.HEAVY_ERROR,
        sketches.N_SEEN,
        sketches.N_IDS,
        sketches.OTHER_IDS,
    }
    for found in (left, parts[0]):
        for counter in range(sketches.N_COUNTERS):
            assert counter in depends or whole[counter] == found[counter], counter
        assert whole.distinct == found.distinct
        assert (whole.key_sizes == found.key_sizes).all()
        assert (whole.value_sizes == found.value_sizes).all()


@pytest.mark.parametrize("n", [0, 1, 100, 1536])
def test_few_keys_are_counted_exactly(n: int) -> None:
    """The table of the heaviest keys has all of them."""
    keys: list[bytes | None] = [b"%d" % i for i in range(n)] * 2
    found = sketched(rows(keys, keys))

    assert (n, 0.0) == found.distinct
    assert [2] * min(n, 5) == [each.n_records for each in found.heaviest(5)]


@pytest.mark.parametrize("n", [2_000, 20_000, 100_000])
def test_many_keys_are_counted_within_the_stated_error(n: int) -> None:
    """The estimate is near the truth, whatever the keys look like."""
    for form in (b"%d", b"customer-%09d", b"%0200d"):
        keys: list[bytes | None] = [form % i for i in range(n)]
        count, error = sketched(rows(keys, keys)).distinct

        assert DISTINCT_ERROR == error
        assert abs(count - n) <= 1.5 * error * n  # three standard errors


@pytest.mark.parametrize("skew", [1.1, 1.5, 3.0])
def test_a_count_of_a_heavy_key_is_within_its_error(skew: float) -> None:
    """No key that has more records than the error is left out, and no count is too large."""
    drawn_keys = np.random.default_rng(1).zipf(skew, 60_000).tolist()
    keys: list[bytes | None] = [b"k%d" % each for each in drawn_keys]
    parts = [sketched(rows(keys[at : at + 20_000], keys[at : at + 20_000])) for at in (0, 20_000)]
    parts.append(sketched(rows(keys[40_000:], keys[40_000:])))
    whole = RecordSketch(NOW)
    for each in parts:
        whole.merge(each)
    truth = Counter(keys)
    error = whole.heaviest_error
    found = {each.length: each for each in whole.heaviest(5000)}
    counts = sorted((each.n_records for each in whole.heaviest(10)), reverse=True)

    assert error <= len(keys) / 700
    assert found
    for (_, n), count in zip(truth.most_common(10), counts, strict=False):
        assert n - error <= count <= n


@pytest.mark.parametrize("others", [sketches.MOST_SEEN // 3, sketches.MOST_SEEN + 800])
def test_a_key_that_the_filter_hides_is_within_the_error(others: int) -> None:
    """A key that comes back only after the filter was cleared is never counted."""
    keys: list[bytes | None] = []
    for turn in range(8):
        keys += [b"a key of its own length", *(b"%d-%d" % (turn, i) for i in range(others))]
    found = sketched(rows(keys, keys))
    count = sum(each.n_records for each in found.heaviest(5000) if each.length == 23)

    assert 8 - found.heaviest_error <= count <= 8
    assert found.heaviest_error <= len(keys) / 2500  # a purge of all of them took twice as much


@pytest.mark.parametrize("bad", ["", "AAAA", RecordSketch(0).to_json()["_sizes"]])
def test_a_damaged_sketch_of_another_process_is_refused(bad: str) -> None:
    """Too few bytes, and too many, are no sketch."""
    good = sketched(drawn(1)).to_json()

    with pytest.raises((ValueError, zlib.error)):
        RecordSketch.from_json(good | {"counters": bad})
