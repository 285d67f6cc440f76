"""Verify one segment of a log: good batches go to every check, bad batches are reported."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.format.kernels import layout
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.log.resync import GoodBatch, good_batch_after
from segmentlog.log.segment import Segment
from segmentlog.log.windows import BatchWindows
from segmentlog.maintain.verification.findings import Finding, FindingKind, MakeFinding, Severity
from segmentlog.maintain.verification.indexes import IndexCheck
from segmentlog.maintain.verification.offsets import OffsetCheck
from segmentlog.maintain.verification.producers import ProducerCheck
from segmentlog.maintain.verification.transactions import TransactionCheck
from segmentlog.reads.log import Log
from segmentlog.store.contract import ReadableFile
from segmentlog.store.readable import after_zeros, open_file


def unreadable_records(
    decoder: RecordDecoder, batches: ScannedBatches, finding: MakeFinding
) -> Iterator[Finding]:
    """Findings about batches whose records cannot be decoded."""
    for row, error in decoder.find_unreadable(batches):
        kind = FindingKind.CORRUPT_RECORDS
        if isinstance(error, UnsupportedFormatError):
            kind = FindingKind.UNSUPPORTED_BATCH
        yield finding(
            Severity.ERROR, kind, batches.path, batches.position_of(row),
            int(batches.headers[row, layout.BASE_OFFSET]), str(error),
        )  # fmt: skip


def what_follows(good: GoodBatch | None) -> str:
    """The place at which the verification continues after a bad batch, in words."""
    return f"the next good batch is at byte {good.position}" if good else "no good batch follows"


class Checks(NamedTuple):
    """The checks that a log keeps from segment to segment.

    `decoder` exists if records are to be parsed, `producers` if sequences are to be followed, and
    `progress` is called with the bytes done since the last call.  `epochs` has the leader epochs
    of the log, until a batch contradicts them.
    """

    log: Log
    finding: MakeFinding
    progress: Callable[[int], object]
    windows: BatchWindows
    decoder: RecordDecoder | None
    offsets: OffsetCheck
    transactions: TransactionCheck
    producers: ProducerCheck | None
    epochs: list[EpochStarts]


class SegmentCheck:
    """One pass over a segment.

    `next_base_offset`: of the segment after it; None for the active segment, whose end may be half
    written.
    """

    def __init__(self, segment: Segment, checks: Checks, next_base_offset: int | None) -> None:
        self._segment = segment
        self._checks = checks
        self._next_base_offset = next_base_offset
        is_leaving = (
            next_base_offset is not None and next_base_offset <= checks.log.log_start_offset
        )
        self._indexes = IndexCheck(segment, checks.finding, is_leaving=is_leaving)
        self._scanner = BatchScanner(segment.path, segment.base_offset)

    def findings(self) -> Iterator[Finding]:
        """Findings in the order of the file, then those about its indexes.

        Raises `OSError` if a file cannot be read.
        """
        with open_file(self._segment.path) as file:
            file.expect(0, self._segment.size)
            position: int | None = 0
            while position is not None:
                try:
                    yield from self._batches_from(file, position)
                    position = None
                except (CorruptLogError, UnsupportedFormatError) as error:
                    good, found = self._after(file, error)
                    yield found
                    self._leave_out(good, found)
                    position = good.position if good else None
        yield from self._checks.offsets.end(self._segment)
        if self._checks.producers is not None:
            yield from self._checks.producers.end(self._segment)
        yield from self._indexes.at_the_end()
        yield from self._checks.transactions.index_of(self._segment)

    def _batches_from(self, file: ReadableFile, position: int) -> Iterator[Finding]:
        """Follow the batches from byte `position` to the first bad batch."""
        windows, end = self._checks.windows, self._segment.size
        for batches in windows.batches(file.read_into, self._scanner, position, end):
            self._checks.offsets.follow(batches)
            yield from self._indexes.follow(batches)
            yield from self._checks.transactions.follow(batches)
            yield from self._epochs(batches)
            if self._checks.producers is not None:
                yield from self._checks.producers.follow(batches)
            if self._checks.decoder is not None:
                yield from unreadable_records(self._checks.decoder, batches, self._checks.finding)
            self._checks.progress(len(batches.data))

    def _epochs(self, batches: ScannedBatches) -> Iterator[Finding]:
        """The first batch of the log whose leader epoch is not that of the checkpoint."""
        for each in self._checks.epochs[:1]:
            if found := each.contradiction(batches):
                self._checks.epochs.clear()
                offset, epoch, known = found
                yield self._checks.finding(
                    Severity.WARNING, FindingKind.LEADER_EPOCHS, each.path, -1, offset,
                    f"the batch has leader epoch {epoch}, but the checkpoint has {known} there: a "
                    "follower may cut its copy off at a wrong offset; remove the file, and "
                    "segmentlog recover builds it again from the log",
                )  # fmt: skip

    def _after(
        self, file: ReadableFile, error: CorruptLogError | UnsupportedFormatError
    ) -> tuple[GoodBatch | None, Finding]:
        """Byte at which to continue after an unreadable batch, and the finding about the batch."""
        at, end, offset = error.position, self._segment.size, self._scanner.next_offset
        good = good_batch_after(file, at, end, offset)
        self._checks.progress((good.position if good else end) - at)
        is_zeros = good is None and after_zeros(file, at, end) == end
        if self._next_base_offset is None and good is None and at >= self._checks.log.end.position:
            if is_zeros:
                kind, severity = FindingKind.ZEROS_AT_THE_END, Severity.NOTE
                message = f"{end - at} bytes of zeros follow the last batch: preallocated"
            else:
                kind, severity = FindingKind.TORN_TAIL, Severity.WARNING
                message = f"{end - at} bytes after the last whole batch: a write was cut short"
        else:
            kind, severity = FindingKind.CORRUPT_BATCH, Severity.ERROR
            if isinstance(error, UnsupportedFormatError):
                kind = FindingKind.UNSUPPORTED_BATCH
            message = f"{error} ({what_follows(good)})"
            after = good.base_offset if good else self._next_base_offset
            if after is not None and after <= self._checks.log.log_start_offset:
                severity = Severity.WARNING
                message += "; all of it lies below the log start, so no reader needs it"
            if is_zeros:
                message = f"{end - at} bytes of zeros follow the last batch"
                if offset == self._next_base_offset:
                    message += ", and no record is missing; a broker's consumers fail there"
        path = self._segment.path
        return good, self._checks.finding(severity, kind, path, at, offset, message)

    def _leave_out(self, good: GoodBatch | None, found: Finding) -> None:
        """Have the checks continue after unreadable bytes."""
        if good:
            self._indexes.unreadable(good.position, good.base_offset)
            self._scanner.next_offset = good.base_offset
            self._checks.offsets.go_on_from(good.base_offset)
            if self._checks.producers is not None:
                self._checks.producers.go_on_from(good.base_offset)
        elif found.severity != Severity.NOTE:
            self._indexes.unreadable(self._segment.size, 2**63 - 1)
