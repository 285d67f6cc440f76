"""Files of jobs in a log directory: which belong to a job, and which a job removes."""

import logging
import os
from pathlib import Path

import pytest

from segmentlog.store.lock import DirectoryLock
from segmentlog.writes.job_files import JobFiles, sweep_jobs

WEEK = 7 * 24 * 3600


def staged(job: JobFiles, task: int = 0) -> Path:
    """A file as a task of the job stages it."""
    path = Path(job.directory, f"segmentlog.{job.token}.{task}.ab.0.stage")
    path.write_bytes(b"batches")
    return path


def age(path: Path, seconds: int) -> None:
    """Set the time of a file back by this much."""
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def sweep(directory: Path) -> None:
    """Remove dead jobs, as a job does when it begins."""
    with DirectoryLock(str(directory)):
        sweep_jobs(str(directory))


def test_a_job_removes_its_own_files_and_no_others(tmp_path: Path) -> None:
    """The token of another job begins like that of the job."""
    job, other = JobFiles(str(tmp_path), "aa"), JobFiles(str(tmp_path), "aab")
    for each in (job, other):
        each.make_mark()
        staged(each)
    guard = tmp_path / "segmentlog.aa.json"
    guard.touch()
    job.remove()

    assert {other.mark, guard, *tmp_path.glob("segmentlog.aab.*")} == set(tmp_path.iterdir())
    assert 2 == len(list(tmp_path.glob("segmentlog.aab.*")))


def test_a_file_that_cannot_be_removed_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows are already committed or given up, so an error would mislead."""
    job = JobFiles(str(tmp_path), "aa")
    job.make_mark()
    Path(tmp_path, "segmentlog.aa.0.ab.0.stage").mkdir()
    with caplog.at_level(logging.WARNING):
        job.remove()

    assert "files that job aa has staged could not be removed" in caplog.text
    assert not job.mark.exists()


def test_a_sign_of_life_takes_the_notice_back(tmp_path: Path) -> None:
    """Without a mark, the job has ended, and there is no notice."""
    job = JobFiles(str(tmp_path), "aa")
    job.make_mark()
    age(job.mark, WEEK + 60)
    sweep(tmp_path)
    assert job.mark.stat().st_size > 0
    job.renew()
    age(job.mark, WEEK - 60)
    sweep(tmp_path)

    assert 0 == job.mark.stat().st_size
    job.remove()
    with pytest.raises(FileNotFoundError):
        job.renew()


def test_staged_files_keep_a_job_alive_whose_mark_is_old(tmp_path: Path) -> None:
    """A task that has written within the week shows that the driver is alive."""
    job = JobFiles(str(tmp_path), "aa")
    job.make_mark()
    age(job.mark, 2 * WEEK)
    file = staged(job)
    sweep(tmp_path)

    assert file.exists()
    assert 0 == job.mark.stat().st_size


def test_a_job_is_swept_at_the_second_look_a_week_after_the_first(tmp_path: Path) -> None:
    """The mark of the job and its staged files are removed."""
    job = JobFiles(str(tmp_path), "aa")
    job.make_mark()
    file = staged(job)
    for _ in range(2):
        assert job.mark.exists()
        for path in (job.mark, file):
            age(path, WEEK + 60)
        sweep(tmp_path)

    assert not job.mark.exists()
    assert not file.exists()
