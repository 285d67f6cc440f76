"""Spark's filters as bounds: no row that passes lies outside of them."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

import segmentlog
from pyspark_segmentlog.read.filters import EVERYTHING, Bounds, bounds_of
from pyspark_segmentlog.read.offsets import EARLIEST, LATEST
from pyspark_segmentlog.read.options import ReadOptions
from pyspark_segmentlog.read.planner import plan_late_ranges, plan_slices
from segmentlog.errors import OptionError
from segmentlog.model import OffsetRange, TimestampRange, TopicPartition

#: Spark hands over a list, where its documentation has a tuple.
ListIn: Any = In
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOPICS = ["", "a", "ab", "b", "ba", "ä", "z\U0001f600"]
COMPARED: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}
OF_TEXT: dict[type[Filter], Callable[[Any, Any], bool]] = {
    StringStartsWith: lambda a, b: a.startswith(b),
    StringEndsWith: lambda a, b: a.endswith(b),
    StringContains: lambda a, b: b in a,
}


def at(microseconds: int, zone: Any = UTC) -> datetime:
    """An instant, as Spark hands it over."""
    return (EPOCH + timedelta(microseconds=microseconds)).astimezone(zone)


VALUES = {
    "topic": st.sampled_from(TOPICS),
    "partition": st.integers(-1, 4),
    "offset": st.integers(-2, 12) | st.sampled_from([-(2**63), 2**63 - 1]),
    "timestamp": st.integers(-2500, 6500).map(at),
    "key": st.binary(max_size=2),
}
ROWS = st.tuples(
    st.sampled_from(TOPICS), st.integers(0, 3), st.integers(0, 10), st.integers(-1, 5)
)


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    """A filter of any kind on any column, right or not of the column's type, perhaps negated."""
    column = draw(st.sampled_from([*VALUES]))
    values = VALUES[column]
    kind: Any = draw(st.sampled_from([*COMPARED, *OF_TEXT, In, IsNull, IsNotNull]))
    made: Filter
    if kind in (IsNull, IsNotNull):
        made = kind((column,))
    elif kind is In:
        made = ListIn((column,), draw(st.lists(values | st.none(), max_size=3)))
    elif kind in OF_TEXT:
        made = kind(("topic",), draw(st.text("ab", max_size=2)))
    else:
        made = kind((column,), draw(values | st.none()))
    return Not(made) if draw(st.booleans()) else made


def passes(one: Filter, row: dict[str, Any]) -> bool | None:
    """The answer of SQL for one row, None for NULL."""
    if isinstance(one, Not):
        found = passes(one.child, row)
        return None if found is None else not found
    value = row[one.attribute[0]]
    match one:
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case In():
            return True if value in one.value else None if None in one.value else False
        case EqualNullSafe():
            return value == one.value
    if value is None or one.value is None:
        return None
    return (COMPARED | OF_TEXT)[type(one)](value, one.value)


class OldLog:
    """Stands for a log all of whose records below offset 3 are older than any time."""

    def offset_up_to_which_all_are_older(self, _: int) -> int:
        return 3


@given(st.lists(filters(), max_size=4), ROWS)
@settings(max_examples=2000, deadline=None)
def test_a_row_that_passes_lies_within_the_bounds(
    pushed: list[Filter], found: tuple[str, int, int, int]
) -> None:
    """Whatever is pushed, together or alone; values that are null bound nothing wrongly."""
    topic, partition, offset, ms = found
    row = {
        "topic": topic, "partition": partition, "offset": offset, "timestamp": at(1000 * ms),
        "key": b"k",
    }  # fmt: skip
    if not all(passes(each, row) for each in pushed):
        return
    bounds = bounds_of(pushed)
    where = TopicPartition(topic, partition)

    assert [where] == bounds.select([where])
    assert bounds.offsets.start_offset <= offset < bounds.offsets.end_offset
    if bounds.timestamps:
        assert bounds.timestamps.start_ms <= ms < bounds.timestamps.end_ms


@pytest.mark.parametrize(
    ("pushed", "offsets"),
    [
        ([GreaterThanOrEqual(("offset",), 5), LessThan(("offset",), 7)], (5, 7)),
        ([GreaterThan(("offset",), 5), LessThanOrEqual(("offset",), 7)], (6, 8)),
        ([EqualTo(("offset",), 5), IsNotNull(("offset",))], (5, 6)),
        ([EqualNullSafe(("offset",), 5)], (5, 6)),
        ([ListIn(("offset",), [9, 3, 4])], (3, 10)),
        ([Not(EqualTo(("offset",), 5))], (-(2**63), 2**63 - 1)),
        ([EqualTo(("offset",), None)], (-(2**63), 2**63 - 1)),
        ([EqualTo(("offset", "x"), 5)], (-(2**63), 2**63 - 1)),
    ],
)
def test_offsets_are_bounded(pushed: list[Filter], offsets: tuple[int, int]) -> None:
    """As tightly as a range can be."""
    assert Bounds(offsets=OffsetRange(*offsets)) == bounds_of(pushed)


@pytest.mark.parametrize(
    ("pushed", "timestamps"),
    [
        ([GreaterThanOrEqual(("timestamp",), at(5000))], (5, 2**63 - 1)),
        ([GreaterThanOrEqual(("timestamp",), at(5001))], (6, 2**63 - 1)),
        ([GreaterThan(("timestamp",), at(5000))], (6, 2**63 - 1)),
        ([GreaterThan(("timestamp",), at(4999))], (5, 2**63 - 1)),
        ([LessThan(("timestamp",), at(5000))], (-(2**63), 5)),
        ([LessThan(("timestamp",), at(5001))], (-(2**63), 6)),
        ([LessThanOrEqual(("timestamp",), at(5000))], (-(2**63), 6)),
        ([LessThanOrEqual(("timestamp",), at(-1))], (-(2**63), 0)),
        ([EqualTo(("timestamp",), at(5000))], (5, 6)),
        ([EqualTo(("timestamp",), at(5000, timezone(timedelta(hours=5))))], (5, 6)),
        ([ListIn(("timestamp",), [at(9000), at(5000)])], (5, 10)),
    ],
)
def test_timestamps_are_bounded(pushed: list[Filter], timestamps: tuple[int, int]) -> None:
    """In milliseconds, as they are in the log, from microseconds of any zone."""
    assert Bounds(timestamps=TimestampRange(*timestamps)) == bounds_of(pushed)


@pytest.mark.parametrize(
    "pushed",
    [
        [IsNull(("offset",))],
        [IsNull(("timestamp",))],
        [EqualTo(("timestamp",), at(5001))],
        [EqualTo(("offset",), 5), EqualTo(("offset",), 6)],
        [EqualTo(("topic",), "a"), EqualTo(("topic",), "b")],
        [IsNull(("topic",))],
        [IsNull(("partition",))],
        [LessThan(("partition",), 0)],
    ],
)
def test_nothing_can_pass(pushed: list[Filter]) -> None:
    """Then no partition is planned."""
    every = [TopicPartition(topic, partition) for topic in TOPICS for partition in range(3)]

    assert [] == bounds_of(pushed).select(every)


def test_a_time_without_a_zone_bounds_nothing() -> None:
    """Nobody says when it was."""
    naive = at(5000).replace(tzinfo=None)

    assert EVERYTHING == bounds_of([GreaterThan(("timestamp",), naive)])


def test_a_start_by_time_never_lies_behind_the_end() -> None:
    """The range is then empty, and no range is lengthened."""
    bounds = bounds_of([GreaterThan(("timestamp",), at(5000)), LessThan(("offset",), 9)])
    log: Any = OldLog()

    assert [(3, 9), (4, 8), (2, 2), (9, 9)] == [
        bounds.within(log, *each) for each in ((0, 20), (4, 8), (0, 2), (12, 15))
    ]


def spans(path: str, pushed: Sequence[Filter], **options: str) -> list[tuple[str, int, int, int]]:
    """Topic, partition and offsets of the planned slices."""
    slices = plan_slices(ReadOptions.parse({"path": path} | options), bounds_of(pushed))
    return [(each.topic, each.partition, *each.offsets) for each in slices]


def test_partitions_and_offsets_out_of_bounds_are_not_planned(example_data: str) -> None:
    """The bounds cut what the options select, and never widen it."""
    of_one = [EqualTo(("topic",), "orders"), GreaterThan(("partition",), 1)]
    cut = [GreaterThanOrEqual(("offset",), 40), LessThan(("offset",), 60)]
    start = {"subscribe": "orders", "startingOffsets": '{"orders":{"0":0,"1":0,"2":50}}'}

    assert [("orders", 2, 0, 248)] == spans(example_data, of_one)
    assert [("orders", 2, 40, 60)] == spans(example_data, [*of_one, *cut])
    assert [("orders", 2, 50, 60)] == spans(example_data, [*of_one, *cut], **start)
    assert [] == spans(example_data, [GreaterThan(("offset",), 10**6)])
    with pytest.raises(OptionError, match="exactly the partitions"):
        spans(example_data, of_one, subscribe="orders", startingOffsets='{"orders":{"2":5}}')


def test_a_start_by_time_leaves_out_what_is_before_it(tmp_path: Path) -> None:
    """The plan begins near the record that a look-up finds, and never behind it."""
    times = pa.array(range(0, 4_000_000, 1000), pa.timestamp("us", tz="UTC"))
    config = segmentlog.ProducerConfig(batch_size=1000, use_timestamps=True)
    with segmentlog.open_writer(tmp_path, "t", num_partitions=1, config=config) as writer:
        writer.append(pa.table({"value": ["v" * 50] * 4000, "timestamp": times}))
    of_one = [EqualTo(("topic",), "t"), EqualTo(("timestamp",), at(3_000_000))]
    ((*_, start, end),) = spans(str(tmp_path), of_one)

    assert 2800 < start <= 3000
    assert 4000 == end
    assert [] == spans(str(tmp_path), [GreaterThan(("timestamp",), at(4_000_000))])


def test_edges_that_are_looked_up_late_stay_as_they_were_asked_for(example_data: str) -> None:
    """Partitions are narrowed; a bound on offsets would be no edge that a task can look up."""
    options = ReadOptions.parse({"path": example_data, "lateBinding": "true"})
    pushed = [EqualTo(("topic",), "orders"), GreaterThan(("offset",), 300)]
    late = plan_late_ranges(options, bounds_of(pushed))

    assert [("orders", each) for each in range(3)] == [tuple(each[0]) for each in late]
    assert {(EARLIEST, LATEST)} == {(each.start_offset, each.end_offset) for each in late}
