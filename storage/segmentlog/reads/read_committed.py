"""``read_committed``: leave the batches of aborted transactions out of a scan.

`segmentlog.log.end_markers` decides, by the log alone.  A missing end marker is always
noticed: the look-ahead refuses what may have hidden one.  It goes as far as the transactions that
a scan has met reach.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from segmentlog.arguments import LARGEST_LONG
from segmentlog.errors import (
    ChecksumMismatchError,
    CorruptLogError,
    TornTransactionError,
    TruncatedBatchError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Bytes
from segmentlog.format.kernels.transactions import ABORT
from segmentlog.format.records.header import parse_header
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.log.batches import WalkedBatches, walk_file
from segmentlog.log.end_markers import EndMarkers
from segmentlog.log.log_end import find_log_end
from segmentlog.log.segment import OpenSegment, PlacedHeader, Segment
from segmentlog.log.sound_headers import position_of, sound_headers
from segmentlog.reads.partition import FileChangedError, Partition

logger = logging.getLogger(__name__)

_MOST_MARKER_BYTES = 128  # an end marker has 78


class CommittedBatches:
    """Leaves aborted batches out of the batches of a scan, in the order of the log.

    `skips`: whether batches of transactions that were never ended are left out, with a warning.
    `ended`: open transactions that count as aborted: producer ids, and the first offset of each.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        skips: bool = False,
        ended: Iterable[tuple[int, int]] = (),
    ) -> None:
        self._partition = partition
        self._ended = dict(ended)
        self._skips = skips
        self._markers = EndMarkers(self._ahead, self._torn, least_records=1)

    def select(self, batches: ScannedBatches, next_offset: int) -> ScannedBatches:
        """The batches that were committed, or written outside of transactions.

        `next_offset`: offset after the last batch that was scanned.  Raises `TornTransactionError`
        if the log ends before the end marker of a transaction.
        """
        is_aborted = self.aborted(batches, next_offset)
        return batches.only(is_aborted == 0) if is_aborted.any() else batches

    def aborted(self, batches: ScannedBatches, next_offset: int) -> Bytes:
        """Flag the batches that `select` leaves out, with its arguments and errors."""
        return self._markers.find_aborted(batches, next_offset)

    def _ahead(self, seen_to: int) -> Iterator[WalkedBatches]:
        """The batches of the log from an offset on, whose offsets have to rise in each file."""
        segments = self._partition.segments()
        if segments and segments[0].base_offset > seen_to:
            # The file of the scan was put aside.  Markers of the transactions in it are gone, and
            # the next marker of the producer belongs to a later transaction.
            raise FileChangedError(f"the log now begins at offset {segments[0].base_offset}")
        if segments:
            segments[-1].size = find_log_end(segments[-1]).position  # a torn tail decides nothing
        path = ""
        next_offset = seen_to
        for walked in self._walk(segments, seen_to):
            found = walked.scanned
            _check_offsets(found, next_offset if found.path == path else -1)
            path, next_offset = found.path, walked.next_offset
            yield walked

    def _walk(self, segments: Sequence[Segment], seen_to: int) -> Iterator[WalkedBatches]:
        """The batches that have not been seen; only sound ones if damage is left out."""
        for i, segment in enumerate(segments):
            if i + 1 < len(segments) and segments[i + 1].base_offset <= seen_to:
                continue
            with segment.opened() as opened:
                if segment.inode not in (0, opened.file.status().inode):
                    raise FileChangedError(f"{segment.path} was replaced since it was listed")
                for walked in self._walk_from(opened, seen_to):
                    seen_to = max(seen_to, walked.next_offset)
                    yield walked

    def _walk_from(self, opened: OpenSegment, seen_to: int) -> Iterator[WalkedBatches]:
        try:
            yield from self._walk_segment(opened, opened.floor_position(seen_to))
        except CorruptLogError as error:
            begin = position_of(opened, seen_to)
            if error.position >= begin:
                raise
            yield from self._walk_segment(opened, begin)  # the damage has nothing to be read

    def _walk_segment(self, opened: OpenSegment, begin: int) -> Iterator[WalkedBatches]:
        if not self._skips:
            yield from _whole_batches(opened, begin)
            return
        for placed in sound_headers(opened, begin, skips=True):
            if placed.header.is_control:
                path = opened.segment.path
                yield from walk_file(path, opened.file, placed.position, placed.end)

    def _torn(self, batches: ScannedBatches, row: int) -> int:
        """Raise for a transaction without a marker, or treat it as aborted."""
        producer_id = int(batches.headers[row, layout.PRODUCER_ID])
        base_offset = int(batches.headers[row, layout.BASE_OFFSET])
        if base_offset >= self._ended.get(producer_id, LARGEST_LONG):
            return ABORT
        error = TornTransactionError(
            batches.path, batches.position_of(row), base_offset, producer_id
        )
        if not self._skips:
            raise error
        logger.warning("%s; records of that producer after this offset are left out", error)
        return ABORT


def _whole_batches(opened: OpenSegment, position: int) -> Iterator[WalkedBatches]:
    """Batches from byte `position` to the end of a segment.

    Raises `TruncatedBatchError` if a length reaches beyond that end: it may have hidden batches;
    `MalformedBatchError` if the last batch alone reaches into the next segment.
    """
    segment, last, least = opened.segment, position, opened.segment.base_offset
    for walked in walk_file(segment.path, opened.file, position, segment.size):
        ends = walked.scanned.headers[-2:, layout.LAST_OFFSET].tolist()
        least = ends[0] + 1 if len(ends) > 1 else least
        is_end = walked.scanned.file_position + walked.scanned.end == segment.size
        if is_end and ends[-1] >= segment.offset_limit >= least:
            reason = f"its offsets reach {segment.offset_limit}, where the next segment begins"
            raise walked.scanned.malformed(-1, reason)
        _check_small(walked.scanned, opened)
        yield walked
        least = ends[-1] + 1
        last = walked.scanned.position_of(-1)
        position = walked.scanned.file_position + walked.scanned.end
    if position != segment.size:
        begin = last if position > segment.size else position
        left = segment.size - begin
        raise TruncatedBatchError(segment.path, begin, -1, left + 1, left)


def _check_small(batches: ScannedBatches, opened: OpenSegment) -> None:
    """Refuse a damaged batch that may have been an end marker before it was damaged.

    Raises `ChecksumMismatchError` for the first such batch.
    """
    headers = batches.headers
    flags = headers[:, layout.ATTRIBUTES] & (layout.CONTROL_MASK | layout.TRANSACTIONAL_MASK)
    is_small = headers[:, layout.SIZE] <= _MOST_MARKER_BYTES
    for row in np.flatnonzero(is_small & (flags == layout.TRANSACTIONAL_MASK)).tolist():
        at = batches.position_of(row)
        header = parse_header(opened.file.read(at, layout.HEADER_BYTES))
        found = PlacedHeader(at, header).checksum(opened.file)
        if found != header.crc:
            raise ChecksumMismatchError(batches.path, at, header.base_offset, header.crc, found)


def _check_offsets(batches: ScannedBatches, next_offset: int) -> None:
    """Refuse batches of one file whose offsets do not rise.

    No checksum covers a base offset, and a marker with a wrong one decides about other batches.

    Raises `MalformedBatchError` for the first batch that does not follow the batch before it.
    """
    headers = batches.headers
    last = headers[:, layout.LAST_OFFSET]
    begins = np.concatenate(([next_offset], last[:-1] + 1))
    is_bad = headers[:, layout.BASE_OFFSET] < begins
    if is_bad.any():
        reason = "its base offset is not above the last offset of the batch before it"
        raise batches.malformed(int(is_bad.argmax()), reason)
