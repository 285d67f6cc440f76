"""Layouts: how a plugin arranges remote segments in a bucket.

`Layout` is the contract.  `LocalTier` is Kafka's own ``LocalTieredStorage``, which tests and
demonstrations of tiered storage use; `segmentlog.tiered.aiven` has that of Aiven's plugin.
"""

import os
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

from segmentlog.errors import RemoteSegmentError
from segmentlog.format.names import parse_partition_directory
from segmentlog.store.readable import (
    FileType,
    ReadableFile,
    is_directory,
    list_entries,
    list_names,
    open_file,
    survey,
)


class RemoteFileKind(StrEnum):
    """A file of a remote segment; the value is its suffix in the tier of a broker's tests."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    SNAPSHOT = "snapshot"  #: producers after the last offset of the segment
    LEADER_EPOCHS = "leader_epoch_checkpoint"  #: all epochs up to the end of the segment


class RemoteLog(NamedTuple):
    """The log of a partition in a bucket; a topic that was created again has another id."""

    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} (topic id {self.topic_id})"


class RemoteSegment(NamedTuple):
    """A segment whose copy is complete."""

    log: RemoteLog  # its log
    segment_id: str  # random id of the copy, as Kafka prints it
    start_offset: int  # its base offset
    #: last offset, which may be after the last record; -1 if the layout has none
    end_offset: int = -1
    #: start offset of each leader epoch in the segment; None if the layout has none
    epochs: Mapping[int, int] | None = None
    max_timestamp_ms: int = -1  # largest timestamp (epoch, milliseconds), or -1
    n_bytes: int = -1  # size of the ``.log`` file; -1 if the layout has none
    custom_metadata: bytes | None = None  # bytes that the plugin has stored with the broker


class RemoteObject(NamedTuple):
    """An object in the folder of a log, whether its segment is complete or not."""

    path: str  # of the object
    segment_id: str  # of its segment; empty if the name is not a name of the layout


class Layout(Protocol):
    """A bucket, or a part of one, in which a plugin keeps remote segments."""

    def logs(self, topics: Collection[str] = ()) -> list[RemoteLog]:
        """All logs, or those of some topics.

        Raises `StorageError` if the bucket cannot be listed.
        """

    def segments(self, log: RemoteLog) -> list[RemoteSegment]:
        """The complete segments of a log, in any order."""

    def folder(self, log: RemoteLog) -> str:
        """Path of the folder of a log."""

    def objects(self, log: RemoteLog) -> list[RemoteObject]:
        """All objects in the folder of a log, sorted by their paths; none if it is missing.

        Raises `StorageError` if the folder cannot be listed.
        """

    def open(self, segment: RemoteSegment, part: RemoteFileKind) -> ReadableFile | None:
        """A file of a segment; None if the segment does not have it.

        Raises `RemoteSegmentError` if a file that the segment must have is missing or damaged.
        """


_BELOW = "kafka-tiered-storage"

_ID = r"[A-Za-z0-9_-]{22}"
_DIRECTORY = re.compile(rf"(?P<partition>.+-[0-9]+)-(?P<id>{_ID})")
_LOG = re.compile(rf"(?P<offset>[0-9]{{20}})-(?P<id>{_ID})\.log")
_OBJECT = re.compile(rf"[0-9]{{20}}-(?P<id>{_ID})\.(?:{'|'.join(RemoteFileKind)})")

_REMEDY = "restore the object, or remove the segment from the tier"


class LocalTier:
    """``<topic>-<partition>-<topic id>/<start offset>-<segment id>.<part>``; see `Layout`.

    All lies in the directory ``kafka-tiered-storage`` below the directory of the broker's setting.
    Topic ids contain ``-`` and ``_``, so names are read from their end.  Rules:
    ``RemoteLogSegmentFileset``, ``RemoteTopicPartitionDirectory``.

    `root`: the directory of the broker's setting (``rsm.config.dir``), or the one below it: a
    path, or a URL in the form of a path.
    """

    def __init__(self, root: str) -> None:
        survey(root)
        below = os.path.join(root, _BELOW)
        self._root = below if is_directory(below) else root

    def logs(self, topics: Collection[str] = ()) -> list[RemoteLog]:
        found = []
        for entry in list_entries(self._root):
            named = _DIRECTORY.fullmatch(entry.name)
            parsed = named and parse_partition_directory(named["partition"])
            if entry.type is FileType.DIRECTORY and named and parsed:
                topic, partition = parsed[0]
                if not topics or topic in topics:
                    found.append(RemoteLog(topic, named["id"], partition))
        return found

    def segments(self, log: RemoteLog) -> list[RemoteSegment]:
        """See `Layout`; a copy that was interrupted lacks the part that is written last."""
        names = {*list_names(self.folder(log))}
        found = []
        for name in names:
            named = _LOG.fullmatch(name)
            if named and f"{name.removesuffix('.log')}.{RemoteFileKind.LEADER_EPOCHS}" in names:
                found.append(RemoteSegment(log, named["id"], int(named["offset"])))
        return found

    def objects(self, log: RemoteLog) -> list[RemoteObject]:
        directory = self.folder(log)
        try:
            names = sorted(list_names(directory))
        except FileNotFoundError:
            return []
        found = ((name, _OBJECT.fullmatch(name)) for name in names)
        return [
            RemoteObject(os.path.join(directory, name), named["id"] if named else "")
            for name, named in found
        ]

    def open(self, segment: RemoteSegment, part: RemoteFileKind) -> ReadableFile | None:
        name = f"{segment.start_offset:020d}-{segment.segment_id}.{part}"
        path = os.path.join(self.folder(segment.log), name)
        try:
            return open_file(path)
        except FileNotFoundError:
            if part is not RemoteFileKind.LOG:  # the log is scanned, as without a local index
                return None
            reason = "the object is missing, although other objects of its segment are there"
            raise RemoteSegmentError(path, reason, _REMEDY) from None

    def folder(self, log: RemoteLog) -> str:
        return os.path.join(self._root, f"{log.topic}-{log.partition}-{log.topic_id}")
