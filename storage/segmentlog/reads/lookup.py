"""Find the first record at or after a time (``LogSegment.findOffsetByTimestamp``).

The look-up takes the first segment whose largest timestamp is not below the requested time.  The
time index gives an offset up to which every record is older.  The offset index gives a byte at or
before this offset.  From there, batch headers are read until one is new enough, and only its batch
is decoded.

The newest record of that segment may lie below the log start, or compaction may have removed it.
A broker then finds nothing (``UnifiedLog.fetchOffsetByTimestamp``).  Here the look-up continues in
later segments, unless a caller asks for the broker's answer.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.log.damage import sound_headers
from segmentlog.log.segment import OpenSegment, PlacedHeader, Segment, from_offset
from segmentlog.model import LogSlice, SliceFile, TimestampAndOffset


class NewestTimestamps:
    """The largest timestamps of segments, each of which is read once, when it is needed.

    `start_offset`: segments wholly below it are of no interest to look-ups by time.  `skips`:
    whether damage is left out.
    """

    def __init__(
        self, segments: Sequence[Segment], start_offset: int = 0, *, skips: bool = False
    ) -> None:
        self._by_path = {each.path: each for each in segments}
        self._segments = from_offset(segments, start_offset)
        self.skips = skips
        self._newest: dict[str, int] = {}
        # Timestamps need not rise from segment to segment. Their running maximum does, and later
        # look-ups search it.
        self._running: list[int] = []

    def reaching(self, timestamp_ms: int) -> Iterator[Segment]:
        """Segments whose largest timestamp is not below `timestamp_ms`, in their order."""
        first = bisect_left(self._running, timestamp_ms)
        for i, segment in enumerate(self._segments[first:], first):
            newest = self._of_segment(segment)
            if i == len(self._running):
                self._running.append(max([newest, *self._running[-1:]]))
            if newest >= timestamp_ms:
                yield segment

    def of_slice(self, log_slice: LogSlice) -> int | None:
        """Epoch milliseconds that no record of `log_slice` is above; None if that is not known."""
        # The rule is that of a look-up by time: an entry of the time index has the largest
        # timestamp up to its offset, if the batch at this offset confirms it.
        newest = -1
        for file in log_slice.files:
            segment = self._by_path.get(file.path)
            if segment is None or segment.inode != file.inode:
                return None  # the file was replaced since the slice was cut
            newest = max(newest, self._of_file(segment, file, log_slice.end_offset))
        return newest

    def _of_file(self, segment: Segment, file: SliceFile, end_offset: int) -> int:
        if file.end < segment.size:
            after = end_offset if file.next_offset < 0 else min(file.next_offset, end_offset)
            with segment.opened() as opened:
                index = opened.time_index
                slot = bisect_left(
                    range(index.n_entries), after - 1, key=lambda each: index.entry(each).offset
                )
                # The next entry: many batches may confirm an offset of this one that is too high.
                if slot + 1 < index.n_entries:
                    entry = index.entry(slot + 1)
                    placed = opened.find(entry.offset)
                    is_there = placed and placed.header.max_timestamp == entry.timestamp_ms
                    if is_there and entry.offset >= index.entry(slot).offset:
                        return entry.timestamp_ms
        return self._of_segment(segment)

    def _of_segment(self, segment: Segment) -> int:
        if segment.path not in self._newest:
            newest = segment.largest_timestamp(skips=self.skips) if segment.size else -1
            self._newest[segment.path] = newest
        return self._newest[segment.path]


def find_offset_by_timestamp(
    newest: NewestTimestamps,
    timestamp_ms: int,
    start_offset: int,
    end_offset: int,
    *,
    one_segment: bool = False,
) -> TimestampAndOffset | None:
    """First record in offset order with a timestamp not below `timestamp_ms`, in a range.

    A match outside the range does not count, as with a broker
    (``UnifiedLog.fetchOffsetByTimestamp``).  `one_segment`: whether only the first segment that is
    new enough is searched, as by a broker.  As with a broker, control records count: the offset
    may be one that no consumer ever sees.
    """
    for segment in newest.reaching(timestamp_ms):
        if segment.base_offset >= end_offset:
            break
        found = _find_in_segment(segment, timestamp_ms, start_offset, skips=newest.skips)
        if found is not None:
            return found if found.offset < end_offset else None
        # If damage is left out, a damaged batch alone may have reached the time.
        if one_segment and not newest.skips:
            break
    return None


def _find_in_segment(
    segment: Segment, timestamp_ms: int, start_offset: int, *, skips: bool
) -> TimestampAndOffset | None:
    """First matching record of one segment."""
    with segment.opened() as opened:
        offset = max(_offset_before(opened, timestamp_ms), start_offset)
        for placed in sound_headers(opened, opened.floor_position(offset), skips=skips):
            if placed.header.max_timestamp >= timestamp_ms:
                found = _find_in_batch(opened, placed, timestamp_ms, start_offset)
                if found is not None:
                    return found
    return None


def _offset_before(opened: OpenSegment, timestamp_ms: int) -> int:
    """Offset up to which every record is older, by the time index, if the batch confirms it."""
    entry = opened.time_index.lookup_before(timestamp_ms)
    if entry.timestamp_ms < 0:
        return opened.segment.base_offset
    with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
        placed = opened.find(entry.offset)
        if placed is not None and placed.header.max_timestamp == entry.timestamp_ms:
            return entry.offset
    return opened.segment.base_offset


def _find_in_batch(
    opened: OpenSegment, placed: PlacedHeader, timestamp_ms: int, start_offset: int
) -> TimestampAndOffset | None:
    """First matching record of one batch."""
    # Compiled kernels load here, once a batch really has to be decoded.
    from segmentlog.format.records.decoder import read_timestamps

    batch = opened.file.read(placed.position, placed.header.size_in_bytes)
    offsets, timestamps = read_timestamps(batch, opened.segment.path, placed.position)
    matches = ((timestamps >= timestamp_ms) & (offsets >= start_offset)).nonzero()[0]
    if not len(matches):
        return None
    return TimestampAndOffset(int(timestamps[matches[0]]), int(offsets[matches[0]]))
