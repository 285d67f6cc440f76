"""Number the records of an idempotent producer in each partition."""

from collections.abc import Callable

from segmentlog.kernels.sequences import assign_sequences
from segmentlog.model import TopicPartition
from segmentlog.records.encoder import EncodedBatches
from segmentlog.stage.config import Producer

__all__ = ["SequenceNumbers"]


class SequenceNumbers:
    """The sequences of one producer, flush by flush.

    A flush that failed, or whose result is in doubt, is repeated with the same numbers: if the
    flush did take place, its batches are recognised.

    Parameters
    ----------
    producer : the producer.
    after_the_log : gives the sequence that follows in a partition's log.
    """

    def __init__(self, producer: Producer, after_the_log: Callable[[TopicPartition], int]) -> None:
        self._producer = producer
        self._after_the_log = after_the_log
        self._flushed: dict[TopicPartition, int] = {}
        self._staged: dict[TopicPartition, int] = {}

    def number(self, topic_partition: TopicPartition, batches: EncodedBatches) -> None:
        """Give the next batches of a partition their sequences.

        Raises
        ------
        LogLockedError, CorruptLogError
            If the log has to be read for its next sequence, and cannot be.
        """
        if topic_partition not in self._staged:
            self._staged[topic_partition] = self._first(topic_partition)
        self._staged[topic_partition] = assign_sequences(
            batches.buffer,
            batches.table,
            self._producer.producer_id,
            self._producer.producer_epoch,
            self._staged[topic_partition],
        )

    def _first(self, topic_partition: TopicPartition) -> int:
        if topic_partition not in self._flushed:
            given = self._producer.first_sequence(topic_partition.partition)
            if given is None:
                given = self._after_the_log(topic_partition)
            self._flushed[topic_partition] = given
        return self._flushed[topic_partition]

    def flushed(self) -> None:
        """All records that were numbered are in the log."""
        self._flushed |= self._staged

    def forget(self) -> None:
        """Number the records since the last flush again."""
        self._staged.clear()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Partitions with records since the last flush."""
        return frozenset(self._staged)
