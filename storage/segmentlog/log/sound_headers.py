"""Walk the batch headers of a segment, and leave out or refuse what damage has made of them.

A look-up by time answers from headers alone.  A flipped bit in one of them would hide records: a
smaller timestamp, a length that jumps over batches, or a base offset, which no checksum covers.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from segmentlog.errors import (
    ChecksumMismatchError,
    CorruptLogError,
    MalformedBatchError,
    TruncatedBatchError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.records.header import is_too_high
from segmentlog.log.resync import first_offset, good_batch_after, is_newer_format

if TYPE_CHECKING:
    from segmentlog.log.segment import OpenSegment, PlacedHeader

logger = logging.getLogger(__name__)


def sound_headers(
    opened: "OpenSegment", position: int = 0, *, skips: bool = False, warns: bool = True
) -> "Iterator[PlacedHeader]":
    """Headers of batches with right checksums and rising offsets, from byte `position` on.

    Each batch is compared with the one that follows, so headers come one batch late.

    `opened`: the segment; a torn tail, if it may have one, ends the walk.  `position`: byte at
    which a batch begins.  `skips`: whether damage is left out.  `warns`: whether damage that is
    left out is logged.  Raises `CorruptLogError` at damage, unless it is left out;
    `UnsupportedFormatError` if a batch has a magic above 2; `FileNotFoundError` if the file is
    gone.
    """
    walk = _Walk(opened, position)
    while True:
        try:
            yield from walk.headers()
            return
        except (CorruptLogError, UnsupportedFormatError) as error:
            if isinstance(error, UnsupportedFormatError) and walk.is_newer(error):
                raise
            if walk.is_torn(error):
                yield from walk.rest()
                return
            if not skips:
                raise
            if warns:
                logger.warning("%s; that batch is left out", error)
            walk.pass_over(error)


def position_of(opened: "OpenSegment", offset: int, *, passes_damage: bool = True) -> int:
    """Byte of a batch at or before the one that holds `offset`, or follows it.

    With `passes_damage`, damage that lies wholly below the offset is before that byte.
    """
    end = opened.floor_position(offset)
    if not passes_damage:
        return end
    for placed in sound_headers(opened, end, skips=True, warns=False):
        if placed.header.last_offset >= offset:
            # Damage before a batch that begins after the offset may have held the offset.
            return placed.position if placed.header.base_offset <= offset else end
        end = placed.end
    return end


class _Walk:
    """A walk that can go on after damage.

    `last` is the last sound batch, which is not yet yielded, and `least_offset` the offset after
    the batch before it.
    """

    def __init__(self, opened: "OpenSegment", position: int) -> None:
        self._opened = opened
        self._position = position
        self._last: PlacedHeader | None = None
        self._least_offset = opened.segment.base_offset

    @property
    def _next_offset(self) -> int:
        return self._least_offset if self._last is None else self._last.header.last_offset + 1

    def headers(self) -> "Iterator[PlacedHeader]":
        segment = self._opened.segment
        for placed in self._opened.headers(self._position):
            self._check(placed)
            before, next_offset = self._last, self._next_offset
            self._last, self._least_offset, self._position = placed, next_offset, placed.end
            if before is not None:
                yield before
        if self._position < segment.size and self._after(self._position) is not None:
            left = segment.size - self._position
            raise TruncatedBatchError(segment.path, self._position, -1, left + 1, left)
        yield from self.rest()

    def rest(self) -> "Iterator[PlacedHeader]":
        """The last batch, when no other one follows."""
        segment = self._opened.segment
        last, self._last = self._last, None
        if last is not None:
            # A merged segment reaches beyond the next one's first offset with several batches.
            if last.header.last_offset >= segment.offset_limit >= self._least_offset:
                reason = f"its offsets reach {segment.offset_limit}, where the next segment begins"
                raise self._malformed(last, reason)
            yield last

    def _check(self, placed: "PlacedHeader") -> None:
        """Refuse a batch with a wrong checksum, or the one of two batches with a wrong offset."""
        header, path = placed.header, self._opened.segment.path
        found = placed.checksum(self._opened.file)
        if found != header.crc:
            raise ChecksumMismatchError(
                path, placed.position, header.base_offset, header.crc, found
            )
        if header.base_offset >= self._next_offset:
            return
        last, reason = self._last, "its offsets overlap those of the batch after it"
        if last is not None:
            first = first_offset(self._opened.file, last.position, last.header)
            least, limit = self._least_offset, self._opened.segment.offset_limit
            # One flipped bit has moved the last batch, or it alone is beyond the segment.
            is_beyond = last.header.last_offset >= limit > header.base_offset >= least
            if is_beyond or is_too_high(last.header, first, least, header.base_offset):
                raise self._malformed(last, reason)
        raise self._malformed(
            placed, "its base offset is not above the last offset of the batch before it"
        )

    def is_newer(self, error: UnsupportedFormatError) -> bool:
        """Whether a whole batch of a newer format is there, and no damage that looks like one."""
        opened, position = self._opened, error.position
        head = opened.file.read(position, layout.HEADER_BYTES)
        return is_newer_format(head, self._next_offset, opened.segment.size - position)

    def is_torn(self, error: CorruptLogError | UnsupportedFormatError) -> bool:
        """Whether an error is about the torn tail of the segment, or zeros at its end."""
        is_at_the_end = self._last is None or error.position >= self._last.end
        return (
            self._opened.segment.may_be_torn
            and is_at_the_end
            and self._after(error.position) is None
        )

    def pass_over(self, error: CorruptLogError | UnsupportedFormatError) -> None:
        """Leave out the batch of an error."""
        if self._last is not None and error.position == self._last.position:
            self._position, self._last = self._last.end, None
            return
        found = self._after(error.position)
        self._position = self._opened.segment.size if found is None else found

    def _after(self, position: int) -> int | None:
        """Byte of the next sound batch after the one at byte `position`."""
        opened = self._opened
        found = good_batch_after(opened.file, position, opened.segment.size, self._next_offset)
        return None if found is None else found.position

    def _malformed(self, placed: "PlacedHeader", reason: str) -> MalformedBatchError:
        path = self._opened.segment.path
        return MalformedBatchError(path, placed.position, placed.header.base_offset, reason)
