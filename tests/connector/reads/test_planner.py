"""Planning of slices from options, without Spark."""

import json
import shutil
from pathlib import Path

import pytest
from checkpoints import write_checkpoint
from diskless_directory import SEAL, diskless_topics
from planned_reads import offsets_by_partition, ranges, write_times
from stores_here import serve, store_of

import segmentlog
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.planner import PlannedMoment, plan_slices, plan_tasks
from segmentlog.errors import (
    CorruptCheckpointError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from segmentlog.model import OffsetRange, TopicPartition


def test_a_partition_that_is_not_read_may_be_in_two_directories(
    example_data: str, tmp_path: Path
) -> None:
    """The directories of two brokers both have an internal topic, which is not read."""
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, topic in zip(paths, ("orders", "payments"), strict=True):
        for source in Path(example_data).glob(f"{topic}-*"):
            shutil.copytree(source, path / source.name)
        shutil.copytree(Path(example_data, "orders-0"), path / "__consumer_offsets-0")
    options = {"paths": f'["{paths[0]}", "{paths[1]}"]'}
    slices = plan_slices(ReadOptions.parse(options))

    assert {"orders", "payments"} == {each.topic for each in slices}
    with pytest.raises(LogDirectoryError, match="leave out one of the two"):
        plan_slices(ReadOptions.parse(options | {"subscribe": "__consumer_offsets"}))


def test_assigned_partitions_that_are_missing_cause_a_warning(
    example_data: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are left out, as by `kafka`. One warning names all of them."""
    assigned = {"path": example_data, "assign": '{"orders":[1,98,99]}'}
    slices = plan_slices(ReadOptions.parse(assigned))

    assert {1} == {each.partition for each in slices}
    (warning,) = caplog.messages
    assert "orders-98, orders-99" in warning
    caplog.clear()
    plan_slices(ReadOptions.parse(assigned | {"assign": '{"orders":[1]}'}))
    assert [] == caplog.messages


def test_of_a_topic_that_is_there_no_assigned_partition_need_be(example_data: str) -> None:
    """The read is empty, as by `kafka`. A missing topic is an error."""
    for late in ("true", "false"):
        options = {"path": example_data, "lateBinding": late}
        assert [] == plan_tasks(ReadOptions.parse(options | {"assign": '{"orders":[99]}'}))
        with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'nothing'"):
            plan_tasks(ReadOptions.parse(options | {"assign": '{"nothing":[0],"orders":[0]}'}))


def test_a_partition_that_a_checkpoint_promises_is_data_loss(
    example_data: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A read of its topic fails, or a warning names the partition. Other reads do not fail."""
    path = tmp_path / "kafka"
    shutil.copytree(example_data, path)
    shutil.rmtree(path / "orders-1")
    reads = (
        {"subscribe": "orders"},
        {"subscribePattern": "ord"},
        {"assign": '{"orders":[1]}'},
        {},
    )
    for chosen in reads:
        options = {"path": str(path), **chosen}
        with pytest.raises(UnknownTopicOrPartitionError) as caught:
            plan_tasks(ReadOptions.parse(options))
        assert ("orders", 1) == (caught.value.topic, caught.value.partition)
        for each in ("high watermark is 317", "replication-offset-checkpoint", "failOnDataLoss"):
            assert each in str(caught.value)
        caplog.clear()
        slices = plan_slices(ReadOptions.parse(options | {"failOnDataLoss": "false"}))
        assert ("orders", 1) not in {each.topic_partition for each in slices}
        assert "orders-1 is left out" in caplog.messages[0]
    for chosen in ({"subscribe": "payments"}, {"assign": '{"orders":[0]}'}):
        assert plan_slices(ReadOptions.parse({"path": str(path), **chosen}))


def test_every_partition_of_the_topics_is_read(example_data: str) -> None:
    """The topics are subscribed to, or their names match."""
    orders = {("orders", 0), ("orders", 1), ("orders", 2)}
    payments = {("payments", 0)}
    for chosen, expected in (
        ({"subscribe": "orders,payments"}, orders | payments),
        ({"subscribePattern": "^o"}, orders),
        ({"assign": '{"orders":[0,2]}'}, orders - {("orders", 1)}),
    ):
        slices = plan_slices(ReadOptions.parse({"path": example_data, **chosen}))
        assert expected == {(each.topic, each.partition) for each in slices}


@pytest.mark.parametrize("name", ["*", "d[12]", "{data,logs}", "data,logs"])
def test_several_paths_in_one(tmp_path: Path, name: str) -> None:
    """The text is not split, and the error names the remedy."""
    path = str(tmp_path / name)
    with pytest.raises(OptionError, match=r"load\(\[.*subscribePattern") as refused:
        plan_slices(ReadOptions.parse({"path": path}))
    assert ("path", path) == (refused.value.option, refused.value.value)

    (tmp_path / name).mkdir()
    with pytest.raises(LogDirectoryError, match="holds neither"):  # it exists, and is read
        plan_slices(ReadOptions.parse({"path": path}))


def test_a_path_that_is_not_there_is_no_list_of_paths(tmp_path: Path) -> None:
    """A plain missing path keeps its own message."""
    with pytest.raises(LogDirectoryError, match="no such file"):
        plan_slices(ReadOptions.parse({"path": str(tmp_path / "gone")}))


def test_a_pattern_at_a_url_is_refused_without_its_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question mark of a URL is not a pattern."""
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "meta.properties").write_text("")
    url = serve(monkeypatch, store_of(tmp_path), "bucket")

    with pytest.raises(OptionError, match="neither expanded nor split") as caught:
        plan_slices(ReadOptions.parse({"path": f"{url}/kaf*?token=topsecret"}))
    assert "topsecret" not in str(caught.value)
    assert [] == plan_slices(ReadOptions.parse({"path": f"{url}/kafka?token=topsecret"}))


def test_fewer_tasks_than_pieces(example_data: str) -> None:
    """Each piece is read by one task, also with `lateBinding`."""
    options = {"path": example_data, "maxRecordsPerPartition": "50"}
    slices = plan_slices(ReadOptions.parse(options))
    for assignor in ("bytes", "range", "RoundRobin", "sticky"):
        few = options | {"maxPartitions": "3", "partitionAssignor": assignor}
        tasks = plan_tasks(ReadOptions.parse(few))
        late = plan_tasks(ReadOptions.parse(few | {"lateBinding": "true"}))

        assert 3 == len(tasks) == len(late)
        assert slices == sorted(part for task in tasks for part in task)
        assert len(slices) + 1 == sum(map(len, late))  # and partitions that come later

    assert [(each,) for each in slices] == plan_tasks(ReadOptions.parse(options))


def test_more_tasks_than_the_most(example_data: str) -> None:
    """The two options contradict each other."""
    options = {"path": example_data, "minPartitions": "5", "maxPartitions": "4"}
    with pytest.raises(OptionError, match="minPartitions asks for at least 5") as refused:
        ReadOptions.parse(options)
    assert ("maxPartitions", "4") == (refused.value.option, refused.value.value)


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("late", ["true", "false"])
def test_a_read_from_earliest_may_end_before_the_log_start(
    tmp_path: Path, late: str, fail: str
) -> None:
    """It has no rows, as in `kafka`. A start that is an offset is refused."""
    path = tmp_path / "kafka"
    write_times(path, {0: [*range(20)], 1: [*range(20)]})
    segmentlog.delete_records(path, "t", 0, offset=12)
    ends = '{"t":{"0":10,"1":10}}'
    place = write_checkpoint(tmp_path / "c", {0: ends}, committed=0)
    options = {"failOnDataLoss": fail, "lateBinding": late}
    for end in (ends, f"checkpoint:{place}"):
        options["endingOffsets"] = end
        assert {1: [*range(10)]} == offsets_by_partition(path, **options)
        start = '{"t":{"0":-2,"1":0}}'
        assert {1: [*range(10)]} == offsets_by_partition(path, **options, startingOffsets=start)
        with pytest.raises(OptionError, match="t-0 would start at 12 and end at 10"):
            ranges(path, **options, startingOffsets=start.replace("-2", "12"))


@pytest.mark.parametrize(
    ("n_records", "bounds", "n_tasks", "expected"),
    [
        (
            [4],
            {"startingOffsets": {"0": 1}, "endingOffsets": {"0": 4}},
            3,
            [(1, 2), (2, 3), (3, 4)],
        ),
        ([4], {}, 3, [(-2, 1), (1, 2), (2, -1)]),
        (
            [100, 4],
            {"endingOffsets": {"0": -1, "1": 3}},
            4,
            [(-2, 33), (33, 66), (66, -1), (-2, 3)],
        ),
        (
            [100, 4],
            {"startingOffsets": {"0": 0, "1": 0}, "endingOffsets": {"0": 100, "1": 3}},
            4,
            [(0, 33), (33, 66), (66, 100), (0, 3)],
        ),
    ],
)
def test_the_ranges_of_spark_s_offset_reader(
    tmp_path: Path,
    n_records: list[int],
    bounds: dict[str, dict[str, int]],
    n_tasks: int,
    expected: list[tuple[int, int]],
) -> None:
    """In the cases of ``KafkaOffsetReaderSuite``, -2 and -1 stay at the outer bounds."""
    write_times(tmp_path, {i: [1000] * n for i, n in enumerate(n_records)})
    options = {name: json.dumps({"t": value}) for name, value in bounds.items()}
    found = ranges(tmp_path, **options, minPartitions=str(n_tasks), lateBinding="true")

    assert expected == [(start, end) for _, start, end in found]


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsetsByTimestamp"])
def test_a_map_is_checked_before_a_log_is_opened(tmp_path: Path, option: str) -> None:
    """The mistake in the query is reported first. The logs of this test cannot be read."""
    write_times(tmp_path, {0: [1000], 1: [1000]})
    (tmp_path / "replication-offset-checkpoint").write_text("no checkpoint")

    with pytest.raises(OptionError, match="exactly the partitions"):
        plan_slices(ReadOptions.parse({"path": str(tmp_path), option: '{"t":{"0":0}}'}))
    with pytest.raises(CorruptCheckpointError):
        plan_slices(ReadOptions.parse({"path": str(tmp_path), option: '{"t":{"0":0,"1":0}}'}))


def test_a_range_between_the_ends_of_two_moments_is_cut(tmp_path: Path) -> None:
    """A stream asks for the latest offsets at each trigger, and reads the range between them."""
    options = ReadOptions.parse({"path": str(tmp_path), "maxRecordsPerPartition": "2"})
    write_times(tmp_path, {0: [1, 2], 1: [1]})
    first = PlannedMoment(options).ends()
    write_times(tmp_path, {0: [3, 4, 5], 1: []})
    moment = PlannedMoment(options)
    asked = {each: OffsetRange(first[each], end) for each, end in moment.ends().items()}
    cuts = moment.cut(asked)

    assert [0, 1] == [each.partition for each in moment.assigned]
    assert {0: [(2, 3), (3, 5)], 1: []} == {
        each.partition: [(at.start_offset, at.end_offset) for at in cuts[each]] for each in cuts
    }
    with pytest.raises(OffsetOutOfRangeError, match="t-0: offset 9 "):
        moment.cut({TopicPartition("t", 0): OffsetRange(0, 9)})


@pytest.mark.parametrize("is_stream", [False, True])
def test_records_of_a_diskless_topic_that_are_elsewhere_are_data_loss(
    tmp_path: Path, is_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A read to the latest records and a stream fail, or warn; a read to an offset is whole."""
    given = {"path": str(diskless_topics(tmp_path)), "subscribe": "switched"}
    ends = {"endingOffsets": '{"switched":{"0":2}}'}
    for each, fails in (({}, True), ({"failOnDataLoss": "false"}, False), (ends, False)):
        caplog.clear()
        moment = PlannedMoment(ReadOptions.parse(given | each))
        if is_stream and each == ends:
            continue  # a stream has no end
        ask = moment.ends if is_stream else moment.asked
        if fails:
            with pytest.raises(LogDirectoryError, match=f"records from offset {SEAL} on"):
                ask()
        else:
            ask()
            ask()
            said = [text for text in caplog.messages if f"records from offset {SEAL} on" in text]
            assert (each != ends) is (len(said) == 1)
