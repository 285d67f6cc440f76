"""Upload batches of a log directory as they are: a mirror upwards, and what upkeep has rewritten.

Batches keep their offsets, leader epochs and bytes: a compressed message of magic 0 or 1 has the
offsets of its records under its checksum, so nobody could give it others.  The indexes of an
extent are made from its headers, and follow it in the object.
"""

import errno
import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from segmentlog.bucket.commits import PlacedExtent, Snapshot, digest_of_extent
from segmentlog.bucket.objects import DATA, Objects
from segmentlog.errors import LogChangedError, StorageError, TruncatedBatchError
from segmentlog.format.kernels import layout
from segmentlog.log.batches import WalkedBatches, walk_file
from segmentlog.log.index_builder import IndexBuilder
from segmentlog.log.indexes import AbortedTransaction, encode_transactions
from segmentlog.log.producer_snapshot import ProducerSnapshot, encode_snapshot
from segmentlog.log.producers import ProducerStates
from segmentlog.log.segment import Segment
from segmentlog.model import INDEX_INTERVAL_BYTES, TopicPartition
from segmentlog.store.readable import ReadableFile

#: A larger extent is divided: readers share the extents of a log among their tasks.
MOST_EXTENT_BYTES = 64 << 20

#: A larger object is divided, too.  Stores take 10,000 parts of 8 MiB for an object at the most.
_MOST_OBJECT_BYTES = 1 << 30

_PIECE_BYTES = 1 << 20


class Part(NamedTuple):
    """Whole batches of one segment that are to be uploaded."""

    segment: Segment
    begin: int  # byte of the file
    end: int
    base_offset: int  # at which the part begins: its first batch may begin later
    end_offset: int  # at which the next part begins


class _Planned(NamedTuple):
    """An extent, before anybody knows its place in an object."""

    part: Part
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
        self._n_bytes = self._n_objects = 0
        self.extents: list[PlacedExtent] = []
        self.snapshots: dict[TopicPartition, Snapshot] = {}

    def add(self, at: TopicPartition, part: Part, producers: ProducerStates) -> None:
        """Take a part of a partition, after its earlier ones.

        `producers`: at the beginning of the part, and afterwards at its end.  Raises
        `CorruptLogError` or `UnsupportedFormatError` if a header cannot be true; `LogChangedError`
        if the segment has been replaced; `StorageError` if the store or a disk fails.
        """
        with _opened(part.segment) as file:
            for planned in _extents_of(at, part, file, producers):
                self._planned.append(planned)
                self._n_bytes += planned.extent.end
                if self._n_bytes >= _MOST_OBJECT_BYTES:
                    self._send()

    def add_snapshot(
        self, at: TopicPartition, offset: int, producers: list[ProducerSnapshot]
    ) -> None:
        """Take the producers of a partition."""
        self._snapshots.append((at, offset, encode_snapshot(producers)))

    def finish(self) -> None:
        """Upload the rest; `extents` and `snapshots` have all places then."""
        if self._planned or self._snapshots:
            self._send()

    def _send(self) -> None:
        key = f"{DATA}{self._job}/{self._n_objects}-{secrets.token_hex(4)}.batches"
        self._objects.put(key, self._pieces(key))
        self._n_objects += 1
        self._planned, self._snapshots, self._n_bytes = [], [], 0

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
        for at, offset, data in self._snapshots:
            yield data
            self.snapshots[at] = Snapshot(offset, key, position, len(data))
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


class _Growing:
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

    def planned(self, at: TopicPartition, part: Part, end_offset: int) -> _Planned:
        """The extent, which ends at an offset."""
        indexes = [
            b"".join(self._offsets),
            b"".join([*self._times, self._builder.last_time()]),
            encode_transactions(self._aborted),
        ]
        n_records = min(self.n_records, end_offset - self.base_offset)
        extent = PlacedExtent(
            *at, "", 0, self.size, self.base_offset, end_offset, n_records,
            max(self.max_timestamp, -1), 0, *map(len, indexes),
        )  # fmt: skip
        return _Planned(part, self.begin, extent, b"".join(indexes))


def _extents_of(
    at: TopicPartition, part: Part, file: ReadableFile, producers: ProducerStates
) -> Iterator[_Planned]:
    """A part as extents, each with its indexes."""
    path = part.segment.path
    growing, position, next_offset = _Growing(part.begin, part.base_offset), part.begin, -1
    for walked in walk_file(path, file, part.begin, part.end):
        if growing.size >= MOST_EXTENT_BYTES:
            yield growing.planned(at, part, next_offset)
            growing = _Growing(position, next_offset)
        growing.add(walked, producers)
        position = walked.scanned.file_position + walked.scanned.end
        next_offset = walked.next_offset
    if position != part.end:
        left = part.end - position
        raise TruncatedBatchError(path, position, -1, left + 1, left)
    if growing.size:
        yield growing.planned(at, part, part.end_offset)
