"""The walk over the batches of a file: what each stretch of its bytes is.

Everyone who asks where the good batches of a segment end, and what follows them, walks here: the
recovery of a log, its salvage, the check of its bytes, the indexes that are built again, and the
start of a broker.  So all of them agree on what is torn, what is damaged, and what lies in a wrong
place.

A stretch of good batches has right lengths and checksums, and offsets that rise.  A bad stretch
reaches to the next good batch, or to the end of the file:

::

    | good | good | damaged      | good | misplaced | good | torn or zeros |
    ^ begin       ^ error.position      ^ a whole batch whose offset is not above those before it

Two other walks have reasons of their own.  `segmentlog.log.damage.sound_headers` and
`segmentlog.log.segment.find_log_end` serve every listing and every look-up: they read the ends of
files alone, and load no compiled kernel.  `segmentlog.log.batches.walk_batches` reads headers, and
no bodies, of bytes that were checked before.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Bytes
from segmentlog.format.records.decoder import TABLE_ROWS, BatchScanner
from segmentlog.format.records.header import ScannedBatches, parse_header
from segmentlog.log.damage import (
    MOST_BATCH_BYTES,
    GoodBatch,
    first_offset,
    good_batch_after,
    is_good_batch,
    is_newer_format,
)
from segmentlog.log.segment import OffsetSpan, Segment
from segmentlog.log.windows import BatchWindows
from segmentlog.model import LEAST_LONG
from segmentlog.store.readable import ReadableFile, after_zeros, open_file

_WINDOW_BYTES = 4 << 20


class Verdict(StrEnum):
    """What some bytes of a segment are."""

    GOOD = "good"  #: whole batches in their order
    TORN = "torn"  #: the end of the file, without a good batch: a write may have been cut short
    ZEROS = "zeros"  #: zeros up to the end of the file: preallocated, or never written
    NEWER = "newer"  #: a whole batch of a format that is newer than this version
    DAMAGED = "damaged"  #: a good batch follows
    MISPLACED = "misplaced"  #: a whole batch whose offset is not above those before it


class Stretch(NamedTuple):
    """Some bytes of a file, in their order.

    `offset`: the offset that is expected at their begin.  `next_offset`: that after them; where no
    good batch follows bad bytes, it is the same.
    """

    verdict: Verdict
    begin: int
    end: int
    offset: int
    next_offset: int
    batches: ScannedBatches | None = None  # of a good stretch, valid until the next step
    error: CorruptLogError | UnsupportedFormatError | None = None  # of a bad one
    good: GoodBatch | None = None  # that follows a bad one


def walk(
    path: str,
    file: ReadableFile,
    begin: int,
    end: int,
    next_offset: int,
    *,
    windows: BatchWindows | None = None,
    goes_on: bool = True,
    is_ordered: bool = True,
) -> Iterator[Stretch]:
    """The stretches of the bytes ``[begin, end)`` of a file, which begin at a batch.

    `next_offset`: the least offset that the first batch may have.  `goes_on`: whether good batches
    are looked for after bad bytes, or the first bad stretch is the last.  `is_ordered`: whether
    offsets have to rise; otherwise a misplaced batch is a good stretch.  `windows`: to use for
    several files.
    """
    windows = windows or BatchWindows(_WINDOW_BYTES)
    scanner = (BatchScanner if is_ordered else _AnyOrder)(path, next_offset)
    least, at = next_offset, begin
    while at < end:
        try:
            for batches in windows.batches(file.read_into, scanner, at, end):
                last = batches.position_of(-1) + int(batches.headers[-1, layout.SIZE])
                yield Stretch(
                    Verdict.GOOD,
                    batches.position_of(0),
                    last,
                    next_offset,
                    batches.next_offset,
                    batches,
                )
                next_offset = batches.next_offset
            return
        except (CorruptLogError, UnsupportedFormatError) as error:
            bad = error
        at = bad.position
        is_misplaced = scanner.offsets_went_back and is_whole_batch(file, at, end)
        found = _bad(
            file,
            at,
            end,
            next_offset,
            bad,
            is_misplaced=is_misplaced,
            goes_on=goes_on,
            least=next_offset if is_ordered else least,
        )
        yield found
        at, next_offset = found.end, found.next_offset
        scanner.next_offset = next_offset


class _AnyOrder(BatchScanner):
    """Finds batches that begin below those before them, too."""

    def scan(
        self, buf: Bytes, start: int, end: int, file_position: int, most: int = TABLE_ROWS
    ) -> ScannedBatches:
        self.next_offset = LEAST_LONG
        return super().scan(buf, start, end, file_position, most)


def is_whole_batch(file: ReadableFile, position: int, end: int) -> bool:
    """Whether a whole batch with a right checksum begins there, whatever its offset is."""
    head = file.read(position, min(layout.HEADER_BYTES, max(end - position, 0)))
    header = parse_header(head.ljust(layout.HEADER_BYTES, b"\0"))
    size = min(max(header.size_in_bytes, 0), end - position, MOST_BATCH_BYTES)
    return is_good_batch(file.read(position, size), 0, LEAST_LONG)


def _bad(
    file: ReadableFile,
    at: int,
    end: int,
    offset: int,
    error: CorruptLogError | UnsupportedFormatError,
    *,
    is_misplaced: bool,
    goes_on: bool,
    least: int,
) -> Stretch:
    """The bad stretch at byte `at`; a good batch after it has at least the offset `least`."""
    verdict = Verdict.MISPLACED if is_misplaced else Verdict.DAMAGED
    if isinstance(error, UnsupportedFormatError) and is_newer_format(
        file.read(at, layout.HEADER_BYTES), offset, end - at
    ):
        verdict = Verdict.NEWER
    good = good_batch_after(file, at, end, least) if goes_on else None
    if good is not None:
        return Stretch(verdict, at, good.position, offset, good.base_offset, None, error, good)
    if verdict is Verdict.DAMAGED and goes_on:
        is_zeros = after_zeros(file, at, end) == end
        verdict = Verdict.ZEROS if is_zeros else Verdict.TORN
    return Stretch(verdict, at, end, offset, offset, error=error)


class GoodEnd(NamedTuple):
    """Byte and offset after the last good batch, and the damage there, if any.

    `splits` are the bytes and base offsets of the segments that have to take the place of this
    one, because its indexes cannot hold its offsets; empty if they can.
    """

    position: int
    offset: int
    error: CorruptLogError | UnsupportedFormatError | None = None
    splits: tuple[tuple[int, int], ...] = ()
    verdict: Verdict = Verdict.GOOD  # of the bytes at `position`


_TOO_FAR = (
    "its offset is too far from the segment's base offset, and nothing that follows confirms it"
)


def find_good_end(segment: Segment, committed_to: int = -1) -> GoodEnd:
    """Read a segment up to its first bad batch: lengths, checksums, the order of offsets.

    `committed_to`: where the next segment begins, or else the high watermark; -1 if unknown.
    Raises `UnsupportedFormatError` at a whole batch of a newer format: it may be good.
    """
    span = OffsetSpan(segment.base_offset, committed_to)
    end = before_doubt = GoodEnd(segment.size, segment.base_offset)
    far: list[int] = []  # bytes of the batches that begin a span
    with open_file(segment.path, follow=False) as file:
        for stretch in walk(
            segment.path, file, 0, segment.size, segment.base_offset, goes_on=False
        ):
            batches = stretch.batches
            if batches is None:
                if stretch.verdict is Verdict.NEWER and stretch.error is not None:
                    raise stretch.error
                end = end._replace(
                    position=stretch.begin, error=stretch.error, verdict=stretch.verdict
                )
                break
            bounds = batches.headers[:, [layout.BASE_OFFSET, layout.LAST_OFFSET]]
            is_near = bounds[-1, 1] - span.base < layout.SEGMENT_OFFSETS
            if not is_near or span.is_in_doubt:
                for row, (base_offset, last_offset) in enumerate(bounds.tolist()):
                    if span.take(base_offset, last_offset):
                        reached = int(bounds[row - 1, 1]) + 1 if row else end.offset
                        error = batches.malformed(row, _TOO_FAR)
                        position = batches.position_of(row)
                        before_doubt = GoodEnd(position, reached, error, (), Verdict.MISPLACED)
                        far.append(position)
            end = end._replace(offset=stretch.next_offset)
        # A good batch with a lower offset ends the walk, too, and refutes the far one before it.
        if span.is_refuted or (span.is_in_doubt and end.verdict is Verdict.MISPLACED):
            end = before_doubt
            far.pop()
        parts = [0, *(at for at in far if at)] if far else []
        return end._replace(splits=tuple((at, first_offset_at(file, at)) for at in parts))


def first_offset_at(file: ReadableFile, position: int) -> int:
    """First offset of the batch at a byte."""
    head = file.read(position, layout.HEADER_BYTES)
    return first_offset(file, position, parse_header(head.ljust(layout.HEADER_BYTES, b"\0")))
