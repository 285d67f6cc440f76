"""Placements of new partitions; `tests/interop/test_striped_placer.py` compares with Kafka."""

import pytest

from segmentlog import OptionError
from segmentlog.cluster.placement import PlacedBroker, place_replicas

FIVE = [PlacedBroker(each) for each in range(5)]
RACKS = [PlacedBroker(each, "aabbcc"[each]) for each in range(6)]


def shown(brokers: list[PlacedBroker], n_partitions: int, replication_factor: int) -> str:
    """The brokers of each partition, with random numbers that are all 0."""
    found = place_replicas(brokers, n_partitions, replication_factor, lambda _: 0)
    return " ".join("".join(map(str, each)) for each in found)


def test_replicas_are_striped_over_brokers_and_racks() -> None:
    """Kafka's class gives these placements with the random number 0."""
    assert "012 123 234 340 401" == shown(FIVE, 5, 3)
    assert "024 351 402 135 240 513" == shown(RACKS, 6, 3)
    assert "0241 3512 4025 1350 2403 5134" == shown(RACKS, 6, 4)


def test_a_fenced_broker_never_leads() -> None:
    """It gets the last replicas."""
    brokers = [PlacedBroker(each, is_fenced=each in {0, 4}) for each in range(5)]
    assert "123" == shown(brokers, 1, 3)
    assert {"1", "2", "3"} == {each[0] for each in shown(brokers, 6, 4).split()}


@pytest.mark.parametrize(
    ("brokers", "replication_factor", "message"),
    [
        (FIVE, 6, "has 5 brokers"),
        (FIVE, 0, "has 5 brokers"),
        ([], 1, "has 0 brokers"),
        ([PlacedBroker(1, is_fenced=True)], 1, "all brokers are fenced"),
    ],
)
def test_a_placement_that_is_impossible(
    brokers: list[PlacedBroker], replication_factor: int, message: str
) -> None:
    """The error names the number of brokers."""
    with pytest.raises(OptionError, match=message):
        shown(brokers, 3, replication_factor)
