"""``remote_segments``: segments in a tier, by the topic in which brokers announce them."""

from collections.abc import Iterator

from segmentlog.format.messages import lines
from segmentlog.kafka_tables.columns import (
    INT,
    ORIGIN,
    TEXT,
    Column,
    Row,
    Table,
    fields_of,
    printed_id,
    shown,
)
from segmentlog.kafka_tables.source import PlainRecord, TableSource
from segmentlog.model import IsolationLevel
from segmentlog.reads.log import Log
from segmentlog.tiered.metadata import REMOTE_LOG_METADATA, AnnouncedSegments, read_metadata_record

_STATES = {
    0: "COPY_SEGMENT_STARTED",
    1: "COPY_SEGMENT_FINISHED",
    2: "DELETE_SEGMENT_STARTED",
    3: "DELETE_SEGMENT_FINISHED",
}

_AS_BROKERS_READ = IsolationLevel.READ_UNCOMMITTED  #: ``TopicBasedRemoteLogMetadataManager``

_field = fields_of(lines.REMOTE_LOG, "RemoteLogSegmentMetadataRecord")
_SEGMENT = (
    Column("topic", TEXT, "the topic"),
    Column("topic_id", TEXT, "its id"),
    Column("partition", INT, "the partition"),
    Column("segment_id", TEXT, "id of the copy"),
    _field(
        "remote_log_segment_state",
        "`COPY_SEGMENT_STARTED`, `COPY_SEGMENT_FINISHED`, "
        "`DELETE_SEGMENT_STARTED`, and in a history `DELETE_SEGMENT_FINISHED`",
        words=_STATES,
    ),
    _field("start_offset", "first offset of the segment"),
    _field("end_offset", "last offset, which may lie after the last record"),
    _field("segment_size_in_bytes", "size of its log file"),
    _field("max_timestamp", "greatest time of the records"),
    _field("segment_leader_epochs", "its leader epochs, and their first offsets in the segment"),
    _field("txn_index_empty", "whether it has no aborted transactions"),
    _field("broker_id", "broker that wrote the last record"),
    _field("event_timestamp", "when this broker wrote the record"),
    _field("custom_metadata", "bytes that the plugin has stored, or null"),
)


def _changes(source: TableSource, log: Log) -> Iterator[Row]:
    """Every change of a segment; all records of a log are in one partition of the topic."""
    announced = AnnouncedSegments()

    def rows(key: bytes | None, value: bytes | None) -> Iterator[Row]:
        for fields, is_removed in read_metadata_record(announced, key, value):
            segment_id = fields["remote_log_segment_id"]
            place = segment_id["topic_id_partition"]
            yield shown(_SEGMENT, fields) | {
                "topic": place["name"],
                "topic_id": printed_id(place["id"]),
                "partition": place["partition"],
                "segment_id": printed_id(segment_id["id"]),
                "change": "removed" if is_removed else "set",
            }

    return source.rows(log, rows, isolation_level=_AS_BROKERS_READ)


def plain_segment_records(source: TableSource, log: Log) -> Iterator[PlainRecord]:
    """The records, all of which may be newer than what we know."""
    for key, value, origin in source.records(log, _AS_BROKERS_READ):
        yield key, value, origin["record_offset"], origin["record_timestamp"]


REMOTE_SEGMENTS = Table(
    REMOTE_LOG_METADATA,
    "Segments in a tier (KIP-405), as brokers have announced them",
    (*_SEGMENT, *ORIGIN),
    _changes,
    key=("topic_id", "partition", "segment_id"),
)
