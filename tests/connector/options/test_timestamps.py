"""Starts and ends by time: every form, and the ranges that they give."""

import json
from pathlib import Path

import pytest
from planned_reads import offsets_by_partition, plan, ranges, write_times

from pyspark_segmentlog.options.bounds import LastDuration
from pyspark_segmentlog.options.reference import READ_OPTIONS
from pyspark_segmentlog.options.timestamps import NoMatch, TimestampBound
from segmentlog.errors import OptionError
from segmentlog.model import TopicPartition
from segmentlog.times import parse_duration

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
TABLE = {option.name: option for option in READ_OPTIONS}
ONE_O_CLOCK = 1_769_821_200_000  # 2026-01-31T01:00:00Z


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        (" 1769821200000 ", ONE_O_CLOCK),
        ("9223372036854775807", 2**63 - 1),
        ("2026-01-31T01:00:00Z", ONE_O_CLOCK),
        ("2026-01-31 02:00:00+01:00", ONE_O_CLOCK),
        ("2026-01-31", ONE_O_CLOCK - 3_600_000),
        ("2026-01-30T19:30:00.001-05:30", ONE_O_CLOCK + 1),
        ("2026-01-31T01:00:00.000001Z", ONE_O_CLOCK + 1),
    ],
)
def test_a_timestamp_is_milliseconds_or_a_time_with_its_zone(text: str, milliseconds: int) -> None:
    """A time between two milliseconds is rounded up, so that no earlier record is found."""
    assert milliseconds == TimestampBound.parse("startingTimestamp", text).everywhere


@pytest.mark.parametrize(
    "text",
    ["", "x", "-1", "+5", "1e3", "9223372036854775808", "1969-12-31T23:59:59Z", "2026-02-30T00Z"],
)
def test_another_form_is_no_timestamp(text: str) -> None:
    """A broker takes -1 and -2 for latest and earliest, which is not meant here."""
    with pytest.raises(ValueError, match=r"^$"):
        TimestampBound.parse("startingTimestamp", text)


@pytest.mark.parametrize("text", ["2026-01-31T01:00:00", "2026-01-31 01:00"])
def test_a_time_without_a_zone_is_refused(text: str) -> None:
    """The zone of a session or a machine would move the range."""
    with pytest.raises(ValueError, match="no zone, and no zone is guessed"):
        TimestampBound.parse("startingTimestamp", text)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("startingTimestamp", "1760000000"),
        ("endingOffsetsByTimestamp", '{"a":{"0":1760000000}}'),
    ],
)
def test_a_time_in_seconds_is_refused_with_its_likely_meaning(option: str, text: str) -> None:
    """The message gives the milliseconds and the time that were probably meant."""
    with pytest.raises(OptionError) as caught:
        TABLE[option].value_of(text)

    assert "give 1760000000000 or 2025-10-09T08:53:20Z" in str(caught.value)


def test_timestamps_are_given_by_partition() -> None:
    """Both forms are accepted, and the result is sorted."""
    text = json.dumps({"b": {"0": 7}, "a": {"1": 5, "0": "1970-01-01T00:00:01Z"}})
    bound = TimestampBound.parse_map("startingOffsetsByTimestamp", text)

    assert [(A0, 1000), (A1, 5), (B0, 7)] == list(bound.resolve([B0, A1, A0]).items())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "latest",
        "[]",
        '{"a":5}',
        '{"a":"latest"}',
        '{"a":[0]}',
        '{"a":{"x":5}}',
        '{"a":{"0":-1}}',
        '{"a":{"0":"5"}}',
        '{"a":{"0":5.0}}',
        '{"a":{"0":true}}',
        '{"a":{"0":null}}',
        '{"a":{"0":9223372036854775808}}',
        '{"a":{"0":"2026-01-31T01:00:00"}}',
    ],
)
def test_another_form_of_map_is_refused_with_an_example(text: str) -> None:
    """The message names the option and shows what is accepted."""
    with pytest.raises(OptionError) as caught:
        TABLE["endingOffsetsByTimestamp"].value_of(text)

    assert ("endingOffsetsByTimestamp", text) == (caught.value.option, caught.value.value)
    assert 'JSON such as {"a":{"0":1767225600000,' in str(caught.value)


@pytest.mark.parametrize("n_named", [2, 4])
def test_a_map_names_exactly_the_partitions_that_are_read(n_named: int) -> None:
    """The topic has three partitions, and the map names two or four."""
    text = json.dumps({"a": {str(each): 5 for each in range(n_named)}})
    bound = TimestampBound.parse_map("startingOffsetsByTimestamp", text)

    with pytest.raises(
        OptionError, match="exactly the partitions that are read: the read has a-0, a"
    ):
        bound.resolve(TopicPartition("a", each) for each in range(3))


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("10 minutes", 600_000),
        ("2 days", 172_800_000),
        ("1 day 12 hours", 129_600_000),
        (" 500ms ", 500),
        ("90S", 90_000),
        ("1 Week", 604_800_000),
    ],
)
def test_durations_have_spark_s_words(text: str, milliseconds: int) -> None:
    """Words may be singular, plural or short, and several durations are added."""
    assert milliseconds == parse_duration(text)


@pytest.fixture
def times(tmp_path: Path) -> Path:
    """Timestamps out of order, over several segments; partition 2 has no record."""
    in_order = [1000 * i for i in range(100)]
    write_times(
        tmp_path,
        {0: in_order, 1: [5000, 1000, 9000, 2000, 9000, 3000], 2: []},
        segment_bytes=1000,
    )
    return tmp_path


def by_partition(*milliseconds: int) -> str:
    """A map of timestamps of the topic `t`."""
    return json.dumps({"t": dict(enumerate(milliseconds))})


ASSIGN = {"assign": '{"t":[0,1]}'}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingTimestamp": "3001"}, [(4, 100), (0, 6)]),
        ({"startingTimestamp": "5001"}, [(6, 100), (2, 6)]),
        ({"endingTimestamp": "3000"}, [(0, 3), (0, 0)]),
        ({"endingTimestamp": "9500"}, [(0, 10), (0, 6)]),
        ({"endingTimestamp": "1970-01-01T00:00:09.5Z"}, [(0, 10), (0, 6)]),
        ({"startingTimestamp": "5001", "endingTimestamp": "9500"}, [(6, 10), (2, 6)]),
        ({"startingOffsetsByTimestamp": by_partition(98_500, 6000)}, [(99, 100), (2, 6)]),
        ({"endingOffsetsByTimestamp": by_partition(500, 6000)}, [(0, 1), (0, 2)]),
        ({"endingOffsetsByTimestamp": by_partition(500, 9001)}, [(0, 1), (0, 6)]),
        (
            {
                "startingOffsetsByTimestamp": by_partition(10_000, 0),
                "endingOffsets": '{"t":{"0":20,"1":-1}}',
            },
            [(10, 20), (0, 6)],
        ),
        (
            {"startingOffsets": '{"t":{"0":5,"1":-2}}', "endingTimestamp": "8001"},
            [(5, 9), (0, 2)],
        ),
    ],
)
def test_ranges_by_time(
    times: Path, options: dict[str, str], expected: list[tuple[int, int]]
) -> None:
    """Both bounds are the lowest offset whose record is not older than the time."""
    found = offsets_by_partition(times, **ASSIGN, **options)
    rows = {i: list(range(*bounds)) for i, bounds in enumerate(expected) if bounds[0] < bounds[1]}

    assert rows == found


def test_a_time_for_all_comes_before_a_map_and_a_map_before_offsets(times: Path) -> None:
    """The precedence holds for both bounds."""
    both = ASSIGN | {
        "startingTimestamp": "50000",
        "endingTimestamp": "60000",
        "startingOffsetsByTimestampStrategy": "latest",
    }
    of_map = {
        "startingOffsetsByTimestamp": by_partition(20_000, 0),
        "endingOffsetsByTimestamp": by_partition(30_000, 2000),
    }
    of_offsets = {"startingOffsets": "no", "endingOffsets": "no"}

    assert [(0, 50, 60)] == ranges(times, **both, **of_map, **of_offsets)
    assert [(0, 20, 30)] == ranges(times, **ASSIGN, **of_map, **of_offsets)


def test_a_start_after_every_record_is_an_error(times: Path) -> None:
    """The message names partitions, timestamp, and the option that starts them at the end."""
    with pytest.raises(OptionError, match="t-1 has none at or after 9001 ms") as caught:
        plan(times, **ASSIGN, startingTimestamp="9001")
    assert "t-0 has" not in str(caught.value)
    assert "startingOffsetsByTimestampStrategy=latest" in str(caught.value)
    with pytest.raises(OptionError, match="t-0 has none at or after 99001 ms"):
        plan(times, **ASSIGN, startingOffsetsByTimestamp=by_partition(99_001, 0))
    with pytest.raises(OptionError, match="t-2 has none at or after 0 ms"):
        plan(times, startingTimestamp="0")  # an empty partition has no record either


def test_a_start_after_every_record_may_be_the_end(times: Path) -> None:
    """Other partitions start at their records."""
    latest = {"startingOffsetsByTimestampStrategy": "LATEST"}

    assert [(0, 10, 100)] == ranges(times, **latest, startingTimestamp="9001")
    assert [] == ranges(times, **latest, startingTimestamp="9999999999999")
    found = ranges(times, **ASSIGN, **latest, startingOffsetsByTimestamp=by_partition(99_001, 0))
    assert {1} == {partition for partition, _, _ in found}


def test_an_end_after_every_record_is_the_end_of_the_log(times: Path) -> None:
    """There is no warning, and the strategy of starts does not matter."""
    assert [(0, 0, 100), (1, 0, 6)] == ranges(times, endingTimestamp="99001")


def test_a_start_beyond_its_end_is_refused_once_both_are_known(times: Path) -> None:
    """The message has both offsets. `failOnDataLoss` does not matter."""
    for options in (
        {"startingTimestamp": "50000", "endingTimestamp": "40000"},
        {"startingOffsets": '{"t":{"0":50,"1":0}}', "endingTimestamp": "40000"},
        {"startingTimestamp": "50000", "endingOffsets": '{"t":{"0":40,"1":6}}'},
    ):
        with pytest.raises(OptionError, match="t-0 would start at 50 and end at 40"):
            plan(
                times,
                **ASSIGN,
                **options,
                failOnDataLoss="false",
                startingOffsetsByTimestampStrategy="latest",
            )


def test_records_beyond_the_end_of_a_read_are_not_found(times: Path) -> None:
    """A broker's look-up also ends at the high watermark."""
    checkpoint = times / "replication-offset-checkpoint"
    checkpoint.write_text("0\n2\nt 0 50\nt 1 6\n")

    with pytest.raises(OptionError, match="t-0 has none at or after 50000 ms"):
        plan(times, assign='{"t":[0]}', startingTimestamp="50000")
    assert [(0, 49, 50)] == ranges(times, assign='{"t":[0]}', startingTimestamp="49000")
    up_to_end = {"assign": '{"t":[0]}', "readUpTo": "logEnd"}
    assert [(0, 50, 100)] == ranges(times, **up_to_end, startingTimestamp="50000")


def test_a_strategy_belongs_to_a_start() -> None:
    """The strategy does not change the bound."""
    bound = TimestampBound.parse("startingTimestamp", "5")

    assert NoMatch.ERROR == bound.with_no_match(NoMatch.ERROR).no_match
    assert NoMatch.LATEST == bound.no_match


def test_a_duration_ends_at_the_planning_of_the_read() -> None:
    """The start is not before 1970."""
    duration = LastDuration.parse("lastDuration", "2 seconds")

    assert 8000 == duration.before(10_000).everywhere
    assert 0 == duration.before(1000).everywhere
