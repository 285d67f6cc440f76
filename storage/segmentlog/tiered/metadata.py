"""The broker's own list of remote segments: the topic ``__remote_log_metadata``.

A record announces the copy of a segment, and later records update its state: copied, being
deleted, deleted.  Only a segment whose copy has finished and whose deletion has not begun is read.

Rules: ``RemoteLogMetadataCache``, ``RemotePartitionMetadataStore``, ``RemoteLogSegmentState``.
"""

import logging
import uuid
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from segmentlog.errors import MalformedRecordError
from segmentlog.format.messages.reader import uuid_text
from segmentlog.format.messages.records import frame_key, framed_schemas, read_frame
from segmentlog.format.names import parse_partition_directory
from segmentlog.format.newer import note
from segmentlog.log.listing import Listing, list_segments
from segmentlog.reads.listed import ListedSegments, cut_slices
from segmentlog.store.partitions import list_partitions
from segmentlog.store.readable import list_entries
from segmentlog.tiered.layout import RemoteLog, RemoteSegment

logger = logging.getLogger(__name__)

REMOTE_LOG_METADATA = "__remote_log_metadata"


class SegmentState(IntEnum):
    """The state of a copy (``RemoteLogSegmentState``); `NONE` is before the first record."""

    NONE = -1
    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


#: The last of the states of a partition (``RemotePartitionDeleteState``).
_PARTITION_DELETED = 2


class Announced(NamedTuple):
    """A segment of the broker's list, and the state of its copy."""

    segment: RemoteSegment
    state: SegmentState


def read_metadata_record(
    taken: "AnnouncedSegments", key: bytes | None, value: bytes | None
) -> "list[SegmentChange]":
    """Take a record of the topic; a key without a value removes its segment (KIP-1266).

    Raises `ValueError` if the record cannot be read.
    """
    if value is None and key is not None:
        return taken.forget(key)
    message = read_frame(value or b"", framed_schemas(REMOTE_LOG_METADATA))
    if message is None:
        if (kind := frame_key(value or b"")) not in framed_schemas(REMOTE_LOG_METADATA):
            note(f"type {kind} of {REMOTE_LOG_METADATA}")
        return []
    return taken.take(message.name, message.fields, key)


def _taken(directory: str) -> "AnnouncedSegments":
    """The segments of a log directory, as all its records have left them.

    The records of a segment are in one partition, in their order.
    """
    from segmentlog.reads.scan import scan_slice  # the compiled kernels load here

    taken = AnnouncedSegments()
    for each in list_partitions(directory):
        place, path = each.topic_partition, each.path
        if not each.is_current or place.topic != REMOTE_LOG_METADATA:
            continue
        listed = ListedSegments(Listing(list_segments(path)))
        if not listed.files:
            continue
        begin, end = listed.files[0].base_offset, listed.end.offset
        for log_slice in cut_slices(place, listed, begin, end, 0):
            for batch in scan_slice(log_slice, columns=["offset", "key", "value"]):
                columns = [batch[name].to_pylist() for name in ("offset", "key", "value")]
                for offset, key, value in zip(*columns, strict=True):
                    try:
                        read_metadata_record(taken, key, value)
                    except ValueError as error:
                        raise MalformedRecordError(path, offset, str(error)) from error
    return taken


def has_metadata(directory: str) -> bool:
    """Whether a log directory has partitions of the topic."""
    return any(
        entry.name.startswith(f"{REMOTE_LOG_METADATA}-") for entry in list_entries(directory)
    )


class SegmentChange(NamedTuple):
    """A segment that a record has changed."""

    fields: Mapping[str, Any]  # of the record that announced the segment, updated by later records
    is_removed: bool  # whether the segment is gone from the tier


class AnnouncedSegments:
    """The last state of each segment, as the records so far have left it.

    An update of a segment that was not announced, and a state from before the last one, are left
    out.  A state may skip others: in a compacted topic, the records between are gone (KIP-1266).

    `known`: fields of each segment by its id: those of its record, updated.  A deleted segment
    stays, so that no record makes it again.
    """

    def __init__(self) -> None:
        self.known: dict[uuid.UUID, Mapping[str, Any]] = {}
        self._by_key: dict[bytes, uuid.UUID] = {}

    def forget(self, key: bytes) -> list[SegmentChange]:
        """Remove the segment whose records have had a key."""
        segment_id = self._by_key.pop(key, None)
        fields = self.known.pop(segment_id, None) if segment_id is not None else None
        if fields is None or fields["remote_log_segment_state"] == SegmentState.DELETE_FINISHED:
            return []
        return [SegmentChange(fields, is_removed=True)]

    def take(
        self, name: str, fields: Mapping[str, Any], key: bytes | None = None
    ) -> list[SegmentChange]:
        """Take a record, and return what it has changed."""
        if name == "RemotePartitionDeleteMetadataRecord":
            return self._take_partition(fields)
        if name not in ("RemoteLogSegmentMetadataRecord", "RemoteLogSegmentMetadataUpdateRecord"):
            return []
        segment_id = fields["remote_log_segment_id"]["id"]
        known = self.known.get(segment_id)
        state = fields["remote_log_segment_state"]
        before = SegmentState.NONE if known is None else known["remote_log_segment_state"]
        is_update = name == "RemoteLogSegmentMetadataUpdateRecord"
        if not before <= state <= SegmentState.DELETE_FINISHED or (is_update and known is None):
            logger.warning(
                "remote segment %s: state %d cannot follow state %d; it is left out",
                uuid_text(segment_id),
                state,
                before,
            )
            return []
        if key is not None:
            self._by_key[key] = segment_id
        if is_update and known is not None:
            custom = fields["custom_metadata"] or known["custom_metadata"]
            fields = {**known, **fields, "custom_metadata": custom}
        self.known[segment_id] = fields
        return [SegmentChange(fields, state == SegmentState.DELETE_FINISHED)]

    def _take_partition(self, fields: Mapping[str, Any]) -> list[SegmentChange]:
        """Remove the segments of a partition whose deletion has finished."""
        if fields["remote_partition_delete_state"] != _PARTITION_DELETED:
            return []
        place = fields["topic_id_partition"]
        partition = place["id"], place["partition"]
        places = {
            segment_id: known["remote_log_segment_id"]["topic_id_partition"]
            for segment_id, known in self.known.items()
        }
        removed = [
            self.known.pop(segment_id)
            for segment_id, each in places.items()
            if (each["id"], each["partition"]) == partition
        ]
        return [
            SegmentChange(each, is_removed=True)
            for each in removed
            if each["remote_log_segment_state"] != SegmentState.DELETE_FINISHED
        ]


def announced_segments(directory: str) -> dict[RemoteLog, list[Announced]] | None:
    """All segments of each log, or None if the directory has no partition of the topic."""
    if not has_metadata(directory):
        return None
    found: dict[RemoteLog, list[Announced]] = {}
    for segment_id, fields in _taken(directory).known.items():
        place = fields["remote_log_segment_id"]["topic_id_partition"]
        if parse_partition_directory(f"{place['name']}-{place['partition']}") is None:
            logger.warning(  # a layout makes the name of a directory of it
                "remote segment %s: %r is not the name of a topic; the segment is left out",
                uuid_text(segment_id),
                place["name"],
            )
            continue
        log = RemoteLog(place["name"], uuid_text(place["id"]), place["partition"])
        epochs = {each["leader_epoch"]: each["offset"] for each in fields["segment_leader_epochs"]}
        segment = RemoteSegment(
            log,
            uuid_text(segment_id),
            fields["start_offset"],
            fields["end_offset"],
            epochs,
            fields["max_timestamp_ms"],
            fields["segment_size_in_bytes"],
            fields["custom_metadata"],
        )
        state = SegmentState(fields["remote_log_segment_state"])
        found.setdefault(log, []).append(Announced(segment, state))
    return found


def remote_segments(directory: str) -> dict[RemoteLog, list[RemoteSegment]]:
    """The readable segments of each log that the broker's list has."""
    readable = {
        log: [each.segment for each in segments if each.state is SegmentState.COPY_FINISHED]
        for log, segments in (announced_segments(directory) or {}).items()
    }
    return {log: segments for log, segments in readable.items() if segments}
