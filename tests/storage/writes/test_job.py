"""A write job: its files when it begins, travels, commits and fails."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import ONE, values, write
from soundness import assert_tidy

from segmentlog.errors import LogDirectoryError, UnknownTopicOrPartitionError
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob
from segmentlog.writes.staged_files import TaskExtents


def test_a_job_travels_to_its_tasks_and_back(tmp_path: Path) -> None:
    """The job is pickled for each task. The driver commits their files in the tasks' order."""
    job = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), topic="t"))
    extents = []
    for task in range(3):
        travelled = pickle.loads(pickle.dumps(job))
        stager = travelled.stager(task)
        stager.add(pa.record_batch({"value": [b"%d" % task]}))
        extents.append(stager.finish())
        travelled.check_begun()
    assert len(pickle.dumps(job)) < 2_000

    assert job.commit(reversed(extents)).is_new
    assert [b"2", b"1", b"0"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_a_job_that_is_refused_leaves_no_mark(tmp_path: Path) -> None:
    """Later jobs would remove the mark only after two weeks."""
    with pytest.raises(UnknownTopicOrPartitionError):
        WriteJob.begin(
            WriteRequest(str(tmp_path), ProducerConfig(), topic="t", auto_create_topics=False)
        )
    write(tmp_path, ONE, num_partitions=2)
    (tmp_path / "t-0").rename(tmp_path / "elsewhere")
    with pytest.raises(UnknownTopicOrPartitionError):
        WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), topic="t"))

    assert [] == list(tmp_path.glob("*.job"))


def test_a_job_ends_once(tmp_path: Path) -> None:
    """A task that comes late finds no job, and a second commit has no files."""
    job = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), topic="t"))
    stager = job.stager(0)
    stager.add(ONE.to_batches()[0])
    extents = stager.finish()
    assert job.commit([extents]).is_new
    for late in (job.check_begun, lambda: job.stager(1), lambda: job.commit([extents])):
        with pytest.raises(LogDirectoryError, match="the job has ended"):
            late()

    assert [b"v"] == values(tmp_path)


def staged(job: WriteJob, task: int, *texts: bytes) -> TaskExtents:
    """The message of a task that has staged these values."""
    stager = job.stager(task)
    stager.add(pa.record_batch({"value": list(texts)}))
    return stager.finish()
