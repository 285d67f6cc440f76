"""Limits of micro-batches: the numbers of ``kafka``, and bytes."""

import pytest

from pyspark_segmentlog.reads.followed import MinimumDelay, limit_bytes, limit_offsets
from segmentlog.model import TopicPartition


def partitions(*offsets: int) -> dict[TopicPartition, int]:
    """Offsets of partitions 0, 1, … of a topic."""
    return {TopicPartition("t", i): offset for i, offset in enumerate(offsets)}


@pytest.mark.parametrize(
    ("starts", "ends", "limit", "expected"),
    [
        ((0, 0, 0), (101, 11, 1), 10, (8, 1, 1)),  # the numbers of Spark's own suite
        ((8, 1, 1), (101, 11, 1), 10, (17, 1 + 1, 1)),
        ((0, 0), (100, 100), 7, (3, 3)),  # the sum may be below the limit
        ((0,) * 20, (50,) * 20, 5, (1,) * 20),  # or above it, so that no partition starves
        ((5, 0), (5, 3), 10, (5, 3)),
        ((5, 9), (5, 4), 10, (5, 4)),  # an end before a start is reported elsewhere
        ((0, 2**62), (10, 2**63 - 1), 2**63 - 1, (10, 2**63 - 1)),
        ((), (), 5, ()),
    ],
)
def test_partitions_share_a_limit_in_proportion_to_their_backlogs(
    starts: tuple[int, ...], ends: tuple[int, ...], limit: int, expected: tuple[int, ...]
) -> None:
    """A share below 1 is rounded up, others are rounded down (``rateLimit``)."""
    found = limit_offsets(partitions(*starts), partitions(*ends), limit)

    assert partitions(*expected) == found


def test_bytes_are_shared_like_offsets() -> None:
    """A partition with three times the bytes gets three times the share."""
    asked = []

    def end_within(each: TopicPartition, start: int, end: int, n_bytes: int) -> int:
        asked.append((each.partition, start, end, n_bytes))
        return start + n_bytes // 10

    def n_bytes(_: TopicPartition, start: int, end: int) -> int:
        return 10 * (end - start)

    limited = limit_bytes(partitions(0, 5, 7), partitions(30, 15, 7), 200, n_bytes, end_within)
    assert partitions(15, 10, 7) == limited
    assert [(0, 0, 30, 150), (1, 5, 15, 50)] == asked
    whole = limit_bytes(partitions(0, 5, 7), partitions(30, 15, 7), 400, n_bytes, end_within)
    assert partitions(30, 15, 7) == whole


def test_a_micro_batch_waits_for_records_or_for_its_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one does not wait. A partition without a start counts from 0."""
    now = [5_000_000_000]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    delay = MinimumDelay(10, 2000)
    start = partitions(100)

    assert not delay.waits(start, partitions(101)), "the first micro-batch has waited"
    assert delay.waits(start, partitions(109))
    assert not delay.waits(start, partitions(109, 1)), "ten records are there"
    now[0] += 1_999_000_000
    assert delay.waits(start, partitions(101))
    now[0] += 1_000_000
    assert not delay.waits(start, partitions(101)), "the delay is over"
    assert delay.waits(start, partitions(101)), "the delay has not begun again"
