"""The places of staged batches: a file and the bytes in it, as an object and as columns.

A file of one partition may be staged for a certain place in the log (`log_places`).  Its name then
contains that place, as the name of a segment does.  So extents stay small: a driver holds up to
eighty million of them, if 80,000 tasks write 10 TB into 1,000 partitions.

So the extents of a task, and of a job, are columns.  There, an extent takes 36 bytes, or 52 if
records keep their offsets.  As an `Extent` object it takes about 230.
"""

import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segmentlog.model import TopicPartition

_Int64s: TypeAlias = NDArray[np.int64]  # `format.kernels.memory` has it too, and loads the kernels

STAGE_SUFFIX = ".stage"

RELATIVE = -1  #: instead of an offset: offsets continue from the log end


#: ``segmentlog.<token>.<task>.<random>.<number>.<offset>.<leader epoch>.stage``
_N_PARTS_WITH_PLACE = 8


class Extent(NamedTuple):
    """Batches of one partition that follow each other in a staged file.

    An extent is small and picklable: it travels from the writing task to the commit on the driver.
    """

    topic: str
    partition: int
    name: str  #: of the staged file, in the log directory
    start: int
    end: int
    n_records: int
    first_offset: int = RELATIVE  #: -1 when offsets are to be moved to the log end
    last_offset: int = RELATIVE
    is_own: bool = False  #: whether nothing else is in the file

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the batches."""
        return TopicPartition(self.topic, self.partition)

    @property
    def has_offsets(self) -> bool:
        """Whether its records keep their offsets."""
        return self.first_offset != RELATIVE

    @property
    def staged_from(self) -> int:
        """Base offset of its first batch, as it stands in the file."""
        return self.first_offset if self.has_offsets else _place(self.name)[0]

    @property
    def staged_epoch(self) -> int:
        """Leader epoch of its batches, as it stands in the file."""
        return _place(self.name)[1]

    def shift_to(self, next_offset: int) -> int:
        """Added to the base offset of each batch, it gives the one in the log."""
        return 0 if self.has_offsets else next_offset - self.staged_from

    def end_offset(self, next_offset: int) -> int:
        """The log end once the extent is appended at `next_offset`."""
        return self.last_offset + 1 if self.has_offsets else next_offset + self.n_records


def staged_name(stem: str, number: int, offset: int = 0, leader_epoch: int = 0) -> str:
    """Name of a staged file.

    `stem`: ``segmentlog.<token>.<task>.<random>``.  `number`: of the file among those of the task
    attempt.
    """
    place = f".{offset}.{leader_epoch}" if offset or leader_epoch else ""
    return f"{stem}.{number}{place}{STAGE_SUFFIX}"


def _place(name: str) -> tuple[int, int]:
    """Offset and leader epoch in a name of `staged_name`."""
    parts = name.split(".")
    return (int(parts[5]), int(parts[6])) if len(parts) == _N_PARTS_WITH_PLACE else (0, 0)


# Without padding: the driver may hold eighty million of them.
_FIELDS = [
    ("topic", "<i4"), ("partition", "<i4"), ("name", "<i4"), ("start", "<i8"), ("end", "<i8"),
    ("n_records", "<i8"),
]  # fmt: skip
_OWN = 1 << 30  #: added to the number of a name: nothing else is in that file


class _Layout(NamedTuple):
    """Rows of one kind: columns for all of them, and `struct` for one, at which numpy is slow."""

    columns: np.dtype[np.void]
    row: struct.Struct


_COUNTED = _Layout(np.dtype(_FIELDS), struct.Struct("<iiiqqq"))
_WITH_OFFSETS = _Layout(
    np.dtype([*_FIELDS, ("first_offset", "<i8"), ("last_offset", "<i8")]),
    struct.Struct("<iiiqqqqq"),
)


class TaskExtents:
    """Extents of one task, in its order; small when pickled, and as small afterwards.

    `topics`, `names`: the rows refer to these by number.  `rows`: one after the other, in the form
    of `_Layout`.  `has_offsets`: whether the rows hold offsets; the offsets are `RELATIVE`
    otherwise.
    """

    __slots__ = ("_names", "_rows", "_topics", "has_offsets")

    def __init__(
        self, topics: Iterable[str], names: Iterable[str], rows: bytes, has_offsets: bool
    ) -> None:
        # Each of 80,000 messages brings the topics' names with it.
        self._topics = tuple(map(sys.intern, topics))
        self._names = tuple(names)
        self._rows = rows
        self.has_offsets = has_offsets

    @classmethod
    def of(cls, extents: Iterable[Extent]) -> "TaskExtents":
        """Columns of extents that are objects."""
        extents = [*extents]
        has_offsets = any(each.has_offsets for each in extents)
        topics: dict[str, int] = {}
        names: dict[str, int] = {}
        pack = (_WITH_OFFSETS if has_offsets else _COUNTED).row.pack
        rows = bytearray()
        for each in extents:
            topic = topics.setdefault(each.topic, len(topics))
            name = names.setdefault(each.name, len(names)) + (_OWN if each.is_own else 0)
            rows += pack(topic, each.partition, name, *each[3 : 8 if has_offsets else 6])
        return cls(topics, names, bytes(rows), has_offsets)

    def __len__(self) -> int:
        return len(self._rows) // self._layout.row.size

    def __iter__(self) -> Iterator[Extent]:
        return map(self.extent, range(len(self)))

    def __reduce__(self) -> tuple[object, ...]:
        # As bytes: an unpickled array brings a description of its fields with it, which takes more
        # memory than the rows of many tasks.
        return TaskExtents, (self._topics, self._names, self._rows, self.has_offsets)

    @property
    def names(self) -> tuple[str, ...]:
        """Files that hold the extents."""
        return self._names

    @property
    def _layout(self) -> _Layout:
        return _WITH_OFFSETS if self.has_offsets else _COUNTED

    @property
    def _columns(self) -> NDArray[np.void]:
        return np.frombuffer(self._rows, self._layout.columns)

    @property
    def counts(self) -> _Int64s:
        """Number of records of each extent."""
        counts: _Int64s = self._columns["n_records"]
        return counts

    def extent(self, number: int) -> Extent:
        """One extent."""
        row = self._layout.row
        topic, partition, name, start, end, n_records, *offsets = row.unpack_from(
            self._rows, number * row.size
        )
        first, last = offsets or (RELATIVE, RELATIVE)
        is_own = name >= _OWN
        path = self._names[name - _OWN if is_own else name]
        return Extent(
            self._topics[topic], partition, path, start, end, n_records, first, last, is_own
        )

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
    def names(self) -> set[str]:
        """Files that hold the extents."""
        return {name for each in self._tasks for name in each.names}

    @property
    def n_records(self) -> int:
        """Number of records in all extents."""
        return sum(self._n_records)

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics of the extents."""
        return tuple(dict.fromkeys(each.topic for each in self._numbers))

    @property
    def topic_partitions(self) -> Sequence[TopicPartition]:
        """Topic-partitions of the extents."""
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
        return [Extent(*topic_partition, "", 0, 0, self._n_records[number])]


def _concatenated(columns: Iterable[_Int64s]) -> _Int64s:
    joined: _Int64s = np.concatenate([np.empty(0, np.int64), *columns])
    return joined
