"""Ranges divided as by Spark's ``KafkaOffsetRangeCalculator``, and properties of any division."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_segmentlog.reads.offset_ranges import PartitionRange, split_ranges
from segmentlog.model import TopicPartition

#: For each partition the bounds of its tasks: each one ends where the next one starts.
Cuts = list[list[int]]


def ranges(bounds: Cuts) -> list[PartitionRange]:
    """A range for each two adjacent bounds, partition by partition."""
    return [
        PartitionRange(TopicPartition("t", partition), start, end)
        for partition, of_one in enumerate(bounds)
        for start, end in pairwise(of_one)
    ]


def whole(bounds: Cuts) -> list[PartitionRange]:
    """The range of each partition, before it is cut."""
    return ranges([[of_one[0], of_one[-1]] for of_one in bounds])


@pytest.mark.parametrize(
    ("min_partitions", "max_records", "expected"),
    [
        pytest.param(None, None, [[1, 2]], id="one"),
        pytest.param(3, None, [[1, 2], [1, 2], [1, 2]], id="three tasks for three partitions"),
        pytest.param(4, None, [[1, 2, 3, 4, 5]], id="one to four"),
        pytest.param(4, None, [[1, 5], [1, 7, 14, 21]], id="skewed"),
        pytest.param(4, None, [[1, 2], [1, 334, 667, 1001]], id="very skewed"),
        pytest.param(1, None, [[1, 5], [1, 21]], id="fewer tasks than partitions"),
        pytest.param(3, None, [[1, 4, 7, 11]], id="no exact multiple"),
        pytest.param(6, None, [[0, 3, 6, 10], [0, 3, 6, 10], [0, 1]], id="more than asked for"),
        pytest.param(
            9,
            None,
            [[0, 5000, 10_000], [0, 5000, 10_000, 15_000], [0, 5000, 10_000, 15_000, 20_000]],
            id="none small",
        ),
        pytest.param(
            6, None, [[0, 500], [0, 6000, 12_000], [0, 5000, 10_000, 15_001]], id="one small"
        ),
        pytest.param(6, None, [[0, 1], [0, 1], [0, 2500, 5000, 7500, 10_000]], id="two small"),
        pytest.param(4, None, [[0, 1], [0, 1], [0, 1, 2]], id="one of three divided"),
        pytest.param(None, 4, [[1, 5]], id="exactly the allowed records"),
        pytest.param(None, 4, [[1, 2]], id="fewer records"),
        pytest.param(None, 4, [[1, 3, 6]], id="more records"),
        pytest.param(
            None, 20, [[1, 20, 40], [1, 17, 33, 50], [1, 20, 40, 60]], id="three partitions"
        ),
        pytest.param(1, 20, [[1, 20, 40]], id="records, then few tasks"),
        pytest.param(4, 20, [[1, 10, 20, 30, 40]], id="records, then many tasks"),
    ],
)
def test_the_cases_of_spark(
    min_partitions: int | None, max_records: int | None, expected: Cuts
) -> None:
    """The cases are those of ``KafkaOffsetRangeCalculatorSuite``. Executors have no preference."""
    assert ranges(expected) == split_ranges(whole(expected), min_partitions, max_records)


@pytest.mark.parametrize(("min_partitions", "n_pieces"), [(None, 1), (4, 4)])
@pytest.mark.parametrize("end", [1, 0])
def test_ranges_without_offsets_are_left_out(
    min_partitions: int | None, n_pieces: int, end: int
) -> None:
    """Ranges that end before their start are left out, too.

    Other ranges are cut as without them.
    """
    there = PartitionRange(TopicPartition("t", 1), 1, 21)
    found = split_ranges([PartitionRange(TopicPartition("t", 0), 1, end), there], min_partitions)

    assert n_pieces == len(found)
    assert [] == split_ranges([PartitionRange(TopicPartition("t", 0), 1, end)], min_partitions)


def test_ranges_without_offsets_do_not_count_as_tasks() -> None:
    """One of three partitions is empty, so four tasks are shared by the other two."""
    bounds = [[1, 5], [1, 7, 14, 21]]
    empty = PartitionRange(TopicPartition("t", 2), 1, 1)

    assert ranges(bounds) == split_ranges([*whole(bounds), empty], min_partitions=4)


def test_a_piece_that_stays_whole_keeps_its_partition_s_other_pieces_whole() -> None:
    """Pieces have 13, 13 and 14 offsets, and only the last would be divided."""
    of_one = PartitionRange(TopicPartition("t", 0), 0, 40)
    other = PartitionRange(TopicPartition("t", 1), 0, 10)
    found = split_ranges([of_one, other], min_partitions=5, max_records=14)

    assert [(0, 13), (13, 26), (26, 40)] == [each[1:] for each in found[:3]]


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 10_000)), max_size=8),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(50, 2**63 - 1),
)
def test_no_offset_is_lost_or_read_twice(
    sizes: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    """The pieces of a range follow each other from its start to its end."""
    given_ranges = [
        PartitionRange(TopicPartition("t", i), start, start + size)
        for i, (start, size) in enumerate(sizes)
    ]
    found = split_ranges(given_ranges, min_partitions, max_records)

    for each in given_ranges:
        pieces = [piece for piece in found if piece.topic_partition == each.topic_partition]
        at = each.start_offset
        for piece in pieces:
            assert piece.start_offset == at < piece.end_offset
            at = piece.end_offset
        assert at == each.end_offset
    assert found == sorted(found)
    assert all(max_records is None or piece.size <= max_records for piece in found)
