"""One topic-partition on disk: its segments, its offsets, and reads of it.

::

    log start         last stable offset       high watermark         log end
    |  committed      |  an open transaction   |  not replicated yet  |
    |  read_committed |                        |                      |
    |  read_uncommitted, by default            |                      |
    |  read_uncommitted, with `read_up_to` as ``logEnd``              |
"""

import copy
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Unpack

from segmentlog.arguments import (
    class_of_one_dialect,
    one_of,
    refuse_two,
    takes,
    whole_number,
)
from segmentlog.declared import those_of
from segmentlog.errors import (
    CorruptCheckpointError,
    CorruptLogError,
    LogChangedError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    SegmentLogError,
    UnsupportedFormatError,
)
from segmentlog.log.checkpoint import known_topic_id, read_topic_id
from segmentlog.log.listing import Listing, list_now, list_one_file
from segmentlog.log.segment import LogEnd, Segment
from segmentlog.masking import with_plain_buckets
from segmentlog.model import (
    LEAST_LONG,
    IsolationLevel,
    LogSlice,
    OffsetRange,
    OnCorruptBatch,
    ReadUpTo,
    ScanPolicy,
    TimestampAndOffset,
    TopicPartition,
)
from segmentlog.read_options import BoundsOptions, ScanOptions, scan_policy
from segmentlog.reads.listed import (
    ListedSegments,
    LostOffsets,
    LostSegments,
    Partition,
    cut_by_file,
    cut_slices,
    retry_if_relisted,
)
from segmentlog.reads.lookup import find_offset_by_timestamp
from segmentlog.reads.snapshot import DirectorySnapshot
from segmentlog.reads.summary import html_table, in_a_line
from segmentlog.store.readable import is_file
from segmentlog.times import Time, epoch_milliseconds

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


@class_of_one_dialect()
class Log:
    """One topic-partition, as it was when its directory was opened.

    `segmentlog.LogDirectory.log` makes it.  It is cheap to make: the disk is read at the first
    request for a property, and not again.

    Parameters
    ----------
    topic_partition : topic and partition of the log.
    path : the partition directory, or one ``.log`` file of it.
    log_start_checkpoint : the partition's entry in ``log-start-offset-checkpoint``, or 0.
    high_watermark_checkpoint : its entry in ``replication-offset-checkpoint``, or None; or the
        error, if that file cannot be read.
    snapshot : of its log directory, with whose moment a listing is compared; by default, the log
        is listed as it is, even beside a writer.
    is_file : whether `path` is a file, if that is known; by default, a look at the disk decides.
    noted : gets the partition once the log is listed.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        path: str,
        *,
        log_start_checkpoint: int = 0,
        high_watermark_checkpoint: int | CorruptCheckpointError | None = None,
        snapshot: DirectorySnapshot | None = None,
        is_file: bool | None = None,
        noted: set[TopicPartition] | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.path = path
        self.log_start_checkpoint = log_start_checkpoint
        self._high_watermark_checkpoint = high_watermark_checkpoint
        self._snapshot, self._noted = snapshot, noted
        # Threads share a log.  The first that needs it lists the files, under the lock, for all; a
        # listing never changes.  Open transactions are found twice at worst, with one result.
        self._open_transactions: dict[tuple[int, bool], dict[int, int]] = {}
        self._newest_listing: ListedSegments | None = None
        self._listing = threading.Lock()
        if is_file is not None:
            self._is_file = is_file

    def __repr__(self) -> str:
        return f"Log({in_a_line(self)})"

    def __getstate__(self) -> dict[str, Any]:
        """Without the lock, which no other process can take."""
        return {name: value for name, value in self.__dict__.items() if name != "_listing"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._listing = threading.Lock()

    def _repr_html_(self) -> str:
        return html_table(with_plain_buckets(self.path), [self])

    @property
    def high_watermark_checkpoint(self) -> int | None:
        """The partition's entry in ``replication-offset-checkpoint``, or None.

        Raises
        ------
        CorruptCheckpointError
            If the checkpoint cannot be read.
        """
        if isinstance(self._high_watermark_checkpoint, CorruptCheckpointError):
            raise self._high_watermark_checkpoint
        return self._high_watermark_checkpoint

    @cached_property
    def _is_file(self) -> bool:
        return is_file(self.path)

    @cached_property
    def partition(self) -> Partition:
        """The files of the log."""
        return Partition.of_file(self.path) if self._is_file else Partition(self.path)

    @property
    def _listed(self) -> ListedSegments:
        listed = self._newest_listing
        if listed is None:
            with self._listing:  # the first of several threads makes it
                listed = self._newest_listing
                if listed is None:
                    listed = self._newest_listing = self._list()
        return listed

    def _list(self, before: Listing | None = None) -> ListedSegments:
        promised = self._high_watermark_checkpoint
        committed_to = promised if isinstance(promised, int) else -1
        # Before the listing, which notices a deletion: an id that is read after it may be that of
        # a topic that was made again, and the files of that topic would pass for those listed.
        _ = self.known_topic_id
        path = self.partition.path
        if self._snapshot is None:
            listing = list_now(path, before=before)
        else:
            if self._noted is not None:
                self._noted.add(self.topic_partition)
            listing = self._snapshot.list_log(self.topic_partition, path, before)
        if self._is_file:  # one segment alone need not reach to the end: nothing shows a loss
            listing, path = list_one_file(self.path, listing), ""
        return ListedSegments(
            listing,
            self.log_start_checkpoint,
            committed_to,
            path,
            self.topic_partition,
            None if self._is_file else self._snapshot,
        )

    @property
    def ends_at_its_high_watermark(self) -> bool:
        """Whether a read to the high watermark is known to end there, in spite of appends."""
        # Without a high watermark, or while a copy is being made, the files show the end instead.
        listed, promised = self._newest_listing, self._high_watermark_checkpoint
        if not isinstance(promised, int):
            return promised is not None  # such a read reports the checkpoint, not the files
        return listed is not None and listed.knows_its_end and listed.log_end_offset >= promised

    def is_as_listed(self) -> bool:
        """Whether the files of the log are still those that were listed, with the same end."""
        listed = self._newest_listing
        if listed is None or listed.listing.still_holds():
            return True
        if self.known_topic_id != known_topic_id(self.partition.path):
            return False
        try:
            again = self._list(listed.listing)
            if not listed.reads_as(again):
                return False
        except (OSError, SegmentLogError):  # the next request reports it
            return False
        # The same files, with evidence that has grown older.  A mark of a clean stop that came or
        # went since changes what is lost: `_in_later` compares it, and begins anew.
        listed.listing = again.listing._replace(is_clean=listed.listing.is_clean)
        return True

    def _in_later(
        self, snapshots: Mapping[str, DirectorySnapshot], noted: set[TopicPartition]
    ) -> "Log | None":
        """The log in a later snapshot in which its bounds are the same; None without a listing.

        It is this object, unless the directory was cleanly stopped, or started, in between.  Its
        listing is then of both moments, and the earlier snapshot is no longer needed.
        """
        listed, before = self._newest_listing, self._snapshot
        if listed is None or before is None or listed.listing.end_offset is not None:
            return None
        snapshot = snapshots[before.path]
        log = self
        if snapshot is not before:
            if snapshot.is_clean != listed.listing.is_clean and not self._is_file:
                log = copy.copy(self)
                log._newest_listing = listed.beside(snapshot)
            elif listed.snapshot is not None:
                listed.snapshot = snapshot
            log._snapshot = snapshot
        log._noted = noted
        return log

    @property
    @retry_if_relisted
    def segments(self) -> tuple[Segment, ...]:
        """Segments in the order of their base offsets; the last one is the active segment."""
        return self._listed.segments

    @property
    @retry_if_relisted
    def untorn_segments(self) -> tuple[Segment, ...]:
        """`segments`; the last one ends before a torn tail that no high watermark promises."""
        return self._listed.untorn

    @property
    def topic_id(self) -> str | None:
        """Topic id from ``partition.metadata``, as Kafka prints it; None without that file."""
        return read_topic_id(self.partition.path)

    @cached_property
    def known_topic_id(self) -> str:
        """`topic_id` as it was when the log was first listed; empty if no file contains it."""
        return known_topic_id(self.partition.path)

    def check_topic(self, offsets: OffsetRange) -> None:
        """Refuse what was just read from the files if they may be those of another topic.

        Inodes do not show it: file systems reuse them.

        Raises
        ------
        LogChangedError
            If the topic was deleted, and created again under its name.
        """
        self.partition.check_topic(self.known_topic_id, offsets)

    @property
    def size_bytes(self) -> int:
        """Bytes of all ``.log`` files."""
        return sum(segment.size for segment in self.segments)

    @property
    @retry_if_relisted
    def end(self) -> LogEnd:
        """End of the last segment."""
        return self._listed.end

    @property
    @retry_if_relisted
    def log_start_offset(self) -> int:
        """First offset that a reader may see: retention and DeleteRecords move it up."""
        return self._listed.log_start_offset

    @property
    @retry_if_relisted
    def log_end_offset(self) -> int:
        """The offset that the next record will get; a torn tail does not count.

        If a commit has written to the log since its directory was opened, it is the high watermark
        of that time.
        """
        return self._listed.log_end_offset

    @property
    def high_watermark(self) -> int | None:
        """Offset up to which records are replicated, by the checkpoint beside the partition.

        None when the checkpoint has no entry.  A running broker writes it every five seconds.
        """
        at = self.high_watermark_checkpoint
        return None if at is None else min(max(at, self.log_start_offset), self.log_end_offset)

    def end_offset(
        self,
        read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        on_corrupt_batch: OnCorruptBatch = OnCorruptBatch.FAIL,
        *,
        fail_on_data_loss: bool = True,
        warns: bool = True,
    ) -> int:
        """End of a read of the newest data: the high watermark if known, or the log end.

        For committed data, it is the last stable offset (`open_transactions` says what
        `on_corrupt_batch` means for it).

        The end lies after `log_end_offset` if a high watermark after a torn tail has promised the
        tail, or if segments are gone from the end of the log (`lost_offsets`).  A read up to this
        end reports the damage; it does not end before it in silence.  With ``ReadUpTo.LOG_END``,
        both are left out; without `fail_on_data_loss`, only lost offsets are left out.  If the end
        lies below the high watermark, a warning says so, unless `warns` is false.
        """
        read_up_to = one_of("read_up_to", read_up_to, ReadUpTo)
        isolation_level = one_of("isolation_level", isolation_level, IsolationLevel)
        on_corrupt_batch = one_of("on_corrupt_batch", on_corrupt_batch, OnCorruptBatch)
        if warns and (short := self.short_of_high_watermark(read_up_to)):
            logger.warning("%s: %s", self.path, short)
        if isolation_level == IsolationLevel.READ_COMMITTED:
            return self.last_stable_offset(
                read_up_to, on_corrupt_batch, fail_on_data_loss=fail_on_data_loss
            )
        reads_all = read_up_to == ReadUpTo.LOG_END
        if reads_all and isinstance(self._high_watermark_checkpoint, CorruptCheckpointError):
            return self.log_end_offset
        promised = self.high_watermark_checkpoint
        if promised is not None and not reads_all and self.lost_offsets:
            return promised if fail_on_data_loss else self.log_end_offset
        if promised is not None and promised > self.end.offset and self.segments:
            is_torn = self.segments[-1].size > self.end.position
            if is_torn and not reads_all:
                return promised
        high_watermark = self.high_watermark
        return self.log_end_offset if high_watermark is None or reads_all else high_watermark

    def short_of_high_watermark(self, read_up_to: ReadUpTo) -> str:
        """That a read ends at the log end, below the high watermark, in words; or nothing."""
        promised, reads_all = self._high_watermark_checkpoint, read_up_to == ReadUpTo.LOG_END
        if not isinstance(promised, int) or not self.segments or self._is_file:
            return ""  # one segment alone need not reach to the end
        is_torn = self.segments[-1].size > self.end.position
        if promised <= self.end.offset or (not reads_all and (is_torn or self.lost_offsets)):
            return ""  # the read reports the damage, or the loss
        return (
            f"the high watermark is {promised}, but the log ends at {self.log_end_offset}; the "
            "read ends at the log end"
        )

    @property
    @retry_if_relisted
    def lost_offsets(self) -> LostOffsets | None:
        """Offsets below the high watermark whose segments are gone from the end of the log.

        None if no segment is known to be missing: after a crash, records that were never synced
        may be missing, too, and then a read ends at the log end with a warning.
        """
        return self._listed.lost

    @property
    @retry_if_relisted
    def lost_segments(self) -> tuple[LostSegments, ...]:
        """Offsets before a segment whose segments are gone: their indexes are still there.

        Empty if no segment is known to be missing: compaction leaves gaps, too.
        """
        return self._listed.lost_segments

    @property
    @retry_if_relisted
    def segment_gaps(self) -> tuple[OffsetRange, ...]:
        """Offsets between two segments that are in none: compacted away, or lost.

        The end of each segment is read.
        """
        return self._listed.gaps

    @property
    @retry_if_relisted
    def cleaned_to(self) -> int:
        """How far the log was compacted, by ``cleaner-offset-checkpoint``; -1 without an entry."""
        return self._listed.cleaned_to

    @retry_if_relisted
    def open_transactions(
        self,
        read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK,
        on_corrupt_batch: OnCorruptBatch = OnCorruptBatch.FAIL,
        *,
        fail_on_data_loss: bool = True,
    ) -> dict[int, int]:
        """Transactions that have no end marker below `end_offset`: first offsets by producer id.

        Read from the newest producer snapshot and the batch headers after it.  If a transaction
        is open, the checksums of all batches from its beginning on are verified.

        Parameters
        ----------
        read_up_to : end markers beyond that end do not count.
        on_corrupt_batch : ``skip`` leaves out corrupt batches, and logs their offsets.  A
            transaction that begins before one of them, and that has no end marker after it, does
            not count: the corrupt batch may have been its marker.
        fail_on_data_loss : see `end_offset`.

        Raises
        ------
        CorruptLogError, UnsupportedFormatError
            If a batch that is needed for the answer cannot be read.
        """
        from segmentlog.reads.transactions import find_open_transactions  # kernels load here

        end_offset = self.end_offset(read_up_to, fail_on_data_loss=fail_on_data_loss, warns=False)
        policy = one_of("on_corrupt_batch", on_corrupt_batch, OnCorruptBatch)
        skips = policy == OnCorruptBatch.SKIP
        if end_offset > self.end.offset:  # a marker may be in the damage, which the read meets
            return {}
        if (end_offset, skips) not in self._open_transactions:
            found = find_open_transactions(
                self.partition,
                self.untorn_segments,
                self.log_start_offset,
                end_offset,
                skips=skips,
            )
            self._open_transactions[end_offset, skips] = found
        return self._open_transactions[end_offset, skips]

    def last_stable_offset(
        self,
        read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK,
        on_corrupt_batch: OnCorruptBatch = OnCorruptBatch.FAIL,
        *,
        fail_on_data_loss: bool = True,
    ) -> int:
        """Offset below which every transaction is decided (``UnifiedLog.lastStableOffset``)."""
        opened = self.open_transactions(
            read_up_to, on_corrupt_batch, fail_on_data_loss=fail_on_data_loss
        )
        end_offset = self.end_offset(read_up_to, fail_on_data_loss=fail_on_data_loss, warns=False)
        first = min(opened.values(), default=end_offset)
        return max(first, self.log_start_offset)

    @retry_if_relisted
    def producers(self) -> "pa.Table":
        """Idempotent producers, their gaps and repeats: `segmentlog.log.producers` has more."""
        from segmentlog.log.producers import producers_table  # the compiled kernels load here

        return producers_table(self.untorn_segments, self.log_start_offset)

    def offset_for_timestamp(
        self,
        timestamp: Time,
        read_up_to: ReadUpTo | str = ReadUpTo.HIGH_WATERMARK,
        isolation_level: IsolationLevel | str = IsolationLevel.READ_UNCOMMITTED,
        on_corrupt_batch: OnCorruptBatch | str = OnCorruptBatch.FAIL,
        *,
        one_segment: bool = False,
    ) -> TimestampAndOffset | None:
        """Earliest offset whose record has a timestamp at or after `timestamp`.

        Parameters
        ----------
        timestamp : a time, as `scan` takes it.
        read_up_to, isolation_level : records beyond that end are not found.
        on_corrupt_batch : ``skip`` leaves out corrupt batches, and logs their offsets.
        one_segment : whether to answer as a broker, which searches the first segment that holds
            or held a record at or after that time (``UnifiedLog.fetchOffsetByTimestamp``).  It
            finds nothing if DeleteRecords or compaction has removed these records, even if later
            segments hold others.

        Returns
        -------
        TimestampAndOffset or None
            None if every record is older.

        Raises
        ------
        OptionError
            If `timestamp` is not a time.
        CorruptLogError, UnsupportedFormatError
            If a batch that is needed for the answer cannot be read.
        LogChangedError
            If records that existed when the directory was opened are gone.
        """
        return find_offset(
            self,
            epoch_milliseconds("timestamp", timestamp),
            one_of("read_up_to", read_up_to, ReadUpTo),
            one_of("isolation_level", isolation_level, IsolationLevel),
            one_of("on_corrupt_batch", on_corrupt_batch, OnCorruptBatch),
            one_segment=one_segment,
        )

    def newest_timestamp(self, log_slice: LogSlice) -> int | None:
        """An upper bound of the timestamps in a slice, in epoch milliseconds.

        It comes from time indexes and headers.  None if it is not known: a file was
        replaced since the slice was cut, or is damaged.
        """
        try:
            return self._newest_timestamp(log_slice)
        except (CorruptLogError, UnsupportedFormatError):  # the read decides about damage
            return None

    @retry_if_relisted
    def _newest_timestamp(self, log_slice: LogSlice) -> int | None:
        return self._listed.newest_timestamps().of_slice(log_slice)

    def slices(self, start_offset: int, end_offset: int, max_bytes: int = 0) -> list[LogSlice]:
        """Cut ``[start_offset, end_offset)`` into pieces that can be read side by side.

        Parameters
        ----------
        start_offset, end_offset : half-open range; offsets below the log start have no records.
        max_bytes : approximate bound on the bytes of ``.log`` files in a slice; 0 for one slice.

        Raises
        ------
        LogChangedError
            If records of the range are deleted while it is cut.
        LogDirectoryError
            If segments at the end of the range are gone (`lost_offsets`).
        """
        start_offset = whole_number("start_offset", start_offset, LEAST_LONG)
        end_offset = whole_number("end_offset", end_offset, LEAST_LONG)
        max_bytes = whole_number("max_bytes", max_bytes)
        return self._slices(max(start_offset, self.log_start_offset), end_offset, max_bytes)

    @retry_if_relisted
    def _slices(self, start_offset: int, end_offset: int, max_bytes: int) -> list[LogSlice]:
        listed = self._listed
        earliest = listed.log_start_offset
        if start_offset < min(earliest, end_offset):
            reason = f"the log now begins at offset {earliest}"
            raise LogChangedError(self.path, start_offset, min(earliest, end_offset), reason)
        end = listed.log_end_offset
        if end_offset > max(end, start_offset) and listed.lost:
            reason = (
                f"{listed.lost}: put the missing segments back, or read the rest with "
                "failOnDataLoss=false (fail_on_data_loss=False)"
            )
            raise LogDirectoryError(self.path, reason)
        slices = cut_slices(self.topic_partition, listed, start_offset, end_offset, max_bytes)
        return [each._replace(topic_id=self.known_topic_id) for each in slices]

    def end_within(self, start_offset: int, end_offset: int, max_bytes: int) -> int:
        """The end of the first part of ``[start_offset, end_offset)`` that has about `max_bytes`.

        The part has at least one piece that can be read alone, so the end is after the start.  The
        part may be larger than `max_bytes` by the bytes between two index entries.

        Parameters
        ----------
        start_offset, end_offset : half-open range; it is not empty.
        max_bytes : approximate bound on the bytes of ``.log`` files; above 0.

        Raises
        ------
        LogChangedError, LogDirectoryError
            See `slices`.
        """
        left = max_bytes
        for whole in self.slices(start_offset, end_offset):
            for each in cut_by_file(whole):
                if each.n_bytes <= left:
                    left -= each.n_bytes
                    continue
                first = next(iter(self.slices(*each.offsets, max(left, 1))), each)
                if first.n_bytes <= left or each.start_offset == start_offset:
                    return first.end_offset
                return each.start_offset
        return end_offset

    @takes(BoundsOptions)
    def bounds(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        **options: Unpack[BoundsOptions],
    ) -> OffsetRange:
        """The offsets that `scan` reads with the same arguments.

        Parameters
        ----------
        start_offset, end_offset : as `scan` takes them.
        **options : those of `BoundsOptions`.

        Raises
        ------
        OffsetOutOfRangeError
            If either offset is outside the log.
        OptionError
            If a bound is given in two ways, or a value is not a time.
        """
        read_up_to = options["read_up_to"]
        fail_on_data_loss = options["fail_on_data_loss"]
        since_ms, until_ms = in_milliseconds(options["since"], options["until"])
        found = find_bounds(
            self,
            start_offset,
            end_offset,
            since_ms=since_ms,
            until_ms=until_ms,
            last=options["last"],
            read_up_to=read_up_to,
            isolation_level=options["isolation_level"],
            on_corrupt_batch=options["on_corrupt_batch"],
            fail_on_data_loss=fail_on_data_loss,
        )
        lost = None if fail_on_data_loss else self._lost_of(read_up_to)
        if lost and end_offset != found.end_offset == lost.start_offset:
            logger.warning("%s: %s; the remaining records are read", self.path, lost)
        is_from_start = start_offset is None and since_ms is None and options["last"] is None
        begin = -1 if is_from_start else found.start_offset
        for gone in self.lost_segments:
            if begin < gone.end_offset and gone.start_offset < found.end_offset:
                logger.warning("%s: %s; the remaining records are read", self.path, gone)
        return found

    def _lost_of(self, read_up_to: ReadUpTo | str) -> LostOffsets | None:
        return None if read_up_to == ReadUpTo.LOG_END else self.lost_offsets

    @takes(ScanOptions)
    def scan(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        use_threads: bool = True,
        **options: Unpack[ScanOptions],
    ) -> "pa.RecordBatchReader":
        """Records as a stream of Arrow batches, in the order of their offsets.

        Parameters
        ----------
        start_offset, end_offset : half-open; by default the log start, and `Log.end_offset`.
        columns : names of the requested columns, in order; by default all.
        use_threads : whether several threads read ahead if there are more than 16 MiB.  Together
            they hold about 48 MiB of rows, and one batch more for each thread.
        **options : those of `ScanOptions`.

        Raises
        ------
        OffsetOutOfRangeError
            If either offset is outside the log.
        OptionError
            If a column does not exist, the same bound is given in two ways, or a time is not one.
        CorruptLogError, UnsupportedFormatError, LogChangedError, InvalidUtf8Error
            While the stream is read.
        TimestampOverflowError
            While the stream is read, if a timestamp does not fit microseconds in 64 bits.
        LogDirectoryError
            While the stream is read, if segments at the end of the range are gone.
        """
        from segmentlog.format.records.columns import record_schema

        offsets = self.bounds(start_offset, end_offset, **those_of(BoundsOptions, options))
        policy = scan_policy(options)
        names = record_schema(columns, include_headers=options["include_headers"]).names
        return self.scan_offsets(offsets, names, policy, use_threads=use_threads)

    def scan_offsets(
        self,
        offsets: OffsetRange,
        columns: Sequence[str],
        policy: ScanPolicy,
        *,
        use_threads: bool = True,
    ) -> "pa.RecordBatchReader":
        """`scan` for bounds, columns and rules that are known."""
        import pyarrow as pa

        from segmentlog.format.records.columns import record_schema
        from segmentlog.format.records.one_pass import ReadMemory
        from segmentlog.reads.ordered_reads import cut_for_threads, n_threads_of, read_in_order
        from segmentlog.reads.scan import scan_slice  # the compiled kernels load here

        schema = record_schema(
            columns,
            text=policy.text,
            in_milliseconds=policy.in_milliseconds,
            header_names_as_bytes=policy.header_names_as_bytes,
        )

        def batches() -> "Iterator[pa.RecordBatch]":
            slices = (
                cut_for_threads(self.slices, offsets) if use_threads else self.slices(*offsets)
            )
            n_threads = n_threads_of(use_threads=len(slices) > 1)
            with ReadMemory() as memory:
                read = partial(scan_slice, columns=columns, policy=policy, memory=memory)
                yield from read_in_order([partial(read, each) for each in slices], n_threads)

        return pa.RecordBatchReader.from_batches(schema, batches())


def log_start_beyond(log: Log) -> str:
    """That no record of a log is read, as its log start lies beyond its end, in words; or ""."""
    start, end = log.log_start_checkpoint, log.end.offset
    if start <= end or not log.segments:
        return ""
    return (
        f"its log start is {start}, beyond its log end {end}, so that none of its records is "
        "read; segmentlog recover corrects log-start-offset-checkpoint"
    )


@retry_if_relisted
def find_offset(
    log: Log,
    timestamp_ms: int,
    read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    on_corrupt_batch: OnCorruptBatch = OnCorruptBatch.FAIL,
    *,
    one_segment: bool = False,
) -> TimestampAndOffset | None:
    """`Log.offset_for_timestamp` of a time that is known in epoch milliseconds."""
    end_offset = log.end_offset(read_up_to, isolation_level, on_corrupt_batch)
    newest = log._listed.newest_timestamps(skips=on_corrupt_batch == OnCorruptBatch.SKIP)
    return find_offset_by_timestamp(
        newest, timestamp_ms, log.log_start_offset, end_offset, one_segment=one_segment
    )


def in_milliseconds(since: Time | None, until: Time | None) -> tuple[int | None, int | None]:
    """Both times of `Log.bounds`; durations are counted back from one moment."""
    now_ms = time.time_ns() // 1_000_000
    since_ms = None if since is None else epoch_milliseconds("since", since, now_ms)
    return since_ms, None if until is None else epoch_milliseconds("until", until, now_ms)


def find_bounds(
    log: Log,
    start_offset: int | None,
    end_offset: int | None,
    *,
    since_ms: int | None,
    until_ms: int | None,
    last: int | None,
    read_up_to: ReadUpTo | str,
    isolation_level: IsolationLevel | str,
    on_corrupt_batch: OnCorruptBatch | str,
    fail_on_data_loss: bool = True,
) -> OffsetRange:
    """`Log.bounds` for times that are known in epoch milliseconds."""
    isolation_level = one_of("isolation_level", isolation_level, IsolationLevel)
    read_up_to = one_of("read_up_to", read_up_to, ReadUpTo)
    on_corrupt = one_of("on_corrupt_batch", on_corrupt_batch, OnCorruptBatch)
    refuse_two("start_offset", start_offset, "since", since_ms)
    refuse_two("start_offset", start_offset, "last", last)
    refuse_two("end_offset", end_offset, "until", until_ms)
    newest = end = log.end_offset(
        read_up_to, isolation_level, on_corrupt, fail_on_data_loss=fail_on_data_loss
    )
    earliest = start = log.log_start_offset
    most = newest
    if isolation_level == IsolationLevel.READ_UNCOMMITTED:
        most = max(newest, log.log_end_offset)
    lost = None if fail_on_data_loss else log._lost_of(read_up_to)
    if lost:
        most = lost.end_offset
    given: dict[str, int] = {}
    for option, offset in (("start_offset", start_offset), ("end_offset", end_offset)):
        if offset is not None:
            given[option] = whole_number(option, offset, LEAST_LONG)
            if not earliest <= given[option] <= most:
                raise OffsetOutOfRangeError(str(log.topic_partition), offset, earliest, most)

    def find(timestamp_ms: int, otherwise: int) -> int:
        found = find_offset(log, timestamp_ms, read_up_to, isolation_level, on_corrupt)
        return otherwise if found is None else found.offset

    if "end_offset" in given:
        end = given["end_offset"]
    elif until_ms is not None:
        end = find(until_ms, newest)
    if "start_offset" in given:
        start = given["start_offset"]
    elif since_ms is not None:  # a torn tail may hold the record: a read of it reports that
        start = find(since_ms, min(newest, max(log.end.offset, earliest)))
    if last is not None:
        start = max(start, end - whole_number("last", last, 1))
    if lost:
        start, end = min(start, lost.start_offset), min(end, lost.start_offset)
    return OffsetRange(start, end)
