"""Settings of a producer, under Kafka's names: how rows become batches."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from segmentlog.arguments import instance_of, whole_number
from segmentlog.dialects import class_of_one_dialect
from segmentlog.format.topic_config import TopicConfig
from segmentlog.model import BATCH_SIZE, Codec

#: Bytes of rows that a task holds before it writes batches; Kafka's default of ``buffer.memory``.
BUFFER_MEMORY = 32 << 20

_LARGEST_SEQUENCE = 2**31 - 1
_LARGEST_PARTITION = 2**31 - 1


@class_of_one_dialect()
@dataclass(frozen=True, slots=True)
class Producer:
    """An idempotent producer: a batch that is sent again is written once.

    Attributes
    ----------
    producer_id : of its batches; no other producer of the log may have it.
    producer_epoch : a higher one fences writers with a lower one, and begins at sequence 0.
    base_sequence : number of the first record that is to be written: one number for all
        partitions, or numbers by partition; where none is given, numbering continues after the
        last sequence in the log.

    Raises
    ------
    OptionError
        If a number is out of its bounds, or not a whole number.
    """

    producer_id: int
    producer_epoch: int = 0
    base_sequence: int | Mapping[int, int] | None = None

    def __post_init__(self) -> None:
        given = self.base_sequence
        whole_number("producer_id", self.producer_id)
        whole_number("producer_epoch", self.producer_epoch, 0, 2**15 - 1)
        if isinstance(given, Mapping):
            for partition, sequence in given.items():
                whole_number("base_sequence", partition, 0, _LARGEST_PARTITION, "partitions")
                whole_number("base_sequence", sequence, 0, _LARGEST_SEQUENCE)
        elif given is not None:
            whole_number("base_sequence", given, 0, _LARGEST_SEQUENCE)

    def first_sequence(self, partition: int) -> int | None:
        """Number of the first record of a partition, if it is given."""
        given = self.base_sequence
        return given.get(partition) if isinstance(given, Mapping) else given


@class_of_one_dialect()
@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Settings of a write.

    Attributes
    ----------
    topic_config : of the topics that are written to; settings that are not given come from the
        directory, or else are Kafka's defaults.
    own : the settings of topics that differ from `topic_config`; a job without a topic finds them
        in the directory.
    codec, level : the compression; None is Kafka's default level of the codec.
    batch_size : bytes of a batch before compression.
    buffer_memory : bytes of rows to hold before batches are written.
    max_request_size : most bytes of a batch, in addition to the topic's ``max.message.bytes``.
    use_timestamps : whether the column ``timestamp`` is used, instead of the time of writing.
    use_timestamp_types : whether ``timestampType`` is also used: rows whose timestamp is a log's
        append time keep it as append time.
    use_offsets : whether the column ``offset`` is used, instead of the next offsets of the log.
    flush : whether everything is synced before a commit is decided.
    max_bytes_per_second : the most bytes that tasks write in a second.  All processes of the user
        on this machine that read or write the log directory with a limit share it.

    Raises
    ------
    OptionError
        If a size is out of its bounds.
    """

    topic_config: TopicConfig = field(default_factory=TopicConfig)
    own: Mapping[str, TopicConfig] = field(default_factory=dict, kw_only=True)
    codec: Codec = Codec.NONE
    level: int | None = None
    batch_size: int = BATCH_SIZE
    buffer_memory: int = BUFFER_MEMORY
    max_request_size: int | None = None
    use_timestamps: bool = False
    use_timestamp_types: bool = False
    use_offsets: bool = False
    flush: bool = True
    max_bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        instance_of("topic_config", self.topic_config, TopicConfig, "give a TopicConfig")
        instance_of("own", self.own, Mapping, "give a TopicConfig by each topic's name")
        instance_of("codec", self.codec, Codec, "give a Codec")
        sizes = {"batch_size": 0, "buffer_memory": 1, "max_request_size": 1,
                 "max_bytes_per_second": 1}  # fmt: skip
        for name, least in sizes.items():
            size = getattr(self, name)
            if size is not None or name not in ("max_request_size", "max_bytes_per_second"):
                whole_number(name, size, least, what="bytes")

    def preserving(self) -> "ProducerConfig":
        """These settings, with every column of a log's rows used."""
        return replace(self, use_timestamps=True, use_timestamp_types=True, use_offsets=True)

    def of(self, topic: str) -> "ProducerConfig":
        """The settings for one topic."""
        own = self.own.get(topic)
        return self if own is None else replace(self, topic_config=own, own={})

    def config_of(self, topic: str) -> TopicConfig:
        """The settings of one topic's logs."""
        return self.own.get(topic, self.topic_config)

    @property
    def least_segment_bytes(self) -> int:
        """Bytes of the smallest segments among the topics."""
        return min(each.segment_bytes for each in (self.topic_config, *self.own.values()))

    @property
    def batch_codec(self) -> Codec:
        """The topic's codec, or else the producer's."""
        codec = self.topic_config.compression_type
        return self.codec if codec is None else codec

    @property
    def most_batch_bytes(self) -> int:
        """Bytes of the largest batch that both the log and the producer allow."""
        config = self.topic_config
        most = min(config.max_message_bytes, config.segment_bytes)
        return most if self.max_request_size is None else min(most, self.max_request_size)
