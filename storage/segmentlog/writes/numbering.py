"""Number the records of an idempotent producer in each partition."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from segmentlog.format.kernels.sequences import assign_sequences
from segmentlog.format.records.encoder import EncodedBatches
from segmentlog.model import TopicPartition
from segmentlog.writes.config import Producer

#: Finds the sequences that follow in the logs of some partitions.
FindSequences: TypeAlias = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, int]]


class SequenceNumbers:
    """The sequences of one producer, flush by flush.

    A flush that failed, or whose result is in doubt, is repeated with the same numbers: if the
    flush did take place, its batches are recognised.

    `after_the_log`: reads the logs of partitions without a given sequence.
    """

    def __init__(self, producer: Producer, after_the_log: FindSequences) -> None:
        self._producer = producer
        self._after_the_log = after_the_log
        self._flushed: dict[TopicPartition, int] = {}
        self._staged: dict[TopicPartition, int] = {}

    def look_up(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Find the first sequences of partitions; their batches can be numbered then.

        Raises `LogLockedError` or `CorruptLogError` if a log has to be read for its next sequence,
        and cannot be.
        """
        unknown = []
        for each in topic_partitions:
            if each not in self._flushed:
                given = self._producer.first_sequence(each.partition)
                if given is None:
                    unknown.append(each)
                else:
                    self._flushed[each] = given
        if unknown:
            self._flushed |= self._after_the_log(unknown)

    def number(self, topic_partition: TopicPartition, batches: EncodedBatches) -> None:
        """Give the next batches of a partition their sequences."""
        self._staged[topic_partition] = assign_sequences(
            batches.buffer,
            batches.table,
            self._producer.producer_id,
            self._producer.producer_epoch,
            self._staged.get(topic_partition, self._flushed[topic_partition]),
        )

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
