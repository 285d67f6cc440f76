"""Turn the start and the end that were asked for into offsets of one partition."""

import logging
from dataclasses import dataclass

from pyspark_segmentlog.read.offsets import EARLIEST, LATEST, OffsetBound
from pyspark_segmentlog.read.timestamps import TimestampBound, parse_duration
from segmentlog.errors import OffsetOutOfRangeError, OptionError
from segmentlog.model import OffsetRange, TopicPartition

__all__ = ["LastDuration", "LastRecords", "available", "check_order", "check_start"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LastRecords:
    """A start of `n_offsets` before the end of each partition."""

    n_offsets: int


@dataclass(frozen=True, slots=True)
class LastDuration:
    """A start at a time that is so much earlier than the planning of the read.

    Attributes
    ----------
    option, text : name of the option, and its text.
    milliseconds : how much earlier.
    """

    option: str
    text: str
    milliseconds: int

    @classmethod
    def parse(cls, option: str, text: str) -> "LastDuration":
        """Parse the value of ``lastDuration``.

        Raises
        ------
        ValueError
            If it is no duration.
        """
        return cls(option, text, parse_duration(text))

    def before(self, now_ms: int) -> TimestampBound:
        """The start by time, for a read that is planned at `now_ms` (epoch milliseconds)."""
        return TimestampBound(self.option, self.text, max(now_ms - self.milliseconds, 0))


def check_order(start: object, end: OffsetBound | TimestampBound) -> None:
    """Refuse two maps over different partitions, or with a start after its end.

    Raises
    ------
    OptionError
        If both bounds are maps of offsets, or both of timestamps, and they do not fit together.
    """
    if not isinstance(start, OffsetBound | TimestampBound) or type(start) is not type(end):
        return
    starts, ends = dict(start.partitions), dict(end.partitions)
    has_words = any(isinstance(each, OffsetBound) and each.topics for each in (start, end))
    if starts and ends and not has_words and starts.keys() != ends.keys():
        different = ", ".join(map(str, sorted(starts.keys() ^ ends.keys())))
        accepted = f"{end.option} names other partitions: give {different} in both or in neither"
        raise OptionError(start.option, start.text, accepted)
    for each in sorted(starts.keys() & ends.keys()):
        if starts[each] >= 0 and ends[each] >= 0:
            check_start(start, each, starts[each], ends[each], end.option)


def check_start(
    start: OffsetBound | TimestampBound,
    topic_partition: TopicPartition,
    first: int,
    last: int,
    behind: str,
) -> None:
    """Refuse a start after its end.

    Raises
    ------
    OptionError
        If `first` lies after `last`.
    """
    if first > last:
        accepted = (
            f"{topic_partition} would start at {first} and end at {last}: give a start that is "
            f"not behind the one of {behind}"
        )
        raise OptionError(start.option, start.text, accepted)


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
