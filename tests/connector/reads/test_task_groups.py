"""Slices are shared among tasks, without Spark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_segmentlog.options.reference import PartitionAssignor
from pyspark_segmentlog.reads.task_groups import group_slices
from segmentlog.model import LogSlice, SliceFile


def slice_of(topic: str, partition: int, n_bytes: int, start: int = 0) -> LogSlice:
    """A slice of a file with this number of bytes."""
    return LogSlice(topic, partition, start, start + 1, (SliceFile("f", 0, n_bytes, start, 0),))


@given(
    sizes=st.lists(st.integers(0, 100), min_size=1, max_size=40),
    n=st.integers(1, 12),
    assignor=st.sampled_from(PartitionAssignor),
)
def test_every_slice_is_in_one_task(sizes: list[int], n: int, assignor: PartitionAssignor) -> None:
    """Slices stay in order, in at most the given number of tasks, and no task is empty."""
    slices = [slice_of("ab"[i % 2], i // 4, size, start=i) for i, size in enumerate(sizes)]
    slices.sort()
    groups = group_slices(slices, n, assignor)

    assert slices == sorted(each for group in groups for each in group)
    assert 1 <= len(groups) <= n
    assert all(list(group) == sorted(group) and group for group in groups)
    if assignor is not PartitionAssignor.BYTES:
        places = [{each.topic_partition for each in group} for group in groups]
        assert sum(map(len, places)) == len(set.union(*places))


def test_bytes_are_balanced() -> None:
    """The largest slices are assigned first, whatever their partitions."""
    sizes = [10, 70, 20, 30, 40, 30]
    slices = [slice_of("a", i, size) for i, size in enumerate(sizes)]
    groups = group_slices(slices, 2, PartitionAssignor.BYTES)

    assert [100, 100] == [sum(each.n_bytes for each in group) for group in groups]
    assert 6 == len(group_slices(slices, 6, PartitionAssignor.BYTES))


def test_empty_slices_are_spread() -> None:
    """Slices without bytes are not all given to one task, which would open all the files."""
    slices = [slice_of("a", i, 0) for i in range(9)]
    assert {3} == {len(group) for group in group_slices(slices, 3, PartitionAssignor.BYTES)}


@pytest.mark.parametrize(
    ("assignor", "expected"),
    [
        (PartitionAssignor.RANGE, [["a-0", "a-1", "b-0"], ["a-2", "b-1"]]),
        (PartitionAssignor.ROUND_ROBIN, [["a-0", "a-2", "b-1"], ["a-1", "b-0"]]),
        (PartitionAssignor.STICKY, [["a-0", "a-2", "b-1"], ["a-1", "b-0"]]),
    ],
)
def test_kafkas_assignors(assignor: PartitionAssignor, expected: list[list[str]]) -> None:
    """The tasks are members of a group that subscribes to all topics."""
    slices = [slice_of(t, i, 5) for t, n in (("a", 3), ("b", 2)) for i in range(n)]
    groups = group_slices(slices, 2, assignor)
    assert expected == [[str(each.topic_partition) for each in group] for group in groups]


def test_tasks_beyond_ten_are_in_order() -> None:
    """Names of members are compared as text, and numbers of tasks as numbers."""
    slices = [slice_of("a", i, 5) for i in range(24)]
    groups = group_slices(slices, 12, PartitionAssignor.RANGE)
    assert list(range(0, 24, 2)) == [group[0].partition for group in groups]
