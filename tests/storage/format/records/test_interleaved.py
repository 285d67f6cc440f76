"""Rows of several batches in an order that keeps that of each batch: as Arrow takes them."""

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from segmentlog.format.records import interleaved
from segmentlog.format.records.columns import Arenas
from segmentlog.format.records.interleaved import InterleavedRows

_PAIRS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))


def batch(draw: random.Random, n_rows: int, *, varies: bool) -> pa.RecordBatch:
    """Random rows of all kinds of columns: a slice of a larger batch."""

    def column(kind: pa.DataType, value: Callable[[], object], nulls: float) -> pa.Array:
        values = [None if draw.random() < nulls else value() for _ in range(n_rows + 5)]
        return pa.array(values, kind)

    def text() -> bytes:
        return draw.randbytes(draw.choice([0, 1, 8, 31, 300]))

    some = draw.choice([0, 0, 0.3, 1])
    made = {
        "key": column(pa.binary(), text, some),
        "value": column(pa.binary(), text, 0),
        "topic": column(pa.string(), lambda: draw.choice("ab") if varies else "a", 0),
        "partition": column(pa.int32(), lambda: draw.randrange(3) if varies else 7, 0),
        "offset": column(pa.int64(), lambda: draw.randrange(-(2**62), 2**62), 0),
        "timestamp": column(pa.timestamp("us", "UTC"), lambda: draw.randrange(2**44), some),
        "kind": column(pa.int32(), lambda: 1, 0 if varies else some),
        "flag": column(pa.bool_(), lambda: draw.random() < 0.5, some),
        "headers": column(_PAIRS, lambda: [{"key": b"h", "value": text()}], some),
        "large": column(pa.large_binary(), text, some),
        "word": column(pa.string(), lambda: text().hex(), some).dictionary_encode(),
        "short": column(pa.int16(), lambda: draw.randrange(99), some),
        "real": column(pa.float64(), draw.random, some),
    }
    return pa.RecordBatch.from_pydict(made).slice(draw.randrange(5), n_rows)


@pytest.mark.parametrize("seed", range(60))
def test_rows_are_those_that_arrow_takes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns may have nulls, one value or many; results may be cut, and be larger than arenas."""
    draw = random.Random(seed)
    monkeypatch.setattr(interleaved, "_MOST_BYTES", draw.choice([100, 5_000, 10**9]))
    varies = draw.random() < 0.5
    counts = [draw.randrange(1, 60) for _ in range(draw.randrange(1, 6))]
    batches = [batch(draw, n_rows, varies=varies) for n_rows in counts]
    whole = pa.Table.from_batches(batches)
    places = [draw.randrange(draw.choice([1, 10, 10_000])) for _ in range(sum(counts))]
    begin = 0
    for n_rows in counts:
        places[begin : begin + n_rows] = sorted(places[begin : begin + n_rows])
        begin += n_rows
    order = np.array(places).argsort(kind="stable")
    rows = InterleavedRows(batches, order, Arenas(draw.choice([10, 10_000]), 1))
    step = draw.choice([1, 7, 1000])
    found = [
        each
        for begin in range(0, len(order), step)
        for each in rows.rows(begin, min(begin + step, len(order)))
    ]

    for each in found:
        each.validate(full=True)
    assert batches == []
    assert whole.take(pa.array(order)).to_pylist() == pa.Table.from_batches(found).to_pylist()


def test_results_that_are_kept_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a result is lent again only after its last reader is gone."""
    arenas, kept = Arenas(1000, 1), []
    for number in range(40):
        values = [[b"%d-%d" % (number, i)] * 5 for i in range(2)]
        batches = [pa.RecordBatch.from_pydict({"value": each}) for each in values]
        order = np.arange(10).reshape(2, 5).T.reshape(-1)
        (found,) = InterleavedRows(batches, order, arenas).rows(0, 10)
        kept.append((number, found))
        if number % 3 == 0:
            kept.pop()

    for number, found in kept:
        assert [b"%d-0" % number, b"%d-1" % number] * 5 == found["value"].to_pylist()
