"""Small frozen values that every floor speaks in; Kafka's words for all of them."""

from enum import IntEnum, StrEnum
from typing import NamedTuple

__all__ = [
    "INTERNAL_TOPICS",
    "METADATA_TOPIC",
    "Codec",
    "LogSlice",
    "ReadUpTo",
    "SliceFile",
    "TimestampAndOffset",
    "TimestampType",
    "TopicPartition",
]

#: Topics that brokers keep for themselves; no subscription selects them
#: (``org.apache.kafka.common.internals.Topic``).
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

#: KRaft's own log; the loader of a broker leaves it out of the log directory altogether.
METADATA_TOPIC = "__cluster_metadata"


class TopicPartition(NamedTuple):
    """One partition of one topic, written ``topic-partition`` as its directory is."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TimestampType(IntEnum):
    """Who set a record's timestamp (``org.apache.kafka.common.record.TimestampType``)."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Codec(IntEnum):
    """Compression of a record batch, by the number in its attributes (``CompressionType``)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class ReadUpTo(StrEnum):
    """Where a read of the newest data ends."""

    HIGH_WATERMARK = "highWatermark"
    LOG_END = "logEnd"


class TimestampAndOffset(NamedTuple):
    """A record found by time: its timestamp in epoch milliseconds, and its offset."""

    timestamp_ms: int
    offset: int


class SliceFile(NamedTuple):
    """The part of one ``.log`` file that a slice reads.

    ``start`` and ``end`` are byte positions, half-open, and both stand between two batches.
    ``first_offset`` and ``first_crc`` are the base offset and stored checksum of the batch at
    ``start``: a file that no longer begins so there has been rewritten since planning.
    """

    path: str
    start: int
    end: int
    first_offset: int
    first_crc: int


class LogSlice(NamedTuple):
    """Offsets ``[start_offset, end_offset)`` of one partition, and the bytes that hold them.

    Small and picklable: it travels from the Spark driver to the task that reads it.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    files: tuple[SliceFile, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of ``.log`` files to read, before inflating."""
        return sum(file.end - file.start for file in self.files)
