"""The contract of a layout: how a plugin arranges remote segments in a bucket."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

from segmentlog.store.readable import ReadableFile


class Part(StrEnum):
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

    def open(self, segment: RemoteSegment, part: Part) -> ReadableFile | None:
        """A file of a segment; None if the segment does not have it.

        Raises `RemoteSegmentError` if a file that the segment must have is missing or damaged.
        """
