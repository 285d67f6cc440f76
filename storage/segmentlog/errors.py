"""Every error the engine raises, grouped by what a caller can do about it.

::

    SegmentLogError
    ├─ CorruptLogError (ValueError)    path, position, base_offset   restore the file, or recover
    │   ├─ ChecksumMismatchError       expected, found
    │   ├─ MalformedBatchError         reason
    │   ├─ TruncatedBatchError         needed, available: a torn tail; recovery may cut it
    │   └─ TornTransactionError        producer_id: read up to there, or read_uncommitted
    ├─ CorruptIndexError (ValueError)  path: rebuild it; reads never let it out
    ├─ CorruptCheckpointError (ValueError)  path, line: fix or remove the file
    ├─ UnsupportedFormatError          path, position, what, found: never called "corrupt"
    ├─ LogDirectoryError (ValueError)  path: not a log directory, or the same partition twice
    ├─ UnknownTopicOrPartitionError (LookupError)  topic, partition, path
    ├─ OffsetOutOfRangeError (LookupError)  offset, log_start_offset, log_end_offset
    ├─ LogChangedError                 path: retention or compaction overtook a running read
    ├─ LogLockedError                  path: stop the broker, or wait for the other writer
    ├─ CommitInDoubtError              path, reason: look at it, then write again
    ├─ StagedFileError (ValueError)    path, finding: run the job again
    ├─ SyncFailedError                 path, reason: see to the disk, then write again
    ├─ InvalidRecordError (ValueError)  topic, partition, row, reason: correct the row
    ├─ RecordTooLargeError (ValueError)  topic, partition, row, size, limit
    ├─ OffsetsOutOfOrderError (ValueError)  topic, partition, offset, end_offset: sort the rows
    ├─ StorageError (OSError)          errno, strerror, filename: make room, or be the owner
    ├─ TimestampOverflowError (OverflowError)  topic, partition, offset, timestamp_ms
    └─ OptionError (ValueError)        option, value, accepted: correct the option
        └─ ColumnError                 the same of a column: select or cast it

Constructor arguments are positional and all reach ``Exception.args``, so that an error survives
pickling between a Spark worker and its driver.  Each class has a `code` of `ErrorCode`, which
stays when classes are renamed or split.  `StorageError`, and those that only writers raise, are in
`segmentlog.write_errors`.  The module is the bottom floor: it imports nothing of the others.
"""

from enum import StrEnum
from typing import ClassVar

__all__ = [
    "ChecksumMismatchError",
    "ColumnError",
    "CorruptCheckpointError",
    "CorruptIndexError",
    "CorruptLogError",
    "ErrorCode",
    "LogChangedError",
    "LogDirectoryError",
    "MalformedBatchError",
    "OffsetOutOfRangeError",
    "OptionError",
    "SegmentLogError",
    "TimestampOverflowError",
    "TornTransactionError",
    "TruncatedBatchError",
    "UnknownTopicOrPartitionError",
    "UnsupportedFormatError",
]


class ErrorCode(StrEnum):
    """What an error is, for programs and alerts: members are added, never changed or removed."""

    SEGMENT_LOG = "SEGMENT_LOG"
    CORRUPT_LOG = "CORRUPT_LOG"
    CHECKSUM_MISMATCH = "CHECKSUM_MISMATCH"
    MALFORMED_BATCH = "MALFORMED_BATCH"
    TRUNCATED_BATCH = "TRUNCATED_BATCH"
    TORN_TRANSACTION = "TORN_TRANSACTION"
    CORRUPT_INDEX = "CORRUPT_INDEX"
    CORRUPT_CHECKPOINT = "CORRUPT_CHECKPOINT"
    UNSUPPORTED_FORMAT = "UNSUPPORTED_FORMAT"
    LOG_DIRECTORY = "LOG_DIRECTORY"
    UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    LOG_CHANGED = "LOG_CHANGED"
    TIMESTAMP_OVERFLOW = "TIMESTAMP_OVERFLOW"
    OPTION = "OPTION"
    LOG_LOCKED = "LOG_LOCKED"
    COMMIT_IN_DOUBT = "COMMIT_IN_DOUBT"
    INVALID_RECORD = "INVALID_RECORD"
    RECORD_TOO_LARGE = "RECORD_TOO_LARGE"
    SYNC_FAILED = "SYNC_FAILED"
    OFFSETS_OUT_OF_ORDER = "OFFSETS_OUT_OF_ORDER"
    STAGED_FILE = "STAGED_FILE"
    COLUMN = "COLUMN"
    STORAGE = "STORAGE"


class SegmentLogError(Exception):
    """Anything that segmentlog refuses or finds wrong; catch this to catch all of it."""

    code: ClassVar[ErrorCode] = ErrorCode.SEGMENT_LOG


class CorruptLogError(SegmentLogError, ValueError):
    """Bytes of a ``.log`` file that no Kafka version could have written.

    Parameters
    ----------
    path : the file.
    position : byte of the file at which the bad batch starts.
    base_offset : offset that the batch claims to start at, or -1 when it cannot be told.
    """

    code = ErrorCode.CORRUPT_LOG

    def __init__(self, path: str, position: int, base_offset: int, *details: object) -> None:
        super().__init__(path, position, base_offset, *details)
        self.path = path
        self.position = position
        self.base_offset = base_offset

    @property
    def finding(self) -> str:
        """What is wrong, without what to do about it in a log."""
        return self._where()

    def _where(self) -> str:
        """File, byte and offset, as every message of this branch begins."""
        return f"{self.path}: batch at byte {self.position} (base offset {self.base_offset})"


class ChecksumMismatchError(CorruptLogError):
    """A batch's bytes do not match the checksum stored beside them."""

    code = ErrorCode.CHECKSUM_MISMATCH

    def __init__(
        self, path: str, position: int, base_offset: int, expected: int, found: int
    ) -> None:
        super().__init__(path, position, base_offset, expected, found)
        self.expected = expected
        self.found = found

    @property
    def finding(self) -> str:
        """What is wrong."""
        found, expected = f"{self.found:#010x}", f"{self.expected:#010x}"
        return f"{self._where()} has checksum {found}, its header says {expected}"

    def __str__(self) -> str:
        return f"{self.finding}; restore the file from a replica or a backup"


class MalformedBatchError(CorruptLogError):
    """A batch whose checksum may be right but whose fields contradict each other."""

    code = ErrorCode.MALFORMED_BATCH

    def __init__(self, path: str, position: int, base_offset: int, reason: str) -> None:
        super().__init__(path, position, base_offset, reason)
        self.reason = reason

    @property
    def finding(self) -> str:
        """What is wrong."""
        return f"{self._where()}: {self.reason}"

    def __str__(self) -> str:
        return f"{self.finding}; restore the file from a replica or a backup"


class TruncatedBatchError(CorruptLogError):
    """A batch that claims more bytes than its file has left."""

    code = ErrorCode.TRUNCATED_BATCH

    def __init__(
        self, path: str, position: int, base_offset: int, needed: int, available: int
    ) -> None:
        super().__init__(path, position, base_offset, needed, available)
        self.needed = needed
        self.available = available

    @property
    def finding(self) -> str:
        """What is wrong."""
        return f"{self._where()} needs {self.needed} bytes, the file has {self.available} left"

    def __str__(self) -> str:
        remedy = "restore the file from a replica or a backup, or after a crash run "
        return f"{self.finding}; {remedy}segmentlog recover"


class TornTransactionError(CorruptLogError):
    """A batch of a transaction that was never ended, among what a broker took for decided."""

    code = ErrorCode.TORN_TRANSACTION

    def __init__(self, path: str, position: int, base_offset: int, producer_id: int) -> None:
        super().__init__(path, position, base_offset, producer_id)
        self.producer_id = producer_id

    def __str__(self) -> str:
        return (
            f"{self._where()} belongs to a transaction of producer {self.producer_id} that has no "
            "end marker in the log, so it was neither committed nor aborted; end the read at that "
            "offset, or read with isolation level read_uncommitted"
        )


class CorruptIndexError(SegmentLogError, ValueError):
    """An index file that does not describe its log; readers notice it and scan instead."""

    code = ErrorCode.CORRUPT_INDEX

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; segmentlog reindex builds it again from the log"


class CorruptCheckpointError(SegmentLogError, ValueError):
    """A checkpoint or metadata file that cannot be read.

    Parameters
    ----------
    path : the file.
    line : number of the offending line, from 1.
    reason : what was expected and what was found.
    remedy : what to do about it.
    """

    code = ErrorCode.CORRUPT_CHECKPOINT

    def __init__(self, path: str, line: int, reason: str, remedy: str) -> None:
        super().__init__(path, line, reason, remedy)
        self.path = path
        self.line = line
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.reason}; {self.remedy}"


class UnsupportedFormatError(SegmentLogError):
    """A record format or codec that this version does not read; the bytes may be fine.

    Parameters
    ----------
    path : the file.
    position : byte of the file at which the batch starts.
    what : ``"magic"`` or ``"codec"``.
    found : the number in the batch.
    """

    code = ErrorCode.UNSUPPORTED_FORMAT

    def __init__(self, path: str, position: int, what: str, found: int) -> None:
        super().__init__(path, position, what, found)
        self.path = path
        self.position = position
        self.what = what
        self.found = found

    @property
    def finding(self) -> str:
        """What is not read, without what to do about it in a log."""
        return f"{self.path}: batch at byte {self.position} has {self.what} {self.found}"

    def __str__(self) -> str:
        return (
            f"{self.finding}, which this version of segmentlog does not read; "
            "upgrade segmentlog, or check that the file is a Kafka log"
        )


class LogDirectoryError(SegmentLogError, ValueError):
    """A path that is not what a log directory, partition directory or log file should be."""

    code = ErrorCode.LOG_DIRECTORY

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class UnknownTopicOrPartitionError(SegmentLogError, LookupError):
    """A topic, or one partition of it, that the directory does not hold.

    Parameters
    ----------
    topic : the topic asked for.
    partition : the partition asked for, or -1 when the whole topic is missing.
    path : the directory or directories looked in.
    hint : the nearest name there is, as a sentence, or the empty string.
    """

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def __init__(self, topic: str, partition: int, path: str, hint: str = "") -> None:
        super().__init__(topic, partition, path, hint)
        self.topic = topic
        self.partition = partition
        self.path = path
        self.hint = hint

    def __str__(self) -> str:
        which = f"topic {self.topic!r}"
        if self.partition >= 0:
            which = f"partition {self.partition} of {which}"
        return f"{self.path} holds no {which}" + (f"; {self.hint}" if self.hint else "")


class OffsetOutOfRangeError(SegmentLogError, LookupError):
    """An offset outside ``[log_start_offset, log_end_offset]`` of its partition."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(
        self,
        topic_partition: str,
        offset: int,
        log_start_offset: int,
        log_end_offset: int,
    ) -> None:
        super().__init__(topic_partition, offset, log_start_offset, log_end_offset)
        self.topic_partition = topic_partition
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset

    def __str__(self) -> str:
        return (
            f"{self.topic_partition}: offset {self.offset} is outside the log, which holds "
            f"[{self.log_start_offset}, {self.log_end_offset}); ask for an offset in that range, "
            "earliest or latest; in Spark, failOnDataLoss=false reads what is there"
        )


class LogChangedError(SegmentLogError):
    """Files that a read had planned on were removed or cut while it ran; -1: no range is known."""

    code = ErrorCode.LOG_CHANGED

    def __init__(self, path: str, next_offset: int, end_offset: int, reason: str) -> None:
        super().__init__(path, next_offset, end_offset, reason)
        self.path = path
        self.next_offset = next_offset
        self.end_offset = end_offset
        self.reason = reason

    def __str__(self) -> str:
        offsets = f"offsets [{self.next_offset}, {self.end_offset})"
        gone = f"{offsets} were promised when the read was planned and are gone; "
        return f"{self.path}: {self.reason}; {gone * (self.end_offset >= 0)}load the path again"


class TimestampOverflowError(SegmentLogError, OverflowError):
    """A record timestamp in milliseconds that does not fit 64-bit microseconds."""

    code = ErrorCode.TIMESTAMP_OVERFLOW

    def __init__(self, topic: str, partition: int, offset: int, timestamp_ms: int) -> None:
        super().__init__(topic, partition, offset, timestamp_ms)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: the record at offset {self.offset} has timestamp "
            f"{self.timestamp_ms} ms, which does not fit a timestamp in microseconds; its "
            "producer probably wrote nanoseconds. Read without the timestamp column, "
            "or skip that offset"
        )


class OptionError(SegmentLogError, ValueError):
    """An option with a value that is not accepted, or a name that does not exist."""

    code = ErrorCode.OPTION

    def __init__(self, option: str, value: str, accepted: str) -> None:
        super().__init__(option, value, accepted)
        self.option = option
        self.value = value
        self.accepted = accepted

    def __str__(self) -> str:
        found = repr(self.value) if self.value else "empty or not given"
        return f"option {self.option!r} is {found}; {self.accepted}"


class ColumnError(OptionError):
    """A column that is missing or has another type; `option` is its name, `value` what it is."""

    code = ErrorCode.COLUMN

    def __str__(self) -> str:
        return f"column {self.option!r} is {self.value}; {self.accepted}"
