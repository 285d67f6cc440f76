"""Producer snapshots: a broker's knowledge of its producers (``ProducerStateManager``).

::

     0         2         6         10
    +---------+---------+---------+----------------------------------------
    | version | crc32c  | entries | 46 bytes for each producer
    | 1       | of what |         |
    |         | follows |         |
    +---------+---------+---------+----------------------------------------
    producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32 |
    timestamp i64 | coordinator epoch i32 | first offset of the open transaction i64, or -1

The file is named by the offset at which the state holds, ``00000000000000000042.snapshot``.
"""

import logging
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from segmentlog.errors import CorruptIndexError
from segmentlog.format.checksum import crc32c
from segmentlog.format.names import FileKind, parse_segment_file, segment_file_name
from segmentlog.store.durable import remove_file, replace_file
from segmentlog.store.readable import list_names, read_whole

logger = logging.getLogger(__name__)

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_COVERS_FROM = 6
_VERSION = 1


class ProducerSnapshot(NamedTuple):
    """One producer of a snapshot; unknown values are -1."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    current_txn_first_offset: int


def list_snapshots(partition_path: str) -> list[int]:
    """Offsets of the snapshots in a partition directory, the highest first."""
    # Other names are not parsed: a writer looks here three times, beside thousands of segments.
    names = [each for each in list_names(partition_path) if each.endswith(".snapshot")]
    found = filter(None, map(parse_segment_file, names))
    return sorted((each.offset for each in found), reverse=True)


def snapshot_path(partition_path: str, offset: int) -> str:
    """Path of the snapshot at `offset`."""
    return os.path.join(partition_path, segment_file_name(offset, FileKind.SNAPSHOT))


def read_snapshot(path: str) -> list[ProducerSnapshot]:
    """The producers of one snapshot.

    Raises `CorruptIndexError` if the file is not a snapshot of version 1, to the last byte;
    `FileNotFoundError` if a broker has removed it in the meantime.
    """
    return parse_snapshot(path, read_whole(path, lambda reason: _corrupt(path, f"it {reason}")))


def parse_snapshot(path: str, data: bytes) -> list[ProducerSnapshot]:
    """The producers of the bytes of a snapshot; see `read_snapshot`."""
    if len(data) < _HEADER.size:
        raise _corrupt(path, f"a snapshot has at least 10 bytes, but this file has {len(data)}")
    version, crc, n_entries = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise _corrupt(path, f"expected version 1 of a snapshot, found {version}")
    if crc32c(data[_CRC_COVERS_FROM:]) != crc:
        raise _corrupt(path, "its crc32c differs from the crc32c that it contains")
    if len(data) != _HEADER.size + n_entries * _ENTRY.size:
        raise _corrupt(
            path, f"its size of {len(data)} bytes does not fit its {n_entries} producers"
        )
    return [ProducerSnapshot._make(each) for each in _ENTRY.iter_unpack(data[_HEADER.size :])]


def _corrupt(path: str, reason: str) -> CorruptIndexError:
    remedy = "a broker writes the next snapshot when it rolls the log or stops"
    return CorruptIndexError(path, reason, remedy)


def read_snapshots(
    partition_path: str, first_offset: int, last_offset: int
) -> Iterator[tuple[int, list[ProducerSnapshot]]]:
    """Offset and producers of the snapshots between two offsets, themselves too, newest first."""
    for offset in list_snapshots(partition_path):
        if not first_offset <= offset <= last_offset:
            continue
        try:
            yield offset, read_snapshot(snapshot_path(partition_path, offset))
        except FileNotFoundError:
            continue
        except CorruptIndexError as error:
            logger.warning("%s; an older snapshot is read instead", error)


def newest_snapshot(
    partition_path: str, first_offset: int, last_offset: int
) -> tuple[int, list[ProducerSnapshot]] | None:
    """The first of `read_snapshots`, or None."""
    return next(read_snapshots(partition_path, first_offset, last_offset), None)


def remove_snapshots(partition_path: str, offsets: Iterable[int]) -> None:
    """Remove the snapshots at `offsets`; some of them may be missing."""
    for offset in offsets:
        remove_file(snapshot_path(partition_path, offset), missing_ok=True)


def write_snapshot(path: str, producers: Sequence[ProducerSnapshot]) -> None:
    """Write a snapshot durably; an earlier one at the offset is replaced."""
    replace_file(path, encode_snapshot(producers))


def encode_snapshot(producers: Sequence[ProducerSnapshot]) -> bytes:
    """Bytes of a snapshot."""
    covered = struct.pack(">i", len(producers)) + b"".join(
        _ENTRY.pack(*each) for each in producers
    )
    return struct.pack(">hI", _VERSION, crc32c(covered)) + covered
