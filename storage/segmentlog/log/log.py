"""One topic-partition on disk: its segments, its offsets, and reads of it."""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from segmentlog.errors import OffsetOutOfRangeError
from segmentlog.files.metadata import read_topic_id
from segmentlog.log.listing import list_segments, lone_segment
from segmentlog.log.lookup import NewestTimestamps, find_offset_by_timestamp
from segmentlog.log.plan import cut_slices
from segmentlog.log.segment import Segment
from segmentlog.log.tail import LogEnd, find_log_end
from segmentlog.model import (
    MAX_INFLATED_BATCH_BYTES,
    IsolationLevel,
    LogSlice,
    OnCorruptBatch,
    ReadUpTo,
    ScanPolicy,
    TimestampAndOffset,
    TopicPartition,
)

__all__ = ["Log"]

logger = logging.getLogger(__name__)


class Log:
    """One topic-partition, as it stood when it was first looked at.

    Cheap to make: the disk is read when a property is first asked for, and then no more.  Made by
    `segmentlog.LogDirectory.log`.

    Parameters
    ----------
    topic_partition : whose log this is.
    path : the partition directory, or one ``.log`` file of it.
    is_clean : whether the log directory was cleanly shut down, so that index files are at rest.
    log_start_checkpoint : the partition's entry in ``log-start-offset-checkpoint``, or 0.
    high_watermark_checkpoint : its entry in ``replication-offset-checkpoint``, or None.
    unfinished_end : where reads end because a commit behind it is unfinished, or None.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        path: str,
        *,
        is_clean: bool = False,
        log_start_checkpoint: int = 0,
        high_watermark_checkpoint: int | None = None,
        unfinished_end: int | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.path = path
        self._is_clean = is_clean
        self._log_start_checkpoint = log_start_checkpoint
        self.high_watermark_checkpoint = high_watermark_checkpoint
        self._unfinished_end = unfinished_end
        self._open_transactions: dict[int, dict[int, int]] = {}

    def __repr__(self) -> str:
        return f"Log({str(self.topic_partition)!r}, {self.path!r})"

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Segments in the order of their base offsets; the last one is the active segment."""
        path = Path(self.path)
        files = list_segments(str(path.parent if path.is_file() else path))
        if path.is_file():
            files = tuple(file for file in files if file.path == self.path) or (
                lone_segment(self.path),
            )
            return tuple(Segment(file, is_sealed=False) for file in files)
        closed = [Segment(file, is_sealed=self._is_clean, is_active=False) for file in files[:-1]]
        return (*closed, *(Segment(file, is_sealed=False) for file in files[-1:]))

    @property
    def topic_id(self) -> str | None:
        """Topic id from ``partition.metadata``, as Kafka prints it; None without that file."""
        path = Path(self.path)
        return read_topic_id(str(path.parent if path.is_file() else path))

    @property
    def size_bytes(self) -> int:
        """Bytes of all ``.log`` files."""
        return sum(segment.size for segment in self.segments)

    @cached_property
    def tail(self) -> LogEnd:
        """Where the last segment ends."""
        if not self.segments:
            return LogEnd(self._log_start_checkpoint, 0)
        return find_log_end(self.segments[-1])

    @property
    def log_start_offset(self) -> int:
        """First offset that a reader may see: retention and DeleteRecords move it up."""
        first = self.segments[0].base_offset if self.segments else 0
        return max(self._log_start_checkpoint, first)

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get; a torn tail does not count."""
        return max(self.tail.offset, self.log_start_offset)

    @property
    def high_watermark(self) -> int | None:
        """Offset up to which records are replicated, by the checkpoint beside the partition.

        None when the checkpoint has no entry.  A running broker writes it every five seconds.
        """
        checkpoint = self.high_watermark_checkpoint
        if checkpoint is None:
            return None
        return min(max(checkpoint, self.log_start_offset), self.log_end_offset)

    def end_offset(
        self,
        read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> int:
        """Where a read of the newest data ends: the high watermark if known, or the log end.

        Of committed data it is the last stable offset there.

        Behind `log_end_offset` when a torn tail was promised by a high watermark behind it.  A
        read up to there reports the damage; it does not quietly end before it.  Who asks for the
        log end takes a torn tail as it is.
        """
        if isolation_level == IsolationLevel.READ_COMMITTED:
            return self.last_stable_offset(read_up_to)
        promised = self.high_watermark_checkpoint
        if promised is not None and promised > self.tail.offset and self.segments:
            is_torn = self.segments[-1].size > self.tail.position
            if is_torn and read_up_to == ReadUpTo.HIGH_WATERMARK:
                return promised
            if not Path(self.path).is_file():  # one segment alone need not reach to the end
                logger.warning(
                    "%s: the high watermark is %d, but the log ends at %d; reading to the log end",
                    self.path, promised, self.log_end_offset,
                )  # fmt: skip
        high_watermark = self.high_watermark
        if high_watermark is None or read_up_to == ReadUpTo.LOG_END:
            end = self.log_end_offset
            return end if self._unfinished_end is None else min(end, self._unfinished_end)
        return high_watermark

    def open_transactions(self, read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK) -> dict[int, int]:
        """Transactions that have no end marker below `end_offset`: first offsets by producer id.

        Read from the newest producer snapshot and the batch headers behind it.

        Raises
        ------
        CorruptLogError, UnsupportedFormatError
            If a header that has to be read cannot be true.
        """
        from segmentlog.log.transactions import find_open_transactions  # kernels load here

        end_offset = self.end_offset(read_up_to)
        if end_offset not in self._open_transactions:
            path = Path(self.path)
            directory = str(path.parent if path.is_file() else path)
            found = find_open_transactions(directory, self.segments, end_offset)
            self._open_transactions[end_offset] = found
        return self._open_transactions[end_offset]

    def last_stable_offset(self, read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK) -> int:
        """Offset below which every transaction is decided (``UnifiedLog.lastStableOffset``)."""
        opened = self.open_transactions(read_up_to).values()
        first = min(opened, default=self.end_offset(read_up_to))
        return max(first, self.log_start_offset)

    def offset_for_timestamp(
        self,
        timestamp_ms: int,
        read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> TimestampAndOffset | None:
        """Earliest offset whose record has a timestamp at or after `timestamp_ms`.

        Parameters
        ----------
        timestamp_ms : epoch milliseconds.
        read_up_to, isolation_level : records beyond that end are not found.

        Returns
        -------
        TimestampAndOffset or None
            None when no record is as new.

        Raises
        ------
        CorruptLogError, UnsupportedFormatError
            If a batch that has to be looked at cannot be read.
        """
        end_offset = self.end_offset(read_up_to, isolation_level)
        return find_offset_by_timestamp(
            self._newest_timestamps, timestamp_ms, self.log_start_offset, end_offset
        )

    @cached_property
    def _newest_timestamps(self) -> NewestTimestamps:
        bases = [segment.base_offset for segment in self.segments]
        first = max(bisect_right(bases, self.log_start_offset) - 1, 0)
        return NewestTimestamps(self.segments[first:])

    def slices(self, start_offset: int, end_offset: int, max_bytes: int = 0) -> list[LogSlice]:
        """Cut ``[start_offset, end_offset)`` into pieces that can be read side by side.

        Parameters
        ----------
        start_offset, end_offset : half-open; offsets below the log start hold nothing.
        max_bytes : about the most bytes of ``.log`` files in one slice; 0 for one slice.
        """
        start_offset = max(start_offset, self.log_start_offset)
        return cut_slices(
            self.topic_partition, self.segments, self.tail, start_offset, end_offset, max_bytes
        )

    def scan(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        include_headers: bool = False,
        read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK,
        isolation_level: IsolationLevel | str = IsolationLevel.READ_UNCOMMITTED,
        on_corrupt_batch: OnCorruptBatch | str = OnCorruptBatch.FAIL,
        max_inflated_batch_bytes: int = MAX_INFLATED_BATCH_BYTES,
    ) -> pa.RecordBatchReader:
        """Records as a stream of Arrow batches, in the order of their offsets.

        Parameters
        ----------
        start_offset : by default the log start.
        end_offset : exclusive; by default what `end_offset` says for `read_up_to`.
        columns : names of the columns wanted, in order; by default all.
        include_headers : whether "all" includes ``headers``.
        read_up_to : where the newest data ends.
        isolation_level : ``read_committed`` leaves out what transactions aborted, and ends at the
            last stable offset.
        on_corrupt_batch : ``skip`` goes on behind batches that are corrupt, and logs their
            offsets.
        max_inflated_batch_bytes : a compressed batch that inflates to more is corrupt.

        Raises
        ------
        OffsetOutOfRangeError
            If either offset is outside the log.
        OptionError
            If a column does not exist.
        CorruptLogError, UnsupportedFormatError, LogChangedError
            While the stream is read.
        """
        from segmentlog.log.scan import scan_slice  # the compiled kernels load here
        from segmentlog.records.columns import record_schema

        isolation_level = IsolationLevel(isolation_level)
        start = self.log_start_offset if start_offset is None else start_offset
        newest = self.end_offset(read_up_to, isolation_level)
        last = newest
        if isolation_level == IsolationLevel.READ_UNCOMMITTED:
            last = max(newest, self.log_end_offset)
        end = newest if end_offset is None else end_offset
        for offset in (start, end):
            if not self.log_start_offset <= offset <= last:
                raise OffsetOutOfRangeError(
                    str(self.topic_partition), offset, self.log_start_offset, last
                )
        schema = record_schema(columns, include_headers=include_headers)
        policy = ScanPolicy(
            isolation_level, OnCorruptBatch(on_corrupt_batch), max_inflated_batch_bytes
        )

        def batches() -> Iterator[pa.RecordBatch]:
            for log_slice in self.slices(start, end):
                yield from scan_slice(log_slice, columns=schema.names, policy=policy)

        return pa.RecordBatchReader.from_batches(schema, batches())
