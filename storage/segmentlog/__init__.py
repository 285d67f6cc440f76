"""Kafka's log on disk, read and written without a broker: offsets, look-ups, Arrow streams.

>>> import segmentlog
>>> directory = segmentlog.open_log_dir("examples/data")
>>> log = directory.log("orders", 0)
>>> table = log.scan().read_all()

Importing this package loads none of its modules: each name loads what it needs when it is first
asked for.
"""

from typing import TYPE_CHECKING

from segmentlog.exports import exported as _exported
from segmentlog.store.virtual_disks import add_disk as _add_disk
from segmentlog.store.virtual_disks import add_recognizer as _add_recognizer

if TYPE_CHECKING:
    from segmentlog.analysis.analyze import analyze
    from segmentlog.analysis.report import (
        Analysis,
        AnalysisFinding,
        BatchFigures,
        ClockFigures,
        CodecUse,
        DecodedFigures,
        FieldFigures,
        FindingCode,
        FormatFigures,
        FormatUse,
        HeaderFigures,
        HeaderUse,
        HeavyKey,
        KeyFigures,
        OffsetFigures,
        PartitionReport,
        ProducerFigures,
        RetentionForecast,
        SchemaUse,
        SizeCount,
        TopicFigures,
        TopicReport,
        Urgency,
        ValueFigures,
        ZstdSavings,
    )
    from segmentlog.analysis.schema_use import schema_use
    from segmentlog.arrow_dataset.log_dataset import LogDataset
    from segmentlog.arrow_dataset.open_dataset import dataset, latest, read
    from segmentlog.audits.audit import Audit, AuditedPartition, FoundOffsets, audit
    from segmentlog.bucket.upkeep import Swept, Upgraded
    from segmentlog.cluster.directory_settings import (
        Setting,
        Source,
        alter_settings,
        topic_settings,
    )
    from segmentlog.cluster.follower import MirroredPartition
    from segmentlog.cluster.mirror import mirror
    from segmentlog.cluster.replicated import (
        Replica,
        ReplicatedDirectory,
        ReplicatedPartition,
        open_replicas,
        replicas,
    )
    from segmentlog.decoding.rows import decode
    from segmentlog.errors import (
        ArgumentError,
        ChecksumMismatchError,
        ColumnError,
        CommitInDoubtError,
        CorruptCheckpointError,
        CorruptIndexError,
        CorruptLogError,
        ErrorCode,
        InvalidProducerEpochError,
        InvalidRecordError,
        InvalidTxnStateError,
        InvalidUtf8Error,
        LogChangedError,
        LogDirectoryError,
        LogLockedError,
        MalformedBatchError,
        MalformedRecordError,
        OffsetOutOfRangeError,
        OffsetsOutOfOrderError,
        OptionError,
        OutOfOrderSequenceError,
        RecordTooLargeError,
        RemoteSegmentError,
        SegmentLogError,
        SplitKeyError,
        StagedFileError,
        StorageError,
        StreamBatchError,
        StreamOffsetError,
        SyncFailedError,
        TimestampOverflowError,
        TornTransactionError,
        TruncatedBatchError,
        UndecodableValueError,
        UnknownTopicOrPartitionError,
        UnsupportedFormatError,
    )
    from segmentlog.format.topic_config import TopicConfig
    from segmentlog.kafka_tables.open_table import table, tables
    from segmentlog.kafka_tables.registry import message_indexes, payload, schema_guid, schema_id
    from segmentlog.log.segment import LogEnd, Segment
    from segmentlog.maintain.cloning.clone import Clone, ClonedGroup, ClonedPartition, clone
    from segmentlog.maintain.compaction.compact import CompactedPartition, compact
    from segmentlog.maintain.compaction.erase import (
        CopyKind,
        ErasedPartition,
        RemainingCopy,
        erase,
    )
    from segmentlog.maintain.deletes import (
        DeletedRecords,
        DeletedTopic,
        delete_records,
        delete_topic,
        sweep,
    )
    from segmentlog.maintain.health.faults import StartAction, StartStep
    from segmentlog.maintain.health.mend import RecoveryKind, RecoveryStep
    from segmentlog.maintain.recover import IndexedSegment, recover, reindex
    from segmentlog.maintain.restoration.plan import (
        GroupOffset,
        OpenTransactions,
        Restoration,
        RestoredPartition,
        creation_commands,
        propose_placement,
        reassignment_json,
    )
    from segmentlog.maintain.restoration.restore import offsets_csv, restore
    from segmentlog.maintain.restoration.undelete import (
        RenamedPartition,
        renamed_partitions,
        undelete,
    )
    from segmentlog.maintain.retain import Hold, KeptSegment, Reason, RemovedSegment, retain
    from segmentlog.maintain.start.preflight import preflight
    from segmentlog.maintain.upgrade import upgrade
    from segmentlog.maintain.verification.compare import (
        ComparedPartition,
        Comparison,
        Side,
        compare,
    )
    from segmentlog.maintain.verification.findings import Finding, FindingKind, Severity
    from segmentlog.maintain.verification.verify import verify
    from segmentlog.model import (
        Appended,
        Codec,
        IsolationLevel,
        LogSlice,
        OffsetRange,
        OnCorruptBatch,
        OnInvalidUtf8,
        OnUndecodable,
        ReadUpTo,
        Replicas,
        SliceFile,
        TimestampAndOffset,
        TimestampType,
        TopicPartition,
        ValueFrame,
    )
    from segmentlog.reads.choose import MissingPartition
    from segmentlog.reads.listed import LostOffsets, LostSegments
    from segmentlog.reads.log import Log
    from segmentlog.reads.log_directory import LogDirectory, open_log_dir
    from segmentlog.reads.stream_checkpoint import checkpoint_offsets
    from segmentlog.reads.usage import UsageKind, UsedSpace, usage
    from segmentlog.serving.open_server import Server, serve
    from segmentlog.store.readable import SurveyedDisk
    from segmentlog.writes.config import Producer, ProducerConfig
    from segmentlog.writes.writer import LogWriter, open_writer

__all__ = [
    "Analysis",
    "AnalysisFinding",
    "Appended",
    "ArgumentError",
    "Audit",
    "AuditedPartition",
    "BatchFigures",
    "ChecksumMismatchError",
    "ClockFigures",
    "Clone",
    "ClonedGroup",
    "ClonedPartition",
    "Codec",
    "CodecUse",
    "ColumnError",
    "CommitInDoubtError",
    "CompactedPartition",
    "ComparedPartition",
    "Comparison",
    "CopyKind",
    "CorruptCheckpointError",
    "CorruptIndexError",
    "CorruptLogError",
    "DecodedFigures",
    "DeletedRecords",
    "DeletedTopic",
    "ErasedPartition",
    "ErrorCode",
    "FieldFigures",
    "Finding",
    "FindingCode",
    "FindingKind",
    "FormatFigures",
    "FormatUse",
    "FoundOffsets",
    "GroupOffset",
    "HeaderFigures",
    "HeaderUse",
    "HeavyKey",
    "Hold",
    "IndexedSegment",
    "InvalidProducerEpochError",
    "InvalidRecordError",
    "InvalidTxnStateError",
    "InvalidUtf8Error",
    "IsolationLevel",
    "KeptSegment",
    "KeyFigures",
    "Log",
    "LogChangedError",
    "LogDataset",
    "LogDirectory",
    "LogDirectoryError",
    "LogEnd",
    "LogLockedError",
    "LogSlice",
    "LogWriter",
    "LostOffsets",
    "LostSegments",
    "MalformedBatchError",
    "MalformedRecordError",
    "MirroredPartition",
    "MissingPartition",
    "OffsetFigures",
    "OffsetOutOfRangeError",
    "OffsetRange",
    "OffsetsOutOfOrderError",
    "OnCorruptBatch",
    "OnInvalidUtf8",
    "OnUndecodable",
    "OpenTransactions",
    "OptionError",
    "OutOfOrderSequenceError",
    "PartitionReport",
    "Producer",
    "ProducerConfig",
    "ProducerFigures",
    "ReadUpTo",
    "Reason",
    "RecordTooLargeError",
    "RecoveryKind",
    "RecoveryStep",
    "RemainingCopy",
    "RemoteSegmentError",
    "RemovedSegment",
    "RenamedPartition",
    "Replica",
    "Replicas",
    "ReplicatedDirectory",
    "ReplicatedPartition",
    "Restoration",
    "RestoredPartition",
    "RetentionForecast",
    "SchemaUse",
    "Segment",
    "SegmentLogError",
    "Server",
    "Setting",
    "Severity",
    "Side",
    "SizeCount",
    "SliceFile",
    "Source",
    "SplitKeyError",
    "StagedFileError",
    "StartAction",
    "StartStep",
    "StorageError",
    "StreamBatchError",
    "StreamOffsetError",
    "Swept",
    "SyncFailedError",
    "TimestampAndOffset",
    "TimestampOverflowError",
    "TimestampType",
    "TopicConfig",
    "TopicFigures",
    "TopicPartition",
    "TopicReport",
    "TornTransactionError",
    "TruncatedBatchError",
    "UndecodableValueError",
    "UnknownTopicOrPartitionError",
    "UnsupportedFormatError",
    "Upgraded",
    "Urgency",
    "UsageKind",
    "UsedSpace",
    "ValueFigures",
    "ValueFrame",
    "ZstdSavings",
    "alter_settings",
    "analyze",
    "audit",
    "checkpoint_offsets",
    "clone",
    "compact",
    "compare",
    "creation_commands",
    "dataset",
    "decode",
    "delete_records",
    "delete_topic",
    "erase",
    "latest",
    "message_indexes",
    "mirror",
    "offsets_csv",
    "open_log_dir",
    "open_replicas",
    "open_writer",
    "payload",
    "preflight",
    "propose_placement",
    "read",
    "reassignment_json",
    "recover",
    "reindex",
    "renamed_partitions",
    "replicas",
    "restore",
    "retain",
    "schema_guid",
    "schema_id",
    "schema_use",
    "serve",
    "sweep",
    "table",
    "tables",
    "topic_settings",
    "undelete",
    "upgrade",
    "usage",
    "verify",
]


def _tiered_disk(path: str) -> "SurveyedDisk":
    from segmentlog.tiered.disk import tiered_disk  # most processes read no tier

    return tiered_disk(path)


_add_disk("tiered://", _tiered_disk)


def _bucket_disk(path: str) -> "SurveyedDisk":
    from segmentlog.bucket.disk import bucket_disk

    return bucket_disk(path)


def _recognized(url: str) -> str | None:
    from segmentlog.bucket.places import recognized

    return recognized(url)


_add_disk("bucket+", _bucket_disk)
_add_recognizer(_recognized)


_look_up, __dir__ = _exported(
    __name__,
    {
        "analysis.analyze": "analyze",
        "analysis.report": (
            "Analysis AnalysisFinding BatchFigures ClockFigures CodecUse DecodedFigures "
            "FieldFigures FindingCode FormatFigures FormatUse HeaderFigures HeaderUse HeavyKey "
            "KeyFigures OffsetFigures "
            "PartitionReport ProducerFigures RetentionForecast SchemaUse SizeCount TopicFigures "
            "TopicReport Urgency ValueFigures ZstdSavings"
        ),
        "analysis.schema_use": "schema_use",
        "arrow_dataset.log_dataset": "LogDataset",
        "arrow_dataset.open_dataset": "dataset latest read",
        "audits.audit": "Audit AuditedPartition FoundOffsets audit",
        "bucket.upkeep": "Swept Upgraded",
        "cluster.directory_settings": "Setting Source alter_settings topic_settings",
        "cluster.follower": "MirroredPartition",
        "cluster.mirror": "mirror",
        "cluster.replicated": (
            "Replica ReplicatedDirectory ReplicatedPartition open_replicas replicas"
        ),
        "decoding.rows": "decode",
        "errors": (
            "ArgumentError ChecksumMismatchError ColumnError CommitInDoubtError "
            "CorruptCheckpointError CorruptIndexError CorruptLogError ErrorCode "
            "InvalidProducerEpochError InvalidRecordError InvalidTxnStateError InvalidUtf8Error "
            "LogChangedError LogDirectoryError LogLockedError MalformedBatchError "
            "MalformedRecordError OffsetOutOfRangeError OffsetsOutOfOrderError OptionError "
            "OutOfOrderSequenceError RecordTooLargeError RemoteSegmentError SegmentLogError "
            "SplitKeyError StagedFileError StorageError StreamBatchError StreamOffsetError "
            "SyncFailedError TimestampOverflowError TornTransactionError TruncatedBatchError "
            "UndecodableValueError UnknownTopicOrPartitionError UnsupportedFormatError"
        ),
        "format.topic_config": "TopicConfig",
        "kafka_tables.open_table": "table tables",
        "kafka_tables.registry": "message_indexes payload schema_guid schema_id",
        "log.segment": "LogEnd Segment",
        "maintain.cloning.clone": "Clone ClonedGroup ClonedPartition clone",
        "maintain.compaction.compact": "CompactedPartition compact",
        "maintain.compaction.erase": "CopyKind ErasedPartition RemainingCopy erase",
        "maintain.deletes": "DeletedRecords DeletedTopic delete_records delete_topic sweep",
        "maintain.health.faults": "StartAction StartStep",
        "maintain.health.mend": "RecoveryKind RecoveryStep",
        "maintain.recover": "IndexedSegment recover reindex",
        "maintain.restoration.plan": (
            "GroupOffset OpenTransactions Restoration RestoredPartition creation_commands "
            "propose_placement reassignment_json"
        ),
        "maintain.restoration.restore": "offsets_csv restore",
        "maintain.restoration.undelete": "RenamedPartition renamed_partitions undelete",
        "maintain.retain": "Hold KeptSegment Reason RemovedSegment retain",
        "maintain.start.preflight": "preflight",
        "maintain.upgrade": "upgrade",
        "maintain.verification.compare": "ComparedPartition Comparison Side compare",
        "maintain.verification.findings": "Finding FindingKind Severity",
        "maintain.verification.verify": "verify",
        "model": (
            "Appended Codec IsolationLevel LogSlice OffsetRange OnCorruptBatch OnInvalidUtf8 "
            "OnUndecodable ReadUpTo Replicas SliceFile TimestampAndOffset TimestampType "
            "TopicPartition ValueFrame"
        ),
        "reads.choose": "MissingPartition",
        "reads.listed": "LostOffsets LostSegments",
        "reads.log": "Log",
        "reads.log_directory": "LogDirectory open_log_dir",
        "reads.stream_checkpoint": "checkpoint_offsets",
        "reads.usage": "UsageKind UsedSpace usage",
        "serving.open_server": "Server serve",
        "writes.config": "Producer ProducerConfig",
        "writes.writer": "LogWriter open_writer",
    },
)


def __getattr__(name: str) -> object:
    if name != "__version__":
        return _look_up(name)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pyspark-segmentlog")
    except PackageNotFoundError:  # on the path as it is, from an archive or a checkout
        return "unknown: the package is not installed"
