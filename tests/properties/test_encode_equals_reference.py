"""The encoder writes the bytes of the plain reference, and decoding returns the input."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentlog.format.records.columns import record_schema
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder
from segmentlog.format.records.encoder import EncodedBatches, RecordEncoder, record_source
from segmentlog.model import Codec, TopicPartition
from segmentlog.testing.reference import Record, encode_batch

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
WIDE_HEADERS = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
DATA = (
    st.none()
    | st.binary(max_size=70)
    | st.integers(0, 400).map(bytes)
    | st.sampled_from([63, 64, 128, 255, 256, 257, 8190, 9000]).map(bytes)
)
PAIRS = st.lists(
    st.tuples(st.text(max_size=6).map(str.encode), st.none() | st.binary(max_size=70)), max_size=4
)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[list[Record], list[int]]:
    """Rows of an Arrow batch, and some of them in any order with rising offsets."""
    base_ms = draw(st.integers(-1, 2**41))
    with_headers = draw(st.booleans())
    n_rows = draw(st.integers(0, 25))
    records = [
        Record(
            0,
            max(-1, base_ms + draw(st.integers(-70, 200) | st.integers(-(2**40), 2**40))),
            draw(DATA),
            draw(DATA),
            tuple(draw(PAIRS)) if with_headers else (),
        )
        for _ in range(n_rows)
    ]
    rows = draw(st.lists(st.integers(0, n_rows - 1), max_size=40)) if n_rows else []
    return records, rows


def arrow(records: list[Record], *, is_wide: bool, cut: int) -> pa.RecordBatch:
    """The records as a batch that is a slice of a longer one; headers only if there are any."""
    padded = [Record(0, 0, b"before", None, ((b"b", b"b"),))] * cut + records
    binary = pa.large_binary() if is_wide else pa.binary()
    columns = {
        "key": pa.array([record.key for record in padded], binary),
        "value": pa.array([record.value for record in padded], binary),
    }
    if any(record.headers for record in records):
        headers = [
            [{"key": key.decode(), "value": value} for key, value in record.headers] or None
            for record in padded
        ]
        columns["headers"] = pa.array(headers, WIDE_HEADERS if is_wide else HEADERS)
    return pa.RecordBatch.from_pydict(columns).slice(cut)


def batches_of(found: EncodedBatches) -> list[bytes]:
    """The bytes of each batch."""
    ends = found.positions + found.sizes
    return [found.buffer[a:b].tobytes() for a, b in zip(found.positions, ends, strict=True)]


def decoded(found: EncodedBatches) -> list[Record]:
    """The batches decoded by a scan."""
    scanner = BatchScanner("x.log", 0)
    schema = record_schema(include_headers=True)
    decoder = RecordDecoder(TopicPartition("t", 0), schema)
    records, at = [], 0
    while at < len(found.buffer):
        batches = scanner.scan(found.buffer, at, len(found.buffer), 0)
        at = batches.end
        for batch in decoder.decode(batches):
            times = batch.column("timestamp").cast(pa.int64()).to_pylist()
            records += [
                Record(
                    row["offset"],
                    ms // 1000,
                    row["key"],
                    row["value"],
                    tuple((h["key"].encode(), h["value"]) for h in row["headers"] or ()),
                )
                for row, ms in zip(batch.drop_columns("timestamp").to_pylist(), times, strict=True)
            ]
    return records


@given(
    inputs(), st.booleans(), st.integers(0, 3), st.sampled_from([1, 200, 1000, 20_000]), st.data()
)
@settings(max_examples=150, deadline=None)
def test_bytes_are_those_of_the_reference(
    rows_in: tuple[list[Record], list[int]],
    is_wide: bool,
    cut: int,
    batch_size: int,
    data: st.DataObject,
) -> None:
    """The rows are in any order, from slices, with either width of Arrow's bounds."""
    records, rows = rows_in
    gaps = st.integers(1, 3) | st.integers(1, 2**33)
    steps = data.draw(st.lists(gaps, min_size=len(rows), max_size=len(rows)))
    offsets = np.cumsum(np.array(steps, np.int64)) if data.draw(st.booleans()) else None
    times = np.array([record.timestamp_ms for record in records], np.int64)
    source = record_source(arrow(records, is_wide=is_wide, cut=cut), times)
    found = RecordEncoder(batch_size=batch_size).encode(
        TopicPartition("t", 0), source, np.array(rows, np.int64), offsets=offsets
    )
    numbers = range(len(rows)) if offsets is None else offsets.tolist()
    written = [records[row]._replace(offset=n) for row, n in zip(rows, numbers, strict=True)]
    firsts = np.cumsum([0, *found.records_counts]).tolist()

    expected = [encode_batch(written[a:b]) for a, b in pairwise(firsts)]
    assert expected == batches_of(found)
    assert firsts[-1] == len(written)


@given(inputs(), st.sampled_from(list(Codec)), st.sampled_from([100, 20_000]))
@settings(max_examples=300, deadline=None)
def test_decoding_gives_back_what_was_encoded(
    rows_in: tuple[list[Record], list[int]], codec: Codec, batch_size: int
) -> None:
    """Every codec is tested, also with batches that were divided to fit."""
    records, rows = rows_in
    times = np.array([record.timestamp_ms for record in records], np.int64)
    source = record_source(arrow(records, is_wide=False, cut=0), times)
    encoder = RecordEncoder(codec, batch_size=batch_size, max_message_bytes=19_000)
    found = encoder.encode(TopicPartition("t", 0), source, np.array(rows, np.int64))
    expected = [records[row]._replace(offset=number) for number, row in enumerate(rows)]

    assert expected == decoded(found)
    assert (found.sizes <= 19_000).all()
