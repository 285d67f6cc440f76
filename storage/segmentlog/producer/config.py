"""How rows become batches: settings of a producer, under Kafka's names."""

from dataclasses import dataclass, field

from segmentlog.log.config import TopicConfig
from segmentlog.model import BATCH_SIZE, Codec

__all__ = ["BUFFER_MEMORY", "ProducerConfig"]

#: Bytes of rows that a task holds before it writes batches; Kafka's default of ``buffer.memory``.
BUFFER_MEMORY = 32 << 20


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Settings of a write.

    Attributes
    ----------
    topic_config : of the topics that are written to.
    codec, level : the compression; None is Kafka's default level of the codec.
    batch_size : bytes of a batch before compression.
    buffer_memory : bytes of rows to hold before batches are written.
    use_timestamps : whether the column ``timestamp`` is taken, instead of the time of writing.
    flush : whether everything is synced before a commit is decided.
    """

    topic_config: TopicConfig = field(default_factory=TopicConfig)
    codec: Codec = Codec.NONE
    level: int | None = None
    batch_size: int = BATCH_SIZE
    buffer_memory: int = BUFFER_MEMORY
    use_timestamps: bool = False
    flush: bool = True
