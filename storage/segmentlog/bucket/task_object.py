"""The data object of a task: the batches of its partitions, one partition after the other.

Batches come in buffers of rows, so those of a partition are spread over what a task has made.
They wait in memory, and in a temporary file if they are many, and go to the store together.
"""

import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from segmentlog.bucket.objects import DATA, Objects
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.encode import assign_offsets
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.records.encoder import EncodedBatches
from segmentlog.log.index_builder import IndexBuilder
from segmentlog.model import TopicPartition

#: A larger extent is divided: each is a segment for readers.
_MOST_BYTES = 64 << 20

#: A larger extent gets indexes, which follow it in the object.
_INDEXED_BYTES = 1 << 20
_INTERVAL_BYTES = 64 << 10  #: between entries: one read of a store takes as many at the least

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
    offset_index: int = 0  # bytes of its indexes, which follow it; 0 for none
    time_index: int = 0


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
        self.headers: list[Int64s] = []  # of the batches, by `format.kernels.layout`
        self.size = self.n_records = 0
        self.first_offset, self.last_offset = first_offset, RELATIVE
        self.max_timestamp = -1

    def indexes(self) -> tuple[bytes, bytes]:
        """The offset and the time index; both are empty if the extent is small.

        Their offsets are relative to the base offset, which only the commit gives.
        """
        if self.size <= _INDEXED_BYTES:
            return b"", b""
        builder = IndexBuilder.unlimited(max(self.first_offset, 0), _INTERVAL_BYTES)
        headers = np.concatenate(self.headers)
        taken = builder.take(headers)
        if taken.end < len(headers):  # rows with offsets of their own may be too far apart
            return b"", b""
        return taken.offset_entries, taken.time_entries + builder.last_time()


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
        headers = batches.table.copy()
        if offsets is None:
            headers[:, layout.LAST_OFFSET] = (
                extent.n_records + np.cumsum(batches.records_counts) - 1
            )
        extent.headers.append(headers)
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
        indexes = {
            at: [each.indexes() for each in mine] for at, mine in sorted(self._extents.items())
        }
        for at, of_partition in indexes.items():
            for each, found in zip(self._extents[at], of_partition, strict=True):
                sizes = [len(index) for index in found]
                extents.append(
                    StagedExtent(
                        *at, self._key, position, each.size, each.n_records, each.first_offset,
                        each.last_offset, each.max_timestamp, *sizes,
                    )
                )  # fmt: skip
                position += each.size + sum(sizes)
        if extents:
            self._objects.put(self._key, self._pieces(indexes))
        self.discard()
        return StagedObjects(tuple(extents))

    def _pieces(
        self, indexes: Mapping[TopicPartition, Sequence[tuple[bytes, bytes]]]
    ) -> Iterator[bytes]:
        for at, of_partition in indexes.items():
            for extent, found in zip(self._extents[at], of_partition, strict=True):
                for position, n_bytes in extent.pieces:
                    self._spool.seek(position)
                    yield self._spool.read(n_bytes)
                yield from filter(None, found)

    def discard(self) -> None:
        """Forget everything; a part of an upload that was begun is never an object."""
        self._spool.close()
        self._extents = {}
