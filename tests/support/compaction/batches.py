"""Batches with all their header fields: encoded and decoded."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from segmentlog.testing.codecs import NONE, deflate, inflate
from segmentlog.testing.reference import Record, zigzag

APPEND_TIME, TRANSACTIONAL, CONTROL, HORIZON = 0x08, 0x10, 0x20, 0x40
ABORT, COMMIT = 0, 1

_PREFIX = struct.Struct(">qiibI")
_FIELDS = struct.Struct(">hiqqqhii")


class Batch(NamedTuple):
    """A batch of magic 2; `base_ms` is the base timestamp, or the delete horizon."""

    base_offset: int
    last_offset: int
    records: tuple[Record, ...]
    attributes: int = 0
    base_ms: int = -1
    max_ms: int = -1
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    leader_epoch: int = 0

    @property
    def codec(self) -> int:
        """Its codec, of `segmentlog.testing.codecs`."""
        return self.attributes & 7

    @property
    def horizon_ms(self) -> int | None:
        """Its delete horizon."""
        return self.base_ms if self.attributes & HORIZON else None

    @property
    def is_control(self) -> bool:
        """Whether the batch has a marker."""
        return bool(self.attributes & CONTROL)


def records_of(
    first: int, *pairs: tuple[bytes | None, bytes | None], time_ms: int = 1000
) -> Batch:
    """A batch of keys and values from an offset on; each record is a millisecond later."""
    records = tuple(
        Record(first + i, time_ms + i, key, value) for i, (key, value) in enumerate(pairs)
    )
    last = first + len(pairs) - 1
    return Batch(first, last, records, 0, time_ms, time_ms + len(pairs) - 1)


def marker(offset: int, kind: int, producer_id: int, epoch: int = 0, time_ms: int = 1000) -> Batch:
    """The end marker of a transaction."""
    record = Record(offset, time_ms, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    attributes = TRANSACTIONAL | CONTROL
    return Batch(offset, offset, (record,), attributes, time_ms, time_ms, producer_id, epoch)


def _nullable(data: bytes | None) -> bytes:
    return zigzag(-1) if data is None else zigzag(len(data)) + data


def encode(batch: Batch) -> bytes:
    """The bytes of a batch."""
    body = bytearray()
    for record in batch.records:
        fields = b"\0" + zigzag(record.timestamp_ms - batch.base_ms)
        fields += zigzag(record.offset - batch.base_offset)
        fields += _nullable(record.key) + _nullable(record.value) + zigzag(len(record.headers))
        for key, value in record.headers:
            fields += zigzag(len(key)) + key + _nullable(value)
        body += zigzag(len(fields)) + fields
    payload = bytes(body)
    if batch.codec != NONE:
        payload = deflate(batch.codec, payload)
    covered = (
        _FIELDS.pack(
            batch.attributes,
            batch.last_offset - batch.base_offset,
            batch.base_ms,
            batch.max_ms,
            batch.producer_id,
            batch.epoch,
            batch.sequence,
            len(batch.records),
        )
        + payload
    )
    prefix = (batch.base_offset, len(covered) + 9, batch.leader_epoch, 2, crc32c(covered))
    return _PREFIX.pack(*prefix) + covered


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, n_bytes: int) -> bytes:
        self.at += n_bytes
        return self.data[self.at - n_bytes : self.at]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)

    def nullable(self) -> bytes | None:
        length = self.varint()
        return None if length < 0 else self.take(length)


def decode(data: bytes) -> list[Batch]:
    """The batches of a file of magic 2, control records included."""
    batches, at = [], 0
    while at < len(data):
        base, length, epoch, magic, crc = _PREFIX.unpack_from(data, at)
        whole = data[at : at + 12 + length]
        assert magic == 2
        assert crc == crc32c(whole[21:])
        attributes, delta, base_ms, max_ms, producer, producer_epoch, sequence, count = (
            _FIELDS.unpack_from(whole, 21)
        )
        payload = whole[61:]
        if attributes & 7:
            payload = inflate(attributes & 7, payload, 1 << 28)
        cursor, records = _Cursor(payload), []
        for _ in range(count):
            cursor.varint()
            cursor.take(1)
            ms, offset = base_ms + cursor.varint(), base + cursor.varint()
            if attributes & APPEND_TIME:
                ms = max_ms
            key, value = cursor.nullable(), cursor.nullable()
            headers = tuple(
                (cursor.take(cursor.varint()), cursor.nullable()) for _ in range(cursor.varint())
            )
            records.append(Record(offset, ms, key, value, headers))
        assert cursor.at == len(payload)
        batches.append(
            Batch(
                base,
                base + delta,
                tuple(records),
                attributes,
                base_ms,
                max_ms,
                producer,
                producer_epoch,
                sequence,
                epoch,
            )
        )
        at += 12 + length
    return batches


def lay_out(
    directory: Path, segments: Mapping[int, Sequence[Batch | bytes]], name: str = "t-0"
) -> Path:
    """A log of these segments, by their base offsets, in a new log directory; without indexes."""
    partition = directory / name
    partition.mkdir(parents=True)
    for base, batches in segments.items():
        data = b"".join(each if isinstance(each, bytes) else encode(each) for each in batches)
        (partition / f"{base:020d}.log").write_bytes(data)
    (directory / ".kafka_cleanshutdown").write_bytes(b"")
    return partition


def rest_of(partition: Path) -> dict[int, list[Batch]]:
    """The batches of each segment of a log, by its base offset."""
    return {int(path.stem): decode(path.read_bytes()) for path in sorted(partition.glob("*.log"))}
