"""Messages of magic 0 and 1 in plain Python: the formats of brokers before Kafka 0.11.

`read_log` reads whole ``.log`` files in any mixture of formats.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from segmentlog.testing.codecs import NONE, ZSTD, BadPayloadError, deflate, inflate
from segmentlog.testing.reference import (
    BadBatchError,
    Record,
    UnknownFormatError,
    read_batch,
)

_APPEND_TIME = 8
_LARGEST = 2**63 - 1


def _sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def encode_message(record: Record, *, magic: int = 1, attributes: int = 0) -> bytes:
    """One message: a batch by itself, or a message inside a wrapper.

    `record`: headers cannot be written, and in magic 0 no timestamp.
    """
    covered = struct.pack(">BB", magic, attributes)
    if magic:
        covered += struct.pack(">q", record.timestamp_ms)
    covered += _sized(record.key) + _sized(record.value)
    prefix = struct.pack(">qiI", record.offset, len(covered) + 4, zlib.crc32(covered))
    return prefix + covered


def encode_wrapper(
    records: Sequence[Record], codec: int, *, magic: int = 1, append_time_ms: int | None = None
) -> bytes:
    """A compressed message that holds `records`.

    `append_time_ms`: the time that a broker has set for all records.
    """
    last = records[-1].offset
    shift = records[0].offset if magic else 0
    inner = b"".join(
        encode_message(each._replace(offset=each.offset - shift), magic=magic) for each in records
    )
    attributes, timestamp_ms = codec, max(each.timestamp_ms for each in records)
    if append_time_ms is not None:
        attributes, timestamp_ms = codec | _APPEND_TIME, append_time_ms
    value = deflate(codec, inner, is_magic_0=magic == 0)
    return encode_message(
        Record(last, timestamp_ms, None, value), magic=magic, attributes=attributes
    )


def _parse(message: bytes) -> tuple[int, Record]:
    """Attributes and record of one whole message; the timestamp of magic 0 is -1."""
    crc, magic, attributes = struct.unpack_from(">IBB", message, 12)
    if crc != zlib.crc32(message[16:]):
        raise BadBatchError("checksum of a message")
    at, timestamp_ms = 18, -1
    if magic:
        timestamp_ms = int.from_bytes(message[18:26], "big", signed=True)
        at = 26
    key, at = _nullable(message, at)
    value, at = _nullable(message, at)
    if at != len(message):
        raise BadBatchError("a message is longer than its fields")
    offset = int.from_bytes(message[:8], "big", signed=True)
    return attributes, Record(offset, timestamp_ms, key, value)


def _nullable(message: bytes, at: int) -> tuple[bytes | None, int]:
    if at + 4 > len(message):
        raise BadBatchError("a message is cut short")
    length = int.from_bytes(message[at : at + 4], "big", signed=True)
    end = at + 4 + max(length, 0)
    if end > len(message):
        raise BadBatchError("a key or value is longer than its message")
    return (None if length < 0 else message[at + 4 : end]), end


def read_message(message: bytes, next_offset: int, bound: int) -> tuple[int, list[Record]]:
    """Timestamp type and records of the message, or of the messages inside it.

    `message`: the bytes of the message, up to the size that it claims.  `next_offset`: the least
    offset that it may have.  `bound`: most bytes that a wrapper may inflate to.
    """
    attributes, record = _parse(message)
    magic, codec = message[16], attributes & 7
    if not next_offset <= record.offset < _LARGEST:
        raise BadBatchError("offset of a message")
    is_append_time = magic == 1 and bool(attributes & _APPEND_TIME)
    kind = int(is_append_time) if magic else -1
    if codec == NONE:
        return kind, [record]
    if codec == ZSTD or record.value is None:
        raise BadBatchError("a wrapper in zstd, or of nothing")
    if codec > ZSTD:
        raise UnknownFormatError(f"codec {codec}")
    try:
        value = inflate(codec, record.value, bound, is_magic_0=magic == 0)
    except BadPayloadError as error:
        raise BadBatchError(str(error)) from error
    inner = list(_inner_records(value))
    if not inner:
        raise BadBatchError("a wrapper of nothing")
    first, last = inner[0][1].offset, inner[-1][1].offset
    shift = _shift(magic, record.offset, last)
    if first + shift < next_offset or last + shift == _LARGEST:
        raise BadBatchError("offsets inside a wrapper")
    return kind, [
        each._replace(
            offset=each.offset + shift,
            timestamp_ms=record.timestamp_ms if is_append_time and inside else each.timestamp_ms,
        )
        for inside, each in inner
    ]


def _shift(magic: int, wrapper_offset: int, last_offset: int) -> int:
    """The base of the relative offsets inside; some producers left a wrapper's offset at 0."""
    if magic == 0:
        if last_offset != wrapper_offset:
            raise BadBatchError("the last offset inside is not the wrapper's")
        return 0
    if wrapper_offset == 0:
        return 0
    if wrapper_offset < last_offset:
        raise BadBatchError("a wrapper's offset is below the last inside")
    return wrapper_offset - last_offset


def _inner_records(messages: bytes) -> Iterator[tuple[int, Record]]:
    """Magic and record of each message inside a wrapper; the magic may differ from its own."""
    previous, at = -1, 0
    while at < len(messages):
        size = int.from_bytes(messages[at + 8 : at + 12], "big", signed=True)
        begin, at = at, at + 12 + size
        if size < 14 or at > len(messages):
            raise BadBatchError("a message inside is cut short")
        message = messages[begin:at]
        if message[16] > 1:
            raise BadBatchError("magic of a message inside")
        attributes, record = _parse(message)
        if attributes & 7 or record.offset <= previous:
            raise BadBatchError("a message inside is compressed, or goes back")
        previous = record.offset
        yield message[16], record


class ReadBatch(NamedTuple):
    """The records of one batch."""

    timestamp_type: int  #: -1 none, 0 by the producer, 1 by the broker
    records: list[Record]


def split_batches(data: bytes, next_offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """The batches of a file by their lengths, each with the least offset that it may have.

    Raises `BadBatchError` if a length is too small for its magic, or the file ends inside a batch;
    `UnknownFormatError` if a batch has a magic above 2, and an offset that is possible at its
    place.
    """
    at = 0
    while at < len(data):
        if at + 17 > len(data):
            raise BadBatchError("cut short")
        offset = int.from_bytes(data[at : at + 8], "big", signed=True)
        length = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        magic, end = data[at + 16], at + 12 + length
        if length < (14, 14, 49)[min(magic, 2)]:
            raise BadBatchError("length")
        if magic > 2 and 0 <= offset - next_offset < 2**31:
            raise UnknownFormatError(f"magic {magic}")
        if magic > 2 or end > len(data):
            raise BadBatchError("not a batch, or cut short")
        yield data[at:end], next_offset
        delta = int.from_bytes(data[at + 23 : at + 27], "big", signed=True) if magic == 2 else 0
        at, next_offset = end, offset + delta + 1


def read_log(data: bytes, bound: int, next_offset: int = 0) -> Iterator[ReadBatch]:
    """The contents of a log, batch by batch, up to the first bad batch.

    `bound`: most bytes that one batch may inflate to.  `next_offset`: the least offset that the
    first batch may have.  Raises `BadBatchError` or `UnknownFormatError` at the first bad batch.
    """
    for batch, least in split_batches(data, next_offset):
        if batch[16] < 2:
            kind, records = read_message(batch, least, bound)
        else:
            kind, records = batch[22] >> 3 & 1, read_batch(batch, least, bound)
        yield ReadBatch(kind, records)
