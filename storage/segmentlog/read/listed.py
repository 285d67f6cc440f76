"""The segments of one listing of a log, and their ends."""

from bisect import bisect_right
from functools import cached_property
from itertools import pairwise

from segmentlog.read.lookup import NewestTimestamps
from segmentlog.read.moment import Listing
from segmentlog.read.newest_timestamp import NewestTimestampOfSlices
from segmentlog.segments.log_end import LogEnd, find_log_end
from segmentlog.segments.segment import Segment

__all__ = ["ListedSegments"]


class ListedSegments:
    """The segments of one listing; a log that has changed is listed anew.

    Parameters
    ----------
    listing : the ``.log`` files.
    log_start : by its checkpoint, or 0.
    committed_to : the high watermark, or -1 if there is none.
    """

    def __init__(self, listing: Listing, log_start: int, committed_to: int) -> None:
        self._listing = listing
        self._log_start = log_start
        # A commit that fails cuts the index of the segment that it has rolled, in place.  A broker
        # does so when it truncates its log.  A process that has the index mapped dies of SIGBUS.
        # Neither of them touches a segment that a committed record follows.
        closed = [
            Segment(
                file,
                is_sealed=listing.is_clean and behind.base_offset < committed_to,
                is_active=False,
            )
            for file, behind in pairwise(listing.files)
        ]
        active = [Segment(file, is_sealed=False) for file in listing.files[-1:]]
        #: In the order of their base offsets; the last one is the active segment.
        self.segments = (*closed, *active)

    @cached_property
    def tail(self) -> LogEnd:
        """Where the last segment ends."""
        if not self.segments:
            return LogEnd(self._log_start, 0)
        return find_log_end(self.segments[-1])

    @property
    def log_start_offset(self) -> int:
        """First offset that a reader may see."""
        first = self.segments[0].base_offset if self.segments else 0
        return max(self._log_start, first)

    @property
    def log_end_offset(self) -> int:
        """Where the log ended when its directory was opened."""
        end, known = self.tail.offset, self._listing.end_offset
        return max(end if known is None else min(end, known), self.log_start_offset)

    @cached_property
    def newest_timestamps(self) -> NewestTimestamps:
        """Largest timestamps of the segments that are not wholly below the log start."""
        bases = [segment.base_offset for segment in self.segments]
        first = max(bisect_right(bases, self.log_start_offset) - 1, 0)
        return NewestTimestamps(self.segments[first:])

    @cached_property
    def newest_of_slices(self) -> NewestTimestampOfSlices:
        """Largest timestamps of slices of these segments."""
        return NewestTimestampOfSlices(self.segments)

    def has_changed(self) -> bool:
        """Whether files were renamed, replaced or cut since the listing."""
        return not all(each.is_still_there() for each in self._listing.files)
