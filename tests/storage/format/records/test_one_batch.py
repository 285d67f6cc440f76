"""Batches that are read one by one: all their records, and no bytes of other batches."""

import random
from pathlib import Path

import pytest

from segmentlog.errors import ChecksumMismatchError, MalformedBatchError
from segmentlog.format.records.decoder import (
    RECORDS_SCHEMA,
    BatchReader,
    ControlRecord,
    parse_control,
    read_timestamps,
)
from segmentlog.model import Codec
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.testing.reference import Record, encode_batch, read_batch

CONTROL = 0x20


def records_of(batch: bytes) -> list[Record]:
    """The records of a batch as our reader decodes them, in the form of the plain reference."""
    found = []
    for piece in BatchReader("f.log").records(batch, 0):
        assert RECORDS_SCHEMA == piece.schema
        found += [
            Record(
                row["offset"],
                row["timestamp"],
                row["key"],
                row["value"],
                tuple((each["key"], each["value"]) for each in row["headers"] or ()),
            )
            for row in piece.to_pylist()
        ]
    return found


def test_records_equal_the_reference() -> None:
    """The records have nulls, headers, gaps, and times that do not fit microseconds."""
    draw = random.Random(1)
    records = [
        Record(
            40 + 3 * i,
            draw.choice([-1, 0, 2**62, 1_700_000_000_000 + i]),
            draw.choice([None, b"", b"key"]),
            draw.choice([None, b"", b"value" * 50]),
            draw.choice([(), ((b"h\xff", None), (b"", b"x"))]),
        )
        for i in range(500)
    ]
    batch = encode_batch(records)

    assert records == records_of(batch)
    assert read_batch(batch) == records_of(batch)


def test_large_batches_come_in_pieces() -> None:
    """A batch has more rows and bytes than a piece, and one record is larger than a piece."""
    many = [Record(i, i, b"k", b"v") for i in range(25_000)]
    large = [Record(0, 0, b"k" * 9_000_000, b"v" * 9_000_000), Record(1, 0, None, b"v" * 70)]

    assert many == records_of(encode_batch(many))
    assert large == records_of(encode_batch(large))
    assert 3 == len(list(BatchReader("f").records(encode_batch(many), 0)))


def test_control_records_are_records() -> None:
    """A scan leaves control records out, but a read of one batch returns them."""
    marker = Record(7, 5, b"\0\0\0\1", b"\0\0\0\0\0\x09")

    assert [marker] == records_of(encode_batch([marker], attributes=CONTROL))


def test_one_reader_reads_many_batches() -> None:
    """Rows of earlier batches stay unchanged, and later batches contain nothing of them."""
    reader = BatchReader("f.log")
    batches = [encode_batch([Record(i, i, b"k" * i, b"v" * (9 - i))]) for i in range(9)]
    tables = [piece for batch in batches for piece in reader.records(batch, 0)]

    assert [b"k" * i for i in range(9)] == [table["key"][0].as_py() for table in tables]
    assert [b"v" * (9 - i) for i in range(9)] == [table["value"][0].as_py() for table in tables]


def test_a_batch_that_compaction_emptied_has_no_records() -> None:
    """The batch consists of a header without records."""
    assert [] == records_of(encode_batch([], base_offset=5, last_offset=9))


def test_compressed_batches_are_inflated(example_data: str) -> None:
    """Every batch of a real log gives the records that a scan finds."""
    log = open_log_dir(example_data).log("orders", 0)
    (segment,) = log.segments
    data = Path(segment.path).read_bytes()
    keys = []
    reader = BatchReader(segment.path)
    for placed in segment.headers(0):
        for piece in reader.records(data[placed.position : placed.end], placed.position):
            keys += piece.column("key").to_pylist()

    assert log.scan(columns=["key"]).read_all().column(0).to_pylist() == keys


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("ms", [-1, 1_700_000_000_123])
@pytest.mark.parametrize("n_records", [1, 5_000])
def test_timestamps_are_those_of_the_records(codec: Codec, ms: int, n_records: int) -> None:
    """Timestamps are in milliseconds."""
    records = [Record(7 + 2 * i, ms + i % 3, b"k", b"v") for i in range(n_records)]
    batch = encode_batch(records, codec=codec)
    offsets, timestamps = read_timestamps(batch, "f.log", 0)

    assert [each.offset for each in records] == offsets.tolist()
    assert [each.timestamp_ms for each in records] == timestamps.tolist()


@pytest.mark.parametrize(
    ("records", "attributes"),
    [
        ([Record(0, 2**62, b"k", b"v"), Record(1, -(2**61), None, None)], 0),
        ([Record(0, 9, b"\0\0\0\1", bytes(6))], CONTROL),
        ([Record(i, i, None, None) for i in range(50_001)], 0),
        ([], 0),
    ],
    ids=["times beyond microseconds", "control", "more than a scan takes at once", "emptied"],
)
def test_timestamps_of_unusual_batches(records: list[Record], attributes: int) -> None:
    """Unusual batches count in a look-up by time as other batches do."""
    batch = encode_batch(records, attributes=attributes, base_offset=0, last_offset=60_000)
    offsets, timestamps = read_timestamps(batch, "f.log", 0)

    assert [each.offset for each in records] == offsets.tolist()
    assert [each.timestamp_ms for each in records] == timestamps.tolist()


def test_timestamps_of_a_damaged_batch_are_an_error() -> None:
    """The error names the place, as the error of a scan does."""
    batch = encode_batch([Record(3, 0, b"k", b"v")])
    with pytest.raises(ChecksumMismatchError, match=r"f\.log: batch at byte 99 \(base offset 3\)"):
        read_timestamps(batch[:-1] + b"x", "f.log", 99)
    with pytest.raises(MalformedBatchError, match=r"f\.log: batch at byte 99 \(base offset 3\)"):
        read_timestamps(batch[:-1], "f.log", 99)


def test_damage_is_an_error_with_its_place() -> None:
    """The error of a wrong checksum, a cut batch, or contradicting records contains its place."""
    batch = encode_batch([Record(3, 0, b"k", b"v")])
    changed = batch[:-1] + b"x"
    with pytest.raises(ChecksumMismatchError, match=r"f\.log: batch at byte 99 \(base offset 3\)"):
        list(BatchReader("f.log").records(changed, 99))
    with pytest.raises(MalformedBatchError):
        list(BatchReader("f.log").records(batch[:-1], 0))
    outside = encode_batch([Record(3, 0, b"k", b"v")], base_offset=9, last_offset=9)
    with pytest.raises(MalformedBatchError, match="outside the batch"):
        list(BatchReader("f.log").records(outside, 0))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (b"\0\0\0\0", b"\0\0\0\0\0\x05", ControlRecord("ABORT", 5)),
        (b"\0\0\0\1", b"\0\0\xff\xff\xff\xff", ControlRecord("COMMIT", -1)),
        (b"\0\1\0\1", b"\0\1\0\0\0\2more", ControlRecord("COMMIT", 2)),
        (b"\0\0\0\1", b"\0\0", ControlRecord("COMMIT")),
        (b"\0\0\0\1", None, ControlRecord("COMMIT")),
        (b"\0\0\0\2", b"\0\0\0\0\0\1", ControlRecord("LEADER_CHANGE")),
        (b"\0\0\0\6", b"", ControlRecord("KRAFT_VOTERS")),
        (b"\0\0\0\x63", b"", ControlRecord("UNKNOWN(99)")),
        (b"\xff\xff\0\1", b"", ControlRecord("UNKNOWN(1)")),
        (b"\0\0\0", b"", ControlRecord("UNKNOWN")),
        (None, None, ControlRecord("UNKNOWN")),
    ],
)
def test_control_records_say_what_they_are(
    key: bytes | None, value: bytes | None, expected: ControlRecord
) -> None:
    """Types and epochs are read as Kafka writes them.

    Later versions are read as the first version.
    """
    assert expected == parse_control(key, value)
