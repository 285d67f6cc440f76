"""The lock of upkeep: a dry run leaves no file, and never looks at half of a commit."""

from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import write

from segmentlog.disk.lock import DirectoryLock
from segmentlog.errors import LogDirectoryError, LogLockedError
from segmentlog.model import TopicPartition
from segmentlog.upkeep.places import locked, log_directory, partitions_of


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with one record."""
    write(tmp_path, pa.table({"value": [b"a"]}), topic="t", num_partitions=1)
    return tmp_path


def test_a_run_may_change_files_and_a_dry_run_may_not(directory: Path) -> None:
    """Both are refused while the directory is in use."""
    for dry_run in (False, True):
        with locked(str(directory), 0, dry_run=dry_run) as lock:
            assert dry_run == (lock is None)
        with (
            DirectoryLock(str(directory)),
            pytest.raises(LogLockedError),
            locked(str(directory), 0, dry_run=dry_run),
        ):
            pass


def test_a_dry_run_makes_no_lock_file(directory: Path) -> None:
    """If no process has made a lock file, no process holds the lock."""
    (directory / ".lock").unlink()
    with locked(str(directory), 0, dry_run=True) as lock:
        assert lock is None

    assert not (directory / ".lock").exists()


def test_an_unfinished_commit(directory: Path) -> None:
    """A run finishes it first. A dry run names the command that does so."""
    (directory / "segmentlog.unfinished.x").mkdir()
    for has_lock in (True, False):
        if not has_lock:
            (directory / ".lock").unlink()
        with (
            pytest.raises(LogDirectoryError, match="run segmentlog recover first"),
            locked(str(directory), 0, dry_run=True),
        ):
            pass
    with locked(str(directory), 0, dry_run=False):
        assert not (directory / "segmentlog.unfinished.x").exists()


def test_what_is_no_log_directory(directory: Path) -> None:
    """A partition and another directory are refused, and get no file."""
    with pytest.raises(LogDirectoryError, match="name the log directory that holds it"):
        log_directory(directory / "t-0")
    with pytest.raises(LogDirectoryError):
        log_directory(directory / "none")
    assert str(directory) == log_directory(directory)


def test_a_log_directory_may_be_called_like_a_partition(directory: Path) -> None:
    """The contents of the directory decide, and not its name."""
    renamed = directory.rename(directory.parent / "logs-1")

    assert str(renamed) == log_directory(renamed)


def test_one_topic_may_be_named_without_a_list(directory: Path) -> None:
    """The letters of the name are not taken for topics."""
    write(directory, pa.table({"value": [b"a"]}), topic="tt", num_partitions=1)

    assert [TopicPartition("tt", 0)] == partitions_of(str(directory), "tt", has_settings=True)
    assert ["t", "tt"] == [
        each.topic for each in partitions_of(str(directory), "", has_settings=True)
    ]
