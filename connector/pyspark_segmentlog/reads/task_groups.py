"""Slices to tasks, when ``maxPartitions`` asks for fewer tasks than there are slices."""

import heapq
from collections.abc import Sequence
from typing import Protocol, TypeVar

from pyspark_segmentlog.options.reference import PartitionAssignor
from pyspark_segmentlog.reads.assignors import assign_range, assign_round_robin, assign_sticky
from segmentlog.model import TopicPartition


class Part(Protocol):
    """A part of a read, which one task reads as a whole."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Its partition."""

    @property
    def n_bytes(self) -> int:
        """Bytes of ``.log`` files."""


_Part = TypeVar("_Part", bound=Part)


def group_slices(
    slices: Sequence[_Part], max_groups: int, assignor: PartitionAssignor
) -> list[tuple[_Part, ...]]:
    """Share `slices` among at most `max_groups` tasks.

    Kafka's assignors keep the slices of a topic-partition together, in one task; `BYTES` does not.

    `slices`: sorted by topic, partition and offset.  `max_groups`: the most tasks; at least 1.
    Returns slices of each task, none of them empty, each sorted like `slices`.
    """
    if assignor is PartitionAssignor.BYTES:
        return _by_bytes(slices, max_groups)
    partitions = sorted({each.topic_partition for each in slices})
    names = [f"{i:09}" for i in range(min(max_groups, len(partitions)))]  # sorted as numbers are
    if assignor is PartitionAssignor.STICKY:
        assignment = assign_sticky(partitions, {name: [] for name in names})
    else:
        topics = {each.topic for each in partitions}
        assign = assign_range if assignor is PartitionAssignor.RANGE else assign_round_robin
        assignment = assign(partitions, dict.fromkeys(names, topics))
    owner = {each: name for name, its in assignment.items() for each in its}
    groups: dict[str, list[_Part]] = {name: [] for name in names}
    for each in slices:
        groups[owner[each.topic_partition]].append(each)
    return [tuple(group) for group in groups.values() if group]


def _by_bytes(slices: Sequence[_Part], max_groups: int) -> list[tuple[_Part, ...]]:
    """The largest slice first, each to the task that has the fewest bytes.

    No task then has more than 4/3 of the bytes that the best division would give its largest task
    (Graham, 1969).
    """
    if len(slices) <= max_groups:
        return [(each,) for each in slices]
    groups: list[list[int]] = [[] for _ in range(max_groups)]
    # Slices without bytes count as one byte: else they would all fall to the same task.
    fewest = [(0, i) for i in range(max_groups)]
    for i in sorted(range(len(slices)), key=lambda i: -slices[i].n_bytes):
        n_bytes, group = fewest[0]
        groups[group].append(i)
        heapq.heapreplace(fewest, (n_bytes + max(slices[i].n_bytes, 1), group))
    return [tuple(slices[i] for i in sorted(group)) for group in groups]
