"""`segmentlog.recover`: its steps, and the calls that it refuses."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from broker_lock import as_broker

import segmentlog
from segmentlog import RecoveryKind, RecoveryStep
from segmentlog.errors import LogDirectoryError, LogLockedError, OptionError

pytestmark = pytest.mark.linux

LOG = f"{0:020d}.log"


@pytest.fixture
def crashed(example_data: str, tmp_path: Path) -> Path:
    """A broker's directory without its mark of a clean stop."""
    directory = tmp_path / "kafka"
    shutil.copytree(example_data, directory)
    (directory / ".kafka_cleanshutdown").unlink()
    return directory


def contents(directory: Path) -> dict[Path, bytes]:
    """Every file except the lock."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: path.read_bytes() for path in files}


def of_kind(steps: list[RecoveryStep], kind: RecoveryKind) -> list[RecoveryStep]:
    """The steps of one kind."""
    return [step for step in steps if step.kind is kind]


def test_a_torn_tail_is_cut_off_and_its_bytes_are_counted(crashed: Path) -> None:
    """No whole batch is lost. The next recovery has nothing to do."""
    log = crashed / "orders-0" / LOG
    os.truncate(log, log.stat().st_size - 5)
    n_left = log.stat().st_size
    seen: list[RecoveryStep] = []
    begun: list[str] = []
    steps = segmentlog.recover(crashed, on_step=seen.append, on_log=begun.append)

    assert seen == steps
    assert sorted(path.name for path in crashed.glob("*-[0-9]")) == begun
    (cut,) = of_kind(steps, RecoveryKind.LOG_CUT)
    assert ("orders", 0, str(crashed / "orders-0")) == (cut.topic, cut.partition, cut.path)
    assert (255, 255, n_left - log.stat().st_size) == (cut.end_offset, cut.cut_to, cut.n_bytes)
    (kept,) = cut.kept
    assert cut.n_bytes == (crashed / "orders-0" / kept).stat().st_size
    assert not cut.has_lost_batches
    (lowered,) = of_kind(steps, RecoveryKind.HIGH_WATERMARK_LOWERED)
    assert ("orders", 255, 335) == (lowered.topic, lowered.end_offset, lowered.cut_to)
    assert RecoveryKind.MARKED_CLEAN is steps[-1].kind
    assert [] == segmentlog.recover(crashed)


def test_whole_batches_that_are_cut_off_are_named_beforehand(crashed: Path) -> None:
    """The dry run names the offsets that the recovery then names, and changes no file."""
    log = crashed / "orders-1" / LOG
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    before = contents(crashed)
    planned = segmentlog.recover(crashed, dry_run=True)

    assert before == contents(crashed)
    assert not (crashed / ".lock").exists()
    (would,) = of_kind(planned, RecoveryKind.LOG_CUT)
    assert would.has_lost_batches
    (cut,) = of_kind(segmentlog.recover(crashed), RecoveryKind.LOG_CUT)
    assert (0, 317, would.good_from) == (cut.end_offset, cut.cut_to, cut.good_from)
    assert (len(data), (), 1) == (cut.n_bytes, would.kept, len(cut.kept))


def test_a_log_that_cannot_be_recovered_is_a_step(crashed: Path) -> None:
    """The other logs are recovered, and the directory gets no mark."""
    log = crashed / "orders-2" / LOG
    data = bytearray(log.read_bytes())
    data[16] = 3
    log.write_bytes(data)
    steps = segmentlog.recover(crashed)

    (failed,) = of_kind(steps, RecoveryKind.LOG_FAILED)
    assert ("orders", 2) == (failed.topic, failed.partition)
    assert data == log.read_bytes()
    assert 7 == len(of_kind(steps, RecoveryKind.LOG_RECOVERED))
    assert not (crashed / ".kafka_cleanshutdown").exists()


def test_calls_that_are_refused(crashed: Path, tmp_path: Path) -> None:
    """No file is made, and the lock is waited for as long as the caller says."""
    for path in (tmp_path / "nothing", crashed / "orders-0", tmp_path):
        with pytest.raises(LogDirectoryError):
            segmentlog.recover(path)
    assert not list(tmp_path.rglob(".lock"))
    with pytest.raises(OptionError, match="index_interval_bytes"):
        segmentlog.recover(crashed, index_interval_bytes=-1)
    with as_broker(crashed), pytest.raises(LogLockedError):
        segmentlog.recover(crashed, lock_timeout_seconds=0)


def test_a_directory_that_has_lost_its_last_topic_is_recovered_again_and_again(
    tmp_path: Path,
) -> None:
    """A script that always recovers before a start does not fail."""
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(pa.table({"value": ["v"]}))
    segmentlog.delete_topic(tmp_path, "t")
    segmentlog.recover(tmp_path)
    assert [] == segmentlog.recover(tmp_path)
    assert (tmp_path / ".kafka_cleanshutdown").exists()
