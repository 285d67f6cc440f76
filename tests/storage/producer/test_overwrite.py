"""Overwriting: the records of a topic go when those of the job come, and offsets count on."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from crashing import Crash, crash_at
from soundness import assert_sound

import segmentlog
from segmentlog.commit import delete_records as replaced
from segmentlog.errors import OptionError, SyncFailedError
from segmentlog.files.checkpoint import read_offsets
from segmentlog.files.lock import DirectoryLock
from segmentlog.producer.config import ProducerConfig
from segmentlog.producer.job import WriteJob
from segmentlog.recovery.unfinished import recover
from segmentlog.topic_config import TopicConfig

CONFIG = ProducerConfig(TopicConfig(segment_bytes=2000), batch_size=300)


def rows(first: int, n_rows: int) -> pa.Table:
    """Values that count on, in turn in two partitions."""
    numbers = range(first, first + n_rows)
    return pa.table(
        {
            "value": pa.array([b"%d" % i for i in numbers], pa.binary()),
            "partition": pa.array([i % 2 for i in numbers], pa.int32()),
        }
    )


def write(directory: Path, *table: pa.Table, topic: str = "t", **how: object) -> None:
    """One job."""
    with segmentlog.open_writer(
        directory, topic, num_partitions=2, config=CONFIG, **how
    ) as writer:
        for each in table:
            writer.append(each)


def values(directory: Path, topic: str = "t") -> list[list[int]]:
    """What a reader sees, by partition."""
    opened = segmentlog.open_log_dir(directory)
    return [
        [int(value) for value in opened.log(topic, each).scan().read_all()["value"].to_pylist()]
        for each in (0, 1)
    ]


def dealt(first: int, n_rows: int) -> list[list[int]]:
    """What a job has written, by partition."""
    return [[i for i in range(first, first + n_rows) if i % 2 == part] for part in (0, 1)]


def test_the_log_start_moves_and_offsets_count_on(tmp_path: Path) -> None:
    """In all partitions of the topic, also in those that get nothing, and in no other topic."""
    write(tmp_path, rows(0, 500))
    write(tmp_path, rows(0, 100), topic="other")
    write(tmp_path, rows(1000, 100).slice(0, 1), delete_records=True)
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)

    assert [[1000], []] == values(tmp_path)
    assert (250, 251) == (log.log_start_offset, log.log_end_offset)
    starts = read_offsets(str(tmp_path), "log-start-offset-checkpoint")
    assert {("t", 0): 250, ("t", 1): 250} == starts
    assert dealt(0, 100) == values(tmp_path, "other")
    write(tmp_path, rows(1002, 4))
    assert [[1000, 1002, 1004], [1003, 1005]] == values(tmp_path)
    write(tmp_path, delete_records=True)
    assert [[], []] == values(tmp_path)
    assert_sound(tmp_path)


def test_the_files_go_with_a_later_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before a minute has gone by, so that whoever has begun to read reads on."""
    write(tmp_path, rows(0, 500))
    before = {path.name for path in (tmp_path / "t-0").iterdir()}
    reader = segmentlog.open_log_dir(tmp_path)
    old = [reader.log("t", each) for each in (0, 1)]
    assert 0 == old[0].log_start_offset
    write(tmp_path, rows(1000, 10), delete_records=True)

    assert 250 == old[0].scan().read_all().num_rows
    assert 250 == old[1].scan().read_all().num_rows
    write(tmp_path, rows(1010, 10))
    assert before <= {path.name for path in (tmp_path / "t-0").iterdir()}
    monkeypatch.setattr(replaced, "_DELAY_MS", -1000)
    write(tmp_path, rows(1020, 10))

    assert dealt(1000, 30) == values(tmp_path)
    assert [250] == [
        each.base_offset for each in segmentlog.open_log_dir(tmp_path).log("t", 0).segments
    ]
    assert not any(path.name < f"{250:020d}" for path in (tmp_path / "t-1").iterdir())
    assert "replaced" in (tmp_path / "segmentlog.state").read_text()
    write(tmp_path, rows(1030, 10))
    assert_sound(tmp_path)


def test_a_topic_that_was_made_anew_keeps_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its predecessor was to lose is no concern of its."""
    write(tmp_path, rows(0, 500))
    write(tmp_path, rows(1000, 10), delete_records=True)
    for path in tmp_path.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    names = ("log-start-offset-checkpoint", "replication-offset-checkpoint")
    for name in (*names, "recovery-point-offset-checkpoint"):
        (tmp_path / name).write_text("0\n0\n")
    write(tmp_path, rows(0, 500))
    monkeypatch.setattr(replaced, "_DELAY_MS", -1000)
    write(tmp_path, rows(500, 500))

    assert dealt(0, 1000) == values(tmp_path)
    assert_sound(tmp_path)


def test_a_crash_at_every_step_of_an_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see the old records or the new ones, in both partitions, and recovery keeps it."""
    monkeypatch.setattr(replaced, "_DELAY_MS", -1000)
    outcomes = []
    for number in range(1000):
        directory = tmp_path / str(number)
        write(directory, rows(0, 100), delete_records=bool(number % 2))
        write(directory, rows(100, 100), delete_records=bool(number % 2))
        before = dealt(100, 100) if number % 2 else dealt(0, 200)
        job = WriteJob.begin(str(directory), CONFIG, topic="t", deletes_records=True)
        stager = job.stager(0)
        stager.add(rows(1000, 50).to_batches()[0])
        extents = stager.close()
        is_done = False
        with monkeypatch.context() as patch:
            crash_at(patch, number)
            try:
                job.commit(extents)
                is_done = True
            except Crash:
                pass
        seen = values(directory)
        assert seen in (before, dealt(1000, 50)), number
        with DirectoryLock(str(directory)):
            recover(str(directory))
        assert seen == values(directory), number
        write(directory, rows(2000, 4))
        expected = [a + b for a, b in zip(seen, dealt(2000, 4), strict=True)]
        assert expected == values(directory), number
        job.abort()
        assert_sound(directory)
        outcomes.append(seen == before)
        if is_done:
            break
    assert min(sum(outcomes), len(outcomes) - sum(outcomes)) > 5


def test_a_topic_is_needed(tmp_path: Path) -> None:
    """Rows that name topics do not say whose records are to go."""
    with pytest.raises(OptionError, match="topic"):
        segmentlog.open_writer(tmp_path, delete_records=True)


def test_a_failed_sync_keeps_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is undone on a disk that fails; the next writer does it, and readers see through."""
    write(tmp_path, rows(0, 100))
    first = tmp_path / "t-0" / f"{0:020d}.log"
    before = first.read_bytes()
    job = WriteJob.begin(str(tmp_path), CONFIG, topic="t")
    stager = job.stager(0)
    stager.add(rows(100, 100).to_batches()[0])
    extents = stager.close()

    def failing(descriptor: int, path: str) -> None:
        raise SyncFailedError(path, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("segmentlog.files.sync_together.sync_file", failing)
        with pytest.raises(SyncFailedError, match=r"\.log.*nothing of this write is visible"):
            job.commit(extents)
    job.abort()
    assert (tmp_path / f"segmentlog.unfinished.{job.token}").is_dir()
    assert dealt(0, 100) == values(tmp_path)
    after = first.read_bytes()
    assert len(before) < len(after)  # nothing was cut back
    assert before == after[: len(before)]

    write(tmp_path, rows(200, 100))
    assert [a + b for a, b in zip(dealt(0, 100), dealt(200, 100), strict=True)] == values(tmp_path)
    assert_sound(tmp_path)
