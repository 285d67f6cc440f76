"""A compaction by several processes: a leader who dies, attempts that meet, and a plain one."""

import threading
from pathlib import Path

import pytest
from compaction.batches import lay_out, records_of, rest_of

from segmentlog.cleanup import clean_partition, shared_compaction
from segmentlog.cleanup.compaction_job import begin_compaction
from segmentlog.cleanup.shared_compaction import CompactionTask, clean_task, lead
from segmentlog.errors import ChecksumMismatchError, LogDirectoryError
from segmentlog.files.byte_locks import ByteLocks

pytestmark = pytest.mark.linux

NOW_MS = 10**12


def log_of(directory: Path) -> Path:
    """Three records of one key, the last of which is in the active segment."""
    segments = {offset: [records_of(offset, (b"a", b"%d" % offset))] for offset in range(3)}
    return lay_out(directory, segments)


def planned(directory: Path, mark: str) -> CompactionTask:
    """A task for the partition."""
    with begin_compaction(
        directory, (), {"cleanup.policy": "compact"}, dry_run=False, now_ms=NOW_MS,
        lock_timeout_seconds=0, metadata=None, server_properties=None,
    ) as job:  # fmt: skip
        (due,) = job.due
        job.begin(due)
    return CompactionTask(job.directory, mark, 1, due, 1 << 20, 0.9, 10**9, NOW_MS)


def bytes_of(partition: Path) -> dict[str, bytes]:
    """All files of a log."""
    return {path.name: path.read_bytes() for path in partition.iterdir()}


def test_a_task_cleans_its_partition(tmp_path: Path) -> None:
    """The last record before the active segment stays; the leader leaves nothing."""
    partition = log_of(tmp_path)
    with lead(str(tmp_path)) as mark:
        done = clean_task(planned(tmp_path, mark))
    assert done is not None
    assert (2, 2, 1) == (done.clean_to, done.records_before, done.records_after)
    assert [0, 2] == list(rest_of(partition))
    assert not Path(mark).exists()


def test_a_leader_that_has_ended(tmp_path: Path) -> None:
    """With its mark, or without: as after a kill."""
    partition = log_of(tmp_path)
    with lead(str(tmp_path)) as mark:
        task = planned(tmp_path, mark)
    before = bytes_of(partition)
    for _ in range(2):
        with pytest.raises(LogDirectoryError, match=r"has ended.*compact again"):
            clean_task(task)
        Path(mark).touch()
    assert before == bytes_of(partition)


def test_a_leader_that_dies_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segments are not replaced; the next compaction removes the files that were made."""
    partition = log_of(tmp_path)
    with lead(str(tmp_path)) as mark:
        task = planned(tmp_path, mark)
    Path(mark).touch()
    before = bytes_of(partition)
    clean = clean_partition.SegmentCleaner.clean
    with ByteLocks(mark) as leader:
        leader.take(0)

        def dies(*given: object) -> object:
            made = clean(*given)  # type: ignore[arg-type]
            leader.close()
            return made

        monkeypatch.setattr(clean_partition.SegmentCleaner, "clean", dies)
        with pytest.raises(LogDirectoryError, match="has ended"):
            clean_task(task)
    monkeypatch.undo()

    left = bytes_of(partition)
    assert before.items() <= left.items()
    assert {".cleaned"} == {Path(name).suffix for name in left.keys() - before}
    with lead(str(tmp_path)) as mark:
        assert clean_task(planned(tmp_path, mark)) is not None
    assert [] == list(partition.glob("*.cleaned"))


def test_a_second_attempt_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And finds a compacted log, which it leaves with the same records."""
    partition = log_of(tmp_path)
    monkeypatch.setattr(shared_compaction, "_POLL_SECONDS", 0.01)
    found = []
    with lead(str(tmp_path)) as mark:
        task = planned(tmp_path, mark)
        with ByteLocks(mark) as first:
            first.take(task.number)
            second = threading.Thread(target=lambda: found.append(clean_task(task)))
            second.start()
            second.join(0.2)
            assert second.is_alive()
            before = bytes_of(partition)
        second.join(30)
    assert [2] == [done.clean_to for done in found if done]
    assert before != bytes_of(partition)


def test_a_damaged_batch_stops_the_partition(tmp_path: Path) -> None:
    """It is named, and nothing is replaced or left."""
    partition = log_of(tmp_path)
    with lead(str(tmp_path)) as mark:
        task = planned(tmp_path, mark)
        path = partition / f"{1:020d}.log"
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        before = bytes_of(partition)
        with pytest.raises(ChecksumMismatchError, match=r"0001\.log"):
            clean_task(task)
    assert before == bytes_of(partition)
