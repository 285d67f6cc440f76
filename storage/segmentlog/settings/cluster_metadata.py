"""Settings of topics and brokers, from the log of a cluster's metadata (KRaft).

The log is the partition directory ``__cluster_metadata-0``, on one disk of every controller and
broker.  Its newest snapshot (``<end offset>-<epoch>.checkpoint``) has the state up to that offset,
and the records after that offset change it.  A broker makes a snapshot in a ``.part`` file, so a
``.checkpoint`` is whole.

The log is read to its end.  In a cluster of several controllers, the last records may not have
been committed yet: the high watermark of this log is not on disk.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from segmentlog.disk.readable import is_directory, list_names, status_of
from segmentlog.errors import LogDirectoryError
from segmentlog.model import METADATA_TOPIC, TopicPartition
from segmentlog.names import partition_path
from segmentlog.reads.listed import ListedSegments
from segmentlog.reads.moment import Listing
from segmentlog.reads.plan import cut_slices
from segmentlog.segments.listing import SegmentFiles, list_segments
from segmentlog.settings.metadata_messages import Field, Kind, Message, Schema, decode_message

__all__ = ["ClusterSettings", "metadata_path", "read_cluster_settings"]

_PARTITION = TopicPartition(METADATA_TOPIC, 0)
_SNAPSHOT = re.compile(r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint")

#: By api key; the field lists are those of Kafka's own schemas.
_SCHEMAS = {
    2: Schema("TopicRecord", 0, (Field("name", Kind.STRING), Field("topic_id", Kind.UUID))),
    4: Schema(
        "ConfigRecord",
        0,
        (
            Field("resource_type", Kind.INT8),
            Field("resource_name", Kind.STRING),
            Field("name", Kind.STRING),
            Field("value", Kind.NULLABLE_STRING),
        ),
    ),
    9: Schema("RemoveTopicRecord", 0, (Field("topic_id", Kind.UUID),)),
    23: Schema("BeginTransactionRecord", 0, ()),
    24: Schema("EndTransactionRecord", 0, ()),
    25: Schema("AbortTransactionRecord", 0, ()),
}
_REMEDY = "give all settings in the call, or a complete copy of the metadata"
_TOPIC, _BROKER = 2, 4  #: types of resources (``ConfigResource.Type``)


@dataclass
class ClusterSettings:
    """The settings in a cluster's metadata, by Kafka's names.

    Attributes
    ----------
    topics : topics' own settings, by topic; a topic without settings has an empty entry.
    brokers : dynamic settings of brokers, by node id in text; ``""`` are those of all brokers.
    """

    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    brokers: dict[str, dict[str, str]] = field(default_factory=dict)
    _ids: dict[object, str] = field(default_factory=dict)

    def apply(self, message: Message) -> None:
        """Apply a record; records come in the order of the log."""
        fields = message.fields
        if message.name == "TopicRecord":
            self._ids[fields["topic_id"]] = fields["name"]
            self.topics.setdefault(fields["name"], {})
        elif message.name == "RemoveTopicRecord":
            self.topics.pop(self._ids.pop(fields["topic_id"], ""), None)
        elif message.name == "ConfigRecord":
            self._configure(fields)

    def _configure(self, fields: Mapping[str, Any]) -> None:
        kind, name = fields["resource_type"], fields["resource_name"]
        if kind not in (_TOPIC, _BROKER):
            return
        settings = (self.topics if kind == _TOPIC else self.brokers).setdefault(name, {})
        if fields["value"] is None:
            settings.pop(fields["name"], None)
        else:
            settings[fields["name"]] = fields["value"]


def metadata_path(directory: str) -> str | None:
    """Path of the metadata log in a log directory, or None if there is none."""
    path = partition_path(directory, _PARTITION)
    return path if is_directory(path) else None


def read_cluster_settings(path: str) -> ClusterSettings:
    """The settings in a metadata log.

    Parameters
    ----------
    path : of the directory ``__cluster_metadata-0``.

    Raises
    ------
    LogDirectoryError
        If a record cannot be decoded, or has a newer version; if records between the snapshot and
        the log are missing.
    CorruptLogError
        If a batch is damaged.
    """
    settings = ClusterSettings()
    pending: list[Message] | None = None  # of a transaction that has not ended
    for message in _messages(path):
        if message.name == "BeginTransactionRecord":
            pending = []
        elif message.name == "AbortTransactionRecord":
            pending = None
        elif message.name == "EndTransactionRecord":
            for each in pending or ():
                settings.apply(each)
            pending = None
        elif pending is not None:
            pending.append(message)
        else:
            settings.apply(message)
    return settings


def _messages(path: str) -> Iterator[Message]:
    """Known records of the newest snapshot, and of the log after it."""
    begin = 0
    snapshots = [match for name in list_names(path) if (match := _SNAPSHOT.fullmatch(name))]
    if snapshots:
        newest = max(snapshots, key=lambda match: (int(match["offset"]), int(match["epoch"])))
        begin = int(newest["offset"])
        file = os.path.join(path, newest[0])
        yield from _scan(path, [SegmentFiles(0, file, status_of(file).size)], 0)
    yield from _scan(path, list_segments(path), begin)


def _scan(path: str, files: Sequence[SegmentFiles], begin: int) -> Iterator[Message]:
    """Known records at or after an offset."""
    from segmentlog.reads.scan import scan_slice  # the compiled kernels load here

    listed = ListedSegments(Listing(tuple(files)), 0, -1)
    if not listed.files:
        return
    first, end = listed.files[0].base_offset, listed.end
    if first > begin:
        reason = f"begins at offset {first}, and no snapshot reaches beyond offset {begin}"
        raise LogDirectoryError(path, f"{reason}; {_REMEDY}")
    if end.damaged_from is not None:
        reason = f"is damaged from offset {end.damaged_from} on"
        raise LogDirectoryError(listed.files[-1].path, f"{reason}; {_REMEDY}")
    for log_slice in cut_slices(_PARTITION, listed, begin, end.offset, 0):
        for batch in scan_slice(log_slice, columns=["offset", "value"]):
            values, offsets = batch["value"].to_pylist(), batch["offset"].to_pylist()
            for offset, value in zip(offsets, values, strict=True):
                try:
                    message = decode_message(value or b"", _SCHEMAS)
                except ValueError as error:
                    reason = f"its record at offset {offset} cannot be read: {error}"
                    raise LogDirectoryError(path, f"{reason}; {_REMEDY}") from error
                if message is not None:
                    yield message
