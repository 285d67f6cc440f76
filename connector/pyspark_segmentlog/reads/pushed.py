"""The bounds in filters that an engine pushes into a reader.

They only save reading: every filter is returned, and the engine applies it again.  A filter is
used if it bounds a column by values of the column's own type.  Sail 0.7 passes ``cast(c as …) =
1`` as ``c = 1``, ``like '_a%'`` as a prefix, and times as microseconds or days without saying
which.

Filters are known by the names of their classes, so that the module loads where Spark has none.
"""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from segmentlog.model import TimestampRange, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_LEAST, _MOST = -(2**63), 2**63 - 1
_DAY = 86_400_000_000  # microseconds
_LARGEST_DAY = 2**31 - 1  # an integer up to it may be a day, not microseconds


class PushedBounds(NamedTuple):
    """What every row has that the pushed filters keep; ranges include both of their ends."""

    topics: frozenset[str] | None = None
    partitions: tuple[int, int] = (_LEAST, _MOST)
    offsets: tuple[int, int] = (_LEAST, _MOST)
    micros: tuple[int, int] = (_LEAST, _MOST)

    def holds(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition may have such rows."""
        first, last = self.partitions
        has_topic = self.topics is None or topic_partition.topic in self.topics
        return has_topic and first <= topic_partition.partition <= last

    @property
    def timestamps(self) -> TimestampRange | None:
        """The times in whole milliseconds, or None for all."""
        first, last = self.micros
        if (first, last) == (_LEAST, _MOST):
            return None
        return TimestampRange(first // 1000, min(last // 1000 + 1, _MOST))


def bounds_of(filters: Iterable["Filter"]) -> PushedBounds:
    """The bounds of filters that all have to be true."""
    topics: frozenset[str] | None = None
    ranges = dict.fromkeys(("partition", "offset", "timestamp"), (_LEAST, _MOST))
    for each in filters:
        column = ".".join(getattr(each, "attribute", ()))
        if column == "topic":
            given = _values(each)
            if given and all(isinstance(value, str) for value in given):
                topics = frozenset(given) if topics is None else topics & frozenset(given)
        elif column in ranges:
            first, last = _range(each, _micros if column == "timestamp" else _whole)
            ranges[column] = (max(first, ranges[column][0]), min(last, ranges[column][1]))
    return PushedBounds(topics, *ranges.values())


def _values(filter_: "Filter") -> Collection[Any]:
    """The values of which a column has one; none if the filter is of another kind."""
    kind, given = _named(filter_)
    if kind == "In":
        return cast("Collection[Any]", given)
    return (given,) if kind in {"EqualTo", "EqualNullSafe"} else ()


def _named(filter_: "Filter") -> tuple[str, Any]:
    """The kind of a filter, and the value that it compares with."""
    return type(filter_).__name__, getattr(filter_, "value", None)


def _range(filter_: "Filter", read: Any) -> tuple[int, int]:  # noqa: ANN401
    """The values that a filter keeps, by a function that gives the range of one value."""
    if values := _values(filter_):
        ranges = [read(each) for each in values]
        return min(first for first, _ in ranges), max(last for _, last in ranges)
    kind, given = _named(filter_)
    if kind in {"GreaterThan", "GreaterThanOrEqual"}:
        return read(given)[0], _MOST
    if kind in {"LessThan", "LessThanOrEqual"}:
        return _LEAST, read(given)[1]
    return _LEAST, _MOST


def _whole(value: object) -> tuple[int, int]:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return (cast(int, value), cast(int, value)) if is_whole else (_LEAST, _MOST)


def _micros(value: object) -> tuple[int, int]:
    """Spark passes moments; Sail microseconds, in some zone, or days."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        whole = int(value.timestamp()) * 1_000_000 + value.microsecond
        return whole - 1_000_000, whole + 1_000_000  # `int` rounds times before 1970 up
    if not isinstance(value, int) or isinstance(value, bool) or value <= _LARGEST_DAY:
        return _LEAST, _MOST
    return value - _DAY, value + _DAY
