"""Messages of magic 0 and 1 in plain Python: the formats of brokers before Kafka 0.11."""

import struct
import zlib
from collections.abc import Iterator, Sequence

from segmentlog.testing.codecs import NONE, ZSTD, BadPayloadError, deflate, inflate
from segmentlog.testing.reference import BadBatchError, Record, UnknownFormatError

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
