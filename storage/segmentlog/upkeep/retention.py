"""The segments that retention removes from a log: a pure decision (``UnifiedLog``).

Three rules apply in turn, each to the segments that the rule before it has left
(``UnifiedLog.deleteOldSegments``).  Each rule walks from the oldest segment, and stops at the
first segment that it keeps.

1. **Start**: segments whose successor begins at or below the log start.  This rule applies to
   logs of any ``cleanup.policy``; the others apply if the policy has ``delete``.
2. **Size**: the oldest segments, as long as the log keeps ``retention.bytes`` without them.
3. **Time**: segments whose newest timestamp is more than ``retention.ms`` ago.

No rule removes a segment that reaches beyond the high watermark, or an active segment without
records.  If all segments go, the log rolls first, and its active segment goes as well.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from segmentlog.topic_config import TopicConfig

__all__ = ["Expired", "LogBounds", "Reason", "SegmentSpan", "find_expired"]


class Reason(StrEnum):
    """The rule by which a segment is removed."""

    START = "start"  #: it lies below the log start
    SIZE = "size"  #: ``retention.bytes``
    TIME = "time"  #: ``retention.ms``


class SegmentSpan(NamedTuple):
    """One segment; `end_offset` is the base of the next segment, or the log end."""

    base_offset: int
    end_offset: int
    n_bytes: int


class LogBounds(NamedTuple):
    """The offsets at which a log begins, and up to which its records are replicated."""

    log_start: int
    high_watermark: int


class Expired(NamedTuple):
    """A segment to remove; `newest_ms` is its newest timestamp (epoch) if that is the reason."""

    span: SegmentSpan
    reason: Reason
    newest_ms: int | None = None


def find_expired(
    spans: Sequence[SegmentSpan],
    bounds: LogBounds,
    config: TopicConfig,
    newest_ms: Callable[[SegmentSpan], int],
    now_ms: int,
) -> list[Expired]:
    """The segments to remove, in the order of their offsets.

    A timestamp in the future keeps its segment, as with a broker.

    Parameters
    ----------
    spans : all segments of the log; the last one is active.
    newest_ms : newest timestamp of a segment (epoch), or the time at which its file was last
        written if it has none (``LogSegment.largestTimestamp``).  It is asked for the oldest
        segments only.
    now_ms : the time by which ages are computed (epoch).
    """
    expired = [
        Expired(span, Reason.START)
        for span in takewhile(
            lambda span: span is not spans[-1] and span.end_offset <= bounds.log_start,
            _removable(spans, bounds),
        )
    ]
    if "delete" not in config.cleanup_policy:
        return expired
    left = spans[len(expired) :]
    if config.retention_bytes >= 0:
        room = sum(span.n_bytes for span in left) - config.retention_bytes
        for span in _removable(left, bounds):
            room -= span.n_bytes
            if room < 0:
                break
            expired.append(Expired(span, Reason.SIZE))
    if config.retention_ms >= 0:
        for span in _removable(spans[len(expired) :], bounds):
            newest = newest_ms(span)
            if now_ms - newest <= config.retention_ms:
                break
            expired.append(Expired(span, Reason.TIME, newest))
    return expired


def _removable(spans: Sequence[SegmentSpan], bounds: LogBounds) -> Iterator[SegmentSpan]:
    """The oldest segments, up to the first that no rule may remove."""
    for span in spans:
        is_empty = span is spans[-1] and not span.n_bytes
        if is_empty or bounds.high_watermark < span.end_offset:
            return
        yield span
