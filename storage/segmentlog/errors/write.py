"""Errors that only writers raise; `segmentlog.errors` has the tree."""

import dataclasses
from typing import Self

from segmentlog.errors.base import ErrorCode, SegmentLogError


class LogLockedError(SegmentLogError):
    """A broker or another writer holds the log directory.

    `process`: id of the process that holds the lock, or 0 if it is unknown.  `waited_seconds`:
    time spent waiting for the lock.  `is_task`: whether a task of a compaction holds it, whose
    driver has ended.
    """

    code = ErrorCode.LOG_LOCKED
    path: str
    process: int
    waited_seconds: float
    is_task: bool = False

    def __str__(self) -> str:
        who = f"process {self.process}" if self.process else "another process"
        after = f", still after {self.waited_seconds:g} s" if self.waited_seconds else ""
        if self.is_task:
            return (
                f"{self.path} is in use: a task of a compaction, whose driver has ended, is still "
                f"running{after}; it will end soon: try again"
            )
        return (
            f"{self.path} is in use: {who} holds its lock{after}; "
            "stop the broker, or wait for the other writer: lock_timeout_seconds (in Spark "
            "lockTimeout) is the time to wait"
        )


class _FailedWriteError(SegmentLogError):
    """A failure of the disk during a write: `path` is its place, `reason` the system's message."""

    path: str
    reason: str


class CommitInDoubtError(_FailedWriteError):
    """A commit whose decision may or may not be on the disk; its guard remains.

    `path`: the guard, which keeps brokers from starting; in a store, the object of the commit.
    """

    code = ErrorCode.COMMIT_IN_DOUBT

    def __str__(self) -> str:
        if "://" in self.path:
            return (
                f"{self.path}: it is not known whether this commit took place, or will: "
                f"{self.reason}; check the network and the store; a batch of a streaming query or "
                "a numbered write (txnAppId) may simply be repeated, other rows only if they are "
                "not in the log"
            )
        return (
            f"{self.path}: it is not known whether this commit took place: {self.reason}; check "
            "the disk, then write again: the next writer first finishes or undoes this commit"
        )


class StagedFileError(SegmentLogError, ValueError):
    """Staged batches that differ from the batches that a task of the job wrote."""

    code = ErrorCode.STAGED_FILE
    path: str
    finding: str

    def __str__(self) -> str:
        return (
            f"{self.finding}: the file differs from what the task has staged; nothing of this job "
            "is visible; check the disk, then run the job again"
        )


class SyncFailedError(_FailedWriteError):
    """The disk could not keep the written bytes; a second sync would not report this again.

    `reason`: the system's message.
    """

    code = ErrorCode.SYNC_FAILED
    _message = (
        "{path}: could not be synced: {reason}; nothing of this write is visible: check the disk, "
        "then write again"
    )


class _RowError(SegmentLogError, ValueError):
    """A row that is not written; `row` counts from 0 in the rows that a task has taken.

    In plain Python, it counts in the rows that a writer has taken since its last flush.
    """

    topic: str
    partition: int
    row: int

    def at_row(self, row: int) -> Self:
        """Return the error with another row number, if `row` was counted in a part of the rows."""
        return dataclasses.replace(self, row=row)


class InvalidRecordError(_RowError):
    """A row that cannot be a record; `partition` is -1 before a partition is chosen for it."""

    code = ErrorCode.INVALID_RECORD
    reason: str

    def __str__(self) -> str:
        where = self.topic if self.partition < 0 else f"{self.topic}-{self.partition}"
        prefix = f"{where}: " if where else ""
        return f"{prefix}row {self.row} of the task cannot be written: {self.reason}"


class RecordTooLargeError(_RowError):
    """A row whose batch exceeds the limit: `size` bytes without any other record."""

    code = ErrorCode.RECORD_TOO_LARGE
    size: int
    limit: int
    _message = (
        "{topic}-{partition}: row {row} of the task takes {size} bytes as a record batch, but the "
        "limit is {limit}: the least of max.message.bytes, segment.bytes and "
        "kafka.max.request.size; raise that setting, or make the row smaller"
    )


class OffsetsOutOfOrderError(SegmentLogError, ValueError):
    """A record that cannot keep its offset, because the next free offset is `end_offset`."""

    code = ErrorCode.OFFSETS_OUT_OF_ORDER
    topic: str
    partition: int
    offset: int
    end_offset: int

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: offset {self.offset} cannot be written after offset "
            f"{self.end_offset - 1}: offsets must increase within a partition, in the log and in "
            "the rows; leave out rows that the log already contains, and sort the remaining "
            'rows: repartition("topic", "partition").sortWithinPartitions("topic", "partition", '
            '"offset")'
        )


class SplitKeyError(SegmentLogError, ValueError):
    """Keys that stand in several partitions of a topic, and so have no order of their own.

    `n_keys`: number of these keys.  `examples`: where some of them stand, in words.
    """

    code = ErrorCode.SPLIT_KEY
    topic: str
    n_keys: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        keys = "1 key stands" if self.n_keys == 1 else f"{self.n_keys:,} keys stand"
        such = f", such as one at {'; one at '.join(self.examples)}" if self.examples else ""
        return (
            f"{self.topic}: {keys} in several partitions{such}: the records of such a key have no "
            "order, because partitions were added, or the producers chose partitions in another "
            "way; order='timestamp' (--order timestamp) orders them by time; without "
            "num_partitions (--partitions), all records keep their partitions"
        )


class StreamBatchError(SegmentLogError, ValueError):
    """A batch of a streaming query that does not follow the last batch that the log has of it.

    `number`, `n_records`: the batch, and its records; nothing of it is written.  `last_number`,
    `last_n_records`, `last_run`: the batch that was committed last, and by which run.
    """

    code = ErrorCode.STREAM_BATCH
    query: str
    number: int
    n_records: int
    last_number: int
    last_n_records: int
    last_run: str
    _message = (
        "batch {number} of query {query} has {n_records} records and is not written, because "
        "batch {last_number} was committed last, with {last_n_records}, by run {last_run}: the "
        "checkpoint is older than the log, or the source has not repeated the same rows; restore "
        "the checkpoint as it was after batch {last_number}, or start the query with a new "
        "checkpointLocation at the first offset that the log lacks"
    )


#: The beginning of the messages about a producer.
_PRODUCER = (
    "{topic}-{partition}: producer {producer_id} with epoch {producer_epoch} sends sequence "
    "{found}"
)


class _ProducerError(SegmentLogError, ValueError):
    """A batch that a leader refuses because of its producer; nothing of its flush is written."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    found: int  #: the sequence of its first record


class OutOfOrderSequenceError(_ProducerError):
    """A gap in a producer's sequences, or an old batch that the log lacks or has otherwise."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE
    expected: int  #: the sequence of the record that may come next
    _message = _PRODUCER + (
        ", but {expected} is next: send the records in between first, or repeat a batch with the "
        "same records and settings; to append to the log, open a writer without base_sequence, or "
        "with the next epoch and base_sequence 0"
    )


class InvalidProducerEpochError(_ProducerError):
    """A producer that another producer with its id and a higher epoch has fenced."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH
    expected: int  #: the epoch in the log
    _message = _PRODUCER + (
        ", but the log has epoch {expected}: another writer has taken over; stop this writer, or "
    )

    def __str__(self) -> str:
        remedy = f"take epoch {self.expected + 1} and base_sequence 0 to fence the other writer"
        if self.expected == 2**15 - 1:  # the largest
            remedy = "take another producer id"
        return super().__str__() + remedy


class InvalidTxnStateError(_ProducerError):
    """A batch outside the open transaction of its producer."""

    code = ErrorCode.INVALID_TXN_STATE
    first_offset: int  #: the offset at which the transaction begins
    _message = _PRODUCER + (
        " outside its transaction, which is open since offset {first_offset}: end the transaction "
        "with a broker first, or take another producer id"
    )
