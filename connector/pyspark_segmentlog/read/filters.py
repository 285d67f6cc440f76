"""Bounds that the filters of a query put on the partitions, offsets and timestamps to read.

A bound leaves out rows of which a filter is certainly not true; Spark applies the filters to the
rows that are left.  So a filter that is not understood here costs time, and no row.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from segmentlog.log import Log
from segmentlog.model import ALL_OFFSETS, OffsetRange, TimestampRange, TopicPartition

__all__ = ["EVERYTHING", "Bounds", "bounds_of"]

_LEAST, _LARGEST = -(2**63), 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MICROSECONDS = 1000  # of a millisecond, the unit of a record's timestamp

#: By type of a filter: whether it is true of a topic's name or a partition's number.
_TRUE_OF: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda found, value: found == value,
    EqualNullSafe: lambda found, value: found == value,
    GreaterThan: lambda found, value: found > value,
    GreaterThanOrEqual: lambda found, value: found >= value,
    LessThan: lambda found, value: found < value,
    LessThanOrEqual: lambda found, value: found <= value,
    In: lambda found, value: found in value,
    StringStartsWith: lambda found, value: found.startswith(value),
    StringEndsWith: lambda found, value: found.endswith(value),
    StringContains: lambda found, value: value in found,
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The partitions, offsets and times that the filters of a query leave to read.

    Attributes
    ----------
    of_partitions : the filters on ``topic`` and ``partition``.
    offsets : outside of them, a filter on ``offset`` is false.
    timestamps : the same for ``timestamp``; None if nothing bounds it.
    is_empty : whether no row of any partition can pass.
    """

    of_partitions: tuple[Filter, ...] = ()
    offsets: OffsetRange = ALL_OFFSETS
    timestamps: TimestampRange | None = None
    is_empty: bool = False

    def select(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions that can have rows that pass, in their order."""
        return [
            each
            for each in partitions
            if not self.is_empty and all(_may_pass(one, each) for one in self.of_partitions)
        ]

    def within(self, log: Log, start_offset: int, end_offset: int) -> tuple[int, int]:
        """The part of a range of offsets that can have rows that pass; perhaps none.

        Timestamps bound the start alone.  They need not rise in a log, and nothing tells behind
        which offset all are too new.
        """
        start = max(start_offset, self.offsets.start_offset)
        end = min(end_offset, self.offsets.end_offset)
        if start < end and self.timestamps is not None and self.timestamps.start_ms >= 0:
            start = max(start, log.offset_up_to_which_all_are_older(self.timestamps.start_ms))
        return min(start, end), end


EVERYTHING = Bounds()


def bounds_of(filters: Sequence[Filter]) -> Bounds:
    """The bounds that all of `filters` together put on a read.

    Parameters
    ----------
    filters : as Spark pushes them; columns and kinds that are not known bound nothing.
    """
    offsets, timestamps = (_LEAST, _LARGEST), (_LEAST, _LARGEST)
    of_partitions, is_empty = [], False
    for each in filters:
        match getattr(each, "attribute", None) or _negated_column(each):
            case ("topic",) | ("partition",):
                of_partitions.append(each)
            case ("offset",):
                offsets = _intersect(offsets, _range_of(each, _integer, 1))
            case ("timestamp",):
                timestamps = _intersect(timestamps, _range_of(each, _instant, _MICROSECONDS))
    for start, end in (offsets, timestamps):
        is_empty = is_empty or start >= end
    bounded = None if timestamps == (_LEAST, _LARGEST) else TimestampRange(*timestamps)
    return Bounds(tuple(of_partitions), OffsetRange(*offsets), bounded, is_empty)


def _negated_column(each: Filter) -> tuple[str, ...]:
    return getattr(each.child, "attribute", ()) if isinstance(each, Not) else ()


def _may_pass(each: Filter, partition: TopicPartition) -> bool:
    """Whether a filter on ``topic`` or ``partition`` may be true of the rows of `partition`."""
    if isinstance(each, Not):
        return not _is_true(each.child, partition, otherwise=False)
    return _is_true(each, partition, otherwise=True)


def _is_true(each: Filter, partition: TopicPartition, *, otherwise: bool) -> bool:
    """Whether a filter is true of all rows of `partition`; `otherwise` if that is not known."""
    if isinstance(each, IsNull):  # neither column is ever null
        return False
    found: str | int = partition.topic
    if getattr(each, "attribute", ()) == ("partition",):
        found = partition.partition
    values = each.value if isinstance(each, In) else [getattr(each, "value", None)]
    true_of = _TRUE_OF.get(type(each))
    if true_of is None or not all(type(value) is type(found) for value in values):
        return otherwise
    return true_of(found, each.value)  # type: ignore[attr-defined]  # those above have one


def _integer(value: object) -> int | None:
    return value if type(value) is int else None


def _instant(value: object) -> int | None:
    """Microseconds since 1970 of a time with a zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND


def _range_of(
    each: Filter, number_of: Callable[[object], int | None], scale: int
) -> tuple[int, int]:
    """Half-open range of a column outside of which a filter on it is not true.

    Parameters
    ----------
    each : the filter.
    number_of : its value as a number, or None if it is none.
    scale : units of that number in one unit of the range.
    """
    if isinstance(each, IsNull):
        return 0, 0  # the column is never null
    values = each.value if isinstance(each, In) else [getattr(each, "value", None)]
    numbers = [number for value in values if (number := number_of(value)) is not None]
    if len(numbers) < len(values) or not numbers:
        return _LEAST, _LARGEST
    least, largest = min(numbers), max(numbers)
    first, behind = -(-least // scale), largest // scale + 1
    match each:
        case EqualTo() | EqualNullSafe() | In():
            return first, behind
        case GreaterThan():
            return behind, _LARGEST
        case GreaterThanOrEqual():
            return first, _LARGEST
        case LessThan():
            return _LEAST, first
        case LessThanOrEqual():
            return _LEAST, behind
        case _:
            return _LEAST, _LARGEST


def _intersect(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), min(one[1], other[1])
