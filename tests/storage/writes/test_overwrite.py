"""An overwrite removes a topic's records when the job's records come; offsets continue."""

import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
from crashing import Crash, crash_at, cut_loop
from plain_writes import dealt, numbered_rows, numbers, write
from soundness import assert_tidy

import segmentlog
from segmentlog import Producer
from segmentlog.errors import (
    LogChangedError,
    OptionError,
    OutOfOrderSequenceError,
    SyncFailedError,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import read_offsets
from segmentlog.model import LogSlice
from segmentlog.reads.scan import scan_slice
from segmentlog.store.durable import sync_file
from segmentlog.store.lock import DirectoryLock
from segmentlog.txn.guard import recover_commits
from segmentlog.txn.state import State
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob

AT_ONCE = {"file.delete.delay.ms": "0"}
CONFIG = ProducerConfig(TopicConfig(segment_bytes=2000), batch_size=300)

write_here = partial(write, num_partitions=2, config=CONFIG)


def test_the_log_start_moves_and_offsets_count_on(tmp_path: Path) -> None:
    """It moves in all partitions of the topic, also without new rows, and in no other topic."""
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


def values_of(slices: Iterable[LogSlice]) -> list[int]:
    """The numbers of the rows of some slices."""
    found = (batch["value"].to_pylist() for each in slices for batch in scan_slice(each))
    return [int(value) for values in found for value in values]


def test_the_files_go_with_a_later_job(tmp_path: Path) -> None:
    """Readers with a planned read find the files until the delay is over."""
    write_here(tmp_path, numbered_rows(0, 500))
    before = {path.name for path in (tmp_path / "t-0").glob(f"{0:020d}.*")}
    reader = segmentlog.open_log_dir(tmp_path)
    slices = [each for i in (0, 1) for each in reader.log("t", i).slices(0, 250)]
    late = segmentlog.open_log_dir(tmp_path)
    write_here(tmp_path, numbered_rows(1000, 10), overwrite=True)

    write_here(tmp_path, numbered_rows(1010, 10))
    assert [*range(0, 500, 2), *range(1, 500, 2)] == values_of(slices)
    with pytest.raises(LogChangedError, match=r"t-0: its records were deleted or replaced"):
        late.log("t", 0).scan().read_all()
    aside = {path.name for path in (tmp_path / "t-0").glob("*.deleted")}
    assert {f"{name}.deleted" for name in before} <= aside
    assert ["t"] == State.read(str(tmp_path)).aside
    segmentlog.alter_settings(tmp_path, None, AT_ONCE)
    write_here(tmp_path, numbered_rows(1020, 10))

    assert dealt((1000, 30)) == numbers(tmp_path)
    assert [250] == [
        each.base_offset for each in segmentlog.open_log_dir(tmp_path).log("t", 0).segments
    ]
    assert not [*tmp_path.rglob("*.deleted")]
    assert [] == State.read(str(tmp_path)).aside
    with pytest.raises(LogChangedError):
        values_of(slices)
    assert_tidy(tmp_path)


def test_the_files_go_with_the_overwrite_if_there_is_no_delay(tmp_path: Path) -> None:
    """The delay is that of the topic, and not that of other topics."""
    write_here(tmp_path, numbered_rows(0, 100))
    segmentlog.alter_settings(tmp_path, "t", AT_ONCE)
    write_here(tmp_path, numbered_rows(1000, 10), overwrite=True)

    assert not [*tmp_path.glob("t-*/*.deleted")]
    assert dealt((1000, 10)) == numbers(tmp_path)


def test_an_overwrite_forgets_no_producer(tmp_path: Path) -> None:
    """Earlier snapshots are removed, except one that has all producers."""

    def append(first: int, overwrite: bool = False) -> None:
        producer = None if overwrite else Producer(5, 0, {0: first, 1: first})
        with segmentlog.open_writer(
            tmp_path, "t", num_partitions=1, producer=producer, overwrite=overwrite
        ) as writer:
            writer.append(numbered_rows(first, 5, 1))

    append(0)
    append(5)
    append(100, overwrite=True)
    append(100, overwrite=True)
    with pytest.raises(OutOfOrderSequenceError):
        append(100)
    append(5)  # a repetition
    append(10)

    assert {0: [*range(100, 105), *range(10, 15)]} == numbers(tmp_path)
    assert_tidy(tmp_path)


def test_a_topic_that_was_made_again_keeps_its_records(tmp_path: Path) -> None:
    """The deleted topic was to lose records. The new topic of that name loses none."""
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


@cut_loop
def test_a_crash_at_every_step_of_an_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Both partitions have the old records or the new ones, before and after recovery."""
    outcomes = []
    for number in range(0, 1000, every):
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
    assert min(sum(outcomes), len(outcomes) - sum(outcomes)) * every > 5


def test_a_topic_is_needed(tmp_path: Path) -> None:
    """Rows that name their topics do not show which topics to overwrite."""
    with pytest.raises(OptionError, match="topic"):
        segmentlog.open_writer(tmp_path, overwrite=True)


def test_a_failed_sync_keeps_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is undone on a failing disk. The next writer undoes it, and reads continue."""
    write_here(tmp_path, numbered_rows(0, 100))
    first = tmp_path / "t-0" / f"{0:020d}.log"
    before = first.read_bytes()
    job = WriteJob.begin(WriteRequest(str(tmp_path), CONFIG, topic="t"))
    stager = job.stager(0)
    stager.add(numbered_rows(100, 100).to_batches()[0])
    extents = [stager.finish()]

    def failing(descriptor: int, path: str) -> None:
        if path.endswith(".log"):
            raise SyncFailedError(path, "Input/output error")
        sync_file(descriptor, path)

    with monkeypatch.context() as patch:
        patch.setattr("segmentlog.store.durable.sync_file", failing)
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
    """Otherwise a disk that is full of them would refuse every job."""
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
    """A job for another topic uses this delay, whatever delay the other topic has."""
    write_here(tmp_path, numbered_rows(0, 500))
    write_here(tmp_path, numbered_rows(1000, 10), overwrite=True)
    segmentlog.alter_settings(tmp_path, "u", AT_ONCE)
    write_here(tmp_path, numbered_rows(0, 10), topic="u")
    write_here(tmp_path, numbered_rows(10, 10), topic="u", overwrite=True)
    write_here(tmp_path, numbered_rows(20, 10), topic="u")

    assert [*tmp_path.glob(f"t-0/{0:020d}.log.deleted")]
    assert not [*tmp_path.glob("u-0/*.deleted")]
