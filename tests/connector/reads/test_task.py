"""Tasks read a log that has changed since their query was planned."""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planned_reads import offsets_by_partition, plan, ranges, read, write_times

import segmentlog
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.planner import plan_tasks
from pyspark_segmentlog.reads.task import parts_of_task, read_part
from segmentlog.errors import (
    LogChangedError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    StreamOffsetError,
    UnknownTopicOrPartitionError,
)
from segmentlog.model import LogSlice, TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
N_RECORDS = 60
LATE = {"lateBinding": "true"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two partitions of several segments each."""
    times = list(range(1000, 1000 + N_RECORDS))
    write_times(tmp_path, {0: times, 1: times}, segment_bytes=500)
    assert len(segments(tmp_path)) > 3
    return tmp_path


def segments(directory: Path, partition: int = 0) -> list[Path]:
    """The ``.log`` files, in order."""
    return sorted((directory / f"t-{partition}").glob("*.log"))


def delete_head(directory: Path, n_segments: int = 2) -> int:
    """Delete the first segment, as retention does, and return the new log start."""
    gone = segments(directory)[:n_segments]
    for path in gone:
        for each in (path, path.with_suffix(".index"), path.with_suffix(".timeindex")):
            each.unlink()
    return int(segments(directory)[0].stem)


@pytest.mark.parametrize(
    "options",
    [
        {},
        LATE,
        {"maxBytesPerPartition": "0"},
        LATE | {"maxRecordsPerPartition": "7"},
        {"maxRecordsPerPartition": "7"},
    ],
)
def test_a_read_from_earliest_follows_retention_in_silence(
    log: Path, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Every piece of the partition is shortened without a warning.

    Other partitions are complete.
    """
    planned = plan(log, **options)
    start = delete_head(log)
    found = read(planned, log, **options)

    assert 0 < start < N_RECORDS
    assert {T0: list(range(start, N_RECORDS)), T1: list(range(N_RECORDS))} == found
    assert [] == caplog.messages


STARTS = [
    {"startingOffsets": '{"t":{"0":1,"1":0}}'},
    {"startingTimestamp": "1001"},
    {"lastRecords": "59"},
]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("late", [{}, LATE])
def test_another_read_of_deleted_records_is_an_error(
    log: Path, start: dict[str, str], late: dict[str, str]
) -> None:
    """A user who has named a start expects the records at it."""
    planned = plan(log, **start, **late)
    delete_head(log)

    with pytest.raises(OffsetOutOfRangeError, match="t-0: offset 1 is outside the log"):
        read(planned, log, **start, **late)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("late", [{}, LATE])
def test_deleted_records_may_be_skipped(
    log: Path, start: dict[str, str], late: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The log names their offsets, and no other record is read twice."""
    options = {**start, **late, "failOnDataLoss": "false"}
    planned = plan(log, **options)
    first = delete_head(log)
    found = read(planned, log, **options)

    assert list(range(first, N_RECORDS)) == found[T0]
    (message,) = caplog.messages
    assert f"t-0: offsets [1, {first}) do not exist and are skipped" in message


def test_a_query_that_is_planned_after_retention_skips_its_part_then(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver logs the message that a task would log."""
    first = delete_head(log)
    options = STARTS[0] | {"endingOffsets": '{"t":{"0":99,"1":5}}', "failOnDataLoss": "false"}

    assert {0: list(range(first, N_RECORDS)), 1: [0, 1, 2, 3, 4]} == offsets_by_partition(
        log, **options
    )
    (message,) = caplog.messages
    assert f"t-0: offsets [1, {first}) and [60, 99) do not exist" in message
    assert f"the log holds [{first}, 60)" in message


def test_records_that_a_snapshot_has_promised_may_be_cut_off(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker cuts its log back to the log of its leader."""
    options = {"failOnDataLoss": "false"}
    planned = plan(log, **options)
    last = segments(log)[-1]
    last.unlink()
    end = int(last.stem)

    assert list(range(end)) == read(planned, log, **options)[T0]
    assert f"offsets [{end}, 60) do not exist" in caplog.text
    with pytest.raises(OffsetOutOfRangeError, match=rf"offset 60 is outside .* \[0, {end}\)"):
        read(planned, log)


def test_a_topic_that_is_deleted_ends_its_tasks_or_fails_them(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`failOnDataLoss` decides. The directory then has only another topic."""
    write_times(log, {0: [1]}, topic="u")
    for options in ({}, LATE):
        skipping = {**options, "failOnDataLoss": "false", "subscribe": "t"}
        planned = plan(log, **skipping)
        shutil.move(log / "t-0", log.parent / "aside")
        with pytest.raises(UnknownTopicOrPartitionError, match="partition 0 of topic 't'"):
            read(planned, log, **options)
        caplog.clear()
        assert {T1: list(range(N_RECORDS))} == read(planned, log, **skipping)
        assert "are skipped, because failOnDataLoss is false" in caplog.text
        shutil.move(log.parent / "aside", log / "t-0")
    shutil.rmtree(log)
    with pytest.raises(LogDirectoryError):
        read(planned, log, **LATE)


def test_an_error_that_names_no_offsets_is_raised(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without offsets, the read cannot continue.

    A log that should have the records raises it, too.
    """
    planned = plan(log)
    for next_offset, end_offset in ((-1, -1), (0, N_RECORDS)):
        error = LogChangedError(str(log), next_offset, end_offset, "it goes round and round")

        def scan(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("pyspark_segmentlog.reads.task.scan_slice", scan)
        with pytest.raises(LogChangedError, match="round"):
            read(planned, log)


def test_a_snapshot_does_not_grow_and_a_late_end_does(log: Path) -> None:
    """Only an end at latest grows. Fixed ends and ends by time do not."""
    for options, n_then in (
        ({}, {T0: 60, T1: 60}),
        (LATE, {T0: 62, T1: 62}),
        (LATE | {"minPartitions": "7"}, {T0: 63, T1: 63}),
        (LATE | {"endingOffsets": '{"t":{"0":10,"1":-1}}'}, {T0: 10, T1: 64}),
        (LATE | {"endingTimestamp": "999999"}, {T0: 64, T1: 64}),
    ):
        planned = plan(log, **options)
        write_times(log, {0: [5000], 1: [5000]})
        found = read(planned, log, **options)
        assert n_then == {each: len(offsets) for each, offsets in found.items()}, options
        assert all(list(range(len(offsets))) == offsets for offsets in found.values())


def test_late_edges_are_those_of_the_first_and_the_last_piece(log: Path) -> None:
    """Cuts inside a partition stay. -2 stands for earliest and -1 for latest."""
    one = {"assign": '{"t":[0]}', **LATE}

    assert [(0, -2, 20), (0, 20, 40), (0, 40, -1)] == ranges(log, **one, minPartitions="3")
    assert [(0, -2, -1)] == ranges(log, **one)
    bounds = {"startingOffsets": '{"t":{"0":7}}', "endingOffsets": '{"t":{"0":9}}'}
    assert [(0, 7, 9)] == ranges(log, **one, **bounds)


def test_an_empty_partition_that_is_bound_late_may_fill(tmp_path: Path) -> None:
    """The partition has a task, which finds nothing at first."""
    write_times(tmp_path, {0: [], 1: [1]})
    assert [(1, 0, 1)] == ranges(tmp_path)
    planned = plan(tmp_path, **LATE)
    assert {T1: [0]} == read(planned, tmp_path, **LATE)
    write_times(tmp_path, {0: [1, 2], 1: []})

    assert {T0: [0, 1], T1: [0]} == read(planned, tmp_path, **LATE)


@pytest.mark.parametrize("n_records", [30, 200])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_was_made_again_is_another_topic(
    log: Path, n_records: int, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    """None of its rows replaces a planned row, whatever the bounds of the new log are."""
    write_id(log, "AAAAAAAAAAAAAAAAAAAAAA")
    options = {"failOnDataLoss": fails, "assign": '{"t":[0]}'}
    planned = plan(log, **options)
    shutil.rmtree(log)
    write_times(log, {0: [2000] * n_records, 1: []}, segment_bytes=500)
    delete_head(log, 1)
    write_id(log, "BBBBBBBBBBBBBBBBBBBBBB")

    if fails == "true":
        with pytest.raises(LogChangedError, match="existed when the read was"):
            read(planned, log, **options)
    else:
        assert {} == read(planned, log, **options)
        assert "t-0: offsets [0, 60) are skipped, because failOnDataLoss is false" in caplog.text


def write_id(directory: Path, topic_id: str) -> None:
    """Write the topic id of the partitions, as a broker does."""
    for path in directory.glob("t-*"):
        (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")


@pytest.mark.parametrize("options", [LATE, LATE | {"maxRecordsPerPartition": "7"}])
@pytest.mark.parametrize("n_new", [0, 30, 90])
def test_a_late_range_belongs_to_the_topic_that_was_planned(
    log: Path, options: dict[str, str], n_new: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Another topic of the same name has other records, or none."""
    options = options | {"assign": '{"t":[0]}'}
    write_id(log, "A" * 22)
    planned = plan(log, **options)
    segmentlog.delete_topic(log, "t")
    write_times(log, {0: list(range(n_new)), 1: []})
    write_id(log, "B" * 22)

    with pytest.raises(LogChangedError, match=rf"\(id {'B' * 22}, not {'A' * 22}\)"):
        read(planned, log, **options)
    assert {} == read(planned, log, **options, failOnDataLoss="false")
    assert "are skipped, because failOnDataLoss is false" in caplog.text


def test_offsets_with_the_id_of_their_topic_are_refused_in_another(log: Path) -> None:
    """`segmentlog offsets` writes the ids that a checkpoint has beside its offsets."""
    write_id(log, "A" * 22)
    for topic_id, is_same in (("A" * 22, True), ("B" * 22, False)):
        text = f'{{"t":{{"0":5,"1":-2}},"t@{topic_id}":{{}}}}'
        for option in ("startingOffsets", "endingOffsets"):
            given = {option: text.replace("-2", "60")}
            if is_same:
                assert plan(log, **given)
            else:
                with pytest.raises(StreamOffsetError, match=f"give another {option}"):
                    plan(log, **given)


class Churn:
    """Topics of one partition that are made, filled, cut at the start, deleted and created again.

    As with a broker, each new topic has another id, under an old name and with the same offsets.
    """

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self._directory, self._rng = directory, rng
        self._n_made = 0
        self.made: dict[str, int] = {}  #: number of each existing topic

    def _topics(self) -> list[str]:
        return sorted(each.name[:-2] for each in self._directory.glob("t*-0"))

    def make(self) -> None:
        topic = self._rng.choice([f"t{i}" for i in range(4)])
        if topic in self._topics():
            return
        self._write(topic)
        self._n_made += 1
        self.made[topic] = self._n_made
        text = f"version: 0\ntopic_id: {self._n_made:022d}\n"
        (self._directory / f"{topic}-0" / "partition.metadata").write_text(text)

    def _write(self, topic: str) -> None:
        times = list(range(1000, 1000 + self._rng.randint(1, 40)))
        write_times(self._directory, {0: times}, topic, segment_bytes=500)

    def fill(self) -> None:
        for topic in self._topics():
            self._write(topic)

    def cut(self) -> None:
        for topic in self._topics():
            files = sorted((self._directory / f"{topic}-0").glob("*.log"))
            for path in files[: self._rng.randint(0, len(files) - 1)]:
                for each in (path, path.with_suffix(".index"), path.with_suffix(".timeindex")):
                    each.unlink()

    def delete(self) -> None:
        for topic in self._topics():
            if self._rng.random() < 0.5:
                segmentlog.delete_topic(self._directory, topic)
                del self.made[topic]

    def step(self) -> None:
        """Take a random step."""
        changes: list[Callable[[], None]] = [self.make, self.fill, self.cut, self.delete]
        self._rng.choice([*changes, self.make])()


@pytest.mark.parametrize(
    "seed",
    [5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (9, *range(20, 30)))],
)
def test_topics_that_come_and_go_fail_no_read_that_may_lose_data(
    tmp_path: Path, seed: int
) -> None:
    """Topics change between planning and tasks, and each task reads the rest of its range.

    Spark's ``KafkaDontFailOnDataLossSuite`` has this stress test, with a stream.
    """
    rng = random.Random(seed)
    churn = Churn(tmp_path, rng)
    write_times(tmp_path, {0: [1]}, topic="other")
    n_rows = 0
    for query in range(8):
        options = {"subscribePattern": "^t", "failOnDataLoss": "false", "minPartitions": "5"}
        options["lateBinding"] = str(query % 2 == 0).lower()
        churn.make()
        planned, promised = plan(tmp_path, **options), dict(churn.made)
        ends: dict[TopicPartition, int] = {}
        for each in planned:
            churn.step()
            found = read([each], tmp_path, **options).get(each.topic_partition, [])
            n_rows += len(found)
            if isinstance(each, LogSlice):
                is_same = churn.made.get(each.topic) == promised[each.topic]
                assert found == (left_of(tmp_path, each) if is_same else [])
            if found:  # no offset comes twice, even if the topic was made again
                assert ends.get(each.topic_partition, 0) <= found[0]
                assert list(range(found[0], found[-1] + 1)) == found
                ends[each.topic_partition] = found[-1] + 1

    assert n_rows > 0


def left_of(directory: Path, planned: LogSlice) -> list[int]:
    """Offsets of a slice that its log still has."""
    log = segmentlog.open_log_dir(directory).log(planned.topic, planned.partition)
    start = max(planned.start_offset, log.log_start_offset)
    return list(range(start, min(planned.end_offset, log.log_end_offset)))


@pytest.mark.parametrize("late", [{}, LATE])
def test_lost_segments_at_the_end_of_a_log_are_data_loss(
    log: Path, late: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """`failOnDataLoss` decides whether the query fails. The driver's warning names the offsets."""
    last = segments(log)[-1]
    last.unlink()
    end = int(last.stem)
    options = {**late, "failOnDataLoss": "false"}

    with pytest.raises(LogDirectoryError, match=rf"offsets \[{end}, {N_RECORDS}\) are missing"):
        plan(log, **late)
    found = read(plan(log, **options), log, **options)
    assert list(range(end)) == found[T0]
    (message,) = caplog.messages
    assert f"t-0: [{end}, {N_RECORDS})" in message


@pytest.mark.parametrize("options", [{"subscribe": "t"}, {"subscribePattern": "^t$|new"}])
def test_partitions_that_come_later_are_read_by_a_late_read(
    tmp_path: Path, options: dict[str, str]
) -> None:
    """The last task finds those that the options select, unless the topic was made again."""
    write_times(tmp_path, {0: [1]})
    write_times(tmp_path, {0: [1]}, topic="other")
    write_id(tmp_path, "A" * 22)
    tasks = plan_tasks(ReadOptions.parse({"path": str(tmp_path), **options, **LATE}))
    early = plan_tasks(ReadOptions.parse({"path": str(tmp_path), **options}))
    shutil.copytree(tmp_path / "t-0", tmp_path / "t-1")
    write_times(tmp_path, {0: [1, 2, 3]}, topic="new")
    write_id(tmp_path, "A" * 22)

    def found(planned: list[Any], **more: str) -> Counter[str]:
        parsed = ReadOptions.parse({"path": str(tmp_path), **options, **LATE, **more})
        return Counter(
            str(part.topic_partition)
            for task in planned
            for part in parts_of_task(task, parsed)
            for batch in read_part(part, ["offset"], parsed)
            for _ in range(batch.num_rows)
        )

    news = {"new-0": 3} if "new" in options.get("subscribePattern", "") else {}
    assert Counter({"t-0": 1, "t-1": 1, **news}) == found(tasks)
    assert Counter({"t-0": 1}) == found(early)
    write_id(tmp_path, "B" * 22)
    assert Counter(news) == found(tasks, failOnDataLoss="false")
