"""Segments are merged within limits: bytes, bytes of indexes, and the span of offsets."""

from segmentlog.maintain.compaction.clean_partition import group_segments
from segmentlog.txn.guard import SegmentSizes


def size(base: int, log: int, offset_index: int = 0, time_index: int = 0) -> SegmentSizes:
    """The bytes of a segment."""
    return SegmentSizes(base, log, offset_index, time_index)


def groups(
    *segments: SegmentSizes, most: int = 1000, most_index: int = 1000, end: int = 10**6
) -> list[list[int]]:
    """Base offsets by group."""
    found = group_segments(segments, most, most_index, end)
    return [[each.base_offset for each in segments[group]] for group in found]


def test_nothing() -> None:
    """A log without segments has no groups."""
    assert [] == groups()


def test_by_bytes() -> None:
    """A group may be exactly as large as the limit. A segment above the limit is alone."""
    segments = [size(i, 10) for i in range(5)]

    assert [[0, 1, 2, 3, 4]] == groups(*segments, most=50)
    assert [[0, 1], [2, 3], [4]] == groups(*segments, most=29)
    assert [[0], [1], [2], [3], [4]] == groups(*segments, most=1)


def test_by_bytes_of_indexes() -> None:
    """The limit applies to each of the two indexes separately."""
    assert [[0], [1]] == groups(size(0, 1, 8, 0), size(1, 1, 8, 0), most_index=15)
    assert [[0], [1]] == groups(size(0, 1, 0, 12), size(1, 1, 0, 12), most_index=23)
    assert [[0, 1]] == groups(size(0, 1, 8, 12), size(1, 1, 8, 12), most_index=24)


def test_by_offsets() -> None:
    """An index holds offsets up to 2**31 - 1 above its base.

    The next base is the bound of a segment's offsets.
    """
    far = 2**31
    assert [[0, 100]] == groups(size(0, 1), size(100, 1), end=far)
    assert [[0], [100]] == groups(size(0, 1), size(100, 1), end=far + 1)
    three = size(0, 1), size(100, 1), size(far, 1)
    assert [[0, 100], [far]] == groups(*three, end=far + 10)


def test_segments_without_bytes_join_whatever_their_offsets() -> None:
    """An empty segment would stay for each 2**31 offsets otherwise."""
    assert [[0, 2**31]] == groups(size(0, 0), size(2**31, 0), end=2**33)
