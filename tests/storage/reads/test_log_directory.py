"""Log directories: their contents, what is refused, and the warnings."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plain_writes import write

import segmentlog
from segmentlog.errors import (
    CorruptCheckpointError,
    LogDirectoryError,
    UnknownTopicOrPartitionError,
)
from segmentlog.model import ReadUpTo, TopicPartition
from segmentlog.reads import log_directory
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.txn.state import from_json

HEX = "0123456789abcdef0123456789abcdef"


def add_partition(directory: Path, name: str, n_records: int = 3) -> Path:
    """A partition with one batch for each record."""
    partition = directory / name
    partition.mkdir(parents=True)
    records = [Record(offset, 1, None, b"v") for offset in range(n_records)]
    data = b"".join(encode_batch([record]) for record in records)
    (partition / "00000000000000000000.log").write_bytes(data)
    return partition


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log directory with two topics, one of which has two partitions."""
    directory = tmp_path / "kafka"
    for name in ("orders-0", "orders-1", "pay.ments-10"):
        add_partition(directory, name)
    return directory


def write_checkpoint(directory: Path, kind: str, *lines: str) -> None:
    """Write an offset checkpoint."""
    text = "\n".join(("0", str(len(lines)), *lines))
    (directory / f"{kind}-checkpoint").write_text(text + "\n")


def test_topics_and_partitions_are_sorted(log_dir: Path) -> None:
    """Partitions are sorted as numbers."""
    for name in ("orders-10", "orders-2"):
        add_partition(log_dir, name)
    directory = segmentlog.open_log_dir(log_dir)

    assert {"orders": [0, 1, 2, 10], "pay.ments": [10]} == directory.topics()
    assert TopicPartition("orders", 10) == directory.topic_partitions()[3]


def test_internal_topics_are_left_out_until_asked_for(log_dir: Path) -> None:
    """The metadata log of KRaft is not a topic, even if internal topics are asked for."""
    for name in ("__consumer_offsets-0", "__transaction_state-1", "__cluster_metadata-0"):
        add_partition(log_dir, name)
    directory = segmentlog.open_log_dir(log_dir)

    assert ["orders", "pay.ments"] == list(directory.topics())
    assert ["__consumer_offsets", "__transaction_state", "orders", "pay.ments"] == list(
        directory.topics(internal=True)
    )


@pytest.mark.parametrize("state", ["future", "delete", "stray"])
def test_directories_that_are_on_their_way_out_are_left_out(log_dir: Path, state: str) -> None:
    """A copy that is being moved or deleted is neither a partition nor a second copy of one."""
    add_partition(log_dir, f"orders-0.{HEX}-{state}")
    add_partition(log_dir, f"gone-0.{HEX}-{state}")

    assert ["orders", "pay.ments"] == list(segmentlog.open_log_dir(log_dir).topics())


def test_foreign_names_and_files_are_no_partitions(log_dir: Path) -> None:
    """Directories that no broker has created, and files with a partition's name, are ignored."""
    (log_dir / "lost+found").mkdir()
    (log_dir / "gone-2").write_text("a file")

    assert {"orders": [0, 1], "pay.ments": [10]} == segmentlog.open_log_dir(log_dir).topics()


def test_a_link_that_is_asked_for_is_followed(log_dir: Path, tmp_path: Path) -> None:
    """Only links inside a log directory are left out."""
    (tmp_path / "link").symlink_to(log_dir, target_is_directory=True)
    directory = segmentlog.open_log_dir(tmp_path / "link")

    assert {"orders": [0, 1], "pay.ments": [10]} == directory.topics()
    assert 3 == directory.log("orders", 0).scan().read_all().num_rows


def test_a_linked_partition_is_left_out_with_a_warning(
    log_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A link may lead out of the directory."""
    outside = add_partition(tmp_path / "elsewhere", "linked-0")
    (log_dir / "linked-0").symlink_to(outside)
    topics = segmentlog.open_log_dir(log_dir).topics()

    assert "linked" not in topics
    assert "linked-0 is a symbolic link" in caplog.text


def test_several_directories_are_one(log_dir: Path, tmp_path: Path) -> None:
    """The checkpoints of a directory apply only to the partitions in it."""
    other = tmp_path / "disk2"
    add_partition(other, "orders-2")
    write_checkpoint(log_dir, "replication-offset", "orders 0 1", "orders 2 1")
    write_checkpoint(other, "replication-offset", "orders 0 2", "orders 2 2")
    directory = segmentlog.open_log_dir(log_dir, other)

    assert {"orders": [0, 1, 2], "pay.ments": [10]} == directory.topics()
    assert 1 == directory.log("orders", 0).high_watermark
    assert 2 == directory.log("orders", 2).high_watermark
    assert directory.log("orders", 1).high_watermark is None


def test_a_partition_in_two_directories_is_refused_by_both_names(
    log_dir: Path, tmp_path: Path
) -> None:
    """Neither copy can be preferred. All other partitions can be read."""
    twice = add_partition(tmp_path / "disk2", "orders-1")
    directory = segmentlog.open_log_dir(log_dir, tmp_path / "disk2")
    assert [0, 1] == directory.topics()["orders"]
    assert 3 == directory.log("orders", 0).end_offset()
    with pytest.raises(LogDirectoryError, match="leave out one of the two") as caught:
        directory.log("orders", 1)

    assert str(twice) in str(caught.value)
    assert str(log_dir / "orders-1") in str(caught.value)


def test_the_same_directory_twice_is_refused(log_dir: Path) -> None:
    """Each row would be read twice otherwise."""
    (log_dir.parent / "link").symlink_to(log_dir)
    for again in (log_dir, log_dir.parent / "link"):
        with pytest.raises(LogDirectoryError, match="and so does"):
            segmentlog.open_log_dir(log_dir, again)


def test_one_partition_directory_is_read_with_the_checkpoints_beside_it(log_dir: Path) -> None:
    """A path may name one partition. The directory above it is its log directory."""
    write_checkpoint(log_dir, "replication-offset", "orders 1 2")
    write_checkpoint(log_dir, "log-start-offset", "orders 1 1")
    directory = segmentlog.open_log_dir(log_dir / "orders-1")
    log = directory.log("orders", 1)

    assert {"orders": [1]} == directory.topics()
    assert (1, 2, 3) == (log.log_start_offset, log.high_watermark, log.log_end_offset)


def test_two_partition_directories_are_read_together(log_dir: Path) -> None:
    """Only the partitions that are named are read."""
    directory = segmentlog.open_log_dir(log_dir / "orders-1", log_dir / "pay.ments-10")

    assert {"orders": [1], "pay.ments": [10]} == directory.topics()


def test_one_log_file_is_read_as_its_partition(log_dir: Path) -> None:
    """Only the records of that file are read, under the name of its directory."""
    partition = log_dir / "orders-1"
    data = encode_batch([Record(3, 1, None, b"v")])
    (partition / "00000000000000000003.log").write_bytes(data)
    first = segmentlog.open_log_dir(partition / "00000000000000000000.log")
    second = segmentlog.open_log_dir(partition / "00000000000000000003.log").log("orders", 1)

    assert {"orders": [1]} == first.topics()
    assert 3 == first.log("orders", 1).log_end_offset
    assert [3] == second.scan(columns=["offset"]).read_all()["offset"].to_pylist()


def test_a_copied_log_file_is_partition_0_of_the_directory_that_it_is_in(tmp_path: Path) -> None:
    """The directory of a copied file may not have the name of a partition."""
    copy = tmp_path / "download" / "00000000000000000000.log"
    copy.parent.mkdir()
    copy.write_bytes(encode_batch([Record(0, 1, None, b"v")]))

    assert {"download": [0]} == segmentlog.open_log_dir(copy).topics()


@pytest.mark.parametrize("suffix", [".deleted", ".cleaned", ".swap"])
def test_a_log_file_in_another_state_is_read_when_it_is_named(log_dir: Path, suffix: str) -> None:
    """A user who names a deleted file wants to read it."""
    partition = log_dir / "orders-1"
    name = "00000000000000000000.log"
    (partition / name).rename(partition / (name + suffix))
    log = segmentlog.open_log_dir(partition / (name + suffix)).log("orders", 1)

    assert 3 == log.log_end_offset
    assert [0, 1, 2] == log.scan(columns=["offset"]).read_all()["offset"].to_pylist()


@pytest.mark.parametrize("name", ["server.log", f"{2**63}.log", f"{10**20 - 1}.log"])
def test_a_log_file_without_an_offset_in_its_name_is_refused(tmp_path: Path, name: str) -> None:
    """Only the name of the file contains its base offset, which is a long of Java."""
    (tmp_path / name).write_text("INFO started")
    log = segmentlog.open_log_dir(tmp_path / name).log(tmp_path.name, 0)

    with pytest.raises(LogDirectoryError, match="not named by its base offset"):
        log.log_end_offset  # noqa: B018


@pytest.mark.parametrize("name", ["missing", "file.txt", "empty"])
def test_a_path_that_is_no_log_directory_is_refused(tmp_path: Path, name: str) -> None:
    """The error names the path."""
    (tmp_path / "file.txt").touch()
    (tmp_path / "empty").mkdir()

    with pytest.raises(LogDirectoryError) as caught:
        segmentlog.open_log_dir(tmp_path / name)
    assert str(tmp_path / name) == caught.value.path


@pytest.mark.parametrize(
    "name",
    [
        "meta.properties",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        ".kafka_cleanshutdown",
        "segmentlog.state",
    ],
)
def test_a_broker_without_partitions_is_an_empty_directory(tmp_path: Path, name: str) -> None:
    """A new broker's directory is accepted, and so is one whose first job has written nothing."""
    (tmp_path / name).touch()

    assert {} == segmentlog.open_log_dir(tmp_path).topics()


def test_an_unknown_topic_is_answered_with_the_nearest_name(log_dir: Path) -> None:
    """The message corrects a typing mistake."""
    directory = segmentlog.open_log_dir(log_dir)
    with pytest.raises(UnknownTopicOrPartitionError, match="did you mean 'orders'") as caught:
        directory.log("ordres", 0)

    assert ("ordres", -1, str(log_dir)) == (
        caught.value.topic,
        caught.value.partition,
        caught.value.path,
    )


def test_an_unknown_topic_far_from_all_names_is_answered_with_all_topics(
    log_dir: Path,
) -> None:
    """No name is similar, so a suggestion would mislead."""
    with pytest.raises(UnknownTopicOrPartitionError) as caught:
        segmentlog.open_log_dir(log_dir).log("zzz", 0)

    assert "its topics are orders, pay.ments" == caught.value.hint


def test_an_unknown_partition_is_answered_with_all_partitions(log_dir: Path) -> None:
    """The message lists the partitions of the topic."""
    with pytest.raises(UnknownTopicOrPartitionError, match="it has partitions 0, 1") as caught:
        segmentlog.open_log_dir(log_dir).log("orders", 7)

    assert ("orders", 7) == (caught.value.topic, caught.value.partition)


def test_a_log_is_the_same_object_each_time(log_dir: Path) -> None:
    """Repeated calls return one object, so that a log is looked up once."""
    directory = segmentlog.open_log_dir(log_dir)

    assert directory.log("orders", 0) is directory.log("orders", 0)


def test_batches_beyond_the_high_watermark_give_one_warning(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for the directory names the partitions, and the option that reads the batches."""
    write_checkpoint(log_dir, "replication-offset", "orders 0 1", "orders 1 3", "pay.ments 10 0")
    directory = segmentlog.open_log_dir(log_dir)
    with caplog.at_level(logging.INFO, logger="segmentlog"):
        ends = directory.end_offsets(directory.topic_partitions())

    assert {("orders", 0): 1, ("orders", 1): 3, ("pay.ments", 10): 0} == ends
    (record,) = caplog.records
    assert "(orders-0: 2 from 1, pay.ments-10: 3 from 0)" in record.getMessage()
    assert "; read_up_to='logEnd' (--read-up-to logEnd) reads them" in record.getMessage()


def test_the_warning_about_many_partitions_stays_short(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names five partitions and counts the rest."""
    for i in range(8):
        add_partition(tmp_path, f"t-{i}")
    write_checkpoint(tmp_path, "replication-offset", *(f"t {i} 0" for i in range(8)))
    directory = segmentlog.open_log_dir(tmp_path)
    directory.end_offsets(directory.topic_partitions())

    assert "t-4: 3 from 0, and 3 more partitions" in caplog.text
    assert "t-5:" not in caplog.text


def test_a_reader_that_follows_is_told_of_changes_alone(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One state is one warning, whatever the number of looks, and a new state is another."""
    told: dict = {}

    def look(high_watermark: int) -> list[str]:
        caplog.clear()
        write_checkpoint(log_dir, "replication-offset", f"orders 0 {high_watermark}")
        directory = segmentlog.open_log_dir(log_dir)
        directory.end_offsets([TopicPartition("orders", 0)], told=told)
        return [each.split(": ", 1)[1].split(",")[0] for each in caplog.messages]

    assert ["the high watermark is 9"] == look(9)
    assert [] == look(9) + look(9)
    assert ["the high watermark is 12"] == look(12)
    assert [] == look(3) + look(1)  # the stream reads them later
    assert ["the high watermark is 12"] == look(12)


def test_reading_to_the_log_end_warns_of_nothing(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No batch is left out of such a read."""
    write_checkpoint(log_dir, "replication-offset", "orders 0 1")
    directory = segmentlog.open_log_dir(log_dir)
    ends = directory.end_offsets(directory.topic_partitions(), ReadUpTo.LOG_END)

    assert {3} == set(ends.values())
    assert "" == caplog.text


def test_a_corrupt_high_watermark_checkpoint_is_an_error_when_a_read_would_end_there(
    log_dir: Path,
) -> None:
    """Topics can be listed, and logs can be read to their ends, without the checkpoint."""
    (log_dir / "replication-offset-checkpoint").write_text("7\n")
    directory = segmentlog.open_log_dir(log_dir)
    log = directory.log("orders", 0)

    assert ["orders", "pay.ments"] == list(directory.topics())
    with pytest.raises(CorruptCheckpointError, match="readUpTo=logEnd"):
        log.scan()
    with pytest.raises(CorruptCheckpointError, match="readUpTo=logEnd"):
        directory.end_offsets(directory.topic_partitions())
    assert 3 == log.scan(read_up_to=ReadUpTo.LOG_END).read_all().num_rows


def test_a_corrupt_log_start_checkpoint_is_an_error_when_a_log_is_asked_for(log_dir: Path) -> None:
    """Without the checkpoint it is unknown which records of a log were deleted."""
    (log_dir / "log-start-offset-checkpoint").write_text("7\n")
    directory = segmentlog.open_log_dir(log_dir)

    assert ["orders", "pay.ments"] == list(directory.topics())
    with pytest.raises(CorruptCheckpointError, match="segmentlog recover makes the file"):
        directory.log("orders", 0)


@pytest.mark.parametrize(
    ("text", "node_id", "cluster_id"),
    [
        ("version=1\nnode.id=4\ncluster.id=abc-D\n", 4, "abc-D"),
        ("version=0\nbroker.id=0\n", 0, None),
        ("node.id=x\n", None, None),
        (None, None, None),
    ],
)
def test_node_and_cluster_id_come_from_meta_properties(
    log_dir: Path, text: str | None, node_id: int | None, cluster_id: str | None
) -> None:
    """Old and new names of the properties are read, also for a path to one partition."""
    if text is not None:
        (log_dir / "meta.properties").write_text(text)
    for path in (log_dir, log_dir / "orders-0"):
        directory = segmentlog.open_log_dir(path)

        assert (node_id, cluster_id) == (directory.node_id, directory.cluster_id)


def test_reading_changes_nothing_on_disk(log_dir: Path) -> None:
    """No file is created, removed or modified."""

    def state() -> list[tuple[str, int, int]]:
        paths = sorted(log_dir.rglob("*"))
        return [(str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in paths]

    before = state()
    directory = segmentlog.open_log_dir(log_dir)
    for topic_partition in directory.topic_partitions():
        directory.log(*topic_partition).scan().read_all()
        directory.log(*topic_partition).offset_for_timestamp(1)

    assert before == state()


def test_listed_partitions_stay(log_dir: Path) -> None:
    """The partitions of an open directory do not change."""
    directory = segmentlog.open_log_dir(log_dir)
    add_partition(log_dir, "new-0")
    shutil.rmtree(log_dir / "orders-1")

    assert {"orders": [0, 1], "pay.ments": [10]} == directory.topics()


def test_a_plan_opens_three_files_of_a_partition(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan opens the last segment, its index and the topic id, each of them once.

    The other segments belong to the plan as a whole.
    """
    for base in (3, 6):
        data = encode_batch([Record(base + i, 1, None, b"v") for i in range(3)])
        (log_dir / "orders-1" / f"{base:020d}.log").write_bytes(data)
    write_checkpoint(log_dir, "replication-offset", "orders 1 9")
    metadata = log_dir / "orders-1" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: mZ-_3kXkQ5uH0sW9y1aBcD\n")
    real, opened = os.open, []

    def counting(path: str, flags: int) -> int:
        opened.append(Path(path))
        return real(path, flags)

    monkeypatch.setattr("os.open", counting)
    directory = segmentlog.open_log_dir(log_dir)
    (end,) = directory.end_offsets([TopicPartition("orders", 1)]).values()
    slices = directory.log("orders", 1).slices(0, end)

    of_partition = [path.name for path in opened if path.parent.name == "orders-1"]
    last = "00000000000000000006"
    assert [f"{last}.index", f"{last}.log", "partition.metadata"] == sorted(of_partition)
    assert [3] == [len(each.files) for each in slices]


def test_opening_decodes_no_state(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state may have 100,000 versions. A reader needs it only after a commit."""
    rows = pa.table({"value": [b"x"], "partition": [0]})
    write_checkpoint(log_dir, "replication-offset", "orders 0 3", "orders 1 3")
    write(log_dir, rows, topic="orders")
    decoded = []

    def counting(*arguments: Any) -> Any:
        decoded.append(arguments)
        return from_json(*arguments)

    monkeypatch.setattr("segmentlog.txn.state.from_json", counting)
    directory = segmentlog.open_log_dir(log_dir)
    ends = directory.end_offsets([TopicPartition("orders", 0)])

    assert {TopicPartition("orders", 0): 4} == ends
    assert [] == decoded
    write(log_dir, rows, topic="orders")
    decoded.clear()  # a writer decodes it
    assert 3 == directory.log("orders", 1).log_end_offset
    assert 2 == len(decoded)


def test_a_subdirectory_that_may_not_be_read_does_not_hide_the_log_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mounted disk has a `lost+found` of root; the error still names the log directory."""
    for name in ("data", "lost+found"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "meta.properties").touch()
    real = log_directory.exists

    def exists(path: str) -> bool:
        if "lost+found" in path:
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(log_directory, "exists", exists)
    with pytest.raises(LogDirectoryError, match=r"in it, these are log directories: data$"):
        segmentlog.open_log_dir(tmp_path).topics()
