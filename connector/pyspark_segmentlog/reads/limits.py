"""Ends of a stream's micro-batch that is smaller than the backlog of the log.

The rules for offsets are those of ``kafka`` (``KafkaMicroBatchStream``), to the number.  A limit
in bytes is shared among partitions by the same rule, and then becomes an end for each partition.
"""

import math
import time
from collections.abc import Callable, Mapping

from pyspark_segmentlog.reads.stream_offsets import Offsets
from segmentlog.model import TopicPartition

_LARGEST = 2**63 - 1


def limit_offsets(starts: Offsets, ends: Offsets, max_offsets: int) -> dict[TopicPartition, int]:
    """Ends of a micro-batch with about `max_offsets` offsets.

    The rule is that of ``KafkaMicroBatchStream.rateLimit``.  Each partition gets a share in
    proportion to its backlog.  A share is rounded down, but a partition with a backlog gets at
    least one offset, so that no partition starves.
    """
    shares = _shares({each: ends[each] - starts[each] for each in ends}, max_offsets)
    return {
        each: min(ends[each], starts[each] + shares[each]) if each in shares else ends[each]
        for each in ends
    }


def limit_bytes(
    starts: Offsets,
    ends: Offsets,
    max_bytes: int,
    measure: Callable[[TopicPartition, int, int], int],
    end_within: Callable[[TopicPartition, int, int, int], int],
) -> dict[TopicPartition, int]:
    """Ends of a micro-batch that reads about `max_bytes` of log.

    `measure`: bytes of a partition between two offsets.  `end_within`: the end of a range that
    begins at the same offset and has at most about this many bytes; it is after the start.
    """
    backlog = {each: (starts[each], ends[each]) for each in ends if starts[each] < ends[each]}
    sizes = {each: measure(each, *offsets) for each, offsets in backlog.items()}
    if sum(sizes.values()) <= max_bytes:
        return dict(ends)
    shares = _shares(sizes, max_bytes)
    limited = {each: end_within(each, *backlog[each], share) for each, share in shares.items()}
    return dict(ends) | limited


def _shares(backlogs: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Shares of `limit` in proportion to the backlogs, at least 1; none without a backlog."""
    waiting = {each: backlog for each, backlog in backlogs.items() if backlog > 0}
    total = sum(waiting.values())
    shares = {}
    for each, backlog in waiting.items():
        share = limit * (backlog / total)
        shares[each] = min(math.ceil(share) if share < 1 else math.floor(share), _LARGEST)
    return shares


class MinimumDelay:
    """Whether a micro-batch waits for more records (``KafkaMicroBatchStream.delayBatch``).

    The first micro-batch of a run does not wait.
    """

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._last_ms = -math.inf

    def waits(self, starts: Offsets, ends: Offsets) -> bool:
        """Whether the micro-batch from `starts` to `ends` waits; unknown starts count as 0."""
        now_ms = time.monotonic_ns() // 1_000_000
        if now_ms - self._last_ms < self._max_delay_ms:
            waiting = sum(end - starts.get(each, 0) for each, end in ends.items())
            if waiting < self._min_offsets:
                return True
        self._last_ms = now_ms
        return False
