"""``remote_segments``: segments in a tier, by the topic in which brokers announce them."""

from collections.abc import Iterator
from typing import Any

from segmentlog.kafka_tables.columns import printed_id, time_of
from segmentlog.kafka_tables.coordinator import placed_rows, refuse_record
from segmentlog.model import IsolationLevel, OnCorruptBatch
from segmentlog.reads.log import Log
from segmentlog.tiered.metadata import AnnouncedSegments, read_metadata_record

_STATES = {0: "COPY_SEGMENT_STARTED", 1: "COPY_SEGMENT_FINISHED", 2: "DELETE_SEGMENT_STARTED",
           3: "DELETE_SEGMENT_FINISHED"}  # fmt: skip

#: Fields that are columns as they are.
_SAME = ("start_offset", "end_offset", "broker_id", "segment_size_in_bytes",
         "segment_leader_epochs", "custom_metadata", "txn_index_empty")  # fmt: skip

_AS_BROKERS_READ = IsolationLevel.READ_UNCOMMITTED  #: ``TopicBasedRemoteLogMetadataManager``


def segment_changes(log: Log, on_corrupt_batch: OnCorruptBatch) -> Iterator[dict[str, Any]]:
    """Every change of a segment in a partition of ``__remote_log_metadata``.

    All records of a log are in one partition of the topic.

    Raises `MalformedRecordError` if a record cannot be read; `CorruptLogError` if the log is
    damaged.
    """
    announced = AnnouncedSegments()
    for key, value, origin in placed_rows(log, on_corrupt_batch, _AS_BROKERS_READ):
        try:
            changes = read_metadata_record(announced, key, value)
        except ValueError as error:
            refuse_record(log, origin["record_offset"], str(error), on_corrupt_batch)
            continue
        for fields, is_removed in changes:
            place = fields["remote_log_segment_id"]["topic_id_partition"]
            state = fields["remote_log_segment_state"]
            yield {name: fields.get(name) for name in _SAME} | origin | {
                "topic": place["name"],
                "topic_id": printed_id(place["id"]),
                "partition": place["partition"],
                "segment_id": printed_id(fields["remote_log_segment_id"]["id"]),
                "remote_log_segment_state": _STATES[state],
                "max_timestamp": time_of(fields["max_timestamp_ms"]),
                "event_timestamp": time_of(fields["event_timestamp_ms"]),
                "change": "removed" if is_removed else "set",
            }  # fmt: skip


def unknown_segment_records(
    log: Log, on_corrupt_batch: OnCorruptBatch
) -> Iterator[tuple[bytes | None, bytes | None, int, int]]:
    """Key, value, offset and time of the records, all of which may be newer than what we know."""
    for key, value, origin in placed_rows(log, on_corrupt_batch, _AS_BROKERS_READ):
        yield key, value, origin["record_offset"], origin["record_timestamp"]
