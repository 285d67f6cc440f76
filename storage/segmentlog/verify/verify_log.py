"""Read all of a log and compare everything that says something about it with everything else.

Every checksum, the order of offsets, every entry of every index, and the ends of transactions.
Nothing is changed, and nothing that is found ends the reading: it goes on behind it.
"""

from collections.abc import Callable, Iterator

import numpy as np

from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.files.readable import ReadableFile, exists, is_directory, is_file, open_file
from segmentlog.kernels import layout
from segmentlog.log import Log
from segmentlog.records.columns import record_schema
from segmentlog.records.decoder import BatchScanner, RecordDecoder
from segmentlog.records.scanned_batches import ScannedBatches
from segmentlog.segments.orphans import indexes_without_log
from segmentlog.segments.resync import GoodBatch, behind_damage
from segmentlog.segments.segment import Segment
from segmentlog.segments.windows import BatchWindows
from segmentlog.verify.findings import Finding, FindingKind, Severity
from segmentlog.verify.indexes import IndexCheck
from segmentlog.verify.transactions import TransactionCheck

__all__ = ["verify_log"]

_WINDOW_BYTES = 4 << 20


def verify_log(
    log: Log,
    *,
    with_records: bool = False,
    progress: Callable[[int], object] = lambda n_bytes: None,
) -> Iterator[Finding]:
    """Findings about one log, in the order of its files.

    Parameters
    ----------
    log : what to read.
    with_records : whether compressed batches are inflated and all records parsed, too.
    progress : called with the bytes of ``.log`` files done since the last call.

    Raises
    ------
    CorruptCheckpointError, LogDirectoryError
        If it cannot be told what belongs to the log.
    """
    yield from _LogCheck(log, with_records=with_records, progress=progress).findings()


class _LogCheck:
    """One pass over the segments of a log."""

    def __init__(self, log: Log, *, with_records: bool, progress: Callable[[int], object]) -> None:
        self._log = log
        self._progress = progress
        self._decoder: RecordDecoder | None = None
        if with_records:
            self._decoder = RecordDecoder(log.topic_partition, record_schema([]))
        self._transactions = TransactionCheck(self._finding)
        self._reader = BatchWindows(_WINDOW_BYTES)
        self._next_offset = -1
        self._is_all_read = True
        self._n_gaps = self._n_missing = 0
        self._first_gap = (0, 0, 0)  # byte, and the offsets that it is between

    def _finding(
        self,
        severity: Severity,
        kind: FindingKind,
        path: str,
        position: int,
        offset: int,
        message: str,
    ) -> Finding:
        return Finding(severity, kind, *self._log.topic_partition, path, position, offset, message)

    def findings(self) -> Iterator[Finding]:
        segments = self._log.segments
        for i, segment in enumerate(segments):
            yield from self._between(segment)
            try:
                yield from self._segment(segment, is_last=i + 1 == len(segments))
            except OSError as error:
                yield self._unread(segment, error)
        yield from self._transactions.at_the_end()
        yield from self._orphans()
        if self._is_all_read:
            yield from self._high_watermark()

    def _unread(self, segment: Segment, error: OSError) -> Finding:
        """What to say about a file that the system does not let us read to the end."""
        self._is_all_read, self._next_offset = False, -1
        if not exists(segment.path):
            return self._finding(
                Severity.NOTE, FindingKind.VANISHED_SEGMENT, segment.path, -1, segment.base_offset,
                "was there at the beginning, and is no more: retention or compaction",
            )  # fmt: skip
        path = error.filename or segment.path
        return self._finding(
            Severity.ERROR, FindingKind.UNREADABLE_FILE, path, -1, segment.base_offset,
            f"{error.strerror or error}; this segment is not verified to its end",
        )  # fmt: skip

    def _between(self, segment: Segment) -> Iterator[Finding]:
        """The step from one segment to the next."""
        reached, base = self._next_offset, segment.base_offset
        if reached > base:
            yield self._finding(
                Severity.ERROR, FindingKind.OVERLAPPING_SEGMENT, segment.path, 0, base,
                f"begins at offset {base}, the segment before it reaches to {reached}",
            )  # fmt: skip
        elif -1 < reached < base:
            yield self._finding(
                Severity.NOTE, FindingKind.OFFSET_GAP, segment.path, 0, reached,
                f"no batch holds offsets [{reached}, {base}) before this segment: "
                "compacted away, or a segment is missing",
            )  # fmt: skip

    def _segment(self, segment: Segment, *, is_last: bool) -> Iterator[Finding]:
        check = IndexCheck(segment, self._finding)
        scanner = BatchScanner(segment.path, segment.base_offset)
        file = open_file(segment.path)
        position: int | None = 0
        try:
            while position is not None:
                try:
                    yield from self._windows(segment, file, position, scanner, check)
                    position = None
                except (CorruptLogError, UnsupportedFormatError) as error:
                    good, found = self._behind(segment, file, error, scanner, is_last)
                    yield found
                    position = good.position if good else None
                    if good:
                        check.unreadable(good.position, good.base_offset)
                        scanner.next_offset = good.base_offset
                    elif found.severity != Severity.NOTE:
                        check.unreadable(segment.size, 2**63 - 1)
        finally:
            file.close()
        yield from self._gaps(segment)
        yield from check.at_the_end()
        yield from self._transactions.index_of(segment)
        self._next_offset = max(self._next_offset, scanner.next_offset)

    def _windows(
        self,
        segment: Segment,
        file: ReadableFile,
        position: int,
        scanner: BatchScanner,
        check: IndexCheck,
    ) -> Iterator[Finding]:
        """Whole batches from byte `position` on."""
        expected = scanner.next_offset
        for batches in self._reader.batches(file.read_into, scanner, position, segment.size):
            yield from self._batches(batches, expected, check)
            self._progress(len(batches.data))
            expected = batches.next_offset

    def _batches(
        self, batches: ScannedBatches, expected: int, check: IndexCheck
    ) -> Iterator[Finding]:
        """What some good batches say."""
        self._count_gaps(batches, expected)
        yield from check.follow(batches)
        yield from self._transactions.follow(batches)
        if self._decoder is not None:
            for row, error in self._decoder.find_unreadable(batches):
                kind = FindingKind.CORRUPT_RECORDS
                if isinstance(error, UnsupportedFormatError):
                    kind = FindingKind.UNSUPPORTED_BATCH
                yield self._finding(
                    Severity.ERROR, kind, batches.path, batches.position_of(row),
                    int(batches.headers[row, layout.BASE_OFFSET]), str(error),
                )  # fmt: skip

    def _count_gaps(self, batches: ScannedBatches, expected: int) -> None:
        """Offsets between batches that no batch holds: compacted logs have them by the million."""
        headers = batches.headers
        begins = headers[:, layout.BASE_OFFSET]
        ends = np.concatenate(([expected], headers[:-1, layout.LAST_OFFSET] + 1))
        rows = np.flatnonzero(begins > ends)
        if not len(rows):
            return
        first = rows[0]
        if not self._n_gaps:
            self._first_gap = batches.position_of(first), int(ends[first]), int(begins[first])
        self._n_gaps += len(rows)
        self._n_missing += int((begins[rows] - ends[rows]).sum())

    def _gaps(self, segment: Segment) -> Iterator[Finding]:
        """What was counted in one segment."""
        if self._n_gaps:
            at, begin, end = self._first_gap
            yield self._finding(
                Severity.NOTE, FindingKind.OFFSET_GAP, segment.path, at, begin,
                f"in no batch: {self._n_missing} offsets, the first ones [{begin}, {end}); "
                "compacted away, or lost",
            )  # fmt: skip
        self._n_gaps = self._n_missing = 0

    def _behind(
        self,
        segment: Segment,
        file: ReadableFile,
        error: CorruptLogError | UnsupportedFormatError,
        scanner: BatchScanner,
        is_last: bool,
    ) -> tuple[GoodBatch | None, Finding]:
        """Where to go on behind a batch that cannot be read, and what to say about it."""
        at = error.position
        found = behind_damage(file, at, segment.size, scanner.next_offset)
        self._progress((found.position if found else segment.size) - at)
        offset = scanner.next_offset
        end = self._log.tail
        if is_last and found is None and at >= end.position:
            rest = segment.size - at
            if not file.read(at, 1 << 20).strip(b"\0"):
                kind, severity = FindingKind.ZEROS_AT_THE_END, Severity.NOTE
                message = f"{rest} bytes of zeros follow the last batch: preallocated"
            else:
                kind, severity = FindingKind.TORN_TAIL, Severity.WARNING
                message = f"{rest} bytes behind the last whole batch: a write was cut short"
            return None, self._finding(severity, kind, segment.path, at, offset, message)
        kind = FindingKind.CORRUPT_BATCH
        if isinstance(error, UnsupportedFormatError):
            kind = FindingKind.UNSUPPORTED_BATCH
        follows = "no good batch follows"
        if found:
            follows = f"the next good batch is at byte {found.position}"
        message = f"{error} ({follows})"
        return found, self._finding(Severity.ERROR, kind, segment.path, at, offset, message)

    def _orphans(self) -> Iterator[Finding]:
        """Index files whose segment is gone."""
        if not self._log.segments or not is_directory(self._log.path):
            return  # a partition that is being made, one segment alone
        for base_offset, path in indexes_without_log(self._log.path):
            yield self._finding(
                Severity.WARNING, FindingKind.INDEX_WITHOUT_LOG, path, -1, base_offset,
                "there is no segment with this base offset: left by a crash; the next writer, "
                "segmentlog recover, or a broker that starts removes it",
            )  # fmt: skip

    def _high_watermark(self) -> Iterator[Finding]:
        """The checkpoint beside the partition, against the end of the log."""
        if is_file(self._log.path):
            return  # one segment alone need not reach to the end
        promised, end = self._log.high_watermark_checkpoint, self._log.log_end_offset
        if promised is not None and promised > end:
            yield self._finding(
                Severity.WARNING, FindingKind.HIGH_WATERMARK, self._log.path, -1, end,
                f"the high watermark is {promised}, the log ends at {end}: "
                "acknowledged records are missing, or the checkpoint is newer than this copy",
            )  # fmt: skip
