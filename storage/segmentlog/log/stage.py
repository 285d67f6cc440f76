"""Staged batches: what a writing task leaves in the log directory for the commit to take.

A staged file's name begins with a letter and has no dash: a broker, which knows directories, and
files by the digits that their names begin with, passes over it.  It holds record batches only.

A partition of which a task has much gets files of its own, each no larger than a segment: the
commit moves those into the log instead of copying them.  All others share one file, so that many
tasks with many partitions do not make as many files as both together.
"""

import contextlib
import os
import secrets
from typing import NamedTuple

import numpy as np

from segmentlog.files.durable import create_file, sync_file, write_all
from segmentlog.kernels.encode import assign_offsets
from segmentlog.kernels.memory import Bytes
from segmentlog.model import TopicPartition
from segmentlog.records.encoder import EncodedBatches

__all__ = ["STAGE_SUFFIX", "Extent", "TaskStage", "least_moved_bytes"]

STAGE_SUFFIX = ".stage"

_RELATIVE = -1
_MOST_FILES = 256  #: descriptors that one task keeps open


class Extent(NamedTuple):
    """Batches of one partition, one behind the other in a staged file.

    Small and picklable: it travels from the writing task to the commit on the driver.
    """

    topic: str
    partition: int
    name: str  #: of the staged file, in the log directory
    start: int
    end: int
    n_records: int
    first_offset: int = _RELATIVE  #: -1 when offsets count from 0, to be moved to the log end
    last_offset: int = _RELATIVE
    is_own: bool = False  #: whether nothing else is in the file

    @property
    def topic_partition(self) -> TopicPartition:
        """Whose batches they are."""
        return TopicPartition(self.topic, self.partition)

    @property
    def has_offsets(self) -> bool:
        """Whether its records keep the offsets that they have."""
        return self.first_offset != _RELATIVE

    def end_offset(self, next_offset: int) -> int:
        """The log end behind it, when it is appended at `next_offset`."""
        return self.last_offset + 1 if self.has_offsets else next_offset + self.n_records


def least_moved_bytes(segment_bytes: int) -> int:
    """Bytes from which a file is moved into the log as a segment, and not copied.

    Copying less takes about as long as syncing one more file, and leaves fewer segments.
    """
    return segment_bytes // 64


class _File:
    """One staged file that is being written."""

    def __init__(self, directory: str, name: str) -> None:
        self.name = name
        self.path = os.path.join(directory, name)
        self.size = 0
        self._descriptor = create_file(self.path)

    def write(self, data: Bytes) -> None:
        """Append."""
        write_all(self._descriptor, data.data, self.size)
        self.size += len(data)

    def close(self, *, flush: bool) -> None:
        """Only the task can tell whether all has been written.

        What goes wrong when its pages are written back is reported once, to a descriptor that was
        open then, and not to the driver that reads the file later.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        try:
            if flush:
                sync_file(descriptor, self.path)
        finally:
            os.close(descriptor)


class TaskStage:
    """What one task attempt stages; files are made when something is written to them.

    Parameters
    ----------
    directory : the log directory.
    token : of the job.
    task : number of the task, for people who look at the directory.
    segment_bytes : most bytes of a segment, and so of a file of one partition.
    """

    def __init__(self, directory: str, token: str, task: int, segment_bytes: int) -> None:
        # A task that is tried again must not meet its own earlier attempt.
        self._stem = f"segmentlog.{token}.{task}.{secrets.token_hex(4)}"
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._files: list[_File] = []
        self._shared: _File | None = None
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
        """Write batches of one partition behind those that it has.

        Parameters
        ----------
        batches : their buffer is changed where offsets count from 0, to count on.
        offsets : the first and the last, if they are to be kept.
        """
        file, is_own = self._file_of(topic_partition, len(batches.buffer))
        n_records = int(batches.records_counts.sum())
        number = self._last_of.get(topic_partition, -1)
        before = self._extents[number] if number >= 0 else None
        if before is None or (before.name, before.end) != (file.name, file.size):
            number = self._last_of[topic_partition] = len(self._extents)
            first = offsets[0] if offsets else _RELATIVE
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
            last_offset=offsets[1] if offsets else _RELATIVE,
        )

    def _file_of(self, topic_partition: TopicPartition, n_bytes: int) -> tuple[_File, bool]:
        """Where the next bytes of a partition go, and whether that file is its own."""
        staged = self._staged.get(topic_partition, 0)
        self._staged[topic_partition] = staged + n_bytes
        own = self._own.get(topic_partition)
        is_much = (
            own is not None
            or staged >= least_moved_bytes(self._segment_bytes)
            or n_bytes >= self._segment_bytes // 1024  # more of it will come, perhaps
        )
        if is_much and n_bytes <= self._segment_bytes:
            if own is not None and own.size + n_bytes <= self._segment_bytes:
                return own, True
            if len(self._files) < _MOST_FILES:
                self._own[topic_partition] = self._new_file()
                return self._own[topic_partition], True
        # What comes next is not to follow in the own file what came before this: a file that is
        # moved is one extent.  Going back to it wrote rows twice, or failed every commit.
        self._own.pop(topic_partition, None)
        if self._shared is None:
            self._shared = self._new_file()
        return self._shared, False

    def _new_file(self) -> _File:
        name = f"{self._stem}.{len(self._files)}{STAGE_SUFFIX}"
        self._files.append(_File(self._directory, name))
        return self._files[-1]

    def close(self, *, flush: bool) -> tuple[Extent, ...]:
        """What was written; with `flush` it is on the disk."""
        for file in self._files:
            file.close(flush=flush)
        return tuple(self._extents)

    def discard(self) -> None:
        """Remove the files: the task has failed."""
        for file in self._files:
            with contextlib.suppress(OSError):
                file.close(flush=False)
            with contextlib.suppress(OSError):
                os.unlink(file.path)
