"""Make a staged file a segment of the log where it stands, without copying it.

Of each batch only base offset and leader epoch change, and no checksum covers those: they are
written through a memory map, one page a batch, and the indexes are built from the headers alone.
"""

import os
from typing import NamedTuple

import numpy as np

from segmentlog.errors import MalformedBatchError, TruncatedBatchError
from segmentlog.files.durable import create_file, write_all
from segmentlog.files.names import FileKind, segment_file_name
from segmentlog.kernels import append as columns
from segmentlog.kernels import layout, status
from segmentlog.kernels.append import take_batches
from segmentlog.kernels.encode import assign_offsets
from segmentlog.kernels.memory import Bytes, Int64s
from segmentlog.kernels.transactions import walk_headers
from segmentlog.log.append import limits_of
from segmentlog.log.config import TopicConfig
from segmentlog.log.entries import encode_offsets, encode_times, last_time, new_state
from segmentlog.log.journal import SegmentSizes
from segmentlog.log.stage import Extent, least_moved_bytes
from segmentlog.records.batch_error import batch_error

__all__ = ["SegmentPlan", "move_segment", "plan_segment"]

_TABLE_ROWS = 1 << 14
_PAGE_BYTES = 4 << 10


class SegmentPlan(NamedTuple):
    """A staged file as a segment.

    Parameters
    ----------
    base_offset : of the segment.
    shift : what is added to the base offset of each batch.
    positions : int64 array, shape (n_batches,); bytes at which the batches begin.
    offset_entries, time_entries : bytes of its indexes.
    """

    base_offset: int
    shift: int
    positions: Int64s
    offset_entries: bytes
    time_entries: bytes


def plan_segment(
    directory: str, extent: Extent, base_offset: int, shift: int, config: TopicConfig
) -> SegmentPlan | None:
    """What the segment would be; None where batches have to be copied one behind the other.

    That is so where the file is small or holds other things, where a segment would have had to
    roll within it, and where batches are so small that every page would be written to anyway.

    Raises
    ------
    CorruptLogError
        If the file is not what the task has written.
    """
    if not extent.is_own or extent.end < least_moved_bytes(config.segment_bytes):
        return None
    path = os.path.join(directory, extent.name)
    found = os.path.getsize(path)
    if found != extent.end:
        raise TruncatedBatchError(path, 0, extent.first_offset, extent.end, found)
    mapped = np.memmap(path, np.uint8, "r", shape=(extent.end,)).view(np.ndarray)
    headers: Int64s = np.empty((_TABLE_ROWS, layout.N_HEADER_COLUMNS), np.int64)
    entries: Int64s = np.empty((_TABLE_ROWS, columns.ENTRY_COLUMNS), np.int64)
    limits, state = limits_of(config), new_state(base_offset)
    positions, offsets, times = [], [], []
    begin, n_left = 0, extent.end // _PAGE_BYTES
    while begin < extent.end:
        code, begin, n_batches = walk_headers(mapped, begin, extent.end, headers)
        if not n_batches or code not in {status.OK, status.TABLE_FULL}:
            raise batch_error(path, mapped, begin, extent.end, 0, code)
        rows = headers[:n_batches]
        rows[:, layout.BASE_OFFSET : layout.LAST_OFFSET + 1] += shift
        end, n_entries = take_batches(rows, 0, limits, state, entries)
        n_left -= n_batches
        if end < n_batches or n_left < 0:
            return None
        positions.append(rows[:, layout.POSITION].copy())
        offsets.append(encode_offsets(entries[:n_entries]))
        times.append(encode_times(entries[:n_entries]))
    last = int(rows[-1, layout.LAST_OFFSET])
    if begin != extent.end or last + 1 != extent.end_offset(shift):
        reason = f"the last batch ends at byte {begin} and offset {last - shift}"
        raise MalformedBatchError(path, begin, last - shift, reason)
    times.append(last_time(state))
    return SegmentPlan(
        base_offset, shift, np.concatenate(positions), b"".join(offsets), b"".join(times)
    )


def move_segment(
    directory: str,
    guard_path: str,
    partition_path: str,
    extent: Extent,
    plan: SegmentPlan,
    leader_epoch: int,
) -> SegmentSizes:
    """Carry a plan out; the caller syncs the files of the segment, and their directory.

    Everything goes through the guard: when another writer has taken that over, which renames it,
    nothing can come out of it any more, over whatever that writer has put there.  The log comes
    last, because with it the segment is there.
    """
    staged = os.path.join(directory, extent.name)
    _place(staged, plan, leader_epoch)
    within = {
        kind: os.path.join(guard_path, f"{extent.name}.{kind}")
        for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.LOG)
    }
    _write(within[FileKind.OFFSET_INDEX], plan.offset_entries)
    _write(within[FileKind.TIME_INDEX], plan.time_entries)
    os.rename(staged, within[FileKind.LOG])
    for kind, path in within.items():
        os.rename(path, os.path.join(partition_path, segment_file_name(plan.base_offset, kind)))
    return SegmentSizes(
        plan.base_offset, extent.end, len(plan.offset_entries), len(plan.time_entries)
    )


def _place(path: str, plan: SegmentPlan, leader_epoch: int) -> None:
    """Give the batches their offsets and their leader epoch."""
    with open(path, "r+b", buffering=0) as file:
        mapped: Bytes = np.memmap(file, np.uint8, "r+").view(np.ndarray)
        assign_offsets(mapped, plan.positions, plan.shift, leader_epoch)


def _write(path: str, entries: bytes) -> None:
    """Write the file of an index, which must not exist yet."""
    descriptor = create_file(path)
    try:
        write_all(descriptor, entries, 0)
    finally:
        os.close(descriptor)
