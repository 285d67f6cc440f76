"""Ranges of offsets: what a log holds of them, and how tasks share them.

`split_ranges` is Spark's ``KafkaOffsetRangeCalculator``, to the number.  A size is the difference
of two offsets.  Compaction and end markers of transactions leave gaps, so the number of records
may be smaller.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark_segmentlog.options.offsets import EARLIEST, LATEST
from segmentlog.errors import OffsetOutOfRangeError
from segmentlog.model import OffsetRange, TopicPartition


class PartitionRange(NamedTuple):
    """Offsets of a partition from `start_offset` on, below `end_offset`."""

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.end_offset - self.start_offset


def split_ranges(
    ranges: Iterable[PartitionRange],
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[PartitionRange]:
    """Ranges for tasks that together hold the same offsets, in the same order.

    `ranges`: at most one of a partition; ranges without offsets are left out.  `min_partitions`: a
    hint for the least number of ranges; it divides the large ones.  `max_records`: most offsets of
    a range; it is applied first.
    """
    found = [each for each in ranges if each.size > 0]
    if max_records is not None:
        found = [piece for each in found for piece in _divide(each, -(-each.size // max_records))]
    if min_partitions is not None and min_partitions > len(found):
        found = _split_to_at_least(found, min_partitions)
    return found


def _split_to_at_least(ranges: Sequence[PartitionRange], n_ranges: int) -> list[PartitionRange]:
    """Divide the ranges in proportion to their sizes; small ones stay whole."""
    total = sum(each.size for each in ranges)
    whole = [each for each in ranges if _n_parts(each.size, total, n_ranges) == 1]
    # If `max_records` has divided a partition, and one of its pieces stays whole, all of them do,
    # as in Spark.
    are_whole = {each.topic_partition for each in whole}
    of_others = total - sum(each.size for each in whole)
    n_others = max(n_ranges - len(whole), 1)
    return [
        piece
        for each in ranges
        for piece in _divide(
            each,
            1 if each.topic_partition in are_whole else _n_parts(each.size, of_others, n_others),
        )
        if piece.size > 0
    ]


def _n_parts(size: int, total: int, n_ranges: int) -> int:
    # As Java rounds: half a part counts as one.
    return max(math.floor(size / total * n_ranges + 0.5), 1)


def _divide(whole: PartitionRange, n_parts: int) -> list[PartitionRange]:
    """Parts of one range, of which the last ones take what the division leaves over."""
    parts = []
    start = whole.start_offset
    for left in range(n_parts, 0, -1):
        end = start + (whole.end_offset - start) // left
        parts.append(whole._replace(start_offset=start, end_offset=end))
        start = end
    return parts


logger = logging.getLogger(__name__)


def available(
    topic_partition: TopicPartition,
    asked: OffsetRange,
    there: OffsetRange,
    *,
    fail_on_data_loss: bool,
    follows_retention: bool = False,
) -> OffsetRange:
    """The part of a range that is there.

    `asked`: its offsets; `EARLIEST` and `LATEST` stand for the bounds of `there`.
    `fail_on_data_loss`: whether a part that is not there is an error, or is left out and logged.
    `follows_retention`: whether offsets below the log start are left out in silence.  Raises
    `OffsetOutOfRangeError` if a part is not there, and this is an error.
    """
    start = there.start_offset if asked.start_offset == EARLIEST else asked.start_offset
    end = there.end_offset if asked.end_offset == LATEST else asked.end_offset
    if follows_retention:
        start = max(start, there.start_offset)
        end = max(start, end)
    missing = _missing(OffsetRange(start, end), there) if start < end else []
    if not missing:
        return OffsetRange(start, end)
    if fail_on_data_loss:
        at = start if not there.start_offset <= start <= there.end_offset else end
        raise OffsetOutOfRangeError(str(topic_partition), at, *there)
    logger.warning(
        "%s: offsets %s do not exist and are skipped, because failOnDataLoss is false; the log "
        "holds [%d, %d)",
        topic_partition,
        " and ".join(f"[{first}, {last})" for first, last in missing),
        *there,
    )
    start = max(start, there.start_offset)
    return OffsetRange(start, max(start, min(end, there.end_offset)))


def _missing(asked: OffsetRange, there: OffsetRange) -> list[OffsetRange]:
    """The parts of a range below and above `there`."""
    start, end = asked
    found = []
    if start < there.start_offset:
        found.append(OffsetRange(start, min(end, there.start_offset)))
    if end > there.end_offset:
        found.append(OffsetRange(max(start, there.end_offset), end))
    return found
