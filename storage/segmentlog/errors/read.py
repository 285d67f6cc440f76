"""Errors of a log that cannot be read as requested; `segmentlog.errors` has the tree."""

from typing import ClassVar

from segmentlog.errors.base import ErrorCode, SegmentLogError


class CorruptLogError(SegmentLogError, ValueError):
    """Bytes of a ``.log`` file that no Kafka version could have written.

    `position`: byte of the file at which the bad batch starts.  `base_offset`: offset that the
    batch claims to start at, or -1 if it is unknown.
    """

    code = ErrorCode.CORRUPT_LOG
    path: str
    position: int
    base_offset: int
    _finding: ClassVar[str] = ""
    _remedy: ClassVar[str] = "restore the file from a replica or a backup"

    @property
    def finding(self) -> str:
        """The fault, without the remedy."""
        where = f"{self.path}: batch at byte {self.position} (base offset {self.base_offset})"
        return where + self._finding.format_map(vars(self))

    def __str__(self) -> str:
        return f"{self.finding}; {self._remedy}"


class ChecksumMismatchError(CorruptLogError):
    """A batch's bytes do not match the checksum stored beside them."""

    code = ErrorCode.CHECKSUM_MISMATCH
    _finding = " has checksum {found:#010x}, but its header contains {expected:#010x}"
    expected: int
    found: int


class MalformedBatchError(CorruptLogError):
    """A batch whose checksum may be right but whose fields contradict each other."""

    code = ErrorCode.MALFORMED_BATCH
    _finding = ": {reason}"
    reason: str


class TruncatedBatchError(CorruptLogError):
    """A batch that claims more bytes than its file has left."""

    code = ErrorCode.TRUNCATED_BATCH
    _finding = " needs {needed} bytes, but the file has {available} left"
    _remedy = f"{CorruptLogError._remedy}, or after a crash run segmentlog recover"
    needed: int
    available: int


class TornTransactionError(CorruptLogError):
    """A batch of a transaction without an end marker, in a part that a broker took as decided."""

    code = ErrorCode.TORN_TRANSACTION
    _finding = (
        " belongs to a transaction of producer {producer_id} that has no end marker in the log: "
        "the transaction was neither committed nor aborted"
    )
    _remedy = "end the read at this offset, or read with isolation level read_uncommitted"
    producer_id: int


class CorruptIndexError(SegmentLogError, ValueError):
    """An index or a snapshot of producers that does not describe its log; readers do without.

    `reason`: what was expected and what was found.
    """

    code = ErrorCode.CORRUPT_INDEX
    path: str
    reason: str
    remedy: str = "segmentlog reindex builds it again from the log"
    _message = "{path}: {reason}; {remedy}"


class CorruptCheckpointError(SegmentLogError, ValueError):
    """A checkpoint or metadata file that cannot be read.

    `line`: number of the offending line, from 1.  `reason`: what was expected and what was found.
    """

    code = ErrorCode.CORRUPT_CHECKPOINT
    path: str
    line: int
    reason: str
    remedy: str
    _message = "{path}, line {line}: {reason}; {remedy}"


class UnsupportedFormatError(SegmentLogError):
    """A record format or codec that this version does not read; the bytes may be fine.

    `position`: byte of the file at which the batch starts.  `what`: ``"magic"`` or ``"codec"``.
    """

    code = ErrorCode.UNSUPPORTED_FORMAT
    path: str
    position: int
    what: str
    found: int

    @property
    def finding(self) -> str:
        """The format or codec that is not read, without the remedy."""
        return f"{self.path}: batch at byte {self.position} has {self.what} {self.found}"

    def __str__(self) -> str:
        return (
            f"{self.finding}, which this version of segmentlog does not read; "
            "upgrade segmentlog, or check that the file is a Kafka log"
        )


class MalformedRecordError(SegmentLogError, ValueError):
    """A record of a topic that Kafka keeps for itself, with bytes that Kafka would not load.

    `path`: the ``.log`` or ``.checkpoint`` file.  `reason`: what was expected and what was found.
    """

    code = ErrorCode.MALFORMED_RECORD
    path: str
    offset: int
    reason: str
    _message = (
        "{path}: the record at offset {offset} is not one that Kafka writes there: {reason}; "
        "restore the file from a replica or a backup, upgrade segmentlog if its Kafka is newer, "
        "or leave such records out with on_corrupt_batch='skip' (in Spark onCorruptBatch=skip)"
    )


class RemoteSegmentError(SegmentLogError, ValueError):
    """An object of a remote tier that is not what its tier or its manifest says, or has no key.

    `reason`: what was expected and what was found; never a key.
    """

    code = ErrorCode.REMOTE_SEGMENT
    path: str
    reason: str
    remedy: str
    _message = "{path}: {reason}; {remedy}"


class LogDirectoryError(SegmentLogError, ValueError):
    """A path that is not the log directory, partition, file or checkpoint that it should be."""

    code = ErrorCode.LOG_DIRECTORY
    path: str
    reason: str
    _message = "{path}: {reason}"


class UnknownTopicOrPartitionError(SegmentLogError, LookupError):
    """A topic, or one partition of it, that the directory does not hold.

    `partition`: the requested partition, or -1 if the whole topic is missing.  `path`: the
    directory or directories that were searched.  `hint`: the nearest existing name, in a sentence,
    or the empty string.
    """

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic: str
    partition: int
    path: str
    hint: str = ""

    def __str__(self) -> str:
        which = f"topic {self.topic!r}"
        if self.partition >= 0:
            which = f"partition {self.partition} of {which}"
        return f"{self.path} holds no {which}" + (f"; {self.hint}" if self.hint else "")


class OffsetOutOfRangeError(SegmentLogError, LookupError):
    """An offset outside ``[log_start_offset, log_end_offset]`` of its partition."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE
    topic_partition: str
    offset: int
    log_start_offset: int
    log_end_offset: int
    _message = (
        "{topic_partition}: offset {offset} is outside the log, which holds [{log_start_offset}, "
        "{log_end_offset}); request an offset in this range, earliest or latest; in Spark, "
        "failOnDataLoss=false reads what exists"
    )


class StreamOffsetError(SegmentLogError, LookupError):
    """An offset in the checkpoint of a streaming query that does not fit the log.

    `topic_partition`: the partition, such as ``orders-0``.  `offset`: the next record to read, by
    the checkpoint.  `log_offset`: the offset of the log that contradicts it, or -1 if the log is
    gone.  `reason`: what happened, and what to do.
    """

    code = ErrorCode.STREAM_OFFSET
    topic_partition: str
    offset: int
    log_offset: int
    reason: str
    _message = "{topic_partition}: the checkpoint of the query stands at offset {offset}, {reason}"


class LogChangedError(SegmentLogError):
    """Planned files were removed or cut during a read; offsets are -1 if no range is known."""

    code = ErrorCode.LOG_CHANGED
    path: str
    next_offset: int
    end_offset: int
    reason: str

    def __str__(self) -> str:
        offsets = f"offsets [{self.next_offset}, {self.end_offset})"
        gone = f"{offsets} existed when the read was planned and are gone; "
        return f"{self.path}: {self.reason}; {gone * (self.end_offset >= 0)}load the path again"


class TimestampOverflowError(SegmentLogError, OverflowError):
    """A record timestamp in milliseconds that does not fit 64-bit microseconds."""

    code = ErrorCode.TIMESTAMP_OVERFLOW
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    _message = (
        "{topic}-{partition}: the record at offset {offset} has timestamp {timestamp_ms} ms, "
        "which does not fit a timestamp in microseconds; its producer probably wrote nanoseconds. "
        'Leave the column timestamp out of the read: in Python with columns=["offset", "value"], '
        'and in Spark with .schema("offset bigint, value binary") before load(), because select() '
        "comes too late. segmentlog cat, grep and dump show every time"
    )


class InvalidUtf8Error(SegmentLogError, ValueError):
    """A key or value that is requested as text, and is not UTF-8."""

    code = ErrorCode.INVALID_UTF8
    topic: str
    partition: int
    offset: int
    column: str
    _message = (
        "{topic}-{partition}: the {column} of the record at offset {offset} is not UTF-8; read "
        "the column as binary, or set onInvalidUtf8 (in Python on_invalid_utf8) to null or replace"
    )
