"""Entries of the files beside a segment: indexes, aborted transactions, producer states."""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import crc32c

from segmentlog.files.names import FileKind, parse_segment_file
from segmentlog.index.offset import OffsetIndex
from segmentlog.index.time import TimeIndex

__all__ = ["entries", "is_index_file"]

_ABORTED = struct.Struct(">hqqqq")
_PRODUCER = struct.Struct(">qhiqiqiq")
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_CRC_COVERS_FROM = 6

Entry = Mapping[str, object]


def is_index_file(path: str) -> bool:
    """Whether `path` is named as one of the files that this module reads."""
    parsed = parse_segment_file(Path(path).name)
    return parsed is not None and parsed.kind != FileKind.LOG


def entries(path: str) -> Iterator[Entry]:
    """Rows under Kafka's names; one with the field ``problem`` where the file is damaged.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    with Path(path).open("rb"):  # an index that cannot be opened would pass for an empty one
        parsed = parse_segment_file(Path(path).name)
    match parsed.kind if parsed else None:
        case FileKind.OFFSET_INDEX:
            return _offset_entries(path, parsed.offset if parsed else 0)
        case FileKind.TIME_INDEX:
            return _time_entries(path, parsed.offset if parsed else 0)
        case FileKind.TRANSACTION_INDEX:
            return _aborted_transactions(path)
        case _:
            return _producers(path)


def _offset_entries(path: str, base_offset: int) -> Iterator[Entry]:
    with OffsetIndex(path, base_offset, mapped=False) as index:
        for slot in range(index.n_entries):
            yield index.entry(slot)._asdict()
    yield from _cut_short(path, OffsetIndex.entry_bytes)


def _time_entries(path: str, base_offset: int) -> Iterator[Entry]:
    with TimeIndex(path, base_offset, mapped=False) as index:
        for slot in range(index.n_entries):
            entry = index.entry(slot)
            yield {"timestamp": entry.timestamp_ms, "offset": entry.offset}
    yield from _cut_short(path, TimeIndex.entry_bytes)


def _cut_short(path: str, entry_bytes: int) -> Iterator[Entry]:
    """A row of its own where the file is not a whole number of entries long."""
    if left := Path(path).stat().st_size % entry_bytes:
        yield {"problem": f"{left} bytes at the end are no whole entry of {entry_bytes}"}


def _aborted_transactions(path: str) -> Iterator[Entry]:
    """``version | producer id | first offset | last offset | last stable offset``, 34 bytes each.

    What is left of an entry that was cut short is not read, as a broker does not.
    """
    with Path(path).open("rb") as file:
        while len(piece := file.read(_ABORTED.size)) == _ABORTED.size:
            version, producer_id, first, last, stable = _ABORTED.unpack(piece)
            yield {
                "version": version,
                "producerId": producer_id,
                "firstOffset": first,
                "lastOffset": last,
                "lastStableOffset": stable,
            }


def _producers(path: str) -> Iterator[Entry]:
    """``version | crc32c of what follows | count``, and 46 bytes for each producer."""
    with Path(path).open("rb") as file:
        head = file.read(_SNAPSHOT_HEAD.size)
        crc = crc32c.crc32c(head[_CRC_COVERS_FROM:])
        while piece := file.read(1 << 20):
            crc = crc32c.crc32c(piece, crc)
        if len(head) < _SNAPSHOT_HEAD.size:
            yield {"problem": "the file is shorter than the head of a snapshot"}
            return
        version, stored, count = _SNAPSHOT_HEAD.unpack(head)
        if version != 1:
            yield {"problem": f"its version is {version}, not 1"}
            return
        if crc != stored:
            yield {"problem": f"its crc32c is {crc:#010x}, its head says {stored:#010x}"}
        file.seek(_SNAPSHOT_HEAD.size)
        for _ in range(count):
            piece = file.read(_PRODUCER.size)
            if len(piece) < _PRODUCER.size:
                yield {"problem": f"it ends before its {count} producers"}
                return
            yield _producer(piece)


def _producer(piece: bytes) -> Entry:
    """One producer, and its last batch if it has written one."""
    producer_id, epoch, last_sequence, last_offset, delta, time, coordinator, first = (
        _PRODUCER.unpack(piece)
    )
    row: dict[str, object] = {
        "producerId": producer_id,
        "producerEpoch": epoch,
        "coordinatorEpoch": coordinator,
        "currentTxnFirstOffset": None if first < 0 else first,
        "lastTimestamp": time,
    }
    if last_offset >= 0:
        first_sequence = (last_sequence - delta) % 2**31 if last_sequence >= 0 else -1
        row |= {"firstSequence": first_sequence, "lastSequence": last_sequence}
        row |= {"lastOffset": last_offset, "offsetDelta": delta, "timestamp": time}
    return row
