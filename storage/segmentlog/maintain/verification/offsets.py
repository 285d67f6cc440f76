"""Check the offsets of a log: gaps, and segments that overlap."""

from collections.abc import Iterator, Sequence

import numpy as np

from segmentlog.format.kernels import layout
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.log.segment import Segment
from segmentlog.maintain.verification.findings import Finding, FindingKind, MakeFinding, Severity
from segmentlog.reads.listed import LostSegments


class OffsetCheck:
    """Follows the offsets of one log from its first segment to its last.

    `lost`: the gaps in which an index shows that segments are gone.
    """

    def __init__(self, finding: MakeFinding, lost: Sequence[LostSegments] = ()) -> None:
        self._finding = finding
        self._lost = {each.end_offset: each for each in lost}
        self._reached = -1  # offset after the segments that are done, if it is known
        self._expected = -1
        self._n_gaps = self._n_missing = 0
        self._first_gap = (0, 0, 0)  # byte, and the offsets before and after the gap

    def begin(self, segment: Segment) -> Iterator[Finding]:
        """Take the step from one segment to the next."""
        reached, base = self._reached, segment.base_offset
        self._expected = base
        self._n_gaps = self._n_missing = 0
        if reached > base:
            yield self._finding(
                Severity.ERROR, FindingKind.OVERLAPPING_SEGMENT, segment.path, 0, base,
                f"begins at offset {base}, but the segment before it ends at offset {reached}",
            )  # fmt: skip
        elif base in self._lost:
            lost = self._lost[base]
            yield self._finding(
                Severity.ERROR, FindingKind.MISSING_SEGMENT, segment.path, 0, lost.start_offset,
                f"{lost}; put the segment back from a replica or a backup; until then, keep index "
                "files between the two, which show what was there", base,
            )  # fmt: skip
        elif -1 < reached < base:
            yield self._finding(
                Severity.NOTE, FindingKind.OFFSET_GAP, segment.path, 0, reached,
                f"no batch holds offsets [{reached}, {base}) before this segment: "
                "compacted away, or a segment is missing", base,
            )  # fmt: skip

    def follow(self, batches: ScannedBatches) -> None:
        """Count offsets that no batch holds: a compacted log may have millions of them."""
        headers = batches.headers
        begins = headers[:, layout.BASE_OFFSET]
        ends = np.concatenate(([self._expected], headers[:-1, layout.LAST_OFFSET] + 1))
        self._expected = batches.next_offset
        rows = np.flatnonzero(begins > ends)
        if not len(rows):
            return
        first = rows[0]
        if not self._n_gaps:
            self._first_gap = batches.position_of(first), int(ends[first]), int(begins[first])
        self._n_gaps += len(rows)
        self._n_missing += int((begins[rows] - ends[rows]).sum())

    def go_on_from(self, offset: int) -> None:
        """Leave out damage; `offset` is the next offset after it."""
        self._expected = offset

    def end(self, segment: Segment) -> Iterator[Finding]:
        """Report the number of gaps of one segment."""
        self._reached = max(self._reached, self._expected)
        if self._n_gaps:
            at, begin, end = self._first_gap
            yield self._finding(
                Severity.NOTE, FindingKind.OFFSET_GAP, segment.path, at, begin,
                f"no batch holds {self._n_missing} offsets, the first of them [{begin}, {end}); "
                "compacted away, or lost", end,
            )  # fmt: skip

    def give_up(self) -> None:
        """Leave out a segment that cannot be read to its end."""
        self._reached = -1
