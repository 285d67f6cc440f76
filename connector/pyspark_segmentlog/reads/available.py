"""The part of a range of offsets that a log holds, and the fate of the rest."""

import logging

from pyspark_segmentlog.options.offsets import EARLIEST, LATEST
from segmentlog.errors import OffsetOutOfRangeError
from segmentlog.model import OffsetRange, TopicPartition

__all__ = ["available"]

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

    Parameters
    ----------
    topic_partition : partition of the range.
    asked : its offsets; `EARLIEST` and `LATEST` stand for the bounds of `there`.
    there : log start and end.
    fail_on_data_loss : whether a part that is not there is an error, or is left out and logged.
    follows_retention : whether offsets below the log start are left out in silence.

    Raises
    ------
    OffsetOutOfRangeError
        If a part is not there, and this is an error.
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
        "%s: offsets %s are not there, and are skipped, because failOnDataLoss is false; the log "
        "holds [%d, %d)",
        topic_partition, " and ".join(f"[{first}, {last})" for first, last in missing), *there,
    )  # fmt: skip
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
