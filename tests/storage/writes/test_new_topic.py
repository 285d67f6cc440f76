"""Topics that a job creates: when, with how many partitions, and after a failed job."""

import contextlib
import errno
import itertools
import os
from pathlib import Path

import pyarrow as pa
import pytest
from crashing import Crash, Forward, around_calls, crash_at
from plain_writes import ONE, values, write

import segmentlog
from segmentlog.errors import InvalidRecordError, LogDirectoryError, OptionError
from segmentlog.writes.append import LogAppender
from segmentlog.writes.config import WriteRequest
from segmentlog.writes.job import WriteJob

SPREAD = pa.table({"value": [b"a", b"b", b"c"], "partition": [0, 1, 2]})


def partitions(directory: Path) -> list[str]:
    """Directories of partitions."""
    return sorted(path.name for path in directory.iterdir() if path.is_dir())


def test_a_first_write_that_fails_leaves_no_topic(tmp_path: Path) -> None:
    """Otherwise the topic would keep one partition, whatever the next write gives."""
    with pytest.raises(
        InvalidRecordError, match=r"numPartitions\) is the number of partitions of a new"
    ):
        write(tmp_path, SPREAD)
    assert [] == partitions(tmp_path)
    write(tmp_path, SPREAD, num_partitions=3)

    assert [[b"a"], [b"b"], [b"c"]] == [values(tmp_path, "t", number) for number in range(3)]


def test_a_first_commit_that_fails_leaves_no_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings that wait for the topic stay, and so do topics that were there before."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    segmentlog.alter_settings(tmp_path, "t", {"retention.ms": "1"})
    write(tmp_path, ONE, topic="u")
    with monkeypatch.context() as patch:
        patch.setattr(LogAppender, "append", full)
        with pytest.raises(segmentlog.StorageError):
            write(tmp_path, ONE, num_partitions=3)
        with pytest.raises(segmentlog.StorageError):
            write(tmp_path, ONE, topic="u")
    assert ["u-0"] == partitions(tmp_path)
    assert "t" not in (tmp_path / "replication-offset-checkpoint").read_text().split()
    assert "retention.ms" in (tmp_path / "segmentlog.settings").read_text()
    write(tmp_path, ONE, num_partitions=2)
    assert ["t-0", "t-1", "u-0"] == partitions(tmp_path)


def test_a_topic_is_there_when_its_first_job_commits(tmp_path: Path) -> None:
    """The job has rows, or has none."""
    with segmentlog.open_writer(tmp_path, "t", num_partitions=2):
        assert [] == partitions(tmp_path)
    assert ["t-0", "t-1"] == partitions(tmp_path)
    segmentlog.open_writer(tmp_path, "u").abort()
    assert ["t-0", "t-1"] == partitions(tmp_path)


def test_another_number_of_partitions_than_the_topic_has(tmp_path: Path) -> None:
    """Another number is refused. Without a number, the topic's own number counts."""
    write(tmp_path, SPREAD, num_partitions=3)
    for number in (1, 4):
        with pytest.raises(
            OptionError, match="exists and has 3 partitions: give this number"
        ) as error:
            write(tmp_path, ONE, num_partitions=number)
        assert ("num_partitions", str(number)) == (error.value.option, error.value.value)
    write(tmp_path, SPREAD)
    write(tmp_path, SPREAD, num_partitions=3)
    of_column = ONE.append_column("topic", pa.array(["t"]))
    write(tmp_path, of_column, topic=None, num_partitions=5)

    assert [b"b"] * 3 == values(tmp_path, "t", 1)[:3]


def test_two_jobs_may_create_a_topic_alike(tmp_path: Path) -> None:
    """The second job finds the topic of the first. With another number it has to be run again."""
    begun = [
        WriteJob.begin(WriteRequest(str(tmp_path), topic="t", num_partitions=number))
        for number in (3, 3, 2)
    ]
    staged = []
    for job in begun:
        stager = job.stager(0)
        stager.add(ONE.to_batches()[0])
        staged.append([stager.finish()])
    begun[0].commit(staged[0])
    begun[1].commit(staged[1])
    with pytest.raises(LogDirectoryError, match="run the job again"):
        begun[2].commit(staged[2])

    assert [b"v", b"v"] == [
        value for number in range(3) for value in values(tmp_path, "t", number)
    ]


def test_a_topic_whose_writer_died_is_synced_by_the_next(tmp_path: Path) -> None:
    """The name of a log that was not synced could be gone after a power cut, with its records."""
    n_unsynced = 0
    for number in itertools.count():
        directory = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Crash):
            crash_at(patch, number)
            write(directory, ONE)
        if [*directory.glob("segmentlog.unfinished.*")]:  # from here on the topic is made
            break
        if not (directory / "t-0" / f"{0:020d}.log").exists():
            continue
        n_unsynced += 1
        synced: list[str] = []

        def around(_: str, forward: Forward, synced: list[str] = synced) -> object:
            synced.append(str(Path(f"/proc/self/fd/{forward.args[0]}").readlink()))
            return forward()

        with pytest.MonkeyPatch.context() as patch:
            around_calls(patch, ["fsync"], around)
            write(directory, ONE)
        assert {str(directory), str(directory / "t-0")} <= {*synced}, number
    assert n_unsynced > 1
