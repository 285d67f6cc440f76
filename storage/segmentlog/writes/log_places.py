"""Guesses of each log's end, so that most staged batches need no change in the commit.

A commit gives each batch its offset and the leader epoch.  If a task has staged the batch with
these values already, the commit has nothing to change.  Most logs end where they ended when the
task began, so the first task that brings records of a partition guesses right, and so does a task
that brings all of them.

A guess takes no lock and need not be true: the commit compares it with the log, and overwrites the
two fields where they differ.
"""

from collections.abc import Mapping
from typing import NamedTuple

from segmentlog.errors import SegmentLogError
from segmentlog.format.names import (
    HIGH_WATERMARK_CHECKPOINT,
    partition_path,
)
from segmentlog.log.checkpoint import read_offsets
from segmentlog.model import TopicPartition
from segmentlog.reads.partition import Partition

#: Offsets from here on are not guessed: the records of a task must not count beyond a long.
_MOST = 2**62


class LogPlace(NamedTuple):
    """An offset, and the leader epoch of the batch that begins there."""

    offset: int
    leader_epoch: int


class LogPlaces:
    """The ends of the logs of a directory, looked up when they are first asked for.

    The end is the high watermark, which each of our commits moves to the log end: one file
    contains it for all partitions.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._ends: Mapping[TopicPartition, int] | None = None
        self._places: dict[TopicPartition, LogPlace] = {}

    def end(self, topic_partition: TopicPartition) -> LogPlace:
        """The end of a log; offset 0 and epoch 0 if nothing is known of it."""
        if topic_partition not in self._places:
            self._places[topic_partition] = self._look_up(topic_partition)
        return self._places[topic_partition]

    def _look_up(self, topic_partition: TopicPartition) -> LogPlace:
        path = partition_path(self._directory, topic_partition)
        try:
            if self._ends is None:
                self._ends = read_offsets(self._directory, HIGH_WATERMARK_CHECKPOINT)
            epochs = Partition(path).leader_epochs()
        except (OSError, SegmentLogError):
            # The commit reads both again, and reports what is wrong with them.
            return LogPlace(0, 0)
        end = self._ends.get(topic_partition, 0)
        return LogPlace(end if end < _MOST else 0, epochs[-1][0] if epochs else 0)
