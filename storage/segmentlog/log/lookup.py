"""Find the first record at or after a time (``LogSegment.findOffsetByTimestamp``).

First the segment: the first one whose largest timestamp is not below the time asked for.  Then
the time index for an offset before which there is nothing as new, the offset index for a byte at
or before that, and from there batch headers until one is new enough.  Only that batch is decoded.
"""

import os
from collections.abc import Sequence

from segmentlog.log.segment import PlacedHeader, Segment
from segmentlog.model import TimestampAndOffset

__all__ = ["find_offset_by_timestamp"]


def find_offset_by_timestamp(
    segments: Sequence[Segment], timestamp_ms: int, start_offset: int, end_offset: int
) -> TimestampAndOffset | None:
    """First record in offset order with a timestamp not below `timestamp_ms`.

    Parameters
    ----------
    segments : in the order of their base offsets.
    timestamp_ms : epoch milliseconds.
    start_offset, end_offset : half-open range in which to look; a match outside is none, as a
        broker answers (``UnifiedLog.fetchOffsetByTimestamp``).

    Notes
    -----
    As with a broker, control records count: the offset may be one that no consumer ever sees.
    Only the first segment that is new enough is searched.
    """
    for i, segment in enumerate(segments):
        is_below = i + 1 < len(segments) and segments[i + 1].base_offset <= start_offset
        if is_below or segment.size == 0 or segment.largest_timestamp() < timestamp_ms:
            continue
        found = _find_in_segment(segment, timestamp_ms, start_offset)
        return found if found is not None and found.offset < end_offset else None
    return None


def _find_in_segment(
    segment: Segment, timestamp_ms: int, start_offset: int
) -> TimestampAndOffset | None:
    """First matching record of one segment."""
    position = segment.floor_position(max(_offset_before(segment, timestamp_ms), start_offset))
    for placed in segment.headers(position):
        if placed.header.max_timestamp >= timestamp_ms:
            found = _find_in_batch(segment.path, placed, timestamp_ms, start_offset)
            if found is not None:
                return found
    return None


def _offset_before(segment: Segment, timestamp_ms: int) -> int:
    """Offset up to which no record is as new, by the time index, if its batch says the same."""
    with segment.time_index() as index:
        entry = index.lookup(timestamp_ms)
    if entry.timestamp_ms < 0:
        return segment.base_offset
    placed = segment.find(entry.offset)
    fits = placed is not None and placed.header.max_timestamp == entry.timestamp_ms
    return entry.offset if fits else segment.base_offset


def _find_in_batch(
    path: str, placed: PlacedHeader, timestamp_ms: int, start_offset: int
) -> TimestampAndOffset | None:
    """First matching record of one batch."""
    # Compiled kernels load here, once a batch really has to be decoded.
    from segmentlog.records.decoder import read_timestamps

    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        batch = os.pread(descriptor, placed.header.size_in_bytes, placed.position)
    finally:
        os.close(descriptor)
    offsets, timestamps = read_timestamps(batch, path, placed.position)
    matches = ((timestamps >= timestamp_ms) & (offsets >= start_offset)).nonzero()[0]
    if not len(matches):
        return None
    return TimestampAndOffset(int(timestamps[matches[0]]), int(offsets[matches[0]]))
