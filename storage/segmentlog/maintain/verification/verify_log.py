"""Read all of a log and compare its batches, indexes, markers and checkpoints.

It verifies every checksum, the order of offsets, every entry of every index, and the ends of
transactions.  Nothing is changed.  After damage, reading continues.
"""

import contextlib
from collections.abc import Callable, Iterator

from segmentlog.cluster.cluster_metadata import known_losses
from segmentlog.errors import CorruptCheckpointError, RemoteSegmentError
from segmentlog.format.records.decoder import RecordDecoder
from segmentlog.format.records.schema import record_schema
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.log.listing import indexes_without_log
from segmentlog.log.segment import Segment
from segmentlog.log.windows import BatchWindows
from segmentlog.maintain.verification.findings import Finding, FindingKind, MakeFinding, Severity
from segmentlog.maintain.verification.offsets import OffsetCheck
from segmentlog.maintain.verification.producers import ProducerCheck
from segmentlog.maintain.verification.segment import Checks, SegmentCheck
from segmentlog.maintain.verification.transactions import TransactionCheck
from segmentlog.reads.log import Log
from segmentlog.store.readable import exists, is_directory, is_file

_WINDOW_BYTES = 4 << 20


def verify_log(
    log: Log,
    *,
    with_records: bool = False,
    with_producers: bool = False,
    progress: Callable[[int], object] = lambda n_bytes: None,
) -> Iterator[Finding]:
    """Findings about one log, in the order of its files.

    `with_records`: whether compressed batches are also inflated and all records parsed.
    `with_producers`: whether the sequences of producers are followed, too.  `progress`: called
    with the bytes of ``.log`` files done since the last call.  Raises `CorruptCheckpointError` or
    `LogDirectoryError` if the bounds or the files of the log cannot be read.
    """
    check = _LogCheck(
        log, with_records=with_records, with_producers=with_producers, progress=progress
    )
    yield from check.findings()


class _LogCheck:
    """One pass over the segments of a log."""

    def __init__(
        self,
        log: Log,
        *,
        with_records: bool,
        with_producers: bool,
        progress: Callable[[int], object],
    ) -> None:
        self._log = log
        self._finding = MakeFinding(log.topic_partition)
        decoder = RecordDecoder(log.topic_partition, record_schema([])) if with_records else None
        epochs = []
        with contextlib.suppress(OSError):  # the start of a broker has a finding about the file
            epochs = [EpochStarts(log.path, warns=False)] if is_directory(log.path) else []
        self._checks = Checks(
            log, self._finding, progress, BatchWindows(_WINDOW_BYTES), decoder,
            OffsetCheck(self._finding, known_losses(log)), TransactionCheck(self._finding),
            ProducerCheck(self._finding) if with_producers else None, epochs,
        )  # fmt: skip
        self._is_all_read = True

    def findings(self) -> Iterator[Finding]:
        segments = self._log.segments
        for i, segment in enumerate(segments):
            yield from self._checks.offsets.begin(segment)
            try:
                after = segments[i + 1].base_offset if i + 1 < len(segments) else None
                yield from SegmentCheck(segment, self._checks, after).findings()
            except OSError as error:
                yield self._unread(segment, error)
            except RemoteSegmentError as error:
                self._is_all_read = False
                self._checks.offsets.give_up()
                yield self._finding(
                    Severity.ERROR, FindingKind.REMOTE_SEGMENT, error.path, -1,
                    segment.base_offset, f"{error.reason}; {error.remedy}",
                )  # fmt: skip
        yield from self._checks.transactions.at_the_end()
        yield from self._orphans()
        if self._is_all_read:
            yield from self._high_watermark()

    def _unread(self, segment: Segment, error: OSError) -> Finding:
        """The finding for a file that cannot be read to its end."""
        self._is_all_read = False
        self._checks.offsets.give_up()
        if not exists(segment.path):
            return self._finding(
                Severity.NOTE, FindingKind.VANISHED_SEGMENT, segment.path, -1, segment.base_offset,
                "existed when the verification began, and is gone: removed by retention or "
                "compaction",
            )  # fmt: skip
        path = error.filename or segment.path
        return self._finding(
            Severity.ERROR, FindingKind.UNREADABLE_FILE, path, -1, segment.base_offset,
            f"{error.strerror or error}; this segment is not verified to its end",
        )  # fmt: skip

    def _orphans(self) -> Iterator[Finding]:
        """Index files whose segment is gone."""
        if not self._log.segments or not is_directory(self._log.path):
            return  # a partition that is being made, one segment alone
        lost = self._log.lost_segments
        for base_offset, path in indexes_without_log(self._log.path):
            if any(each.start_offset <= base_offset < each.end_offset for each in lost):
                continue  # the finding about the missing segment names it
            yield self._finding(
                Severity.WARNING, FindingKind.INDEX_WITHOUT_LOG, path, -1, base_offset,
                "no segment has this base offset: a crash has left the file; the next writer, "
                "segmentlog recover, or the next start of a broker removes it",
            )  # fmt: skip

    def _high_watermark(self) -> Iterator[Finding]:
        """Compare the checkpointed high watermark with the end of the log."""
        if is_file(self._log.path):
            return  # one segment alone need not reach to the end
        try:
            promised, end = self._log.high_watermark_checkpoint, self._log.log_end_offset
        except CorruptCheckpointError:  # the findings about the log directory name the file
            return
        if lost := self._log.lost_offsets:
            yield self._finding(
                Severity.ERROR, FindingKind.HIGH_WATERMARK, self._log.path, -1, end,
                f"{lost}: later segments are gone; restore them from a replica or a backup",
                promised or -1,
            )  # fmt: skip
        elif promised is not None and promised > end:
            yield self._finding(
                Severity.WARNING, FindingKind.HIGH_WATERMARK, self._log.path, -1, end,
                f"the high watermark is {promised}, but the log ends at {end}: acknowledged "
                "records are missing, or the checkpoint is newer than this copy",
                promised,
            )  # fmt: skip
