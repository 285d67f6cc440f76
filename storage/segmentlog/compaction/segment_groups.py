"""Groups of neighbouring segments, each written as one (``Cleaner.groupSegmentsBySize``)."""

from collections.abc import Sequence
from typing import NamedTuple

from segmentlog.kernels import layout

__all__ = ["SegmentSize", "group_segments"]


class SegmentSize(NamedTuple):
    """Base offset of a segment, and bytes of its files."""

    base_offset: int
    log_bytes: int
    offset_index_bytes: int = 0
    time_index_bytes: int = 0


def group_segments(
    segments: Sequence[SegmentSize], most_bytes: int, most_index_bytes: int, end_offset: int
) -> list[slice]:
    """Ranges of segments, each of which becomes one segment.

    A group is as large as its log, its indexes and the span of its offsets allow, by the sizes
    before compaction.

    Parameters
    ----------
    segments : in the order of their base offsets.
    most_bytes : of a log (``segment.bytes``).
    most_index_bytes : of either index (``segment.index.bytes``).
    end_offset : the first offset that is not cleaned; the last segment ends there at the latest.
    """
    groups = []
    first = 0
    sizes = SegmentSize(0, 0)
    for i, each in enumerate(segments):
        joined = SegmentSize(
            segments[first].base_offset, *(a + b for a, b in zip(sizes[1:], each[1:], strict=True))
        )
        is_last = i + 1 == len(segments)
        behind = end_offset if is_last else segments[i + 1].base_offset
        fits = (
            joined.log_bytes <= most_bytes
            and joined.offset_index_bytes <= most_index_bytes
            and joined.time_index_bytes <= most_index_bytes
            and (not each.log_bytes or behind - joined.base_offset <= layout.SEGMENT_OFFSETS)
        )
        if i > first and not fits:
            groups.append(slice(first, i))
            first, joined = i, each
        sizes = joined
    if segments:
        groups.append(slice(first, len(segments)))
    return groups
