"""The record batch format in plain Python, one record at a time: slow, short, and easy to check.

This module does to one batch the work that `segmentlog.format.kernels` does to thousands of
batches a call.  It follows the same description of the format, and shares no code with the
kernels; a library computes the checksums.  Tests compare the two on right and on damaged bytes,
and the library's checksums with the polynomial's.  This module has batches of magic 2,
and `segmentlog.testing.legacy` the older formats and whole files.
"""

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from segmentlog.format.checksum import crc32c
from segmentlog.testing.codecs import NONE, ZSTD, BadPayloadError, deflate, inflate

_FIELDS = struct.Struct(">hiqqqhii")
_LARGEST = 2**63 - 1
_M, _LOW = 0x5BD1E995, 0xFFFFFFFF


class BadBatchError(Exception):
    """Bytes that are not a batch, or an incomplete batch."""


class UnknownFormatError(Exception):
    """A magic or a codec that Kafka does not have."""


class Record(NamedTuple):
    """One record; offset and timestamp are absolute."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def murmur2(key: bytes) -> int:
    """Hash of a key, unsigned: its lower 31 bits choose the partition."""
    mixed, whole = 0x9747B28C ^ len(key), len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _M & _LOW
        mixed = mixed * _M & _LOW ^ (word ^ word >> 24) * _M & _LOW
    if key[whole:]:
        mixed = (mixed ^ int.from_bytes(key[whole:], "little")) * _M & _LOW
    mixed = (mixed ^ mixed >> 13) * _M & _LOW
    return mixed ^ mixed >> 15


@functools.lru_cache(maxsize=4096)  # lengths and deltas are mostly the same few
def zigzag(number: int) -> bytes:
    """A signed number of up to 64 bits as a varint."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _nullable(data: bytes | None) -> bytes:
    return zigzag(-1) if data is None else zigzag(len(data)) + data


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    attributes: int = 0,
    codec: int = NONE,
    leader_epoch: int = 0,
    max_timestamp_ms: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """One batch of `records`, which are in the order of their offsets.

    `attributes`: bits of the batch header: timestamp type, transactional, control, …  `codec`: of
    `segmentlog.testing.codecs`.  `producer`: id, epoch and first sequence.  The other fields of
    the header follow from the records by default.
    """
    first = records[0].offset if base_offset is None else base_offset
    last = records[-1].offset if last_offset is None else last_offset
    base_ms = records[0].timestamp_ms if records else -1
    largest = max((record.timestamp_ms for record in records), default=-1)
    body = bytearray()
    for record in records:
        fields = b"\0" + zigzag(record.timestamp_ms - base_ms) + zigzag(record.offset - first)
        fields += _nullable(record.key) + _nullable(record.value) + zigzag(len(record.headers))
        for key, value in record.headers:
            fields += zigzag(len(key)) + key + _nullable(value)
        body += zigzag(len(fields)) + fields
    largest = largest if max_timestamp_ms is None else max_timestamp_ms
    covered = _FIELDS.pack(
        attributes | codec, last - first, base_ms, largest, *producer, len(records)
    ) + (deflate(codec, bytes(body)) if codec else bytes(body))
    prefix = struct.pack(">qiibI", first, len(covered) + 9, leader_epoch, 2, crc32c(covered))
    return prefix + covered


class _Cursor:
    """A position in a range of bytes, which raises an error at the end of the range."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.at

    def take(self, n_bytes: int) -> bytes:
        if not 0 <= n_bytes <= self.left:
            raise BadBatchError(f"{n_bytes} bytes needed, {self.left} left")
        self.at += n_bytes
        return self._data[self.at - n_bytes : self.at]

    def varint(self, bits: int) -> int:
        value = 0
        for i in range(5 if bits == 32 else 10):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                value &= (1 << bits) - 1
                return (value >> 1) ^ -(value & 1)
        raise BadBatchError("a varint does not end")

    def nullable(self) -> bytes | None:
        length = self.varint(32)
        return None if length < 0 else self.take(length)


def read_batch(data: bytes, next_offset: int = 0, bound: int = 256 << 20) -> list[Record]:
    """Records of the batch of magic 2 in `data`; for a control batch, none.

    `next_offset`: the least offset that it may have.  `bound`: most bytes that it may inflate to.
    Raises `BadBatchError` if `data` is not exactly one valid batch; `UnknownFormatError` if Kafka
    has no such codec.
    """
    if len(data) < 61:
        raise BadBatchError("shorter than a header")
    base_offset, length, _, magic, crc = struct.unpack_from(">qiibI", data)
    if magic != 2 or length + 12 != len(data) or crc != crc32c(data[21:]):
        raise BadBatchError("magic, length or checksum")
    attributes, last_delta, base_ms, max_ms, _, _, _, count = _FIELDS.unpack_from(data, 21)
    if last_delta < 0 or not next_offset <= base_offset < _LARGEST - last_delta:
        raise BadBatchError("offsets")
    codec, n_bytes = attributes & 7, len(data) - 61
    # A record has at least seven bytes.
    least = count * 7 if codec == NONE else min(count, 1)
    if not 0 <= count <= last_delta + 1 or least > n_bytes:
        raise BadBatchError("count")
    if attributes & 0x20 or not n_bytes:
        return []
    if codec > ZSTD:
        raise UnknownFormatError(f"codec {codec}")
    try:
        cursor = _Cursor(inflate(codec, data[61:], bound) if codec else data[61:])
    except BadPayloadError as error:
        raise BadBatchError(str(error)) from error
    records: list[Record] = []
    previous = -1
    for _ in range(count):
        delta, record = _read_record(_Cursor(cursor.take(cursor.varint(32))), base_offset, base_ms)
        if not previous < delta <= last_delta:
            raise BadBatchError("offset delta")
        previous = delta
        records.append(record._replace(timestamp_ms=max_ms) if attributes & 8 else record)
    if cursor.left:
        raise BadBatchError("trailing bytes")
    return records


def _read_record(cursor: _Cursor, base_offset: int, base_ms: int) -> tuple[int, Record]:
    """Offset delta and record of the bytes after a record's length."""
    cursor.take(1)
    timestamp_ms = base_ms + cursor.varint(64)
    timestamp_ms = (timestamp_ms + 2**63) % 2**64 - 2**63  # wraps, as Java's long does
    delta = cursor.varint(32)
    key, value = cursor.nullable(), cursor.nullable()
    n_headers = cursor.varint(32)
    if not 0 <= n_headers <= cursor.left:
        raise BadBatchError("header count")
    headers = []
    for _ in range(n_headers):
        header_key = cursor.nullable()
        if header_key is None:
            raise BadBatchError("null header key")
        headers.append((header_key, cursor.nullable()))
    if cursor.left:
        raise BadBatchError("the record is longer than its fields")
    return delta, Record(base_offset + delta, timestamp_ms, key, value, tuple(headers))


_SEQUENCES = 2**31


# A partition leader's checks of producers, as reference of `kernels.sequences`: written from the
# rules of ``ProducerStateManager`` and ``ProducerAppendInfo``. It remembers all batches of a
# producer's epoch, as this engine does, where a broker remembers five.


class ClientBatch(NamedTuple):
    """A batch of `n_records` records; `producer_id` is -1 without a producer."""

    producer_id: int
    epoch: int
    first: int
    n_records: int

    @property
    def last(self) -> int:
        return (self.first + self.n_records - 1) % _SEQUENCES


@dataclass
class _Entry:
    epoch: int
    batches: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    last: int = -1


class Leader:
    """The leader of one partition."""

    def __init__(self) -> None:
        self.end = 0
        self._entries: dict[int, _Entry] = {}

    def append(self, batch: ClientBatch) -> tuple[str, int, int]:
        """The fate of a batch, and its first and last offset; -1 if it is refused."""
        entry = self._entries.get(batch.producer_id)
        bounds = batch.first, batch.last
        if batch.producer_id >= 0 and entry is not None:
            if entry.epoch == batch.epoch and bounds in entry.batches:
                return "duplicate", *entry.batches[bounds]
            if batch.epoch < entry.epoch:
                return "fenced", -1, -1
            expected = (entry.last + 1) % _SEQUENCES if batch.epoch == entry.epoch else 0
            if batch.first != expected:
                return "out of order", -1, -1
        offsets = self.end, self.end + batch.n_records - 1
        self.end += batch.n_records
        if batch.producer_id >= 0:
            if entry is None or entry.epoch != batch.epoch:
                entry = self._entries[batch.producer_id] = _Entry(batch.epoch)
            entry.batches[bounds] = offsets
            entry.last = batch.last
        return "accepted", *offsets
