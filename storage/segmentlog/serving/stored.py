"""Batches of a log as they are stored: ranges of bytes that answer a fetch.

A range begins with the batch that holds the offset, or follows it, and has whole batches of one
segment, as a broker's answer.  Lengths and offsets of all of them are checked, so that an answer
never jumps over records; their checksums are not, unless `on_corrupt_batch` is given: clients
check them.  A range ends before damage, and a fetch that begins there raises its error.
"""

import contextlib
import errno
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from segmentlog.errors import (
    CorruptLogError,
    MalformedBatchError,
    TruncatedBatchError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log.batches import walk_file
from segmentlog.log.damage import sound_headers
from segmentlog.log.segment import OpenSegment, PlacedHeader, Segment, file_of, from_offset
from segmentlog.log.walk import Verdict, walk
from segmentlog.log.windows import BatchWindows
from segmentlog.model import LARGEST_LONG, OnCorruptBatch
from segmentlog.reads.log import Log
from segmentlog.reads.transactions import CommittedBatches
from segmentlog.serving.near import batches_in_memory, bring_into_memory
from segmentlog.serving.wire import Held, Records, Stored
from segmentlog.store.readable import FileStatus, ReadableFile, is_url, open_file, status_of

_CHECKED_WINDOW_BYTES = 1 << 20
_TRANSACTIONS = layout.TRANSACTIONAL_MASK | layout.CONTROL_MASK
_SMALL_BYTES = 32 << 10  # that are read at once rather than sent from their file
_LEAST_HELD_BYTES = 64 << 10
_MOST_HELD_BYTES = 4 << 20  # of an answer from a disk whose files the system cannot send
_MOST_PLACES = 256  # of consumers in one log


class Asked(NamedTuple):
    """What a client asks of a log.

    `max_bytes`: of all batches; with `takes_first`, the first one may be larger.  `is_committed`:
    whether aborted transactions are listed.
    """

    offset: int
    max_bytes: int
    takes_first: bool
    is_committed: bool


class FoundBatches(NamedTuple):
    """The batches of a fetch, and the offset after them.

    `aborted`: of the transactions among them that were aborted, the producer ids and their first
    offsets here, in the order of the log.
    """

    records: Records
    next_offset: int
    aborted: tuple[tuple[int, int], ...] = ()


class _Ready(NamedTuple):
    """The answer to the next fetch of a consumer, which was made ahead.

    `end`: the byte after it.  `stamp`: size and time of the file that it was made from.
    """

    max_bytes: int
    found: FoundBatches
    end: int
    stamp: tuple[int, int]


class _Place(NamedTuple):
    """Where a consumer that has read up to an offset goes on."""

    path: str
    inode: int
    position: int
    committed: CommittedBatches | None
    ready: _Ready | None = None


class StoredBatches:
    """The batches of one log, for several consumers; calls must not overlap.

    `on_corrupt_batch`: whether each batch is checked first, and what becomes of a damaged one;
    None leaves that to the clients.  `place`: the directory whose files may hang (`ServedLog`).
    """

    def __init__(
        self, log: Log, on_corrupt_batch: OnCorruptBatch | None = None, place: str = ""
    ) -> None:
        self._log, self._place = log, place
        self._checks = on_corrupt_batch is not None
        self._skips = on_corrupt_batch is OnCorruptBatch.SKIP
        self._places: OrderedDict[tuple[int, bool], _Place] = OrderedDict()

    def fetch(self, asked: Asked, end_offset: int) -> FoundBatches:
        """The batches that are asked for, and begin below `end_offset`.

        Raises `CorruptLogError` or `UnsupportedFormatError` if the first batch cannot be sent;
        `FileNotFoundError` if a file is gone.
        """
        offset, max_bytes, takes_first, is_committed = asked
        for segment in from_offset(self._log.untorn_segments, offset):
            if segment.base_offset >= end_offset:
                break
            with _opened(segment, max_bytes) as opened:
                _check_place(opened.file, segment.path, segment.inode)
                place = self._places.pop((offset, is_committed), None)
                if place is not None and place[:2] != (segment.path, segment.inode):
                    place = None
                found = self._going_on(opened, place, offset, end_offset, max_bytes)
                if found is not None:
                    return found
                first = self._first(opened, offset, place)
                if first is None:
                    continue
                if first.header.base_offset >= end_offset:
                    break
                if first.header.size_in_bytes > max_bytes:
                    if not takes_first:
                        break
                    max_bytes = first.header.size_in_bytes
                committed = None
                if is_committed:
                    committed = place.committed if place is not None else None
                    committed = committed or CommittedBatches(
                        self._log.partition, skips=self._skips
                    )
                walked = self._walk(opened, committed, offset, end_offset, max_bytes)
                size = first.header.size_in_bytes
                found = walked.found(first.position, size, checks=self._checks, skips=self._skips)
                if found.records or found.next_offset > offset:
                    at = _Place(segment.path, segment.inode, walked.end, committed)
                    self._keep(at, found, walked.end)
                if found.records:
                    return found
                offset = max(offset, found.next_offset)  # only damage was there, and is left out
        return FoundBatches(Records(), offset)

    def going_on(self, asked: Asked, end_offset: int) -> FoundBatches | None:
        """The batches of a fetch that goes on where another one has ended, from memory alone.

        None if that may have to wait for a disk: if a header is not in memory, or the end of a
        transaction has to be looked for.  This takes less time than it takes to wake a thread.
        """
        place, segment = self._place_of(asked)
        if place is None or segment is None:
            return None
        ready = self._made_ready(asked, end_offset, place, segment)
        if ready is None:
            return None
        del self._places[asked.offset, asked.is_committed]
        self._keep(place, ready.found, ready.end)
        return ready.found

    def make_ready(self, asked: Asked, end_offset: int) -> None:
        """Look for the batches of the next fetch of a consumer, which handles others meanwhile."""
        place, segment = self._place_of(asked)
        if place is not None and segment is not None and asked.offset < end_offset:
            ready = self._made_ready(asked, end_offset, place, segment)
            if ready is not None and len(ready.found.records) > _SMALL_BYTES:
                self._places[asked.offset, asked.is_committed] = place._replace(ready=ready)

    def _place_of(self, asked: Asked) -> tuple[_Place | None, Segment | None]:
        """Where a fetch goes on, and its segment, if that is still the one of the place."""
        place = self._places.get((asked.offset, asked.is_committed))
        if place is None or self._checks or self._place:
            return None, None
        segment = next(iter(from_offset(self._log.untorn_segments, asked.offset)), None)
        is_same = segment is not None and place[:2] == (segment.path, segment.inode)
        return place, segment if is_same else None

    def _made_ready(
        self, asked: Asked, end_offset: int, place: _Place, segment: Segment
    ) -> _Ready | None:
        offset, max_bytes, takes_first, is_committed = asked
        ready = place.ready
        if ready is not None and ready.max_bytes == max_bytes:
            status = status_of(place.path, follow=True)
            is_same = (status.inode, _stamp(status)) == (place.inode, ready.stamp)
            if is_same and ready.found.next_offset <= end_offset:
                return ready
        with segment.opened() as opened:
            stamp = _stamp(opened.file.status())
            _check_place(opened.file, place.path, place.inode)
            batches = batches_in_memory(opened, place.position, max_bytes)
            if batches is None or (is_committed and _has_transactions(batches)):
                return None
            if takes_first:
                max_bytes = max(max_bytes, int(batches.headers[0, layout.SIZE]))
            walked = self._walk(opened, place.committed, offset, end_offset, max_bytes, offset)
            found = walked.found_in(place.position, [batches])
        return _Ready(asked.max_bytes, found, walked.end, stamp) if found.records else None

    def _going_on(
        self,
        opened: OpenSegment,
        place: _Place | None,
        offset: int,
        end_offset: int,
        max_bytes: int,
    ) -> FoundBatches | None:
        """The batches from the place of a consumer on; None if the first one needs a look."""
        if place is None or self._checks:
            return None
        walked = self._walk(opened, place.committed, offset, end_offset, max_bytes, offset)
        with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
            found = walked.found(place.position)
            if found.records:
                self._keep(place, found, walked.end)
                return found
        return None

    def _walk(
        self,
        opened: OpenSegment,
        committed: CommittedBatches | None,
        offset: int,
        end_offset: int,
        max_bytes: int,
        least: int | None = None,
    ) -> "_SegmentWalk":
        limit = self._limit(opened)
        return _SegmentWalk(
            opened, self._place, offset, end_offset, max_bytes, committed, limit, least
        )

    def _keep(self, place: _Place, found: FoundBatches, end: int) -> None:
        """Note where the consumer of an answer goes on: at a byte of the file of a place."""
        at = place._replace(position=end, ready=None)
        self._places[found.next_offset, place.committed is not None] = at
        if len(self._places) > _MOST_PLACES:
            self._places.popitem(last=False)

    def _limit(self, opened: OpenSegment) -> int:
        """An offset that the last batch of a segment does not reach."""
        segment = opened.segment
        return self._log.end.offset if segment.is_active else segment.offset_limit

    def _first(
        self, opened: OpenSegment, offset: int, place: _Place | None
    ) -> PlacedHeader | None:
        """The first batch that has the offset or a later one; None after the end.

        No checksum covers base offsets, so those of the batches around it have to rise.
        """
        segment = opened.segment
        position, least = 0, segment.base_offset
        if place is not None:
            position, least = place.position, offset
        elif offset > segment.base_offset:
            entry = opened.offset_index.lookup_before(offset - 1)
            position, header = opened.confirm(entry, offset)
            if header is not None and not header.is_wrapper:
                least = header.base_offset
        if self._skips:
            headers = sound_headers(opened, position, skips=True)
            return next((each for each in headers if each.header.last_offset >= offset), None)
        found, before = None, least
        try:
            for placed in opened.headers(position):
                if placed.header.base_offset < least:
                    raise _misplaced(segment.path, found or placed)
                if found is not None:
                    return found
                before, least, position = least, placed.header.last_offset + 1, placed.end
                if least > offset:
                    found = placed
        except (CorruptLogError, UnsupportedFormatError) as error:
            if found is None or error.position <= found.position:
                raise
            return found  # the next fetch meets it
        if found is not None:
            if least > self._limit(opened) >= before:
                raise _misplaced(segment.path, found)
            return found
        end = min(self._log.end.position, segment.size)
        if segment.is_active and position < end:
            raise TruncatedBatchError(
                segment.path, position, least, end - position + 1, end - position
            )
        return None


def _stamp(status: FileStatus) -> tuple[int, int]:
    return status.size, status.modified_ns


def _has_transactions(batches: ScannedBatches) -> bool:
    return bool(np.bitwise_or.reduce(batches.headers[:, layout.ATTRIBUTES]) & _TRANSACTIONS)


def _misplaced(path: str, placed: PlacedHeader) -> MalformedBatchError:
    reason = "its offsets overlap those of the batches around it"
    return MalformedBatchError(path, placed.position, placed.header.base_offset, reason)


def _opened(segment: Segment, max_bytes: int) -> OpenSegment:
    """A segment for look-ups; of a store, one request has the bytes of an answer."""
    if not is_url(segment.path):
        return segment.opened()
    window = min(max(max_bytes, _LEAST_HELD_BYTES), _MOST_HELD_BYTES)
    return OpenSegment(segment, _Window(file_of(segment), window))


class _SegmentWalk:
    """One walk over the batches of a segment that answer a fetch.

    `least`: the offset that the first batch may begin with, if nobody has looked at it.
    `end`: the byte after the last batch, from which the next fetch goes on.
    """

    def __init__(
        self,
        opened: OpenSegment,
        place: str,
        offset: int,
        end_offset: int,
        max_bytes: int,
        committed: CommittedBatches | None,
        limit: int,
        least: int | None = None,
    ) -> None:
        self.opened, self.committed, self._place = opened, committed, place
        self._offset, self._end_offset, self._limit = offset, end_offset, limit
        self._left, self._least = max_bytes, least
        self._ranges: list[tuple[int, int]] = []
        self._aborted: list[tuple[int, int]] = []
        self._active: set[int] = set()  # producers within an aborted transaction
        self.end = 0

    def found(
        self, begin: int, first_size: int = 0, *, checks: bool = False, skips: bool = False
    ) -> FoundBatches:
        """The batches from the first one on, whose byte and size are given."""
        path, size = self.opened.segment.path, self.opened.segment.size
        file: ReadableFile = self.opened.file
        batches: Iterator[ScannedBatches]
        if checks:
            batches = self._checked(file, begin, size, skips=skips)
        else:
            stop = min(begin + self._left, size)
            if is_url(path):
                stop = min(stop, begin + max(_MOST_HELD_BYTES, first_size))
            batches = (each.scanned for each in walk_file(path, file, begin, stop))
        found = self.found_in(begin, batches)
        for each in tuple.__iter__(found.records):
            if isinstance(each, Stored) and not each.place:
                bring_into_memory(file, each.position, each.position + each.size)
        return found

    def found_in(self, begin: int, batches: Iterable[ScannedBatches]) -> FoundBatches:
        """Those that belong to the answer, of batches that follow each other from a byte on."""
        self.end = begin
        try:
            for each in batches:
                if not self._take(each):
                    break
        except (CorruptLogError, UnsupportedFormatError):
            if not self._ranges:
                raise
        return FoundBatches(self._records(self.opened.file), self._offset, tuple(self._aborted))

    def _checked(
        self, file: ReadableFile, begin: int, size: int, *, skips: bool
    ) -> Iterator[ScannedBatches]:
        """Batches with right checksums; raises the error of others, unless it `skips` them."""
        windows = BatchWindows(_CHECKED_WINDOW_BYTES)
        path = self.opened.segment.path
        least = self.opened.segment.base_offset
        for each in walk(path, file, begin, size, least, windows=windows, goes_on=skips):
            if each.batches is not None:
                yield each.batches
            elif each.verdict is Verdict.ZEROS or each.error is None:
                return
            elif not skips:
                raise each.error
            else:
                self.end, self._offset = each.end, max(self._offset, each.next_offset)

    def _take(self, batches: ScannedBatches) -> bool:
        """Add batches to the answer, as far as they belong to it; whether all of them do."""
        headers = batches.headers
        ends = np.cumsum(headers[:, layout.SIZE])
        bases, lasts = headers[:, layout.BASE_OFFSET], headers[:, layout.LAST_OFFSET]
        least = self._offset if self._ranges else self._least
        begins = np.concatenate(([-1 if least is None else least], lasts[:-1] + 1))
        n_all = len(headers)
        n_taken = int(np.searchsorted(ends, self._left, "right"))
        if (beyond := bases >= self._end_offset).any():
            n_taken = min(n_taken, int(beyond.argmax()))
        if (wrong := bases < begins).any():  # it, or the one before it
            n_taken = min(n_taken, max(int(wrong.argmax()) - 1, 0))
        if n_taken == n_all and (n_taken > 1 or least is not None):
            end = batches.position_of(-1) + int(headers[-1, layout.SIZE])
            n_taken -= not self._is_in_its_place(end, int(begins[-1]), int(lasts[-1]))
        if not n_taken:
            return False
        taken = batches.only(slice(0, n_taken))
        if self.committed is not None:
            self._add_aborted(taken, self.committed)
        begin = taken.position_of(0)
        self.end = begin + int(ends[n_taken - 1])
        self._left -= self.end - begin
        self._offset = taken.next_offset
        if self._ranges and self._ranges[-1][1] == begin:
            begin = self._ranges.pop()[0]
        self._ranges.append((begin, self.end))
        return n_taken == n_all

    def _is_in_its_place(self, end: int, least: int, last_offset: int) -> bool:
        """Whether what follows a batch that ends at a byte shows that its offsets are right."""
        segment = self.opened.segment
        if end == segment.size:
            return not last_offset >= self._limit >= least
        if is_url(segment.path):  # the next header is another request
            return False
        following = self.opened.header_at(end, up_to_offset=LARGEST_LONG)
        return following is not None and following.base_offset > last_offset

    def _add_aborted(self, batches: ScannedBatches, committed: CommittedBatches) -> None:
        """Note where aborted transactions begin here: a client drops them up to their markers."""
        is_aborted = committed.aborted(batches, batches.next_offset) != 0
        headers = batches.headers
        is_control = headers[:, layout.ATTRIBUTES] & layout.CONTROL_MASK != 0
        for row in np.flatnonzero(is_aborted | is_control).tolist():
            producer_id = int(headers[row, layout.PRODUCER_ID])
            if is_control[row]:
                self._active.discard(producer_id)
            elif producer_id not in self._active:
                self._active.add(producer_id)
                self._aborted.append((producer_id, int(headers[row, layout.BASE_OFFSET])))

    def _records(self, file: ReadableFile) -> Records:
        most = _MOST_HELD_BYTES if self._place else _SMALL_BYTES
        opened = partial(_reopened, self.opened.segment.path, file.status().inode)
        found: list[Stored | Held] = []
        for begin, end in self._ranges:
            held = Held.read(file, begin, end - begin) if end - begin <= most else None
            found.append(held or Stored(opened, begin, end - begin, self._place))
        return Records(found)


def _reopened(path: str, inode: int) -> ReadableFile:
    """The file of a range that is sent; raises `FileNotFoundError` if another one has its name."""
    file = open_file(path)
    try:
        _check_place(file, path, inode)
    except FileNotFoundError:
        file.close()
        raise
    return file


def _check_place(file: ReadableFile, path: str, inode: int) -> None:
    """Refuse a file that has taken the place of the one of an inode, as after a compaction.

    What is known of the other one, such as where a consumer goes on in it, is wrong here.
    """
    if inode not in (0, file.status().inode):
        raise FileNotFoundError(errno.ENOENT, "another file has taken its place", path)


class _Window(ReadableFile):
    """A file of a store, of which a window of bytes is read at once."""

    never_overlaps = False

    def __init__(self, file: ReadableFile, window: int) -> None:
        self.path, self._file, self._window = file.path, file, window
        self.never_cut, self.never_overlaps = file.never_cut, file.never_overlaps
        self._at, self._data = 0, b""

    def status(self) -> FileStatus:
        return self._file.status()

    def read(self, position: int, n_bytes: int) -> bytes:
        at = position - self._at
        if not 0 <= at <= at + n_bytes <= len(self._data):
            self._at, at = position, 0
            self._data = self._file.read(position, max(n_bytes, self._window))
        return self._data[at : at + n_bytes]

    def close(self) -> None:
        self._file.close()
