"""The files of one log as they were listed: what they show, and slices of bytes cut from them.

A log that has changed since is listed again (`retry_if_relisted`).

Readers of records ask a partition for its segments.  Writers, upkeep and recovery list the
directory themselves: they need a mounted file system.

All files of a log are in one directory of a `Disk` (`segmentlog.store.readable`), and
`Partition.of_slice` finds the directory from the first file of a slice.  A log that lies in two
places has a disk that shows both as one directory, as `segmentlog.tiered.disk` does for a local
log and its tier.

Segment boundaries and entries of the offset index are the only places to cut a range of offsets,
so that a slice begins and ends between two batches.  For each cut inside a file one batch header
is read: it must fit the index entry, and its base offset is where one slice ends and the next
begins.  A cut that does not fit is not made; the slice is then larger, never wrong.

The first slice begins, and the last one ends, up to a few index entries further out than the range
does.  The task reads these bytes, verifies them, and drops their rows: a walk along headers to the
exact batch would trust lengths before their checksums are verified.
"""

import contextlib
import copy
import errno
import functools
import logging
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar

from segmentlog.errors import (
    CorruptLogError,
    LogChangedError,
    SegmentLogError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.names import FileKind, FileState, parse_segment_file
from segmentlog.format.records.header import BatchHeader
from segmentlog.log.checkpoint import known_topic_id
from segmentlog.log.indexes import OffsetPosition
from segmentlog.log.listing import (
    ListedFiles,
    Listing,
    list_segments,
    orphans,
)
from segmentlog.log.segment import LogEnd, OpenSegment, Segment, find_log_end
from segmentlog.model import (
    LARGEST_LONG,
    LogSlice,
    OffsetRange,
    SliceFile,
    SliceFiles,
    TopicPartition,
)
from segmentlog.reads.lookup import NewestTimestamps
from segmentlog.store.paths import is_bucket
from segmentlog.store.readable import is_url, list_names
from segmentlog.store.remote.requests import side_by_side
from segmentlog.store.system_errors import is_gone, storage_error

if TYPE_CHECKING:
    from segmentlog.reads.log import Log
    from segmentlog.reads.snapshot import DirectorySnapshot


logger = logging.getLogger(__name__)

_ATTEMPTS = 5  # a broker rarely overtakes a look-up more often than this

#: Sentinel: planning did not read the checksum of the first batch: the file is read
#: from its first byte and was not opened, or the bytes are not a batch.
UNCHECKED = -1


class LostOffsets(NamedTuple):
    """Offsets of a log whose segments are gone, from its log end up to its high watermark.

    `why` shows that they are gone, in words.
    """

    start_offset: int
    end_offset: int
    why: str

    def __str__(self) -> str:
        return (
            f"offsets [{self.start_offset}, {self.end_offset}) are missing: its high watermark "
            f"is {self.end_offset}, and its log ends at {self.start_offset}, although {self.why}"
        )


class LostSegments(LostOffsets):
    """Offsets before a segment of a log whose segments are gone.

    They begin where the segment before them ends, or else where the index of the first one says,
    and end where the segment after them begins.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return f"offsets [{self.start_offset}, {self.end_offset}) are missing: {self.why}"


class EmptiedSegment(LostSegments):
    """Offsets of a segment whose file has no byte, although its indexes have entries."""

    __slots__ = ()


def _why_gone(path: str, of_index: str) -> str:
    """What an index, or an entry that has the name of a segment and is no file, shows."""
    name = os.path.basename(path)
    return f"{name} is a link, or no file" if path.endswith(".log") else f"{name} {of_index}"


class ListedSegments:
    """The segments of one listing; a log that has changed is listed again.

    `log_start`: by its checkpoint, or 0.  `committed_to`: the high watermark, or -1 if there is
    none.  `path`: of the partition's directory; empty for one segment alone, which need not reach
    to the end.  `snapshot`: of the log directory, if its checkpoints may show that segments are
    lost.
    """

    def __init__(
        self,
        listing: Listing,
        log_start: int = 0,
        committed_to: int = -1,
        path: str = "",
        topic_partition: TopicPartition | None = None,
        snapshot: "DirectorySnapshot | None" = None,
    ) -> None:
        #: In the order of their base offsets; the last one is the active segment's.
        self.files = listing.files
        self.listing = listing
        self._log_start = log_start
        # A commit that fails cuts the index of the segment that it has rolled, in place.  A broker
        # does so when it truncates its log.  A process that has the index mapped dies of SIGBUS.
        # Neither of them touches a segment that a committed record follows.
        self._committed_to = committed_to
        self._path = path
        self._topic_partition, self.snapshot = topic_partition, snapshot
        self._newest_timestamps: dict[bool, NewestTimestamps] = {}

    def segment(self, i: int) -> Segment:
        """Segment `i` of the log, from 0."""
        if i + 1 == len(self.files):
            return self._active
        follows = self.files.paths.base_offsets[i + 1]
        is_sealed = self.listing.is_clean and follows < self._committed_to
        return Segment(
            self.files[i], is_sealed=is_sealed, is_active=False, offset_limit=self.offset_limit(i)
        )

    @cached_property
    def _active(self) -> Segment:
        """The last segment, which keeps what the search for the log end finds."""
        i = len(self.files) - 1
        return Segment(self.files[i], is_sealed=False, offset_limit=self.offset_limit(i))

    def offset_limit(self, i: int) -> int:
        """An offset that no batch of segment `i` reaches, unless the segment was merged."""
        # The next segment begins there. After the last segment, its indexes cannot hold more, but
        # the high watermark may show that the log does.
        base_offsets = self.files.paths.base_offsets
        if i + 1 < len(base_offsets):
            return base_offsets[i + 1]
        return max(base_offsets[i] + layout.SEGMENT_OFFSETS, self._committed_to)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """All of them, in the order of their base offsets; the last one is the active segment."""
        return tuple(map(self.segment, range(len(self.files))))

    @cached_property
    def end(self) -> LogEnd:
        """End of the last segment."""
        if not self.files:
            return LogEnd(self._log_start, 0)
        return find_log_end(self._active, self._committed_to)

    @cached_property
    def log_start_offset(self) -> int:
        """First offset that a reader may see."""
        first = self.files.paths.base_offsets[0] if self.files else 0
        return max(self._log_start, first)

    @cached_property
    def log_end_offset(self) -> int:
        """The log end when the directory was opened."""
        end, known = self.end.offset, self.listing.end_offset
        return max(end if known is None else min(end, known), self.log_start_offset)

    @cached_property
    def lost(self) -> LostOffsets | None:
        """The offsets whose segments are gone from the end of the log, if there are any."""
        # A clean stop writes all of a log, and then its high watermark. Without a clean stop, a
        # crash or a copy beside a broker may have left a newer high watermark than records: then
        # the index of a segment that is gone shows the loss, or a recovery point after the log
        # end.
        end, promised = self.log_end_offset, self._committed_to
        if end >= promised or (self.files and self.segments[-1].size > self.end.position):
            return None  # nothing is missing, or a torn tail is
        damaged = self.end.damaged_from
        if damaged is not None and self.end.offset <= damaged + 1:
            return None  # no sound batch follows the damage, which may hold these offsets
        if self.listing.is_clean:
            return LostOffsets(end, promised, "it was cleanly stopped")
        for base_offset, path in self._orphans:
            if end <= base_offset < promised:
                why = _why_gone(path, "is the index of a later segment")
                return LostOffsets(end, promised, why)
        if self.snapshot is not None and self._topic_partition is not None:
            synced_to = self.snapshot.synced_to(self._topic_partition)
            if synced_to > end:
                return LostOffsets(end, promised, f"it was synced up to offset {synced_to}")
        return None

    @cached_property
    def _orphans(self) -> list[tuple[int, str]]:
        """Base offset and path of each index whose segment is gone, or that is no file itself."""
        try:
            return sorted(orphans(self._path)) if self._path else []
        except (FileNotFoundError, NotADirectoryError):
            return []

    @cached_property
    def lost_segments(self) -> tuple[LostSegments, ...]:
        """The segments that are gone from the beginning or the middle of the log."""
        # An index shows one: its segment was there, and the segment before it ends below it.
        # Compaction leaves such an index if a crash comes between two removals, so a log that was
        # ever compacted shows nothing. Retention does so, too; then the segment is put aside.
        bases, found = self.files.paths.base_offsets, dict[int, LostSegments]()
        aside = self._put_aside if self._orphans else ()
        for base_offset, path in self._orphans:
            i = bisect_right(bases, base_offset)  # the segment after it
            if i in found or i == len(bases) or not self._log_start <= base_offset < bases[i]:
                continue
            is_sign = self.cleaned_to < 0 and base_offset not in aside
            end = self.end_of(i - 1) if i else base_offset
            if end is not None and end <= base_offset and (is_sign or path.endswith(".log")):
                why = _why_gone(path, "is there, and its segment is gone")
                found[i] = LostSegments(end, bases[i], why)
        found = dict(self._emptied) | found
        return tuple(found[i] for i in sorted(found))

    @cached_property
    def _emptied(self) -> dict[int, EmptiedSegment]:
        """Segments that had records and have none, by the number of the segment after them."""
        # Compaction may leave such a file. Then its indexes are empty, too.
        bases, found = self.files.paths.base_offsets, dict[int, EmptiedSegment]()
        for i in range(1, len(bases)):
            if self.files.sizes[i - 1] or not self._path or bases[i] <= self._log_start:
                continue
            with (
                contextlib.suppress(SegmentLogError, OSError),
                self.segment(i - 1).opened() as opened,
            ):
                for index in (opened.time_index, opened.offset_index):
                    if index.n_entries:
                        why = (
                            f"{os.path.basename(index.path)} has entries, and its segment is empty"
                        )
                        start = max(bases[i - 1], self._log_start)
                        found[i] = EmptiedSegment(start, bases[i], why)
        return found

    @cached_property
    def _put_aside(self) -> set[int]:
        """Base offsets of segments that have left the log, and are not removed yet."""
        found = filter(None, map(parse_segment_file, list_names(self._path)))
        return {
            each.offset
            for each in found
            if each.kind == FileKind.LOG and each.state == FileState.DELETED
        }

    @property
    def cleaned_to(self) -> int:
        """How far the log was compacted, or -1."""
        if self.snapshot is None or self._topic_partition is None:
            return -1
        return self.snapshot.cleaned_to(self._topic_partition)

    @cached_property
    def gaps(self) -> tuple[OffsetRange, ...]:
        """Offsets between the ends of segments and the next ones: compacted away, or lost."""
        bases = self.files.paths.base_offsets
        found = []
        for i, after in enumerate(bases[1:]):
            end = self.end_of(i) if after > self._log_start else None
            if end is not None and end < after:
                found.append(OffsetRange(end, after))
        return tuple(found)

    def end_of(self, i: int) -> int | None:
        """The offset after the last batch of segment `i`; None if damage hides it."""
        end = self.files.paths.base_offsets[i]
        try:
            with self.segment(i).opened() as opened:
                for placed in opened.headers(opened.floor_position(LARGEST_LONG)):
                    header = placed.header
                    is_batch = header.magic >= layout.FIRST_BATCH_MAGIC
                    end = (header.last_offset if is_batch else header.base_offset) + 1
        except (CorruptLogError, UnsupportedFormatError):
            return None
        return end

    def newest_timestamps(self, *, skips: bool = False) -> NewestTimestamps:
        """Largest timestamps of the segments; look-ups by time begin at the log start."""
        if skips not in self._newest_timestamps:
            self._newest_timestamps[skips] = NewestTimestamps(
                self.untorn, self.log_start_offset, skips=skips
            )
        return self._newest_timestamps[skips]

    @cached_property
    def untorn(self) -> tuple[Segment, ...]:
        """The segments, without a torn tail of the last one that no high watermark promises."""
        # Zeros, with which a file system fills a file up after a crash, are not a batch header.
        if not self.files or self.segments[-1].size <= self.end.position:
            return self.segments
        active = copy.copy(self.segments[-1])
        if self.end.offset < self._committed_to:
            active.may_be_torn = False  # it is damage, which a look-up reports
        else:
            active.size = self.end.position
        return (*self.segments[:-1], active)

    def reads_as(self, again: "ListedSegments") -> bool:
        """Whether a new listing has the same segments, and the same end if it is known."""
        if self.files != again.files or self.listing.end_offset != again.listing.end_offset:
            return False
        return not self.knows_its_end or self.end == again.end

    @property
    def knows_its_end(self) -> bool:
        """Whether the end of the last segment was looked up."""
        return "end" in self.__dict__

    def beside(self, snapshot: "DirectorySnapshot") -> "ListedSegments":
        """The listing in a directory that was, or was not, cleanly stopped; the end is kept."""
        listing = self.listing._replace(is_clean=snapshot.is_clean)
        found = ListedSegments(
            listing,
            self._log_start,
            self._committed_to,
            self._path,
            self._topic_partition,
            snapshot,
        )
        if self.knows_its_end:
            found.end = self.end
        return found

    def has_changed(self) -> bool:
        """Whether files were renamed, replaced or cut since the listing."""
        return not all(each.is_still_there() for each in self.files)


class _Cut(NamedTuple):
    """A byte between two batches, and the offset that no batch before the byte reaches."""

    position: int
    next_offset: int


class _Piece(NamedTuple):
    """Part of a file, and the offset from which the part holds the log."""

    start_offset: int
    file: SliceFile


class _RangePieces:
    """The pieces of a range, in the order of their offsets."""

    def __init__(self, files: ListedFiles, start_offset: int) -> None:
        self._listed = files
        self._first = start_offset
        self._start_offsets = array("q")
        self._files = SliceFiles(files.paths.part(0, 0))

    def add(self, segment: int, pieces: Iterable[_Piece]) -> None:
        """Add pieces of one segment."""
        base_offset = self._listed.paths.base_offsets[segment]
        for start_offset, file in pieces:
            self._start_offsets.append(start_offset)
            self._files.append(base_offset, file)

    def add_whole(self, begin: int, end: int) -> None:
        """Add the segments ``[begin, end)`` whole, without the empty ones."""
        files = self._listed
        while begin < end:
            try:
                empty = files.sizes.index(0, begin, end)
            except ValueError:
                empty = end
            self._start_offsets += files.paths.base_offsets[begin:empty]
            limits = files.paths.base_offsets[begin + 1 : empty + 1]
            columns = files.paths, files.sizes, files.inodes
            self._files.add_whole(*columns, begin, empty, UNCHECKED, limits)
            begin = empty + 1

    def grouped(
        self, topic_partition: TopicPartition, end_offset: int, max_bytes: int
    ) -> list[LogSlice]:
        """Slices of neighbouring pieces that together stay below `max_bytes`."""
        if not self._files:  # compaction has left nothing there
            return []
        begins, filled = [0], 0
        if max_bytes and sum(self._files.sizes()) > max_bytes:
            for i, n_bytes in enumerate(self._files.sizes()):
                if i and filled + n_bytes > max_bytes:
                    begins.append(i)
                    filled = 0
                filled += n_bytes
        starts = [max(self._start_offsets[i], self._first) for i in begins]
        starts[0] = self._first
        ends = [*starts[1:], end_offset]
        parts = [self._files]
        if len(begins) > 1:
            upper = [*begins[1:], len(self._files)]
            parts = [self._files.part(*each) for each in zip(begins, upper, strict=True)]
        return [
            LogSlice(*topic_partition, start, end, files)
            for start, end, files in zip(starts, ends, parts, strict=True)
        ]


def cut_slices(
    topic_partition: TopicPartition,
    listed: ListedSegments,
    start_offset: int,
    end_offset: int,
    max_bytes: int,
) -> list[LogSlice]:
    """Slices of at most about `max_bytes` that together hold ``[start_offset, end_offset)``.

    With 0, there is one slice, however large.  Raises `FileNotFoundError` if a file that was cut
    has gone, or another one has its name: list the log again.
    """
    files = listed.files
    if start_offset >= end_offset or not files:
        return []
    base_offsets, sizes = files.paths.base_offsets, files.sizes
    pieces = _RangePieces(files, start_offset)
    last = len(files) - 1
    first = listed.files.index_of(start_offset)
    # No index is asked about segments that are read whole, as most are.
    whole = first + (base_offsets[first] < start_offset)
    limit = max(whole, min(bisect_right(base_offsets, end_offset) - 1, last))
    largest = max_bytes or LARGEST_LONG
    cut_segment = partial(
        _cut_segment, listed, start_offset=start_offset, end_offset=end_offset, max_bytes=max_bytes
    )
    cut: dict[int, Sequence[_Piece]] = {}
    if max_bytes and is_url(files.paths[0]):
        # Each index and each header is a request, and none waits for another.
        large = [each for each in range(whole, limit) if sizes[each] > max_bytes]
        cut = dict(zip(large, side_by_side(cut_segment, large), strict=True))
    i = first
    while i <= last and base_offsets[i] < end_offset:
        if whole <= i < limit and sizes[i] <= largest:
            run = sizes[i:limit]
            end = limit
            if max(run) > largest:
                end = i + sum(1 for _ in takewhile(largest.__ge__, run))
            pieces.add_whole(i, end)
            i = end
            continue
        pieces.add(i, cut[i] if i in cut else cut_segment(i))
        i += 1
    return pieces.grouped(topic_partition, end_offset, max_bytes)


def _cut_segment(
    listed: ListedSegments, i: int, start_offset: int, end_offset: int, max_bytes: int
) -> Sequence[_Piece]:
    """The bytes of segment `i` within the range, in parts of at most about `max_bytes`."""
    files = listed.files
    last = len(files) - 1
    is_cut = i == last or end_offset < files.paths.base_offsets[i + 1]
    end = _Cut(files.sizes[i], listed.offset_limit(i))
    if i == last and end_offset <= listed.end.offset:
        end = _Cut(listed.end.position, listed.end.offset)
    elif i == last:
        # No sound batch follows the tail, so none reaches the promised end: the read reports
        # damage, even if a wrong base offset puts the damaged batch beyond that end.
        end = _Cut(end.position, end_offset)
    with listed.segment(i).opened() as opened:
        if is_cut and not (i == last and end_offset == listed.end.offset):
            end = _ceiling(opened, end_offset, end)
        piece = _first_piece(opened, start_offset, end)
        pieces = [] if piece is None else _cut_piece(opened, piece, end_offset, max_bytes)
    # The cuts may be those of another file, which compaction has put under the name.
    file = files[i]
    may_change = not is_url(file.path) or is_bucket(file.path)
    if file.inode and may_change and not file.is_still_there():
        raise FileNotFoundError(errno.ENOENT, "another file now has its name", file.path)
    return pieces


def _ceiling(opened: OpenSegment, end_offset: int, limit: _Cut) -> _Cut:
    """A byte after which no batch begins below `end_offset`, from the offset index."""
    # The first entry at or above that offset belongs to the append that reaches the offset, and
    # this append may begin below it. The second entry does not begin below it, unless the first is
    # wrong.
    entry = next(islice(opened.offset_index.entries_from(end_offset), 1, None), None)
    if entry is None or not 0 < entry.position < limit.position:
        return limit
    _, begins = _batch_at(opened, entry)
    return limit if begins < end_offset else _Cut(entry.position, begins)


def _first_piece(opened: OpenSegment, start_offset: int, end: _Cut) -> _Piece | None:
    """The bytes of a segment up to `end`, from a batch that is not after `start_offset`."""
    segment = opened.segment
    position, first_offset, crc = 0, segment.base_offset, UNCHECKED
    if start_offset > first_offset:
        # The batches before and after it show that a base offset is wrong.  So the read begins two
        # entries before the range.
        entry = opened.offset_index.lookup_before(start_offset - 1)
        position, header = opened.confirm(entry, start_offset)
        # At byte 0, the bound is the segment's base offset: no checksum covers the base offset of
        # the first batch, and no batch before it shows that it is too high.
        if header is not None:
            crc = header.crc
            if not header.is_wrapper:
                first_offset = header.base_offset
    if position >= end.position:
        return None
    file = SliceFile(
        segment.path, position, end.position, first_offset, crc, end.next_offset, segment.inode
    )
    return _Piece(max(start_offset, segment.base_offset), file)


def _cut_piece(
    opened: OpenSegment, piece: _Piece, end_offset: int, max_bytes: int
) -> Sequence[_Piece]:
    """Even parts of `piece` of at most about `max_bytes`, cut at entries of the offset index."""
    file = piece.file
    begin, n_bytes = file.start, file.end - file.start
    if not max_bytes or n_bytes <= max_bytes:
        return [piece]
    n_parts = -(-n_bytes // max_bytes)
    pieces = []
    for part in range(1, n_parts):
        entry = opened.offset_index.last_at_or_before_position(begin + part * n_bytes // n_parts)
        if not file.start < entry.position < file.end:
            continue
        header, begins = _batch_at(opened, entry)
        if header is None or not piece.start_offset < begins < end_offset:
            continue
        before = file._replace(end=entry.position, next_offset=begins)
        pieces.append(_Piece(piece.start_offset, before))
        file = file._replace(start=entry.position, first_offset=begins, first_crc=header.crc)
        piece = _Piece(begins, file)
    return [*pieces, _Piece(piece.start_offset, file)]


def _batch_at(opened: OpenSegment, entry: OffsetPosition) -> tuple[BatchHeader | None, int]:
    """Header of the batch at an index entry, and the offset at which a slice may begin there."""
    # It is the batch's base offset, or, for a wrapper, whose header has only its last offset, the
    # least possible one. None and -1 if the batch does not fit: it must begin after the batch
    # before it, and end at or before the entry. No checksum covers base offsets, and a wrong one
    # would hide rows of the slice before.
    header = opened.header_at(entry.position, up_to_offset=entry.offset)
    if header is None or header.last_offset > entry.offset:
        return None, -1
    at = opened.offset_index.last_at_or_before_position(entry.position - 1).position
    before = None
    with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
        for placed in opened.headers(at, entry.position):
            if placed.end == entry.position:
                before = placed.header.last_offset + 1
    if before is None or header.base_offset < before:
        return None, -1
    return header, before if header.is_wrapper else header.base_offset


def cut_by_file(log_slice: LogSlice) -> list[LogSlice]:
    """The slices of single files that together hold the rows of `log_slice`."""
    files = log_slice.files
    starts = [log_slice.start_offset, *(each.first_offset for each in files[1:])]
    ends = [*starts[1:], log_slice.end_offset]
    return [
        log_slice._replace(start_offset=start, end_offset=end, files=(file,))
        for file, start, end in zip(files, starts, ends, strict=True)
        if start < end
    ]


class FileChangedError(Exception):
    """A file has changed since planning."""


class Partition(NamedTuple):
    """The files of one log."""

    path: str  # of the directory of its files; errors name it

    @classmethod
    def of_file(cls, path: str) -> "Partition":
        """The partition that holds a ``.log`` file."""
        return cls(os.path.dirname(path))

    @classmethod
    def of_slice(cls, log_slice: LogSlice) -> "Partition":
        """The partition that a slice with files was cut from."""
        return cls.of_file(log_slice.files[0].path)

    def files(self) -> ListedFiles:
        """`list_segments` of it."""
        return list_segments(self.path)

    def segments(self) -> tuple[Segment, ...]:
        """Its segments now, beside a writer: no index is mapped, and the last one is active."""
        files = self.files()
        limits: Sequence[int | None] = [*(each.base_offset for each in files[1:]), None]
        return tuple(
            Segment(each, is_sealed=False, is_active=limit is None, offset_limit=limit)
            for each, limit in zip(files, limits, strict=False)
        )

    def check_topic(self, topic_id: str, offsets: OffsetRange) -> None:
        """Raise `LogChangedError` if what was just read may be of another topic than the known."""
        # The topic was then deleted, and created again. Inodes do not show it: they are reused.
        now = known_topic_id(self.path) if topic_id else ""
        if now and now != topic_id:
            reason = f"its topic was deleted, and another was created (id {now}, not {topic_id})"
            raise LogChangedError(self.path, *offsets, reason)


def find_again(log_slice: LogSlice, partition: Partition, next_offset: int) -> LogSlice | None:
    """The rest of a slice from `next_offset` on, in the files that the partition has now.

    None if the log begins after `next_offset`, or ends before the slice does: records of the slice
    have been deleted, or a broker has truncated its log.
    """
    files = partition.files()
    if not files or files[0].base_offset > next_offset:
        return None
    listed = ListedSegments(Listing(files))
    if listed.end.offset < log_slice.end_offset:
        return None
    i = listed.files.index_of(next_offset)
    begins = next((each.base_offset for each in files if each.base_offset > next_offset), -1)
    end = listed.end_of(i) if begins >= 0 else None
    if end is not None and end <= next_offset:
        logger.warning(
            "%s: offsets [%d, %d) were there when the read was planned, and no segment holds them "
            "now: a broker has removed their records in a compaction, or files were lost",
            partition.path,
            next_offset,
            min(begins, log_slice.end_offset),
        )
    slices = cut_slices(log_slice.topic_partition, listed, next_offset, log_slice.end_offset, 0)
    if slices:
        return slices[0]._replace(topic_id=log_slice.topic_id)
    return log_slice._replace(start_offset=next_offset, files=())


_L = TypeVar("_L", bound="Log")
_P = ParamSpec("_P")
_R = TypeVar("_R")


def retry_if_relisted(
    method: Callable[Concatenate[_L, _P], _R],
) -> Callable[Concatenate[_L, _P], _R]:
    """Call a method of a log again if a file was renamed, replaced or cut since the listing."""
    # Retention and compaction do that to a healthy log. An error in a file that is still the
    # listed one is a true error, and is raised.

    @functools.wraps(method)
    def looking_again(self: _L, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        for _ in range(_ATTEMPTS):
            try:
                return method(self, *args, **kwargs)
            except SegmentLogError as error:
                listed = self._newest_listing
                is_corrupt = isinstance(error, CorruptLogError)
                if not is_corrupt or (listed is not None and not listed.has_changed()):
                    raise
                change: Exception = error
            except OSError as error:
                if not is_gone(error):
                    raise storage_error(error, self.path) from error
                change = error
            self._newest_listing = None  # listed again on the next request
        raise LogChangedError(self.path, -1, -1, str(change)) from change

    return looking_again
