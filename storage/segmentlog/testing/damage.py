"""Damage to files of a log, by name: functions that change one file in place.

>>> from segmentlog.testing.damage import flip_bit
>>> flip_bit(batch=1, field="crc")(path)  # doctest: +SKIP

Batches are counted from 0 and found by their lengths, so a file must be damaged only once, or from
its end to its start.  Only magic 2 has the fields named here.
"""

import functools
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from segmentlog.format.checksum import crc32c
from segmentlog.format.kernels import layout

Damage = Callable[[Path], object]

#: Name, first byte and size of every header field of a batch.
FIELDS: dict[str, tuple[int, int]] = {
    "base_offset": (layout.BASE_OFFSET_AT, 8),
    "batch_length": (layout.BATCH_LENGTH_AT, 4),
    "leader_epoch": (layout.LEADER_EPOCH_AT, 4),
    "magic": (layout.MAGIC_AT, 1),
    "crc": (layout.CRC_AT, 4),
    "attributes": (layout.ATTRIBUTES_AT, 2),
    "last_offset_delta": (layout.LAST_OFFSET_DELTA_AT, 4),
    "base_timestamp": (layout.BASE_TIMESTAMP_AT, 8),
    "max_timestamp": (layout.MAX_TIMESTAMP_AT, 8),
    "producer_id": (layout.PRODUCER_ID_AT, 8),
    "producer_epoch": (layout.PRODUCER_EPOCH_AT, 2),
    "base_sequence": (layout.BASE_SEQUENCE_AT, 4),
    "records_count": (layout.RECORDS_COUNT_AT, 4),
}


def _bounds(data: bytearray, batch: int) -> tuple[int, int]:
    """First byte of a batch, and the byte after it."""
    start = 0
    for _ in range(batch + 1):
        begin = start
        length = int.from_bytes(data[begin + 8 : begin + 12], "big", signed=True)
        start = begin + layout.LOG_OVERHEAD + length
    return begin, start


def _repair(data: bytearray, start: int, end: int) -> None:
    """Give a batch the checksum that its bytes have now."""
    crc = crc32c(bytes(data[start + layout.ATTRIBUTES_AT : end]))
    struct.pack_into(">I", data, start + layout.CRC_AT, crc)


def _of_batch(batch: int, change: Callable[[bytearray, int, int], object]) -> Damage:
    """A change of the bytes of a file, which gets the bounds of a batch in them."""

    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        change(data, *_bounds(data, batch))
        path.write_bytes(data)

    return damage


def flip_bit(batch: int, field: str, bit: int = 0) -> Damage:
    """Flip one bit of a field of a batch; ``"body"`` is the middle of its records.

    A batch that compaction has emptied has no records: its last byte is damaged instead.
    """

    def change(data: bytearray, start: int, end: int) -> None:
        if field == "body":
            at = min((start + layout.HEADER_BYTES + end) // 2, end - 1)
        else:
            first, size = FIELDS[field]
            at = start + first + size - 1 - bit // 8
        data[at] ^= 1 << bit % 8

    return _of_batch(batch, change)


def _computed(batch: int, field: str, new: Callable[[int], int], *, repair: bool) -> Damage:
    def change(data: bytearray, start: int, end: int) -> None:
        first, size = FIELDS[field]
        place = slice(start + first, start + first + size)
        found = int.from_bytes(data[place], "big", signed=True)
        data[place] = new(found).to_bytes(size, "big", signed=True)
        if repair:
            _repair(data, start, end)

    return _of_batch(batch, change)


def set_field(batch: int, field: str, value: int, *, repair: bool = False) -> Damage:
    """Write a field of a batch; with `repair` the checksum is corrected."""
    return _computed(batch, field, lambda _: value, repair=repair)


def add_to_field(batch: int, field: str, number: int, *, repair: bool = False) -> Damage:
    """Add to a field of a batch; with `repair` the checksum is corrected."""
    return _computed(batch, field, lambda found: found + number, repair=repair)


def garble_records(batch: int) -> Damage:
    """Overwrite the records of a batch, and correct its checksum."""

    def change(data: bytearray, start: int, end: int) -> None:
        first = start + layout.HEADER_BYTES
        data[first:end] = random.Random(batch).randbytes(end - first)
        _repair(data, start, end)

    return _of_batch(batch, change)


@functools.cache  # a gigabyte takes seconds
def _deflated_zeros(n_bytes: int) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = b"".join(deflate.compress(bytes(1 << 20)) for _ in range(n_bytes >> 20))
    return body + deflate.compress(bytes(n_bytes & ((1 << 20) - 1))) + deflate.flush()


def bomb(batch: int, n_bytes: int) -> Damage:
    """Replace the records of a batch by a gzip stream that inflates to `n_bytes`."""

    def change(data: bytearray, start: int, end: int) -> None:
        body = _deflated_zeros(n_bytes)
        data[start + layout.HEADER_BYTES : end] = body
        end = start + layout.HEADER_BYTES + len(body)
        struct.pack_into(">i", data, start + layout.BATCH_LENGTH_AT, end - start - 12)
        struct.pack_into(">h", data, start + layout.ATTRIBUTES_AT, 1)
        _repair(data, start, end)

    return _of_batch(batch, change)


def zero_batch(batch: int) -> Damage:
    """Fill a batch with zeros: a page that was never written."""

    def change(data: bytearray, start: int, end: int) -> None:
        data[start:end] = bytes(end - start)

    return _of_batch(batch, change)


def insert_garbage(batch: int, n_bytes: int) -> Damage:
    """Insert meaningless bytes before a batch."""

    def change(data: bytearray, start: int, _: int) -> None:
        data[start:start] = random.Random(n_bytes).randbytes(n_bytes)

    return _of_batch(batch, change)


def cut_tail(n_bytes: int) -> Damage:
    """Remove the last bytes."""
    return lambda path: path.write_bytes(path.read_bytes()[:-n_bytes])


def append_zeros(n_bytes: int) -> Damage:
    """Append zeros: preallocation, or pages that were never written."""
    return lambda path: path.write_bytes(path.read_bytes() + bytes(n_bytes))


def append_garbage(n_bytes: int) -> Damage:
    """Append meaningless bytes."""
    return lambda path: path.write_bytes(path.read_bytes() + random.Random(7).randbytes(n_bytes))


def fill_with_garbage() -> Damage:
    """Replace all bytes by others of the same number, at least one."""
    return lambda path: path.write_bytes(random.Random(3).randbytes(max(path.stat().st_size, 1)))


def delete() -> Damage:
    """Remove the file."""
    return Path.unlink
