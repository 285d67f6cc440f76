"""The extents of a log in an object store, and the partitions that they add up to.

An extent is a range of a data object: batches of one partition, with the offsets that they get.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple

from segmentlog.model import TopicPartition

#: Integers of an extent beside its object and shift, in the order of `PlacedExtent`.
NUMBERS = ("start", "size", "base_offset", "end_offset", "n_records", "max_timestamp")

#: More of them, which a commit leaves out if all of them are 0.
MORE_NUMBERS = ("offset_index", "time_index", "transaction_index", "digest")
ALL_NUMBERS = (*NUMBERS, *MORE_NUMBERS)

#: Bytes that follow the batches of an extent in its object: its indexes, one after the other.
INDEX_SIZES = ("offset_index", "time_index", "transaction_index")


class PlacedExtent(NamedTuple):
    """Batches of one partition that follow each other in a data object, with their offsets."""

    topic: str
    partition: int
    object: str  # key of the data object
    start: int  # byte of the object
    size: int  # in bytes
    base_offset: int  # of the first record, in the log
    end_offset: int  # after the last record
    n_records: int
    max_timestamp: int  # epoch milliseconds; -1 for none
    #: added to the base offset of each batch, it gives the one in the log
    shift: int
    #: bytes of its indexes, which follow it in the object; 0 for none
    offset_index: int = 0
    time_index: int = 0
    transaction_index: int = 0
    digest: int = 0  # of the bytes of the batches, by `digest_of_extent`; 0 if it is not known

    @property
    def end(self) -> int:
        """Byte of the object after the extent and its indexes."""
        indexes = self.offset_index + self.time_index + self.transaction_index
        return self.start + self.size + indexes


class StoredSnapshot(NamedTuple):
    """The producers of a partition at an offset: a ``.snapshot`` file in a data object."""

    offset: int
    object: str
    start: int
    size: int


class Topic(NamedTuple):
    """A topic of a log."""

    topic_id: str  # as Kafka prints it
    n_partitions: int
    #: partitions that the log does not have: those of other brokers than the mirrored one
    lacks: tuple[int, ...] = ()


class Extents:
    """The extents of one partition, as columns, in the order of their offsets.

    They only grow.  Several states share one of them, and each knows how many are its own
    (`PartitionLog.n_extents`): a commit costs what it adds, however long the log is.
    """

    __slots__ = ("columns", "objects", "shifts")

    def __init__(self) -> None:
        self.objects: list[str] = []  # keys; the same text for all extents of an object
        self.shifts = array("q")
        self.columns: dict[str, array[int]] = {name: array("q") for name in ALL_NUMBERS}

    def __len__(self) -> int:
        return len(self.objects)

    def add(self, extent: PlacedExtent) -> None:
        """Append an extent."""
        self.objects.append(extent.object)
        self.shifts.append(extent.shift)
        for name in ALL_NUMBERS:
            self.columns[name].append(getattr(extent, name))

    def part(self, begin: int, end: int) -> "Extents":
        """A copy of some extents."""
        found = Extents()
        found.objects, found.shifts = self.objects[begin:end], self.shifts[begin:end]
        found.columns = {name: column[begin:end] for name, column in self.columns.items()}
        return found

    def extend(self, others: "Extents") -> None:
        """Append extents."""
        self.objects += others.objects
        self.shifts += others.shifts
        for name, column in others.columns.items():
            self.columns[name] += column


@dataclass(slots=True)
class PartitionLog:
    """One partition: its bounds, and its extents."""

    start: int = 0  # log start offset
    end: int = 0  # log end offset
    extents: Extents = field(default_factory=Extents)
    n_extents: int = 0  # of `extents`; later ones belong to later states
    #: leader epochs and the offsets at which they begin, of a log that a mirror has brought
    epochs: tuple[tuple[int, int], ...] = ()
    snapshot: StoredSnapshot | None = None  # the newest one that a mirror has brought
    cleaned_to: int = -1  # up to where it was compacted by key; -1 if it was not

    def column(self, name: str) -> "array[int]":
        """A column of the extents of this state."""
        return self.extents.columns[name][: self.n_extents]

    @property
    def objects(self) -> list[str]:
        """Keys of the data objects of the extents."""
        return self.extents.objects[: self.n_extents]

    def needed_objects(self) -> list[str]:
        """Keys of the data objects of the extents, and of the newest snapshot."""
        return [*self.objects, self.snapshot.object] if self.snapshot else self.objects

    def placed(
        self, at: TopicPartition, begin: int = 0, end: int | None = None
    ) -> list[PlacedExtent]:
        """All extents, or those from number `begin` on, of the partition `at`."""
        part = slice(begin, self.n_extents if end is None else end)
        columns = [self.extents.columns[name][part] for name in NUMBERS]
        more = [self.extents.columns[name][part] for name in MORE_NUMBERS]
        rows = zip(
            self.extents.objects[part], *columns, self.extents.shifts[part], *more, strict=True
        )
        return [PlacedExtent(*at, *each) for each in rows]

    def grown(self) -> "PartitionLog":
        """The partition of the next state, to which extents may be added."""
        extents, n = self.extents, self.n_extents
        if len(extents) > n:  # another state has grown from this one
            extents = extents.part(0, n)
        return replace(self, extents=extents)

    def add(self, extent: PlacedExtent) -> None:
        """Append an extent."""
        self.extents.add(extent)
        self.n_extents += 1
        self.end = extent.end_offset

    def follow_with(self, others: Extents) -> None:
        """Append the extents that follow replaced ones.

        Raises `ValueError` if they do not follow.
        """
        if len(others):
            if others.columns["base_offset"][0] < self.end:
                raise ValueError(f"offset {self.end} lies within the next extent")
            self.extents.extend(others)
            self.n_extents += len(others)
            self.end = others.columns["end_offset"][-1]

    def without(self, first: int, end: int) -> "tuple[PartitionLog, Extents]":
        """The partition up to the extents between two offsets, and the extents after them.

        Raises `ValueError` if an extent lies on one of the two offsets.
        """
        bases, n = self.extents.columns["base_offset"], self.n_extents
        begin, stop = bisect_left(bases, first, 0, n), bisect_left(bases, end, 0, n)
        ends = self.extents.columns["end_offset"]
        if (begin and ends[begin - 1] > first) or (stop and ends[stop - 1] > end):
            raise ValueError(f"an extent does not lie in offsets [{first}, {end})")
        before = replace(self, extents=self.extents.part(0, begin), n_extents=begin)
        before.end = ends[begin - 1] if begin else 0
        return before, self.extents.part(stop, n)


def digest_of_extent(pieces: Iterable[bytes]) -> int:
    """A digest of batches as a commit has it: 63 bits, and never 0."""
    digest = blake2b(digest_size=8)
    for piece in pieces:
        digest.update(piece)
    return int.from_bytes(digest.digest(), "big") >> 1 or 1
