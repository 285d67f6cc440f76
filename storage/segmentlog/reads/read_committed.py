"""``read_committed``: find the aborted batches.

The answer comes from the log itself.  A broker keeps aborted transactions in ``.txnindex``
files.  A missing file looks like a file without aborts, and a broker that starts cleanly does not
rebuild it and serves aborted records.  A missing end marker is always noticed.  A reader looks
ahead for end markers as far as the transactions that it has met reach.  In a log without
transactions it looks at nothing.
"""

import logging
from collections.abc import Iterator, Sequence

import numpy as np

from segmentlog.errors import ChecksumMismatchError, TornTransactionError, TruncatedBatchError
from segmentlog.kernels import layout
from segmentlog.kernels.memory import Int64s
from segmentlog.kernels.transactions import (
    ABORT,
    MARKER_OFFSET,
    MARKER_PRODUCER_ID,
    N_MARKER_COLUMNS,
    drop_aborted,
    find_undecided,
)
from segmentlog.reads.planned_file import FileChangedError
from segmentlog.records.header import parse_header
from segmentlog.records.scanned_batches import ScannedBatches
from segmentlog.segments.batches import WalkedBatches, markers_among, walk_file
from segmentlog.segments.listing import list_segments
from segmentlog.segments.log_end import find_log_end
from segmentlog.segments.segment import OpenSegment, PlacedHeader, Segment
from segmentlog.segments.sound_headers import sound_headers

__all__ = ["CommittedBatches"]

logger = logging.getLogger(__name__)

_MOST_MARKER_BYTES = 128  # an end marker has 78
_LARGEST_OFFSET = 2**63 - 1
_NO_MARKERS: Int64s = np.empty((0, N_MARKER_COLUMNS), np.int64)


class CommittedBatches:
    """Leaves aborted batches out of the batches of a scan, in the order of the log.

    Parameters
    ----------
    partition_path : directory to look ahead in.
    skips : whether batches of transactions that were never ended are left out, with a warning.
    """

    def __init__(self, partition_path: str, *, skips: bool = False) -> None:
        self._partition_path = partition_path
        self._skips = skips
        self._markers = _NO_MARKERS  # sorted by producer and offset
        self._seen_to = -1  # offset up to which markers are known

    def select(self, batches: ScannedBatches, next_offset: int) -> ScannedBatches:
        """The batches that were committed, or written outside of transactions.

        Parameters
        ----------
        batches : to select from; their headers are written to.
        next_offset : offset after the last batch that was scanned.

        Raises
        ------
        TornTransactionError
            If the log ends before the end marker of a transaction.
        """
        headers = batches.headers
        if not np.bitwise_or.reduce(headers[:, layout.ATTRIBUTES]) & layout.TRANSACTIONAL_MASK:
            self._seen_to = max(self._seen_to, next_offset)
            return batches
        if next_offset > self._seen_to:
            unseen = batches.only(headers[:, layout.BASE_OFFSET] >= self._seen_to)
            self._add(markers_among(unseen))
            self._seen_to = next_offset
        undecided = find_undecided(headers, 0, self._markers)
        if undecided < len(headers):
            self._look_ahead(batches, undecided)
        self._forget_below(int(headers[0, layout.BASE_OFFSET]))
        return batches.only(slice(drop_aborted(headers, self._markers)))

    def _add(self, markers: Int64s) -> None:
        if len(markers):
            joined = np.concatenate([self._markers, markers])
            order = np.lexsort((joined[:, MARKER_OFFSET], joined[:, MARKER_PRODUCER_ID]))
            self._markers = joined[order]

    def _forget_below(self, offset: int) -> None:
        """Drop markers that no later batch needs."""
        self._markers = self._markers[self._markers[:, MARKER_OFFSET] >= offset]

    def _look_ahead(self, batches: ScannedBatches, undecided: int) -> None:
        """Walk on until each of `batches` is decided."""
        files = list_segments(self._partition_path)
        limits: list[int | None] = [*(each.base_offset for each in files[1:]), None]
        segments = [
            Segment(each, is_sealed=False, is_active=limit is None, offset_limit=limit)
            for each, limit in zip(files, limits, strict=False)
        ]
        if segments:
            segments[-1].size = find_log_end(segments[-1]).position  # a torn tail decides nothing
        path, next_offset = "", self._seen_to
        for walked in self._walk(segments):
            found = walked.scanned
            _check_offsets(found, next_offset if found.path == path else -1)
            path, next_offset = found.path, walked.next_offset
            self._add(walked.markers)
            self._seen_to = max(self._seen_to, next_offset)
            undecided = find_undecided(batches.headers, undecided, self._markers)
            if undecided == len(batches.headers):
                return
        self._report_torn(batches, undecided)

    def _walk(self, segments: Sequence[Segment]) -> Iterator[WalkedBatches]:
        """The batches that have not been seen; only sound ones if damage is left out."""
        for i, segment in enumerate(segments):
            if i + 1 < len(segments) and segments[i + 1].base_offset <= self._seen_to:
                continue
            with segment.opened() as opened:
                begin = opened.floor_position(self._seen_to)
                if segment.inode not in (0, opened.file.status().inode):
                    raise FileChangedError(f"{segment.path} was replaced since it was listed")
                if not self._skips:
                    yield from _whole_batches(opened, begin)
                    continue
                for placed in sound_headers(opened, begin, skips=True):
                    if placed.header.is_control:
                        yield from walk_file(
                            segment.path, opened.file, placed.position, placed.end
                        )

    def _report_torn(self, batches: ScannedBatches, undecided: int) -> None:
        """Raise for the first batch without a marker, or treat all such batches as aborted."""
        headers = batches.headers
        while undecided < len(headers):
            producer_id = int(headers[undecided, layout.PRODUCER_ID])
            base_offset = int(headers[undecided, layout.BASE_OFFSET])
            error = TornTransactionError(
                batches.path, batches.position_of(undecided), base_offset, producer_id
            )
            if not self._skips:
                raise error
            logger.warning("%s; what that producer wrote from there on is left out", error)
            self._add(np.array([[producer_id, _LARGEST_OFFSET, ABORT]], np.int64))
            undecided = find_undecided(headers, undecided, self._markers)


def _whole_batches(opened: OpenSegment, position: int) -> Iterator[WalkedBatches]:
    """Batches from byte `position` to the end of a segment.

    Raises
    ------
    TruncatedBatchError
        If a length reaches beyond that end: it may have hidden batches.
    MalformedBatchError
        If the last batch alone reaches into the next segment.
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
    """Refuse a damaged batch that may have been an end marker before a bit of it turned.

    Raises
    ------
    ChecksumMismatchError
        For the first such batch.
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

    Raises
    ------
    MalformedBatchError
        For the first batch that does not follow the batch before it.
    """
    headers = batches.headers
    last = headers[:, layout.LAST_OFFSET]
    begins = np.concatenate(([next_offset], last[:-1] + 1))
    is_bad = headers[:, layout.BASE_OFFSET] < begins
    if is_bad.any():
        reason = "its base offset is not above the batch before it"
        raise batches.malformed(int(is_bad.argmax()), reason)
