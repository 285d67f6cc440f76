"""Append batches after the end of a log: bytes, index entries, new segments.

Nothing here is ordered or durable: `segmentlog.writes.commit_staged` decides when bytes may be
written, and which step makes them part of the log.
"""

import os

from segmentlog.format.kernels import growth, layout
from segmentlog.format.names import LOG_AND_SPARSE_INDEXES, FileKind, segment_file_name
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.batches import walk_file
from segmentlog.log.index_builder import IndexBuilder
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import Segment
from segmentlog.store.durable import create_file, open_to_write, write_all
from segmentlog.store.sync_together import SyncTogether
from segmentlog.txn.guard import SegmentSizes


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
        self._ends = {FileKind.LOG: sizes.log, FileKind.OFFSET_INDEX: sizes.offset_index,
                      FileKind.TIME_INDEX: sizes.time_index}  # fmt: skip
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
        write_all(self._files[kind][0], data, self._ends[kind])
        self._ends[kind] += len(data)
        self._unsynced.add(kind)
