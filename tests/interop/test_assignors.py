"""Assignments equal those of Kafka's own Java classes."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from kafka_here.gateway import Gateway

from pyspark_segmentlog.reads.task_groups import assign_range, assign_round_robin, assign_sticky
from segmentlog.model import TopicPartition

pytestmark = pytest.mark.interop

Assignment = dict[str, list[TopicPartition]]


class JavaGroup:
    """Members of one consumer group, each with an assignor of the class `name`."""

    def __init__(self, java: Gateway, name: str) -> None:
        self._consumer = java.jvm.org.apache.kafka.clients.consumer
        self._common = java.jvm.org.apache.kafka.common
        self._java, self._name = java, name
        self._assignors: dict[str, Any] = {}

    def assign(
        self, partitions: Sequence[TopicPartition], members: Mapping[str, Sequence[str]]
    ) -> Assignment:
        """Assign partitions and inform the members, as the leader of a group does."""
        node = self._common.Node(0, "localhost", 9092)
        no_nodes = self._java.java.new_array(self._common.Node, 0)
        information = [
            self._common.PartitionInfo(each.topic, each.partition, node, no_nodes, no_nodes)
            for each in partitions
        ]
        cluster = self._common.Cluster("c", [node], information, set(), set())
        subscriptions = {}
        for member, topics in members.items():
            assignor = self._assignors.setdefault(member, getattr(self._consumer, self._name)())
            carried = assignor.subscriptionUserData(set(topics))
            of = self._consumer.ConsumerPartitionAssignor.Subscription
            subscriptions[member] = of(list(topics), carried)
        group = self._consumer.ConsumerPartitionAssignor.GroupSubscription(subscriptions)
        leader = self._assignors[next(iter(members))]
        made = leader.assign(cluster, group).groupAssignment()
        metadata = self._consumer.ConsumerGroupMetadata("group")
        for member in members:
            self._assignors[member].onAssignment(made[member], metadata)
        return {
            member: [TopicPartition(each.topic(), each.partition()) for each in it.partitions()]
            for member, it in made.items()
        }


@pytest.mark.parametrize(
    ("name", "assign"),
    [("RangeAssignor", assign_range), ("RoundRobinAssignor", assign_round_robin)],
)
def test_as_kafka_assigns(java: Gateway, name: str, assign: Any) -> None:
    """Topics, members and subscriptions are random."""
    rng = random.Random(5)
    for _ in range(10):
        topics = rng.sample("abcde", rng.randint(1, 5))
        every = [TopicPartition(topic, i) for topic in topics for i in range(rng.randint(1, 8))]
        members = {
            f"m{i}": rng.sample(topics, rng.randint(1, len(topics)))
            for i in range(rng.randint(1, 12))
        }
        expected = JavaGroup(java, name).assign(every, members)

        assert {each: sorted(its) for each, its in expected.items()} == assign(every, members)


def test_sticky_as_kafka_assigns(java: Gateway) -> None:
    """New members get Kafka's assignment.

    After a change, shares are as even as Kafka's, and as many partitions stay. Kafka asks members
    in the order of a hash table, so it may keep other partitions.
    """
    rng = random.Random(6)
    for _ in range(6):
        topics = rng.sample("abcde", rng.randint(1, 5))
        every = sorted(TopicPartition(t, i) for t in topics for i in range(rng.randint(1, 8)))
        names = [f"m{i:02}" for i in range(rng.randint(1, 9))]
        group = JavaGroup(java, "StickyAssignor")
        first = group.assign(every, dict.fromkeys(names, topics))

        assert first == assign_sticky(every, {name: [] for name in names})

        changed = [*rng.sample(names, rng.randint(1, len(names))), "new1", "new2"]
        theirs = group.assign(every, dict.fromkeys(changed, topics))
        ours = assign_sticky(every, {name: first.get(name, []) for name in changed})

        assert sorted(map(len, theirs.values())) == sorted(map(len, ours.values()))
        assert staying(theirs, first) == staying(ours, first)


def staying(assignment: Assignment, before: Assignment) -> int:
    """Partitions that have not moved."""
    return sum(len(set(its) & set(before.get(name, []))) for name, its in assignment.items())
