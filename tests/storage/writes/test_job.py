"""A write job: its files when it begins, travels, commits and fails."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import ONE, values, write
from soundness import assert_tidy

from segmentlog.append import commit_staged
from segmentlog.commit.numbered_writes import NumberedWrite
from segmentlog.errors import LogDirectoryError, StorageError, UnknownTopicOrPartitionError
from segmentlog.stage.config import ProducerConfig
from segmentlog.stage.extents import TaskExtents
from segmentlog.writes.job import WriteJob
from segmentlog.writes.request import WriteRequest


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

    assert job.commit(reversed(extents))
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
    assert job.commit([extents])
    for late in (job.check_begun, lambda: job.stager(1), lambda: job.commit([extents])):
        with pytest.raises(LogDirectoryError, match="the job has ended"):
            late()

    assert [b"v"] == values(tmp_path)


def staged(job: WriteJob, task: int, *texts: bytes) -> TaskExtents:
    """The message of a task that has staged these values."""
    stager = job.stager(task)
    stager.add(pa.record_batch({"value": list(texts)}))
    return stager.finish()


def test_one_job_commits_many_times(tmp_path: Path) -> None:
    """Each commit removes the files of its messages, and no files of the next commit."""
    job = WriteJob.begin(WriteRequest(str(tmp_path), topic="t"))
    for number in range(3):
        message = staged(job, 0, b"%d" % number)
        of_next = staged(job, 1, b"next %d" % number)
        assert job.commit([message], ends=False, numbered=NumberedWrite("query", number))
        assert {each.name for each in of_next} == {
            path.name for path in tmp_path.glob("segmentlog.*.stage")
        }
        assert not job.commit([of_next], ends=False, numbered=NumberedWrite("query", number))
        assert [] == list(tmp_path.glob("segmentlog.*.stage"))
        job.check_begun()
    assert [b"0", b"1", b"2"] == values(tmp_path)

    staged(job, 0, b"of an attempt that lost")
    job.abort()
    assert_tidy(tmp_path)


@pytest.mark.parametrize("ends", [False, True])
def test_a_later_commit_of_a_job_that_fails_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """It was not decided, although an earlier commit of the job was the last decided one."""
    job = WriteJob.begin(WriteRequest(str(tmp_path), topic="t", num_partitions=2))
    assert job.commit([staged(job, 0, b"a", b"b")], ends=False)
    message = staged(job, 0, *[b"c"] * 10)

    def interrupted(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(commit_staged, "plan_segment", interrupted)
        with pytest.raises(StorageError):
            job.commit([message], ends=ends)
    assert [b"a", b"b"] == sorted(values(tmp_path) + values(tmp_path, "t", 1))
    job.abort()
    write(tmp_path, ONE)
    assert [b"a", b"b", b"v"] == sorted(values(tmp_path) + values(tmp_path, "t", 1))
    assert_tidy(tmp_path)


def test_messages_that_are_not_committed_are_discarded(tmp_path: Path) -> None:
    """A stream gives up one batch, and its job continues."""
    job = WriteJob.begin(WriteRequest(str(tmp_path), topic="t"))
    given_up, kept = staged(job, 0, b"given up"), staged(job, 0, b"kept")
    job.discard([given_up])

    assert {each.name for each in kept} == {path.name for path in tmp_path.glob("*.stage")}
    assert job.commit([kept])
    assert [b"kept"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_a_job_that_continues_appends_to_the_topic_that_it_made(tmp_path: Path) -> None:
    """The job keeps the partitions among which it has begun to spread rows."""
    job = WriteJob.begin(WriteRequest(str(tmp_path), topic="t", num_partitions=3))
    assert job.commit([staged(job, 0, b"a", b"b", b"c")], ends=False)
    assert job.commit([staged(job, 0, b"d", b"e", b"f")])

    found = [value for number in range(3) for value in values(tmp_path, "t", number)]
    assert [b"a", b"b", b"c", b"d", b"e", b"f"] == sorted(found)
