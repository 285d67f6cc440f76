"""A directory as a stream follows it: polls, plans and lost records, without Spark."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checkpoints import write_checkpoint
from plain_writes import values, write

import segmentlog
from pyspark_segmentlog.options.option import Query
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.followed import FollowedDirectory
from pyspark_segmentlog.reads.planner import plan_slices
from pyspark_segmentlog.reads.stream_offsets import from_json
from segmentlog.errors import (
    LogDirectoryError,
    OptionError,
    StreamOffsetError,
    UnknownTopicOrPartitionError,
)
from segmentlog.model import LogSlice
from segmentlog.reads import offsets_of_topics, topic_ids_of
from segmentlog.reads.snapshot import DirectorySnapshot

Offsets = dict[str, dict[str, int]]

EARLIEST = {"startingOffsets": "earliest"}


def rows(n_rows: int, partition: int = 0, size: int = 3) -> pa.Table:
    """Rows for one partition."""
    value = pa.array([b"v" * size] * n_rows, pa.binary())
    return pa.table({"value": value, "partition": pa.array([partition] * n_rows, pa.int32())})


class Stream:
    """A followed directory, and the offset of its last micro-batch."""

    def __init__(self, directory: Path | str, start: Offsets | None = None, **given: Any) -> None:
        begins = {} if {"lastRecords", "lastDuration"} & given.keys() else EARLIEST
        raw = {"path": str(directory), **begins, **given}
        options = ReadOptions.parse({name: str(raw[name]) for name in raw}, Query.STREAM)
        assert options.triggers
        self.followed = FollowedDirectory(options, options.triggers)
        self.offset = start if start is not None else self.followed.initial()

    def poll(self, *, takes_all: bool = False) -> Offsets:
        """The end of the next micro-batch."""
        return self.followed.latest(self.offset, takes_all=takes_all)

    def batch(self) -> dict[str, list[int]]:
        """Start and end of each partition that the next micro-batch reads."""
        end = self.poll()
        tasks = self.followed.plan(self.offset, end)
        self.offset = json.loads(json.dumps(end))
        return ranges(tasks)


def ranges(tasks: list[tuple[LogSlice, ...]]) -> dict[str, list[int]]:
    """Start and end of each partition in the slices of tasks."""
    found: dict[str, list[int]] = {}
    for each in sorted(one for task in tasks for one in task):
        name = str(each.topic_partition)
        assert name not in found or found[name][1] == each.start_offset
        found[name] = [found.get(name, [each.start_offset])[0], each.end_offset]
    return found


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A directory with ten records in one of twelve partitions of a topic."""
    write(tmp_path / "logs", rows(10), num_partitions=12)
    return tmp_path / "logs"


def high_watermark(logs: Path, at: int, name: str = "t 0") -> None:
    """Set the high watermark of a partition as a broker does: in a new file."""
    path = logs / "replication-offset-checkpoint"
    lines = path.read_text().splitlines()
    kept = [f"{name} {at}" if line.startswith(f"{name} ") else line for line in lines]
    (logs / "draft").write_text("\n".join(kept) + "\n")
    (logs / "draft").rename(path)


def test_a_micro_batch_reads_what_came_since_the_last_one(logs: Path) -> None:
    """A poll without new records returns the start, in the same order of partitions."""
    stream = Stream(logs)
    assert {"t-0": [0, 10]} == stream.batch()
    assert json.dumps(stream.offset) == json.dumps(stream.poll())
    assert [str(each) for each in range(12)] == [*stream.offset["t"]]
    write(logs, rows(3), rows(2, 7))

    assert {"t-0": [10, 13], "t-7": [0, 2]} == stream.batch()
    assert [] == stream.followed.plan(stream.offset, stream.offset)
    assert stream.offset == stream.followed.newest()


def test_a_repeated_first_micro_batch_leaves_a_new_topic_to_the_next_one(logs: Path) -> None:
    """Its start is looked up again, and knows a topic that its end does not know."""
    end = Stream(logs, subscribePattern=".").poll()
    write(logs, rows(4), topic="u")
    stream = Stream(logs, subscribePattern=".")
    assert "u" in stream.offset

    assert {"t-0": [0, 10]} == ranges(stream.followed.plan(stream.offset, end))
    stream.offset = end
    assert {"u-0": [0, 4]} == stream.batch()


def test_a_poll_in_which_nothing_has_changed_gives_the_same_object(logs: Path) -> None:
    """An idle query polls about eighty times in a second."""
    stream = Stream(logs)
    stream.batch()
    first, newest = stream.poll(), stream.followed.newest()
    high_watermark(logs, 10)  # a broker writes equal bytes every five seconds

    assert first is stream.poll()
    assert newest is stream.followed.newest()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "latest"}, 10),
        ({"startingOffsets": '{"t": {"0": 4}}', "assign": '{"t": [0]}'}, 4),
        ({"startingOffsets": '{"t": {"0": -1}}', "assign": '{"t": [0]}'}, 10),
        ({"startingOffsets": '{"t": "earliest"}'}, 0),
        ({"lastRecords": 3}, 7),
        ({"startingTimestamp": 5, "subscribe": "t"}, None),
        ({"startingTimestamp": 5, "startingOffsetsByTimestampStrategy": "latest"}, 0),
        ({"lastDuration": "1 hour"}, 0),
    ],
)
def test_starts(logs: Path, given: dict[str, Any], expected: int | None) -> None:
    """Empty partitions have no record at a time, which the strategy decides."""
    if expected is None:
        with pytest.raises(OptionError, match="every record is older"):
            Stream(logs, **given)
        return
    stream = Stream(logs, **given)

    assert expected == stream.offset["t"]["0"]
    write(logs, rows(2))
    assert {"t-0": [expected, 12]} == stream.batch()


def test_a_start_beyond_the_end_is_refused(logs: Path) -> None:
    """The error has both offsets. With failOnDataLoss=false the stream starts at the end."""
    given: dict[str, Any] = {"startingOffsets": '{"t": {"0": 11}}', "assign": '{"t": [0]}'}
    with pytest.raises(OptionError, match="t-0 would start at 11, but its log ends at 10"):
        Stream(logs, **given)
    stream = Stream(logs, **given, failOnDataLoss="false")
    assert {} == stream.batch()
    write(logs, rows(1))

    assert {"t-0": [10, 11]} == stream.batch()


def test_the_initial_offsets_are_kept(logs: Path, tmp_path: Path) -> None:
    """A second run starts where the first one did, and a change of the options does not matter."""
    place: dict[str, Any] = {"initialOffsetsLocation": str(tmp_path / "c" / "sources" / "0")}
    first = Stream(logs, startingOffsets="latest", **place)
    write(logs, rows(5))
    second = Stream(logs, startingOffsets="earliest", **place)

    assert first.offset == second.offset
    assert {"t-0": [10, 15]} == second.batch()


def test_a_repeated_first_micro_batch_whose_start_has_moved_is_refused(logs: Path) -> None:
    """Without the file, latest is looked up again, and lies after the logged end."""
    first = Stream(logs, startingOffsets="latest")
    write(logs, rows(5))
    end = first.poll()
    write(logs, rows(5))
    again = Stream(logs, startingOffsets="latest")

    with pytest.raises(StreamOffsetError, match=r"offset 20.* ends at 15.*initialOffsetsLocation"):
        again.followed.plan(again.offset, end)


def test_limits(logs: Path) -> None:
    """Trigger.Once ignores the limits and reads all records."""
    write(logs, rows(91), rows(11, 1), rows(1, 2))
    stream = Stream(logs, maxOffsetsPerTrigger=10)

    assert {"t-0": [0, 8], "t-1": [0, 1], "t-2": [0, 1]} == stream.batch()
    assert 101 == stream.poll(takes_all=True)["t"]["0"]
    assert {"t-0": [8, 17], "t-1": [1, 2]} == stream.batch()


def test_a_micro_batch_waits_for_enough_records(logs: Path) -> None:
    """The first micro-batch does not wait.  Trigger.Once does not wait, either."""
    stream = Stream(logs, minOffsetsPerTrigger=5, maxOffsetsPerTrigger=6)
    assert {"t-0": [0, 6]} == stream.batch()
    assert {} == stream.batch(), "four records are fewer than five"
    assert 10 == stream.poll(takes_all=True)["t"]["0"]
    write(logs, rows(1))

    assert {"t-0": [6, 11]} == stream.batch()


def test_a_limit_in_bytes(tmp_path: Path) -> None:
    """Each micro-batch has about this number of bytes, and at least one batch of records."""
    logs = tmp_path / "logs"
    small_segments = segmentlog.ProducerConfig(
        topic_config=segmentlog.TopicConfig(segment_bytes=60_000)
    )
    for _ in range(20):
        write(logs, rows(100, size=100), config=small_segments)
    stream = Stream(logs, maxBytesPerTrigger="40k")
    sizes, n_offsets = [], 0
    while (end := stream.poll()) != stream.offset:
        tasks = stream.followed.plan(stream.offset, end)
        sizes.append(sum(each.n_bytes for task in tasks for each in task))
        n_offsets += end["t"]["0"] - stream.offset["t"]["0"]
        stream.offset = end

    assert 2000 == n_offsets
    assert 5 < len(sizes) < 15, sizes
    assert max(sizes) < 70_000, sizes
    tiny = Stream(logs, maxBytesPerTrigger=1)
    assert 0 < tiny.poll()["t"]["0"] <= 500


def test_small_slices_share_a_task(logs: Path) -> None:
    """`maxPartitions` and `minPartitions` decide if they are given."""
    for partition in range(12):
        write(logs, rows(4, partition))
    whole = Stream(logs).offset
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 1),
        ({"maxPartitions": 5}, 5),
        ({"minPartitions": 13}, 13),
    ]
    for given, n_tasks in cases:
        stream = Stream(logs, **given)
        assert n_tasks == len(stream.followed.plan(whole, stream.poll())), given


def test_new_partitions_are_read_from_their_first_record(logs: Path) -> None:
    """The start of the query at latest does not matter."""
    stream = Stream(logs, startingOffsets="latest")
    assert {} == stream.batch()
    write(logs, rows(4), topic="new")
    write(logs, rows(2), topic="later", num_partitions=2)

    assert {"later-0": [0, 2], "new-0": [0, 4]} == stream.batch()
    assert ["later", "new", "t"] == [*stream.offset][:3]
    assert ["later", "new", "t"] == [*topic_ids_of(stream.offset)]


def test_a_new_partition_that_does_not_begin_at_0_has_lost_records(logs: Path) -> None:
    """The rule is that of ``kafka``.  With failOnDataLoss=false, it is read from its start."""
    stream, lenient = Stream(logs), Stream(logs, failOnDataLoss="false")
    stream.batch()
    lenient.batch()
    write(logs, rows(4), topic="new")
    segmentlog.delete_records(logs, "new", 0, offset=3)
    with pytest.raises(StreamOffsetError, match=r"new-0.*its log begins at 3"):
        stream.batch()

    assert {"new-0": [3, 4]} == lenient.batch()


def shorten(logs: Path) -> None:
    """Replace the directory by a shorter copy of the log."""
    shutil.rmtree(logs)
    write(logs, rows(4), num_partitions=12)


def remake(logs: Path) -> None:
    """Delete the topic, and create it again with fewer records."""
    segmentlog.delete_topic(logs, "t")
    write(logs, rows(4), num_partitions=12)


def delete(logs: Path) -> None:
    """Delete the topic."""
    segmentlog.delete_topic(logs, "t")


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (shorten, "stands at offset 10, and the log ends at 4"),
        (remake, "stands at offset 10, and the log ends at 4"),
        (delete, "stands at offset 10, and its log is gone"),
    ],
)
def test_a_checkpoint_beyond_the_log_is_noticed_at_the_next_poll(
    logs: Path,
    change: Callable[[Path], None],
    said: str,
    is_running: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A running query and one that is started again show both offsets."""
    stream, lenient = Stream(logs), Stream(logs, failOnDataLoss="false")
    stream.batch()
    lenient.batch()
    change(logs)
    if not is_running:
        stream = Stream(logs, stream.offset)
        lenient = Stream(logs, lenient.offset, failOnDataLoss="false")
    with pytest.raises(StreamOffsetError, match=said):
        stream.poll()

    caplog.clear()
    assert {} == {name: found for name, found in lenient.batch().items() if "t-" in name}
    lost = [
        each for each in caplog.messages if each.startswith("t-0: records at offset 10 are lost, ")
    ]
    assert len(lost) == 1
    if change is not delete:
        write(logs, rows(2))
        assert {"t-0": [4, 6]} == lenient.batch()
        assert 6 == len(values(logs))


def test_a_subscribed_topic_has_to_be_there_at_the_start(logs: Path) -> None:
    """A topic that goes while the query runs is lost records."""
    with pytest.raises(UnknownTopicOrPartitionError, match="tt"):
        Stream(logs, subscribe="t,tt")
    stream = Stream(logs, subscribe="t", failOnDataLoss="false")
    stream.batch()
    delete(logs)

    assert {} == stream.batch()
    assert {} == stream.offset


def test_a_topic_that_was_made_again_with_more_records_is_noticed(logs: Path) -> None:
    """Its offsets mean other records."""
    stream, lenient = Stream(logs), Stream(logs, failOnDataLoss="false")
    stream.batch()
    lenient.batch()
    delete(logs)
    write(logs, rows(15), num_partitions=12)

    with pytest.raises(StreamOffsetError, match="its topic was deleted and created again"):
        stream.batch()
    assert {"t-0": [10, 15]} == lenient.batch()


@pytest.mark.parametrize("n_new", [5, 10, 15])
@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_a_topic_that_was_made_again_before_the_first_record_is_noticed(
    logs: Path, start: str, n_new: int
) -> None:
    """The id is learned when the start is looked up, before the first record is read."""
    stream, lenient = (
        Stream(logs, startingOffsets=start, failOnDataLoss=fails) for fails in ("true", "false")
    )
    delete(logs)
    write(logs, rows(n_new), num_partitions=12)

    for _ in range(2):  # a repeated poll does not forget it
        with pytest.raises(StreamOffsetError, match="its topic was deleted and created again"):
            stream.poll()
    at = 0 if start == "earliest" else 10
    if n_new >= at:
        end = {"t": stream.offset["t"] | {"0": n_new}}
        with pytest.raises(StreamOffsetError, match="its topic was deleted and created again"):
            stream.followed.plan(stream.offset, end)
    assert ({"t-0": [at, n_new]} if n_new > at else {}) == lenient.batch()
    write(logs, rows(1))
    assert {"t-0": [n_new, n_new + 1]} == lenient.batch()


@pytest.mark.parametrize("n_new", [10, 15])
def test_a_checkpoint_remembers_the_ids_of_topics(logs: Path, n_new: int) -> None:
    """A topic that was made again while the query was stopped is noticed at its restart."""
    stream = Stream(logs)
    stream.batch()
    (name,) = stream.offset.keys() - {"t"}
    log = segmentlog.open_log_dir(logs).log("t", 0)
    assert (f"t@{log.topic_id}", {}) == (name, stream.offset[name])
    assert 12 == len(from_json(stream.offset))
    assert {} == Stream(logs, start=stream.offset).batch()  # the topic is the same one
    delete(logs)
    write(logs, rows(n_new), num_partitions=12)

    with pytest.raises(StreamOffsetError, match="its topic was deleted and created again"):
        Stream(logs, start=stream.offset).poll()
    with pytest.raises(StreamOffsetError, match="its topic was deleted and created again"):
        Stream(logs, start=stream.offset).followed.plan(
            stream.offset, {"t": stream.offset["t"] | {"0": n_new}}
        )
    without = Stream(logs, start=stream.offset, topicIdsInCheckpoint="false")
    assert ({"t-0": [10, 15]} if n_new == 15 else {}) == without.batch()
    assert ["t"] == [*Stream(logs, topicIdsInCheckpoint="false").offset]


def test_a_checkpoint_without_ids_is_continued(logs: Path) -> None:
    """Earlier versions, and the source of kafka, write offsets alone."""
    written = {"t": {str(each): 10 if each == 0 else 0 for each in range(12)}}
    stream = Stream(logs, start=written)
    assert written is stream.poll()  # no micro-batch without records
    write(logs, rows(2))
    assert {"t-0": [10, 12]} == stream.batch()
    assert 2 == len(stream.offset)


def test_kept_initial_offsets_remember_the_ids_of_topics(logs: Path, tmp_path: Path) -> None:
    """A run that ends before its first micro-batch leaves them to the next one."""
    given: dict[str, Any] = {"startingOffsets": "latest", "initialOffsetsLocation": tmp_path / "c"}
    first = Stream(logs, **given)
    assert first.offset == Stream(logs, **given).offset
    delete(logs)
    write(logs, rows(15), num_partitions=12)
    again = Stream(logs, **given)
    assert first.offset == again.offset

    with pytest.raises(StreamOffsetError, match="its topic was deleted and created again"):
        again.poll()


def test_the_id_of_a_topic_may_come_later(logs: Path) -> None:
    """A broker writes the file with the id after the first records. Nothing was deleted."""
    metadata = logs / "t-0" / "partition.metadata"
    text = metadata.read_text()
    metadata.unlink()
    stream = Stream(logs)
    stream.batch()
    for number in (1, 2):
        if number == 1:
            metadata.write_text(text)
        else:
            metadata.unlink()
        write(logs, rows(1))
        assert {"t-0": [9 + number, 10 + number]} == stream.batch()


@pytest.mark.parametrize("limit", [{}, {"maxBytesPerTrigger": 10_000}])
def test_a_partition_that_moves_to_another_directory_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any]
) -> None:
    """A broker renames two directories, and a look sees neither of the two names."""
    for name in ("a", "b"):
        write(tmp_path / name, rows(10), topic="t" if name == "a" else "u")
    stream = Stream(tmp_path / "b", paths=json.dumps([str(tmp_path / "a")]), **limit)
    assert {"t-0": [0, 10], "u-0": [0, 10]} == stream.batch()
    refresh = DirectorySnapshot.refresh

    def move(snapshot: DirectorySnapshot) -> DirectorySnapshot:
        if snapshot.path.endswith("/a"):
            monkeypatch.undo()
            (tmp_path / "a" / "t-0").rename(tmp_path / "b" / "t-0")
            high_watermark(tmp_path / "a", 0)
            path = tmp_path / "b" / "replication-offset-checkpoint"
            write(tmp_path / "b", rows(2))
            path.write_text("0\n2\nt 0 12\nu 0 10\n")
        return refresh(snapshot)

    monkeypatch.setattr(DirectorySnapshot, "refresh", move)
    assert {"t-0": [10, 12]} == stream.batch()
    assert {("t", 0): 12, ("u", 0): 10} == from_json(stream.offset)


def test_a_start_at_a_checkpoint_is_needed_once(logs: Path, tmp_path: Path) -> None:
    """The checkpoint of the earlier query may be removed after the first start."""
    earlier = write_checkpoint(tmp_path / "c", {0: json.dumps({"t": {"0": 4}})}, committed=0)
    given: dict[str, Any] = {"startingOffsets": f"checkpoint:{earlier}"}
    stream = Stream(logs, **given)
    assert {"t-0": [4, 10]} == stream.batch()
    shutil.rmtree(earlier)
    write(logs, rows(1))

    assert {"t-0": [10, 11]} == Stream(logs, stream.offset, **given).batch()
    with pytest.raises(LogDirectoryError, match="name the checkpointLocation of a query"):
        Stream(logs, **given)


def test_a_start_at_a_checkpoint_of_a_former_topic_is_refused(
    logs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint has the id of the topic whose offsets it has."""
    earlier = Stream(logs)
    earlier.batch()
    checkpoint = write_checkpoint(tmp_path / "c", {0: json.dumps(earlier.offset)}, committed=0)
    given: dict[str, Any] = {"startingOffsets": f"checkpoint:{checkpoint}"}
    assert {} == Stream(logs, **given).batch()
    delete(logs)
    write(logs, rows(15), num_partitions=12)

    with pytest.raises(StreamOffsetError, match="its topic was deleted and created again"):
        Stream(logs, **given)
    options = ReadOptions.parse({"path": str(logs), **given}, Query.BATCH)
    with pytest.raises(StreamOffsetError, match="its topic was deleted and created again"):
        plan_slices(options)
    assert {"t-0": [10, 15]} == Stream(logs, failOnDataLoss="false", **given).batch()
    assert "t-0: offset 10 is that of a checkpoint, and its topic was deleted" in caplog.text


def test_a_high_watermark_that_falls_is_waited_for(logs: Path) -> None:
    """The records are there, up to the log end. A broker may start with an older checkpoint."""
    stream = Stream(logs)
    stream.batch()
    high_watermark(logs, 6)
    assert stream.offset == stream.poll()
    again = Stream(logs, stream.offset)
    assert stream.offset == again.poll()

    first = {"t": dict.fromkeys(stream.offset["t"], 0)}
    assert {"t-0": [0, 10]} == ranges(again.followed.plan(first, stream.offset)), "a repeat"
    write(logs, rows(2))
    assert {"t-0": [10, 12]} == again.batch()


def test_a_partition_that_is_no_longer_selected_is_not_called_gone(
    logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is there, so the remedy is another one: at a poll, and for a repeated batch."""
    write(logs, rows(3), topic="other")
    first = Stream(logs, subscribe="t")
    end = first.poll()
    first_batch = first.offset
    said = "t-0: .* stands at offset 10, .* no longer select it: select it with subscribe"
    with pytest.raises(StreamOffsetError, match=said):
        Stream(logs, end, subscribe="other").poll()
    with pytest.raises(StreamOffsetError, match="no longer select it"):
        Stream(logs, end, subscribe="other").followed.plan(first_batch, end)

    caplog.clear()
    lenient = Stream(logs, end, subscribe="other", failOnDataLoss="false")
    assert {"other-0": [0, 3]} == lenient.batch()
    assert "no longer select it" in caplog.messages[0]


def test_a_start_that_retention_has_moved_before_a_repeat(logs: Path) -> None:
    """Planning fails, or leaves out what is gone."""
    first = Stream(logs)
    end = first.poll()
    segmentlog.delete_records(logs, "t", 0, offset=4)
    again = Stream(logs, first.offset)
    with pytest.raises(segmentlog.errors.OffsetOutOfRangeError, match=r"offset 0 .*\[4, 10\)"):
        again.followed.plan(first.offset, end)

    lenient = Stream(logs, first.offset, failOnDataLoss="false")
    assert {"t-0": [4, 10]} == ranges(lenient.followed.plan(first.offset, end))


@pytest.fixture
def ending(logs: Path) -> Stream:
    """A run with ``Trigger.AvailableNow``, after the first of its two micro-batches."""
    stream = Stream(logs, maxOffsetsPerTrigger=5, failOnDataLoss="false")
    stream.followed.end_with_what_is_there()
    assert {"t-0": [0, 5]} == stream.batch()
    return stream


def test_available_now_does_not_read_later_records(ending: Stream, logs: Path) -> None:
    """It reads no later records of known partitions or of new partitions."""
    write(logs, rows(9), rows(3, 1))
    write(logs, rows(9), topic="new")

    assert {"t-0": [5, 10]} == ending.batch()
    assert {} == ending.batch()


def test_available_now_fails_if_partitions_vanish(ending: Stream, logs: Path) -> None:
    """An error, whatever failOnDataLoss says."""
    write(logs, rows(1), topic="other")
    delete(logs)
    with pytest.raises(StreamOffsetError, match="its log is gone"):
        ending.batch()


def test_available_now_fails_if_its_end_is_gone(ending: Stream, logs: Path) -> None:
    """An error, whatever failOnDataLoss says."""
    shorten(logs)
    with pytest.raises(StreamOffsetError, match="the log ends at 4"):
        ending.batch()


def test_available_now_refuses_another_plan(ending: Stream) -> None:
    """The engine may not go beyond the end of the first poll, nor leave partitions out."""
    beyond = {"t": ending.offset["t"] | {"0": 11}}
    with pytest.raises(StreamOffsetError, match=r"plan of Trigger\.AvailableNow"):
        ending.followed.plan(ending.offset, beyond)
    fewer = {"t": {"0": 10}}
    with pytest.raises(StreamOffsetError, match=r"plan of Trigger\.AvailableNow"):
        ending.followed.plan(ending.offset, fewer)


def test_available_now_repeats_a_micro_batch_before_its_first_poll(logs: Path) -> None:
    """Partitions that were added meanwhile do not matter (SPARK-53560)."""
    first = Stream(logs)
    end = first.poll()
    write(logs, rows(3), topic="new")
    again = Stream(logs, first.offset)
    again.followed.end_with_what_is_there()
    assert {"t-0": [0, 10]} == ranges(again.followed.plan(first.offset, end))
    again.offset = end

    assert {"new-0": [0, 3]} == again.batch()


CHOICES = {"assign": '{"t": [0, 1, 2]}', "subscribe": "t", "subscribePattern": "^t$"}
STARTS: list[dict[str, Any]] = [
    {"startingOffsets": "latest"},
    {"startingOffsets": "earliest"},
    {"startingOffsets": '{"t": {"0": 4, "1": -2, "2": -1}}'},
    {"startingOffsetsByTimestamp": '{"t": {"0": 5000, "1": 9000, "2": 0}}'},
    {"startingTimestamp": 6000},
]
#: The first offset of each partition by each start.  Record i of a partition has second i.
FIRST = [(10, 10, 10), (0, 0, 0), (4, 0, 10), (5, 9, 0), (6, 6, 6)]


def timed(first: int, n_rows: int, partition: int) -> pa.Table:
    """Rows for one partition, one in each second from `first` on."""
    seconds = [1_000_000 * each for each in range(first, first + n_rows)]
    time = pa.array(seconds, pa.timestamp("us", "UTC"))
    return rows(n_rows, partition).append_column("timestamp", time)


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("start", range(len(STARTS)))
def test_each_start_with_each_choice_of_topics(
    tmp_path: Path, start: int, choice: str, fails: str
) -> None:
    """Records that come while the query is stopped are read, and so are new partitions."""
    logs, keep = tmp_path / "logs", segmentlog.ProducerConfig(use_timestamps=True)
    write(logs, *(timed(0, 10, each) for each in range(3)), num_partitions=3, config=keep)
    given = {choice: CHOICES[choice], "failOnDataLoss": fails, **STARTS[start]}
    stream = Stream(logs, **given)
    expected = {f"t-{i}": [first, 10] for i, first in enumerate(FIRST[start]) if first < 10}
    assert expected == stream.batch()

    write(logs, timed(10, 3, 1), config=keep)
    again = Stream(logs, stream.offset, **given)
    assert {"t-1": [10, 13]} == again.batch()
    add_partition(logs, 3)
    write(logs, timed(0, 2, 3), timed(10, 1, 0), config=keep)
    new = {} if choice == "assign" else {"t-3": [0, 2]}
    assert {"t-0": [10, 11], **new} == again.batch()


def add_partition(logs: Path, partition: int) -> None:
    """Add an empty partition to the topic, as a broker does."""
    (logs / f"t-{partition}").mkdir()
    metadata = logs / "t-0" / "partition.metadata"
    if metadata.exists():
        shutil.copy(metadata, logs / f"t-{partition}")
    for name in ("log", "index", "timeindex"):
        (logs / f"t-{partition}" / f"{0:020}.{name}").touch()


def test_no_topic_matches_yet(logs: Path) -> None:
    """A pattern may match later. The offset has no partition until then."""
    stream = Stream(logs, subscribePattern="^new", startingOffsets="latest")
    assert {} == stream.offset
    assert {} == stream.batch()
    write(logs, rows(2), topic="new")

    assert {"new-0": [0, 2]} == stream.batch()


def test_the_log_end_is_asked_for_at_most_every_interval(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pollInterval` is for looks that are expensive."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stream = Stream(logs, readUpTo="logEnd", pollInterval="2s")
    stream.batch()
    write(logs, rows(2))
    assert stream.offset == stream.poll()
    now[0] += 2

    assert {"t-0": [10, 12]} == stream.batch()


def test_a_micro_batch_is_one_line_in_the_log(
    logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The line is JSON, for programs."""
    with caplog.at_level("INFO", logger="pyspark_segmentlog"):
        Stream(logs).batch()
    (line,) = caplog.messages
    found = json.loads(line)

    assert found.pop("bytes") > 0
    assert {"event": "micro-batch", "partitions": 1, "offsets": 10, "tasks": 1} == found


def test_a_backup_that_was_restored_and_goes_on_is_noticed(tmp_path: Path) -> None:
    """Its topics have the same ids, and other records at the offsets that were read."""
    log, backup = tmp_path / "log", tmp_path / "backup"
    url = f"bucket+file://{log}"
    write(url, rows(2))
    shutil.copytree(log, backup)
    write(url, rows(2))
    stream = Stream(url, pollInterval="1ms")
    lenient = Stream(url, pollInterval="1ms", failOnDataLoss="false")
    assert stream.batch() == lenient.batch()
    shutil.rmtree(log)
    shutil.copytree(backup, log)
    for _ in range(2):
        write(url, rows(2))
    with pytest.raises(StreamOffsetError, match="an earlier backup was restored"):
        stream.batch()
    assert lenient.batch() == {"t-0": [4, 6]}


@pytest.mark.parametrize("kind", ["restored", "restored, without failOnDataLoss", "copied", "old"])
def test_a_stream_notices_that_an_earlier_backup_was_restored(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Others have written beyond its offset since, so that the end of the log shows nothing."""
    log, restored = tmp_path / "log", tmp_path / "restored"
    write(f"bucket+file://{log}", rows(3))
    if kind != "copied":
        shutil.copytree(log, restored)
    write(f"bucket+file://{log}", rows(4))
    stream = Stream(f"bucket+file://{log}")
    assert stream.batch() == {"t-0": [0, 7]}
    assert offsets_of_topics(stream.offset) == {("t", 0): 7}  # as kafka reads it
    if kind == "copied":
        shutil.copytree(log, restored)
    place = f"bucket+file://{restored}"
    for n_rows in (5, 6):
        write(place, rows(n_rows))
    if kind == "old":  # as earlier versions have written it
        stream.offset = {name: each for name, each in stream.offset.items() if name[0] != "@"}
    fails = kind != "restored, without failOnDataLoss"
    again = Stream(place, stream.offset, failOnDataLoss=fails)
    if kind == "restored":
        with pytest.raises(StreamOffsetError, match="an earlier backup was restored"):
            again.batch()
        return
    end = 18 if kind == "copied" else 14
    assert again.batch() == {"t-0": [7, end]}
    assert ("an earlier backup was restored" in caplog.text) == (not fails)
    assert Stream(place, again.offset).poll() == again.offset


def test_the_offset_of_a_stream_stays_the_same_while_nothing_is_new(tmp_path: Path) -> None:
    """Spark compares the texts of offsets, and a commit need not bring records of the stream."""
    place = f"bucket+file://{tmp_path}/log"
    write(place, rows(3))
    stream = Stream(place, subscribe="t")
    stream.batch()
    write(place, rows(3), topic="other")
    assert json.dumps(stream.poll()) == json.dumps(stream.offset)
    assert json.dumps(Stream(place, stream.offset, subscribe="t").poll()) == json.dumps(
        stream.offset
    )
