"""Findings of fuzzing: each test has bytes that were read wrongly once."""

import struct
import time
from collections.abc import Sequence

import pytest
import zstandard
from fuzzing.harness import Decoder, check
from fuzzing.mutate import seal

from segmentlog.errors import MalformedBatchError
from segmentlog.format.records.compression import Inflater
from segmentlog.testing.codecs import GZIP, LZ4, SNAPPY, ZSTD, deflate
from segmentlog.testing.legacy import encode_message
from segmentlog.testing.reference import Record, zigzag

LARGEST = 2**63 - 1


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder()


def refused(decoder: Decoder, batch: bytes) -> str:
    """The reason for which every way of decoding refuses `batch`, as the reference does."""
    reasons = set()
    for with_slack, with_headers in ((False, False), (False, True), (True, False), (True, True)):
        decoded = decoder.decode(batch, with_slack=with_slack, with_headers=with_headers)
        check(batch, decoded, with_headers=with_headers)
        assert isinstance(decoded.error, MalformedBatchError)
        reasons.add(decoded.error.reason)
    (reason,) = reasons
    return reason


def batch_of(body: bytes, n_records: int, codec: int = 0) -> bytes:
    """A batch with `body` as the bytes of its records."""
    fields = struct.pack(">hiqqqhii", codec, n_records, 0, 0, -1, -1, -1, n_records)
    return seal(struct.pack(">qiibI", 0, 0, 0, 2, 0) + fields + body)


def overlong(number: int, n_bytes: int) -> bytes:
    """A varint with more bytes than its number needs."""
    short = zigzag(number)
    return short[:-1] + bytes([short[-1] | 0x80]) + b"\x80" * (n_bytes - len(short) - 1) + b"\0"


def records_with(field: int, varint: bytes) -> bytes:
    """Two records, the first of which has `varint` as its `field`th one."""
    fields = [b"\0", zigzag(0), zigzag(0), zigzag(-1), zigzag(0), zigzag(0)]
    fields[field] = varint
    first = b"".join(fields)
    second = b"\0" + zigzag(1) + zigzag(1) + zigzag(-1) + zigzag(200) + bytes(200) + zigzag(0)
    return zigzag(len(first)) + first + zigzag(len(second)) + second


@pytest.mark.parametrize("n_bytes", [6, 7, 8, 9])
@pytest.mark.parametrize(("field", "number"), [(2, 0), (3, -1), (4, 0)])
def test_an_int_of_more_than_five_bytes_is_refused(
    decoder: Decoder, field: int, number: int, n_bytes: int
) -> None:
    """Every loop refuses an int of six to nine bytes. The quick loop once accepted up to eight."""
    batch = batch_of(records_with(field, overlong(number, n_bytes)), 2)

    assert "variable-length integer" in refused(decoder, batch)


def test_a_record_length_of_more_than_five_bytes_is_refused(decoder: Decoder) -> None:
    """The length of a record may not have more than five bytes, either."""
    body = records_with(4, zigzag(0))
    batch = batch_of(overlong(6, 6) + body[1:], 2)

    assert "variable-length integer" in refused(decoder, batch)


@pytest.mark.parametrize("n_bytes", range(2, 11))
def test_a_time_of_up_to_ten_bytes_is_read(decoder: Decoder, n_bytes: int) -> None:
    """A long may have up to ten bytes, even if its value is small."""
    batch = batch_of(records_with(1, overlong(5, n_bytes)), 2)
    decoded = decoder.decode(batch, with_slack=True, with_headers=False)

    check(batch, decoded, with_headers=False)
    assert decoded.error is None


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_compressed_records_without_a_byte_are_refused(decoder: Decoder, codec: int) -> None:
    """A batch that counts records and ends after its header is not taken for an emptied batch."""
    assert "record count" in refused(decoder, batch_of(b"", 3, codec))


def test_a_snappy_block_of_length_0_ends_its_batch(decoder: Decoder) -> None:
    """Bytes after a snappy block of length 0 are refused, and not ignored."""
    assert "snappy" in refused(decoder, batch_of(b"\0garbage", 0, SNAPPY))


@pytest.mark.parametrize(
    ("n_cut", "more"), [(1, b""), (4, b""), (0, b"\x28"), (0, b"\x28\xb5\x2f\xfd")]
)
def test_a_zstd_frame_ends_where_its_batch_does(decoder: Decoder, n_cut: int, more: bytes) -> None:
    """A truncated frame, and a frame with the start of another frame after it, are refused."""
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(records_with(4, zigzag(0)))
    whole = batch_of(frame, 2, ZSTD)
    check(whole, decoder.decode(whole, with_slack=True, with_headers=True), with_headers=True)

    batch = batch_of(frame[: len(frame) - n_cut] + more, 2, ZSTD)

    assert "zstd: the last frame is cut short" in refused(decoder, batch)


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_thousands_of_empty_frames_take_no_time(codec: int) -> None:
    """The bytes after each frame are not copied.

    With copies, 4 MB took 15 seconds and 40 MB took 20 minutes.
    """
    empty = deflate(codec, b"")
    payload = empty * (4_000_000 // len(empty)) + deflate(codec, b"the last one")
    inflater = Inflater(1 << 20)
    begun = time.thread_time()
    start, end = inflater.append(codec, memoryview(payload))

    assert inflater.buffer[start:end].tobytes() == b"the last one"
    assert time.thread_time() - begun < 10


def wrapper(offset: int, inner: Sequence[Record]) -> bytes:
    """A wrapper of magic 1 with this offset and any messages inside."""
    value = deflate(GZIP, b"".join(encode_message(each) for each in inner))
    return encode_message(Record(offset, 0, None, value), attributes=GZIP)


def test_no_message_inside_a_wrapper_has_the_largest_offset(decoder: Decoder) -> None:
    """A message with offset 2**63 - 1 is refused, because no offset follows it."""
    batch = wrapper(0, [Record(0, 0, None, b""), Record(LARGEST, 0, None, b"")])

    assert "message inside" in refused(decoder, batch)
