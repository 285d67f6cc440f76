"""The common end of two copies of a partition, by the leader epochs of their batches.

A follower that fetches from a leader finds the end of what they have in common in this way, and
cuts the rest off.  Equal ends prove nothing: two leaders may have given the same offsets.

Rules: ``LeaderEpochFileCache.endOffsetFor``, KIP-101, KIP-279.
"""

import bisect
from collections.abc import Sequence
from typing import NamedTuple

_UNKNOWN = (-1, -1)


class EpochEnds(NamedTuple):
    """The leader epochs of a copy, and its bounds."""

    #: each epoch and the offset at which it began, both ascending
    starts: Sequence[tuple[int, int]]
    log_start: int  # the log start offset
    log_end: int  # the log end offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last leader, or -1."""
        return self.starts[-1][0] if self.starts else -1

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The greatest known epoch that is not above `epoch`, and its end; (-1, -1) for none.

        The end of an epoch is the start of the next one.  An epoch before all others has the start
        of the first one for its end, and an epoch after all others is not known.
        """
        if not self.starts or epoch > self.last_epoch:
            return _UNKNOWN
        if epoch == self.last_epoch:
            return epoch, self.log_end
        after = bisect.bisect_right(self.starts, epoch, key=lambda each: each[0])
        return (self.starts[after - 1][0] if after else epoch), self.starts[after][1]

    def cut(self, end: int) -> "EpochEnds":
        """The copy without the offsets at and after `end`."""
        starts = [each for each in self.starts if each[1] < end]
        return EpochEnds(starts, self.log_start, min(end, self.log_end))


def common_end(copy: EpochEnds, log: EpochEnds) -> int:
    """The offset up to which a copy and the log have the same batches.

    If they have nothing in common, it is the greater one of their starts.
    """
    if not copy.starts:
        return copy.log_end
    while copy.starts:
        epoch, end = log.end_of(copy.last_epoch)
        if end < 0:  # this copy has heard of a later leader
            epoch, end = log.last_epoch, log.log_end
        known, own_end = copy.end_of(epoch)
        if known == epoch:
            break
        copy = copy.cut(own_end)  # by one epoch at least
    else:
        end = own_end = 0
    return max(min(end, own_end, copy.log_end), copy.log_start, log.log_start)
