"""The places of staged batches: a file and the bytes in it, as an object and as columns.

A driver holds up to eighty million extents, if 80,000 tasks write 10 TB into 1,000 partitions.  So
the extents of a task, and of a job, are columns.  There, an extent takes 36 bytes, or 52 if
records keep their offsets.  As an `Extent` object it takes about 230.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segmentlog.model import TopicPartition

if TYPE_CHECKING:  # the kernels load with it
    from segmentlog.format.records.scanned_batches import ScannedBatches

_Int64s: TypeAlias = NDArray[np.int64]  # `format.kernels.memory` has it too, and loads the kernels

STAGE_SUFFIX = ".stage"

RELATIVE = -1  #: instead of an offset: offsets continue from the log end


class StagedFile(NamedTuple):
    """A file in the log directory that holds staged batches."""

    name: str
    is_own: bool = False  #: whether its batches are of one partition, and of one extent
    #: The place in the log for which a file of one partition is staged.  A commit that finds the
    #: end of the log there has nothing to change in the file.
    offset: int = 0
    leader_epoch: int = 0


NO_FILE = StagedFile("")  #: of batches in memory


class Extent(NamedTuple):
    """Batches of one partition that follow each other in a staged file, or in memory.

    An extent of a file is small and picklable: it travels from the writing task to the commit on
    the driver.
    """

    topic: str
    partition: int
    file: StagedFile
    start: int
    end: int
    n_records: int
    first_offset: int = RELATIVE  #: -1 when offsets are to be moved to the log end
    last_offset: int = RELATIVE
    #: the batches, if no file has them; the offsets of each piece count from 0, unless they are
    #: kept
    held: "tuple[ScannedBatches, ...]" = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def has_offsets(self) -> bool:
        """Whether its records keep their offsets."""
        return self.first_offset != RELATIVE

    @property
    def staged_from(self) -> int:
        """Base offset of its first batch, as it stands in the file."""
        return self.first_offset if self.has_offsets else self.file.offset

    def grown(self, end: int, n_records: int, offsets: tuple[int, int] | None) -> "Extent":
        """With more records, up to `end`; `offsets`: their first and last, if they are kept."""
        return self._replace(
            end=end,
            n_records=self.n_records + n_records,
            last_offset=offsets[1] if offsets else RELATIVE,
        )

    def shift_to(self, next_offset: int) -> int:
        """Added to the base offset of each batch, it gives the one in the log."""
        return 0 if self.has_offsets else next_offset - self.staged_from

    def end_offset(self, next_offset: int) -> int:
        """The log end once the extent is appended at `next_offset`."""
        return self.last_offset + 1 if self.has_offsets else next_offset + self.n_records


# Without padding: the driver may hold eighty million of them.
_FIELDS = [
    ("topic", "<i4"), ("partition", "<i4"), ("file", "<i4"), ("start", "<i8"), ("end", "<i8"),
    ("n_records", "<i8"),
]  # fmt: skip
_COUNTED = np.dtype(_FIELDS)
_WITH_OFFSETS = np.dtype([*_FIELDS, ("first_offset", "<i8"), ("last_offset", "<i8")])


class TaskExtents:
    """Extents of one task, in its order; small when pickled, and as small afterwards.

    `topics`, `files`: the rows refer to these by number.  `rows`: one after the other, of kind
    `_COUNTED`, or `_WITH_OFFSETS` if the extents of the task keep offsets.  `held`: the batches of
    extents that are in memory, by their numbers.
    """

    __slots__ = ("_held", "_rows", "_topics", "files", "has_offsets")

    def __init__(
        self,
        topics: Iterable[str],
        files: Iterable[StagedFile],
        rows: bytes,
        has_offsets: bool,
        held: "Mapping[int, tuple[ScannedBatches, ...]] | None" = None,
    ) -> None:
        # Each of 80,000 messages brings the topics' names with it.
        self._topics = tuple(map(sys.intern, topics))
        self.files = tuple(files)
        self._rows = rows
        self.has_offsets = has_offsets
        self._held = held

    @classmethod
    def of(cls, extents: Iterable[Extent]) -> "TaskExtents":
        """Columns of extents that are objects."""
        extents = [*extents]
        has_offsets = any(each.has_offsets for each in extents)
        topics: dict[str, int] = {}
        files: dict[StagedFile, int] = {}
        rows = [
            (
                topics.setdefault(each.topic, len(topics)), each.partition,
                files.setdefault(each.file, len(files)), each.start, each.end, each.n_records,
                *((each.first_offset, each.last_offset) if has_offsets else ()),
            )
            for each in extents
        ]  # fmt: skip
        columns = np.array(rows, _WITH_OFFSETS if has_offsets else _COUNTED)
        held = {number: each.held for number, each in enumerate(extents) if each.held}
        return cls(topics, files, columns.tobytes(), has_offsets, held or None)

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[Extent]:
        return map(self.extent, range(len(self)))

    def __reduce__(self) -> tuple[object, ...]:
        # As bytes: an unpickled array brings a description of its fields with it, which takes more
        # memory than the rows of many tasks.
        fields = self._topics, self.files, self._rows, self.has_offsets, self._held
        return TaskExtents, fields

    @property
    def _columns(self) -> NDArray[np.void]:
        return np.frombuffer(self._rows, _WITH_OFFSETS if self.has_offsets else _COUNTED)

    @property
    def counts(self) -> _Int64s:
        """Number of records of each extent."""
        counts: _Int64s = self._columns["n_records"]
        return counts

    def extent(self, number: int) -> Extent:
        topic, partition, file, start, end, n_records, *offsets = self._columns[number].item()
        first, last = offsets or (RELATIVE, RELATIVE)
        held = self._held.get(number, ()) if self._held else ()
        return Extent(
            self._topics[topic], partition, self.files[file], start, end, n_records, first, last,
            held,
        )  # fmt: skip

    def places(self, topics: dict[str, int]) -> _Int64s:
        """For each extent, the number of its topic times 2**32, plus its partition.

        `topics`: numbers of topics; those that are missing are added.
        """
        numbers: _Int64s = np.array(
            [topics.setdefault(each, len(topics)) for each in self._topics], np.int64
        )
        columns = self._columns
        places: _Int64s = (numbers[columns["topic"]] << 32) + columns["partition"]
        return places


class JobExtents:
    """Extents of a job, by topic-partition; within one, in the order of the tasks.

    The tasks' extents are not copied: each extent takes eight more bytes here.

    `tasks`: in the order in which their records are to follow each other.
    """

    def __init__(self, tasks: Iterable[TaskExtents]) -> None:
        self._tasks = [*tasks]
        self._begins = np.cumsum([0, *map(len, self._tasks)])
        topics: dict[str, int] = {}
        places = _concatenated(each.places(topics) for each in self._tasks)
        # The places of a task rise for the most part, and a stable sort merges rising runs.
        self._order = places.argsort(kind="stable")
        places = places[self._order]
        begins = np.flatnonzero(np.diff(places, prepend=-1))
        counts = _concatenated(each.counts for each in self._tasks)[self._order]
        self._n_records = np.add.reduceat(counts, begins).tolist() if len(begins) else []
        names = [*topics]
        self._numbers = {
            TopicPartition(names[place >> 32], place & 0xFFFFFFFF): number
            for number, place in enumerate(places[begins].tolist())
        }
        self._bounds = [*begins.tolist(), len(places)]

    def __len__(self) -> int:
        return len(self._order)

    @property
    def has_files(self) -> bool:
        """Whether files hold the extents, or some of them."""
        return any(file.name for each in self._tasks for file in each.files)

    @property
    def n_records(self) -> int:
        return sum(self._n_records)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.topic for each in self._numbers))

    @property
    def topic_partitions(self) -> Sequence[TopicPartition]:
        return tuple(self._numbers)

    def extents(self, topic_partition: TopicPartition) -> list[Extent]:
        """Extents of one topic-partition; if records keep offsets, in the order of the offsets."""
        number = self._numbers.get(topic_partition)
        if number is None:
            return []
        numbers = self._order[self._bounds[number] : self._bounds[number + 1]]
        tasks = np.searchsorted(self._begins, numbers, side="right") - 1
        within = numbers - self._begins[tasks]
        found = [
            self._tasks[task].extent(number)
            for task, number in zip(tasks.tolist(), within.tolist(), strict=True)
        ]
        found.sort(key=attrgetter("first_offset"))
        return found

    def spans(self, topic_partition: TopicPartition) -> list[Extent]:
        """Extents that move the log end in the same way; one may stand for all.

        Most jobs keep no offsets.  Then only the number of records matters.
        """
        number = self._numbers.get(topic_partition)
        if number is None or any(each.has_offsets for each in self._tasks):
            return self.extents(topic_partition)
        return [Extent(*topic_partition, NO_FILE, 0, 0, self._n_records[number])]


def _concatenated(columns: Iterable[_Int64s]) -> _Int64s:
    joined: _Int64s = np.concatenate([np.empty(0, np.int64), *columns])
    return joined
