"""A virtual disk: a log in an object store as a broker's log directory.

Each extent is a segment of its partition: its batches, with the offsets that its commit gave them.
After the last one comes an empty segment, as after a roll on a broker, so no reader looks for a
torn tail.  If compaction has left no record at the log start, an empty segment stands there, too,
because a log begins with its first segment.  The checkpoints at the top are made from the state
after a commit, and so is the file of our own state: its inode is the number of that commit, so a
reader notices a change.

A path that was planned by one process is read by another, which may know a later commit.  A file
keeps its name and its bytes until its records leave the log, or a commit exchanges extents.  Then
another one may have its name, with another inode.
"""

import contextlib
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.extents import INDEX_SIZES, PartitionLog, PlacedExtent
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.objects import Objects
from segmentlog.bucket.sequence import Mark, Sequence, opened_at, sequence_at
from segmentlog.errors import LogChangedError, RemoteSegmentError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    INDEXES,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA_FILE,
    SETTINGS_FILE,
    SPARSE_INDEXES,
    FileKind,
    FileState,
    parse_partition_directory,
    parse_segment_file,
)
from segmentlog.log.indexes import OFFSET_ENTRY
from segmentlog.store.paths import BucketLocation, parse_bucket
from segmentlog.store.readable import (
    MADE_DIRECTORY,
    Entry,
    FileStatus,
    FileType,
    MadeFile,
    Measured,
    ReadableFile,
    SurveyedDisk,
    gone,
)
from segmentlog.store.remote.object_store import RemoteDisk
from segmentlog.store.remote.stores import Facts, Opened
from segmentlog.txn.state import STATE_FILE, Deletion, State

#: Bytes of a batch's header up to the distance of its last offset.
_HEAD_BYTES = layout.LAST_OFFSET_DELTA_AT + 4

#: From a known batch on, so many bytes are searched before an index is asked.
_FAR_BYTES = 128 << 10


@lru_cache(1 << 16)
def _digest(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=7).digest(), "big")


def _inode(key: str, start: int, base_offset: int) -> int:
    """A number that no other segment has, the same in all processes.

    A topic that was deleted may come again, with segments of the same names.
    """
    return (_digest(key) + 1_000_003 * start + 7919 * base_offset) % 2**56 or 1


class _Range(NamedTuple):
    """A range of a data object that is a segment."""

    object: str
    start: int
    size: int
    base_offset: int
    end_offset: int
    shift: int

    @property
    def inode(self) -> int:
        """See `_inode`."""
        return _inode(self.object, self.start, self.base_offset)


def inode_of(extent: PlacedExtent) -> int:
    """The inode of the segment that is an extent; no other extent has it."""
    return _inode(extent.object, extent.start, extent.base_offset)


def opened_extent(extent: PlacedExtent, data: bytes, path: str) -> "RebasedFile":
    """An extent as a segment, whose bytes are known; `path` names it in errors."""
    found = _Range(
        extent.object,
        extent.start,
        extent.size,
        extent.base_offset,
        extent.end_offset,
        extent.shift,
    )
    return RebasedFile(path, found, MadeFile(path, data), lambda: gone(path))


def missing_object(
    place: BucketLocation, partition: str, key: str, base_offset: int, end_offset: int
) -> RemoteSegmentError:
    """The error about an object that is not there, although a commit names it."""
    return RemoteSegmentError(
        f"{place}/{key}",
        f"the data object is missing, and with it offsets [{base_offset}, {end_offset}) of "
        f"{partition}",
        "restore it from a version or a copy of the bucket; segmentlog verify names all "
        "missing objects, and their offsets",
    )


class _RangeStore:
    """A `Store` whose objects are ranges of data objects: to open one takes no request."""

    opens_at_once = True

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def listing(self, key: str, *, deep: bool) -> Iterator[tuple[str, Facts]]:
        """See `Store`; nothing is listed."""
        raise FileNotFoundError(key)

    def facts(self, key: str) -> Facts:
        return self.open(key).facts

    def open(self, key: str) -> Opened:
        """The range that a key of `key_of` names."""
        name, _, bounds = key.rpartition("@")
        start, _, size = bounds.partition("+")

        def fetch(position: int, n_bytes: int) -> bytes:
            return self._objects.read(name, int(start) + position, n_bytes)

        return Opened(Facts(int(size), key), key, fetch)

    @staticmethod
    def key_of(found: _Range) -> str:
        """The key of a range."""
        return f"{found.object}@{found.start}+{found.size}"


class RebasedFile(ReadableFile):
    """A segment: a range of a data object, whose batches get their base offsets while it is read.

    Neither the base offset nor the leader epoch is under the checksum of a batch.  In the object
    offsets count from 0 without gaps, so the header of a batch shows where the next one begins and
    what its base offset is.  A reader that begins far from what this file has seen makes it look
    into the offset index, and at the headers between an entry and there.

    `found`: the range.  `file`: its bytes, as they are in the object.  `missing`: the error if
    there is no object.  `index`: reads the bytes of the offset index, of which there may be none.
    """

    never_cut = True  # a data object is written once, and the file is not mapped
    never_overlaps = True

    def __init__(
        self,
        path: str,
        found: _Range,
        file: ReadableFile,
        missing: Callable[[], Exception],
        index: Callable[[], bytes] = bytes,
    ) -> None:
        self.path = path
        self._found, self._file, self._missing, self._index = found, file, missing, index
        # Threads read ranges of one file: what was found of its batches changes under `_turn`.
        self._turn = threading.Lock()
        #: positions of batches that are known, in their order, and the base offset of each in the
        #: object
        self._positions = [0]
        self._offsets = [0]
        #: the batch that was walked last, the position after it, and the offset there: a scan goes
        #: on within it, and would ask the store for its header again
        self._walked = (-1, 0, 0)
        self._entries: Int64s | None = None  # of the index: last offsets, and positions

    def status(self) -> FileStatus:
        return FileStatus.made(self._found.size, self._found.inode)

    def read(self, position: int, n_bytes: int) -> bytes:
        n_bytes = max(0, min(n_bytes, self._found.size - position))
        with self._there():
            found = self._file.read(position, n_bytes)
        if not self._found.shift or not found:
            return found
        buffer = bytearray(found)
        self._rebase(memoryview(buffer), position)
        return bytes(buffer)

    def read_into(self, buffer: memoryview, position: int) -> int:
        buffer = buffer[: max(0, self._found.size - position)]
        with self._there():
            n_read = self._file.read_into(buffer, position) if len(buffer) else 0
        if self._found.shift and n_read:
            self._rebase(buffer[:n_read], position)
        return n_read

    @contextlib.contextmanager
    def _there(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise self._missing() from error

    def _rebase(self, data: memoryview, position: int) -> None:
        """Add the shift to the base offsets of the batches that begin in some bytes."""
        end, shift = position + len(data), self._found.shift
        with self._turn:
            places = self._places(data, position)
        for at, offset in places:
            shown = (offset + shift).to_bytes(8, "big")
            begin, stop = max(at, position), min(at + 8, end)
            data[begin - position : stop - position] = shown[begin - at : stop - at]

    def _places(self, data: memoryview, position: int) -> list[tuple[int, int]]:
        """Positions and base offsets of the batches whose base offsets lie in some bytes."""
        end, places = position + len(data), list[tuple[int, int]]()
        slot = bisect_right(self._positions, position) - 1
        if position - self._positions[slot] > _FAR_BYTES and self._look_up(data, position):
            slot = bisect_right(self._positions, position) - 1
        at, offset = self._positions[slot], self._offsets[slot]
        if at == self._walked[0] and at + 8 <= position:
            _, at, offset = self._walked
            slot += 1
        while at < end:
            if at + 8 > position:
                places.append((at, offset))
            head = self._head(data, position, at)
            size = int.from_bytes(head[layout.BATCH_LENGTH_AT : layout.LOG_OVERHEAD], "big")
            delta = int.from_bytes(head[layout.LAST_OFFSET_DELTA_AT :], "big", signed=True)
            if size + layout.LOG_OVERHEAD < layout.HEADER_BYTES or delta < 0:
                break  # damage, or the end: the reader checks each batch, and reports it
            walked, at, offset = at, at + layout.LOG_OVERHEAD + size, offset + delta + 1
            self._walked = walked, at, offset
            slot += 1
            if slot == len(self._positions) or self._positions[slot] > at:
                self._positions.insert(slot, at)
                self._offsets.insert(slot, offset)
        return places

    def _head(self, data: memoryview, position: int, at: int) -> bytes:
        """The beginning of the batch at a position; fewer bytes at the end of the file."""
        if at >= position and at + _HEAD_BYTES <= position + len(data):
            return bytes(data[at - position : at - position + _HEAD_BYTES])
        return self._file.read(at, _HEAD_BYTES)

    def _look_up(self, data: memoryview, position: int) -> bool:
        """Whether the index leads to a batch before a position, nearer than those that are known.

        The base offset that a job has left in the object must be the one that the index gives.
        """
        if self._entries is None:
            raw = self._index()
            raw = raw[: len(raw) - len(raw) % OFFSET_ENTRY.itemsize]
            self._entries = np.frombuffer(raw, ">i4").astype(np.int64).reshape(-1, 2)
        slot = int(np.searchsorted(self._entries[:, 1], position, "right")) - 1
        if slot < 0:
            return False
        last, at = map(int, self._entries[slot])
        place = bisect_right(self._positions, at)
        if at < 0 or at <= self._positions[place - 1]:
            return False
        head = self._head(data, position, at)
        delta = int.from_bytes(head[layout.LAST_OFFSET_DELTA_AT :], "big", signed=True)
        offset = int.from_bytes(head[:8], "big")
        if len(head) < _HEAD_BYTES or offset != last - delta:
            return False
        self._positions.insert(place, at)
        self._offsets.insert(place, offset)
        return True

    def whole(self) -> bytes | None:
        data = self.read(0, self._found.size)
        at, offset, n_bytes = 0, self._found.base_offset, len(data)
        while at + _HEAD_BYTES <= n_bytes:
            base_offset = int.from_bytes(data[at : at + 8], "big")
            length_at, delta_at = at + layout.BATCH_LENGTH_AT, at + layout.LAST_OFFSET_DELTA_AT
            size = int.from_bytes(data[length_at : at + layout.LOG_OVERHEAD], "big")
            delta = int.from_bytes(data[delta_at : at + _HEAD_BYTES], "big", signed=True)
            if base_offset < offset or delta < 0:
                return None
            at, offset = at + layout.LOG_OVERHEAD + size, base_offset + delta + 1
        is_whole = at == n_bytes == self._found.size and offset <= self._found.end_offset
        return data if is_whole else None

    def expect(self, start: int, end: int) -> None:
        self._file.expect(start, end)

    def close(self) -> None:
        self._file.close()


class BucketDisk(SurveyedDisk):
    """See `SurveyedDisk`.  Paths are those of `segmentlog.store.paths`."""

    def __init__(self, location: BucketLocation) -> None:
        self._root, self._location = location.root, location
        self._state: LogState | None = None
        self._ranges = RemoteDisk(self._root, _RangeStore(objects_at(location)))

    @property
    def _sequence(self) -> Sequence:
        return sequence_at(self._location)  # another one once another log was found

    def survey(self, path: str) -> None:
        """See `SurveyedDisk`: later questions are answered from the newest commit."""
        self._state = None
        self._state = opened_at(self._location).known

    def log_identity(self, path: str) -> str:
        return self._sequence.identity

    def newest_mark(self, path: str) -> str:
        return f"{self.state.number}-{self.state.token}" if self.state.token else ""

    def has_mark(self, path: str, mark: str) -> bool:
        number, _, token = mark.partition("-")
        try:
            if number.isdecimal() and int(number):
                self._sequence.check(Mark(int(number), token, seen_by="a checkpoint"))
        except LogChangedError:
            return False
        return True

    def noted_timestamp(self, path: str, inode: int) -> int | None:
        directory, _, name = self._rest(path).rpartition("/")
        log, base = self._log(self.state, directory), name[:20]
        if log is None or not _is_log(name) or not base.isdecimal():
            return None
        at = _slot(log, int(base))
        if at is None:
            return None
        is_same = _inode(log.extents.objects[at], log.extents.columns["start"][at], int(base))
        return log.extents.columns["max_timestamp"][at] if is_same == inode else None

    def forget(self, path: str) -> None:
        self._state = None

    @property
    def state(self) -> LogState:
        """The state that questions are answered from."""
        state = self._state  # another thread may forget it meanwhile
        if state is None:
            state = self._state = opened_at(self._location).known
        return state

    def _rest(self, path: str) -> str:
        return path[len(self._root) :].strip("/")

    def _log(self, state: LogState, directory: str) -> PartitionLog | None:
        """The partition that a directory is named after, or None."""
        parsed = parse_partition_directory(directory)
        if parsed is None or directory != str(parsed[0]):
            return None
        return state.logs.get(parsed[0])

    # --- files

    def _find(self, state: LogState, path: str) -> "_Range | MadeFile | None":
        """A file of a state, or None."""
        directory, _, name = self._rest(path).rpartition("/")
        if not directory:
            data = _top_file(state, name)
            if data is None:
                return None
            # A log that was made again, or restored, has another file.
            return MadeFile(path, data, _inode(state.token, state.number, 0))
        log = self._log(state, directory)
        if log is None:
            return None
        parsed = parse_segment_file(name)
        if parsed is None or parsed.state is not FileState.LIVE:
            data = _file_of_partition(state, log, directory, name)
            # Another topic of the name has another file.
            return None if data is None else MadeFile(path, data, _digest(data.decode()) or 1)
        if parsed.kind is FileKind.SNAPSHOT:
            snapshot = log.snapshot
            if snapshot is None or snapshot.offset != parsed.offset:
                return None
            _, key, start, size = snapshot
            return _Range(key, start, size, snapshot.offset, snapshot.offset, 0)
        if parsed.offset in _empty(log):
            is_rolled = parsed.kind in _ROLLED
            return MadeFile(path, b"", 1) if is_rolled else None
        found = _range(log, parsed.offset, parsed.kind)
        return MadeFile(path, b"", 1) if found is not None and not found.size else found

    def open(self, path: str, *, follow: bool = True) -> ReadableFile:
        found = self._find(self.state, path)
        if found is None and _is_log(path):  # it was planned from a later commit
            self.survey(path)
            found = self._find(self.state, path)
        if found is None:
            raise gone(path)
        if isinstance(found, MadeFile):
            return found
        file, missing = self._opened(found), partial(self._missing, path, found)
        if not found.shift:
            return RebasedFile(path, found, file, missing)
        return RebasedFile(path, found, file, missing, partial(self._index_of, path))

    def _missing(self, path: str, found: _Range) -> Exception:
        """The error about a segment whose data object is missing."""
        newest = self._sequence.refresh()
        if not _is_log(path) or found.object not in newest.objects():
            return gone(path)  # its records have left the log since, and a sweep has removed it
        at = self._rest(path).partition("/")[0]
        return missing_object(
            self._sequence.location, at, found.object, found.base_offset, found.end_offset
        )

    def _opened(self, found: _Range) -> ReadableFile:
        return self._ranges.open(f"{self._root}/{_RangeStore.key_of(found)}")

    def _index_of(self, path: str) -> bytes:
        """The offset index of a segment; no bytes if it has none."""
        found = self._find(self.state, path.removesuffix(FileKind.LOG) + FileKind.OFFSET_INDEX)
        if not isinstance(found, _Range):
            return b""
        with self._opened(found) as file:
            return file.read(0, found.size)

    def status(self, path: str, *, follow: bool = False) -> FileStatus:
        rest = self._rest(path)
        if not rest or self._log(self.state, rest) is not None:
            return MADE_DIRECTORY
        found = self._find(self.state, path)
        if found is None:
            raise gone(path)
        if isinstance(found, MadeFile):
            return found.status()
        return FileStatus.made(found.size, found.inode)

    def measure(self, directory: str, names: Iterable[str]) -> Measured:
        log = self._log(self.state, self._rest(directory))
        names = [*names]
        if log is not None and all(name[20:] == ".log" for name in names):
            return self._measure(directory, log, names)
        return Measured.of(self.status(f"{directory}/{name}") for name in names)

    def _measure(self, directory: str, log: PartitionLog, names: list[str]) -> Measured:
        """Measure segments, of which there may be a hundred thousand."""
        bases, starts = log.column("base_offset"), log.column("start")
        sizes = dict(zip(bases, log.column("size"), strict=True))
        inodes = dict(zip(bases, map(_inode, log.objects, starts, bases), strict=True))
        for base in _empty(log):
            sizes[base], inodes[base] = 0, 1
        try:
            found = [int(name[:20]) for name in names]
            return Measured(
                [sizes[each] for each in found],
                [inodes[each] for each in found],
                {},
                is_remembered=False,
            )
        except (ValueError, KeyError) as error:
            raise gone(f"{directory}/{error.args[0]}") from None

    # --- listings

    def entries(self, path: str) -> list[Entry]:
        rest, state = self._rest(path), self.state
        if not rest:
            more = (SETTINGS_FILE,) if state.settings else ()
            files = [Entry(name, FileType.FILE) for name in (*_TOP, *more)]
            return [*(Entry(str(each), FileType.DIRECTORY) for each in state.logs), *files]
        log = self._log(state, rest)
        if log is None:
            raise gone(path)
        bases = log.column("base_offset")
        names = [f"{base:020d}.log" for base in bases]
        with_index = zip(bases, log.column("digest"), log.column("time_index"), strict=True)
        indexed = [base for base, *found in with_index if any(found)]
        aborts = zip(bases, log.column("transaction_index"), strict=True)
        # An empty index is one, too: where one is missing, a broker builds all of the segment.
        names += [f"{base:020d}.{kind}" for kind in SPARSE_INDEXES for base in indexed]
        names += [f"{base:020d}.{FileKind.TRANSACTION_INDEX}" for base, n in aborts if n]
        names += [f"{base:020d}.{kind}" for base in _empty(log) for kind in _ROLLED]
        if log.snapshot:
            names.append(f"{log.snapshot.offset:020d}.{FileKind.SNAPSHOT}")
        names += [PARTITION_METADATA_FILE, LEADER_EPOCH_CHECKPOINT]
        return [Entry(name, FileType.FILE) for name in names]


#: Files of an empty segment.
_ROLLED = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)

_TOP = (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
    STATE_FILE,
)


def _empty(log: PartitionLog) -> tuple[int, ...]:
    """Base offsets of the empty segments: at the end, and at a start without records."""
    first = log.extents.columns["base_offset"][0] if log.n_extents else log.end
    return (log.start, log.end) if log.start < first else (log.end,)


def _is_log(path: str) -> bool:
    return path.endswith(".log")


def _slot(log: PartitionLog, base_offset: int) -> int | None:
    """The number of the extent that begins at an offset, or None."""
    bases = log.extents.columns["base_offset"]
    at = bisect_left(bases, base_offset, 0, log.n_extents)
    return at if at < log.n_extents and bases[at] == base_offset else None


def _range(log: PartitionLog, base_offset: int, kind: FileKind) -> _Range | None:
    """The extent that begins at an offset, or one of its indexes; or None."""
    extents, at = log.extents, _slot(log, base_offset)
    columns = extents.columns
    if at is None:
        return None
    start, size, shift = columns["start"][at], columns["size"][at], extents.shifts[at]
    if kind is not FileKind.LOG:  # the indexes follow the batches; their offsets are relative
        shift = 0
        for column, each in zip(INDEX_SIZES, INDEXES, strict=True):
            start, size = start + size, columns[column][at]
            if each is kind:
                break
        has_indexes = columns["digest"][at] or columns["time_index"][at]
        if not size and (kind not in SPARSE_INDEXES or not has_indexes):
            return None
    end_offset = columns["end_offset"][at]
    return _Range(extents.objects[at], start, size, base_offset, end_offset, shift)


def _top_file(state: LogState, name: str) -> bytes | None:
    """The bytes of a file at the top of the directory, or None."""
    if name == STATE_FILE:
        deleted = tuple(Deletion(topic, *each) for topic, each in state.deleted.items())
        return State(
            sequence=state.number,
            time_ms=state.time_ms,
            versions=dict(state.versions),
            deleted=deleted,
            streams=state.streams,
            spans=state.last_spans(),
        ).encode()
    if name == SETTINGS_FILE:
        return state.settings.encode() if state.settings else None
    if name == CLEANER_OFFSET_CHECKPOINT:
        return _checkpoint(
            f"{topic} {number} {log.cleaned_to}"
            for (topic, number), log in state.logs.items()
            if log.cleaned_to >= 0
        )
    if name == HIGH_WATERMARK_CHECKPOINT:
        return _checkpoint(
            f"{topic} {number} {log.end}" for (topic, number), log in state.logs.items()
        )
    if name == LOG_START_CHECKPOINT:
        return _checkpoint(
            f"{topic} {number} {log.start}"
            for (topic, number), log in state.logs.items()
            if log.start
        )
    return None


def _checkpoint(lines: Iterable[str]) -> bytes:
    found = [*lines]
    return "\n".join(["0", str(len(found)), *found, ""]).encode()


def _file_of_partition(
    state: LogState, log: PartitionLog, directory: str, name: str
) -> bytes | None:
    """The bytes of a file of a partition that is no segment, or None."""
    if name == LEADER_EPOCH_CHECKPOINT:
        return _checkpoint(f"{epoch} {start}" for epoch, start in log.epochs or [(0, 0)])
    if name == PARTITION_METADATA_FILE:
        topic = directory.rpartition("-")[0]
        return f"version: 0\ntopic_id: {state.topics[topic].topic_id}".encode()
    return None


_disks: dict[tuple[int, str], BucketDisk] = {}


def bucket_disk(path: str) -> BucketDisk:
    """The disk that holds a path.

    Raises `LogDirectoryError` if the client of the store is not installed.
    """
    location, _ = parse_bucket(path)
    key = os.getpid(), location.root  # clients of stores do not outlive a fork
    found = _disks.get(key)
    if found is None:
        found = _disks[key] = BucketDisk(location)
    return found
