"""Several processes share a compaction: leaders end early, and attempts meet."""

import threading
from pathlib import Path

import pytest
from compaction.batches import lay_out, records_of, rest_of
from compaction.leading import leading

from segmentlog.errors import ChecksumMismatchError, LogDirectoryError
from segmentlog.maintain import clean_task
from segmentlog.maintain.compaction import clean_partition
from segmentlog.maintain.compaction import compact as shared_compaction
from segmentlog.store.lock import TaskLock

pytestmark = pytest.mark.linux


def log_of(directory: Path) -> Path:
    """Three records of one key, the last of which is in the active segment."""
    segments = {offset: [records_of(offset, (b"a", b"%d" % offset))] for offset in range(3)}
    return lay_out(directory, segments)


def bytes_of(partition: Path) -> dict[str, bytes]:
    """All files of a log."""
    return {path.name: path.read_bytes() for path in partition.iterdir()}


def test_a_task_cleans_its_partition(tmp_path: Path) -> None:
    """The last record before the active segment stays. The leader leaves no other file."""
    partition = log_of(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    with leading(tmp_path, {}) as (task,):
        done = clean_task(task)
    assert done is not None
    assert (2, 2, 1) == (done.clean_to, done.records_before, done.records_after)
    assert [0, 2] == list(rest_of(partition))
    left = {path.name for path in tmp_path.iterdir()} - before
    assert {".lock", "recovery-point-offset-checkpoint"} >= left


def test_a_leader_that_has_ended(tmp_path: Path) -> None:
    """A task that begins after its leader's end changes nothing, even if the lock file is gone."""
    partition = log_of(tmp_path)
    with leading(tmp_path, {}) as (task,):
        pass
    before = bytes_of(partition)
    for _ in range(2):
        with pytest.raises(LogDirectoryError, match=r"has ended.*compact again"):
            clean_task(task)
        (tmp_path / ".lock").unlink(missing_ok=True)
    assert before == bytes_of(partition)


def test_a_leader_that_ends_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task removes the files that it has created, and replaces no segment."""
    partition = log_of(tmp_path)
    leader = leading(tmp_path, {})
    (task,) = leader.__enter__()
    before = bytes_of(partition)
    clean = clean_partition.SegmentCleaner.clean
    leaving = threading.Thread(target=lambda: leader.__exit__(None, None, None))

    def ends(*given: object) -> object:
        made = clean(*given)  # type: ignore[arg-type]
        leaving.start()
        with TaskLock(task.share, task.number + 1) as looks:
            while looks.is_shared():
                leaving.join(0.001)
        return made

    monkeypatch.setattr(clean_partition.SegmentCleaner, "clean", ends)
    with pytest.raises(LogDirectoryError, match="has ended"):
        clean_task(task)
    leaving.join()
    assert before == bytes_of(partition)


def test_a_second_attempt_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt then finds a compacted log, and keeps its records."""
    partition = log_of(tmp_path)
    monkeypatch.setattr(shared_compaction, "_POLL_SECONDS", 0.01)
    found = []
    with leading(tmp_path, {}) as (task,):
        with TaskLock(task.share, task.number) as first:
            first.take()
            second = threading.Thread(target=lambda: found.append(clean_task(task)))
            second.start()
            second.join(0.2)
            assert second.is_alive()
            before = bytes_of(partition)
        second.join(30)
    assert [2] == [done.clean_to for done in found if done]
    assert before != bytes_of(partition)


def test_a_damaged_batch_stops_the_partition(tmp_path: Path) -> None:
    """The error names the damaged file, and no segment is replaced."""
    partition = log_of(tmp_path)
    with leading(tmp_path, {}) as (task,):
        path = partition / f"{1:020d}.log"
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        before = bytes_of(partition)
        with pytest.raises(ChecksumMismatchError, match=r"0001\.log"):
            clean_task(task)
    assert before == bytes_of(partition)
