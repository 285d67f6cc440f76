"""Damage in a segment: headers that are left out or refused, and the next good batch after it.

A look-up by time answers from headers alone.  A flipped bit in one of them would hide records: a
smaller timestamp, a length that jumps over batches, or a base offset, which no checksum covers.
"""

import contextlib
import logging
import os
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from segmentlog.errors import (
    ChecksumMismatchError,
    CorruptLogError,
    MalformedBatchError,
    TruncatedBatchError,
    UnsupportedFormatError,
)
from segmentlog.format.checksum import crc32c
from segmentlog.format.kernels import layout
from segmentlog.format.names import parse_segment_file
from segmentlog.format.records.header import BatchHeader, is_too_high, parse_header
from segmentlog.model import ALL_OFFSETS
from segmentlog.store.readable import ReadableFile, after_zeros

if TYPE_CHECKING:
    from segmentlog.format.kernels.memory import Bytes, Int64s
    from segmentlog.log.segment import OpenSegment, PlacedHeader

#: The most bytes that are read to judge one batch: a damaged length may be any number.
MOST_BATCH_BYTES = 256 << 20

_SEARCH_BYTES = 16 << 20
_OVERLAP_BYTES = 8 << 20  # batches up to this size are found wherever they stand

#: Candidates are looked for in so many bytes at a time: each may take fifty times as much memory.
_BLOCK_BYTES = 1 << 20

#: A batch may begin with so many zeros: a base offset of 0, and a length below 256.
_MOST_ZEROS = layout.LOG_OVERHEAD - 1

#: Crafted input can make every few bytes look like a batch of megabytes.  Computing all these
#: checksums would cost the square of the number of bytes, so a search gives up here.
_MOST_CHECKED_BYTES = 1 << 30


class GoodBatch(NamedTuple):
    """A good batch: the byte of the file that it begins at, and its first offset."""

    position: int
    base_offset: int


def good_batch_after(
    file: ReadableFile, position: int, end: int, next_offset: int
) -> GoodBatch | None:
    """First good batch after the bad one at byte `position` and before `end`, or None."""
    # The claimed end of the bad batch is tried first: a record of the bad batch may hold a copy of
    # a batch, which a search would take for a batch of the log. A batch that a search finds before
    # the claimed end counts only if its offset is below that of the batch at the claimed end: the
    # claimed length then jumps over batches.
    prefix = file.read(position, layout.LOG_OVERHEAD)
    length = int.from_bytes(prefix[layout.BATCH_LENGTH_AT :], "big", signed=True)
    at, claimed = position + layout.LOG_OVERHEAD + length, None
    if length >= layout.MIN_LEGACY_LENGTH and at < end:
        data = file.read(at, min(_SEARCH_BYTES, end - at))
        claimed = _found(file, at, next_offset) if is_good_batch(data, 0, next_offset) else None
    # A compressor may leave a whole message of magic 0 or 1 as it was.  With its right checksum it
    # looks like a batch of the log, but the bytes before it, where its offset would stand, are the
    # compressor's.  So its offset has to be one that a segment of this name can hold.
    name = parse_segment_file(os.path.basename(file.path))
    limit = ALL_OFFSETS.end_offset if name is None else name.offset + layout.SEGMENT_OFFSETS
    found = _first(file, position + 1, claimed.position if claimed else end, next_offset, limit)
    if claimed is None:
        return found
    return found if found and found.base_offset < claimed.base_offset else claimed


def _first(
    file: ReadableFile, at: int, end: int, next_offset: int, limit: int
) -> GoodBatch | None:
    """First good batch that begins at byte `at` or after it."""
    while (data_at := after_zeros(file, at, end)) < end:
        at = max(at, data_at - _MOST_ZEROS)
        data = file.read(at, min(_SEARCH_BYTES, end - at))
        found = find_good_batch(data, 0, next_offset, limit)
        if found is not None:
            return _found(file, at + found, next_offset)
        at += _SEARCH_BYTES - _OVERLAP_BYTES
    return None


def _found(file: ReadableFile, at: int, next_offset: int) -> GoodBatch:
    head = file.read(at, layout.HEADER_BYTES)
    first = first_offset(file, at, parse_header(head.ljust(layout.HEADER_BYTES, b"\0")))
    return GoodBatch(at, max(first, next_offset))


def first_offset(file: ReadableFile, position: int, header: BatchHeader) -> int:
    """First offset of the batch at byte `position`; of a wrapper, the one inside it."""
    # The header of a wrapper has only its last offset. That is returned, too, if its messages
    # cannot be read.
    if not header.is_wrapper:
        return header.base_offset
    # Compiled kernels load here, at damage in logs that hardly exist any more.
    from segmentlog.format.records.decoder import read_timestamps

    with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
        batch = file.read(position, header.size_in_bytes)
        offsets, _ = read_timestamps(batch, file.path, position)
        if len(offsets):
            return int(offsets[0])
    return header.last_offset


def find_good_batch(
    data: bytes, start: int, next_offset: int, limit: int = ALL_OFFSETS.end_offset
) -> int | None:
    """First byte from `start` on at which a whole batch with a correct checksum begins.

    `next_offset`: the least base offset that the batch may have.  `limit`: offset that the base
    offset of a message of magic 0 or 1 does not reach.
    """
    candidates = np.frombuffer(data, np.uint8)
    n_starts = len(data) - layout.SMALLEST_BATCH_BYTES + 1
    n_checked = 0
    for begin in range(start, n_starts, _BLOCK_BYTES):
        # A byte that can be a magic number is common; with a length that fits, it is rare.
        magics = candidates[layout.MAGIC_AT :][begin : min(begin + _BLOCK_BYTES, n_starts)]
        starts = np.flatnonzero(magics <= layout.NEWEST_MAGIC) + begin
        lengths = _big_endian(candidates, starts + layout.BATCH_LENGTH_AT, 4)
        fits = lengths >= np.array(layout.MIN_LENGTHS)[magics[starts - begin]]
        fits &= lengths <= len(data) - layout.LOG_OVERHEAD - starts
        starts, lengths = starts[fits], lengths[fits]
        offsets = _big_endian(candidates, starts + layout.BASE_OFFSET_AT, 8)
        is_batch = magics[starts - begin] >= layout.FIRST_BATCH_MAGIC
        fits = (offsets >= next_offset) & (is_batch | (offsets < limit))
        for at, length in zip(starts[fits].tolist(), lengths[fits].tolist(), strict=True):
            n_checked += length
            if n_checked > _MOST_CHECKED_BYTES:
                return None
            if is_good_batch(data, at, next_offset):
                return int(at)
    return None


def is_newer_format(rest: bytes, next_offset: int, n_bytes: int) -> bool:
    """Whether a whole batch of a magic above 2 comes next; no half-written one looks like it."""
    # `rest` begins where the batch would begin, and `n_bytes` are there in all. No checksum covers
    # the magic. It is of a newer format, or it is damage that hides acknowledged records, and the
    # read has to report either.
    if len(rest) < layout.HEADER_BYTES or rest[layout.MAGIC_AT] <= layout.NEWEST_MAGIC:
        return False
    header = parse_header(rest)
    is_whole = layout.HEADER_BYTES <= header.size_in_bytes <= n_bytes
    return is_whole and 0 <= header.base_offset - next_offset < layout.SEGMENT_OFFSETS


def _big_endian(data: "Bytes", starts: "Int64s", n_bytes: int) -> "Int64s":
    """The numbers that begin at `starts`; eight bytes wrap, as a signed number does."""
    numbers: Int64s = np.zeros(len(starts), np.int64)
    for i in range(n_bytes):
        numbers = numbers << 8 | data[starts + i]
    return numbers


def is_good_batch(data: bytes, at: int, next_offset: int) -> bool:
    """Whether a whole batch with a correct checksum, at or above `next_offset`, begins at `at`."""
    if (
        len(data) - at < layout.SMALLEST_BATCH_BYTES
        or data[at + layout.MAGIC_AT] > layout.NEWEST_MAGIC
    ):
        return False
    least = layout.LOG_OVERHEAD + layout.MIN_LENGTHS[data[at + layout.MAGIC_AT]]
    if len(data) - at < least:
        return False
    header = parse_header(data, at)
    end = at + header.size_in_bytes
    if end > len(data) or header.size_in_bytes < least:
        return False
    if header.base_offset < next_offset or header.last_offset_delta < 0:
        return False
    if header.magic < layout.FIRST_BATCH_MAGIC:
        return zlib.crc32(data[at + layout.MAGIC_AT : end]) == header.crc
    return crc32c(data[at + layout.ATTRIBUTES_AT : end]) == header.crc


logger = logging.getLogger(__name__)


def sound_headers(
    opened: "OpenSegment", position: int = 0, *, skips: bool = False, warns: bool = True
) -> "Iterator[PlacedHeader]":
    """Headers of batches with right checksums and rising offsets, from byte `position` on.

    Each batch is compared with the one that follows, so headers come one batch late.  A torn tail,
    if there may be one, ends the walk.  Raises `CorruptLogError` at damage, unless it `skips` it
    and perhaps `warns`; `UnsupportedFormatError` at a batch of a newer format.
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
    """Byte of a batch at or before the one that holds `offset`, or follows it."""
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
        found = self._opened.checksum(placed)
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
