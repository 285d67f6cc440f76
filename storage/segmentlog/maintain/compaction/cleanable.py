"""The part of a log that compaction may clean now, and whether it is due (``LogCleanerManager``).

::

    log start       first dirty offset      end offset                        log end
    |  clean        |  dirty, cleanable     |  dirty, not cleanable yet       |

The clean part was compacted before: ``cleaner-offset-checkpoint`` has the offset where it ends.
The dirty part is cleanable up to the first of these: the last stable offset, which is never
beyond the high watermark; the active segment; the first segment with a record that is younger than
``min.compaction.lag.ms``.  It ends where a segment begins.

A log is due if the cleanable share of its bytes is above ``min.cleanable.dirty.ratio``, or if its
oldest dirty record is older than ``max.compaction.lag.ms``.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.segment import Segment
from segmentlog.reads.log import Log
from segmentlog.store.readable import status_of


class Cleanable(NamedTuple):
    """The cleanable part of a log."""

    first_dirty_offset: int  # where it begins
    end_offset: int  # base of the segment at which it ends
    #: of the segments before it, and in it.  A segment that is partly clean counts in both, as
    #: with a broker.
    clean_bytes: int
    cleanable_bytes: int
    #: of the segments that a pass over all of it goes through
    n_segments: int = 0
    n_bytes: int = 0
    is_overdue: bool = False  # whether a record is older than ``max.compaction.lag.ms``
    #: whether the checkpoint has an offset that the log cannot have, and does not count
    is_reset: bool = False

    @property
    def dirty_ratio(self) -> float:
        """The cleanable bytes, divided by the clean and cleanable bytes together."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, least_ratio: float) -> bool:
        """Whether a broker would compact the log now."""
        if not self.cleanable_bytes:
            return False
        return self.is_overdue or self.dirty_ratio > least_ratio


def find_cleanable(
    log: Log, checkpoint: int | None, config: TopicConfig, now_ms: int
) -> Cleanable:
    """The cleanable part of a log.

    `checkpoint`: the log's entry in ``cleaner-offset-checkpoint``, or None.  `now_ms`: the time by
    which ages are computed (epoch).  Raises `CorruptLogError` or `UnsupportedFormatError` or
    `CorruptCheckpointError` if a header that has to be read cannot be true, or a checkpoint cannot
    be read.
    """
    segments = log.segments
    start = first_dirty = log.log_start_offset
    is_reset = checkpoint is not None and not start <= checkpoint <= log.log_end_offset
    if checkpoint is not None and not is_reset:
        first_dirty = checkpoint
    if len(segments) < 2:
        return Cleanable(first_dirty, first_dirty, 0, 0, is_reset=is_reset)
    bases = [each.base_offset for each in segments]
    closed = segments[:-1]
    dirty = closed[_floor(bases, first_dirty) :] if first_dirty <= bases[-1] else ()
    bounds = [log.last_stable_offset(), bases[-1]]
    if config.min_compaction_lag_ms > 0:
        newest = now_ms - config.min_compaction_lag_ms
        bounds += [each.base_offset for each in dirty if _largest_ms(each) > newest][:1]
    uncleanable = max(first_dirty, min(bounds))
    end = bases[-1] if uncleanable >= bases[-1] else bases[_floor(bases, uncleanable)]
    clean = sum(each.size for each in segments if each.base_offset < first_dirty)
    first = _floor(bases, min(first_dirty, end))
    cleanable = sum(each.size for each in segments[first:] if each.base_offset < end)
    overdue = _is_overdue(dirty, now_ms - config.max_compaction_lag_ms)
    below = [each.size for each in segments if each.base_offset < end]
    return Cleanable(first_dirty, end, clean, cleanable, len(below), sum(below), overdue, is_reset)


def _floor(bases: Sequence[int], offset: int) -> int:
    """Number of the segment that may hold an offset; 0 if no segment may hold it."""
    return max(bisect_right(bases, offset) - 1, 0)


def _largest_ms(segment: Segment) -> int:
    """Largest timestamp of a segment, or the time at which its file was last written."""
    largest = segment.largest_timestamp()
    return largest if largest >= 0 else status_of(segment.path).modified_ns // 10**6


def _is_overdue(dirty: Sequence[Segment], before_ms: int) -> bool:
    """Whether the first batch of a dirty segment has a timestamp before `before_ms`."""
    if before_ms <= 0:
        return False
    for each in dirty:
        first = next(each.headers(0), None)
        if first is not None and 0 < first.header.max_timestamp < before_ms:
            return True
    return False
