"""The largest timestamp that a slice can hold, from time indexes and batch headers."""

from bisect import bisect_left
from collections.abc import Sequence

from segmentlog.model import LogSlice, SliceFile
from segmentlog.segments.segment import Segment

__all__ = ["NewestTimestampOfSlices"]


class NewestTimestampOfSlices:
    """Finds bounds of timestamps, and remembers those of whole segments.

    Parameters
    ----------
    segments : of the log.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = {each.path: each for each in segments}
        self._newest: dict[str, int] = {}

    def of(self, log_slice: LogSlice) -> int | None:
        """Epoch milliseconds that no record of `log_slice` is above; None if that is not known.

        The rule is that of a look-up by time: an entry of the time index has the largest timestamp
        up to its offset, if the batch at this offset confirms it.
        """
        newest = -1
        for file in log_slice.files:
            segment = self._segments.get(file.path)
            if segment is None or segment.inode != file.inode:
                return None  # the file was replaced since the slice was cut
            newest = max(newest, self._of_file(segment, file, log_slice.end_offset))
        return newest

    def _of_file(self, segment: Segment, file: SliceFile, end_offset: int) -> int:
        if file.end < segment.size:
            behind = end_offset if file.next_offset < 0 else min(file.next_offset, end_offset)
            with segment.opened() as opened:
                index = opened.time_index
                slot = bisect_left(
                    range(index.n_entries), behind - 1, key=lambda each: index.entry(each).offset
                )
                if slot < index.n_entries:
                    entry = index.entry(slot)
                    placed = opened.find(entry.offset)
                    if placed is not None and placed.header.max_timestamp == entry.timestamp_ms:
                        return entry.timestamp_ms
        if segment.path not in self._newest:
            self._newest[segment.path] = segment.largest_timestamp()
        return self._newest[segment.path]
