"""Start and end of a read by time: a timestamp for all partitions, or one for each.

::

    1767225600000                      {"orders": {"0": 1767225600000, "1": 1767225600000}}
    2026-01-01T00:00:00Z               {"orders": {"0": "2026-01-01T00:00:00+01:00"}}

A timestamp stands for the earliest offset whose record is not older, in the order of offsets
(Kafka's ``ListOffsets``).  It becomes an offset when the read is planned, and stays this offset.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pyspark_segmentlog.options.offsets import (
    check_partitions,
    listed,
    load_object,
    parse_partitions,
)
from segmentlog.errors import OptionError
from segmentlog.model import TopicPartition

__all__ = ["NoMatch", "TimestampBound", "parse_duration"]

_LARGEST = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_UNITS = {
    "ms": 1, "millisecond": 1, "s": 1000, "second": 1000, "min": 60_000, "minute": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000, "week": 604_800_000,
}  # fmt: skip


class NoMatch(StrEnum):
    """The start of a partition without a record that is new enough."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class TimestampBound:
    """One end of a read by time, before the existing offsets are known.

    Attributes
    ----------
    option : name of the option, for messages.
    text : the user's text.
    everywhere : epoch milliseconds for all partitions, or None if they are named.
    partitions : epoch milliseconds by partition.
    no_match : for a start; a partition whose records are all older is bound at its latest offset.
    """

    option: str
    text: str
    everywhere: int | None = None
    partitions: tuple[tuple[TopicPartition, int], ...] = ()
    no_match: NoMatch = NoMatch.LATEST

    @classmethod
    def parse(cls, option: str, text: str) -> "TimestampBound":
        """Parse the value of ``startingTimestamp`` or ``endingTimestamp``.

        Raises
        ------
        ValueError
            If it is not one timestamp.
        """
        text = text.strip()
        number = int(text) if re.fullmatch(r"[0-9]{1,19}", text) else _parse_iso(text)
        if number > _LARGEST:
            raise ValueError
        return cls(option, text, everywhere=number)

    @classmethod
    def parse_map(cls, option: str, text: str) -> "TimestampBound":
        """Parse the value of ``startingOffsetsByTimestamp`` or ``endingOffsetsByTimestamp``.

        Raises
        ------
        ValueError
            If it is not such a map.
        OptionError
            If a name is there twice.
        """
        partitions = parse_partitions(option, text, load_object(option, text))
        found = tuple((each, _timestamp(value)) for each, value in partitions)
        return cls(option, text, None, found)

    def with_no_match(self, no_match: NoMatch) -> "TimestampBound":
        """A copy with another strategy for a start."""
        return replace(self, no_match=no_match)

    def resolve(self, assigned: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """A timestamp in epoch milliseconds for each partition that is read.

        Raises
        ------
        OptionError
            If a map names other partitions than `assigned`.
        """
        wanted = sorted(assigned)
        if self.everywhere is not None:
            return dict.fromkeys(wanted, self.everywhere)
        found = dict(self.partitions)
        check_partitions(self.option, self.text, found, wanted)
        return {each: found[each] for each in wanted}

    def check_found(
        self, timestamps: Mapping[TopicPartition, int], missing: Collection[TopicPartition]
    ) -> None:
        """Refuse a start without a record, if the strategy is `NoMatch.ERROR`.

        Parameters
        ----------
        timestamps : epoch milliseconds by partition.
        missing : partitions whose records are all older than their timestamp.

        Raises
        ------
        OptionError
            If there is such a partition.
        """
        if missing and self.no_match == NoMatch.ERROR:
            named = [
                f"{each} has none at or after {timestamps[each]} ms" for each in sorted(missing)
            ]
            accepted = (
                f"every record is older: {listed(named)}; give an earlier time, or "
                "startingOffsetsByTimestampStrategy=latest to start such a partition at its end"
            )
            raise OptionError(self.option, self.text, accepted)


def _timestamp(value: object) -> int:
    """Epoch milliseconds of a value in JSON."""
    if isinstance(value, str):
        return _parse_iso(value)
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError
    return value


def _parse_iso(text: str) -> int:
    """Epoch milliseconds of a time in ISO 8601, rounded up: no older record is found.

    Raises
    ------
    ValueError
        If it is not a time, has no zone, or lies before 1970.
    """
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError from None  # without the text, which the option's error has
    if when.tzinfo is None:
        reason = "this time has no zone, and none is guessed: add Z for UTC, or an offset"
        raise ValueError(reason)
    milliseconds = -((_EPOCH - when) // _MILLISECOND)
    if milliseconds < 0:
        raise ValueError
    return milliseconds


def parse_duration(text: str) -> int:
    """Milliseconds of a duration: ``10 minutes``, ``1 day 12 hours``, ``500ms``.

    Raises
    ------
    ValueError
        If it is not a duration, or is zero.
    """
    parts = re.findall(r"([0-9]{1,12})\s*([a-z]+)", text.lower())
    if re.fullmatch(r"\s*([0-9]{1,12}\s*[a-z]+\s*)+", text.lower()) is None:
        raise ValueError
    total = 0
    for number, unit in parts:
        name = unit if unit in _UNITS else unit.removesuffix("s")
        if name not in _UNITS:
            raise ValueError
        total += int(number) * _UNITS[name]
    if not total:
        raise ValueError
    return total
