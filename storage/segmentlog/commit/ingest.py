"""Make a staged file a segment of the log without copying it.

Only the base offset and the leader epoch of each batch change, and no checksum covers these two
fields.  They are overwritten, 16 bytes a batch, and the indexes are built from the headers alone.

No memory map is used.  A mapped page that cannot be read ends the process.  So does a page for
which a file system that copies on write has no room.  And Linux marks the whole large folio around
a written page as dirty: a sync wrote all of 1 GB again, although 32 MB had changed.
"""

import errno
import os
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segmentlog.commit.append import limits_of
from segmentlog.commit.stage import Extent, least_moved_bytes
from segmentlog.errors import MalformedBatchError, TruncatedBatchError
from segmentlog.files.durable import writable, write_new_file, write_pieces
from segmentlog.files.names import FileKind, segment_file_name
from segmentlog.files.readable import open_file
from segmentlog.index.encode import encode_offsets, encode_times, last_time, new_state
from segmentlog.journal.guard import SegmentSizes
from segmentlog.kernels import growth, layout
from segmentlog.kernels.growth import take_batches
from segmentlog.kernels.memory import Int64s
from segmentlog.topic_config import TopicConfig

__all__ = ["SegmentPlan", "enter_partition", "move_segment", "plan_segment"]

#: Batches that are smaller than this on average are copied faster than changed one by one.
_LEAST_BATCH_BYTES = 8 << 10

#: Header fields that change, and header fields from which the index entries are made.
_FIELDS = {
    "base_offset": (layout.BASE_OFFSET_AT, ">i8"),
    "batch_length": (layout.BATCH_LENGTH_AT, ">i4"),
    "leader_epoch": (layout.LEADER_EPOCH_AT, ">i4"),
    "magic": (layout.MAGIC_AT, "u1"),
    "last_offset_delta": (layout.LAST_OFFSET_DELTA_AT, ">i4"),
    "max_timestamp": (layout.MAX_TIMESTAMP_AT, ">i8"),
}
_HEADER = np.dtype(
    {
        "names": [*_FIELDS],
        "formats": [kind for _, kind in _FIELDS.values()],
        "offsets": [at for at, _ in _FIELDS.values()],
        "itemsize": layout.HEADER_BYTES,
    }
)
_Headers: TypeAlias = NDArray[np.void]

#: Base offset, length and leader epoch: all bytes before the magic.
_PLACE_BYTES = layout.MAGIC_AT


class SegmentPlan(NamedTuple):
    """A staged file as a segment.

    Parameters
    ----------
    base_offset : of the segment.
    positions : where the batches begin that need new offsets.
    places : the bytes to write there, `_PLACE_BYTES` for each.
    offset_entries, time_entries : bytes of its indexes.
    """

    base_offset: int
    positions: list[int]
    places: bytes
    offset_entries: bytes
    time_entries: bytes


def plan_segment(
    directory: str,
    extent: Extent,
    base_offset: int,
    shift: int,
    leader_epoch: int,
    config: TopicConfig,
) -> SegmentPlan | None:
    """The segment that the file would become; None if its batches have to be copied.

    Batches are copied if the file is small or holds other extents, if a segment would have had to
    roll within it, and if its batches are small.

    Parameters
    ----------
    directory : the log directory.
    base_offset : of the segment.
    shift : is added to the base offset of each batch.
    leader_epoch : of the partition.

    Raises
    ------
    CorruptLogError
        If the file is not what the task has written.
    """
    if not extent.is_own or extent.start or extent.end < least_moved_bytes(config.segment_bytes):
        return None
    positions, headers = _read_headers(os.path.join(directory, extent.name), extent)
    if not positions:
        return None
    table: Int64s = np.zeros((len(headers), layout.N_HEADER_COLUMNS), np.int64)
    table[:, layout.SIZE] = headers["batch_length"].astype(np.int64) + layout.LOG_OVERHEAD
    table[:, layout.BASE_OFFSET] = headers["base_offset"] + shift
    table[:, layout.LAST_OFFSET] = table[:, layout.BASE_OFFSET] + headers["last_offset_delta"]
    table[:, layout.MAX_TIMESTAMP] = headers["max_timestamp"]
    entries: Int64s = np.empty((len(headers), growth.ENTRY_COLUMNS), np.int64)
    state = new_state(base_offset)
    end, n_entries = take_batches(table, 0, limits_of(config), state, entries)
    if end < len(headers):
        return None
    if not shift and (headers["leader_epoch"] == leader_epoch).all():
        # Nothing changes in the first segment of a new log if one task brings all of it.
        positions, headers = [], headers[:0]
    headers["base_offset"] += shift
    headers["leader_epoch"] = leader_epoch
    return SegmentPlan(
        base_offset,
        positions,
        headers.view(np.uint8).reshape(-1, layout.HEADER_BYTES)[:, :_PLACE_BYTES].tobytes(),
        encode_offsets(entries[:n_entries]),
        encode_times(entries[:n_entries]) + last_time(state),
    )


def _read_headers(path: str, extent: Extent) -> tuple[list[int], _Headers]:
    """Positions and headers of a file's batches; nothing if there are too many batches."""
    positions: list[int] = []
    pieces: list[bytes] = []
    position, n_left = 0, extent.end // _LEAST_BATCH_BYTES
    with open_file(path) as file:
        size = file.status().size
        if size != extent.end:
            raise TruncatedBatchError(path, 0, extent.first_offset, extent.end, size)
        while position < size:
            if len(positions) == n_left:
                return [], np.empty(0, _HEADER)
            piece = file.read(position, layout.HEADER_BYTES)
            length = int.from_bytes(piece[layout.BATCH_LENGTH_AT : layout.LEADER_EPOCH_AT], "big")
            if length < layout.MIN_BATCH_LENGTH or position + layout.LOG_OVERHEAD + length > size:
                reason = f"its length is {length}, and {size - position} bytes are left"
                raise MalformedBatchError(path, position, -1, reason)
            positions.append(position)
            pieces.append(piece)
            position += layout.LOG_OVERHEAD + length
    headers = np.frombuffer(bytearray().join(pieces), _HEADER)
    first = headers["base_offset"].astype(np.int64)
    last = first + headers["last_offset_delta"]
    is_right = (headers["magic"] == layout.MAGIC) & (first <= last)
    is_right[0] &= first[0] == max(extent.first_offset, 0)
    is_right[1:] &= last[:-1] < first[1:]
    is_right[-1] &= last[-1] + 1 == extent.end_offset(0)
    if not is_right.all():
        wrong = int(np.argmin(is_right))
        magic = headers["magic"][wrong]
        reason = f"it has magic {magic} and offsets {first[wrong]} to {last[wrong]}"
        raise MalformedBatchError(path, positions[wrong], int(first[wrong]), reason)
    return positions, headers


def enter_partition(
    guard_path: str, partition_path: str, extent: Extent, plan: SegmentPlan
) -> bool:
    """Begin to carry a plan out, with the offset index; False if no file can be moved there.

    A partition on a mount of its own refuses renamed files (``EXDEV``), also if the mount is a
    bind mount of the same file system and device.  So does a partition with another project quota,
    or in another btrfs subvolume.  A real file of the segment is therefore moved first, while the
    staged file is unchanged: once its offsets are overwritten, copying would shift them twice.
    """
    within = _within(guard_path, extent, FileKind.OFFSET_INDEX)
    write_new_file(within, plan.offset_entries, sync=False)
    try:
        os.rename(within, _place(partition_path, plan, FileKind.OFFSET_INDEX))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        os.unlink(within)
        return False
    return True


def move_segment(
    directory: str,
    guard_path: str,
    partition_path: str,
    extent: Extent,
    plan: SegmentPlan,
) -> SegmentSizes:
    """Carry out the rest of a plan, behind `enter_partition`.

    The caller syncs the files of the segment, and their directory.

    Every file goes through the guard.  Another writer that takes the guard over renames it, and
    from then on no file of ours can come out of it and replace a file of that writer.  The log
    comes last, because the segment exists once its log does.
    """
    staged = os.path.join(directory, extent.name)
    with writable(staged) as descriptor:
        write_pieces(descriptor, plan.places, _PLACE_BYTES, plan.positions)
    within = {
        kind: _within(guard_path, extent, kind) for kind in (FileKind.TIME_INDEX, FileKind.LOG)
    }
    write_new_file(within[FileKind.TIME_INDEX], plan.time_entries, sync=False)
    os.rename(staged, within[FileKind.LOG])
    for kind, path in within.items():
        os.rename(path, _place(partition_path, plan, kind))
    return SegmentSizes(
        plan.base_offset, extent.end, len(plan.offset_entries), len(plan.time_entries)
    )


def _within(guard_path: str, extent: Extent, kind: FileKind) -> str:
    return os.path.join(guard_path, f"{extent.name}.{kind}")


def _place(partition_path: str, plan: SegmentPlan, kind: FileKind) -> str:
    return os.path.join(partition_path, segment_file_name(plan.base_offset, kind))
