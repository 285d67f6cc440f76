"""The end of a log: how far the last segment holds whole batches with right checksums.

The last write of a crashed broker may be cut short, or its pages lost.  Such a torn tail is not
data and was never acknowledged on this disk, so a read ends before it.  Damage with good batches
after it is not a torn tail.  It stays in the range to read, and the read fails there.
"""

import contextlib
import logging
from typing import NamedTuple

from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.format.kernels import layout
from segmentlog.format.records.header import is_too_high, parse_header
from segmentlog.log.damage import first_offset, good_batch_after, is_newer_format
from segmentlog.log.segment import OpenSegment, PlacedHeader, Segment
from segmentlog.store.readable import ReadableFile, after_zeros

logger = logging.getLogger(__name__)

_ENTRIES_TRIED = 4

#: Bytes after a bad batch, and after the zeros in its place, that are searched for a good one.
_SEARCH_BYTES = 16 << 20


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
    span = OffsetSpan(opened.segment.base_offset, committed_to)
    before = end  # of the last good batch
    last: PlacedHeader | None = None
    with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
        for placed in opened.headers(end.position):
            header = placed.header
            if placed.checksum(opened.file) != header.crc:
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
            end = LogEnd(header.last_offset + 1, placed.end, end.damaged_from)
    if last is None:
        return end
    if span.is_refuted:
        return before
    if not before.offset < committed_to < end.offset:
        return end
    return before if _first_offset(opened, last) > before.offset else end


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
        logger.warning(
            "%s ends in the middle of a batch: reading stops at byte %d (offset %d), and the %d "
            "bytes after that byte are left out",
            segment.path, end.position, end.offset, n_bytes,
        )  # fmt: skip
    return None
