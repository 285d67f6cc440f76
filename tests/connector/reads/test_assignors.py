"""Kafka's assignors: its own test cases, and properties for every input."""

from collections.abc import Mapping
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from pyspark_segmentlog.reads.task_groups import assign_range, assign_round_robin, assign_sticky
from segmentlog.model import TopicPartition


def partitions(**counts: int) -> list[TopicPartition]:
    """Partitions 0 to n - 1 of each topic, in random order."""
    return [TopicPartition(topic, i) for topic, n in counts.items() for i in reversed(range(n))]


def shown(assignment: Mapping[str, list[TopicPartition]]) -> dict[str, str]:
    """An assignment in a short form."""
    return {member: " ".join(map(str, each)) for member, each in assignment.items()}


def of_all(*members: str, topics: str = "a b") -> dict[str, list[str]]:
    """Members that all subscribe to these topics."""
    return dict.fromkeys(members, topics.split())


# RangeAssignorTest.


def test_range_without_topics_or_partitions() -> None:
    """Every member has an entry, which is empty."""
    assert {"m": []} == assign_range([], {"m": []})
    assert {"m": []} == assign_range([], {"m": ["a"]})
    assert {} == assign_range(partitions(a=3), {})


def test_range_of_one_member() -> None:
    """The member gets all partitions of its topics, and of no other topic."""
    assert {"m": "a-0 a-1 a-2"} == shown(assign_range(partitions(a=3, b=3), {"m": ["a"]}))
    assert {"m": "a-0 b-0 b-1"} == shown(assign_range(partitions(a=1, b=2), of_all("m")))


def test_range_of_two_members() -> None:
    """The first members by name get the remaining partitions of each topic."""
    assert {"m": "a-0", "n": ""} == shown(assign_range(partitions(a=1), of_all("n", "m")))
    assert {"m": "a-0", "n": "a-1"} == shown(assign_range(partitions(a=2), of_all("n", "m")))
    six = shown(assign_range(partitions(a=3, b=3), of_all("m", "n")))
    assert {"m": "a-0 a-1 b-0 b-1", "n": "a-2 b-2"} == six


def test_range_of_mixed_subscriptions() -> None:
    """The members that subscribe to a topic share it."""
    members = {"1": ["a"], "2": ["a", "b"], "3": ["a"]}
    expected = {"1": "a-0", "2": "a-1 b-0 b-1", "3": "a-2"}
    assert expected == shown(assign_range(partitions(a=3, b=2), members))


def test_range_of_four_members() -> None:
    """The topics have unequal sizes.

    The first member has the larger share of the first topic only.
    """
    expected = {"1": "a-0 a-1 b-0", "2": "a-2 b-1", "3": "a-3 b-2", "4": "a-4 b-3"}
    assert expected == shown(assign_range(partitions(a=5, b=4), of_all("1", "2", "3", "4")))


# RoundRobinAssignorTest.


def test_round_robin_without_topics_or_partitions() -> None:
    """Every member has an entry. Partitions do not wait for a missing subscriber."""
    assert {"m": []} == assign_round_robin([], {"m": ["a"]})
    assert {"m": []} == assign_round_robin(partitions(a=2), {"m": ["b"]})
    assert {} == assign_round_robin(partitions(a=3), {})


def test_round_robin_of_two_members() -> None:
    """The turn continues from topic to topic."""
    assert {"m": "a-0", "n": ""} == shown(assign_round_robin(partitions(a=1), of_all("m", "n")))
    six = shown(assign_round_robin(partitions(a=3, b=3), of_all("n", "m")))
    assert {"m": "a-0 a-2 b-1", "n": "a-1 b-0 b-2"} == six


def test_round_robin_of_mixed_subscriptions() -> None:
    """The turn skips members that do not subscribe to the topic."""
    members = {"1": ["a"], "2": ["a", "b"], "3": ["a"]}
    expected = {"1": "a-0", "2": "a-1 b-0 b-1", "3": "a-2"}
    assert expected == shown(assign_round_robin(partitions(a=3, b=2), members))


# ConstrainedAssignmentBuilder, by way of StickyAssignorTest and AbstractStickyAssignorTest.


def test_sticky_of_new_members() -> None:
    """Members without partitions get partitions in turn."""
    assert {} == assign_sticky(partitions(a=3), {})
    assert {"m": []} == assign_sticky([], {"m": []})
    six = shown(assign_sticky(partitions(a=3, b=3), {"n": [], "m": []}))
    assert {"m": "a-0 a-2 b-1", "n": "a-1 b-0 b-2"} == six


def test_sticky_when_a_member_comes() -> None:
    """The new member gets one partition, and the other member keeps the rest."""
    first = assign_sticky(partitions(a=3), {"1": []})
    second = assign_sticky(partitions(a=3), {**first, "2": []})
    assert {"1": "a-0 a-1", "2": "a-2"} == shown(second)


def test_sticky_when_a_member_goes() -> None:
    """Only the partitions of that member move."""
    before = assign_sticky(partitions(a=3), {"1": [], "2": [], "3": []})
    left = {member: kept for member, kept in before.items() if member != "1"}
    assert {"2": "a-1 a-0", "3": "a-2"} == shown(assign_sticky(partitions(a=3), left))


def test_sticky_when_a_topic_comes_and_goes() -> None:
    """Partitions of the removed topic are dropped, and those of the new topic are shared."""
    first = assign_sticky(partitions(a=2), {"1": [], "2": []})
    both = assign_sticky(partitions(a=2, b=3), first)
    assert {"1": "a-0 b-0 b-2", "2": "a-1 b-1"} == shown(both)
    assert {"1": "b-0 b-2", "2": "b-1"} == shown(assign_sticky(partitions(b=3), both))


def test_sticky_when_two_claim_the_same() -> None:
    """Neither member keeps the partition; it is assigned with the rest."""
    claimed = [TopicPartition("a", 0), TopicPartition("a", 1)]
    assert {"1": "a-0 a-2", "2": "a-1"} == shown(
        assign_sticky(partitions(a=3), {"1": claimed, "2": claimed})
    )


COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), max_size=4)
NAMES = st.lists(st.sampled_from(["1", "10", "2", "x", "y", "z"]), min_size=1, unique=True)


@given(counts=COUNTS, names=NAMES, data=st.data())
def test_all_partitions_are_assigned_once(
    counts: dict[str, int], names: list[str], data: st.DataObject
) -> None:
    """Each assignor does so, and evenly if subscriptions are equal."""
    everything = partitions(**counts)
    for assign in (assign_range, assign_round_robin):
        assignment = assign(everything, dict.fromkeys(names, counts))
        assert sorted(everything) == sorted(chain.from_iterable(assignment.values()))
        assert sorted(names) == list(assignment)

    owned: dict[str, list[TopicPartition]] = {name: [] for name in names}
    for partition in everything:
        owner = data.draw(st.sampled_from([*names, None]))
        if owner is not None:
            owned[owner].append(partition)
    assignment = assign_sticky(everything, owned)
    assert sorted(everything) == sorted(chain.from_iterable(assignment.values()))
    sizes = [len(each) for each in assignment.values()]
    assert max(sizes) - min(sizes) <= 1
    assert kept(assignment, owned) == most_that_can_be_kept(len(everything), owned)


def kept(assignment: Mapping[str, list], owned: Mapping[str, list]) -> int:
    """Partitions that did not move."""
    return sum(len(set(assignment[member]) & set(owned[member])) for member in owned)


def most_that_can_be_kept(n_partitions: int, owned: Mapping[str, list]) -> int:
    """Some members may keep one partition more than the least share.

    Their number is the remainder.
    """
    least, n_larger = divmod(n_partitions, len(owned))
    above = sum(len(each) > least for each in owned.values())
    return sum(min(len(each), least) for each in owned.values()) + min(above, n_larger)
