"""The files beside the logs: what a recovery derives, puts aside, or cannot mend."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import segmentlog
from segmentlog import RecoveryKind, RecoveryStep, Severity
from segmentlog.errors import CorruptCheckpointError, LogDirectoryError
from segmentlog.log.checkpoint import (
    read_leader_epochs,
    read_offsets,
    read_topic_id,
    write_offsets,
)
from segmentlog.model import TopicPartition
from segmentlog.testing.reference import Record, encode_batch

pytestmark = pytest.mark.linux

LOG = f"{0:020d}.log"
CHECKPOINTS = {
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "replication-offset-checkpoint",
}
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """The directory of a broker with its cluster's metadata, without the mark of a clean stop."""
    directory = tmp_path / "kafka 1"
    shutil.copytree("examples/cluster", directory)
    for path in directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (directory / ".kafka_cleanshutdown").unlink()
    return directory


def damaged(data: bytes, how: str) -> bytes:
    """The bytes of a file after a power cut, or after another program."""
    made = {"zeros": bytes(len(data)), "garbage": bytes(range(256)) * 40, "cut": data[:-3]}
    return made[how]


def of_kind(steps: list[RecoveryStep], kind: RecoveryKind) -> list[RecoveryStep]:
    """The steps of one kind."""
    return [step for step in steps if step.kind is kind]


def n_records(directory: Path) -> dict[TopicPartition, int]:
    """The number of records that a reader finds in each log."""
    opened = segmentlog.open_log_dir(directory)
    return {
        each: opened.log(*each).scan(columns=["offset"]).read_all().num_rows
        for each in opened.topic_partitions()
    }


@pytest.mark.parametrize("how", ["zeros", "garbage", "cut"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_damaged_checkpoints_are_made_readable(crashed: Path, how: str, *, is_clean: bool) -> None:
    """No record is lost, a dry run says the same, and the damaged bytes are kept."""
    if is_clean:
        (crashed / ".kafka_cleanshutdown").touch()
    records = n_records(crashed)
    point = read_offsets(str(crashed), "recovery-point-offset-checkpoint")
    for name in CHECKPOINTS:
        is_start = name == "log-start-offset-checkpoint"
        write_offsets(str(crashed), name, dict.fromkeys(point, 0) if is_start else point)
        path = crashed / name
        path.write_bytes(damaged(path.read_bytes(), how))
    planned = segmentlog.recover(crashed, dry_run=True)
    steps = segmentlog.recover(crashed)

    mended = of_kind(steps, RecoveryKind.CHECKPOINT_MENDED)
    assert CHECKPOINTS == {step.message.partition(",")[0] for step in mended}
    assert 4 == len(of_kind(planned, RecoveryKind.CHECKPOINT_MENDED))
    assert all(len(step.message) < 500 for step in mended)
    assert not any(step.has_lost_records for step in steps)
    for name in CHECKPOINTS:
        read_offsets(str(crashed), name)
    assert [1 - (how == "zeros")] * 4 == [len(step.kept) for step in mended]
    for step in mended:
        assert all((crashed / name).stat().st_size for name in step.kept)
    assert records == n_records(crashed)
    assert (crashed / ".kafka_cleanshutdown").exists()
    assert [] == segmentlog.recover(crashed)


def test_whole_lines_of_a_damaged_checkpoint_are_kept(crashed: Path) -> None:
    """A line that is cut short may have another offset, and is not used."""
    (crashed / "log-start-offset-checkpoint").write_bytes(
        b"0\n9\norders 0 3\norders 1 xx\norders 2 1"
    )
    segmentlog.recover(crashed)
    assert {ORDERS: 3} == read_offsets(str(crashed), "log-start-offset-checkpoint")
    assert 3 == segmentlog.open_log_dir(crashed).log("orders", 0).log_start_offset


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_start_beyond_the_log_and_its_high_watermark_is_no_log_start(
    crashed: Path, *, is_clean: bool
) -> None:
    """A broker would delete every segment because of it; a writer refuses the log."""
    records = n_records(crashed)
    write_offsets(str(crashed), "log-start-offset-checkpoint", {ORDERS: 10**12})
    if is_clean:
        (crashed / ".kafka_cleanshutdown").touch()
    writer = segmentlog.open_writer(crashed, "orders")
    writer.append(pa.table({"value": [b"x"], "partition": pa.array([0], pa.int32())}))
    with pytest.raises(LogDirectoryError, match=r"orders-0: has its log start at 1000000000000, "):
        writer.close()
    (step,) = of_kind(segmentlog.recover(crashed), RecoveryKind.LOG_START_LOWERED)
    assert ("orders", 0) == (step.topic, step.partition)
    assert {} == read_offsets(str(crashed), "log-start-offset-checkpoint")
    assert records == n_records(crashed)


def batch(offset: int, leader_epoch: int) -> bytes:
    """Two records of a leader."""
    records = [Record(o, 1000 + o, b"k", b"v") for o in range(offset, offset + 2)]
    return encode_batch(records, leader_epoch=leader_epoch)


@pytest.mark.parametrize("how", ["zeros", "garbage", "empty", "missing"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_lost_leader_epochs_are_built_from_all_batches(
    tmp_path: Path, how: str, *, is_clean: bool
) -> None:
    """Batches below the recovery point count, too; so do those of a clean directory."""
    partition = tmp_path / "t-0"
    partition.mkdir()
    for base in (0, 20, 40):
        data = b"".join(batch(base + i, (base + i) // 15) for i in range(0, 20, 2))
        (partition / f"{base:020d}.log").write_bytes(data)
    write_offsets(str(tmp_path), "recovery-point-offset-checkpoint", {TopicPartition("t", 0): 45})
    epochs = partition / "leader-epoch-checkpoint"
    if how != "missing":
        epochs.write_bytes(b"" if how == "empty" else damaged(b"0\n1\n0 0\n", how))
    if is_clean:
        (tmp_path / ".kafka_cleanshutdown").touch()
    (planned,) = of_kind(
        segmentlog.recover(tmp_path, dry_run=True), RecoveryKind.LEADER_EPOCHS_BUILT
    )
    (built,) = of_kind(segmentlog.recover(tmp_path), RecoveryKind.LEADER_EPOCHS_BUILT)

    assert planned.message.replace("would build", "built") == built.message
    assert ((0, 0), (1, 16), (2, 30), (3, 46)) == read_leader_epochs(str(epochs))
    assert [] == segmentlog.recover(tmp_path)


@pytest.mark.parametrize("how", ["zeros", "garbage", "cut", "missing"])
@pytest.mark.parametrize("has_metadata", ["here", "elsewhere", "nowhere"])
def test_a_topic_id_comes_from_the_metadata_of_the_cluster(
    crashed: Path, tmp_path: Path, how: str, has_metadata: str
) -> None:
    """Without metadata, the log is recovered, and the file is named in a failure."""
    path = crashed / "orders-1" / "partition.metadata"
    whole = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(damaged(whole, how))
    elsewhere = None
    if has_metadata != "here":
        elsewhere = tmp_path / "metadata"
        elsewhere.mkdir()
        (crashed / "__cluster_metadata-0").rename(elsewhere / "__cluster_metadata-0")
    asked = elsewhere if has_metadata == "elsewhere" else None
    steps = segmentlog.recover(crashed, metadata=asked)
    failed = of_kind(steps, RecoveryKind.LOG_FAILED)
    assert ("orders", 1) in {each[1:3] for each in of_kind(steps, RecoveryKind.LOG_RECOVERED)}
    if has_metadata == "nowhere":
        assert (how != "missing") == [
            "partition.metadata" in step.message for step in failed
        ].count(True)
        # A broker would rename the directory to -stray.
        assert not (crashed / ".kafka_cleanshutdown").exists()
        return
    assert [] == failed
    assert whole == path.read_bytes()
    (written,) = of_kind(steps, RecoveryKind.TOPIC_ID_WRITTEN)
    assert ("orders", 1) == (written.topic, written.partition)


def test_a_damaged_snapshot_is_put_aside_if_the_log_has_its_records(crashed: Path) -> None:
    """Readers then take an older one, or the log alone; a snapshot that is needed stays."""
    metadata = crashed / "__cluster_metadata-0"
    newest = max(metadata.glob("*.checkpoint"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    planned = of_kind(segmentlog.recover(crashed, dry_run=True), RecoveryKind.SNAPSHOT_PUT_ASIDE)
    (aside,) = of_kind(segmentlog.recover(crashed), RecoveryKind.SNAPSHOT_PUT_ASIDE)
    assert [aside.message.replace(": put", ": would put")] == [step.message for step in planned]
    assert bytes(data) == (metadata / aside.kept[0]).read_bytes()
    assert not newest.exists()

    needed = metadata / f"{10**6:020d}-{1:010d}.checkpoint"
    needed.write_bytes(data)
    (crashed / ".kafka_cleanshutdown").unlink()
    steps = segmentlog.recover(crashed)
    (failed,) = of_kind(steps, RecoveryKind.LOG_FAILED)
    assert needed.name in failed.message
    assert needed.exists()
    assert not (crashed / ".kafka_cleanshutdown").exists()
    assert 14 == len(of_kind(steps, RecoveryKind.LOG_RECOVERED))


def test_entries_that_cannot_be_recovered_do_not_end_the_others(
    crashed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that cannot be listed; a segment that is a directory; a file."""
    (crashed / "invoices-0" / LOG).unlink()
    (crashed / "invoices-0" / LOG).mkdir()
    (crashed / "zz-0").write_bytes(b"")
    refused = str(crashed / "orders-2")

    def refusing(call: Callable[..., object]) -> Callable[..., object]:
        def refuse(path: str = ".") -> object:
            if path == refused:
                raise PermissionError(13, "Permission denied", path)
            return call(path)

        return refuse

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    steps = segmentlog.recover(crashed)
    failed = {(step.topic, step.partition) for step in of_kind(steps, RecoveryKind.LOG_FAILED)}
    assert {("invoices", 0), ("orders", 2)} == failed
    assert 12 == len(of_kind(steps, RecoveryKind.LOG_RECOVERED))
    assert not (crashed / ".kafka_cleanshutdown").exists()


def test_no_message_has_a_whole_file(tmp_path: Path) -> None:
    """A file without line ends is shown by its beginning, without control characters."""
    for data in (bytes(10**6), b"\x1b[31m" * 10**5, b"0\n" + b"x" * 10**6):
        (tmp_path / "replication-offset-checkpoint").write_bytes(data)
        with pytest.raises(CorruptCheckpointError) as caught:
            read_offsets(str(tmp_path), "replication-offset-checkpoint")
        assert len(caught.value.reason) < 150
        assert caught.value.reason.isprintable()


@pytest.mark.parametrize("point", [0, 45])
def test_leader_epochs_that_batches_contradict_are_built_again(tmp_path: Path, point: int) -> None:
    """`verify` names the batch and both epochs; the recovery reads from its point on."""
    partition = tmp_path / "t-0"
    partition.mkdir()
    for base in (0, 20, 40):
        data = b"".join(batch(base + i, (base + i) // 15) for i in range(0, 20, 2))
        (partition / f"{base:020d}.log").write_bytes(data)
    write_offsets(
        str(tmp_path), "recovery-point-offset-checkpoint", {TopicPartition("t", 0): point}
    )
    epochs = partition / "leader-epoch-checkpoint"
    epochs.write_text("0\n3\n0 0\n1 16\n2 36\n")
    found = [each for each in segmentlog.verify(tmp_path) if each.kind == "leader-epochs"]
    assert [(30, Severity.WARNING, str(epochs))] == [
        (each.offset, each.severity, each.path) for each in found
    ]
    assert found[0].message.startswith("the batch has leader epoch 2, but the checkpoint has 1 ")
    (planned,) = of_kind(
        segmentlog.recover(tmp_path, dry_run=True), RecoveryKind.LEADER_EPOCHS_BUILT
    )
    (built,) = of_kind(segmentlog.recover(tmp_path), RecoveryKind.LEADER_EPOCHS_BUILT)
    assert planned.message.replace("would build", "built") == built.message
    assert ((0, 0), (1, 16), (2, 30), (3, 46)) == read_leader_epochs(str(epochs))
    assert not [each for each in segmentlog.verify(tmp_path) if each.kind == "leader-epochs"]


@pytest.mark.parametrize(
    ("name", "data"),
    [("lost+found", None), ("orders-1/partition.metadata", b""), ("meta.properties", b"")],
)
def test_a_dry_run_says_that_no_mark_is_given(
    crashed: Path, name: str, data: bytes | None
) -> None:
    """It names what a broker would not start with, except what the recovery mends."""
    if data is None:
        (crashed / name).mkdir()
    else:
        (crashed / name).write_bytes(data)
    planned = of_kind(segmentlog.recover(crashed, dry_run=True), RecoveryKind.NOT_MARKED)
    steps = segmentlog.recover(crashed)
    done = of_kind(steps, RecoveryKind.NOT_MARKED)

    is_mended = name.endswith("partition.metadata")
    assert [1 - is_mended] * 2 == [len(planned), len(done)]
    assert [each.path for each in done] == [each.path for each in planned]
    assert all(each.message.startswith("would not be marked as cleanly") for each in planned)
    assert is_mended == (crashed / ".kafka_cleanshutdown").exists()


def test_a_clean_stop_stays_one_where_something_else_keeps_the_broker_from_its_start(
    crashed: Path,
) -> None:
    """Without its mark, the start that follows the repair by hand would read and cut all logs."""
    (crashed / ".kafka_cleanshutdown").touch()
    (crashed / "meta.properties").write_bytes(b"")
    newest = max((crashed / "__cluster_metadata-0").glob("*.checkpoint"))
    newest.write_bytes(newest.read_bytes()[:-3])

    steps = segmentlog.recover(crashed)
    assert of_kind(steps, RecoveryKind.SNAPSHOT_PUT_ASIDE)
    (refused,) = of_kind(steps, RecoveryKind.NOT_MARKED)
    assert refused.message.startswith("not ready for a start")
    assert (crashed / ".kafka_cleanshutdown").exists()


def test_a_partition_whose_making_was_cut_off(tmp_path: Path) -> None:
    """A writer died, or its disk failed, after the first file: nothing was ever in the log."""
    with segmentlog.open_writer(tmp_path, "orders") as writer:
        writer.append(pa.table({"value": ["a"]}))
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "late-0").mkdir()
    (tmp_path / "late-0" / f"{0:020d}.timeindex").touch()

    steps = segmentlog.recover(tmp_path)
    assert not of_kind(steps, RecoveryKind.LOG_FAILED)
    assert of_kind(steps, RecoveryKind.MARKED_CLEAN)
    assert segmentlog.open_log_dir(tmp_path).log("late", 0).log_end_offset == 0


def test_a_snapshot_of_a_newer_format_is_not_put_aside(crashed: Path) -> None:
    """What cannot be read shows no damage: the file stays, and the log is a failure."""
    snapshot = max((crashed / "__cluster_metadata-0").glob("*.checkpoint"))
    data = bytearray(snapshot.read_bytes())
    data[16] = 3  # the magic of its first batch
    snapshot.write_bytes(data)
    kinds = {each.kind for each in segmentlog.recover(crashed) if each.topic.startswith("__cl")}
    assert snapshot.exists()
    assert RecoveryKind.SNAPSHOT_PUT_ASIDE not in kinds


@pytest.mark.parametrize("is_only", [True, False])
def test_a_partition_that_a_writer_had_begun_gets_an_id_with_its_log(
    tmp_path: Path, *, is_only: bool
) -> None:
    """The id is that of the topic's other partitions, if there are any."""
    with segmentlog.open_writer(tmp_path, "orders", num_partitions=2) as writer:
        writer.append(pa.table({"value": [b"v"], "partition": pa.array([1], pa.int32())}))
    other = tmp_path / "orders-1"
    known = read_topic_id(str(other))
    begun = tmp_path / "orders-0"
    for each in begun.iterdir():
        each.unlink()
    if is_only:
        shutil.rmtree(other)
        write_offsets(str(tmp_path), "replication-offset-checkpoint", {ORDERS: 0})
    planned = of_kind(segmentlog.recover(tmp_path, dry_run=True), RecoveryKind.TOPIC_ID_WRITTEN)
    assert [*begun.iterdir()] == []
    (step,) = of_kind(segmentlog.recover(tmp_path), RecoveryKind.TOPIC_ID_WRITTEN)

    assert (begun / LOG).exists()
    found = read_topic_id(str(begun))
    assert len(planned) == 1
    if is_only:
        assert found is not None
        assert "a new topic id: it was missing" in step.message
    else:
        assert found == known
        assert f"topic id {known} of its other partitions" in step.message


def test_copies_of_a_mirror_that_has_died_become_no_topic(tmp_path: Path) -> None:
    """Their directories do not show how many partitions the topic was to have."""
    with segmentlog.open_writer(tmp_path, "orders") as writer:
        writer.append(pa.table({"value": [b"v"]}))
    begun = tmp_path / "t-0"
    begun.mkdir()
    (begun / f"{LOG}.cleaned").write_bytes(b"copied")
    segmentlog.recover(tmp_path)

    assert not (begun / LOG).exists()
    with segmentlog.open_writer(tmp_path, "t", num_partitions=3) as writer:
        writer.append(pa.table({"value": [b"v"]}))
    assert segmentlog.open_log_dir(tmp_path).topics()["t"] == [0, 1, 2]
