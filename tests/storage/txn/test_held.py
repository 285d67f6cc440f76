"""A held directory: a dry run leaves no file, and never looks at half of a commit."""

import os
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from plain_writes import write

from segmentlog.errors import LogDirectoryError, LogLockedError
from segmentlog.format.names import HIGH_WATERMARK_CHECKPOINT
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import write_offsets
from segmentlog.maintain.move_log_starts import LogStartMove
from segmentlog.model import TopicPartition
from segmentlog.store.lock import DirectoryLock
from segmentlog.txn.change import HeldDirectory, hold, take


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with one record."""
    write(tmp_path, pa.table({"value": [b"a"]}), topic="t", num_partitions=1)
    return tmp_path


def test_a_run_may_change_files_and_a_dry_run_may_not(directory: Path) -> None:
    """Both are refused while the directory is in use."""
    for dry_run in (False, True):
        with hold(str(directory), 0, dry_run=dry_run) as held:
            assert (not dry_run, dry_run) == (held.may_write, held.lock is None)
        with (
            DirectoryLock(str(directory)),
            pytest.raises(LogLockedError),
            hold(str(directory), 0, dry_run=dry_run),
        ):
            pass


def test_a_dry_run_makes_no_lock_file(directory: Path) -> None:
    """If no process has made a lock file, no process holds the lock."""
    (directory / ".lock").unlink()
    with hold(str(directory), 0, dry_run=True) as held:
        assert not held.may_write

    assert not (directory / ".lock").exists()


def test_a_dry_run_on_a_mount_that_is_read_only(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock file of a snapshot cannot be locked, and a dry run needs no lock there."""
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    with DirectoryLock(str(directory)):
        with hold(str(directory), 0, dry_run=True) as held:
            assert not held.may_write
        with pytest.raises(LogLockedError), hold(str(directory), 0):
            pass


def test_an_unfinished_commit(directory: Path) -> None:
    """A run finishes it first. A dry run names the command that does so."""
    (directory / "segmentlog.unfinished.x").mkdir()
    for has_lock in (True, False):
        if not has_lock:
            (directory / ".lock").unlink()
        with (
            pytest.raises(LogDirectoryError, match="run segmentlog recover first"),
            hold(str(directory), 0, dry_run=True),
        ):
            pass
    with hold(str(directory), 0, dry_run=False):
        assert not (directory / "segmentlog.unfinished.x").exists()


def test_a_directory_may_be_taken_with_an_unfinished_commit(directory: Path) -> None:
    """Recovery reports what it ends, so it takes the directory first and ends the commit then."""
    (directory / "segmentlog.unfinished.x").mkdir()
    with take(str(directory), 0) as held:
        with pytest.raises(LogDirectoryError, match="has an unfinished commit"):
            held.refuse_unfinished()
        (done,) = held.end_changes(is_asked=True)
        assert done.startswith("removed ")
        held.refuse_unfinished()


def test_room_is_made_before_an_unfinished_commit_is_ended(directory: Path) -> None:
    """The end of a commit needs some bytes.  The settings are asked for under the lock."""
    guard, seen = directory / "segmentlog.unfinished.x", []
    guard.mkdir()

    def config_of(topic: str) -> TopicConfig:
        with pytest.raises(LogLockedError):
            DirectoryLock(str(directory), 0).__enter__()
        return TopicConfig(file_delete_delay_ms=7)

    def make_room(held: HeldDirectory) -> None:
        seen.append((guard.exists(), held.delay_of("t")))

    with hold(str(directory), 0, config_of, make_room=make_room):
        assert not guard.exists()
    assert [(True, 7)] == seen


def test_checkpoints_are_read_once_and_again_after_a_change(directory: Path) -> None:
    """A change replaces the files of checkpoints."""
    partition = TopicPartition("t", 0)
    with hold(str(directory), 0) as held:
        move = LogStartMove(held, [partition])
        known = held.checkpoints
        assert (known.high_watermarks.offsets, known.starts) == ({partition: 1}, {})
        write_offsets(str(directory), HIGH_WATERMARK_CHECKPOINT, {partition: 0})
        assert held.checkpoints.high_watermarks.offsets == {partition: 1}
        write_offsets(str(directory), HIGH_WATERMARK_CHECKPOINT, {partition: 1})
        move.commit({partition: 1})
        assert held.checkpoints.starts == {partition: 1}
