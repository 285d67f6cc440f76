"""Partitions that a checkpoint names, and whose directories are gone."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import write
from typer.testing import CliRunner

import segmentlog
from segmentlog.errors import UnknownTopicOrPartitionError
from segmentlog.model import TopicPartition
from segmentlog.tools.cli import app
from segmentlog.tools.describe import describe_paths

pytestmark = pytest.mark.linux

HEX = "0123456789abcdef0123456789abcdef"
ROWS = pa.table(
    {
        "value": [b"v"] * 90,
        "partition": pa.array([i % 3 for i in range(90)], pa.int32()),
    }
)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two topics of three partitions, each with 30 records."""
    directory = tmp_path / "kafka"
    for topic in ("orders", "payments"):
        write(directory, ROWS, topic=topic, num_partitions=3)
    return directory


def missing(*directories: Path) -> list[str]:
    """Names of the missing partitions."""
    opened = segmentlog.open_log_dir(*directories)
    return [str(each.topic_partition) for each in opened.missing_partitions()]


def test_a_lost_partition_is_not_left_out_in_silence(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the partition, its checkpoint and the remedy. If allowed, a warning does."""
    shutil.rmtree(log_dir / "orders-1")
    checkpoint = log_dir / "replication-offset-checkpoint"

    assert ["orders-1"] == missing(log_dir)
    with pytest.raises(UnknownTopicOrPartitionError) as caught:
        segmentlog.dataset(log_dir, topics="orders")
    assert ("orders", 1) == (caught.value.topic, caught.value.partition)
    for each in (str(checkpoint), "high watermark is 30", "put the log back", "fail_on_data_loss"):
        assert each in str(caught.value)
    with pytest.raises(UnknownTopicOrPartitionError):
        segmentlog.dataset(log_dir)
    assert [] == caplog.messages
    assert 60 == segmentlog.dataset(log_dir, topics="orders", fail_on_data_loss=False).count_rows()
    (warning,) = caplog.messages
    assert "orders-1 is left out" in warning


def test_a_lost_partition_of_another_topic_does_not_matter(log_dir: Path) -> None:
    """Reads of whole topics still work."""
    shutil.rmtree(log_dir / "orders-1")
    assert 90 == segmentlog.dataset(log_dir, topics="payments").count_rows()


def test_a_topic_of_which_all_partitions_are_lost(log_dir: Path) -> None:
    """The topic is not unknown, because the checkpoint contains its name."""
    for number in range(3):
        shutil.rmtree(log_dir / f"orders-{number}")
    with pytest.raises(UnknownTopicOrPartitionError, match="and 2 more partitions"):
        segmentlog.dataset(log_dir, topics="orders")
    with pytest.raises(UnknownTopicOrPartitionError, match="its high watermark is 30"):
        segmentlog.open_log_dir(log_dir).log("orders", 0)
    assert ["orders-0", "orders-1", "orders-2"] == missing(log_dir)


def test_verify_and_describe_report_a_lost_partition(log_dir: Path) -> None:
    """`verify` ends with an error. `describe` has a row that counts the partitions."""
    command = ["verify", str(log_dir)]
    assert 0 == CliRunner().invoke(app, command).exit_code
    shutil.rmtree(log_dir / "orders-1")

    done = CliRunner().invoke(app, command)
    out = done.stdout
    assert 1 == done.exit_code
    assert out.startswith("error   missing-partition: ")
    assert "orders-1: its high watermark is 30" in out
    assert "failOnDataLoss=false" in out
    assert 0 == CliRunner().invoke(app, [*command, "--topic", "payments"]).exit_code
    rows = {(each.topic, each.partition): each for each in describe_paths([str(log_dir)])}
    assert 6 == len(rows)
    assert (rows["orders", 1].problem or "").startswith("2 of 3 partitions exist: ")
    assert [("orders", 1)] == [each for each in rows if rows[each].problem]


@pytest.mark.parametrize("state", ["delete", "future", "stray"])
def test_a_partition_under_another_name_is_not_lost(log_dir: Path, state: str) -> None:
    """A broker deletes or moves the partition, and writes its high watermarks seconds later."""
    (log_dir / "orders-1").rename(log_dir / f"orders-1.{HEX}-{state}")
    assert [] == missing(log_dir)


def test_a_deleted_topic_whose_name_was_cut_is_not_lost(tmp_path: Path) -> None:
    """The name of its directory has only the beginning of the topic's name."""
    topic = "t" * 249
    write(tmp_path, pa.table({"value": [b"v"]}), topic=topic)
    suffix = f"-0.{HEX}-delete"
    (tmp_path / f"{topic}-0").rename(tmp_path / f"{topic[: 255 - len(suffix)]}{suffix}")
    assert [] == missing(tmp_path)


def test_a_deleted_topic_is_not_lost(log_dir: Path) -> None:
    """The deletion has removed the topic's entries from the checkpoints."""
    segmentlog.delete_topic(log_dir, "orders")
    assert [] == missing(log_dir)
    assert 90 == segmentlog.dataset(log_dir).count_rows()


def test_a_partition_that_never_had_records_is_not_lost(log_dir: Path) -> None:
    """A writer names the partitions of a new topic before it makes them."""
    checkpoint = log_dir / "replication-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()
    lines[1] = str(int(lines[1]) + 1)
    checkpoint.write_text("\n".join([*lines, "new 0 0", ""]))
    assert [] == missing(log_dir)


def test_a_partition_in_another_directory_of_the_read_is_not_lost(
    log_dir: Path, tmp_path: Path
) -> None:
    """The partition was moved between two directories of one broker."""
    other = tmp_path / "other"
    other.mkdir()
    (log_dir / "orders-1").rename(other / "orders-1")
    assert ["orders-1"] == missing(log_dir)
    assert [] == missing(log_dir, other)


def test_a_broker_promises_what_both_of_its_checkpoints_name(log_dir: Path) -> None:
    """A broker keeps the old high watermarks in a directory that has lost its last partition."""
    (log_dir / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    for name in ("orders", "payments"):
        for number in range(3):
            shutil.rmtree(log_dir / f"{name}-{number}")
    points = log_dir / "recovery-point-offset-checkpoint"
    points.write_text("0\n1\norders 1 30\n")
    assert ["orders-1"] == missing(log_dir)
    points.write_text("0\n0\n")
    assert [] == missing(log_dir)


def test_one_partition_that_is_named_alone_promises_nothing_else(log_dir: Path) -> None:
    """A read of one partition does not need the other partitions."""
    shutil.rmtree(log_dir / "orders-1")
    assert [] == missing(log_dir / "orders-0")


def test_internal_topics_are_missed_by_name_alone(log_dir: Path) -> None:
    """Copies of a broker's directory often lack the internal topics."""
    checkpoint = log_dir / "replication-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()
    lines[1] = str(int(lines[1]) + 1)
    checkpoint.write_text("\n".join([*lines, "__consumer_offsets 7 12", ""]))
    assert [] == missing(log_dir)
    (found,) = segmentlog.open_log_dir(log_dir).missing_partitions(["__consumer_offsets"])
    assert TopicPartition("__consumer_offsets", 7) == found.topic_partition


def test_a_dump_names_the_partitions_that_it_lacks(
    log_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dump names each of them once."""
    from segmentlog.tools.dump import dump_paths
    from segmentlog.tools.sinks import Sink
    from segmentlog.tools.walk import Selection

    class Nowhere(Sink):
        def batch(self, *_: object) -> None: ...

    shutil.rmtree(log_dir / "orders-1")
    dump_paths([str(log_dir)], Nowhere(), Selection())  # type: ignore[abstract]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("segmentlog: orders-1: it is not dumped: ")
