"""Starts before the end of a read, and the order of its start and its end."""

from dataclasses import dataclass

from pyspark_segmentlog.options.offsets import OffsetBound
from pyspark_segmentlog.options.timestamps import TimestampBound
from segmentlog.errors import OptionError
from segmentlog.model import TopicPartition
from segmentlog.times import parse_duration


@dataclass(frozen=True, slots=True)
class LastRecords:
    """A start of `n_offsets` before the end of each partition."""

    n_offsets: int


@dataclass(frozen=True, slots=True)
class LastDuration:
    """A start at a time that lies a given duration before the planning of the read."""

    #: name of the option, and its text
    option: str
    text: str
    milliseconds: int  # how much earlier

    @classmethod
    def parse(cls, option: str, text: str) -> "LastDuration":
        """Parse the value of ``lastDuration``."""
        return cls(option, text, parse_duration(text))

    def before(self, now_ms: int) -> TimestampBound:
        """The start by time, for a read that is planned at `now_ms` (epoch milliseconds)."""
        return TimestampBound(self.option, self.text, max(now_ms - self.milliseconds, 0))


def check_order(start: object, end: OffsetBound | TimestampBound) -> None:
    """Refuse two maps over different partitions, or with a start after its end."""
    if not isinstance(start, OffsetBound | TimestampBound) or type(start) is not type(end):
        return
    starts, ends = dict(start.partitions), dict(end.partitions)
    of_offsets = [each for each in (start, end) if isinstance(each, OffsetBound)]
    is_open = any(each.topics or each.is_checkpoint for each in of_offsets)
    if starts and ends and not is_open and starts.keys() != ends.keys():
        different = ", ".join(map(str, sorted(starts.keys() ^ ends.keys())))
        accepted = (
            f"{end.option} names different partitions: give {different} in both options or in "
            "neither"
        )
        raise OptionError(start.option, start.text, accepted)
    for each in sorted(starts.keys() & ends.keys()):
        if starts[each] >= 0 and ends[each] >= 0:
            check_start(start, each, starts[each], ends[each], end.option)


def check_start(
    start: OffsetBound | TimestampBound, each: TopicPartition, first: int, last: int, end: str
) -> None:
    """Refuse a start at `first` that is after its end, which an option `end` puts at `last`."""
    if first > last:
        accepted = (
            f"{each} would start at {first} and end at {last}: give a start that is "
            f"not after {end or 'that offset, the latest'}"
        )
        raise OptionError(start.option, start.text, accepted)
