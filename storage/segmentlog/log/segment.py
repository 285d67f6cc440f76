"""One segment: its ``.log`` file, look-ups in it by way of its indexes, and its end.

An index is only a hint where to begin.  A look-up reads the batch header at the position that the
index gives.  If the header does not fit, the look-up begins at the start of the file instead.

The last segment ends where its whole batches with right checksums end.  The last write of a
crashed broker may be cut short, or its pages lost.  Such a torn tail is not data and was never
acknowledged on this disk, so a read ends before it.  Damage with good batches after it is not a
torn tail.  It stays in the range to read, and the read fails there.
"""

import contextlib
import errno
import logging
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from segmentlog.arguments import class_of_one_dialect
from segmentlog.errors import (
    CorruptLogError,
    MalformedBatchError,
    SegmentLogError,
    TruncatedBatchError,
    UnsupportedFormatError,
)
from segmentlog.format.checksum import crc32c
from segmentlog.format.kernels import layout
from segmentlog.format.names import FileKind
from segmentlog.format.records.header import BatchHeader, is_too_high, parse_header
from segmentlog.log.damage import first_offset, good_batch_after, is_newer_format, sound_headers
from segmentlog.log.indexes import OffsetIndex, OffsetPosition, TimeIndex
from segmentlog.log.listing import SegmentFiles
from segmentlog.model import TimestampAndOffset
from segmentlog.store.paths import is_bucket
from segmentlog.store.readable import (
    Closing,
    ReadableFile,
    after_zeros,
    noted_timestamp,
    open_file,
    status_of,
)

logger = logging.getLogger(__name__)

#: Of warnings of torn tails alone, for callers that report torn tails in another way.
TORN_TAIL_LOGGER = f"{__name__}.torn_tail"
_torn_tail_logger = logging.getLogger(TORN_TAIL_LOGGER)

_FIRST_WINDOW_BYTES = 4 << 10  # Kafka's default of index.interval.bytes
#: Of each batch in `Tail.batches`: base offset, last offset, number of records, attributes, base
#: timestamp and largest timestamp.
TAIL_COLUMNS = 6
_MOST_TAIL_BATCHES = 64  # 3 KiB of each log
_TAIL_WINDOW_BYTES = 4 * _FIRST_WINDOW_BYTES  # from the last index entry but two on
_HEADER_WINDOW_BYTES = 64 << 10
_PIECE_BYTES = 1 << 20
_ENTRIES_TRIED = 4  # of an offset index, from its end, to find one whose batch is there

#: Bytes after a bad batch, and after the zeros in its place, that are searched for a good one.
_SEARCH_BYTES = 16 << 20
_MIN_LENGTH = layout.MIN_LENGTHS[layout.MAGIC]


class PlacedHeader(NamedTuple):
    """A batch header and its byte in the file."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """Byte after the batch, by its own length."""
        return self.position + self.header.size_in_bytes

    def checksum(self, file: ReadableFile, window: bytes = b"", window_at: int = 0) -> int:
        """Checksum of the bytes that the batch's own checksum covers, read a piece at a time.

        `window`: bytes of the file from byte `window_at` on, which need no further read.
        """
        is_message = self.header.magic < layout.FIRST_BATCH_MAGIC
        at = self.position + (layout.MAGIC_AT if is_message else layout.ATTRIBUTES_AT)
        add = zlib.crc32 if is_message else crc32c
        crc, end = 0, self.end
        if window_at <= at and end <= window_at + len(window):
            return add(memoryview(window)[at - window_at : end - window_at], 0)
        while at < end:
            piece = file.read(at, min(_PIECE_BYTES, end - at))
            if not piece:
                break
            crc = add(piece, crc)
            at += len(piece)
        return crc


class Tail(NamedTuple):
    """The end of a segment after a walk that found every batch sound, up to the last byte."""

    position: int  # of its first batch
    newest_ms: int  # the largest timestamp of its batches
    last: PlacedHeader
    #: All of its batches if they are few: `TAIL_COLUMNS` numbers of each.  Empty if they are many,
    #: or messages of magic 0 or 1, of which the header lacks the first offset.
    batches: "array[int]"
    first_offset: int  # no batch before the tail has it, or a later one

    def headers(self) -> list[BatchHeader]:
        """The headers of `batches`; fields that are not in there are -1."""
        columns = zip(*[iter(self.batches)] * TAIL_COLUMNS, strict=True)
        return [
            BatchHeader(
                base, -1, -1, layout.MAGIC, -1, bits, last - base, first, most, -1, -1, -1, count
            )
            for base, last, count, bits, first, most in columns
        ]


@class_of_one_dialect()
class Segment:
    """One segment as it was listed; nothing is kept open.

    Parameters
    ----------
    files : the ``.log`` file.
    is_sealed : whether its indexes may be mapped because nobody writes to them any more: it is not
        the active segment, and the directory was cleanly shut down.
    is_active : whether it is the last one, whose end may be half written.
    offset_limit : an offset that none of its batches reaches; by default, what its indexes can
        hold.
    """

    __slots__ = (
        "base_offset",
        "inode",
        "is_active",
        "is_sealed",
        "may_be_torn",
        "offset_limit",
        "path",
        "size",
        "tail",
    )

    def __init__(
        self,
        files: SegmentFiles,
        *,
        is_sealed: bool,
        is_active: bool = True,
        offset_limit: int | None = None,
    ) -> None:
        most = files.base_offset + layout.SEGMENT_OFFSETS
        self.offset_limit = most if offset_limit is None else offset_limit
        self.base_offset = files.base_offset
        self.path = files.path
        self.size = files.size
        self.inode = files.inode
        self.is_sealed = is_sealed
        self.is_active = is_active
        #: The end of the active segment; a high watermark beyond it promises that it is whole.
        self.may_be_torn = is_active
        #: Once `find_log_end` has walked it, if it is sound: look-ups need not walk it again.
        self.tail: Tail | None = None

    def __repr__(self) -> str:
        return f"Segment({self.path!r}, size={self.size})"

    def index_path(self, kind: FileKind) -> str:
        """Path of an index beside the file, which has the state of the file in its name, too."""
        stem, _, rest = self.path.rpartition(".log")
        return f"{stem}.{kind}{rest}"

    @property
    def offset_index_path(self) -> str:
        """Path of its ``.index``; the file may be missing."""
        return self.index_path(FileKind.OFFSET_INDEX)

    @property
    def time_index_path(self) -> str:
        """Path of its ``.timeindex``; the file may be missing."""
        return self.index_path(FileKind.TIME_INDEX)

    @property
    def transaction_index_path(self) -> str:
        """Path of its ``.txnindex``; only a segment with aborts has this file."""
        return self.index_path(FileKind.TRANSACTION_INDEX)

    def offset_index(self) -> OffsetIndex:
        """The ``.index`` beside the file, opened."""
        return OffsetIndex(self.offset_index_path, self.base_offset, mapped=self.is_sealed)

    def time_index(self) -> TimeIndex:
        """The ``.timeindex`` beside the file, opened."""
        return TimeIndex(self.time_index_path, self.base_offset, mapped=self.is_sealed)

    def opened(self) -> "OpenSegment":
        """The segment, for several look-ups that share open files."""
        return OpenSegment(self)

    def headers(self, position: int, end: int | None = None) -> Iterator[PlacedHeader]:
        """`OpenSegment.headers`, with the file open meanwhile."""
        with self.opened() as opened:
            yield from opened.headers(position, end)

    def header_at(self, position: int, *, up_to_offset: int) -> BatchHeader | None:
        """`OpenSegment.header_at`, alone."""
        with self.opened() as opened:
            return opened.header_at(position, up_to_offset=up_to_offset)

    def floor_position(self, offset: int) -> int:
        """`OpenSegment.floor_position`, alone."""
        with self.opened() as opened:
            return opened.floor_position(offset)

    def find(self, offset: int) -> PlacedHeader | None:
        """`OpenSegment.find`, alone."""
        with self.opened() as opened:
            return opened.find(offset)

    def largest_timestamp(self, *, skips: bool = False) -> int:
        """`OpenSegment.largest_timestamp`, alone; as a commit in a store has it, if one does."""
        noted = noted_timestamp(self.path, self.inode)
        if noted is not None:
            return noted
        with self.opened() as opened:
            return opened.largest_timestamp(skips=skips)

    def has_zeroed_times(self) -> bool:
        """Whether its index of times ends in zeros: brokers take 1970 for its newest time."""
        with TimeIndex(self.time_index_path, self.base_offset, mapped=False) as index:
            ends_in_zeros = self.size > 0 and index.ends_in_zeros
        # An entry of zeros is right if the first record is the newest, and of 1970.
        return ends_in_zeros and self.largest_timestamp(skips=True) > 0

    def newest_ms(self) -> int:
        """The largest timestamp, or the time at which the file was last written if it has none."""
        largest = self.largest_timestamp()
        return largest if largest >= 0 else status_of(self.path).modified_ns // 10**6


def file_of(segment: Segment) -> ReadableFile:
    """The ``.log`` file of a segment, opened.

    Raises `FileNotFoundError` if it is gone, or if a commit in an object store has given its name
    to another one, in which the positions of its indexes mean nothing.
    """
    file = open_file(segment.path)
    if is_bucket(segment.path) and segment.inode not in (0, file.status().inode):
        file.close()
        raise FileNotFoundError(errno.ENOENT, "another file has taken its place", segment.path)
    return file


def from_offset(segments: Sequence[Segment], offset: int) -> Sequence[Segment]:
    """The segments from the one that may hold `offset` on; all if none begins at or below it."""
    first = bisect_right(segments, offset, key=lambda each: each.base_offset) - 1
    return segments[max(first, 0) :]


class OpenSegment(Closing):
    """Look-ups in one segment; a context that closes what they have opened.

    A file is opened at its first use, and once: opening three files took a third of a look-up.

    `file`: its ``.log`` file, if it is open.
    """

    __slots__ = ("_file", "_index", "_times", "_window", "_window_at", "segment")

    def __init__(self, segment: Segment, file: ReadableFile | None = None) -> None:
        self.segment = segment
        self._file = file
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        # The bytes in which `headers` has found the last header: a small batch is whole in them.
        self._window, self._window_at = b"", 0

    @property
    def file(self) -> ReadableFile:
        """The ``.log`` file."""
        if self._file is None:
            self._file = file_of(self.segment)
        return self._file

    @property
    def offset_index(self) -> OffsetIndex:
        """The ``.index`` beside the file."""
        if self._index is None:
            self._index = self.segment.offset_index()
        return self._index

    @property
    def time_index(self) -> TimeIndex:
        """The ``.timeindex`` beside the file."""
        if self._times is None:
            self._times = self.segment.time_index()
        return self._times

    def close(self) -> None:
        """Close what is open; a later look-up opens it again."""
        for each in (self._file, self._index, self._times):
            if each is not None:
                each.close()
        self._file = self._index = self._times = None
        self._window = b""

    def checksum(self, placed: PlacedHeader) -> int:
        """Checksum of the bytes of a batch that `headers` has just found."""
        return placed.checksum(self.file, self._window, self._window_at)

    def headers(
        self, position: int, end: int | None = None, *, window_bytes: int = _FIRST_WINDOW_BYTES
    ) -> Iterator[PlacedHeader]:
        """Batch headers from byte `position` on; their checksums are not verified.

        If the end may be torn, the headers end before the first batch that is not whole.  They
        also end before zeros to the end of the file, if no offset is missing there: a broker
        preallocates the active segment, and a crash may undo the cut of a closed one.

        Only headers are read, in windows that small batches share.  The first window is about as
        large as the log between two index entries, which is all that a look-up needs, or has
        `window_bytes`; each later one is twice as large, up to 64 KiB.  A message of magic 0 or 1
        is a batch of its own.

        Raises `MalformedBatchError` if a length is less than a header's, or if a batch of a
        segment that never overlaps the next one begins in it; `TruncatedBatchError` if the last
        batch is not whole; `UnsupportedFormatError` if a batch has a magic above 2.
        """
        segment, file = self.segment, self.file
        limit = segment.size if end is None else min(end, segment.size)
        window, window_at = b"", 0
        least = -1 if segment.may_be_torn else segment.offset_limit
        next_offset = segment.base_offset
        while position + layout.SMALLEST_BATCH_BYTES <= limit:
            at = position - window_at
            if at < 0 or at + layout.HEADER_BYTES > len(window):
                n_bytes = min(window_bytes, limit - position)
                window, window_at, at = file.read(position, n_bytes), position, 0
                self._window, self._window_at = window, window_at
                window_bytes = min(2 * window_bytes, _HEADER_WINDOW_BYTES)
            try:
                placed = self._placed(window, at, position)
            except MalformedBatchError:
                is_whole = next_offset >= least
                if is_whole and after_zeros(file, position, segment.size) == segment.size:
                    return
                raise
            if placed is None or (batch_end := placed.end) > limit:
                break
            if placed.header.base_offset >= segment.offset_limit and file.never_overlaps:
                reason = (
                    f"it begins at or above {segment.offset_limit}, where the next segment begins"
                )
                base_offset = placed.header.base_offset
                raise MalformedBatchError(segment.path, position, base_offset, reason)
            yield placed
            position, next_offset = batch_end, placed.header.last_offset + 1
        if position < limit == segment.size and not segment.may_be_torn:
            prefix = window[position - window_at :][: layout.LOG_OVERHEAD]
            base_offset = int.from_bytes(prefix[:8], "big", signed=True)
            size = layout.LOG_OVERHEAD + int.from_bytes(prefix[8:], "big", signed=True)
            left = segment.size - position
            raise TruncatedBatchError(segment.path, position, base_offset, size, left)

    def _placed(self, window: bytes, at: int, position: int) -> PlacedHeader | None:
        """The header at byte `at` of `window`, or None when the window ends inside it."""
        if (
            len(window) - at >= layout.HEADER_BYTES
            and window[at + layout.MAGIC_AT] == layout.MAGIC
        ):
            header = parse_header(window, at)
            if header.batch_length >= _MIN_LENGTH:
                return PlacedHeader(position, header)
        prefix = window[at : at + layout.MAGIC_PREFIX_BYTES]
        if len(prefix) < layout.MAGIC_PREFIX_BYTES:
            return None
        length, magic = int.from_bytes(prefix[8:12], "big", signed=True), prefix[layout.MAGIC_AT]
        if length >= layout.MIN_LEGACY_LENGTH and magic > layout.NEWEST_MAGIC:
            raise UnsupportedFormatError(self.segment.path, position, "magic", magic)
        if length < layout.MIN_LENGTHS[min(magic, layout.NEWEST_MAGIC)]:
            base_offset = int.from_bytes(prefix[:8], "big", signed=True)
            reason = (
                f"its length field contains {length}, which is less than the length of a batch "
                "header"
            )
            raise MalformedBatchError(self.segment.path, position, base_offset, reason)
        if len(window) - at < layout.HEADER_SIZES[magic]:
            return None
        return PlacedHeader(position, parse_header(window, at))

    def header_at(self, position: int, *, up_to_offset: int) -> BatchHeader | None:
        """Header of the batch at an index's `position`, or None when no such batch is there."""
        # Everything that needs no further bytes is checked: the format, that the batch is whole,
        # and that its offsets lie between the segment's base and `up_to_offset`, the requested
        # offset.
        segment = self.segment
        if not 0 <= position < segment.size:
            return None
        head = self.file.read(position, layout.HEADER_BYTES)
        try:
            placed = self._placed(head, 0, position)
        except SegmentLogError:
            return None
        if placed is None or placed.end > segment.size:
            return None
        header = placed.header
        fits = segment.base_offset <= header.base_offset <= up_to_offset
        return header if fits and header.last_offset_delta >= 0 else None

    def floor_position(self, offset: int) -> int:
        """Byte of a batch at or before the one that holds `offset`, from the offset index."""
        # The start of the file if the index is missing or does not fit the log.
        return self.confirm(self.offset_index.lookup(offset), offset)[0]

    def confirm(self, entry: OffsetPosition, offset: int) -> tuple[int, BatchHeader | None]:
        """Position of an entry for a look-up of `offset`, and the header there, which has to fit.

        Byte 0 and None if the header does not fit, or if the entry is the start of the file.
        """
        index = self.offset_index
        if not entry.position:
            return 0, None
        # The entry's offset is the last offset of its append, and every batch of the append begins
        # at or below it.  So a batch at the position that begins above it belongs to another log.
        # In an index whose entries do not rise, a search may also end at an entry after `offset`.
        header = self.header_at(entry.position, up_to_offset=min(entry.offset, offset))
        if header is None:
            logger.warning(
                "%s does not fit its log at offset %d; the log is scanned instead",
                index.path,
                entry.offset,
            )
            return 0, None
        return entry.position, header

    def find(self, offset: int) -> PlacedHeader | None:
        """First batch whose last offset is at or above `offset`, or None past the end."""
        for placed in self.headers(self.floor_position(offset)):
            if placed.header.last_offset >= offset:
                return placed
        return None

    def indexed_time(self, *, but_one: bool = False) -> tuple[TimestampAndOffset, int]:
        """Last entry of the time index, if its batch confirms it, and the byte after the batch."""
        # The last entry `but_one` also has to fit the last one. Without a confirmed entry, it is
        # (-1, base offset) and the first byte. The batches from that byte on may have larger
        # timestamps: the segment may be active, and an index may have been cut short.
        index = self.time_index
        entry, placed = index.lookup_before(2**63) if but_one else index.last(), None
        if entry.timestamp_ms >= 0:
            with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
                placed = self.find(entry.offset)
        if placed is None or placed.header.max_timestamp != entry.timestamp_ms:
            return TimestampAndOffset(-1, self.segment.base_offset), 0
        return entry, placed.end

    def newest_batch(self) -> PlacedHeader | None:
        """The first batch with the largest timestamp; None in a segment without times."""
        largest = self.largest_timestamp()
        entry, position = self.indexed_time()
        if entry.timestamp_ms == largest >= 0:
            return self.find(entry.offset)
        found = (each for each in self.headers(position) if each.header.max_timestamp == largest)
        return next(found, None) if largest >= 0 else None

    def largest_timestamp(self, *, skips: bool = False) -> int:
        """Largest timestamp in epoch milliseconds, or -1 in a segment without records.

        The time index shows it up to its last entry.  The batches after that entry are read: none
        follow if timestamps rise.  Their checksums are verified where a damaged header would make
        the result too small; `skips` says whether that is an error, or is left out and logged.
        """
        tail = self.segment.tail
        if tail is not None and not tail.position:
            return tail.newest_ms
        # The last entry of a closed segment has the largest timestamp of all its batches.
        (largest, _), position = self.indexed_time(but_one=self.segment.is_active)
        if tail is not None and tail.position <= position:
            return max(largest, tail.newest_ms)
        is_indexed = position > 0 and not self.segment.is_active
        headers = (
            self.headers(position) if is_indexed else sound_headers(self, position, skips=skips)
        )
        with contextlib.suppress(*((CorruptLogError,) if is_indexed else ())):
            for placed in headers:
                largest = max(largest, placed.header.max_timestamp)
        return largest


class LogEnd(NamedTuple):
    """End of the last segment: the next offset, and the byte after the last good batch.

    `damaged_from` is the first offset that bad bytes before the end have hidden, or None: the log
    continues after the bad bytes, and a read reports them.
    """

    offset: int
    position: int
    damaged_from: int | None = None


class OffsetSpan:
    """The offsets that the indexes of one segment can hold, while its batches are walked.

    Compaction by old brokers has merged segments beyond this span (KAFKA-6264), and a broker that
    recovers such a segment splits it: each batch beyond the span begins another one.  A wrong base
    offset, which no checksum covers, may look the same.  So such a batch is in doubt until what
    follows it agrees: the next batch, the next segment, or the high watermark.  If nothing follows
    it, and no high watermark is known, it counts, as for a broker.

    `committed_to`: the high watermark, or -1 if it is unknown.
    """

    def __init__(self, base_offset: int, committed_to: int = -1) -> None:
        self.base = self._before = base_offset
        self.is_in_doubt = False
        self._committed_to = committed_to

    @property
    def is_refuted(self) -> bool:
        """Whether the last batch is in doubt although something says where the log ends."""
        return self.is_in_doubt and self._committed_to >= 0

    def take(self, base_offset: int, last_offset: int) -> bool:
        """Take the next batch, which is not below the last one; whether it begins a span."""
        begins = last_offset - self.base >= layout.SEGMENT_OFFSETS
        self.is_in_doubt = begins and last_offset >= self._committed_to
        if begins:
            self._before, self.base = self.base, base_offset
        return begins

    def leave_out(self) -> None:
        """Forget the batch in doubt, if there is one: a batch below it follows."""
        if self.is_in_doubt:
            self.base, self.is_in_doubt = self._before, False


def find_log_end(segment: Segment, committed_to: int = -1, *, warns: bool = True) -> LogEnd:
    """End of the active segment; a torn tail is left out, with a warning unless it is zeros."""
    # Reads the bytes after the last index entries, and verifies their checksums. No checksum
    # covers base offsets. Instead, they have to rise, leave the span of one segment only as
    # `OffsetSpan` allows, and leave no gap at the high watermark `committed_to` (-1 if unknown).
    if segment.size == 0:
        return LogEnd(segment.base_offset, 0)
    start = LogEnd(segment.base_offset, 0)
    with segment.opened() as opened:
        position = _indexed(opened)
        end = _last_good(opened, start._replace(position=position), committed_to)
        if end.position == position > 0:  # the batch that the index leads to is damaged
            end = _last_good(opened, start, committed_to)
        while end.position < segment.size:
            after = _end_after_damage(segment, opened.file, end, warns=warns)
            if after is None:
                break
            end = _last_good(opened, after, committed_to)
    return end


def _indexed(opened: OpenSegment) -> int:
    """Position of the last index entry but two whose batch is there; the newest may be torn."""
    # Of two batches with overlapping offsets, the batch before them shows which one is wrong.
    index = opened.offset_index
    # A writer may have appended after the listed size of the segment.
    last = index.slot_at_or_before_position(opened.segment.size - 1) - 2
    for entry in map(index.entry, range(last, max(last - _ENTRIES_TRIED, -1), -1)):
        if opened.header_at(entry.position, up_to_offset=entry.offset) is not None:
            return entry.position
    return 0


def _last_good(opened: OpenSegment, end: LogEnd, committed_to: int) -> LogEnd:
    """End of the good batches that follow `end`, or `end` itself when there is none."""
    segment = opened.segment
    segment.tail = None
    begin, newest_ms, is_legacy = end.position, -1, False
    span = OffsetSpan(segment.base_offset, committed_to)
    before = end  # of the last good batch
    last: PlacedHeader | None = None
    batches = array("q")
    with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
        for placed in opened.headers(begin, window_bytes=_TAIL_WINDOW_BYTES):
            header = placed.header
            if opened.checksum(placed) != header.crc:
                break
            if header.base_offset < end.offset:
                if last is None or header.base_offset < before.offset:
                    break
                # Either the batch before has a wrong base offset, or this one has.
                if not span.is_in_doubt and not is_too_high(
                    last.header, _first_offset(opened, last), before.offset, header.base_offset
                ):
                    break
                hidden = before.offset if before.damaged_from is None else before.damaged_from
                end = before._replace(damaged_from=hidden)
                span.leave_out()
            before, last = end, placed
            span.take(header.base_offset, header.last_offset)
            newest_ms = max(newest_ms, header.max_timestamp)
            if len(batches) <= _MOST_TAIL_BATCHES * TAIL_COLUMNS:
                batches.extend(
                    (
                        header.base_offset,
                        header.last_offset,
                        header.records_count,
                        header.attributes,
                        header.base_timestamp,
                        header.max_timestamp,
                    )
                )
            is_legacy |= header.magic < layout.MAGIC
            end = LogEnd(header.last_offset + 1, placed.end, end.damaged_from)
    if last is None:
        return end
    if span.is_refuted:
        return before
    crosses = before.offset < committed_to < end.offset
    if crosses and _first_offset(opened, last) > before.offset:
        return before
    is_whole = end.position == segment.size and end.damaged_from is None
    if is_whole and not span.is_in_doubt and end.offset <= segment.offset_limit:
        first = batches[0]  # of the first batch
        if is_legacy or len(batches) > _MOST_TAIL_BATCHES * TAIL_COLUMNS:
            batches = array("q")
        segment.tail = Tail(
            begin, newest_ms, last, batches, first if begin else segment.base_offset
        )
    return end


def _first_offset(opened: OpenSegment, placed: PlacedHeader) -> int:
    return first_offset(opened.file, placed.position, placed.header)


def _end_after_damage(
    segment: Segment, file: ReadableFile, end: LogEnd, *, warns: bool
) -> LogEnd | None:
    """End of the bad bytes at `end` if the log continues there; None if they are a torn tail."""
    damaged_from = end.offset if end.damaged_from is None else end.damaged_from
    n_bytes = segment.size - end.position
    data_at = after_zeros(file, end.position, segment.size)
    if data_at == segment.size:
        return None  # preallocated, or a page that was never written
    limit = min(data_at + _SEARCH_BYTES, segment.size)
    found = good_batch_after(file, end.position, limit, end.offset)
    if found is not None:
        return LogEnd(found.base_offset, found.position, damaged_from)
    head = file.read(end.position, layout.HEADER_BYTES)
    if is_newer_format(head, end.offset, limit - end.position):
        header = parse_header(head)
        position = end.position + header.size_in_bytes
        return LogEnd(header.base_offset + 1, position, damaged_from)
    if warns:
        _torn_tail_logger.warning(
            "%s ends in the middle of a batch: reading stops at byte %d (offset %d), and the %d "
            "bytes after that byte are left out",
            segment.path,
            end.position,
            end.offset,
            n_bytes,
        )
    return None
