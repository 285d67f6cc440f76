"""Read all of a log and compare its batches, indexes, markers and checkpoints.

It verifies every checksum, the order of offsets, every entry of every index, and the ends of
transactions.  Nothing is changed.  After damage, reading continues.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from segmentlog.cluster.known_losses import known_losses
from segmentlog.errors import (
    CorruptCheckpointError,
    RemoteSegmentError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE
from segmentlog.format.records.columns import record_schema
from segmentlog.format.records.decoder import RecordDecoder
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.log.listing import indexes_without_log, left_out
from segmentlog.log.segment import Segment
from segmentlog.log.walk import Stretch, Verdict, walk
from segmentlog.log.windows import BatchWindows
from segmentlog.maintain.verification.checks import (
    IndexCheck,
    ProducerCheck,
    TransactionCheck,
)
from segmentlog.maintain.verification.commits import ExtentCheck
from segmentlog.maintain.verification.findings import Finding, FindingKind, MakeFinding, Severity
from segmentlog.model import LARGEST_LONG, Codec
from segmentlog.reads.listed import LostSegments
from segmentlog.reads.log import Log
from segmentlog.store.readable import (
    exists,
    is_directory,
    is_file,
    is_url,
    open_file,
)

_WINDOW_BYTES = 4 << 20


def bad_kind(bad: Stretch) -> FindingKind:
    """The kind of a finding about bad bytes."""
    is_unknown = isinstance(bad.error, UnsupportedFormatError)
    return FindingKind.UNSUPPORTED_BATCH if is_unknown else FindingKind.CORRUPT_BATCH


def bad_message(bad: Stretch) -> str:
    """The error, and the place at which the verification continues, in words."""
    at = f"the next good batch is at byte {bad.good.position}" if bad.good else ""
    return f"{bad.error} ({at or 'no good batch follows'})"


def unreadable_records(
    decoder: RecordDecoder, batches: ScannedBatches, finding: MakeFinding
) -> Iterator[Finding]:
    """Findings about batches whose records cannot be decoded."""
    for row, error in decoder.find_unreadable(batches):
        is_unknown = isinstance(error, UnsupportedFormatError)
        yield finding(
            FindingKind.UNSUPPORTED_BATCH if is_unknown else FindingKind.CORRUPT_RECORDS,
            batches.path,
            str(error),
            position=batches.position_of(row),
            offset=int(batches.headers[row, layout.BASE_OFFSET]),
        )


class LogCheck:
    """One pass over a log: good batches go to every check, bad batches are reported.

    `with_records`: whether compressed batches are also inflated and all records parsed.
    `with_producers`: whether the sequences of producers are followed, too.  `extents`: of segments
    in an object store, by base offset.  `progress`: called with the bytes of ``.log`` files done
    since the last call.
    """

    def __init__(
        self,
        log: Log,
        *,
        with_records: bool = False,
        with_producers: bool = False,
        extents: Mapping[int, ExtentCheck] = MappingProxyType({}),
        progress: Callable[[int], object] = lambda n_bytes: None,
    ) -> None:
        self._log, self._extents, self._progress = log, extents, progress
        self._finding = MakeFinding(log.topic_partition)
        self._windows = BatchWindows(_WINDOW_BYTES)
        self._decoder = (
            RecordDecoder(log.topic_partition, record_schema([])) if with_records else None
        )
        self._offsets = _OffsetCheck(self._finding, known_losses(log))
        self._transactions = TransactionCheck(self._finding)
        self._producers = ProducerCheck(self._finding) if with_producers else None
        #: Leader epochs of the log, until a batch contradicts them.
        self._epochs: EpochStarts | None = None
        with contextlib.suppress(OSError):  # the start of a broker has a finding about the file
            self._epochs = EpochStarts(log.path, warns=False) if is_directory(log.path) else None

    def findings(self) -> Iterator[Finding]:
        """Findings in the order of the files.

        Raises `CorruptCheckpointError` or `LogDirectoryError` if the bounds or the files of the
        log cannot be read.
        """
        segments, is_all_read = self._log.segments, True
        for i, segment in enumerate(segments):
            yield from self._offsets.begin(segment)
            try:
                after = segments[i + 1].base_offset if i + 1 < len(segments) else None
                yield from self._segment(segment, after)
                continue
            except OSError as error:
                extent = self._extents.get(segment.base_offset)
                if extent is None or not extent.has_left():
                    yield self._unread(segment, error)
            except RemoteSegmentError as error:
                yield self._finding(
                    FindingKind.REMOTE_SEGMENT,
                    error.path,
                    f"{error.reason}; {error.remedy}",
                    offset=segment.base_offset,
                )
            is_all_read = False
            self._offsets.give_up()
        yield from self._transactions.at_the_end()
        yield from self._orphans()
        yield from self._left_out()
        if is_all_read and not is_file(self._log.path):  # one segment alone need not reach the end
            yield from self._high_watermark()

    def _segment(self, segment: Segment, after: int | None) -> Iterator[Finding]:
        """Findings in the order of the file, then those about its indexes.

        `after`: base offset of the next segment; None for the active one, whose end may be half
        written.  Raises `OSError` if a file cannot be read.
        """
        is_leaving = after is not None and after <= self._log.log_start_offset
        indexes = IndexCheck(segment, self._finding, is_leaving=is_leaving)
        extent = self._extents.get(segment.base_offset)
        with open_file(segment.path) as file:
            file.expect(0, segment.size)
            for stretch in walk(
                segment.path, file, 0, segment.size, segment.base_offset, windows=self._windows
            ):
                batches = stretch.batches
                if batches is None:
                    found = self._damaged(segment, stretch, after)
                    yield found
                    if good := stretch.good:
                        indexes.unreadable(good.position, good.base_offset)
                        self._offsets.go_on_from(good.base_offset)
                        if self._producers is not None:
                            self._producers.go_on_from(good.base_offset)
                    elif found.severity != Severity.NOTE:
                        indexes.unreadable(segment.size, LARGEST_LONG)
                    continue
                self._offsets.follow(batches)
                if extent is not None:
                    extent.follow(batches)
                yield from indexes.follow(batches)
                yield from self._transactions.follow(batches)
                yield from self._follow_epochs(batches)
                if self._producers is not None:
                    yield from self._producers.follow(batches)
                yield from self._unknown_codecs(batches)
                if self._decoder is not None:
                    yield from unreadable_records(self._decoder, batches, self._finding)
                self._progress(len(batches.data))
        yield from self._offsets.end(segment)
        if extent is not None:
            yield from extent.at_the_end()
        if self._producers is not None:
            yield from self._producers.end(segment)
        yield from indexes.at_the_end()
        yield from self._transactions.index_of(segment)

    def _damaged(self, segment: Segment, bad: Stretch, after: int | None) -> Finding:
        """The finding about a bad batch; `after`: as for `_segment`."""
        good, at, end = bad.good, bad.begin, segment.size
        self._progress(bad.end - at)
        is_zeros = bad.verdict is Verdict.ZEROS
        kind, message, severity = bad_kind(bad), bad_message(bad), None
        if after is None and good is None and at >= self._log.end.position:
            if is_zeros:
                kind = FindingKind.ZEROS_AT_THE_END
                message = f"{end - at} bytes of zeros follow the last batch: preallocated"
            elif not self._was_whole():
                kind = FindingKind.TORN_TAIL
                message = f"{end - at} bytes after the last whole batch: a write was cut short"
        else:
            next_offset = good.base_offset if good else after
            if next_offset is not None and next_offset <= self._log.log_start_offset:
                severity = Severity.WARNING
                message += "; all of it lies below the log start, so no reader needs it"
            if is_zeros:
                message = f"{end - at} bytes of zeros follow the last batch"
                if bad.offset == after:
                    message += ", and no record is missing; a broker's consumers fail there"
        return self._finding(
            kind, segment.path, message, position=at, offset=bad.offset, severity=severity
        )

    def _unknown_codecs(self, batches: ScannedBatches) -> Iterator[Finding]:
        """Batches that no reader inflates; a check of records finds them, too."""
        codecs = batches.headers[:, layout.ATTRIBUTES] & layout.CODEC_MASK
        for row in () if self._decoder else (codecs > max(Codec)).nonzero()[0].tolist():
            position = batches.position_of(row)
            error = UnsupportedFormatError(batches.path, position, "codec", int(codecs[row]))
            yield self._finding(
                FindingKind.UNSUPPORTED_BATCH,
                batches.path,
                str(error),
                position=position,
                offset=int(batches.headers[row, layout.BASE_OFFSET]),
            )

    def _follow_epochs(self, batches: ScannedBatches) -> Iterator[Finding]:
        """The first batch of the log whose leader epoch is not that of the checkpoint."""
        if self._epochs is None or not (found := self._epochs.contradiction(batches)):
            return
        offset, epoch, known = found
        yield self._finding(
            FindingKind.LEADER_EPOCHS,
            self._epochs.path,
            f"the batch has leader epoch {epoch}, but the checkpoint has {known} there: a "
            "follower may cut its copy off at a wrong offset; remove the file, and "
            "segmentlog recover builds it again from the log",
            offset=offset,
        )
        self._epochs = None

    def _unread(self, segment: Segment, error: OSError) -> Finding:
        """The finding for a file that cannot be read to its end."""
        if not exists(segment.path):
            return self._finding(
                FindingKind.VANISHED_SEGMENT,
                segment.path,
                "existed when the verification began, and is gone: removed by retention or "
                "compaction",
                offset=segment.base_offset,
            )
        return self._finding(
            FindingKind.UNREADABLE_FILE,
            error.filename or segment.path,
            f"{error.strerror or error}; this segment is not verified to its end",
            offset=segment.base_offset,
        )

    def _orphans(self) -> Iterator[Finding]:
        """Index files whose segment is gone."""
        if not self._log.segments or not is_directory(self._log.path):
            return  # a partition that is being made, one segment alone
        lost = self._log.lost_segments
        for base_offset, path in indexes_without_log(self._log.path):
            if any(each.start_offset <= base_offset < each.end_offset for each in lost):
                continue  # the finding about the missing segment names it
            yield self._finding(
                FindingKind.INDEX_WITHOUT_LOG,
                path,
                "no segment has this base offset: a crash has left the file; the next writer, "
                "segmentlog recover, or the next start of a broker removes it",
                offset=base_offset,
            )

    def _left_out(self) -> Iterator[Finding]:
        """Files that a broker takes for segments, and that readers leave out."""
        if not is_directory(self._log.path) or is_url(self._log.path):
            return
        for path, base_offset, why in left_out(self._log.path):
            yield self._finding(
                FindingKind.UNREADABLE_FILE,
                path,
                f"a broker takes the file for the segment at offset {base_offset}, but its "
                f"records are not read here: it {why}",
                offset=base_offset,
            )

    def _was_whole(self) -> bool:
        """Whether a broker has acknowledged the last bytes, and then stopped cleanly.

        After a crash, or in a copy of a running broker's directory, the high watermark may be
        beyond bytes that have not reached the disk.
        """
        if not exists(os.path.join(os.path.dirname(self._log.path), CLEAN_SHUTDOWN_FILE)):
            return False
        try:
            return (self._log.high_watermark_checkpoint or 0) > self._log.log_end_offset
        except CorruptCheckpointError:  # the findings about the log directory name the file
            return False

    def _high_watermark(self) -> Iterator[Finding]:
        """Compare the checkpointed high watermark with the end of the log."""
        try:
            promised, end = self._log.high_watermark_checkpoint, self._log.log_end_offset
        except CorruptCheckpointError:  # the findings about the log directory name the file
            return
        message, severity = "", None
        if lost := self._log.lost_offsets:
            message = f"{lost}: later segments are gone; restore them from a replica or a backup"
        elif promised is not None and promised > end:
            severity = Severity.WARNING
            message = (
                f"the high watermark is {promised}, but the log ends at {end}: acknowledged "
                "records are missing, or the checkpoint is newer than this copy"
            )
        if message:
            yield self._finding(
                FindingKind.HIGH_WATERMARK,
                self._log.path,
                message,
                offset=end,
                end_offset=promised or -1,
                severity=severity,
            )


class _OffsetCheck:
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
                FindingKind.OVERLAPPING_SEGMENT,
                segment.path,
                f"begins at offset {base}, but the segment before it ends at offset {reached}",
                position=0,
                offset=base,
            )
        elif base in self._lost:
            lost = self._lost[base]
            yield self._finding(
                FindingKind.MISSING_SEGMENT,
                segment.path,
                f"{lost}; put the segment back from a replica or a backup; until then, keep index "
                "files between the two, which show what was there",
                position=0,
                offset=lost.start_offset,
                end_offset=base,
            )
        elif -1 < reached < base:
            yield self._finding(
                FindingKind.OFFSET_GAP,
                segment.path,
                f"no batch holds offsets [{reached}, {base}) before this segment: "
                "compacted away, or a segment is missing",
                position=0,
                offset=reached,
                end_offset=base,
            )

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
                FindingKind.OFFSET_GAP,
                segment.path,
                f"no batch holds {self._n_missing} offsets, the first of them [{begin}, {end}); "
                "compacted away, or lost",
                position=at,
                offset=begin,
                end_offset=end,
            )

    def give_up(self) -> None:
        """Leave out a segment that cannot be read to its end."""
        self._reached = -1
