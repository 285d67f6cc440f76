"""One segment: its ``.log`` file, and look-ups in it by way of its indexes.

An index is only a hint where to begin.  A look-up reads the batch header at the position that the
index gives.  If the header does not fit, the look-up begins at the start of the file instead.
"""

import contextlib
import logging
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import crc32c

from segmentlog.dialects import class_of_one_dialect
from segmentlog.errors import (
    CorruptLogError,
    MalformedBatchError,
    SegmentLogError,
    TruncatedBatchError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.names import FileKind
from segmentlog.format.records.header import BatchHeader, parse_header
from segmentlog.log.damage import sound_headers
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.sparse_indexes import OffsetIndex, OffsetPosition, TimeIndex
from segmentlog.model import TimestampAndOffset
from segmentlog.store.readable import Closing, ReadableFile, after_zeros, open_file, status_of

logger = logging.getLogger(__name__)

_FIRST_WINDOW_BYTES = 4 << 10  # Kafka's default of index.interval.bytes
_HEADER_WINDOW_BYTES = 64 << 10
_PIECE_BYTES = 1 << 20
_MIN_LENGTH = layout.MIN_LENGTHS[layout.MAGIC]


class PlacedHeader(NamedTuple):
    """A batch header and its byte in the file."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """Byte after the batch, by its own length."""
        return self.position + self.header.size_in_bytes

    def checksum(self, file: ReadableFile) -> int:
        """Checksum of the bytes that the batch's own checksum covers, read a piece at a time."""
        is_message = self.header.magic < layout.FIRST_BATCH_MAGIC
        at = self.position + (layout.MAGIC_AT if is_message else layout.ATTRIBUTES_AT)
        add = zlib.crc32 if is_message else crc32c.crc32c
        crc = 0
        while at < self.end:
            piece = file.read(at, min(_PIECE_BYTES, self.end - at))
            if not piece:
                break
            crc = add(piece, crc)
            at += len(piece)
        return crc


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
        "base_offset", "inode", "is_active", "is_sealed", "may_be_torn", "offset_limit", "path",
        "size",
    )  # fmt: skip

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
        """`OpenSegment.largest_timestamp`, alone."""
        with self.opened() as opened:
            return opened.largest_timestamp(skips=skips)

    def newest_ms(self) -> int:
        """The largest timestamp, or the time at which the file was last written if it has none."""
        largest = self.largest_timestamp()
        return largest if largest >= 0 else status_of(self.path).modified_ns // 10**6


class OpenSegment(Closing):
    """Look-ups in one segment; a context that closes what they have opened.

    A file is opened at its first use, and once: opening three files took a third of a look-up.

    `file`: its ``.log`` file, if it is open.
    """

    __slots__ = ("_file", "_index", "_times", "segment")

    def __init__(self, segment: Segment, file: ReadableFile | None = None) -> None:
        self.segment = segment
        self._file = file
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None

    @property
    def file(self) -> ReadableFile:
        """The ``.log`` file."""
        if self._file is None:
            self._file = open_file(self.segment.path)
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

    def headers(self, position: int, end: int | None = None) -> Iterator[PlacedHeader]:
        """Batch headers from byte `position` on; their checksums are not verified.

        If the end may be torn, the headers end before the first batch that is not whole.  They
        also end before zeros to the end of the file, if no offset is missing there: a broker
        preallocates the active segment, and a crash may undo the cut of a closed one.

        Only headers are read, in windows that small batches share.  The first window is about as
        large as the log between two index entries, which is all that a look-up needs; each later
        one is twice as large, up to 64 KiB.  A message of magic 0 or 1 is a batch of its own.

        Raises `MalformedBatchError` if a length is less than a header's, or if a batch of a
        segment that never overlaps the next one begins in it; `TruncatedBatchError` if the last
        batch is not whole; `UnsupportedFormatError` if a batch has a magic above 2.
        """
        segment, file = self.segment, self.file
        limit = segment.size if end is None else min(end, segment.size)
        window, window_at, window_bytes = b"", 0, _FIRST_WINDOW_BYTES
        least = -1 if segment.may_be_torn else segment.offset_limit
        next_offset = segment.base_offset
        while position + layout.SMALLEST_BATCH_BYTES <= limit:
            at = position - window_at
            if at < 0 or at + layout.HEADER_BYTES > len(window):
                n_bytes = min(window_bytes, limit - position)
                window, window_at, at = file.read(position, n_bytes), position, 0
                window_bytes = min(2 * window_bytes, _HEADER_WINDOW_BYTES)
            try:
                placed = self._placed(window, at, position)
            except MalformedBatchError:
                is_whole = next_offset >= least
                if is_whole and after_zeros(file, position, segment.size) == segment.size:
                    return
                raise
            if placed is None or placed.end > limit:
                break
            if placed.header.base_offset >= segment.offset_limit and file.never_overlaps:
                reason = (
                    f"it begins at or above {segment.offset_limit}, where the next segment begins"
                )
                base_offset = placed.header.base_offset
                raise MalformedBatchError(segment.path, position, base_offset, reason)
            yield placed
            position, next_offset = placed.end, placed.header.last_offset + 1
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
        # The last entry of a closed segment has the largest timestamp of all its batches.
        (largest, _), position = self.indexed_time(but_one=self.segment.is_active)
        is_indexed = position > 0 and not self.segment.is_active
        headers = (
            self.headers(position) if is_indexed else sound_headers(self, position, skips=skips)
        )
        with contextlib.suppress(*((CorruptLogError,) if is_indexed else ())):
            for placed in headers:
                largest = max(largest, placed.header.max_timestamp)
        return largest
