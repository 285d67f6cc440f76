"""The data object of a task: the batches of its partitions, one partition after the other.

Batches come in buffers of rows, so those of a partition are spread over what a task has made.
They wait in memory, and in a temporary file if they are many, and go to the store together.
"""

import secrets
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from segmentlog.bucket.objects import DATA, Objects
from segmentlog.format.kernels.encode import assign_offsets
from segmentlog.format.records.encoder import EncodedBatches
from segmentlog.model import TopicPartition

#: A larger extent is divided: each is a segment for readers, who have no index within it.
_MOST_BYTES = 64 << 20

_IN_MEMORY = 64 << 20

RELATIVE = -1  #: instead of an offset: offsets continue from the log end


class StagedExtent(NamedTuple):
    """Batches of one partition that follow each other in a data object."""

    topic: str
    partition: int
    object: str  # key of the data object
    start: int
    size: int
    n_records: int
    first_offset: int  # `RELATIVE` if the records get the next offsets of the log
    last_offset: int
    max_timestamp: int


class StagedObjects(NamedTuple):
    """What one task has staged."""

    extents: tuple[StagedExtent, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Keys of the data objects."""
        return tuple(dict.fromkeys(each.object for each in self.extents))


class _Extent:
    """An extent that batches are added to."""

    def __init__(self, first_offset: int) -> None:
        self.pieces: list[tuple[int, int]] = []  # position and size in the spool
        self.size = self.n_records = 0
        self.first_offset, self.last_offset = first_offset, RELATIVE
        self.max_timestamp = -1


class ObjectStage:
    """The stage of one task attempt, in the place of a `writes.staged_files.TaskStage`."""

    def __init__(self, objects: Objects, job: str, task: int) -> None:
        self._objects = objects
        # A second attempt of a task must not meet the object of the first.
        self._key = f"{DATA}{job}/{task}-{secrets.token_hex(4)}.batches"
        self._spool = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - see `discard`
        self._n_bytes = 0
        self._extents: dict[TopicPartition, list[_Extent]] = {}

    def add(
        self,
        topic_partition: TopicPartition,
        batches: EncodedBatches,
        offsets: tuple[int, int] | None = None,
    ) -> None:
        """Take batches of one partition after its earlier ones; see `TaskStage.add`."""
        n_bytes = len(batches.buffer)
        mine = self._extents.setdefault(topic_partition, [])
        if not mine or mine[-1].size + n_bytes > _MOST_BYTES:
            mine.append(_Extent(offsets[0] if offsets else RELATIVE))
        extent = mine[-1]
        if offsets is None and extent.n_records:
            positions = np.ascontiguousarray(batches.positions)
            assign_offsets(batches.buffer, positions, extent.n_records, 0)
        extent.pieces.append((self._n_bytes, n_bytes))
        self._spool.write(batches.buffer.data)
        self._n_bytes += n_bytes
        extent.size += n_bytes
        extent.n_records += int(batches.records_counts.sum())
        extent.last_offset = offsets[1] if offsets else RELATIVE
        extent.max_timestamp = max(extent.max_timestamp, int(batches.max_timestamps.max()))

    def close(self) -> StagedObjects:
        """Write the object, if there are batches, and return what it holds.

        Raises `StorageError` if the store did not take it.
        """
        extents, position = [], 0
        for (topic, partition), mine in sorted(self._extents.items()):
            for each in mine:
                extents.append(
                    StagedExtent(
                        topic, partition, self._key, position, each.size, each.n_records,
                        each.first_offset, each.last_offset, each.max_timestamp,
                    )
                )  # fmt: skip
                position += each.size
        if extents:
            self._objects.put(self._key, self._pieces())
        self.discard()
        return StagedObjects(tuple(extents))

    def _pieces(self) -> Iterator[bytes]:
        for _, mine in sorted(self._extents.items()):
            for extent in mine:
                for position, n_bytes in extent.pieces:
                    self._spool.seek(position)
                    yield self._spool.read(n_bytes)

    def discard(self) -> None:
        """Forget everything; a part of an upload that was begun is never an object."""
        self._spool.close()
        self._extents = {}
