"""Kafka's log on disk, read without a broker: directories, offsets, look-ups, Arrow streams.

>>> import segmentlog
>>> directory = segmentlog.open_log_dir("examples/data")
>>> log = directory.log("orders", 0)
>>> table = log.scan().read_all()

Importing this package is cheap: the compiled kernels load with the first scan.
"""

from segmentlog.errors import (
    ChecksumMismatchError,
    CorruptCheckpointError,
    CorruptIndexError,
    CorruptLogError,
    ErrorCode,
    LogChangedError,
    LogDirectoryError,
    MalformedBatchError,
    OffsetOutOfRangeError,
    OptionError,
    SegmentLogError,
    TimestampOverflowError,
    TornTransactionError,
    TruncatedBatchError,
    UnknownTopicOrPartitionError,
    UnsupportedFormatError,
)
from segmentlog.log.log import Log
from segmentlog.log.logdir import LogDirectory, open_log_dir
from segmentlog.model import (
    IsolationLevel,
    LogSlice,
    OnCorruptBatch,
    ReadUpTo,
    ScanPolicy,
    TimestampAndOffset,
    TimestampType,
    TopicPartition,
)

__all__ = [
    "ChecksumMismatchError",
    "CorruptCheckpointError",
    "CorruptIndexError",
    "CorruptLogError",
    "ErrorCode",
    "IsolationLevel",
    "Log",
    "LogChangedError",
    "LogDirectory",
    "LogDirectoryError",
    "LogSlice",
    "MalformedBatchError",
    "OffsetOutOfRangeError",
    "OnCorruptBatch",
    "OptionError",
    "ReadUpTo",
    "ScanPolicy",
    "SegmentLogError",
    "TimestampAndOffset",
    "TimestampOverflowError",
    "TimestampType",
    "TopicPartition",
    "TornTransactionError",
    "TruncatedBatchError",
    "UnknownTopicOrPartitionError",
    "UnsupportedFormatError",
    "open_log_dir",
]
