"""Staged batches: a writing task leaves them in the log directory, and the commit takes them.

A staged file holds record batches only.  Its name begins with a letter and has no dash.  A broker
looks at directories, and at files whose names begin with digits, so it passes over a staged file.

If a task has many rows for a partition, the partition gets files of its own, each no larger than a
segment.  The commit moves these files into the log instead of copying them.  All other partitions
share one file; otherwise there would be as many files as tasks times partitions.
"""

import contextlib
import os
import secrets

import numpy as np

from segmentlog.format.kernels.encode import assign_offsets
from segmentlog.format.kernels.memory import Bytes
from segmentlog.format.records.encoder import EncodedBatches
from segmentlog.model import TopicPartition
from segmentlog.store.pace import Pace
from segmentlog.writes.batch_table import BatchTable, table_name
from segmentlog.writes.extents import RELATIVE, Extent, TaskExtents, staged_name
from segmentlog.writes.log_places import LogPlace, LogPlaces
from segmentlog.writes.open_files import OpenFiles
from segmentlog.writes.staged_batches import staged_batches, staged_errors

#: Files for partitions that have one large piece, but not enough for a segment yet.  Without a
#: bound, 10,000 partitions with a piece each would be 10,000 files.
_MOST_EARLY_FILES = 256

#: Bytes of the shared file that are written at once, at multiples of this size.  A piece of 32 KiB
#: that begins and ends within pages takes three times as long to write as its share of these.
_JOINED_BYTES = 256 << 10


def least_moved_bytes(segment_bytes: int) -> int:
    """Size at or above which a file is moved into the log as a segment instead of being copied.

    Copying less takes about as long as syncing one more file, and leaves fewer segments.
    """
    return segment_bytes // 64


class _File:
    """One staged file that is being written."""

    def __init__(self, directory: str, name: str, files: OpenFiles) -> None:
        self.name = name
        self.path = os.path.join(directory, name)
        self.size = 0
        self._files = files
        files.create(self.path)

    def write(self, data: Bytes) -> None:
        """Append."""
        self._files.write(self.path, data.data, self.size)
        self.size += len(data)

    def is_moved(self, segment_bytes: int) -> bool:
        """Whether the commit moves the file into the log; otherwise it copies the batches."""
        return False

    def remove(self) -> None:
        """Remove the file if it exists: nobody needs it."""
        _remove(self.path)


class _OwnFile(_File):
    """A staged file of one partition, and the table of its batches."""

    def __init__(self, directory: str, name: str, files: OpenFiles, place: LogPlace) -> None:
        super().__init__(directory, name, files)
        self.place = place
        self._directory = directory
        self._table = BatchTable()

    def append(self, batches: EncodedBatches, shift: int) -> None:
        """Append batches to whose base offsets `shift` was added."""
        self.write(batches.buffer)
        self._table.add(batches, shift)

    def is_moved(self, segment_bytes: int) -> bool:
        """Whether the file is large enough to be moved."""
        return self.size >= least_moved_bytes(segment_bytes)

    def write_table(self, segment_bytes: int) -> None:
        """Write the table, if the file is large enough to be moved."""
        if self.is_moved(segment_bytes):
            self._table.write(self._directory, self.name)

    def remove(self) -> None:
        """Remove the table, too."""
        super().remove()
        _remove(os.path.join(self._directory, table_name(self.name)))


class _SharedFile(_File):
    """A staged file of many small pieces; some of its bytes are not written before `flush`."""

    def __init__(self, directory: str, name: str, files: OpenFiles) -> None:
        super().__init__(directory, name, files)
        self._joined: Bytes = np.empty(_JOINED_BYTES, np.uint8)

    def write(self, data: Bytes) -> None:
        """Append."""
        while len(data):
            begin = self.size % _JOINED_BYTES
            n_whole = 0 if begin else len(data) // _JOINED_BYTES * _JOINED_BYTES
            if n_whole:
                super().write(data[:n_whole])
            else:
                n_whole = min(len(data), _JOINED_BYTES - begin)
                self._joined[begin : begin + n_whole] = data[:n_whole]
                self.size += n_whole
                if begin + n_whole == _JOINED_BYTES:
                    self._write_joined(_JOINED_BYTES)
            data = data[n_whole:]

    def flush(self) -> None:
        """Write what is left; nothing is appended after it."""
        self._write_joined(self.size % _JOINED_BYTES)

    def _write_joined(self, n_bytes: int) -> None:
        self._files.write(self.path, self._joined[:n_bytes].data, self.size - n_bytes)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


class TaskStage:
    """The staged files of one task attempt; a file is made when it is first written to.

    `task`: number of the task, for people who look at the directory.  `segment_bytes`: most bytes
    of a segment, and so of a file of one partition.  `flush`: whether the files that the commit
    will move are on the disk when the stage is closed.  `pace`: the limit of bytes a second, or
    None.
    """

    def __init__(
        self,
        directory: str,
        token: str,
        task: int,
        segment_bytes: int,
        *,
        flush: bool,
        pace: Pace | None = None,
    ) -> None:
        # A second attempt of a task must not meet the files of the first.
        self._stem = f"segmentlog.{token}.{task}.{secrets.token_hex(4)}"
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._open = OpenFiles(flush=flush, pace=pace)
        self._files: list[_File] = []
        self._n_made = 0
        self._shared: _SharedFile | None = None
        self._own: dict[TopicPartition, _OwnFile] = {}
        self._staged: dict[TopicPartition, tuple[int, int]] = {}  # bytes and records so far
        self._places = LogPlaces(directory)
        self._extents: list[Extent] = []
        self._last_of: dict[TopicPartition, int] = {}  # where its last extent is among all

    def add(
        self,
        topic_partition: TopicPartition,
        batches: EncodedBatches,
        offsets: tuple[int, int] | None = None,
    ) -> None:
        """Write batches of one partition after its earlier batches.

        `batches`: if offsets count from 0, the buffer is changed so that they count on: from the
        extent's beginning, or in a file of the partition's own from the log end.  `offsets`: the
        first and the last offset, if offsets are to be kept.
        """
        n_records = int(batches.records_counts.sum())
        file = self._file_of(topic_partition, len(batches.buffer), n_records)
        number = self._last_of.get(topic_partition, -1)
        before = self._extents[number] if number >= 0 else None
        if before is None or (before.name, before.end) != (file.name, file.size):
            number = self._last_of[topic_partition] = len(self._extents)
            first = offsets[0] if offsets else RELATIVE
            is_own = isinstance(file, _OwnFile)
            before = Extent(*topic_partition, file.name, file.size, file.size, 0, first, first,
                            is_own)  # fmt: skip
            self._extents.append(before)
        self._write(file, batches, 0 if offsets else before.n_records, moves=offsets is None)
        self._extents[number] = before._replace(
            end=file.size,
            n_records=before.n_records + n_records,
            last_offset=offsets[1] if offsets else RELATIVE,
        )

    def _write(
        self, file: "_OwnFile | _SharedFile", batches: EncodedBatches, shift: int, *, moves: bool
    ) -> None:
        """Append batches whose offsets are to count on from `shift`, if they move at all."""
        leader_epoch = 0
        if isinstance(file, _OwnFile):
            leader_epoch = file.place.leader_epoch
            shift += file.place.offset if moves else 0
        if shift or leader_epoch:
            positions = np.ascontiguousarray(batches.positions)
            assign_offsets(batches.buffer, positions, shift, leader_epoch)
        if isinstance(file, _OwnFile):
            file.append(batches, shift)
        else:
            file.write(batches.buffer)

    def _file_of(
        self, topic_partition: TopicPartition, n_bytes: int, n_records: int
    ) -> "_OwnFile | _SharedFile":
        """The file for a partition's next bytes."""
        staged, n_before = self._staged.get(topic_partition, (0, 0))
        self._staged[topic_partition] = staged + n_bytes, n_before + n_records
        own = self._own.get(topic_partition)
        is_much = (
            own is not None
            or staged >= least_moved_bytes(self._segment_bytes)
            # More rows of the partition will probably come.
            or (n_bytes >= self._segment_bytes // 1024 and self._n_made < _MOST_EARLY_FILES)
        )
        if is_much and n_bytes <= self._segment_bytes:
            if own is not None and own.size + n_bytes <= self._segment_bytes:
                return own
            self._end_own(topic_partition)
            self._own[topic_partition] = own = self._new_own(topic_partition, n_before)
            return own
        # Later rows must not go back to the partition's own file: a moved file is one extent.
        # When they went back, rows were written twice, or every commit failed.
        self._end_own(topic_partition)
        if self._shared is None:
            self._shared = self._new_shared()
        return self._shared

    def _new_own(self, topic_partition: TopicPartition, n_before: int) -> _OwnFile:
        """A file for a partition of which the task has staged `n_before` records."""
        end = self._places.end(topic_partition)
        place = end._replace(offset=end.offset + n_before)
        name = staged_name(self._stem, self._n_made, *place)
        file = _OwnFile(self._directory, name, self._open, place)
        self._n_made += 1
        self._files.append(file)
        return file

    def _new_shared(self) -> _SharedFile:
        file = _SharedFile(self._directory, staged_name(self._stem, self._n_made), self._open)
        self._n_made += 1
        self._files.append(file)
        return file

    def _end_own(self, topic_partition: TopicPartition) -> None:
        """Nothing more goes to the partition's own file, if it has one."""
        own = self._own.pop(topic_partition, None)
        if own is not None:
            own.write_table(self._segment_bytes)

    def close(self) -> TaskExtents:
        """The extents that were written.

        Raises `StagedFileError` if the shared file is damaged; `SyncFailedError` if the disk did
        not keep some of the bytes.
        """
        for topic_partition in [*self._own]:
            self._end_own(topic_partition)
        self._group_shared()
        for file in self._files:
            # The commit checks what it copies, and syncs the copy.
            if not file.is_moved(self._segment_bytes):
                self._open.drop(file.path)
        self._open.finish()
        return TaskExtents.of(self._extents)

    def _group_shared(self) -> None:
        """Rewrite the shared file, with one extent for consecutive batches of a partition.

        Each buffer of rows leaves an extent for each partition in the shared file, and the driver
        holds the extents of all tasks: some hundred million for 10 TB in 1,000 partitions.
        Grouped, a task has one for each partition.  The file is read back in windows, and its
        checksums are verified.
        """
        shared = self._shared
        if shared is not None:
            shared.flush()
        runs: list[list[Extent]] = []
        last_run: dict[TopicPartition, list[Extent]] = {}
        for extent in self._extents:
            run = last_run.get(extent.topic_partition)
            if run is None or extent.is_own or run[-1].is_own:
                run = last_run[extent.topic_partition] = []
                runs.append(run)
            run.append(extent)
        if shared is None or len(runs) == len(self._extents):
            return
        target = self._new_shared()
        with staged_errors():
            self._extents = [
                run[0] if run[0].is_own else self._copy_run(run, target) for run in runs
            ]
        target.flush()
        self._open.drop(shared.path)
        os.unlink(shared.path)
        self._files.remove(shared)

    def _copy_run(self, run: list[Extent], target: _File) -> Extent:
        """Copy extents of one partition to the end of a file, as one extent."""
        start, n_records = target.size, 0
        for extent in run:
            shift = 0 if extent.has_offsets else n_records
            for batches in staged_batches(self._directory, extent, shift, 0):
                target.write(batches.data)
            n_records += extent.n_records
        return run[0]._replace(
            name=target.name, start=start, end=target.size, n_records=n_records,
            last_offset=run[-1].last_offset,
        )  # fmt: skip

    def discard(self) -> None:
        """Remove the files: the task has failed."""
        self._open.abandon()
        for file in self._files:
            file.remove()
