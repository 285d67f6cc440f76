"""Slices to tasks, when ``maxPartitions`` asks for fewer tasks than there are slices.

Kafka's assignors `range`, `roundrobin` and `sticky` take partitions and members, and return the
partitions of each member.  The result depends on nothing else: the same input gives the same
assignment in every process, in any order of the input.  There are no racks here, so the rack-aware
variants of `range` and `sticky` (KIP-881) are left out.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from pyspark_segmentlog.options.reference import PartitionAssignor
from segmentlog.model import TopicPartition


class ReadPart(Protocol):
    """A part of a read, which one task reads as a whole."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Its partition."""

    @property
    def n_bytes(self) -> int:
        """Bytes of ``.log`` files."""


_Part = TypeVar("_Part", bound=ReadPart)


def group_slices(
    slices: Sequence[_Part], max_groups: int, assignor: PartitionAssignor
) -> list[tuple[_Part, ...]]:
    """Share `slices` among at most `max_groups` tasks.

    Kafka's assignors keep the slices of a topic-partition together, in one task; `BYTES` does not.

    Each task has at least one slice, and its slices are sorted like `slices`.
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
    """The largest slice first, each to the task that has the fewest bytes."""
    # No task then has more than 4/3 of the bytes that the best division would give its largest
    # task (Graham, 1969).
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


Assignment = dict[str, list[TopicPartition]]


def assign_range(
    partitions: Iterable[TopicPartition], members: Mapping[str, Collection[str]]
) -> Assignment:
    """Give each member a run of consecutive partitions of each topic.

    The partitions of a topic are shared evenly; the first members, by name, get those that are
    left over.  If two topics have the same number of partitions, a member with the same rank in
    both gets the same partition numbers.  So the first members get the partitions of all topics
    that have few partitions.

    ``org.apache.kafka.clients.consumer.RangeAssignor``, for the topics of each of `members`; the
    partitions of a member are sorted.
    """
    assignment: Assignment = {member: [] for member in sorted(members)}
    for topic, of_topic in _by_topic(partitions).items():
        subscribed = [member for member in assignment if topic in members[member]]
        given = 0
        for rank, member in enumerate(subscribed):
            more = rank < len(of_topic) % len(subscribed)
            count = len(of_topic) // len(subscribed) + more
            assignment[member] += of_topic[given : given + count]
            given += count
    return assignment


def assign_round_robin(
    partitions: Iterable[TopicPartition], members: Mapping[str, Collection[str]]
) -> Assignment:
    """Deal all partitions out, one to each member in turn, over all topics.

    Members take turns by name; a member that does not subscribe to the topic is skipped.
    With equal subscriptions, the numbers of partitions differ by at most one.

    ``org.apache.kafka.clients.consumer.RoundRobinAssignor``, for the topics of each of `members`;
    the partitions of a member are sorted.
    """
    names = sorted(members)
    assignment: Assignment = {member: [] for member in names}
    subscribed = set().union(*members.values())
    turn = 0
    for partition in sorted(set(partitions)):
        if partition.topic not in subscribed:
            continue
        while partition.topic not in members[names[turn % len(names)]]:
            turn += 1
        assignment[names[turn % len(names)]].append(partition)
        turn += 1
    return assignment


def assign_sticky(
    partitions: Iterable[TopicPartition], owned: Mapping[str, Collection[TopicPartition]]
) -> Assignment:
    """Share partitions evenly, and leave as many as possible where they are.

    All members subscribe to all topics, the case that Kafka calls constrained.  The numbers of
    partitions differ by at most one, and no other assignment with this property moves fewer
    partitions.

    `owned`: the partitions that each member had; an empty collection for a new member. Partitions
    that no longer exist are dropped.  A partition that two members claim belongs to neither.
    ``ConstrainedAssignmentBuilder`` of
    ``org.apache.kafka.clients.consumer.internals.AbstractStickyAssignor``.  In Kafka, members
    choose what they keep in the order of a hash table, so two runs may keep different partitions;
    here they choose in the order of their names.
    """
    everything = sorted(set(partitions))
    if not owned:
        return {}
    least, n_larger = divmod(len(everything), len(owned))
    assignment = _kept(set(everything), owned, least, n_larger)
    taken = {partition for kept in assignment.values() for partition in kept}
    free = [partition for partition in everything if partition not in taken]
    # Each round gives one partition to each member that is still below the least share, by name.
    below = [member for member in sorted(owned) if len(assignment[member]) < least]
    at_least = [member for member in sorted(owned) if len(assignment[member]) == least]
    given = 0
    while below:
        for member in below:
            assignment[member].append(free[given])
            given += 1
        at_least += [member for member in below if len(assignment[member]) == least]
        below = [member for member in below if len(assignment[member]) < least]
    for member, partition in zip(at_least, free[given:], strict=False):
        assignment[member].append(partition)
    return assignment


def _kept(
    existing: set[TopicPartition],
    owned: Mapping[str, Collection[TopicPartition]],
    least: int,
    n_larger: int,
) -> Assignment:
    """The partitions that members keep: `least` each, and one more for the first `n_larger`."""
    claims: dict[TopicPartition, int] = defaultdict(int)
    for partitions in owned.values():
        for partition in set(partitions):
            claims[partition] += 1
    kept: Assignment = {}
    for member in sorted(owned):
        mine = [each for each in set(owned[member]) if each in existing and claims[each] == 1]
        mine.sort(key=lambda each: (each.partition, each.topic))  # as in Kafka: spreads topics
        is_larger = len(mine) > least and n_larger > 0
        n_larger -= is_larger
        kept[member] = mine[: least + is_larger]
    return kept


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for partition in sorted(set(partitions)):
        topics.setdefault(partition.topic, []).append(partition)
    return topics
