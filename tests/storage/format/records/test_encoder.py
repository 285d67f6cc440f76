"""Batches as Kafka's producer cuts them, in every codec, and the rows that are refused."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.memory_records import MemoryRecords

from segmentlog.errors import InvalidRecordError, OptionError, RecordTooLargeError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.encode import assign_offsets
from segmentlog.format.kernels.scan import scan_batches
from segmentlog.format.kernels.source import most_row_bytes
from segmentlog.format.records.encoder import (
    EncodedBatches,
    RecordEncoder,
    array_view,
    record_source,
)
from segmentlog.model import Codec, TopicPartition
from segmentlog.testing.reference import Record, encode_batch, read_batch

WHERE = TopicPartition("t", 3)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LARGEST = 2**63 - 1


def arrow(records: list[Record]) -> pa.RecordBatch:
    """Columns of key and value, and of headers if there are any: headers have separate loops."""
    columns = {
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
    }
    if any(record.headers for record in records):
        headers = [
            [{"key": key.decode(), "value": value} for key, value in record.headers]
            for record in records
        ]
        columns["headers"] = pa.array(headers, HEADERS)
    return pa.RecordBatch.from_pydict(columns)


def encode(
    records: list[Record], encoder: RecordEncoder | None = None, **how: Any
) -> EncodedBatches:
    """All records, in their order."""
    times = np.array([record.timestamp_ms for record in records], np.int64)
    source = record_source(arrow(records), times)
    return (encoder or RecordEncoder()).encode(WHERE, source, np.arange(len(records)), **how)


def numbered(n: int, size: int = 40) -> list[Record]:
    """Records of about `size` bytes, half of which a codec cannot compress."""
    rng = np.random.default_rng(n)
    return [
        Record(i, 1_700_000_000_000 + i, b"%d" % i, rng.bytes(size // 2) + bytes(size // 2))
        for i in range(n)
    ]


def batches_of(found: EncodedBatches) -> list[bytes]:
    """The bytes of each batch."""
    ends = found.positions + found.sizes
    return [found.buffer[a:b].tobytes() for a, b in zip(found.positions, ends, strict=True)]


#: Bytes that Kafka's own classes have made; offsets and leader epochs as they were given.
GOLDEN = [
    (
        (
            "00000000000000640000004c0000000702d9e1e45900000000000100000000000003e800000000000003ed"
            "ffffffffffffffffffffffffffff0000000214000000046b31047631001e000a02010476320402680201026e01"
        ),
        [
            Record(0, 1000, b"k1", b"v1"),
            Record(1, 1005, None, b"v2", ((b"h", b"\1"), (b"n", None))),
        ],
        100,
        7,
        None,
    ),
    (
        (
            "0000000000000032000000430000000102d03a222a00080000000100000000000003e80000000000001e61"
            "ffffffffffffffffffffffffffff00000002100000000261026200100001020261026200"
        ),
        [Record(0, 1000, b"a", b"b"), Record(1, 999, b"a", b"b")],
        50,
        1,
        7777,
    ),
]


@pytest.mark.parametrize(
    ("expected", "records", "base", "epoch", "append_time_ms"), GOLDEN, ids=["create", "append"]
)
def test_bytes_are_those_of_kafkas_own_classes(
    expected: str, records: list[Record], base: int, epoch: int, append_time_ms: int | None
) -> None:
    """The batches have headers, nulls and falling times.

    Offset and epoch are assigned afterwards.
    """
    found = encode(records, append_time_ms=append_time_ms)

    assert 1 == assign_offsets(found.buffer, found.positions.copy(), base, epoch)
    assert expected == found.buffer.tobytes().hex()


def test_a_batch_ends_where_the_producers_does() -> None:
    """A batch ends exactly at its size.

    A larger record is alone in its batch, or with records within its upper bound.
    """
    records = numbered(20)
    exact = len(encode_batch(records[:7]))
    for size, expected in ((1, 1), (exact - 1, 6), (exact, 7)):
        assert encode(records, RecordEncoder(batch_size=size)).records_counts[0] == expected
    small = [Record(i, 5, None, b"x") for i in range(1, 4)]  # 8 bytes each, and 16 are left
    squeezed = encode([Record(0, 5, None, bytes(900)), *small], RecordEncoder(batch_size=100))

    assert squeezed.records_counts.tolist() == [3, 1]


def test_facts_are_what_a_scan_finds() -> None:
    """Every column equals what a scan finds, also the offsets of the largest timestamps."""
    plain = [Record(i, 100 + (i * 7) % 10, b"k", bytes(i % 90)) for i in range(500)]
    for codec, pairs in itertools.product(Codec, [(), ((b"h", b"v"),)]):
        records = [record._replace(headers=pairs) for record in plain]
        found = encode(records, RecordEncoder(codec, batch_size=1000))
        headers = np.empty((len(found.table) + 1, layout.N_HEADER_COLUMNS), np.int64)
        headers[:, layout.OFFSET_SHIFT] = 0
        _, end, n_batches = scan_batches(found.buffer, 0, len(found.buffer), 0, headers)

        assert end == len(found.buffer)
        assert n_batches == len(found.table) > 10
        assert headers[:n_batches].tolist() == found.table[:, : layout.N_HEADER_COLUMNS].tolist()
        for base, count, delta, most, where in zip(
            found.base_offsets,
            found.records_counts,
            found.last_offset_deltas,
            found.max_timestamps,
            found.max_timestamp_offsets,
            strict=True,
        ):
            inside = records[base : base + count]
            assert count == delta + 1
            assert (most, -where) == max((r.timestamp_ms, -r.offset) for r in inside)


def test_without_a_time_of_its_own_the_last_record_counts() -> None:
    """The last record counts for append times and missing times, as in Kafka's builder."""
    records = [Record(i, -1, None, b"v") for i in range(5)]
    for append_time_ms, expected in ((None, -1), (77, 77)):
        found = encode(records, append_time_ms=append_time_ms)

        assert found.max_timestamps.tolist() == [expected]
        assert found.max_timestamp_offsets.tolist() == [4]


def test_offsets_may_be_given() -> None:
    """A restore gives offsets: gaps stay, and a gap that is too large begins a new batch."""
    offsets = np.array([5, 9, 5 + 2**31, 2**40, 2**40 + 2**31 - 1, LARGEST - 1], np.int64)
    records = [Record(int(offset), 0, None, b"v") for offset in offsets]
    found = encode(records, offsets=offsets)

    assert [5, 5 + 2**31, 2**40, LARGEST - 1] == found.base_offsets.tolist()
    assert [4, 0, 2**31 - 1, 0] == found.last_offset_deltas.tolist()
    assert records == [record for batch in batches_of(found) for record in read_batch(batch)]


@pytest.mark.parametrize(
    "offsets", [[-1, 0, 1], [3, 3, 4], [3, 2, 4], [1, 2, LARGEST], [-(2**63), 1, 2]]
)
def test_offsets_that_do_not_rise_are_refused(offsets: list[int]) -> None:
    """Negative offsets are refused.

    So is the largest offset, which leaves none for the log end.
    """
    with pytest.raises(InvalidRecordError, match="offset"):
        encode(numbered(3), offsets=np.array(offsets))
    with pytest.raises(ValueError, match="2 offsets for 3 rows"):
        encode(numbered(3), offsets=np.array([1, 2]))


def test_timestamps_too_far_apart_do_not_share_a_batch() -> None:
    """The distance from -1 to the largest timestamp does not fit 64 bits.

    The opposite distance does.
    """
    records = [Record(i, ms, None, b"v") for i, ms in enumerate([-1, LARGEST, -1, 0, LARGEST])]
    found = encode(records)

    assert [1, 4] == found.records_counts.tolist()
    assert records == [record for batch in batches_of(found) for record in read_batch(batch)]


@pytest.mark.parametrize("ms", [-2, -(2**63)])
def test_negative_timestamps_are_refused(ms: int) -> None:
    """The error names the row of the Arrow batch, not its place among the written rows."""
    records = [*numbered(30), Record(30, ms, None, None)]
    source = record_source(arrow(records), np.array([r.timestamp_ms for r in records]))
    with pytest.raises(InvalidRecordError, match="timestamp") as caught:
        RecordEncoder().encode(WHERE, source, np.array([0, 7, 30]))

    assert (caught.value.topic, caught.value.partition, caught.value.row) == ("t", 3, 30)


@pytest.mark.parametrize("row", [-1, 3, 2**62])
def test_rows_that_are_not_there_are_refused(row: int) -> None:
    """Row numbers outside the columns are refused before anything is read there."""
    source = record_source(arrow(numbered(3)), np.zeros(3, np.int64))
    with pytest.raises(InvalidRecordError, match="does not exist"):
        RecordEncoder().encode(WHERE, source, np.array([0, row]))


def test_headers_without_a_key_are_refused() -> None:
    """A null pair or a null key is refused, unless its row is left out."""
    for bad in ({"key": None, "value": b"v"}, None):
        headers = pa.array([None, [{"key": "a", "value": None}], [bad]], HEADERS)
        batch = pa.RecordBatch.from_arrays([headers], ["headers"])
        source = record_source(batch, np.zeros(3, np.int64))
        with pytest.raises(InvalidRecordError, match="header") as caught:
            RecordEncoder().encode(WHERE, source, np.arange(3))

        assert caught.value.row == 2
        assert len(RecordEncoder().encode(WHERE, source, np.arange(2)).table) == 1


@pytest.mark.parametrize("codec", list(Codec))
def test_no_batch_is_larger_than_the_limit(codec: Codec) -> None:
    """Compressed batches are divided until they fit, and no record is lost."""
    records = numbered(300, size=600)
    found = encode(records, RecordEncoder(codec, batch_size=100_000, max_message_bytes=2000))
    read = aiokafka_reads(found)

    assert max(found.sizes) <= 2000
    assert [(r.offset, r.timestamp_ms, r.key, r.value) for r in records] == read


@pytest.mark.parametrize("codec", list(Codec))
def test_a_record_above_the_limit_is_refused(codec: Codec) -> None:
    """The error contains the size and the limit.

    With a limit of one byte more, the record is accepted.
    """
    records = [*numbered(30, size=10), Record(30, 0, None, np.random.default_rng(1).bytes(3000))]
    size = int(encode(records[30:], RecordEncoder(codec)).sizes[0])
    with pytest.raises(RecordTooLargeError) as caught:
        encode(records, RecordEncoder(codec, max_message_bytes=size - 10))

    assert (caught.value.partition, caught.value.row) == (3, 30)
    assert caught.value.size >= caught.value.limit == size - 10
    assert len(encode(records[30:], RecordEncoder(codec, max_message_bytes=size)).table) == 1


def aiokafka_reads(found: EncodedBatches) -> list[tuple]:
    """Offset, time, key and value of every record, read by aiokafka with verified checksums."""
    reader = MemoryRecords(found.buffer.tobytes())
    read = []
    while reader.has_next():
        batch = reader.next_batch()
        assert batch.validate_crc()
        read += [(r.offset, r.timestamp, r.key, r.value) for r in batch]
    return read


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (Codec.NONE, None),
        (Codec.GZIP, None),
        (Codec.GZIP, -1),
        (Codec.GZIP, 1),
        (Codec.GZIP, 9),
        (Codec.SNAPPY, None),
        (Codec.LZ4, None),
        (Codec.LZ4, 1),
        (Codec.LZ4, 9),
        (Codec.LZ4, 17),
        (Codec.ZSTD, None),
        (Codec.ZSTD, -131072),
        (Codec.ZSTD, 0),
        (Codec.ZSTD, 22),
    ],
)
def test_another_client_reads_every_codec(codec: Codec, level: int | None) -> None:
    """The client reads several blocks of snappy and of LZ4, and several batches."""
    records = numbered(4000, size=120)
    found = encode(records, RecordEncoder(codec, level, batch_size=200_000))

    assert [(r.offset, r.timestamp_ms, r.key, r.value) for r in records] == aiokafka_reads(found)
    assert len(found.table) > 1
    assert (found.table[:, layout.ATTRIBUTES] == codec).all()


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        (Codec.GZIP, "1f8b08"),
        (Codec.SNAPPY, "82534e41505059000000000100000001"),
        (Codec.LZ4, "04224d18604082"),  # independent blocks of 64 KiB, no size, no checksums
        (Codec.ZSTD, "28b52ffd00"),  # no size, no checksum
    ],
)
def test_frames_are_those_that_java_reads(codec: Codec, expected: str) -> None:
    """The first bytes after the batch header are those that Java's readers expect."""
    found = encode(numbered(50), RecordEncoder(codec))

    assert found.buffer[layout.HEADER_BYTES :].tobytes().hex().startswith(expected)


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (Codec.GZIP, 0),
        (Codec.GZIP, 10),
        (Codec.GZIP, -2),
        (Codec.LZ4, 0),
        (Codec.LZ4, 18),
        (Codec.ZSTD, 23),
        (Codec.ZSTD, -131073),
        (Codec.SNAPPY, 1),
    ],
)
def test_levels_are_those_of_kafka(codec: Codec, level: int) -> None:
    """The error has the name of Kafka's setting."""
    with pytest.raises(OptionError, match=rf"compression\.{codec.name.lower()}\.level"):
        RecordEncoder(codec, level)


def test_nothing_makes_no_batch() -> None:
    """No rows of a table, a table without rows, and a table without columns make no batch."""
    for codec in Codec:
        for records in (numbered(3), []):
            source = record_source(arrow(records), np.zeros(len(records), np.int64))
            found = RecordEncoder(codec).encode(WHERE, source, np.arange(0))

            assert (len(found.buffer), len(found.table)) == (0, 0)
    source = record_source(pa.RecordBatch.from_pydict({"x": [1, 2]}), np.zeros(2, np.int64))
    (batch,) = batches_of(RecordEncoder().encode(WHERE, source, np.arange(2)))

    assert [Record(i, 0, None, None) for i in range(2)] == read_batch(batch)


def test_offsets_are_assigned_to_all_batches_at_once() -> None:
    """Only bytes outside the checksum change. A position outside the buffer changes nothing."""
    found = encode(numbered(100), RecordEncoder(batch_size=500))
    before, positions = found.buffer.copy(), np.ascontiguousarray(found.positions)

    assert len(found.table) == assign_offsets(found.buffer, positions, 10**12, 9)
    for batch, base in zip(batches_of(found), found.base_offsets, strict=True):
        assert read_batch(batch)[0].offset == 10**12 + base
        assert batch[12:16] == (9).to_bytes(4, "big")
    changed = np.flatnonzero(before != found.buffer)
    assert {int(at - found.positions[found.positions <= at].max()) for at in changed} <= {
        *range(8),
        *range(12, 16),
    }
    for outside in (-1, len(before) - 60, 2**62):
        assert assign_offsets(found.buffer, np.array([0, outside]), 1, 1) == 1


def test_rows_far_apart_are_encoded_as_neighbours_are() -> None:
    """Rows of one partition lie among rows of many others, and their memory is prefetched."""
    records, encoder = numbered(3000, 100), RecordEncoder(batch_size=2000)
    times = np.array([record.timestamp_ms for record in records], np.int64)
    source = record_source(arrow(records), times)
    for step in (1, 2, 5, 6, 7, 50, -1, -9):
        rows = np.arange(len(records))[::step]
        found = encoder.encode(WHERE, source, rows)

        alike = encode([records[row] for row in rows], encoder)
        assert np.array_equal(found.buffer, alike.buffer), step
        assert np.array_equal(found.table, alike.table), step


@pytest.mark.parametrize(
    "rows",
    [
        [*range(9)],
        [*range(3, 7)],
        [8],
        [0, 1, 3],
        [1, 0],
        [2, 2, 3],
        [7, 8, 9],
        [-1, 0, 1],
        [9],
        [],
    ],
)
def test_sizes_of_rows_are_added_up(rows: list[int]) -> None:
    """Rows may be adjacent, in any order, or repeated; rows that do not exist are left out."""
    records = [
        Record(i, 0, None, bytes(each)) for i, each in enumerate((5, 1, 9, 2, 8, 90, 3, 4, 7))
    ]
    source = record_source(arrow(records), np.zeros(9, np.int64))
    each = [int(source.row_bytes[row]) for row in rows if 0 <= row < 9]

    assert most_row_bytes(source, _read_only(rows)) == (sum(each), max(each, default=0))


def _read_only(rows: list[int]) -> np.ndarray:
    return array_view(np.array(rows, np.int64))
