"""Data objects: the batches of a task's rows, and batches that are uploaded as they are.

Rows come in buffers, so the batches of a partition are spread over what a task has made.  They
wait in memory, and in a temporary file if they are many, and go to the store together, one
partition after the other.  Their commit gives them their offsets.

A mirror upwards, and upkeep that has rewritten a log, upload batches of a log directory with their
offsets, leader epochs and bytes: a compressed message of magic 0 or 1 has the offsets of its
records under its checksum, so nobody could give it others.

An extent is a range of an object with batches of one partition.  Its indexes are made from its
headers, and follow it in the object.
"""

import contextlib
import errno
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from segmentlog.bucket.extents import PlacedExtent, StoredSnapshot, digest_of_extent
from segmentlog.bucket.objects import DATA, PART_BYTES, Objects
from segmentlog.errors import (
    LogChangedError,
    SegmentLogError,
    StorageError,
    TruncatedBatchError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.encode import assign_offsets
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.records.encoder import EncodedBatches
from segmentlog.log.batches import WalkedBatches, walk_file
from segmentlog.log.index_builder import IndexBuilder
from segmentlog.log.indexes import AbortedTransaction, encode_transactions
from segmentlog.log.producer_snapshot import ProducerSnapshot, encode_snapshot
from segmentlog.log.producers import ProducerStates
from segmentlog.log.segment import Segment
from segmentlog.model import INDEX_INTERVAL_BYTES, TopicPartition
from segmentlog.store.readable import ReadableFile

#: A larger extent is divided: each is a segment for readers, who share the extents of a log among
#: their tasks.
MOST_EXTENT_BYTES = 64 << 20

#: A larger upload is divided, too: all extents of an object are written again if one of them goes.
MOST_OBJECT_BYTES = 64 << 20

#: A larger extent gets indexes, which follow it in the object; smaller ones are joined.
SMALL_BYTES = 1 << 20
INTERVAL_BYTES = 64 << 10  #: between entries: one read of a store takes as many at the least

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
        if self.size <= SMALL_BYTES:
            return b"", b""
        builder = IndexBuilder.unlimited(max(self.first_offset, 0), INTERVAL_BYTES)
        headers = np.concatenate(self.headers)
        taken = builder.take(headers)
        if taken.end < len(headers):  # rows with offsets of their own may be too far apart
            return b"", b""
        return taken.offset_entries, taken.time_entries + builder.last_time()


class ObjectStage:
    """The stage of one task attempt, in the place of a `writes.staged_files.TaskStage`.

    `beside`: does what it is given, which writes the object, and something else meanwhile.
    """

    def __init__(
        self,
        objects: Objects,
        job: str,
        task: int,
        beside: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        self._objects, self._beside = objects, beside
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
        if not mine or mine[-1].size + n_bytes > MOST_EXTENT_BYTES:
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

        Raises `StorageError` if the store did not take it, and the errors of `beside`.
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
                        *at,
                        self._key,
                        position,
                        each.size,
                        each.n_records,
                        each.first_offset,
                        each.last_offset,
                        each.max_timestamp,
                        *sizes,
                    )
                )
                position += each.size + sum(sizes)
        if extents:
            self._put(lambda: self._objects.put(self._key, self._pieces(indexes)))
        self.discard()
        return StagedObjects(tuple(extents))

    def _put(self, put: Callable[[], object]) -> None:
        if self._beside is None:
            put()
            return
        try:
            self._beside(put)
        except LogChangedError:  # no log will name the object, and no sweep of a log finds it
            with contextlib.suppress(SegmentLogError, OSError):
                self._objects.delete([self._key])
            raise

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


_PIECE_BYTES = 1 << 20


class UploadPart(NamedTuple):
    """Whole batches of one segment that are to be uploaded."""

    segment: Segment
    begin: int  # byte of the file
    end: int
    base_offset: int  # at which the part begins: its first batch may begin later
    end_offset: int  # at which the next part begins


class _Planned(NamedTuple):
    """An extent, before anybody knows its place in an object."""

    part: UploadPart
    begin: int
    extent: PlacedExtent
    indexes: bytes


class Upload:
    """Uploads parts of segments; a commit then names the extents.

    `job`: is part of the keys of all data objects.  `on_bytes`: called with the number of bytes of
    batches that are read.
    """

    def __init__(
        self, objects: Objects, job: str, on_bytes: Callable[[int], object] = lambda _: None
    ) -> None:
        self._objects, self._job, self._on_bytes = objects, job, on_bytes
        self._planned: list[_Planned] = []
        self._snapshots: list[tuple[TopicPartition, int, bytes]] = []
        self._stored: list[PlacedExtent] = []
        self._n_bytes = self._n_objects = 0
        self.extents: list[PlacedExtent] = []
        self.snapshots: dict[TopicPartition, StoredSnapshot] = {}
        #: extents of the log at their new places, by object and start of the old ones
        self.moved: dict[tuple[str, int], PlacedExtent] = {}

    def add(self, at: TopicPartition, part: UploadPart, producers: ProducerStates) -> None:
        """Take a part of a partition, after its earlier ones.

        `producers`: at the beginning of the part, and afterwards at its end.  Raises
        `CorruptLogError` or `UnsupportedFormatError` if a header cannot be true; `LogChangedError`
        if the segment has been replaced; `StorageError` if the store or a disk fails.
        """
        with _opened(part.segment) as file:
            for planned in _extents_of(at, part, file, producers):
                self._planned.append(planned)
                self._n_bytes += planned.extent.end
                if self._n_bytes >= MOST_OBJECT_BYTES:
                    self._send()

    def add_snapshot(
        self, at: TopicPartition, offset: int, producers: list[ProducerSnapshot]
    ) -> None:
        """Take the producers of a partition."""
        self._snapshots.append((at, offset, encode_snapshot(producers)))

    @property
    def new_snapshots(self) -> set[TopicPartition]:
        """The partitions whose producers were taken."""
        return {*self.snapshots, *(at for at, _, _ in self._snapshots)}

    def add_stored(self, extent: PlacedExtent) -> None:
        """Take an extent of the log, to write it into another object as it is."""
        self._stored.append(extent)
        self._n_bytes += extent.end - extent.start
        if self._n_bytes >= MOST_OBJECT_BYTES:
            self._send()

    def add_stored_snapshot(self, at: TopicPartition, snapshot: StoredSnapshot) -> None:
        """Take a snapshot of the log, to write it into another object as it is."""
        data = self._objects.read(snapshot.object, snapshot.start, snapshot.size)
        self._snapshots.append((at, snapshot.offset, data))

    def finish(self) -> None:
        """Upload the rest; `extents`, `snapshots` and `moved` have all places then."""
        if self._planned or self._snapshots or self._stored:
            self._send()

    def _send(self) -> None:
        key = f"{DATA}{self._job}/{self._n_objects}-{secrets.token_hex(4)}.batches"
        self._objects.put(key, self._pieces(key))
        self._n_objects += 1
        self._planned, self._snapshots, self._stored, self._n_bytes = [], [], [], 0

    def _pieces(self, key: str) -> Iterator[bytes]:
        """The bytes of an object; notes the places in it."""
        position = 0
        for part, begin, extent, indexes in self._planned:
            placed = extent._replace(object=key, start=position)
            with _opened(part.segment) as file:
                digest = digest_of_extent(read_range(file, begin, extent.size))
                yield from read_range(file, begin, extent.size, self._on_bytes)
            yield indexes
            self.extents.append(placed._replace(digest=digest))
            position = placed.end
        for extent in self._stored:
            n_bytes = extent.end - extent.start
            for begin in range(0, n_bytes, PART_BYTES):
                size = min(PART_BYTES, n_bytes - begin)
                yield self._objects.read(extent.object, extent.start + begin, size)
            placed = extent._replace(object=key, start=position)
            self.moved[extent.object, extent.start] = placed
            position = placed.end
        for at, offset, data in self._snapshots:
            yield data
            self.snapshots[at] = StoredSnapshot(offset, key, position, len(data))
            position += len(data)


def _opened(segment: Segment) -> ReadableFile:
    """A segment as it was listed."""
    file = segment.opened().file
    if segment.inode not in (0, file.status().inode):
        file.close()
        reason = "another file has taken its place since it was listed; mirror again"
        raise LogChangedError(segment.path, -1, -1, reason)
    return file


def read_range(
    file: ReadableFile, begin: int, size: int, on_bytes: Callable[[int], object] = lambda _: None
) -> Iterator[bytes]:
    """Some bytes of a file, piece by piece.

    Raises `StorageError` if the file is shorter.
    """
    at, end = begin, begin + size
    while at < end:
        piece = file.read(at, min(_PIECE_BYTES, end - at))
        if not piece:
            raise StorageError(errno.EIO, "the file is shorter than it was listed", file.path)
        on_bytes(len(piece))
        yield piece
        at += len(piece)


class _GrowingExtent:
    """An extent that batches are added to."""

    def __init__(self, begin: int, base_offset: int) -> None:
        self.begin, self.base_offset = begin, base_offset
        self.size = self.n_records = 0
        self.max_timestamp = -1
        self._builder = IndexBuilder.unlimited(base_offset, INDEX_INTERVAL_BYTES)
        self._offsets, self._times = list[bytes](), list[bytes]()
        self._aborted: list[AbortedTransaction] = []

    def add(self, walked: WalkedBatches, producers: ProducerStates) -> None:
        """Take the batches that follow."""
        headers = walked.scanned.headers
        taken = self._builder.take(headers)
        self._offsets.append(taken.offset_entries)
        self._times.append(taken.time_entries)
        self._aborted += producers.follow(walked)
        self.size += int(headers[:, layout.SIZE].sum())
        # A message of magic 0 or 1 counts as one, also a wrapper, which may have more records.
        is_legacy = headers[:, layout.ATTRIBUTES] & layout.LEGACY_MASK != 0
        counts = np.where(is_legacy, 1, np.maximum(headers[:, layout.RECORDS_COUNT], 0))
        self.n_records += int(counts.sum())
        self.max_timestamp = max(self.max_timestamp, int(headers[:, layout.MAX_TIMESTAMP].max()))

    def planned(self, at: TopicPartition, part: UploadPart, end_offset: int) -> _Planned:
        """The extent, which ends at an offset."""
        indexes = [
            b"".join(self._offsets),
            b"".join([*self._times, self._builder.last_time()]),
            encode_transactions(self._aborted),
        ]
        n_records = min(self.n_records, end_offset - self.base_offset)
        extent = PlacedExtent(
            *at,
            "",
            0,
            self.size,
            self.base_offset,
            end_offset,
            n_records,
            max(self.max_timestamp, -1),
            0,
            *map(len, indexes),
        )
        return _Planned(part, self.begin, extent, b"".join(indexes))


def _extents_of(
    at: TopicPartition, part: UploadPart, file: ReadableFile, producers: ProducerStates
) -> Iterator[_Planned]:
    """A part as extents, each with its indexes."""
    path = part.segment.path
    growing, position, next_offset = _GrowingExtent(part.begin, part.base_offset), part.begin, -1
    for walked in walk_file(path, file, part.begin, part.end):
        if growing.size >= MOST_EXTENT_BYTES:
            yield growing.planned(at, part, next_offset)
            growing = _GrowingExtent(position, next_offset)
        growing.add(walked, producers)
        position = walked.scanned.file_end
        next_offset = walked.next_offset
    if position != part.end:
        left = part.end - position
        raise TruncatedBatchError(path, position, -1, left + 1, left)
    if growing.size:
        yield growing.planned(at, part, part.end_offset)
