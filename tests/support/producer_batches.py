"""Record batches of producers, and logs with them."""

import struct
from pathlib import Path

from segmentlog.testing.reference import Record, crc32c, encode_batch

ABORT, COMMIT = 0, 1
_T0 = 1_700_000_000_000
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


def batch(
    producer_id: int,
    epoch: int,
    sequence: int,
    n_records: int = 1,
    *,
    base_offset: int = 0,
    attributes: int = 0,
    is_transactional: bool = False,
    codec: int = 0,
) -> bytes:
    """A batch whose values contain the producer and the sequence."""
    records = [
        Record(base_offset + i, _T0 + i, None, b"%d:%d" % (producer_id, (sequence + i) % 2**31))
        for i in range(n_records)
    ]
    if is_transactional:
        attributes |= _TRANSACTIONAL
    encoded = encode_batch(records, attributes=attributes, codec=codec)
    return _of_producer(encoded, producer_id, epoch, sequence)


def marker(
    producer_id: int, epoch: int, *, base_offset: int = 0, kind: int = ABORT, coordinator: int = 0
) -> bytes:
    """The end marker of a transaction."""
    key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, coordinator)
    record = Record(base_offset, _T0, key, value)
    encoded = encode_batch([record], attributes=_TRANSACTIONAL | _CONTROL)
    return _of_producer(encoded, producer_id, epoch, -1)


def _of_producer(encoded: bytes, producer_id: int, epoch: int, sequence: int) -> bytes:
    changed = bytearray(encoded)
    struct.pack_into(">qhi", changed, 43, producer_id, epoch, sequence)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def plant(directory: Path, *batches: bytes, partition: str = "t-0", base_offset: int = 0) -> None:
    """A segment as a broker that died leaves it: without index and snapshot."""
    path = directory / partition
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{base_offset:020d}.log").write_bytes(b"".join(batches))
