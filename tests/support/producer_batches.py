"""Record batches of producers, and logs with them."""

import struct
from pathlib import Path

from segmentlog.testing.reference import Record, encode_batch

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
    producer = (producer_id, epoch, sequence)
    return encode_batch(records, attributes=attributes, codec=codec, producer=producer)


def marker(
    producer_id: int,
    epoch: int,
    *,
    base_offset: int = 0,
    kind: int = ABORT,
    timestamp_ms: int = _T0,
    leader_epoch: int = 0,
) -> bytes:
    """The end marker of a transaction."""
    key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0)
    return encode_batch(
        [Record(base_offset, timestamp_ms, key, value)],
        attributes=_TRANSACTIONAL | _CONTROL,
        leader_epoch=leader_epoch,
        producer=(producer_id, epoch, -1),
    )


def plant(directory: Path, *batches: bytes, base_offset: int = 0) -> None:
    """A segment as a broker that died leaves it: without index and snapshot."""
    path = directory / "t-0"
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{base_offset:020d}.log").write_bytes(b"".join(batches))
