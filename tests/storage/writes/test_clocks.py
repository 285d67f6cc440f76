"""Clocks that jump, and jobs that run longer than files of dead drivers are kept."""

import logging
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.errors import LogDirectoryError
from segmentlog.txn.state import STATE_FILE
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob

ONE = pa.table({"value": [b"v"]})
HOUR, DAY = 3600, 24 * 3600
WEEK = 7 * DAY


def _age(directory: Path, seconds: float) -> None:
    """Set the times of all files of jobs back by this much."""
    for path in directory.glob("segmentlog.*.*"):
        found = path.stat()
        os.utime(path, (found.st_atime, found.st_mtime - seconds))


def _begin(directory: Path) -> WriteJob:
    return WriteJob.begin(WriteRequest(str(directory), ProducerConfig(), topic="t"))


def _other_job(directory: Path) -> None:
    with segmentlog.open_writer(directory, "t") as writer:
        writer.append(ONE)


def _n_records(directory: Path) -> int:
    return segmentlog.open_log_dir(directory).log("t", 0).scan().read_all().num_rows


def _left(directory: Path) -> set[str]:
    return {path.suffix for path in directory.glob("segmentlog.*.*")}


@pytest.mark.parametrize("jump", [2 * HOUR, WEEK + HOUR, 3650 * DAY, -2 * HOUR, -3650 * DAY])
def test_a_clock_that_jumps_while_a_job_runs(tmp_path: Path, jump: int) -> None:
    """Another job begins after the jump, and once took the running job for a dead one."""
    job = _begin(tmp_path)
    stager = job.stager(0)
    stager.add(ONE.to_batches()[0])
    extents = [stager.finish()]
    _age(tmp_path, jump)
    _other_job(tmp_path)
    job.check_begun()
    assert job.commit(extents).is_new
    assert _n_records(tmp_path) == 2
    assert _left(tmp_path) == set()


def test_a_clock_that_jumps_between_the_tasks_of_a_job(tmp_path: Path) -> None:
    """Each task is a sign of life, and removes the notice that another job has written."""
    job = _begin(tmp_path)
    extents = []
    for task in range(4):
        stager = job.stager(task)
        stager.add(ONE.to_batches()[0])
        extents.append(stager.finish())
        _age(tmp_path, WEEK + HOUR)
        _other_job(tmp_path)
    assert job.commit(extents).is_new
    assert _n_records(tmp_path) == 8


def test_a_task_that_runs_for_eight_days(tmp_path: Path) -> None:
    """Another job begins each day. Only the end of the task is a sign of life."""
    job = _begin(tmp_path)
    for _ in range(7):
        _age(tmp_path, DAY)
        _other_job(tmp_path)
    stager = job.stager(0)
    stager.add(ONE.to_batches()[0])
    for _ in range(8):
        _age(tmp_path, DAY)
        _other_job(tmp_path)
    extents = [stager.finish()]
    job.check_begun()
    assert job.commit(extents).is_new
    assert _n_records(tmp_path) == 16


def test_a_machine_whose_clock_is_a_year_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs use the times of the directory's own file system."""
    job = _begin(tmp_path)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 365 * DAY)
    for _ in range(3):
        _other_job(tmp_path)
    monkeypatch.undo()
    job.check_begun()
    assert not job.files.mark.stat().st_size  # no notice was written


def test_files_of_a_dead_driver_go_in_two_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = _begin(tmp_path)
    stager = job.stager(0)
    stager.add(ONE.to_batches()[0])
    extents = [stager.finish()]
    for age in (WEEK + HOUR, WEEK - HOUR):
        _age(tmp_path, age)
        _other_job(tmp_path)
        assert _left(tmp_path) == {".job", ".stage"}
    _age(tmp_path, 2 * HOUR)
    with caplog.at_level(logging.WARNING):
        _other_job(tmp_path)
    assert f"removing files that job {job.token} has left" in caplog.text
    assert _left(tmp_path) == set()
    # The job is alive: it fails with an error, and none of its rows is visible.
    with pytest.raises(LogDirectoryError, match="the job has ended"):
        job.check_begun()
    with pytest.raises(LogDirectoryError, match="the job has ended"):
        job.commit(extents)
    assert _n_records(tmp_path) == 3


def test_staged_files_without_a_mark_go_at_once(tmp_path: Path) -> None:
    """Their job has ended: it removed its mark first, and then could not remove the files."""
    (tmp_path / "segmentlog.dead.0.x.0.stage").touch()
    _age(tmp_path, WEEK + HOUR)
    _other_job(tmp_path)
    assert _left(tmp_path) == set()


def test_a_stamp_rises_with_each_commit_whatever_the_clock_says(tmp_path: Path) -> None:
    """A clock that was set back, or has coarse steps, gave two states the same time.

    Their inodes and sizes may be equal, too, and a reader took the second state for the first.
    """
    _other_job(tmp_path)
    state = tmp_path / STATE_FILE
    os.utime(state, (time.time() + DAY,) * 2)
    for _ in range(3):
        before = state.stat().st_mtime_ns
        _other_job(tmp_path)
        assert state.stat().st_mtime_ns > before
