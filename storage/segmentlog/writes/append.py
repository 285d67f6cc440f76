"""Append batches at the end of a log, and make staged files segments of it without copying them.

Nothing here is ordered or durable: `segmentlog.writes.commit` decides when bytes may be
written, and which step makes them part of the log.

Of a staged file, only the base offset and the leader epoch of each batch may have to change, and
no checksum covers these two fields.  They are overwritten, 16 bytes a batch, if a file was staged
for another place.

The indexes are built from a table of the batches, which the task leaves beside the file.  A file
of 1 GB has some eight thousand batches, and their headers stand 128 KiB apart: without the table,
each header costs the commit a read of its own, a page from a disk or a request to a server, while
it holds the lock.  A table is a help and no source of truth.  It is not synced, and a file without
a table, or with a table that is damaged or does not fit, is copied.

No memory map is used.  A mapped page that cannot be read ends the process.  So does a page for
which a file system that copies on write has no room.  And Linux marks the whole large folio around
a written page as dirty: a sync wrote all of 1 GB again, although 32 MB had changed.
"""

import errno
import logging
import os
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmentlog.format.kernels import growth, layout
from segmentlog.format.kernels.crc32c import checksum
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.names import LOG_AND_SPARSE_INDEXES, FileKind, segment_file_name
from segmentlog.format.records.encoder import EncodedBatches
from segmentlog.format.records.header import ScannedBatches, parse_header
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.batches import walk_file
from segmentlog.log.index_builder import IndexBuilder
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import Segment
from segmentlog.model import TopicPartition
from segmentlog.store.durable import (
    SyncTogether,
    check_held,
    create_file,
    open_to_write,
    remove_file,
    rename,
    writable,
    write_all,
    write_new_file,
    write_pieces,
)
from segmentlog.store.readable import open_file
from segmentlog.txn.guard import SegmentSizes

logger = logging.getLogger(__name__)


def _resume(builder: IndexBuilder, log_path: str, base_offset: int, size: int) -> None:
    """Continue the indexes of a segment of `size` bytes, from them and the headers they lack.

    Headers after the last entry of the time index are read.  A broker takes the largest
    timestamp from that entry alone (``LogSegment.readMaxTimestampAndOffsetSoFar``).  If the index
    was cut short, the next entry would then be below earlier times, and look-ups would leave out
    records.
    """
    state = builder.state
    state[growth.SIZE] = size
    files = SegmentFiles(base_offset, log_path, size)
    with Segment(files, is_sealed=False).opened() as opened:
        index = opened.offset_index
        state[growth.N_OFFSET_ENTRIES] = index.n_entries
        # The interval is measured across appends: otherwise small appends would never create an
        # entry, and each append would scan the whole segment to find its end.
        last = index.entry(index.n_entries - 1).position if index.n_entries else 0
        state[growth.SINCE_ENTRY] = size - last
        state[growth.N_TIME_ENTRIES] = opened.time_index.n_entries
        (largest, offset), position = opened.indexed_time()
        state[growth.LAST_TIME_ENTRY] = largest
        for walked in walk_file(log_path, opened.file, position, size):
            times = walked.scanned.headers[:, layout.MAX_TIMESTAMP]
            newest = int(times.argmax())
            if times[newest] > largest:
                largest = times[newest]
                offset = walked.scanned.headers[newest, layout.LAST_OFFSET]
        state[growth.MAX_TIMESTAMP], state[growth.MAX_TIMESTAMP_OFFSET] = largest, offset
        first = next(opened.headers(0), None)
        if first is not None and first.header.magic >= layout.FIRST_BATCH_MAGIC:
            state[growth.FIRST_MAX_TIMESTAMP] = first.header.max_timestamp


def create_segment(partition_path: str, base_offset: int) -> None:
    """Make the files of a new segment, empty, and the ``.log`` last; the caller syncs names."""
    for kind in reversed(LOG_AND_SPARSE_INDEXES):
        os.close(create_file(os.path.join(partition_path, segment_file_name(base_offset, kind))))


class LogAppender:
    """Appends to one log.

    `partition_path`: the partition's directory.  `sizes`: present sizes of the active segment; its
    indexes must be right and trimmed.  `syncs`: takes the files that are to be synced, or None to
    sync nothing.  A file to which nothing was appended is left out: it was synced before, or it is
    new and empty.  `is_moved`: whether the segment's files were moved there, and are not synced
    yet.
    """

    def __init__(
        self,
        partition_path: str,
        config: TopicConfig,
        sizes: SegmentSizes,
        *,
        syncs: SyncTogether | None,
        is_moved: bool = False,
    ) -> None:
        base_offset = sizes.base_offset
        self._partition_path = partition_path
        self._config = config
        self._indexes = IndexBuilder.of_topic(base_offset, config)
        _resume(self._indexes, self._path(base_offset, FileKind.LOG), base_offset, sizes.log)
        self.base_offset = base_offset  # of the active segment
        self._ends = {
            FileKind.LOG: sizes.log,
            FileKind.OFFSET_INDEX: sizes.offset_index,
            FileKind.TIME_INDEX: sizes.time_index,
        }
        self._syncs = syncs
        self._has_new_names = is_moved
        self._unsynced = set(LOG_AND_SPARSE_INDEXES if is_moved else ())
        self._files: dict[FileKind, tuple[int, str]] = {}
        try:
            for kind in LOG_AND_SPARSE_INDEXES:
                path = self._path(base_offset, kind)
                self._files[kind] = open_to_write(path), path
        except OSError:
            self.abandon()
            raise

    def append(self, batches: ScannedBatches) -> None:
        """Append batches that lie next to each other in their buffer."""
        begin, headers = 0, batches.headers
        while begin < len(headers):
            taken = self._indexes.take(headers, begin)
            if taken.end == begin:
                self.roll(int(headers[begin, layout.BASE_OFFSET]))
                continue
            self._write(FileKind.LOG, batches.only(slice(begin, taken.end)).data.data)
            self._write(FileKind.OFFSET_INDEX, taken.offset_entries)
            self._write(FileKind.TIME_INDEX, taken.time_entries)
            begin = taken.end

    def roll(self, base_offset: int) -> None:
        """Begin a new active segment.

        A job may roll thousands of times, so the files of the old segment are closed at once.
        """
        self._end_segment()
        for kind in LOG_AND_SPARSE_INDEXES:
            path = self._path(base_offset, kind)
            self._files[kind] = create_file(path), path
        self._unsynced.clear()
        self._ends = dict.fromkeys(LOG_AND_SPARSE_INDEXES, 0)
        self._indexes = IndexBuilder.of_topic(base_offset, self._config)
        self.base_offset = base_offset
        self._has_new_names = True

    @property
    def size(self) -> int:
        """Bytes of the active segment."""
        return self._ends[FileKind.LOG]

    def close(self) -> None:
        """End the active segment, and sync its name if its bytes are to be synced."""
        if self._files:
            self._end_segment()
            if self._syncs is not None and self._has_new_names:
                self._syncs.add_directory(self._partition_path)

    def abandon(self) -> None:
        """Close the files as they are: the caller undoes the append."""
        while self._files:
            _, (descriptor, _) = self._files.popitem()
            os.close(descriptor)

    def _end_segment(self) -> None:
        """Add the largest timestamp, as a broker does when it rolls or stops; close the files."""
        try:
            self._write(FileKind.TIME_INDEX, self._indexes.last_time())
            if self._syncs is not None:
                for kind in sorted(self._unsynced):
                    self._syncs.add_file(*self._files.pop(kind))
        finally:
            self.abandon()

    def _path(self, base_offset: int, kind: FileKind) -> str:
        return os.path.join(self._partition_path, segment_file_name(base_offset, kind))

    def _write(self, kind: FileKind, data: bytes | memoryview) -> None:
        if not len(data):
            return
        descriptor, path = self._files[kind]
        check_held(path)  # the next holder may have undone this append, and written there
        write_all(descriptor, data, self._ends[kind])
        self._ends[kind] += len(data)
        self._unsynced.add(kind)


RELATIVE = -1  #: instead of an offset: offsets continue from the log end


class StagedFile(NamedTuple):
    """A file in the log directory that holds staged batches."""

    name: str
    is_own: bool = False  #: whether its batches are of one partition, and of one extent
    #: The place in the log for which a file of one partition is staged.  A commit that finds the
    #: end of the log there has nothing to change in the file.
    offset: int = 0
    leader_epoch: int = 0


NO_FILE = StagedFile("")  #: of batches in memory


class Extent(NamedTuple):
    """Batches of one partition that follow each other in a staged file, or in memory.

    An extent of a file is small and picklable: it travels from the writing task to the commit on
    the driver.
    """

    topic: str
    partition: int
    file: StagedFile
    start: int
    end: int
    n_records: int
    first_offset: int = RELATIVE  #: -1 when offsets are to be moved to the log end
    last_offset: int = RELATIVE
    #: the batches, if no file has them; the offsets of each piece count from 0, unless they are
    #: kept
    held: tuple[ScannedBatches, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def has_offsets(self) -> bool:
        """Whether its records keep their offsets."""
        return self.first_offset != RELATIVE

    @property
    def staged_from(self) -> int:
        """Base offset of its first batch, as it stands in the file."""
        return self.first_offset if self.has_offsets else self.file.offset

    def grown(self, end: int, n_records: int, offsets: tuple[int, int] | None) -> "Extent":
        """With more records, up to `end`; `offsets`: their first and last, if they are kept."""
        return self._replace(
            end=end,
            n_records=self.n_records + n_records,
            last_offset=offsets[1] if offsets else RELATIVE,
        )

    def shift_to(self, next_offset: int) -> int:
        """Added to the base offset of each batch, it gives the one in the log."""
        return 0 if self.has_offsets else next_offset - self.staged_from

    def end_offset(self, next_offset: int) -> int:
        """The log end once the extent is appended at `next_offset`."""
        return self.last_offset + 1 if self.has_offsets else next_offset + self.n_records


#: Batches that are smaller than this on average are copied, and need no table.
_LEAST_BATCH_BYTES = 8 << 10

#: One batch, as it stands in the staged file.
_BATCH = np.dtype(
    [("base_offset", "<i8"), ("max_timestamp", "<i8"), ("size", "<i4"), ("last_delta", "<i4")]
)

TABLE_FORMAT = 1
_HEAD = struct.Struct("<4sIQQ")  #: `_MARK`, format, bytes of the staged file, number of batches
_MARK = b"slbt"
_SUM = struct.Struct("<I")  #: CRC-32C of everything before it, and of the staged file's name

#: Headers of a file that are compared with its table.
_N_COMPARED = 16

#: The bytes that change: base offset and leader epoch, and the length between them.
_PLACE = np.dtype([("base_offset", ">i8"), ("batch_length", ">i4"), ("leader_epoch", ">i4")])


def least_moved_bytes(segment_bytes: int) -> int:
    """Size at or above which a file is moved into the log as a segment instead of being copied.

    Copying less takes about as long as syncing one more file, and leaves fewer segments.
    """
    return segment_bytes // 64


def table_name(name: str) -> str:
    """Name of a staged file's table; it ends like the file's, and is swept with it."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}.batches.{suffix}"


class BatchTable:
    """The table of a file that a task is writing."""

    def __init__(self) -> None:
        self._rows: list[NDArray[np.void]] = []
        self._n_bytes = self._n_rows = 0

    def add(self, batches: EncodedBatches, shift: int) -> None:
        """Add batches that are appended to the file; `shift` was added to their base offsets."""
        self._n_bytes += len(batches.buffer)
        self._n_rows += len(batches.table)
        if self._n_rows * _LEAST_BATCH_BYTES > self._n_bytes:
            self._rows.clear()  # small batches are copied, and need no table
            return
        rows = np.empty(len(batches.table), _BATCH)
        rows["base_offset"] = batches.base_offsets + shift
        rows["max_timestamp"] = batches.max_timestamps
        rows["size"] = batches.sizes
        rows["last_delta"] = batches.last_offset_deltas
        self._rows.append(rows)

    def write(self, directory: str, name: str) -> None:
        """Write the table of the file `name`, unless its batches are too small to be moved."""
        rows = np.concatenate(self._rows) if self._rows else np.empty(0, _BATCH)
        self._rows.clear()
        if self._n_rows == len(rows):
            data = _HEAD.pack(_MARK, TABLE_FORMAT, self._n_bytes, len(rows)) + rows.tobytes()
            path = os.path.join(directory, table_name(name))
            write_new_file(path, data + _SUM.pack(_checksum(data, name)), sync=False)


def _checksum(data: bytes, name: str) -> int:
    named = np.frombuffer(name.encode() + data, np.uint8)
    return int(checksum(named, 0, len(named)))


def read_table(directory: str, extent: Extent) -> Int64s | None:
    """Headers of the batches of a staged file by its table; None if it has no sound table.

    The table has to be whole, to be that of this file, to fit the extent, and to fit some headers
    of the file.  Returns an int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`), with
    positions, sizes, offsets and largest timestamps.
    """
    path = os.path.join(directory, table_name(extent.file.name))
    try:
        with open_file(path, follow=False) as file:
            data = file.read(0, file.status().size)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s cannot be read (%s): the batches are copied instead", path, error)
        return None
    headers = _headers_of(data, extent)
    if headers is None or not _fits_file(directory, extent, headers):
        logger.warning("%s is not the table of its file: the batches are copied instead", path)
        return None
    return headers


def _headers_of(data: bytes, extent: Extent) -> Int64s | None:
    """The batches of a whole table of the extent's file; None for anything else."""
    if len(data) < _HEAD.size + _BATCH.itemsize + _SUM.size:
        return None
    mark, number, n_bytes, n_rows = _HEAD.unpack_from(data)
    body, found = data[: -_SUM.size], _SUM.unpack(data[-_SUM.size :])[0]
    if (mark, number, n_bytes) != (_MARK, TABLE_FORMAT, extent.end):
        return None
    if len(body) != _HEAD.size + n_rows * _BATCH.itemsize or found != _checksum(
        body, extent.file.name
    ):
        return None
    rows = np.frombuffer(body, _BATCH, offset=_HEAD.size)
    headers: Int64s = np.zeros((n_rows, layout.N_HEADER_COLUMNS), np.int64)
    headers[:, layout.SIZE] = rows["size"]
    headers[:, layout.POSITION] = np.cumsum(headers[:, layout.SIZE]) - headers[:, layout.SIZE]
    headers[:, layout.BASE_OFFSET] = rows["base_offset"]
    headers[:, layout.LAST_OFFSET] = rows["base_offset"] + rows["last_delta"]
    headers[:, layout.MAX_TIMESTAMP] = rows["max_timestamp"]
    first, last = headers[:, layout.BASE_OFFSET], headers[:, layout.LAST_OFFSET]
    is_sound = (
        rows["size"].min() >= layout.HEADER_BYTES
        and headers[:, layout.SIZE].sum() == extent.end
        and (first <= last).all()
        and (last[:-1] < first[1:]).all()
        and (first[0], last[-1] + 1) == (extent.staged_from, extent.end_offset(extent.staged_from))
    )
    return headers if is_sound else None


def _fits_file(directory: str, extent: Extent, headers: Int64s) -> bool:
    """Whether the file has its size, and some of its headers have the fields of their rows."""
    numbers = np.unique(np.linspace(0, len(headers) - 1, _N_COMPARED).astype(np.int64))
    columns = [
        layout.POSITION,
        layout.SIZE,
        layout.BASE_OFFSET,
        layout.LAST_OFFSET,
        layout.MAX_TIMESTAMP,
    ]
    with open_file(os.path.join(directory, extent.file.name), follow=False) as file:
        if file.status().size != extent.end:
            return False
        for position, *fields in headers[numbers][:, columns].tolist():
            data = file.read(position, layout.HEADER_BYTES)
            if len(data) < layout.HEADER_BYTES:
                return False
            found = parse_header(data)
            if (found.magic, found.leader_epoch) != (layout.MAGIC, extent.file.leader_epoch):
                return False
            if fields != [
                found.size_in_bytes,
                found.base_offset,
                found.last_offset,
                found.max_timestamp,
            ]:
                return False
    return True


class SegmentPlan(NamedTuple):
    """A staged file as a segment."""

    base_offset: int
    positions: list[int]  # where the batches begin whose offset or leader epoch changes
    places: bytes  # the bytes to write there, one `_PLACE` for each
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

    `shift`: is added to the base offset of each staged batch.
    """
    if (
        not extent.file.is_own
        or extent.start
        or extent.end < least_moved_bytes(config.segment_bytes)
    ):
        return None
    headers = read_table(directory, extent)
    if headers is None:  # as with small batches
        return None
    headers[:, [layout.BASE_OFFSET, layout.LAST_OFFSET]] += shift
    indexes = IndexBuilder.of_topic(base_offset, config)
    taken = indexes.take(headers)
    if taken.end < len(headers):  # a segment would have had to roll within it
        return None
    positions: list[int] = []
    places = np.empty(0, _PLACE)
    if shift or extent.file.leader_epoch != leader_epoch:
        positions = headers[:, layout.POSITION].tolist()
        places = np.empty(len(headers), _PLACE)
        places["base_offset"] = headers[:, layout.BASE_OFFSET]
        places["batch_length"] = headers[:, layout.SIZE] - layout.LOG_OVERHEAD
        places["leader_epoch"] = leader_epoch
    return SegmentPlan(
        base_offset,
        positions,
        places.tobytes(),
        taken.offset_entries,
        taken.time_entries + indexes.last_time(),
    )


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
    staged = os.path.join(directory, extent.file.name)
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
    return os.path.join(guard_path, f"{extent.file.name}.{kind}")


def _place(partition_path: str, plan: SegmentPlan, kind: FileKind) -> str:
    return os.path.join(partition_path, segment_file_name(plan.base_offset, kind))
