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
from typing import TypeVar

import numpy as np

from segmentlog.commit.extent import RELATIVE, Extent
from segmentlog.commit.extent_columns import TaskExtents
from segmentlog.commit.open_files import OpenFiles
from segmentlog.commit.staged_batches import staged_batches, staged_errors
from segmentlog.kernels.encode import assign_offsets
from segmentlog.kernels.memory import Bytes
from segmentlog.model import TopicPartition
from segmentlog.records.encoder import EncodedBatches

__all__ = ["STAGE_SUFFIX", "Extent", "TaskStage", "least_moved_bytes"]

STAGE_SUFFIX = ".stage"

#: Files for partitions that have one large piece, but not enough for a segment yet.  Without a
#: bound, 10,000 partitions with a piece each would be 10,000 files.
_MOST_EARLY_FILES = 256

#: Bytes of the shared file that are written at once, at multiples of this size.  A piece of 32 KiB
#: that begins and ends within pages takes three times as long to write as its share of these.
_JOINED_BYTES = 256 << 10


def least_moved_bytes(segment_bytes: int) -> int:
    """Bytes from which a file is moved into the log as a segment, and not copied.

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
        """Write what is left; nothing is appended behind it."""
        self._write_joined(self.size % _JOINED_BYTES)

    def _write_joined(self, n_bytes: int) -> None:
        self._files.write(self.path, self._joined[:n_bytes].data, self.size - n_bytes)


_AnyFile = TypeVar("_AnyFile", bound=_File)


class TaskStage:
    """The staged files of one task attempt; a file is made when it is first written to.

    Parameters
    ----------
    directory : the log directory.
    token : of the job.
    task : number of the task, for people who look at the directory.
    segment_bytes : most bytes of a segment, and so of a file of one partition.
    flush : whether the staged files are on the disk when the stage is closed.
    """

    def __init__(
        self, directory: str, token: str, task: int, segment_bytes: int, *, flush: bool
    ) -> None:
        # A second attempt of a task must not meet the files of the first.
        self._stem = f"segmentlog.{token}.{task}.{secrets.token_hex(4)}"
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._open = OpenFiles(flush=flush)
        self._files: list[_File] = []
        self._n_made = 0
        self._shared: _SharedFile | None = None
        self._own: dict[TopicPartition, _File] = {}
        self._staged: dict[TopicPartition, int] = {}
        self._extents: list[Extent] = []
        self._last_of: dict[TopicPartition, int] = {}  # where its last extent is among all

    def add(
        self,
        topic_partition: TopicPartition,
        batches: EncodedBatches,
        offsets: tuple[int, int] | None = None,
    ) -> None:
        """Write batches of one partition behind its earlier batches.

        Parameters
        ----------
        batches : if offsets count from 0, the buffer is changed so that they count on.
        offsets : the first and the last offset, if offsets are to be kept.
        """
        file, is_own = self._file_of(topic_partition, len(batches.buffer))
        n_records = int(batches.records_counts.sum())
        number = self._last_of.get(topic_partition, -1)
        before = self._extents[number] if number >= 0 else None
        if before is None or (before.name, before.end) != (file.name, file.size):
            number = self._last_of[topic_partition] = len(self._extents)
            first = offsets[0] if offsets else RELATIVE
            before = Extent(*topic_partition, file.name, file.size, file.size, 0, first, first,
                            is_own)  # fmt: skip
            self._extents.append(before)
        if offsets is None and before.n_records:
            positions = np.ascontiguousarray(batches.positions)
            assign_offsets(batches.buffer, positions, before.n_records, 0)
        file.write(batches.buffer)
        self._extents[number] = before._replace(
            end=file.size,
            n_records=before.n_records + n_records,
            last_offset=offsets[1] if offsets else RELATIVE,
        )

    def _file_of(self, topic_partition: TopicPartition, n_bytes: int) -> tuple[_File, bool]:
        """The file for a partition's next bytes, and whether it holds that partition alone."""
        staged = self._staged.get(topic_partition, 0)
        self._staged[topic_partition] = staged + n_bytes
        own = self._own.get(topic_partition)
        is_much = (
            own is not None
            or staged >= least_moved_bytes(self._segment_bytes)
            # More rows of the partition will probably come.
            or (n_bytes >= self._segment_bytes // 1024 and self._n_made < _MOST_EARLY_FILES)
        )
        if is_much and n_bytes <= self._segment_bytes:
            if own is not None and own.size + n_bytes <= self._segment_bytes:
                return own, True
            self._own[topic_partition] = self._new_file(_File)
            return self._own[topic_partition], True
        # Later rows must not go back to the partition's own file: a moved file is one extent.
        # When they went back, rows were written twice, or every commit failed.
        self._own.pop(topic_partition, None)
        if self._shared is None:
            self._shared = self._new_file(_SharedFile)
        return self._shared, False

    def _new_file(self, kind: type[_AnyFile]) -> _AnyFile:
        name = f"{self._stem}.{self._n_made}{STAGE_SUFFIX}"
        self._n_made += 1
        file = kind(self._directory, name, self._open)
        self._files.append(file)
        return file

    def close(self) -> TaskExtents:
        """The extents that were written.

        Raises
        ------
        StagedFileError
            If the shared file is damaged.
        SyncFailedError
            If the disk did not keep some of the bytes.
        """
        # Grouped before the sync: the commit takes the new file, and the old one is removed.
        self._group_shared()
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
        target = self._new_file(_SharedFile)
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
            with contextlib.suppress(OSError):
                os.unlink(file.path)
