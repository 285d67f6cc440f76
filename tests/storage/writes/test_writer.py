"""Appends from plain Python: which rows are written, where, and when they become visible."""

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crashing import Crash, crash_at, cut_loop
from plain_writes import dealt, numbered_rows, numbers, write
from soundness import assert_tidy

import segmentlog
from segmentlog.errors import (
    LogDirectoryError,
    LogLockedError,
    OptionError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.model import Codec
from segmentlog.store.lock import DirectoryLock
from segmentlog.txn import change
from segmentlog.txn.change import HeldDirectory
from segmentlog.txn.guard import Guard, list_guards, recover_commits
from segmentlog.txn.state import State
from segmentlog.writes import commit
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob
from segmentlog.writes.staged_files import JobExtents, TaskExtents
from segmentlog.writes.stager import RowStager


def write_job(directory: Path, first: int, n_rows: int, **settings: Any) -> None:
    """Write numbers from `first` on, with these settings."""
    config = ProducerConfig(**settings)
    write(directory, numbered_rows(first, n_rows), num_partitions=2, config=config)


@pytest.mark.parametrize("codec", Codec)
def test_rows_that_were_written_are_read(tmp_path: Path, codec: Codec) -> None:
    """Rows, offsets and keys of several jobs are read."""
    write_job(tmp_path, 0, 1000, codec=codec, batch_size=2000)
    write_job(tmp_path, 1000, 10, codec=codec)
    log = segmentlog.open_log_dir(tmp_path).log("t", 1)

    assert dealt((0, 1000), (1000, 10)) == numbers(tmp_path)
    assert [*range(505)] == log.scan().read_all()["offset"].to_pylist()
    assert (505, 505) == (log.log_end_offset, log.high_watermark)
    assert_tidy(tmp_path)


def test_segments_roll_and_indexes_follow(tmp_path: Path) -> None:
    """Segments roll at their size, within jobs and between them. The indexes equal a broker's."""
    config = TopicConfig(segment_bytes=5_000, index_interval_bytes=500)
    for job in range(5):
        write_job(tmp_path, 1000 * job, 1000, topic_config=config, batch_size=400)
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)

    assert dealt((0, 5000)) == numbers(tmp_path)
    assert len(log.segments) > 3
    assert all(segment.size <= 5_000 for segment in log.segments)
    assert_tidy(tmp_path)


def test_a_block_that_fails_writes_nothing(tmp_path: Path) -> None:
    """The block leaves no files."""
    write_job(tmp_path, 0, 10)
    bad = numbered_rows(20, 10).rename_columns(["key", "headers", "partition"])
    with pytest.raises(OptionError, match="headers"):
        write(tmp_path, numbered_rows(10, 10), bad)

    assert dealt((0, 10)) == numbers(tmp_path)
    assert_tidy(tmp_path)


@pytest.mark.parametrize(
    "topic", ["../x", "a/b", "x" * 250, "", ".", "..", "a b", "__consumer_offsets", "ä"]
)
def test_a_hostile_topic_name_is_refused(tmp_path: Path, topic: str) -> None:
    """The name is refused before any file is made."""
    with pytest.raises(OptionError, match="topic"):
        segmentlog.open_writer(tmp_path / "logs", topic)
    assert not (tmp_path / "logs").exists()


def test_a_brokers_directory_gets_no_new_topics(tmp_path: Path) -> None:
    """The broker would put aside a topic that it does not know."""
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    with pytest.raises(UnknownTopicOrPartitionError, match="auto_create_topics=True"):
        segmentlog.open_writer(tmp_path, "t")
    assert {"meta.properties", ".lock"} == {path.name for path in tmp_path.iterdir()}


def test_a_partition_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    """The lost partition had records. A partition that never had records is made again."""
    write_job(tmp_path, 0, 1)
    shutil.rmtree(tmp_path / "t-1")
    write_job(tmp_path, 1, 9)
    assert dealt((0, 10)) == numbers(tmp_path)
    shutil.rmtree(tmp_path / "t-0")
    with pytest.raises(UnknownTopicOrPartitionError, match=r"partition 0 of .* is 5, and"):
        write_job(tmp_path, 10, 2)
    assert not (tmp_path / "t-0").exists()


def test_a_locked_directory_is_refused(tmp_path: Path) -> None:
    """A second writer waits, and its error names the lock."""
    write_job(tmp_path, 0, 2)
    with DirectoryLock(str(tmp_path)), pytest.raises(LogLockedError, match="is in use"):
        segmentlog.open_writer(tmp_path, "t", lock_timeout_seconds=0.2)
    write_job(tmp_path, 2, 2)
    assert dealt((0, 4)) == numbers(tmp_path)


@cut_loop
def test_a_crash_at_every_step_leaves_the_job_whole_or_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Readers see all or nothing of it, before and after recovery. The next writer continues."""
    before, after = dealt((0, 100)), dealt((0, 100), (100, 50))
    seen = {"before": 0, "after": 0, "guarded": 0}
    settings: dict[str, Any] = {"batch_size": 300, "topic_config": TopicConfig(segment_bytes=2000)}
    for number in range(0, 1000, every):
        directory = tmp_path / str(number)
        write_job(directory, 0, 100, **settings)
        job = WriteJob.begin(WriteRequest(str(directory), ProducerConfig(**settings), topic="t"))
        stager = job.stager(0)
        for batch in numbered_rows(100, 50).to_batches():
            stager.add(batch)
        extents = [stager.finish()]
        with monkeypatch.context() as patch:
            made = crash_at(patch, number)
            try:
                job.commit(extents)
                is_done = True
            except Crash:
                is_done = False

        visible = numbers(directory)
        assert visible in (before, after), (number, made)
        assert numbers(directory, read_up_to=segmentlog.ReadUpTo.LOG_END) == visible, number
        seen["after" if visible == after else "before"] += 1
        seen["guarded"] += bool(list_guards(str(directory)))
        with DirectoryLock(str(directory)):
            recover_commits(str(directory))
        assert visible == numbers(directory), (number, made)
        jobs = [(0, 100), (100, 50)] if visible == after else [(0, 100)]
        write_job(directory, 200, 20, **settings)
        assert dealt(*jobs, (200, 20)) == numbers(directory), number
        if is_done:
            break

    assert min(seen.values()) * every > 3, seen
    assert "rename" in made


def test_two_writers_and_a_reader_never_meet_half_a_job(tmp_path: Path) -> None:
    """Jobs of two processes follow each other, and readers see only whole jobs."""
    code = (
        "import sys, segmentlog, pyarrow as pa\n"
        "for job in range(20):\n"
        "    number = int(sys.argv[2]) + job\n"
        "    rows = {'value': pa.array([b'%d' % number] * 10, pa.binary()),\n"
        "            'partition': pa.array([0, 1] * 5, pa.int32())}\n"
        "    with segmentlog.open_writer(sys.argv[1], 't', num_partitions=2) as writer:\n"
        "        writer.append(pa.table(rows))\n"
    )
    write_job(tmp_path, 1000, 2)
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), first])
        for first in ("0", "100")
    ]
    lengths = set()
    while any(writer.poll() is None for writer in writers):
        seen = numbers(tmp_path)
        assert Counter(seen[0][1:]) == Counter(seen[1][1:])
        assert {5} >= set(Counter(seen[0][1:]).values())
        lengths.add(len(seen[0]))

    assert [0, 0] == [writer.wait() for writer in writers]
    assert len(lengths) > 2, "the reader met jobs on their way"
    assert {*range(20), *range(100, 120)} == set(numbers(tmp_path)[0][1:])
    assert_tidy(tmp_path)


def staged(directory: Path, first: int, **settings: Any) -> tuple[WriteJob, list[TaskExtents]]:
    """A job of twenty rows before its commit."""
    job = WriteJob.begin(WriteRequest(str(directory), ProducerConfig(**settings), topic="t"))
    stager = job.stager(0)
    stager.add(numbered_rows(first, 20).to_batches()[0])
    return job, [stager.finish()]


@pytest.mark.parametrize("flush", [True, False])
def test_a_log_that_is_shorter_than_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, flush: bool
) -> None:
    """If everything had been synced, the log is refused.

    Otherwise a power cut explains the length.
    """
    write_job(tmp_path, 0, 20, flush=flush, batch_size=200)
    job, extents = staged(tmp_path, 20, flush=flush)
    with monkeypatch.context() as patch:
        # The guard stands, nothing is appended, and nothing can be undone.
        patch.setattr(commit, "_append", lambda *_, **__: crash_at(patch, 0) and None)
        with pytest.raises(Crash):
            job.commit(extents)
    (guard,) = list_guards(str(tmp_path))
    assert guard.intent().was_clean == flush
    log = tmp_path / "t-0" / f"{0:020d}.log"
    os.truncate(log, guard.intent().partitions[0].sizes.log - 10)

    if flush:
        for _ in range(2):
            with pytest.raises(LogDirectoryError, match=r"before it began.*segmentlog recover"):
                write_job(tmp_path, 40, 20)
        done = subprocess.run(
            [sys.executable, "-m", "segmentlog", "recover", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (3, "") == (done.returncode, done.stderr), "acknowledged records are gone"
        assert f"undid the commit of {guard.path}" in done.stdout
        assert "are cut off" in done.stdout
        write_job(tmp_path, 40, 20)
        assert numbers(tmp_path)[0][-10:] == dealt((40, 20))[0]
        job.abort()
        assert_tidy(tmp_path)
    else:
        write_job(tmp_path, 40, 20)
        assert dealt((0, 20), (40, 20))[1] == numbers(tmp_path)[1]
        kept = numbers(tmp_path)[0]
        assert dealt((40, 20))[0] == kept[-10:]
        assert dealt((0, 20))[0][: len(kept) - 10] == kept[:-10]


def test_files_of_a_dead_driver_are_swept_after_a_week(tmp_path: Path) -> None:
    """A job removes the files a week after another job has found them, if no file is younger."""
    write_job(tmp_path, 0, 2)
    week = 7 * 24 * 3600
    for name, age in {"a.job": week + 9, "a.0.x.stage": 9, "b.job": week + 9}.items():
        path = tmp_path / f"segmentlog.{name}"
        path.write_bytes(b"noticed")
        os.utime(path, (time.time() - age,) * 2)
    write_job(tmp_path, 2, 2)

    left = {path.name for path in tmp_path.glob("segmentlog.*")}
    assert {"segmentlog.state", "segmentlog.a.job", "segmentlog.a.0.x.stage"} == left


def test_files_of_a_task_that_was_killed_after_its_job_are_removed_by_the_next(
    tmp_path: Path,
) -> None:
    """The job ended before the task was killed. Otherwise the files would stay for a week."""
    write_job(tmp_path, 0, 2)
    ended = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), topic="t"))
    late = ended.stager(1)  # it has seen the mark
    ended.abort()
    late.add(numbered_rows(0, 20, 1).to_batches()[0])
    late.finish()  # and is killed before it looks for the mark again
    assert 1 == len(list(tmp_path.glob("*.stage")))
    running, extents = staged(tmp_path, 40)

    assert {running.token} == {path.name.split(".")[1] for path in tmp_path.glob("*.stage")}
    assert running.commit(extents).is_new
    assert ["segmentlog.state"] == [path.name for path in tmp_path.glob("segmentlog.*")]


def test_a_writer_that_was_taken_over_undoes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer was slow and lost its lock. The commit of the other writer stays."""
    write_job(tmp_path, 0, 20)
    slow, slow_extents = staged(tmp_path, 20)
    other, other_extents = staged(tmp_path, 40)
    decide = change.decide

    def overtaken(directory: str, guard: Guard, state: State) -> None:
        monkeypatch.setattr(change, "decide", decide)
        held = HeldDirectory(directory)
        held.end_changes()
        extents = JobExtents(other_extents)
        commit.commit_staged(held, other.token, extents, commit.CommitSettings())
        decide(directory, guard, state)

    monkeypatch.setattr(change, "decide", overtaken)
    with pytest.raises(StorageError, match=r"segmentlog\.unfinished\.\w+/state: No such file"):
        slow.commit(slow_extents)
    slow.abort()
    other.abort()

    assert dealt((0, 20), (40, 20)) == numbers(tmp_path)
    assert_tidy(tmp_path)


def test_a_writer_flushes_rolls_and_closes(tmp_path: Path) -> None:
    """Flushed rows are visible, and stay when later rows are given up."""
    writer = segmentlog.open_writer(tmp_path, "t", num_partitions=2)
    writer.append(numbered_rows(0, 20))
    assert not (tmp_path / "t-0").exists()
    writer.flush()
    assert dealt((0, 20)) == numbers(tmp_path)
    writer.append(numbered_rows(20, 20))
    writer.roll()
    writer.roll()
    writer.append(numbered_rows(40, 20))
    writer.close()
    writer.close()
    assert dealt((0, 60)) == numbers(tmp_path)
    segments = segmentlog.open_log_dir(tmp_path).log("t", 1).segments
    assert [0, 20] == [segment.base_offset for segment in segments]
    with pytest.raises(OptionError, match="closed"):
        writer.append(numbered_rows(60, 20))

    def fail_after_a_flush() -> None:
        with segmentlog.open_writer(tmp_path, "t") as writer:
            writer.append(numbered_rows(60, 20))
            writer.flush()
            writer.append(numbered_rows(80, 20))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_a_flush()
    assert dealt((0, 80)) == numbers(tmp_path)
    assert_tidy(tmp_path)


def test_one_transaction_number_is_one_commit(tmp_path: Path) -> None:
    """A second flush under the number would count as already done."""
    with segmentlog.open_writer(
        tmp_path, "t", num_partitions=2, txn_app_id="job", txn_version=1
    ) as writer:
        writer.append(numbered_rows(0, 20))
        writer.flush()
        with pytest.raises(OptionError, match="one version is one commit"):
            writer.append(numbered_rows(20, 20))
    assert dealt((0, 20)) == numbers(tmp_path)


class OnlyAnArray:
    """Rows that have only the interface of one batch."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return pa.record_batch({"key": ["a", None], "value": ["ä", "2"]}).__arrow_c_array__()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: pa.table({"key": ["a", None], "value": ["ä", "2"]}), id="pyarrow"),
        pytest.param(OnlyAnArray, id="array"),
        pytest.param(
            lambda: pa.table({"key": ["a", None], "value": ["ä", "2"]}).to_reader(), id="reader"
        ),
        pytest.param(
            lambda: pytest.importorskip("polars").DataFrame(
                {"topic": ["t", "t"], "key": ["a", None], "value": ["ä", "2"]}
            ),
            id="polars",
        ),
        pytest.param(
            lambda: pytest.importorskip("pandas").DataFrame(
                {"key": ["a", None], "value": ["ä", "2"]}
            ),
            id="pandas",
        ),
        pytest.param(
            lambda: pytest.importorskip("duckdb").sql(
                "select * from (values ('a', 'ä'), (null, '2')) t(key, value)"
            ),
            id="duckdb",
        ),
    ],
)
def test_rows_come_from_any_library_with_the_capsule_interface(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    """Strings are written in UTF-8, and read as strings or as bytes."""
    rows = make()
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(rows)
    read = segmentlog.read(tmp_path, "t", columns=["key", "value"], strings=True)

    assert [("a", "ä"), (None, "2")] == list(zip(*read.to_pydict().values(), strict=True))
    assert ["ä".encode(), b"2"] == segmentlog.read(tmp_path)["value"].to_pylist()


def test_topics_of_a_polars_frame_choose_the_log(tmp_path: Path) -> None:
    """The column of topics may have string views, as in Polars."""
    polars = pytest.importorskip("polars")
    with segmentlog.open_writer(tmp_path) as writer:
        headers = [[{"key": "h", "value": b"x"}], None, []]
        columns = {"topic": ["t", "u", "t"], "value": [b"1", b"2", b"3"], "headers": headers}
        writer.append(polars.DataFrame(columns))

    assert [b"1", b"3"] == segmentlog.read(tmp_path, "t")["value"].to_pylist()
    assert [b"2"] == segmentlog.read(tmp_path, "u")["value"].to_pylist()


def test_threads_of_one_writer_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of a thread is lost or torn, and each flush commits the rows of all of them."""
    inside, most, real = 0, 0, RowStager.add

    def add(stager: RowStager, rows: pa.RecordBatch) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.001)
        real(stager, rows)
        inside -= 1

    monkeypatch.setattr(RowStager, "add", add)
    with (
        segmentlog.open_writer(tmp_path, "t", num_partitions=2) as writer,
        ThreadPoolExecutor(4) as threads,
    ):

        def append(first: int) -> None:
            writer.append(numbered_rows(first, 10))
            if first % 50 == 0:
                writer.flush()

        list(threads.map(append, range(0, 400, 10)))

    found = numbers(tmp_path)
    assert [*range(400)] == sorted([*found[0], *found[1]])
    assert 1 == most


def test_a_failed_first_write_leaves_an_earlier_deletion_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the topic that it has made goes; a ``-delete`` directory may be the last copy."""
    deleted = tmp_path / f"t-0.{'0' * 32}-delete"
    deleted.mkdir(parents=True)
    (deleted / f"{0:020d}.log").write_bytes(b"records")

    def fail(*_: object) -> None:
        raise OSError("the disk fails")

    monkeypatch.setattr("segmentlog.writes.commit.commit_staged", fail)
    with (
        pytest.raises(OSError, match="the disk fails"),
        segmentlog.open_writer(tmp_path, "t") as writer,
    ):
        writer.append(pa.table({"value": [b"a"]}))

    assert not (tmp_path / "t-0").exists()
    assert [f"{0:020d}.log"] == [each.name for each in deleted.iterdir()]
