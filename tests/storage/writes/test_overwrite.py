"""Overwriting: the records of a topic go when those of the job come, and offsets count on."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from crashing import Crash, crash_at
from plain_writes import dealt, numbered_rows, numbers, write
from soundness import assert_tidy

import segmentlog
from segmentlog.commit.unfinished import recover_commits
from segmentlog.disk.lock import DirectoryLock
from segmentlog.errors import OptionError, SyncFailedError
from segmentlog.layout.checkpoint import read_offsets
from segmentlog.stage.config import ProducerConfig
from segmentlog.topic_config import TopicConfig
from segmentlog.writes.job import WriteJob
from segmentlog.writes.request import WriteRequest

AT_ONCE = {"file.delete.delay.ms": "0"}
CONFIG = ProducerConfig(TopicConfig(segment_bytes=2000), batch_size=300)

write_here = partial(write, num_partitions=2, config=CONFIG)


def test_the_log_start_moves_and_offsets_count_on(tmp_path: Path) -> None:
    """In all partitions of the topic, also in those that get nothing, and in no other topic."""
    write_here(tmp_path, numbered_rows(0, 500))
    write_here(tmp_path, numbered_rows(0, 100), topic="other")
    write_here(tmp_path, numbered_rows(1000, 100).slice(0, 1), overwrite=True)
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)

    assert {0: [1000], 1: []} == numbers(tmp_path)
    assert (250, 251) == (log.log_start_offset, log.log_end_offset)
    starts = read_offsets(str(tmp_path), "log-start-offset-checkpoint")
    assert {("t", 0): 250, ("t", 1): 250} == starts
    assert dealt((0, 100)) == numbers(tmp_path, "other")
    write_here(tmp_path, numbered_rows(1002, 4))
    assert {0: [1000, 1002, 1004], 1: [1003, 1005]} == numbers(tmp_path)
    write_here(tmp_path, overwrite=True)
    assert {0: [], 1: []} == numbers(tmp_path)
    assert_tidy(tmp_path)


def test_the_files_go_with_a_later_job(tmp_path: Path) -> None:
    """Not before a minute has gone by, so that whoever has begun to read reads on."""
    write_here(tmp_path, numbered_rows(0, 500))
    before = {path.name for path in (tmp_path / "t-0").iterdir()}
    reader = segmentlog.open_log_dir(tmp_path)
    old = [reader.log("t", each) for each in (0, 1)]
    assert 0 == old[0].log_start_offset
    write_here(tmp_path, numbered_rows(1000, 10), overwrite=True)

    assert 250 == old[0].scan().read_all().num_rows
    assert 250 == old[1].scan().read_all().num_rows
    write_here(tmp_path, numbered_rows(1010, 10))
    assert before <= {path.name for path in (tmp_path / "t-0").iterdir()}
    segmentlog.alter_settings(tmp_path, None, AT_ONCE)
    write_here(tmp_path, numbered_rows(1020, 10))

    assert dealt((1000, 30)) == numbers(tmp_path)
    assert [250] == [
        each.base_offset for each in segmentlog.open_log_dir(tmp_path).log("t", 0).segments
    ]
    assert not any(path.name < f"{250:020d}" for path in (tmp_path / "t-1").iterdir())
    assert "replaced" in (tmp_path / "segmentlog.state").read_text()
    write_here(tmp_path, numbered_rows(1030, 10))
    assert_tidy(tmp_path)


def test_a_topic_that_was_made_anew_keeps_its_records(tmp_path: Path) -> None:
    """Its predecessor was to lose records; the new topic loses none."""
    write_here(tmp_path, numbered_rows(0, 500))
    write_here(tmp_path, numbered_rows(1000, 10), overwrite=True)
    for path in tmp_path.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    names = ("log-start-offset-checkpoint", "replication-offset-checkpoint")
    for name in (*names, "recovery-point-offset-checkpoint"):
        (tmp_path / name).write_text("0\n0\n")
    write_here(tmp_path, numbered_rows(0, 500))
    segmentlog.alter_settings(tmp_path, None, AT_ONCE)
    write_here(tmp_path, numbered_rows(500, 500))

    assert dealt((0, 1000)) == numbers(tmp_path)
    assert_tidy(tmp_path)


def test_a_crash_at_every_step_of_an_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see the old records or the new ones, in both partitions, and recovery keeps it."""
    outcomes = []
    for number in range(1000):
        directory = tmp_path / str(number)
        segmentlog.alter_settings(directory, None, AT_ONCE)
        write_here(directory, numbered_rows(0, 100), overwrite=bool(number % 2))
        write_here(directory, numbered_rows(100, 100), overwrite=bool(number % 2))
        before = dealt((100, 100)) if number % 2 else dealt((0, 200))
        job = WriteJob.begin(WriteRequest(str(directory), CONFIG, topic="t", overwrite=True))
        stager = job.stager(0)
        stager.add(numbered_rows(1000, 50).to_batches()[0])
        extents = [stager.finish()]
        is_done = False
        with monkeypatch.context() as patch:
            crash_at(patch, number)
            try:
                job.commit(extents)
                is_done = True
            except Crash:
                pass
        seen = numbers(directory)
        assert seen in (before, dealt((1000, 50))), number
        with DirectoryLock(str(directory)):
            recover_commits(str(directory))
        assert seen == numbers(directory), number
        write_here(directory, numbered_rows(2000, 4))
        expected = {each: seen[each] + dealt((2000, 4))[each] for each in (0, 1)}
        assert expected == numbers(directory), number
        job.abort()
        assert_tidy(directory)
        outcomes.append(seen == before)
        if is_done:
            break
    assert min(sum(outcomes), len(outcomes) - sum(outcomes)) > 5


def test_a_topic_is_needed(tmp_path: Path) -> None:
    """Rows that name topics do not say whose records are to go."""
    with pytest.raises(OptionError, match="topic"):
        segmentlog.open_writer(tmp_path, overwrite=True)


def test_a_failed_sync_keeps_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is undone on a disk that fails; the next writer does it, and readers see through."""
    write_here(tmp_path, numbered_rows(0, 100))
    first = tmp_path / "t-0" / f"{0:020d}.log"
    before = first.read_bytes()
    job = WriteJob.begin(WriteRequest(str(tmp_path), CONFIG, topic="t"))
    stager = job.stager(0)
    stager.add(numbered_rows(100, 100).to_batches()[0])
    extents = [stager.finish()]

    def failing(descriptor: int, path: str) -> None:
        raise SyncFailedError(path, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("segmentlog.disk.sync_together.sync_file", failing)
        with pytest.raises(SyncFailedError, match=r"\.log.*nothing of this write is visible"):
            job.commit(extents)
    job.abort()
    assert (tmp_path / f"segmentlog.unfinished.{job.token}").is_dir()
    assert dealt((0, 100)) == numbers(tmp_path)
    after = first.read_bytes()
    assert len(before) < len(after)  # nothing was cut back
    assert before == after[: len(before)]

    write_here(tmp_path, numbered_rows(200, 100))
    assert dealt((0, 100), (200, 100)) == numbers(tmp_path)
    assert_tidy(tmp_path)


def test_overwritten_files_go_before_the_next_job_stages(tmp_path: Path) -> None:
    """A disk that is full of them would otherwise refuse every job before its commit."""
    write_here(tmp_path, numbered_rows(0, 500))
    write_here(tmp_path, numbered_rows(1000, 10), overwrite=True)
    segmentlog.alter_settings(tmp_path, "t", AT_ONCE)
    job = WriteJob.begin(WriteRequest(str(tmp_path), CONFIG, topic="t", overwrite=True))

    assert not [*tmp_path.glob(f"t-0/{0:020d}.*")]
    assert dealt((1000, 10)) == numbers(tmp_path)
    job.abort()
    write_here(tmp_path, numbered_rows(1010, 10))
    assert_tidy(tmp_path)


def test_overwritten_files_stay_for_the_delay_of_their_own_topic(tmp_path: Path) -> None:
    """A job for another topic goes by it, too, whatever delay its own topic has."""
    write_here(tmp_path, numbered_rows(0, 500))
    write_here(tmp_path, numbered_rows(1000, 10), overwrite=True)
    segmentlog.alter_settings(tmp_path, "u", AT_ONCE)
    write_here(tmp_path, numbered_rows(0, 10), topic="u")
    write_here(tmp_path, numbered_rows(10, 10), topic="u", overwrite=True)
    write_here(tmp_path, numbered_rows(20, 10), topic="u")

    assert [*tmp_path.glob(f"t-0/{0:020d}.log")]
    assert not [*tmp_path.glob(f"u-0/{0:020d}.log")]
