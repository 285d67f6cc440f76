"""Segments are merged within limits: bytes, bytes of indexes, and the span of offsets."""

from segmentlog.maintain.compaction.clean_partition import SegmentSize, group_segments


def groups(
    *segments: SegmentSize, most: int = 1000, most_index: int = 1000, end: int = 10**6
) -> list[list[int]]:
    """Base offsets by group."""
    found = group_segments(segments, most, most_index, end)
    return [[each.base_offset for each in segments[group]] for group in found]


def test_nothing() -> None:
    """A log without segments has no groups."""
    assert [] == groups()


def test_by_bytes() -> None:
    """A group may be exactly as large as the limit. A segment above the limit is alone."""
    segments = [SegmentSize(i, 10) for i in range(5)]

    assert [[0, 1, 2, 3, 4]] == groups(*segments, most=50)
    assert [[0, 1], [2, 3], [4]] == groups(*segments, most=29)
    assert [[0], [1], [2], [3], [4]] == groups(*segments, most=1)


def test_by_bytes_of_indexes() -> None:
    """The limit applies to each of the two indexes separately."""
    assert [[0], [1]] == groups(SegmentSize(0, 1, 8, 0), SegmentSize(1, 1, 8, 0), most_index=15)
    assert [[0], [1]] == groups(SegmentSize(0, 1, 0, 12), SegmentSize(1, 1, 0, 12), most_index=23)
    assert [[0, 1]] == groups(SegmentSize(0, 1, 8, 12), SegmentSize(1, 1, 8, 12), most_index=24)


def test_by_offsets() -> None:
    """An index holds offsets up to 2**31 - 1 above its base.

    The next base is the bound of a segment's offsets.
    """
    far = 2**31
    assert [[0, 100]] == groups(SegmentSize(0, 1), SegmentSize(100, 1), end=far)
    assert [[0], [100]] == groups(SegmentSize(0, 1), SegmentSize(100, 1), end=far + 1)
    three = SegmentSize(0, 1), SegmentSize(100, 1), SegmentSize(far, 1)
    assert [[0, 100], [far]] == groups(*three, end=far + 10)


def test_segments_without_bytes_join_whatever_their_offsets() -> None:
    """An empty segment would stay for each 2**31 offsets otherwise."""
    assert [[0, 2**31]] == groups(SegmentSize(0, 0), SegmentSize(2**31, 0), end=2**33)
