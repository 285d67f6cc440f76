"""One commit and its effects on each of its partitions."""

import errno
import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import values, write
from soundness import assert_tidy

from segmentlog.append import commit_staged as commit_staged_module
from segmentlog.append.append import LogAppender
from segmentlog.append.commit_staged import CommitSettings, commit_staged
from segmentlog.disk.lock import DirectoryLock
from segmentlog.errors import StorageError
from segmentlog.model import TopicPartition
from segmentlog.records.scanned_batches import ScannedBatches
from segmentlog.stage.config import ProducerConfig
from segmentlog.stage.extents import JobExtents, TaskExtents
from segmentlog.topic_config import TopicConfig
from segmentlog.writes.job import WriteJob
from segmentlog.writes.request import WriteRequest


def test_a_commit_empties_the_partitions_that_it_names_and_no_other(tmp_path: Path) -> None:
    """The commit appends to two topics and empties one of them.

    The other topic keeps its old records.
    """
    rows = pa.table({"topic": ["a", "b"], "value": [b"old", b"old"]})
    write(tmp_path, rows, topic=None)
    job = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig()))
    stager = job.stager(0)
    stager.add(pa.table({"topic": ["a", "b"], "value": [b"new", b"new"]}).to_batches()[0])
    extents = [stager.finish()]

    with DirectoryLock(str(tmp_path), 1):
        settings = CommitSettings(TopicConfig(), emptied=[TopicPartition("a", 0)])
        commit_staged(str(tmp_path), job.token, JobExtents(extents), settings)
    job.abort()

    assert [b"new"] == values(tmp_path, "a")
    assert [b"old", b"new"] == values(tmp_path, "b")
    assert_tidy(tmp_path)


def test_a_decision_that_is_reported_as_failed_and_was_made_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system may have renamed the state although it answers with an error.

    The rows are visible then, and an error would make the user write the job a second time.
    """
    write(tmp_path, pa.table({"value": [b"old"]}))
    real = os.replace

    def renamed(old: str, new: str) -> None:
        real(old, new)
        if new.endswith("segmentlog.state"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), old)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", renamed)
        write(tmp_path, pa.table({"value": [b"new"]}))

    assert [b"old", b"new"] == values(tmp_path)
    assert_tidy(tmp_path)


def staged(directory: Path, n_partitions: int) -> tuple[WriteJob, list[TaskExtents]]:
    """A job of two tasks with rows for each partition."""
    request = WriteRequest(
        str(directory), ProducerConfig(use_timestamps=True), topic="t", num_partitions=n_partitions
    )
    job = WriteJob.begin(request)
    extents = []
    for task in range(2):
        numbers = range(task, 20 * n_partitions, 2)
        rows = pa.RecordBatch.from_pydict(
            {
                "value": pa.array([b"%d" % number for number in numbers]),
                "partition": pa.array([number % n_partitions for number in numbers], pa.int32()),
                "timestamp": pa.array([0 for _ in numbers], pa.timestamp("us", "UTC")),
            }
        )
        stager = job.stager(task)
        stager.add(rows)
        extents.append(stager.finish())
    return job, extents


def logs(directory: Path) -> dict[str, bytes]:
    """The segment files of all partitions."""
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes() for path in directory.glob("t-*/0*")
    }


def test_partitions_that_are_appended_to_at_the_same_time_get_the_bytes_of_a_single_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition has its rows in the order of the tasks, whichever thread has copied them."""
    found = {}
    for name, least in (("threads", 0), ("one", 1 << 60)):
        monkeypatch.setattr(commit_staged_module, "_LEAST_FOR_THREADS", least)
        job, extents = staged(tmp_path / name, 30)
        job.commit(extents)
        found[name] = logs(tmp_path / name)
        assert_tidy(tmp_path / name)

    assert found["one"] == found["threads"]
    assert 30 == sum(len(data) > 0 for name, data in found["one"].items() if name.endswith(".log"))


def test_a_thread_that_fails_undoes_the_work_of_all_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised once no thread writes any more, and no partition keeps a batch."""
    monkeypatch.setattr(commit_staged_module, "_LEAST_FOR_THREADS", 0)
    append, is_late, has_failed = LogAppender.append, threading.Event(), threading.Event()

    def failing(self: LogAppender, batches: ScannedBatches) -> None:
        partition = Path(self._partition_path).name
        if partition == "t-0":
            is_late.wait()
            has_failed.set()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if partition == "t-1":
            is_late.set()
            has_failed.wait()
            time.sleep(0.2)
        append(self, batches)

    job, extents = staged(tmp_path, 30)
    with monkeypatch.context() as patch:
        patch.setattr(LogAppender, "append", failing)
        with pytest.raises(StorageError):
            job.commit(extents)
        assert not [each for each in threading.enumerate() if "segmentlog" in each.name]
    job.abort()

    assert {b""} == set(logs(tmp_path).values())
    assert_tidy(tmp_path)
    job, extents = staged(tmp_path, 30)
    job.commit(extents)
    assert [b"%d" % number for number in sorted([*range(0, 600, 30)], key=lambda n: n % 2)] == (
        values(tmp_path)
    )
