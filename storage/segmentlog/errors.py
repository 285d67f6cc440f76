"""Every error the engine raises, grouped by what a caller can do about it.

::

    SegmentLogError
    ├─ CorruptLogError (ValueError)
    │   ├─ ChecksumMismatchError
    │   ├─ MalformedBatchError
    │   ├─ TruncatedBatchError
    │   └─ TornTransactionError
    ├─ CorruptIndexError, CorruptCheckpointError, MalformedRecordError (ValueError)
    ├─ RemoteSegmentError, LogDirectoryError, StagedFileError (ValueError)
    ├─ UnsupportedFormatError, LogChangedError
    ├─ UnknownTopicOrPartitionError, OffsetOutOfRangeError, StreamOffsetError (LookupError)
    ├─ LogLockedError, CommitInDoubtError, SyncFailedError
    ├─ InvalidRecordError, RecordTooLargeError, OffsetsOutOfOrderError (ValueError)
    ├─ OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTxnStateError (ValueError)
    ├─ SplitKeyError, StreamBatchError, InvalidUtf8Error, UndecodableValueError (ValueError)
    ├─ TimestampOverflowError (OverflowError)
    ├─ StorageError (OSError)
    ├─ KernelsError (ImportError)
    └─ OptionError (ValueError)
        ├─ ArgumentError (TypeError)
        └─ ColumnError

Constructor arguments are positional and all reach ``Exception.args``, so that an error survives
pickling between a Spark worker and its driver.  Each class has a `code` of `ErrorCode`, which
never changes, even when classes are renamed or split.  Only `masking` is below this module.
"""

import dataclasses
import errno as codes
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Any, ClassVar, Self, TypeAlias, dataclass_transform

from segmentlog.masking import masked, with_plain_buckets

__all__ = [
    "ArgumentError",
    "ChecksumMismatchError",
    "ColumnError",
    "CommitInDoubtError",
    "CorruptCheckpointError",
    "CorruptIndexError",
    "CorruptLogError",
    "ErrorCode",
    "InvalidProducerEpochError",
    "InvalidRecordError",
    "InvalidTxnStateError",
    "InvalidUtf8Error",
    "KernelsError",
    "LogChangedError",
    "LogDirectoryError",
    "LogLockedError",
    "MalformedBatchError",
    "MalformedRecordError",
    "OffsetOutOfRangeError",
    "OffsetsOutOfOrderError",
    "OptionError",
    "OutOfOrderSequenceError",
    "RecordTooLargeError",
    "RemoteSegmentError",
    "SegmentLogError",
    "SplitKeyError",
    "StagedFileError",
    "StorageError",
    "StreamBatchError",
    "StreamOffsetError",
    "SyncFailedError",
    "TimestampOverflowError",
    "TornTransactionError",
    "TruncatedBatchError",
    "UndecodableValueError",
    "UnknownTopicOrPartitionError",
    "UnsupportedFormatError",
]


class ErrorCode(StrEnum):
    """Kinds of errors, for programs and alerts: members are added, never changed or removed."""

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
    INVALID_UTF8 = "INVALID_UTF8"
    OUT_OF_ORDER_SEQUENCE = "OUT_OF_ORDER_SEQUENCE"
    INVALID_PRODUCER_EPOCH = "INVALID_PRODUCER_EPOCH"
    INVALID_TXN_STATE = "INVALID_TXN_STATE"
    STREAM_BATCH = "STREAM_BATCH"
    STREAM_OFFSET = "STREAM_OFFSET"
    MALFORMED_RECORD = "MALFORMED_RECORD"
    REMOTE_SEGMENT = "REMOTE_SEGMENT"
    KERNELS = "KERNELS"
    ARGUMENT = "ARGUMENT"
    SPLIT_KEY = "SPLIT_KEY"
    UNDECODABLE_VALUE = "UNDECODABLE_VALUE"


@dataclass_transform(eq_default=False)
class SegmentLogError(Exception):
    """Base of all errors of segmentlog; the annotations of a subclass are its arguments."""

    code: ClassVar[ErrorCode] = ErrorCode.SEGMENT_LOG
    _message: ClassVar[str] = ""  # with the names of the arguments in braces

    def __init_subclass__(cls) -> None:
        if "__init__" not in vars(cls):
            setattr(cls, "__init__", _init_first)  # noqa: B010 - as mypy would not have it

    def __post_init__(self) -> None:
        # Pickles and copies of an error are made from `args`.
        self.args = tuple(getattr(self, each.name) for each in dataclasses.fields(self))  # type: ignore[arg-type]

    def __str__(self) -> str:
        # Paths of logs in object stores hold options, and what a user knows is the URL.
        return with_plain_buckets(self._text())

    def _text(self) -> str:
        return self._message.format_map(vars(self)) if self._message else super().__str__()


_making = threading.RLock()


def _init_first(error: SegmentLogError, *given: object, **named: object) -> None:
    """``__init__`` of a class until its first error: makes dataclasses of it and of its bases.

    To do this for all classes takes 12 ms of each process, most of which raise no error.
    """
    with _making:
        for each in reversed(type(error).__mro__):
            if vars(each).get("__init__") is _init_first:
                _take_init(each)
    type(error).__init__(error, *given, **named)


def _take_init(kind: type) -> None:
    """Give a class the ``__init__`` of a dataclass with its fields, in one step.

    Another thread may be making an error of it: a class that lost its ``__init__`` for a moment
    would give it that of its bases, and so no fields.
    """
    fields: dict[str, object] = {}
    for each in reversed(kind.__mro__):
        if issubclass(each, SegmentLogError):
            fields |= vars(each).get("__annotations__", {})
    held: dict[str, object] = {name: getattr(kind, name) for name in fields if hasattr(kind, name)}
    held |= {"__annotations__": fields, "__module__": kind.__module__}
    held["__post_init__"] = SegmentLogError.__post_init__  # each error calls that of its class
    made: Any = dataclasses.dataclass(eq=False, repr=False)(type(kind.__name__, (), held))
    setattr(kind, "__dataclass_fields__", made.__dataclass_fields__)  # noqa: B010 - for mypy
    setattr(kind, "__init__", made.__init__)  # noqa: B010 - for mypy


class KernelsError(SegmentLogError, ImportError):
    """The compiled kernels are missing, or were made from other sources."""

    code = ErrorCode.KERNELS
    reason: str


class OptionError(SegmentLogError, ValueError):
    """An option with a value that is not accepted, or a name that does not exist.

    Nothing was written: correct the option, as `accepted` says.
    """

    code = ErrorCode.OPTION
    #: whether `option` is a name that does not exist, as the user has given it
    is_unknown = False
    option: str
    value: str
    accepted: str

    def __post_init__(self) -> None:
        if isinstance(self.value, str):  # a caller without types may have given anything
            # a URL with a password, or a client's setting
            self.value = masked(self.option, self.value) or ""
        super().__post_init__()

    def _text(self) -> str:
        found = repr(self.value) if self.value else "empty or not given"
        return f"option {self.option!r} is {found}; {self.accepted}"


class ArgumentError(OptionError, TypeError):
    """A keyword that a function does not take; `option` is its name."""

    code = ErrorCode.ARGUMENT

    def _text(self) -> str:
        return f"argument {self.option!r} is unknown; {self.accepted}"


class ColumnError(OptionError):
    """A column that is missing or wrong; `option` is its name, `value` its type or its fault."""

    code = ErrorCode.COLUMN

    def _text(self) -> str:
        return f"column {self.option!r} is {self.value}; {self.accepted}"


_NOT_YOURS = "run as the owner of the directory, or make this user the owner"
_READ_EARLIER = "finish the read before the process ends"

_REMEDIES = {
    codes.ENOSPC: "free space on its file system, then write again",
    codes.EDQUOT: "free space within the quota, or have the quota raised, then write again",
    codes.EACCES: _NOT_YOURS,
    codes.EPERM: _NOT_YOURS,
    codes.EROFS: "mount the file system for writing; after disk errors the system mounts it "
    "read-only, and the system's log shows these errors",
    codes.EIO: "the disk or its server has failed: read the system's log, check the disk, then "
    "try again",
    codes.ESTALE: "the file was replaced or removed: try again",
    codes.EMFILE: "the process has reached its limit of open files: close some, or raise the "
    "limit (ulimit -n)",
    codes.ENFILE: "the system has reached its limit of open files (fs.file-max): close some",
    codes.ECANCELED: _READ_EARLIER,
    codes.EDEADLK: "open the directory and read it in one process",
}


_CREDENTIALS = (
    "give credentials in the environment of every process that reads or writes, or in the URL, "
    "and the right to do this"
)

#: Remedies for a file at a URL: no disk of this machine is at fault.
_REMEDIES_OF_STORES = {
    codes.EACCES: _CREDENTIALS,
    codes.EPERM: _CREDENTIALS,
    codes.ETIMEDOUT: "check the network and the endpoint, then try again",
    codes.ENOENT: "check the bucket and the path",
    codes.ECANCELED: _READ_EARLIER,
}
_REMEDY_OF_STORES = "check the network, the endpoint and the state of the store, then try again"

_ARCHIVED = (
    "the object is in an archive: restore it, and let no rule of the bucket move objects of a log "
    "to a class that is not read at once"
)
_KEY_OF_BUCKET = (
    "look at the key that encrypts the bucket (KMS): it has to be enabled, and each user needs "
    "kms:Decrypt, writers also kms:GenerateDataKey"
)
_CLOCK = "set the clock of this machine: the store takes requests of its own time only"
_RENEW = "the credentials have expired: renew them; the next request takes those of then"
_SIGNED = (
    "check the key and its secret (AWS_ACCESS_KEY_ID, AWS_PROFILE, the URL): the store does not "
    "know them; the next request takes those of then"
)
_REGION = "give the region of the bucket (AWS_REGION, region=… in the URL)"
_BUSY = "the store limits the number of requests: use fewer clients at once, and try again"

#: Remedies by the codes of S3, Azure and Google Cloud Storage.
_REMEDIES_OF_CODES = {
    "InvalidObjectState": _ARCHIVED, "BlobArchived": _ARCHIVED,
    "BlobBeingRehydrated": _ARCHIVED, "RequestTimeTooSkewed": _CLOCK, "RequestExpired": _CLOCK,
    "ExpiredToken": _RENEW, "TokenRefreshRequired": _RENEW, "InvalidToken": _RENEW,
    "InvalidAccessKeyId": _SIGNED, "SignatureDoesNotMatch": _SIGNED,
    "AuthenticationFailed": _SIGNED, "InvalidAuthenticationInfo": _SIGNED,
    "PermanentRedirect": _REGION, "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION, "SlowDown": _BUSY, "ServerBusy": _BUSY,
    "TooManyRequests": _BUSY, "RequestLimitExceeded": _BUSY,
    "KeyVaultEncryptionKeyNotFound": _KEY_OF_BUCKET,
    "AllAccessDisabled": "the store has locked the bucket: ask its provider",
    "AccountProblem": "the store has locked the account: ask its provider",
    "AccountIsDisabled": "the store has locked the account: ask its provider",
    "UserProjectMissing": "the reader of this bucket pays: name a project that does",
}  # fmt: skip


def store_code_in(text: str) -> str:
    """The code in the message of a client that may write it in capitals; or an empty text."""
    plain = text.replace("_", "").lower()
    return next((code for code in _REMEDIES_OF_CODES if code.lower() in plain), "")


def _of_code(code: str) -> str:
    """The remedy for a store's code, or an empty text."""
    return _KEY_OF_BUCKET if code.startswith("KMS.") else _REMEDIES_OF_CODES.get(code, "")


class StorageError(SegmentLogError, OSError):
    """The system or a store refused or failed an operation on a file or directory.

    `errno`: number of the system's error, or 0 if it gives none.  `strerror`: the system's
    message.  `filename`: the file or directory, with the scheme of a URL; empty if the system does
    not name it.  `store_code`: the store's own code for the error (``InvalidObjectState``); empty
    if there is none.
    """

    code = ErrorCode.STORAGE

    def __init__(
        self, errno: int, strerror: str, filename: str = "", store_code: str = ""
    ) -> None:
        super().__init__(errno, strerror, filename)
        self.store_code = store_code

    def _text(self) -> str:
        remedies, other = _REMEDIES, "check that it exists and is readable, then try again"
        if "://" in str(self.filename):
            remedies, other = _REMEDIES_OF_STORES, _REMEDY_OF_STORES
        remedy = _of_code(self.store_code) or remedies.get(self.errno or 0, other)
        where = f"{self.filename}: " if self.filename else ""
        return f"{where}{self.strerror}: {remedy}"


# Errors of a log that cannot be read as requested.


class CorruptLogError(SegmentLogError, ValueError):
    """Bytes of a ``.log`` file that no Kafka version could have written.

    Restore the file from a replica or a backup, or recover the log.

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

    def _text(self) -> str:
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
    """A batch that claims more bytes than its file has left: a torn tail, if the log ends here.

    Recovery cuts off a torn tail.
    """

    code = ErrorCode.TRUNCATED_BATCH
    _finding = " needs {needed} bytes, but the file has {available} left"
    _remedy = f"{CorruptLogError._remedy}, or after a crash run segmentlog recover"
    needed: int
    available: int


class TornTransactionError(CorruptLogError):
    """A batch of a transaction without an end marker, in a part that a broker took as decided.

    Read up to there, or with ``read_uncommitted``.
    """

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
    """A checkpoint or metadata file that cannot be read: correct or remove the file.

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

    def _text(self) -> str:
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

    Also a data object that is missing in a log in an object store.

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

    def _text(self) -> str:
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
    """Planned files were removed or cut during a read, by retention, compaction or an overwrite.

    Load the path again.  Offsets are -1 if no range is known.
    """

    code = ErrorCode.LOG_CHANGED
    path: str
    next_offset: int
    end_offset: int
    reason: str

    def _text(self) -> str:
        offsets = f"offsets [{self.next_offset}, {self.end_offset})"
        gone = f"{offsets} existed when the read was planned and are gone; "
        return f"{self.path}: {self.reason}; {gone * (self.end_offset >= 0)}load the path again"


class TimestampOverflowError(SegmentLogError, OverflowError):
    """A record timestamp in milliseconds that does not fit 64-bit microseconds.

    Leave the column ``timestamp`` out of the read; ``cat``, ``grep`` and ``dump`` show every time.
    """

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
        "comes too late. segmentlog cat, grep and dump show every time; mirror, restore, and "
        "clone without a transform keep it"
    )


class InvalidUtf8Error(SegmentLogError, ValueError):
    """A key or value that is requested as text, and is not UTF-8.

    Read the column as binary, or set `on_invalid_utf8`.
    """

    code = ErrorCode.INVALID_UTF8
    topic: str
    partition: int
    offset: int
    column: str
    _message = (
        "{topic}-{partition}: the {column} of the record at offset {offset} is not UTF-8; read "
        "the column as binary, or set onInvalidUtf8 (in Python on_invalid_utf8) to null or replace"
    )


class UndecodableValueError(SegmentLogError, ValueError):
    """A key or value that cannot be decoded with its schema.

    `on_undecodable` decodes the others.  `is_masked`: whether a clone was to mask it, which ends
    then.
    """

    code = ErrorCode.UNDECODABLE_VALUE
    topic: str
    partition: int
    offset: int
    column: str
    reason: str
    is_masked: bool = False

    def _text(self) -> str:
        place = f"{self.topic}-{self.partition}: the {self.column} of the record at offset"
        told = f"{place} {self.offset} cannot be decoded: {self.reason}"
        if self.is_masked:
            return (
                f"{told}; so nothing of it can be masked: a transform (--transform), which comes "
                "first, can leave the record out"
            )
        return (
            f"{told}; set onUndecodable (in Python on_undecodable) to null or skip to decode the "
            "others"
        )


# Errors that only writers raise.


class LogLockedError(SegmentLogError):
    """A broker or another writer holds the log directory: stop the broker, or wait.

    After `is_task` or `is_lost`, try again.

    `process`: id of the process that holds the lock, or 0 if it is unknown.  `waited_seconds`:
    time spent waiting for the lock.  `is_task`: whether a task of a compaction holds it, whose
    driver has ended.  `is_lost`: whether this process had the lock, and was held up until another
    process got it.
    """

    code = ErrorCode.LOG_LOCKED
    path: str
    process: int
    waited_seconds: float
    is_task: bool = False
    is_lost: bool = False

    def _text(self) -> str:
        if self.is_lost:
            return (
                f"{self.path}: another process has taken its lock while this one was held up; "
                "nothing more was changed, and the next writer finishes or undoes what was begun: "
                "try again"
            )
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

    The next writer finishes or undoes it.  Check the disk.  If the rows are appended again, the
    log may have them twice, unless the write has a `txn_app_id` or a `producer`.

    `path`: the guard, which keeps brokers from starting; in a store, the object of the commit.
    """

    code = ErrorCode.COMMIT_IN_DOUBT

    def _text(self) -> str:
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
    """Staged batches that differ from the batches that a task of the job wrote.

    Nothing of the job is visible: check the disk, and run the job again.
    """

    code = ErrorCode.STAGED_FILE
    path: str
    finding: str

    def _text(self) -> str:
        return (
            f"{self.finding}: the file differs from what the task has staged; nothing of this job "
            "is visible; check the disk, then run the job again"
        )


class SyncFailedError(_FailedWriteError):
    """The disk could not keep the written bytes; a second sync would not report this again.

    No row is visible: check the disk, and write again.

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
    """A row that cannot be a record; no row of the job is written.

    `partition` is -1 before a partition is chosen for the row.
    """

    code = ErrorCode.INVALID_RECORD
    reason: str

    def _text(self) -> str:
        where = self.topic if self.partition < 0 else f"{self.topic}-{self.partition}"
        prefix = f"{where}: " if where else ""
        return f"{prefix}row {self.row} of the task cannot be written: {self.reason}"


class RecordTooLargeError(_RowError):
    """A row whose batch exceeds the limit: `size` bytes without any other record.

    No row of the job is written: raise the limit, or make the row smaller.
    """

    code = ErrorCode.RECORD_TOO_LARGE
    size: int
    limit: int
    _message = (
        "{topic}-{partition}: row {row} of the task takes {size} bytes as a record batch, but the "
        "limit is {limit}: the least of max.message.bytes, segment.bytes and "
        "kafka.max.request.size; raise that setting, or make the row smaller"
    )


class OffsetsOutOfOrderError(SegmentLogError, ValueError):
    """A record that cannot keep its offset, because the next free offset is `end_offset`.

    Leave out rows that the log has, and sort the others.
    """

    code = ErrorCode.OFFSETS_OUT_OF_ORDER
    topic: str
    partition: int
    offset: int
    end_offset: int

    def _text(self) -> str:
        return (
            f"{self.topic}-{self.partition}: offset {self.offset} cannot be written after offset "
            f"{self.end_offset - 1}: offsets must increase within a partition, in the log and in "
            "the rows; leave out rows that the log already contains, and sort the remaining "
            'rows: repartition("topic", "partition").sortWithinPartitions("topic", "partition", '
            '"offset")'
        )


class SplitKeyError(SegmentLogError, ValueError):
    """Keys that occur in several partitions, so that their records have no defined order.

    Order them by time, or keep the partitions.

    `n_keys`: number of these keys.  `examples`: where some of them stand, in words.
    """

    code = ErrorCode.SPLIT_KEY
    topic: str
    n_keys: int
    examples: tuple[str, ...]

    def _text(self) -> str:
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

    Restore the checkpoint of the query, or begin with a new one.

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
    """A gap in a producer's sequences, or an old batch that the log lacks or has otherwise.

    Append the missing records, or the same batch again.
    """

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE
    expected: int  #: the sequence of the record that may come next
    _message = _PRODUCER + (
        ", but {expected} is next: send the records in between first, or repeat a batch with the "
        "same records and settings; to append to the log, open a writer without base_sequence, or "
        "with the next epoch and base_sequence 0"
    )


class InvalidProducerEpochError(_ProducerError):
    """A producer that another producer with its id and a higher epoch has fenced.

    Stop, or take the next epoch.
    """

    code = ErrorCode.INVALID_PRODUCER_EPOCH
    expected: int  #: the epoch in the log
    _message = _PRODUCER + (
        ", but the log has epoch {expected}: another writer has taken over; stop this writer, or "
    )

    def _text(self) -> str:
        remedy = f"take epoch {self.expected + 1} and base_sequence 0 to fence the other writer"
        if self.expected == 2**15 - 1:  # the largest
            remedy = "take another producer id"
        return super()._text() + remedy


class InvalidTxnStateError(_ProducerError):
    """A batch outside the open transaction of its producer.

    End the transaction with a broker, or take another id.
    """

    code = ErrorCode.INVALID_TXN_STATE
    first_offset: int  #: the offset at which the transaction begins
    _message = _PRODUCER + (
        " outside its transaction, which is open since offset {first_offset}: end the transaction "
        "with a broker first, or take another producer id"
    )


#: Is told of each thing that failed, by its name (``orders-0``), and why.
OnFailure: TypeAlias = Callable[[str, SegmentLogError], object]
