"""What a write asks for: its request, checked before anything is created, and Kafka's settings.

The settings decide how rows become batches.  A warning names the columns of a log's rows that the
write leaves out: legal, and easily overlooked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache
from typing import Annotated

from segmentlog.arguments import (
    checked,
    class_of_one_dialect,
    instance_of,
    number_by_word,
    switch,
    whole_number,
)
from segmentlog.declared import Declared, declared
from segmentlog.errors import OptionError
from segmentlog.format.names import check_topic_name
from segmentlog.format.topic_config import TopicConfig
from segmentlog.model import BATCH_SIZE, LARGEST_LONG, LOCK_TIMEOUT_SECONDS, Codec
from segmentlog.store.paths import writable_path
from segmentlog.txn.state import NumberedWrite
from segmentlog.txn.topics import MOST_PARTITIONS

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
    batch_size : bytes of a record batch before compression.
    buffer_memory : bytes of rows that are held before batches are made; a writer in Python holds
        as many bytes of batches until its commit.
    max_request_size : most bytes of a batch, in addition to the topic's ``max.message.bytes``.
    use_timestamps : whether to take the column ``timestamp``; otherwise records get the time of
        writing, as from the ``kafka`` sink.
    use_timestamp_types : whether to take the column ``timestampType`` as well: rows of type 1 keep
        ``timestamp`` as the time of appending.
    use_offsets : whether to take the columns ``partition`` and ``offset``, to restore a log:
        records keep their offsets, and do not get the next ones of the log.
    flush : whether everything is synced before a commit is decided.
    max_bytes_per_second : the most bytes that tasks write in a second; all processes of the user
        on this machine that read or write the log directory with a limit share it.

    Raises
    ------
    OptionError
        If a size is out of its bounds.
    """

    topic_config: TopicConfig = field(default_factory=TopicConfig)
    own: Mapping[str, TopicConfig] = field(default_factory=dict, kw_only=True)
    codec: Codec = Codec.NONE
    level: Annotated[int | None, Declared(least=-LARGEST_LONG)] = None
    batch_size: Annotated[
        int,
        Declared(
            unit="bytes",
            spark="kafka.batch.size",
            accepts="bytes, or a size such as `64k`; 0 for the smallest batches",
        ),
    ] = BATCH_SIZE
    buffer_memory: Annotated[
        int, Declared(least=1, unit="bytes", spark="kafka.buffer.memory", shown_default="`32m`")
    ] = BUFFER_MEMORY
    max_request_size: Annotated[int | None, Declared(least=1, unit="bytes")] = None
    use_timestamps: Annotated[bool, Declared(spark="includeTimestamp")] = False
    use_timestamp_types: Annotated[bool, Declared(spark="includeTimestampType")] = False
    use_offsets: Annotated[bool, Declared(spark="includeOffset")] = False
    flush: bool = True
    max_bytes_per_second: Annotated[
        int | None, Declared(least=1, unit="bytes", shown_default="no limit")
    ] = None

    def __post_init__(self) -> None:
        instance_of("topic_config", self.topic_config, TopicConfig, "give a TopicConfig")
        instance_of("own", self.own, Mapping, "give a TopicConfig by each topic's name")
        object.__setattr__(self, "codec", number_by_word("codec", self.codec, Codec))
        for name, option in _options().items():
            object.__setattr__(self, name, checked(option, getattr(self, name)))

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


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A write to a log directory, as `segmentlog.open_writer` or Spark asks for it.

    It is small and picklable, because it travels to every task as a part of its job.

    Raises `OptionError` if Kafka does not allow the topic's name, or this number of partitions; if
    a write that overwrites names no topic.  Raises `LogDirectoryError` if the path cannot be one.
    """

    directory: str  # absolute path of the log directory; the path of a user is made absolute
    config: ProducerConfig = field(default_factory=ProducerConfig)  # how rows become batches
    _: KW_ONLY
    topic: str | None = None  # of all rows, or None to take the column ``topic``
    #: of topics that are created; an existing `topic` must have this number.  By default one, or
    #: the partitions that rows with offsets of their own name.
    num_partitions: int | None = None
    #: whether missing topics are created; by default they are, except in a broker's own directory,
    #: where the broker would not know them
    auto_create_topics: bool | None = None
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS  # how long to wait for another writer
    numbered: NumberedWrite | None = None  # name and version of a numbered write
    #: name of the stream if the job writes one of its batches; earlier jobs of the stream end when
    #: this job begins
    stream: str | None = None
    overwrite: bool = False  # whether the records replace all earlier records of `topic`

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", writable_path(self.directory))
        if self.num_partitions is not None:
            whole_number("num_partitions", self.num_partitions, 1, MOST_PARTITIONS)
        if self.auto_create_topics is not None:
            switch("auto_create_topics", self.auto_create_topics)
        if self.topic is not None:
            check_topic_name(self.topic)
        elif self.overwrite:
            raise OptionError("topic", "", "name the topic whose records are to be deleted")


@cache
def _options() -> Mapping[str, Declared]:
    return declared(ProducerConfig)


def check_level(codec: Codec, level: int) -> None:
    """Refuse a level of compression that a codec does not have.

    Raises `OptionError` with the levels that the codec has.
    """
    # Its libraries load only for a level.
    from segmentlog.format.records.compression import Deflater

    Deflater(codec, level)


def columns_left_out(
    directory: str, names: Sequence[str], config: ProducerConfig, *, keeps: str, reads: str
) -> list[str]:
    """Warnings that name the columns of a log that are lost, and the settings that keep them.

    Rows that were read and are written back look complete: they have all columns of a log.  But
    offsets and times are the new log's own unless a setting keeps them, as in Kafka's sink.

    `keeps`, `reads`: how the caller's users keep all columns, and how they read headers.
    """
    taken = {
        "timestamp": config.use_timestamps,
        "timestampType": config.use_timestamp_types,
        "offset": config.use_offsets,
    }
    found = []
    lost = [name for name, is_taken in taken.items() if name in names and not is_taken]
    if lost:
        chosen = (
            "; their column partition is used, and chooses the partitions instead of the keys: "
            "drop it, too, if the topic is not the one that was read"
            if "partition" in names
            else ""
        )
        found.append(
            f"{directory}: the rows have {', '.join(lost)}, which this write does not keep: "
            "records get the time of writing and new offsets; give "
            f"{keeps} to keep these columns, or drop them{chosen}"
        )
    if taken.keys() <= set(names) and "headers" not in names:
        found.append(
            f"{directory}: the rows come from a log and have no column headers: headers of the "
            f"records, if there are any, are lost; {reads} reads headers"
        )
    return found
