"""Compiled kernels, the kernels as plain Python, and the plain reference give equal results."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from both_ways import decode_log, with_slack
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentlog.errors import CorruptLogError, TimestampOverflowError, UnsupportedFormatError
from segmentlog.format.checksum import crc32c
from segmentlog.format.kernels.crc32c import checksum
from segmentlog.format.records.columns import decode_as_java, record_schema
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder
from segmentlog.format.records.one_pass import OnePassDecoder
from segmentlog.model import OffsetRange, TopicPartition
from segmentlog.testing.reference import (
    BadBatchError,
    Record,
    UnknownFormatError,
    encode_batch,
    read_batch,
)

WHERE = TopicPartition("t", 0)
DATA = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=400)
HEADERS = st.lists(
    st.tuples(st.text(max_size=6).map(str.encode), st.none() | st.binary(max_size=9))
)


@st.composite
def batches(draw: st.DrawFn) -> list[Record]:
    """Records of one batch: gaps in the offsets, timestamps in any order, up to months apart."""
    base = draw(st.integers(0, 2**40))
    base_ms = draw(st.integers(-1, 2**41))
    deltas = sorted(draw(st.sets(st.integers(0, 70_000), min_size=1, max_size=30)))
    return [
        Record(
            base + delta,
            base_ms + draw(st.integers(-(2**34), 2**34) | st.integers(-70, 200)),
            draw(DATA),
            draw(DATA),
            tuple(draw(HEADERS)) if draw(st.booleans()) else (),
        )
        for delta in deltas
    ]


def decoded(
    data: bytes,
    start: int = 0,
    end: int = 2**62,
    *,
    in_one_pass: bool = False,
    with_headers: bool = True,
) -> list[Record]:
    """Whole batches decoded by the kernels, as reference records."""
    schema, wanted = record_schema(include_headers=with_headers), OffsetRange(start, end)
    one_pass = OnePassDecoder(WHERE, schema, wanted) if in_one_pass else None
    decoder = RecordDecoder(WHERE, schema, wanted)
    found = []
    for batch in decode_log(
        with_slack(data), len(data), BatchScanner("x.log", 0), decoder, one_pass
    ):
        batch.validate(full=True)
        found += [_to_record(row) for row in _milliseconds(batch).to_pylist()]
    return found


def without_headers(records: list[Record]) -> list[Record]:
    return [record._replace(headers=()) for record in records]


def _milliseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("timestamp")
    return batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64()))


def _to_record(row: dict) -> Record:
    headers = tuple((h["key"].encode(), h["value"]) for h in row.get("headers") or ())
    return Record(row["offset"], row["timestamp"] // 1000, row["key"], row["value"], headers)


@given(batches())
@settings(max_examples=300, deadline=None)
def test_decoding_gives_back_what_was_encoded(records: list[Record]) -> None:
    """Every field of every record is decoded by the kernels and by the reference."""
    data = encode_batch(records)

    assert records == read_batch(data)
    assert records == decoded(data) == decoded(data, in_one_pass=True)
    assert without_headers(records) == decoded(data, in_one_pass=True, with_headers=False)


@given(
    st.lists(batches(), min_size=1, max_size=4), st.integers(0, 100_000), st.integers(1, 200_000)
)
@settings(max_examples=100, deadline=None)
def test_a_range_of_offsets_keeps_the_records_inside_it(
    parts: list[list[Record]], skip: int, length: int
) -> None:
    """`start_offset` and `end_offset` cut between records, also in the middle of a batch."""
    records: list[Record] = []
    data = b""
    for part in parts:
        shift = (records[-1].offset + 1 if records else 0) - part[0].offset
        shifted = [record._replace(offset=record.offset + shift) for record in part]
        data += encode_batch(shifted)
        records += shifted
    start, end = skip, skip + length

    expected = [r for r in records if start <= r.offset < end]
    assert expected == decoded(data, start, end) == decoded(data, start, end, in_one_pass=True)
    found = decoded(data, start, end, in_one_pass=True, with_headers=False)
    assert without_headers(expected) == found


@given(st.binary(max_size=9000), st.integers(0, 64))
@settings(max_examples=200, deadline=None)
def test_checksums_agree(data: bytes, start: int) -> None:
    """The kernel and a bit-by-bit CRC-32C are one function."""
    start = min(start, len(data))
    buf = np.frombuffer(data, np.uint8)

    assert crc32c(data[start:]) == checksum(buf, start, len(buf))


def test_crc_of_the_standard_vector() -> None:
    """The value is RFC 3720's check value."""
    digits = b"123456789"

    assert crc32c(digits) == 0xE3069283


@given(st.binary(max_size=8).map(lambda text: b"\xed\xa0" + text) | st.binary(max_size=8))
def test_only_encoded_surrogates_decode_otherwise_than_in_python(text: bytes) -> None:
    """Java takes an encoded surrogate for one bad character, and Python for several."""
    expected = text.decode("utf-8", "replace")

    if b"\xed" in text:
        assert len(decode_as_java(text)) <= len(expected)
    else:
        assert expected == decode_as_java(text)


@pytest.mark.parametrize(
    ("in_one_pass", "with_headers"), [(False, True), (True, False), (True, True)]
)
@given(records=batches(), data=st.data())
@settings(max_examples=300, deadline=None)
def test_damage_gives_an_error_or_what_the_reference_reads(
    records: list[Record], data: st.DataObject, *, in_one_pass: bool, with_headers: bool
) -> None:
    """Bytes after the CRC are changed, and the CRC is corrected.

    Both decoders refuse, or both read equal records.
    """
    damaged = bytearray(encode_batch(records))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(21, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    struct.pack_into(">I", damaged, 17, crc32c(bytes(damaged[21:])))
    try:
        expected = read_batch(bytes(damaged))
    except (BadBatchError, UnknownFormatError):
        with pytest.raises((CorruptLogError, TimestampOverflowError, UnsupportedFormatError)):
            decoded(bytes(damaged), in_one_pass=in_one_pass, with_headers=with_headers)
        return

    try:
        found = decoded(bytes(damaged), in_one_pass=in_one_pass, with_headers=with_headers)
    except TimestampOverflowError:  # the reference has no microseconds
        return
    expected = _as_java_shows(expected) if with_headers else without_headers(expected)
    assert expected == found


def _as_java_shows(records: list[Record]) -> list[Record]:
    """Header keys that are not UTF-8, as a string column shows them."""
    return [
        record._replace(headers=tuple((decode_as_java(k).encode(), v) for k, v in record.headers))
        for record in records
    ]
