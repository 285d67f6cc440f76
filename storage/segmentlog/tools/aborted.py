"""Which records belong to aborted transactions, as commands that show all records mark them."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from segmentlog.errors import SegmentLogError
from segmentlog.model import IsolationLevel, OffsetRange, ReadUpTo, ScanPolicy
from segmentlog.reads.log import Log

#: The column that marks them in rows of a scan.
ABORTED = "aborted"


class AbortedRecords:
    """The aborted records of a log, which is walked as far as rows are marked.

    A transaction that is open may still be committed.  Where the log cannot tell, because it is
    damaged, no record is marked.

    `log`: None marks nothing.
    """

    def __init__(self, log: Log | None, read_up_to: ReadUpTo = ReadUpTo.LOG_END) -> None:
        self._log, self._read_up_to = log, read_up_to
        self._walk: Iterator[tuple[int, np.ndarray, np.ndarray]] | None = None
        self._reached = -1
        self._starts = self._ends = np.empty(0, np.int64)

    def marked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with the column ``aborted`` if one of them is.

        The offsets of rows rise, from call to call, too.
        """
        if self._log is None or not rows.num_rows:
            return rows
        offsets = rows.column("offset").to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        if self._walk is None:
            self._walk = self._contents(self._log, first)
        is_after = self._ends > first
        self._starts, self._ends = self._starts[is_after], self._ends[is_after]
        while self._reached <= last:
            try:
                found = next(self._walk, None)
            except SegmentLogError:
                found = None
            if found is None:
                break
            self._reached, starts, ends = found
            self._starts = np.concatenate([self._starts, starts])
            self._ends = np.concatenate([self._ends, ends])
        if not len(self._starts):
            return rows
        slots = np.searchsorted(self._starts, offsets, "right") - 1
        is_aborted = (slots >= 0) & (offsets < self._ends[slots])
        return rows.append_column(ABORTED, pa.array(is_aborted)) if is_aborted.any() else rows

    def _contents(
        self, log: Log, start_offset: int
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """How far the log was walked, and the ranges of aborted records on the way."""
        from segmentlog.audits.log_offsets import Content, log_contents

        stable = log.end_offset(
            self._read_up_to, isolation_level=IsolationLevel.READ_COMMITTED, warns=False
        )
        start_offset = max(start_offset, log.log_start_offset)
        if start_offset >= stable:
            return
        policy = ScanPolicy(isolation_level=IsolationLevel.READ_COMMITTED)
        for found in log_contents(log, OffsetRange(start_offset, stable), policy):
            is_aborted = found.content == Content.ABORTED
            yield found.until, found.first[is_aborted], found.end[is_aborted]
