"""Append batches behind the end of a log: bytes, index entries, new segments.

What stands here orders nothing and promises nothing: `segmentlog.log.commit` says when bytes may
be written, and what makes them count.
"""

import os

import numpy as np

from segmentlog.files.durable import sync_directory, write_all
from segmentlog.files.names import FileKind, segment_file_name
from segmentlog.kernels import append as columns
from segmentlog.kernels import layout
from segmentlog.kernels.append import take_batches
from segmentlog.kernels.memory import Bytes, Int64s
from segmentlog.log.config import TopicConfig
from segmentlog.log.entries import encode_offsets, encode_times, last_time, new_state, state_of
from segmentlog.log.journal import SegmentSizes

__all__ = ["LogAppender"]

_INDEXED = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)


class LogAppender:
    """Appends to one log.

    Parameters
    ----------
    directory : the partition's.
    config : of the topic.
    sizes : of the active segment, as they are; its indexes must be right and trimmed.
    """

    def __init__(self, directory: str, config: TopicConfig, sizes: SegmentSizes) -> None:
        base_offset = sizes.base_offset
        self._directory = directory
        self._limits: Int64s = np.zeros(columns.LIMIT_COLUMNS, np.int64)
        self._limits[columns.SEGMENT_BYTES] = config.segment_bytes
        self._limits[columns.SEGMENT_MS] = config.segment_ms
        self._limits[columns.INDEX_INTERVAL_BYTES] = config.index_interval_bytes
        self._limits[columns.MOST_OFFSET_ENTRIES] = config.segment_index_bytes // 8
        self._limits[columns.MOST_TIME_ENTRIES] = config.segment_index_bytes // 12
        self._state = state_of(self._path(base_offset, FileKind.LOG), base_offset, sizes.log)
        self._ends = {FileKind.LOG: sizes.log, FileKind.OFFSET_INDEX: sizes.offset_index,
                      FileKind.TIME_INDEX: sizes.time_index}  # fmt: skip
        self._descriptors = self._open(base_offset, os.O_WRONLY)
        self._to_sync: list[int] = []
        self._has_new_names = False

    def append(self, buffer: Bytes, headers: Int64s) -> None:
        """Append the batches of `headers`, whose bytes follow each other in `buffer`.

        Parameters
        ----------
        buffer : uint8 array
        headers : int64 array, shape (n_batches, at least `layout.N_HEADER_COLUMNS`)
        """
        begin = 0
        entries: Int64s = np.empty((len(headers), columns.ENTRY_COLUMNS), np.int64)
        while begin < len(headers):
            end, n_entries = take_batches(headers, begin, self._limits, self._state, entries)
            if end == begin:
                self._roll(int(headers[begin, layout.BASE_OFFSET]))
                continue
            last = headers[end - 1]
            first_byte = int(headers[begin, layout.POSITION])
            behind = int(last[layout.POSITION] + last[layout.SIZE])
            self._write(FileKind.LOG, buffer[first_byte:behind].data)
            self._write(FileKind.OFFSET_INDEX, encode_offsets(entries[:n_entries]))
            self._write(FileKind.TIME_INDEX, encode_times(entries[:n_entries]))
            begin = end

    def close(self, *, flush: bool) -> None:
        """End the active segment as a broker does when it stops: with its largest timestamp."""
        self._write(FileKind.TIME_INDEX, last_time(self._state))
        self._to_sync += self._descriptors.values()
        try:
            if flush:
                for descriptor in self._to_sync:
                    os.fsync(descriptor)
                if self._has_new_names:
                    sync_directory(self._directory)
        finally:
            for descriptor in self._to_sync:
                os.close(descriptor)
            self._to_sync.clear()

    def _open(self, base_offset: int, flags: int) -> dict[FileKind, int]:
        paths = {kind: self._path(base_offset, kind) for kind in _INDEXED}
        flags |= os.O_CLOEXEC
        return {kind: os.open(path, flags, 0o644) for kind, path in paths.items()}

    def _path(self, base_offset: int, kind: FileKind) -> str:
        return os.path.join(self._directory, segment_file_name(base_offset, kind))

    def _roll(self, base_offset: int) -> None:
        """Begin a new active segment; the old one is synced when the job's bytes are."""
        self._write(FileKind.TIME_INDEX, last_time(self._state))
        self._to_sync += self._descriptors.values()
        self._descriptors = self._open(base_offset, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._ends = dict.fromkeys(_INDEXED, 0)
        self._state = new_state(base_offset)
        self._has_new_names = True

    def _write(self, kind: FileKind, data: bytes | memoryview) -> None:
        write_all(self._descriptors[kind], data, self._ends[kind])
        self._ends[kind] += len(data)
