"""The placement of replicas is that of Kafka's own class, with the same random numbers."""

from collections.abc import Sequence
from typing import Any

import pytest
from kafka_here import kafka_jars
from kafka_here.gateway import Gateway, gateway

from segmentlog.cluster.placement import PlacedBroker, place_replicas

pytestmark = pytest.mark.interop

_PLACER = "org.apache.kafka.metadata.placement.StripedReplicaPlacer$RackList"


def racks(**brokers: Sequence[int]) -> list[PlacedBroker]:
    """Brokers by the names of their racks."""
    return [PlacedBroker(each, rack) for rack, found in brokers.items() for each in found]


CLUSTERS = {
    "no racks": [PlacedBroker(each) for each in range(5)],
    "one broker": [PlacedBroker(7)],
    "three racks": racks(c=[4, 5], a=[0, 1], b=[2, 3]),
    "racks of other sizes": racks(a=[0, 1, 2], b=[3]),
    "fenced": [PlacedBroker(each, is_fenced=each in {0, 4}) for each in range(5)],
    "one is not fenced": [PlacedBroker(each, "ab"[each % 2], each != 2) for each in range(4)],
    "some without a rack": [*racks(x=[0], y=[1]), PlacedBroker(2), PlacedBroker(3)],
    "twenty racks": [
        PlacedBroker(i, f"eu-{i % 20}\N{MICRO SIGN}\U0001f600", i % 7 == 3) for i in range(60)
    ],
}


@pytest.fixture(scope="module")
def java(new_version: str) -> Gateway:
    """A JVM with Kafka's classes."""
    return gateway(kafka_jars(new_version))


class KafkaRacks:
    """Kafka's own placer, whose class is not public."""

    def __init__(self, java: Gateway, brokers: Sequence[PlacedBroker], seed: int) -> None:
        jvm = java.jvm
        listed = jvm.java.util.ArrayList()
        usable = jvm.org.apache.kafka.metadata.placement.UsableBroker
        optional = jvm.java.util.Optional
        for node_id, rack, is_fenced in brokers:
            listed.add(usable(node_id, optional.ofNullable(rack), is_fenced))
        found = jvm.java.lang.Class.forName(_PLACER)
        (made,) = found.getDeclaredConstructors()
        made.setAccessible(True)
        arguments = java.java.new_array(jvm.java.lang.Object, 2)
        arguments[0], arguments[1] = jvm.java.util.Random(seed), listed.iterator()
        self._racks = made.newInstance(arguments)
        (self._place,) = (each for each in found.getDeclaredMethods() if each.getName() == "place")
        self._place.setAccessible(True)
        self._arguments = java.java.new_array(jvm.java.lang.Object, 1)

    def place(self, replication_factor: int) -> list[int]:
        """The brokers of the next partition."""
        self._arguments[0] = replication_factor
        found: Any = self._place.invoke(self._racks, self._arguments)
        return list(found)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.slow if number % 3 else pytest.mark.thorough)
        for number, each in enumerate(CLUSTERS)
    ],
)
def test_each_partition_has_the_brokers_that_kafka_chooses(java: Gateway, name: str) -> None:
    """More partitions than brokers: the lists are shuffled several times."""
    brokers = CLUSTERS[name]
    for replication_factor in {1, min(3, len(brokers)), min(8, len(brokers))}:
        kafka = KafkaRacks(java, brokers, replication_factor)
        n_partitions = 2 * len(brokers) + 3
        expected = [kafka.place(replication_factor) for _ in range(n_partitions)]
        random = java.jvm.java.util.Random(replication_factor)
        found = place_replicas(brokers, n_partitions, replication_factor, random.nextInt)
        assert expected == found, replication_factor
