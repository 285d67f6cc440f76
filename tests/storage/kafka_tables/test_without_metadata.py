"""Tables of a broker of a cluster with ZooKeeper, and of a broker whose metadata is elsewhere."""

import logging
import shutil
from pathlib import Path

import pytest

import segmentlog

OLD = Path(__file__).parents[2] / "golden" / "kafka-2.8.2"
NEW = OLD.parent / "kafka-4.3.1"
TOPIC_ID = "FgX88cFkRWirCb1Q_nEBwA"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy whose partition of mixed formats has an id, as Kafka 2.8 writes it by default."""
    directory = shutil.copytree(OLD, tmp_path / "kafka")
    text = f"version: 0\ntopic_id: {TOPIC_ID}\n"
    (directory / "mixed.magic-0-1-2-0" / "partition.metadata").write_text(text)
    return directory


def test_a_broker_with_zookeeper_has_topics_and_epochs(
    copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ids and epochs are those of the files, and a warning says that the metadata is not here."""
    names = {path.name.rpartition("-")[0] for path in OLD.iterdir() if path.is_dir()}
    with caplog.at_level(logging.WARNING):
        topics = segmentlog.table(copied, "topics").to_pylist()
    assert "no cluster metadata here: the cluster kept it in ZooKeeper" in caplog.text
    partitions = segmentlog.table(copied, "partitions").to_pylist()

    assert sorted(names) == [row["topic"] for row in topics]
    found = {row["topic"]: (row["topic_id"], row["leader_epoch"]) for row in partitions}
    assert (TOPIC_ID, 0) == found.pop("mixed.magic-0-1-2")
    assert {(None, None)} == {*found.values()}
    ends = {row["topic"]: (row["log_start_offset"], row["high_watermark"]) for row in partitions}
    assert (0, 62) == ends["compacted.magic-1"]
    assert {None} == {row["leader"] for row in partitions} | {row["isr"] for row in partitions}
    assert [1] == [row["broker_id"] for row in segmentlog.table(copied, "brokers").to_pylist()]
    assert {"topics", "partitions", "brokers"} <= {*segmentlog.tables(copied)}
    assert "acls" not in segmentlog.tables(copied)


def test_other_tables_say_that_the_metadata_was_in_zookeeper() -> None:
    """Settings, access, and the history of topics are not in log directories."""
    for name, history in (("acls", False), ("configs", False), ("topics", True)):
        with pytest.raises(segmentlog.LogDirectoryError, match="kept it in ZooKeeper"):
            segmentlog.table(OLD, name, history=history)


def test_a_broker_without_zookeeper_has_its_metadata_elsewhere() -> None:
    """A part of the truth would look like the whole."""
    with pytest.raises(segmentlog.LogDirectoryError, match=r"here .*metadata\.log\.dir"):
        segmentlog.table(NEW, "topics")
    assert "topics" not in segmentlog.tables(NEW)


def test_a_partition_or_a_file_alone_is_of_its_directory() -> None:
    """The properties of the broker are those of the log directory."""
    partition = OLD / "magic-1.none-0"
    for path in (partition, next(partition.glob("*.log"))):
        assert "topics" in segmentlog.tables(path)
        rows = segmentlog.table(path, "topics").to_pylist()
        assert ["magic-1.none"] == [row["topic"] for row in rows]


@pytest.mark.parametrize(
    ("path", "column"),
    [
        ("mixed.magic-0-1-2-0/partition.metadata", "topic_id"),
        ("mixed.magic-0-1-2-0/leader-epoch-checkpoint", "leader_epoch"),
        ("replication-offset-checkpoint", "high_watermark"),
    ],
)
def test_a_damaged_file_is_an_error(copied: Path, path: str, column: str) -> None:
    """With `skip`, its value is null."""
    (copied / path).write_text("x")
    with pytest.raises(segmentlog.CorruptCheckpointError, match=Path(path).name):
        segmentlog.table(copied, "partitions")
    rows = segmentlog.table(copied, "partitions", on_corrupt_batch="skip").to_pylist()
    (row,) = [row for row in rows if row["topic"] == "mixed.magic-0-1-2"]
    assert row[column] is None


@pytest.mark.parametrize(
    ("lost", "warning", "n_topics"),
    [
        ("*.log", "has no segments: what the cluster changed after its snapshot at offset 134", 6),
        ("*", "holds neither segments nor a whole snapshot: nothing is known", 0),
    ],
)
def test_a_metadata_log_that_has_lost_its_files_says_so(
    example_cluster: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    lost: str,
    warning: str,
    n_topics: int,
) -> None:
    copy = shutil.copytree(example_cluster, tmp_path / "kafka")
    for path in (copy / "__cluster_metadata-0").glob(lost):
        path.unlink()

    assert n_topics == segmentlog.table(copy, "topics").num_rows
    assert warning in caplog.text


def test_damaged_metadata_names_a_remedy(
    example_cluster: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Among several copies, it shows the log; a single one is read without it."""
    copy = shutil.copytree(example_cluster, tmp_path / "kafka")
    path = copy / "__cluster_metadata-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(segmentlog.LogDirectoryError, match="copy of another controller") as caught:
        segmentlog.open_replicas(copy, shutil.copytree(copy, tmp_path / "other")).topics()
    assert caught.value.path.endswith(f"__cluster_metadata-0/{path.name}")
    assert "orders" in segmentlog.open_replicas(copy).topics()
    assert "copy of another controller" in caplog.text
