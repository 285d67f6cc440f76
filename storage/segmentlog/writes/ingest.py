"""Make a staged file a segment of the log without copying it.

Only the base offset and the leader epoch of each batch may have to change, and no checksum covers
these two fields.  They are overwritten, 16 bytes a batch, if a file was staged for another place.
The indexes are built from the table of the batches, or else from their headers.

No memory map is used.  A mapped page that cannot be read ends the process.  So does a page for
which a file system that copies on write has no room.  And Linux marks the whole large folio around
a written page as dirty: a sync wrote all of 1 GB again, although 32 MB had changed.
"""

import errno
import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmentlog.errors import MalformedBatchError, TruncatedBatchError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.names import FileKind, segment_file_name
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.index_builder import IndexBuilder
from segmentlog.store.durable import remove_file, rename, writable, write_new_file, write_pieces
from segmentlog.store.readable import open_file
from segmentlog.txn.guard import SegmentSizes
from segmentlog.writes.batch_table import (
    BATCH,
    HEADER,
    LEAST_BATCH_BYTES,
    are_in_order,
    read_table,
)
from segmentlog.writes.extents import Extent
from segmentlog.writes.staged_files import least_moved_bytes

#: The bytes that change: base offset and leader epoch, and the length between them.
_PLACE = np.dtype([("base_offset", ">i8"), ("batch_length", ">i4"), ("leader_epoch", ">i4")])


class SegmentPlan(NamedTuple):
    """A staged file as a segment.

    `positions`: where the batches begin whose offset or leader epoch changes.  `places`: the bytes
    to write there, one `_PLACE` for each.
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
    roll within it, or if its batches are small.

    `shift`: is added to the base offset of each staged batch.  Raises `CorruptLogError` if the
    file is not what the task has written.
    """
    if not extent.is_own or extent.start or extent.end < least_moved_bytes(config.segment_bytes):
        return None
    rows, epoch = read_table(directory, extent), extent.staged_epoch
    if rows is None:
        rows, epoch = _read_headers(os.path.join(directory, extent.name), extent)
    if not len(rows):
        return None
    table: Int64s = np.zeros((len(rows), layout.N_HEADER_COLUMNS), np.int64)
    table[:, layout.SIZE] = rows["size"]
    table[:, layout.BASE_OFFSET] = rows["base_offset"] + shift
    table[:, layout.LAST_OFFSET] = table[:, layout.BASE_OFFSET] + rows["last_delta"]
    table[:, layout.MAX_TIMESTAMP] = rows["max_timestamp"]
    indexes = IndexBuilder.of_topic(base_offset, config)
    taken = indexes.take(table)
    if taken.end < len(rows):
        return None
    positions: list[int] = []
    places = b""
    if shift or epoch != leader_epoch:
        positions = (np.cumsum(table[:, layout.SIZE]) - table[:, layout.SIZE]).tolist()
        places = _places(table, leader_epoch)
    return SegmentPlan(
        base_offset,
        positions,
        places,
        taken.offset_entries,
        taken.time_entries + indexes.last_time(),
    )


def _places(table: Int64s, leader_epoch: int) -> bytes:
    """The first bytes of each batch as they stand in the log."""
    places = np.empty(len(table), _PLACE)
    places["base_offset"] = table[:, layout.BASE_OFFSET]
    places["batch_length"] = table[:, layout.SIZE] - layout.LOG_OVERHEAD
    places["leader_epoch"] = leader_epoch
    return places.tobytes()


def _read_headers(path: str, extent: Extent) -> tuple[NDArray[np.void], int]:
    """The batches of a file, of kind `BATCH`, and their leader epoch, or -1 if it differs.

    No batches if there are too many of them.
    """
    positions: list[int] = []
    pieces: list[bytes] = []
    position, n_left = 0, extent.end // LEAST_BATCH_BYTES
    with open_file(path, follow=False) as file:
        size = file.status().size
        if size != extent.end:
            raise TruncatedBatchError(path, 0, extent.first_offset, extent.end, size)
        while position < size:
            if len(positions) == n_left:
                return np.empty(0, BATCH), -1
            piece = file.read(position, layout.HEADER_BYTES)
            length = int.from_bytes(piece[layout.BATCH_LENGTH_AT : layout.LEADER_EPOCH_AT], "big")
            if length < layout.MIN_BATCH_LENGTH or position + layout.LOG_OVERHEAD + length > size:
                reason = f"its length is {length}, and {size - position} bytes are left"
                raise MalformedBatchError(path, position, -1, reason)
            positions.append(position)
            pieces.append(piece)
            position += layout.LOG_OVERHEAD + length
    headers = np.frombuffer(bytearray().join(pieces), HEADER)
    rows = np.empty(len(headers), BATCH)
    rows["base_offset"] = headers["base_offset"]
    rows["max_timestamp"] = headers["max_timestamp"]
    rows["size"] = headers["batch_length"] + layout.LOG_OVERHEAD
    rows["last_delta"] = headers["last_offset_delta"]
    is_right = (headers["magic"] == layout.MAGIC) & are_in_order(rows, extent)
    if not is_right.all():
        wrong = int(np.argmin(is_right))
        magic, first = headers["magic"][wrong], int(rows["base_offset"][wrong])
        last = first + int(rows["last_delta"][wrong])
        reason = f"it has magic {magic} and offsets {first} to {last}"
        raise MalformedBatchError(path, positions[wrong], first, reason)
    epochs = headers["leader_epoch"]
    return rows, int(epochs[0]) if (epochs == epochs[0]).all() else -1


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
        rename(within, _place(partition_path, plan, FileKind.OFFSET_INDEX))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        remove_file(within)
        return False
    return True


def move_segment(
    directory: str,
    guard_path: str,
    partition_path: str,
    extent: Extent,
    plan: SegmentPlan,
) -> SegmentSizes:
    """Carry out the rest of a plan, after `enter_partition`.

    The caller syncs the files of the segment, and their directory.

    Every file goes through the guard.  Another writer that takes the guard over renames it, and
    from then on none of our files can come out of it and replace a file of that writer.  The log
    comes last, because the segment exists once its log does.
    """
    staged = os.path.join(directory, extent.name)
    if plan.positions:
        with writable(staged) as descriptor:
            write_pieces(descriptor, plan.places, _PLACE.itemsize, plan.positions)
    within = {
        kind: _within(guard_path, extent, kind) for kind in (FileKind.TIME_INDEX, FileKind.LOG)
    }
    write_new_file(within[FileKind.TIME_INDEX], plan.time_entries, sync=False)
    rename(staged, within[FileKind.LOG])
    for kind, path in within.items():
        rename(path, _place(partition_path, plan, kind))
    return SegmentSizes(
        plan.base_offset, extent.end, len(plan.offset_entries), len(plan.time_entries)
    )


def _within(guard_path: str, extent: Extent, kind: FileKind) -> str:
    return os.path.join(guard_path, f"{extent.name}.{kind}")


def _place(partition_path: str, plan: SegmentPlan, kind: FileKind) -> str:
    return os.path.join(partition_path, segment_file_name(plan.base_offset, kind))
