"""A segment that compaction writes: its ``.cleaned`` files, which no reader takes for the log."""

import contextlib
import os
from collections.abc import Iterable

from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.names import LOG_AND_SPARSE_INDEXES, FileKind, FileState, segment_file_name
from segmentlog.log.index_builder import IndexBuilder
from segmentlog.log.transaction_index import AbortedTransaction, encode_transactions
from segmentlog.store.durable import create_file, remove_file, sync_file, write_all


class CleanedSegment:
    """Takes the batches of one new segment, and writes its indexes beside them.

    `partition_path`: the partition's directory.  `index_interval_bytes`: bytes of log between
    index entries (``index.interval.bytes``).
    """

    def __init__(self, partition_path: str, base_offset: int, index_interval_bytes: int) -> None:
        self._partition_path = partition_path
        self.base_offset = base_offset
        self._indexes = IndexBuilder.unlimited(base_offset, index_interval_bytes)
        self._ends: dict[FileKind, int] = {}
        self._files: dict[FileKind, int] = {}
        self._paths: list[str] = []
        try:
            for kind in LOG_AND_SPARSE_INDEXES:
                self._open(kind)
        except BaseException:
            self.remove()
            raise

    @property
    def size(self) -> int:
        """Bytes of its log so far."""
        return self._ends[FileKind.LOG]

    def append(self, data: Bytes, lines: Int64s) -> None:
        """Append batches that lie next to each other in `data`.

        `data`: uint8 array, shape (n_bytes,).  `lines`: int64 array, shape (n_batches, at least
        `layout.N_HEADER_COLUMNS`); sizes, last offsets and largest timestamps of the batches.
        """
        taken = self._indexes.take(lines)
        self._write(FileKind.LOG, data.data)
        self._write(FileKind.OFFSET_INDEX, taken.offset_entries)
        self._write(FileKind.TIME_INDEX, taken.time_entries)

    def finish(self, aborted: Iterable[AbortedTransaction], modified_ms: int) -> None:
        """Close the indexes, and sync all files; the caller syncs their names.

        `aborted`: transactions for its ``.txnindex``; the file is made only if there are some.
        `modified_ms`: time at which the segments that it replaces were last written (epoch): older
        formats, and records without timestamps, age by it.  Raises `SyncFailedError` or `OSError`
        if the disk is full or fails.
        """
        self._write(FileKind.TIME_INDEX, self._indexes.last_time())
        if entries := encode_transactions(aborted):
            self._open(FileKind.TRANSACTION_INDEX)
            self._write(FileKind.TRANSACTION_INDEX, entries)
        modified_ns = modified_ms * 10**6
        for descriptor, path in zip(self._files.values(), self._paths, strict=True):
            with contextlib.suppress(PermissionError):  # a mount that forces another owner
                os.utime(descriptor, ns=(modified_ns, modified_ns))
            sync_file(descriptor, path)
        self.close()

    def close(self) -> None:
        """Close the files as they are."""
        while self._files:
            os.close(self._files.popitem()[1])

    def remove(self) -> None:
        """Remove the files: the compaction is given up."""
        self.close()
        for path in self._paths:
            remove_file(path, missing_ok=True)

    def _open(self, kind: FileKind) -> None:
        name = f"{segment_file_name(self.base_offset, kind)}.{FileState.CLEANED}"
        path = os.path.join(self._partition_path, name)
        self._files[kind] = create_file(path)
        self._paths.append(path)
        self._ends[kind] = 0

    def _write(self, kind: FileKind, data: bytes | memoryview) -> None:
        if len(data):
            write_all(self._files[kind], data, self._ends[kind])
            self._ends[kind] += len(data)
