"""Start and end of a read by time: a timestamp for all partitions, or one for each.

::

    1767225600000                      {"orders": {"0": 1767225600000, "1": 1767225600000}}
    2026-01-01T00:00:00Z               {"orders": {"0": "2026-01-01T00:00:00+01:00"}}

A timestamp stands for the earliest offset whose record is not older, in the order of offsets
(Kafka's ``ListOffsets``).  It becomes an offset when the read is planned, and stays this offset.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pyspark_segmentlog.options.offsets import (
    check_partitions,
    listed,
    load_object,
    parse_partitions,
)
from segmentlog.errors import OptionError
from segmentlog.model import TopicPartition
from segmentlog.times import parse_time, refuse_seconds


class NoMatch(StrEnum):
    """The start of a partition whose records are all older than the starting timestamp."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class TimestampBound:
    """One end of a read by time, before the existing offsets are known."""

    option: str  # name of the option, for messages
    text: str  # the user's text
    #: epoch milliseconds for all partitions, or None if they are named
    everywhere: int | None = None
    partitions: tuple[tuple[TopicPartition, int], ...] = ()  # epoch milliseconds by partition
    #: for a start; a partition whose records are all older is bound at its latest offset
    no_match: NoMatch = NoMatch.LATEST

    @classmethod
    def parse(cls, option: str, text: str) -> "TimestampBound":
        """Parse the value of ``startingTimestamp`` or ``endingTimestamp``."""
        text = text.strip()
        return cls(option, text, everywhere=parse_time(text))

    @classmethod
    def parse_map(cls, option: str, text: str) -> "TimestampBound":
        """Parse the value of ``startingOffsetsByTimestamp`` or ``endingOffsetsByTimestamp``."""
        partitions = parse_partitions(option, text, load_object(option, text))
        found = tuple((each, _timestamp(value)) for each, value in partitions)
        return cls(option, text, None, found)

    def with_no_match(self, no_match: NoMatch) -> "TimestampBound":
        """A copy with another strategy for a start."""
        return replace(self, no_match=no_match)

    def resolve(self, assigned: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """A timestamp in epoch milliseconds for each partition that is read."""
        wanted = sorted(assigned)
        if self.everywhere is not None:
            return dict.fromkeys(wanted, self.everywhere)
        found = dict(self.partitions)
        check_partitions(self.option, self.text, found, wanted)
        return {each: found[each] for each in wanted}

    def check_found(
        self, timestamps: Mapping[TopicPartition, int], missing: Collection[TopicPartition]
    ) -> None:
        """Refuse a start at which `missing` partitions have no record, if that is an error."""
        if missing and self.no_match == NoMatch.ERROR:
            at = [f"{each} has none at or after {timestamps[each]} ms" for each in sorted(missing)]
            accepted = (
                f"every record is older: {listed(at)}; give an earlier time, or "
                "startingOffsetsByTimestampStrategy=latest to start such a partition at its end"
            )
            raise OptionError(self.option, self.text, accepted)


def _timestamp(value: object) -> int:
    if isinstance(value, str) and not value.strip().isdecimal():
        return parse_time(value)
    if type(value) is not int:
        raise ValueError
    return refuse_seconds(value)
