"""Staged batches: a writing task leaves them in the log directory, and the commit takes them.

A task in the process of the commit keeps its batches in memory up to a bound: most of its commits
have a few rows, which would otherwise be written, read back and written again.  Later batches go
to files.

A staged file holds record batches only.  Its name begins with a letter and has no dash.  A broker
looks at directories, and at files whose names begin with digits, so it passes over a staged file.

If a task has many rows for a partition, the partition gets files of its own, each no larger than a
segment.  The commit moves these files into the log instead of copying them.  All other partitions
share one file; otherwise there would be as many files as tasks times partitions.

An extent is the place of batches: a file and the bytes in it.  A driver holds up to eighty million
of them, if 80,000 tasks write 10 TB into 1,000 partitions.  So the extents of a task, and of a
job, are columns.  There, an extent takes 36 bytes, or 52 if records keep their offsets.  As an
`Extent` object it takes about 230.
"""

import contextlib
import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from segmentlog.errors import (
    CorruptLogError,
    SegmentLogError,
    StagedFileError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.encode import assign_offsets
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.names import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    STAGE_SUFFIX,
    partition_path,
)
from segmentlog.format.records.decoder import BatchScanner
from segmentlog.format.records.encoder import EncodedBatches, pooled_array
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log.checkpoint import read_leader_epochs, read_offsets
from segmentlog.log.windows import BatchWindows
from segmentlog.model import TopicPartition
from segmentlog.store.beside_broker import Pace
from segmentlog.store.readable import open_file
from segmentlog.writes.append import (
    NO_FILE,
    RELATIVE,
    BatchTable,
    Extent,
    StagedFile,
    least_moved_bytes,
    table_name,
)
from segmentlog.writes.open_files import OpenFiles

# Without padding: the driver may hold eighty million of them.
_FIELDS = [
    ("topic", "<i4"),
    ("partition", "<i4"),
    ("file", "<i4"),
    ("start", "<i8"),
    ("end", "<i8"),
    ("n_records", "<i8"),
]
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
        held: Mapping[int, tuple[ScannedBatches, ...]] | None = None,
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
                topics.setdefault(each.topic, len(topics)),
                each.partition,
                files.setdefault(each.file, len(files)),
                each.start,
                each.end,
                each.n_records,
                *((each.first_offset, each.last_offset) if has_offsets else ()),
            )
            for each in extents
        ]
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
    def counts(self) -> Int64s:
        """Number of records of each extent."""
        counts: Int64s = self._columns["n_records"]
        return counts

    def extent(self, number: int) -> Extent:
        topic, partition, file, start, end, n_records, *offsets = self._columns[number].item()
        first, last = offsets or (RELATIVE, RELATIVE)
        held = self._held.get(number, ()) if self._held else ()
        return Extent(
            self._topics[topic],
            partition,
            self.files[file],
            start,
            end,
            n_records,
            first,
            last,
            held,
        )

    def places(self, topics: dict[str, int]) -> Int64s:
        """For each extent, the number of its topic times 2**32, plus its partition.

        `topics`: numbers of topics; those that are missing are added.
        """
        numbers: Int64s = np.array(
            [topics.setdefault(each, len(topics)) for each in self._topics], np.int64
        )
        columns = self._columns
        places: Int64s = (numbers[columns["topic"]] << 32) + columns["partition"]
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


def _concatenated(columns: Iterable[Int64s]) -> Int64s:
    joined: Int64s = np.concatenate([np.empty(0, np.int64), *columns])
    return joined


#: Files for partitions that have one large piece, but not enough for a segment yet.  Without a
#: bound, 10,000 partitions with a piece each would be 10,000 files.
_MOST_EARLY_FILES = 256

#: Bytes of the shared file that are written at once, at multiples of this size.  A piece of 32 KiB
#: that begins and ends within pages takes three times as long to write as its share of these.
_JOINED_BYTES = 256 << 10

#: Bytes that each piece in memory takes besides its batches: two arrays, and tuples of them.
_PIECE_BYTES = 512

#: Offsets from here on are not guessed: the records of a task must not count beyond a long.
_MOST_GUESSED = 2**62

_WINDOW_BYTES = 8 << 20  #: of a staged file that is read back


class _OpenStagedFile:
    """A staged file that is being written, and the table of its batches if it is a partition's."""

    def __init__(self, directory: str, file: StagedFile, files: OpenFiles) -> None:
        self.file = file
        self.path = os.path.join(directory, file.name)
        self.size = 0
        self.table = BatchTable()
        self._files = files
        files.create(self.path)

    def write(self, data: Bytes) -> None:
        self._files.write(self.path, data.data, self.size)
        self.size += len(data)

    def is_moved(self, segment_bytes: int) -> bool:
        """Whether the commit moves the file into the log; otherwise it copies the batches."""
        return self.file.is_own and self.size >= least_moved_bytes(segment_bytes)


class _SharedFile(_OpenStagedFile):
    """A staged file of many small pieces; some of its bytes are not written before `flush`."""

    def __init__(self, directory: str, file: StagedFile, files: OpenFiles) -> None:
        super().__init__(directory, file, files)
        self._joined: Bytes = np.empty(_JOINED_BYTES, np.uint8)

    def write(self, data: Bytes) -> None:
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


class TaskStage:
    """The staged files of one task attempt; a file is made when it is first written to.

    `task`: number of the task, for people who look at the directory.  `segment_bytes`: most bytes
    of a segment, and so of a file of one partition.  `flush`: whether the files that the commit
    will move are on the disk when the stage is closed.  `pace`: the limit of bytes a second, or
    None.  `most_held`: bytes of batches to keep in memory, if the stage is closed in the process
    that commits.
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
        most_held: int = 0,
    ) -> None:
        # A second attempt of a task must not meet the files of the first.
        self._stem = f"segmentlog.{token}.{task}.{secrets.token_hex(4)}"
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._open = OpenFiles(flush=flush, pace=pace)
        self._files: list[_OpenStagedFile] = []
        self._n_made = 0
        self._shared: _SharedFile | None = None
        self._own: dict[TopicPartition, _OpenStagedFile] = {}
        self._staged: dict[TopicPartition, tuple[int, int]] = {}  # bytes and records so far
        self._ends: dict[TopicPartition, tuple[int, int]] = {}  # see `_expected_end`
        self._high_watermarks: Mapping[TopicPartition, int] | None = None
        self._n_free = most_held  # bytes that may still be held; 0 once there are files
        self._held: dict[TopicPartition, tuple[Extent, list[ScannedBatches]]] = {}
        self._extents: list[Extent] = []
        self._last_of: dict[TopicPartition, int] = {}  # where its last extent is among all

    def add(
        self,
        topic_partition: TopicPartition,
        batches: EncodedBatches,
        offsets: tuple[int, int] | None = None,
    ) -> None:
        """Take batches of one partition after its earlier batches: into memory, or else a file.

        `batches`: if offsets count from 0, the buffer is changed so that they count on: from the
        extent's beginning, or in a file of the partition's own from the log end.  `offsets`: the
        first and the last offset, if offsets are to be kept.
        """
        n_bytes, n_records = len(batches.buffer), int(batches.records_counts.sum())
        before = self._staged.get(topic_partition, (0, 0))
        self._staged[topic_partition] = before[0] + n_bytes, before[1] + n_records
        n_held = n_bytes + batches.table.nbytes + _PIECE_BYTES
        if n_held <= self._n_free:
            self._n_free -= n_held
            self._hold(topic_partition, batches, offsets, n_records)
            return
        self._n_free = 0  # later batches follow these
        file = self._file_of(topic_partition, n_bytes, *before)
        number = self._last_of.get(topic_partition, -1)
        extent = self._extents[number] if number >= 0 else None
        if extent is None or (extent.file, extent.end) != (file.file, file.size):
            number = self._last_of[topic_partition] = len(self._extents)
            first = offsets[0] if offsets else RELATIVE
            extent = Extent(*topic_partition, file.file, file.size, file.size, 0, first, first)
            self._extents.append(extent)
        shift = 0 if offsets else extent.n_records + file.file.offset
        if shift or file.file.leader_epoch:
            positions = np.ascontiguousarray(batches.positions)
            assign_offsets(batches.buffer, positions, shift, file.file.leader_epoch)
        file.write(batches.buffer)
        if file.file.is_own:
            file.table.add(batches, shift)
        self._extents[number] = extent.grown(file.size, n_records, offsets)

    def _hold(
        self,
        topic_partition: TopicPartition,
        batches: EncodedBatches,
        offsets: tuple[int, int] | None,
        n_records: int,
    ) -> None:
        # The encoder's buffer is as long as any encoding of its rows could have become.
        buffer = pooled_array(len(batches.buffer), np.uint8)
        buffer[:] = batches.buffer
        first = offsets[0] if offsets else RELATIVE
        empty = Extent(*topic_partition, NO_FILE, 0, 0, 0, first, first), list[ScannedBatches]()
        extent, held = self._held.get(topic_partition, empty)
        # A table may be the first rows of a far larger one.
        held.append(ScannedBatches("", buffer, batches.table.copy(), 0))
        grown = extent.grown(extent.end + len(buffer), n_records, offsets)
        self._held[topic_partition] = grown, held

    def _file_of(
        self, topic_partition: TopicPartition, n_bytes: int, n_before: int, n_records: int
    ) -> _OpenStagedFile:
        """The file for a partition's next bytes, after so many bytes and records."""
        own = self._own.get(topic_partition)
        is_much = (
            own is not None
            or n_before >= least_moved_bytes(self._segment_bytes)
            # More rows of the partition will probably come.
            or (n_bytes >= self._segment_bytes // 1024 and self._n_made < _MOST_EARLY_FILES)
        )
        if is_much and n_bytes <= self._segment_bytes:
            if own is not None and own.size + n_bytes <= self._segment_bytes:
                return own
            self._end_own(topic_partition)
            end, leader_epoch = self._expected_end(topic_partition)
            file = StagedFile(self._new_name(), True, end + n_records, leader_epoch)
            self._own[topic_partition] = own = _OpenStagedFile(self._directory, file, self._open)
            self._files.append(own)
            return own
        # Later rows must not go back to the partition's own file: a moved file is one extent.
        # When they went back, rows were written twice, or every commit failed.
        self._end_own(topic_partition)
        if self._shared is None:
            self._shared = self._new_shared()
        return self._shared

    def _expected_end(self, topic_partition: TopicPartition) -> tuple[int, int]:
        """The end and the leader epoch of a log, as a guess that takes no lock.

        The commit gives each batch its offset and the leader epoch.  Most logs end where they
        ended when the task began, so the first task that brings records of a partition guesses
        right, and the commit has nothing to change in its file.  The commit compares the guess
        with the log.

        The end is the high watermark, which each of our commits moves to the log end: one file
        contains it for all partitions.
        """
        if topic_partition not in self._ends:
            path = partition_path(self._directory, topic_partition)
            try:
                if self._high_watermarks is None:
                    name = HIGH_WATERMARK_CHECKPOINT
                    self._high_watermarks = read_offsets(self._directory, name)
                epochs = read_leader_epochs(os.path.join(path, LEADER_EPOCH_CHECKPOINT))
                end = self._high_watermarks.get(topic_partition, 0)
            except (OSError, SegmentLogError):
                # The commit reads both again, and reports what is wrong with them.
                end, epochs = 0, ()
            end = end if end < _MOST_GUESSED else 0
            self._ends[topic_partition] = end, epochs[-1][0] if epochs else 0
        return self._ends[topic_partition]

    def _new_shared(self) -> _SharedFile:
        file = _SharedFile(self._directory, StagedFile(self._new_name()), self._open)
        self._files.append(file)
        return file

    def _new_name(self) -> str:
        self._n_made += 1
        return f"{self._stem}.{self._n_made - 1}{STAGE_SUFFIX}"

    def _end_own(self, topic_partition: TopicPartition) -> None:
        """Nothing more goes to the partition's own file, if it has one."""
        own = self._own.pop(topic_partition, None)
        if own is not None and own.is_moved(self._segment_bytes):
            own.table.write(self._directory, own.file.name)

    def close(self) -> TaskExtents:
        """The extents of all batches.

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
        held = [extent._replace(held=tuple(held)) for extent, held in self._held.values()]
        self._held.clear()  # the memory goes with the extents
        return TaskExtents.of([*held, *self._extents])

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
            if run is None or extent.file.is_own or run[-1].file.is_own:
                run = last_run[extent.topic_partition] = []
                runs.append(run)
            run.append(extent)
        if shared is None or len(runs) == len(self._extents):
            return
        target = self._new_shared()
        with staged_errors():
            self._extents = [
                run[0] if run[0].file.is_own else self._copy_run(run, target) for run in runs
            ]
        target.flush()
        self._open.drop(shared.path)
        os.unlink(shared.path)
        self._files.remove(shared)

    def _copy_run(self, run: list[Extent], target: _OpenStagedFile) -> Extent:
        """Copy extents of one partition to the end of a file, as one extent."""
        start, n_records = target.size, 0
        for extent in run:
            shift = 0 if extent.has_offsets else n_records
            for batches in staged_batches(self._directory, extent, shift, 0):
                target.write(batches.data)
            n_records += extent.n_records
        return run[0]._replace(
            file=target.file,
            start=start,
            end=target.size,
            n_records=n_records,
            last_offset=run[-1].last_offset,
        )

    def discard(self) -> None:
        """Remove the files: the task has failed."""
        self._held.clear()
        self._open.abandon()
        for file in self._files:
            table = os.path.join(self._directory, table_name(file.file.name))
            for path in (file.path, *([table] if file.file.is_own else [])):
                with contextlib.suppress(OSError):
                    os.unlink(path)


@contextlib.contextmanager
def staged_errors() -> Iterator[None]:
    """Raise a `StagedFileError` for damage: no log is damaged, and running the job again helps.

    A newer format counts as damage, because this version has written the batches.
    """
    try:
        yield
    except (CorruptLogError, UnsupportedFormatError) as error:
        raise StagedFileError(error.path, error.finding) from error


def staged_batches(
    directory: str, extent: Extent, shift: int, leader_epoch: int
) -> Iterator[ScannedBatches]:
    """Batches of an extent as they will stand in the log, window by window.

    `shift`: is added to the base offset of each batch; see `Extent.shift_to`.  Yields batches with
    the offsets of the log, valid until the next step; batches in memory are changed for good.
    Raises `CorruptLogError` if the checksum of a staged batch is wrong.
    """
    for batches in extent.held:
        n_before = 0 if extent.has_offsets else batches.next_offset
        _place(batches, shift, leader_epoch)
        yield batches
        shift += n_before
    if extent.held:
        return
    path = os.path.join(directory, extent.file.name)
    scanner, windows = BatchScanner(path, 0), BatchWindows(_WINDOW_BYTES)
    first, end_offset = extent.staged_from, extent.end_offset(extent.staged_from)
    with open_file(path, follow=False) as file:
        for batches in windows.batches(file.read_into, scanner, extent.start, extent.end):
            # No checksum covers base offsets.  They rise, so the first and the last show the rest.
            is_last = batches.position_of(0) + len(batches.data) == extent.end
            if batches.headers[0, layout.BASE_OFFSET] < first or (
                is_last and batches.next_offset != end_offset
            ):
                raise batches.malformed(0, "its offsets are not those that were staged")
            first = batches.next_offset
            _place(batches, shift, leader_epoch)
            yield batches


def _place(batches: ScannedBatches, shift: int, leader_epoch: int) -> None:
    """Assign offsets like ``LogValidator.assignOffsetsNonCompressed``, and the leader epoch."""
    headers = batches.headers
    positions = np.ascontiguousarray(headers[:, layout.POSITION])
    assign_offsets(batches.buf, positions, shift, leader_epoch)
    headers[:, layout.BASE_OFFSET] += shift
    headers[:, layout.LAST_OFFSET] += shift
