"""Every error the engine raises, grouped by what a caller can do about it.

::

    SegmentLogError
    ├─ CorruptLogError (ValueError)    path, position, base_offset   restore the file, or recover
    │   ├─ ChecksumMismatchError       expected, found
    │   ├─ MalformedBatchError         reason
    │   ├─ TruncatedBatchError         needed, available: a torn tail; recovery may cut it
    │   └─ TornTransactionError        producer_id: read up to there, or read_uncommitted
    ├─ CorruptIndexError (ValueError)  path: rebuild it; reads never raise it
    ├─ CorruptCheckpointError (ValueError)  path, line: fix or remove the file
    ├─ MalformedRecordError (ValueError)  path, offset, reason: a record of Kafka's own topics
    ├─ RemoteSegmentError (ValueError)  path: restore the object, or correct the key or the layout
    ├─ UnsupportedFormatError          path, position, what, found: it need not be damage
    ├─ LogDirectoryError (ValueError)  path: not a log directory, or not a checkpoint; or the
    │                                  same partition twice
    ├─ UnknownTopicOrPartitionError (LookupError)  topic, partition, path
    ├─ OffsetOutOfRangeError (LookupError)  offset, log_start_offset, log_end_offset
    ├─ LogChangedError                 path: retention or compaction overtook a running read
    ├─ LogLockedError                  path: stop the broker, or wait for the other writer
    ├─ CommitInDoubtError              path, reason: check the disk, then write again
    ├─ StagedFileError (ValueError)    path, finding: run the job again
    ├─ SyncFailedError                 path, reason: check the disk, then write again
    ├─ InvalidRecordError (ValueError)  topic, partition, row, reason: correct the row
    ├─ RecordTooLargeError (ValueError)  topic, partition, row, size, limit
    ├─ OffsetsOutOfOrderError (ValueError)  topic, partition, offset, end_offset: sort the rows
    ├─ OutOfOrderSequenceError (ValueError)  topic, partition, producer_id, producer_epoch, found,
    │                                  expected: send what is between, or repeat the same batch
    ├─ InvalidProducerEpochError (ValueError)  …, expected: another writer has taken over
    ├─ InvalidTxnStateError (ValueError)  …, first_offset: end the transaction first
    ├─ SplitKeyError (ValueError)      topic, n_keys, examples: order by time, or keep partitions
    ├─ StreamBatchError (ValueError)   query, number, n_records, last_number, …: restore the
    │                                  checkpoint, or begin with a new one
    ├─ StreamOffsetError (LookupError)  topic_partition, offset, log_offset, reason
    ├─ StorageError (OSError)          errno, strerror, filename: make room, or be the owner
    ├─ KernelsError (ImportError)      install a wheel for this platform, or build again
    ├─ InvalidUtf8Error (ValueError)   topic, partition, offset, column: read it as binary
    ├─ TimestampOverflowError (OverflowError)  topic, partition, offset, timestamp_ms
    └─ OptionError (ValueError)        option, value, accepted: correct the option
        ├─ ArgumentError (TypeError)   of a keyword that a function does not take: rename it
        └─ ColumnError                 of a column: select or cast it

Constructor arguments are positional and all reach ``Exception.args``, so that an error survives
pickling between a Spark worker and its driver.  Each class has a `code` of `ErrorCode`, which
never changes, even when classes are renamed or split.  The package imports no other module of
segmentlog.
"""

from segmentlog.errors.base import (
    ArgumentError,
    ColumnError,
    ErrorCode,
    KernelsError,
    OptionError,
    SegmentLogError,
    StorageError,
)
from segmentlog.errors.read import (
    ChecksumMismatchError,
    CorruptCheckpointError,
    CorruptIndexError,
    CorruptLogError,
    InvalidUtf8Error,
    LogChangedError,
    LogDirectoryError,
    MalformedBatchError,
    MalformedRecordError,
    OffsetOutOfRangeError,
    RemoteSegmentError,
    StreamOffsetError,
    TimestampOverflowError,
    TornTransactionError,
    TruncatedBatchError,
    UnknownTopicOrPartitionError,
    UnsupportedFormatError,
)
from segmentlog.errors.write import (
    CommitInDoubtError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    LogLockedError,
    OffsetsOutOfOrderError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    SplitKeyError,
    StagedFileError,
    StreamBatchError,
    SyncFailedError,
)

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
    "UnknownTopicOrPartitionError",
    "UnsupportedFormatError",
]

for _name in __all__:  # messages and pickles name the place that users import from
    globals()[_name].__module__ = __name__
