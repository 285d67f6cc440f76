"""Jobs that commit late, twice, or after their lock or their topic is gone."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lost_lock import lock_is_lost
from plain_writes import ONE, values, write
from soundness import assert_tidy

import segmentlog
from segmentlog.errors import (
    LogDirectoryError,
    LogLockedError,
)
from segmentlog.model import TopicPartition
from segmentlog.store.lock import DirectoryLock
from segmentlog.txn import change
from segmentlog.txn.effects import MoveBounds
from segmentlog.txn.guard import Guard, Intent, PartitionIntent, list_guards
from segmentlog.writes import commit
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob
from segmentlog.writes.prepare import ready_to_append

pytestmark = pytest.mark.linux


def _die(*_: Any) -> None:
    raise ZeroDivisionError


def test_a_job_is_committed_once(tmp_path: Path) -> None:
    """The job's token is already decided, and would make a second commit look decided."""
    job = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), topic="t"))
    first, second = job.stager(0), job.stager(1)
    first.add(ONE.to_batches()[0])
    second.add(ONE.to_batches()[0])
    job.commit([first.finish()])
    with pytest.raises(LogDirectoryError, match="the job has ended"):
        job.commit([second.finish()])
    assert [b"v"] == values(tmp_path)


def test_a_topic_that_was_deleted_after_an_unfinished_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing topic does not stop writes to other topics."""
    write(tmp_path, ONE)
    with segmentlog.open_writer(tmp_path, "other") as writer:
        writer.append(ONE)
    job = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), topic="t"))
    stager = job.stager(0)
    stager.add(ONE.to_batches()[0])
    with monkeypatch.context() as patch:
        patch.setattr(commit, "_append", lambda *_, **__: None)
        patch.setattr(change, "decide", _die)
        patch.setattr(change, "give_up", lambda *_, **__: None)
        with pytest.raises(ZeroDivisionError):
            job.commit([stager.finish()])
    assert list_guards(str(tmp_path))
    for path in (tmp_path / "t-0").iterdir():
        path.unlink()
    (tmp_path / "t-0").rmdir()

    with segmentlog.open_writer(tmp_path, "other") as writer:
        writer.append(ONE)
    assert [] == list_guards(str(tmp_path))
    assert [b"v", b"v"] == values(tmp_path, "other")


def test_a_writer_that_was_idle_for_weeks(tmp_path: Path) -> None:
    """Another job has removed its mark. The writer had no staged files, and continues."""
    with segmentlog.open_writer(tmp_path, "t") as writer:
        (mark,) = tmp_path.glob("*.job")
        for _ in range(2):
            os.utime(mark, (time.time() - 8 * 24 * 3600,) * 2)
            write(tmp_path, ONE)
        assert not mark.exists()
        writer.append(ONE)
    assert [b"v"] * 3 == values(tmp_path)


@pytest.mark.parametrize("other", ["done", "unsynced", "about to decide"])
def test_a_writer_that_lost_its_lock_withdraws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """The lock is lost between the look at the logs and the guard.

    The other writer's commit stays.
    """
    write(tmp_path, ONE)
    late = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), topic="t"))
    stager = late.stager(0)
    stager.add(pa.RecordBatch.from_pydict({"value": [b"late"] * 5}))
    extents = [stager.finish()]
    stand, decide = change.raise_guard, change.decide
    refused = []

    def stands_late(*arguments: Any) -> None:
        with pytest.raises(LogLockedError):
            stand(*arguments)
        refused.append(arguments)

    def decides_last(*arguments: Any) -> None:
        stands_late(*held_up)
        decide(*arguments)

    held_up: list = []

    def is_held_up(directory: str, *arguments: Any) -> None:
        held_up[:] = [directory, *arguments]
        with monkeypatch.context() as patch:
            patch.setattr(change, "raise_guard", stand)
            if other == "about to decide":
                patch.setattr(change, "decide", decides_last)
            patch.setattr(DirectoryLock, "__enter__", lambda self: self)
            patch.setattr(DirectoryLock, "__exit__", lambda *_: None)
            config = ProducerConfig(flush=other != "unsynced")
            write(tmp_path, pa.table({"value": [b"other"]}), config=config)
        if not refused:
            stands_late(*held_up)
        raise LogLockedError(directory, 0, 0.0)

    monkeypatch.setattr(change, "raise_guard", is_held_up)
    with pytest.raises(LogLockedError):
        late.commit(extents)
    late.abort()
    assert 1 == len(refused)
    assert [b"v", b"other"] == values(tmp_path)
    assert_tidy(tmp_path)
    assert (other != "unsynced") == (tmp_path / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("call", ["create_directory", "replace_file", "list_guards"])
@pytest.mark.parametrize("is_decided", [True, False])
def test_a_writer_that_lost_its_lock_and_fails_undoes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, *, is_decided: bool
) -> None:
    """It fails after making its guard, before it looks for others. The other's commit stays."""
    write(tmp_path, ONE)
    held = change.HeldDirectory(str(tmp_path))
    zero = TopicPartition("t", 0)
    sizes, end = ready_to_append(held, [zero], flush=True)[zero]
    late = change.Change.begin(held)
    intent = PartitionIntent(*zero, sizes, end, end, end + 5)
    decide, real = change.decide, getattr(change, call)

    def fails(*arguments: Any) -> None:
        real(*arguments)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def commits_late() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(change, call, fails)
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                late.carry_out([intent], [MoveBounds()], _die)

    def decides_last(*arguments: Any) -> None:
        commits_late()
        decide(*arguments)

    with monkeypatch.context() as patch:
        if not is_decided:
            patch.setattr(change, "decide", decides_last)
        write(tmp_path, pa.table({"value": [b"other"]}))
    if is_decided:
        commits_late()
    assert [b"v", b"other"] == values(tmp_path)
    write(tmp_path, ONE)
    assert [b"v", b"other", b"v"] == values(tmp_path)
    assert_tidy(tmp_path)


@pytest.mark.parametrize("is_deletion", [False, True])
def test_a_writer_that_loses_its_lock_after_its_decision_changes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_deletion: bool
) -> None:
    """The next writer has finished its commit, and has committed: its records stay visible."""
    write(tmp_path, ONE)
    finish = change.finish

    def finishes_late(*arguments: Any) -> None:
        with monkeypatch.context() as patch, lock_is_lost():
            patch.setattr(change, "finish", finish)
            write(tmp_path, pa.table({"value": [b"other"]}))
        finish(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(change, "finish", finishes_late)
        if is_deletion:
            segmentlog.delete_topic(tmp_path, "t")
        else:
            write(tmp_path, ONE)
    assert [*([] if is_deletion else [b"v", b"v"]), b"other"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_a_stale_guard_undoes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer had lost the lock, and died after making the guard, before it looked again."""
    write(tmp_path, ONE)
    late = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), topic="t"))
    stager = late.stager(0)
    stager.add(pa.RecordBatch.from_pydict({"value": [b"late"] * 5}))
    extents = [stager.finish()]
    intents = []

    def remembered(_: str, guard: Guard, intent: Intent) -> None:
        intents.append((guard, intent))
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(change, "raise_guard", remembered)
        with pytest.raises(ZeroDivisionError):
            late.commit(extents)
    write(tmp_path, pa.table({"value": [b"other"]}))
    guard, intent = intents[0]
    Path(guard.path).mkdir()
    Path(guard.intent_path).write_bytes(intent.encode())

    assert [b"v", b"other"] == values(tmp_path)
    write(tmp_path, ONE)
    late.abort()
    assert [b"v", b"other", b"v"] == values(tmp_path)
    assert_tidy(tmp_path)
