"""The table of differences from the ``kafka`` source: each row has a test."""

import json
import re
from pathlib import Path

import pytest
from planned_reads import offsets_by_partition, plan, ranges, write_times

import segmentlog
from pyspark_segmentlog.options.read_options import ReadOptions
from segmentlog.errors import OptionError

PAGE = Path(__file__).parents[2] / "connector" / "docs" / "differences.md"

#: A row by its first cell, and the test that shows our side of it.
TESTS = {
    "where the data is": (
        "options/test_read_options:test_options_without_effect_are_named_in_one_warning"
    ),
    "none of `subscribe`, `subscribePattern`, `assign`": (
        "reads/test_reader:test_all_topics_but_internal_ones_are_read"
    ),
    "`assign` without a partition, such as `{}`": (
        "options/test_offsets:test_another_form_of_assign_is_refused_with_an_example"
    ),
    "`subscribePattern`": "reads/test_reader:test_topics_are_chosen_as_by_the_kafka_source",
    "a schema of your own": "reads/test_reader:test_a_users_schema_selects_columns",
    "the moment at which the end of a read is fixed": (
        "reads/test_reader:test_a_data_frame_keeps_the_ends_of_its_first_query"
    ),
    "records that are deleted after a read from `earliest` was planned": (
        "reads/test_task:test_a_read_from_earliest_follows_retention_in_silence"
    ),
    "`latest`": "test_differences:test_latest_is_what_the_broker_has_checkpointed",
    "tasks": "test_differences:test_one_partition_is_read_by_many_tasks",
    "`maxRecordsPerPartition` without `minPartitions`, in a read from earliest to latest": (
        "test_differences:test_a_bound_on_records_divides_the_default_range"
    ),
    "a starting offset beyond `latest`": (
        "test_differences:test_a_start_beyond_latest_is_refused"
    ),
    'a topic with `"earliest"` or `"latest"` in a map of offsets': (
        "options/test_offsets:test_a_topic_may_have_one_word_for_all_its_partitions"
    ),
    "timestamps": (
        "options/test_timestamps:test_a_timestamp_is_milliseconds_or_a_time_with_its_zone"
    ),
    "a start that is relative to the end, or to the present time": (
        "test_differences:test_the_last_records_of_each_partition"
    ),
    "a start or an end at the committed offsets of a streaming query": (
        "test_checkpoints:test_a_read_begins_and_ends_where_a_query_stands"
    ),
    "a limit of bytes per second; an unchanged page cache": (
        "test_beside_a_broker:test_all_tasks_of_a_read_share_the_limit"
    ),
    "a misspelled name of an option": (
        "options/test_read_options:test_an_unknown_name_is_answered_with_the_nearest"
    ),
    "filters on `topic`, `partition`, `offset`, `timestamp`": (
        "reads/test_filtered_queries:test_queries_of_one_data_frame_do_not_share_a_filter"
    ),
    "blanks around a value": "test_differences:test_blanks_around_a_value_do_not_count",
    "options of a stream that are refused": "reads/test_stream:test_options_that_are_refused",
    "a limit of 0 offsets": (
        "options/test_read_options:test_a_refusal_says_what_the_reference_says"
    ),
    "limits of micro-batches": "reads/test_followed:test_a_limit_in_bytes",
    "`availableNow` and `once` with a limit, on PySpark 4.0 and 4.1": (
        "reads/test_placed_streams:test_limits_of_a_first_micro_batch_are_told"
    ),
    "tasks of a micro-batch": "reads/test_followed:test_small_slices_share_a_task",
    "a checkpoint beyond the end of the log": (
        "reads/test_followed:test_a_checkpoint_beyond_the_log_is_noticed_at_the_next_poll"
    ),
    "a topic that was deleted and created again with more records": (
        "reads/test_followed:test_a_topic_that_was_made_again_with_more_records_is_noticed"
    ),
    "metrics of a stream": "reads/test_stream:test_a_running_query_follows_the_log",
    "a stream into a log": "writes/test_stream:test_restarts_neither_lose_nor_repeat",
    '`mode("overwrite")`': "writes/test_writer:test_overwriting_has_to_be_meant",
    "a bad option; an error in a task": "reads/test_reader:test_a_bad_option_is_explained",
}


def test_each_row_of_the_table_has_a_test() -> None:
    """Each test that is named here exists."""
    rows = re.findall(r"^\| (.*?) \| .* \| .* \|$", PAGE.read_text(), re.MULTILINE)[1:]

    assert rows == list(TESTS)
    for place in TESTS.values():
        module, name = place.split(":")
        assert f"def {name}(" in (Path(__file__).parent / f"{module}.py").read_text()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two partitions of 100 records, a second apart, and one partition without records."""
    times = [1000 * i for i in range(100)]
    write_times(tmp_path, {0: times, 1: times, 2: []}, segment_bytes=2000)
    return tmp_path


def test_latest_is_what_the_broker_has_checkpointed(log: Path) -> None:
    """`readUpTo=logEnd` reads to the last whole batch."""
    (log / "replication-offset-checkpoint").write_text("0\n2\nt 0 50\nt 1 100\n")

    assert [(0, 0, 50), (1, 0, 100)] == ranges(log)
    assert [(0, 0, 100), (1, 0, 100)] == ranges(log, readUpTo="logEnd")


def test_one_partition_is_read_by_many_tasks(log: Path) -> None:
    """A task reads about this number of bytes.

    0 stands for one task, and pieces by offsets are cut again.
    """
    one = {"assign": '{"t":[0]}'}
    n_bytes = sum(each.stat().st_size for each in log.glob("t-0/*.log"))

    assert [(0, 0, 100), (1, 0, 100)] == ranges(log, maxBytesPerPartition="0")
    by_bytes = ranges(log, **one, maxBytesPerPartition=str(n_bytes // 4))
    assert len(by_bytes) > 2
    by_offsets = ranges(log, **one, maxBytesPerPartition="0", minPartitions="2")
    assert [(0, 0, 50), (0, 50, 100)] == by_offsets
    both = ranges(log, **one, maxBytesPerPartition=str(n_bytes // 4), minPartitions="2")
    assert len(both) > 3
    assert {50} < {start for _, start, _ in both}


@pytest.mark.parametrize("late", ["true", "false"])
def test_a_bound_on_records_divides_the_default_range(log: Path, late: str) -> None:
    """`kafka` takes the difference between -2 and -1 for one record."""
    options = {"maxRecordsPerPartition": "40", "lateBinding": late, "assign": '{"t":[0,2]}'}
    edges = ((-2, -1), [(2, -2, -1)]) if late == "true" else ((0, 100), [])

    expected = [(0, edges[0][0], 33), (0, 33, 66), (0, 66, edges[0][1]), *edges[1]]
    assert expected == ranges(log, **options)


def test_a_duration_finds_records_that_a_broker_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted records of the first segment were newer.

    Options of `kafka` answer as a broker does.
    """
    path = tmp_path / "kafka"
    write_times(path, {0: [1000, 9000, *range(2000, 2100)]}, segment_bytes=500)
    monkeypatch.setattr("time.time_ns", lambda: 2_100_000_000)
    segmentlog.delete_records(path, "t", 0, offset=2)

    assert [(0, 52, 102)] == ranges(path, lastDuration="50 ms")
    with pytest.raises(OptionError, match="every record is older"):
        plan(path, startingTimestamp="2050")
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert [] == ranges(path, startingTimestamp="2050", **latest)


@pytest.mark.parametrize("more", [{}, {"minPartitions": "9"}, {"maxRecordsPerPartition": "2"}])
def test_a_start_beyond_latest_is_refused(log: Path, more: dict[str, str]) -> None:
    """The division of the read does not matter."""
    starts = json.dumps({"t": {"0": 999, "1": -2, "2": -2}})

    with pytest.raises(OptionError, match="t-0 would start at 999 and end at"):
        plan(log, startingOffsets=starts, **more)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lastRecords": "10"}, [(90, 100), (90, 100)]),
        ({"lastRecords": "1000"}, [(0, 100), (0, 100)]),
        ({"lastRecords": "10", "endingTimestamp": "50000"}, [(40, 50), (40, 50)]),
        (
            {"lastRecords": "10", "endingOffsets": '{"t":{"0":5,"1":-1,"2":-1}}'},
            [(0, 5), (90, 100)],
        ),
        ({"lastDuration": "5 seconds"}, [(45, 100), (45, 100)]),
        ({"lastDuration": "5 seconds", "endingTimestamp": "47000"}, [(45, 47), (45, 47)]),
        ({"lastDuration": "5 seconds", "endingTimestamp": "40000"}, []),
        ({"lastDuration": "1 day"}, [(0, 100), (0, 100)]),
    ],
)
def test_the_last_records_of_each_partition(
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    expected: list[tuple[int, int]],
) -> None:
    """They are counted from its end, or by time before the planning, 50 seconds into the log."""
    monkeypatch.setattr("time.time_ns", lambda: 50_000_000_000)
    rows = {each: list(range(*bounds)) for each, bounds in enumerate(expected)}

    assert rows == offsets_by_partition(log, **options)


def test_a_duration_without_a_record_is_empty(log: Path) -> None:
    """An empty duration is not an error."""
    assert [] == ranges(log, lastDuration="10 minutes")


def test_a_relative_start_is_fixed_when_the_read_is_planned(log: Path) -> None:
    """The start stays. A late end moves, so that more records are read."""
    found = ranges(log, lastRecords="10", lateBinding="true")

    assert [(0, 90, -1), (1, 90, -1), (2, 0, -1)] == found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subscribe", " t "),
        ("subscribePattern", " t "),
        ("assign", ' {"t":[0]} '),
        ("startingOffsets", " earliest "),
        ("endingOffsets", ' {"t":{"0":5}} '),
        ("startingTimestamp", " 5 "),
        ("endingOffsetsByTimestamp", ' {"t":{"0":5}} '),
        ("startingOffsetsByTimestampStrategy", " latest "),
        ("minPartitions", " 5 "),
        ("maxBytesPerPartition", " 5m "),
        ("includeHeaders", " true "),
        ("kafka.isolation.level", " read_committed "),
    ],
)
def test_blanks_around_a_value_do_not_count(name: str, value: str) -> None:
    """Blanks around any value are ignored. Messages show the text as it was given.

    The name of a file may have blanks, so a path is taken as it is.
    """
    assert (" /e ",) == ReadOptions.parse({"path": " /e "}).paths
    found, expected = (
        ReadOptions.parse({"path": "/d", name: text}) for text in (value, value.strip())
    )
    for field in ReadOptions.__dataclass_fields__:
        pair = getattr(found, field), getattr(expected, field)
        if field in {"start", "end"}:
            assert pair[0].everywhere == pair[1].everywhere
            assert pair[0].partitions == pair[1].partitions
        else:
            assert pair[0] == pair[1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", {"t": {"0": 0, "1": 0}}),
        ("startingOffsets", {"t": "earliest", "u": "earliest"}),
        ("endingOffsets", {"t": {"0": 0, "1": 0, "2": 0, "3": 0}}),
        ("startingOffsetsByTimestamp", {"u": {"0": 0}}),
        ("endingOffsetsByTimestamp", {"t": {"0": 0, "1": 0, "2": 0, "3": 0}}),
    ],
)
def test_maps_name_exactly_the_partitions_that_are_read(
    log: Path, name: str, value: dict[str, object]
) -> None:
    """Maps of offsets and of timestamps do so at both ends, as with `kafka`."""
    with pytest.raises(OptionError, match=f"'{name}' .* exactly the partitions"):
        plan(log, **{name: json.dumps(value)})
