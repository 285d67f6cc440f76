"""Defects that writes have had, each as a job that shows it."""

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from descriptors import descriptors_below
from plain_writes import ONE, values, write
from soundness import assert_tidy

import segmentlog
from segmentlog.append import append
from segmentlog.append import commit_staged as commit
from segmentlog.commit import topics
from segmentlog.commit.guard import Intent, list_guards
from segmentlog.disk.lock import DirectoryLock
from segmentlog.disk.sync_together import MOST_OPEN
from segmentlog.errors import (
    ColumnError,
    InvalidRecordError,
    LogDirectoryError,
    LogLockedError,
    OffsetsOutOfOrderError,
    OptionError,
)
from segmentlog.kernels import layout
from segmentlog.layout.checkpoint import read_offsets, write_offsets
from segmentlog.model import Codec, TopicPartition
from segmentlog.names import HIGH_WATERMARK_CHECKPOINT
from segmentlog.records import encoder
from segmentlog.records.source import record_source
from segmentlog.stage.config import ProducerConfig
from segmentlog.topic_config import TopicConfig
from segmentlog.writes.job import WriteJob
from segmentlog.writes.request import WriteRequest

pytestmark = pytest.mark.linux


@pytest.mark.parametrize("between", [100, 1_100_000])
@pytest.mark.parametrize("keeps_offsets", [False, True])
def test_little_or_very_much_of_a_partition_between_much_of_it(
    tmp_path: Path, between: int, keeps_offsets: bool
) -> None:
    """Either goes to the shared file; behind it the partition's own one is not taken up again."""
    counts = np.arange(3)
    sizes = [2_000, between, 300_000]

    def rows() -> list[pa.Table]:
        return [
            pa.table(
                {
                    "value": [b"%d" % count * (size // 10)] * 10,
                    "partition": pa.array([0] * 10, pa.int32()),
                    "offset": range(10 * count, 10 * count + 10),
                }
            )
            for count, size in zip(counts, sizes, strict=True)
        ]

    config = ProducerConfig(
        topic_config=TopicConfig(segment_bytes=1 << 20),
        batch_size=16_384,
        buffer_memory=1,
        use_offsets=keeps_offsets,
    )
    write(tmp_path, *rows(), config=config)
    write(tmp_path, ONE)

    written = [value for table in rows() for value in table.column("value").to_pylist()]
    assert [*written, b"v"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_a_topic_with_the_name_of_a_guard(tmp_path: Path) -> None:
    """Its partitions are no guards, which the next writer would remove."""
    topic = "segmentlog.unfinished.0123456789abcdef"
    for _ in range(2):
        with segmentlog.open_writer(tmp_path, topic) as writer:
            writer.append(ONE)
    assert [] == list_guards(str(tmp_path))
    assert [b"v", b"v"] == values(tmp_path, topic)


@pytest.mark.parametrize("flush", [True, False])
def test_a_job_that_rolls_often_has_few_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, flush: bool
) -> None:
    """Three for a segment, also when it cannot begin the next one, and those to be synced."""

    def rows(first: int) -> pa.Table:
        weeks = [number * 8 * 24 * 3600 * 1000 for number in range(first, first + 50)]
        return pa.table({"value": [b"v"] * 50, "timestamp": pa.array(weeks, pa.timestamp("ms"))})

    config = ProducerConfig(use_timestamps=True, flush=flush, batch_size=0)
    most, create = [0], append.create_file

    def counted(path: str) -> int:
        most[0] = max(most[0], descriptors_below(tmp_path))
        return create(path)

    monkeypatch.setattr(append, "create_file", counted)
    write(tmp_path, rows(0), config=config)
    assert len(segmentlog.open_log_dir(tmp_path).log("t", 0).segments) > 20
    assert most[0] <= 6 + (MOST_OPEN if flush else 0)

    def fails(path: str) -> int:
        if path.endswith(".timeindex"):
            raise OSError(24, "Too many open files", path)
        return create(path)

    monkeypatch.setattr(append, "create_file", fails)
    with pytest.raises(OSError, match="Too many open files"):
        write(tmp_path, rows(50), config=config)
    assert 0 == descriptors_below(tmp_path)
    assert [b"v"] * 50 == values(tmp_path)
    assert_tidy(tmp_path)


def test_a_log_has_no_offset_behind_javas_largest_long(tmp_path: Path) -> None:
    """Nor is there an end of it that a checkpoint could not say."""
    last = pa.table({"value": [b"v"], "offset": [2**63 - 2], "partition": [0]})
    write(tmp_path, last, config=ProducerConfig(use_offsets=True))
    with pytest.raises(OffsetsOutOfOrderError):
        write(tmp_path, ONE)
    assert [b"v"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_no_batch_inflates_to_what_readers_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small it becomes; here with a smaller bound."""
    monkeypatch.setattr(encoder, "_LARGEST_INFLATED", layout.HEADER_BYTES + 1000)
    source = record_source(ONE.to_batches()[0], np.zeros(1, np.int64))
    big = pa.RecordBatch.from_pydict({"value": [b"v" * 300] * 9 + [bytes(1000)]})
    encode = encoder.RecordEncoder(Codec.ZSTD, batch_size=1 << 20).encode
    where = TopicPartition("t", 0)

    assert [1] == encode(where, source, np.arange(1)).records_counts.tolist()
    source = record_source(big, np.zeros(10, np.int64))
    assert [3, 3, 3] == encode(where, source, np.arange(9)).records_counts.tolist()
    with pytest.raises(InvalidRecordError, match="without a codec"):
        encode(where, source, np.arange(10))


@pytest.mark.parametrize("column", ["value", "headers"])
def test_views_that_lead_outside_their_buffers_are_refused(column: str) -> None:
    """Arrow's cast would read there."""
    view = np.array([100, 0, 0, 1 << 30], np.int32).tobytes()
    buffers = [None, pa.py_buffer(view), pa.py_buffer(b"x" * 100)]
    array = pa.Array.from_buffers(pa.binary_view(), 1, buffers)
    if column == "headers":
        pairs = pa.StructArray.from_arrays([array, array], ["key", "value"])
        array = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pairs)
    batch = pa.RecordBatch.from_arrays([array], [column])
    with pytest.raises((pa.ArrowInvalid, pa.ArrowIndexError)):
        record_source(batch, np.zeros(1, np.int64))


def test_a_job_is_committed_once(tmp_path: Path) -> None:
    """Its token says that it is decided, and so would say it of the second commit."""
    job = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), topic="t"))
    first, second = job.stager(0), job.stager(1)
    first.add(ONE.to_batches()[0])
    second.add(ONE.to_batches()[0])
    job.commit(first.close())
    with pytest.raises(LogDirectoryError, match="the job has ended"):
        job.commit(second.close())
    assert [b"v"] == values(tmp_path)


def test_a_topic_that_was_deleted_behind_an_unfinished_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Does not keep others from being written to."""
    write(tmp_path, ONE)
    with segmentlog.open_writer(tmp_path, "other") as writer:
        writer.append(ONE)
    job = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), topic="t"))
    stager = job.stager(0)
    stager.add(ONE.to_batches()[0])
    with monkeypatch.context() as patch:
        patch.setattr(commit._Commit, "append", lambda *_: None)
        patch.setattr(commit._Commit, "decide", _die)
        patch.setattr(commit, "give_up", lambda *_: None)
        with pytest.raises(ZeroDivisionError):
            job.commit(stager.close())
    assert list_guards(str(tmp_path))
    for path in (tmp_path / "t-0").iterdir():
        path.unlink()
    (tmp_path / "t-0").rmdir()

    with segmentlog.open_writer(tmp_path, "other") as writer:
        writer.append(ONE)
    assert [] == list_guards(str(tmp_path))
    assert [b"v", b"v"] == values(tmp_path, "other")


def _die(*_: Any) -> None:
    raise ZeroDivisionError


def test_a_lock_ends_with_its_holder_and_not_with_a_child_of_it(tmp_path: Path) -> None:
    """A process that was forked meanwhile has the same descriptor."""
    parent, child = os.pipe()
    with DirectoryLock(str(tmp_path)):
        process = os.fork()
        if not process:
            os.close(child)
            os.read(parent, 1)
            os._exit(0)
    try:
        with DirectoryLock(str(tmp_path)):
            pass
    finally:
        os.close(child)
        os.waitpid(process, 0)
        os.close(parent)


def test_many_writers_begin_in_a_new_directory(tmp_path: Path) -> None:
    """One of them finds it empty, and none stumbles over the other's files."""
    for number in range(20):
        errors: list[BaseException] = []

        def begin(path: Path = tmp_path / str(number), to: list = errors) -> None:
            try:
                write(path, ONE)
            except BaseException as error:  # noqa: BLE001
                to.append(error)

        threads = [threading.Thread(target=begin) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [] == errors
        assert [b"v", b"v"] == values(tmp_path / str(number))


def test_the_directory_of_a_partition_is_no_link(tmp_path: Path) -> None:
    """Readers leave it out, so rows behind it would not be seen."""
    write(tmp_path / "logs", ONE)
    (tmp_path / "logs" / "t-0").rename(tmp_path / "elsewhere")
    (tmp_path / "logs" / "t-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LogDirectoryError, match="is a symbolic link"):
        write(tmp_path / "logs", ONE)


def test_a_topic_that_a_crash_left_half_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is completed for rows that name their topics, too."""
    table = ONE.append_column("topic", pa.array(["t"]))
    made, create = [], topics._create

    def crashes(path: str, topic_id: str) -> None:
        if made:
            raise ZeroDivisionError
        made.append(path)
        create(path, topic_id)

    def append() -> None:
        with segmentlog.open_writer(tmp_path, num_partitions=3) as writer:
            writer.append(table)

    with monkeypatch.context() as patch:
        patch.setattr(topics, "_create", crashes)
        with pytest.raises(ZeroDivisionError):
            append()
    assert [str(tmp_path / "t-2")] == made
    append()
    found = [values(tmp_path, "t", number) for number in range(3)]
    assert [b"v"] == [value for each in found for value in each]


def test_part_of_a_topic_is_restored_by_its_numbers(tmp_path: Path) -> None:
    """The number of partitions does not matter to rows that keep theirs."""
    write(tmp_path, ONE, num_partitions=3)
    shutil.rmtree(tmp_path / "t-1")
    offsets = read_offsets(str(tmp_path), HIGH_WATERMARK_CHECKPOINT)
    del offsets[TopicPartition("t", 1)]
    write_offsets(str(tmp_path), HIGH_WATERMARK_CHECKPOINT, offsets)
    config = ProducerConfig(use_offsets=True)

    rows = pa.table({"value": [b"w"], "partition": [2], "offset": [7]})
    write(tmp_path, rows, config=config)
    assert [b"w"] == values(tmp_path, "t", 2)
    rows = pa.table({"value": [b"w"], "partition": [1], "offset": [7]})
    with pytest.raises(LogDirectoryError, match="t-1"):
        write(tmp_path, rows, config=config)
    assert_tidy(tmp_path)


def test_a_writer_that_was_idle_for_weeks(tmp_path: Path) -> None:
    """Another job has swept its mark; there was nothing in it, and it goes on."""
    with segmentlog.open_writer(tmp_path, "t") as writer:
        (mark,) = tmp_path.glob("*.job")
        for _ in range(2):
            os.utime(mark, (time.time() - 8 * 24 * 3600,) * 2)
            write(tmp_path, ONE)
        assert not mark.exists()
        writer.append(ONE)
    assert [b"v"] * 3 == values(tmp_path)


def test_milliseconds_of_any_unit(tmp_path: Path) -> None:
    """Also those that are too many to be microseconds; seconds may be too many themselves."""
    config = ProducerConfig(use_timestamps=True)
    for unit, count in (("s", 5), ("ms", 5_999), ("us", 5_999_999), ("ns", 5_999_999_999)):
        times = pa.array([count, None], pa.timestamp(unit))
        table = pa.table({"value": [unit.encode()] * 2, "timestamp": times})
        write(tmp_path / unit, table, config=config)
        (batch,) = segmentlog.open_log_dir(tmp_path / unit).log("t", 0).scan()
        first, second = batch.column("timestamp").cast(pa.int64()).to_pylist()
        assert (5000 if unit == "s" else 5999) * 1000 == first
        assert second > 10**15
    for count in (2**62, -(2**62)):
        times = pa.array([0, count], pa.timestamp("s"))
        table = pa.table({"value": [b"a", b"b"], "timestamp": times})
        with pytest.raises(InvalidRecordError, match="64-bit milliseconds") as caught:
            write(tmp_path / "large", table, config=config)
        assert caught.value.row == 1


@pytest.mark.parametrize("has_topics", [False, True])
def test_a_row_is_named_as_the_task_has_counted_it(tmp_path: Path, has_topics: bool) -> None:
    """Whichever rows are written together."""
    first = pa.table({"value": [b"a"] * 10, "topic": ["t", "u"] * 5, "partition": [0] * 10})
    names = [0, 0, 0, 7, 0, 0]
    second = pa.table({"value": [b"b"] * 6, "topic": ["u", "t"] * 3, "partition": names})
    config = ProducerConfig(buffer_memory=1)
    writer = segmentlog.open_writer(tmp_path, None if has_topics else "t", config=config)
    writer.append(first)
    with pytest.raises(InvalidRecordError, match="row 13 of the task cannot") as caught:
        writer.append(second)
    writer.abort()
    assert (13, "t", 7) == (caught.value.row, caught.value.topic, caught.value.partition)


def test_many_topics_in_one_column(tmp_path: Path) -> None:
    """Rows of each keep their order, and are not looked for among all of them."""
    names = [f"t{n % 7}" for n in range(100)]
    table = pa.table({"value": [b"%d" % n for n in range(100)], "topic": names})
    with segmentlog.open_writer(tmp_path) as writer:
        writer.append(table)
    for number in range(7):
        expected = [b"%d" % n for n in range(number, 100, 7)]
        assert expected == values(tmp_path, f"t{number}")


def test_columns_of_one_name(tmp_path: Path) -> None:
    """Nobody can say which is meant."""
    table = pa.Table.from_arrays([pa.array([b"a"]), pa.array([b"b"])], ["value", "value"])
    with pytest.raises(ColumnError, match="there more than once"):
        write(tmp_path, table)


@pytest.mark.parametrize("name", ["batch_size", "buffer_memory", "max_request_size"])
@pytest.mark.parametrize("size", [-1, 2**63])
def test_sizes_that_cannot_be(name: str, size: int) -> None:
    """Refused where they are given."""
    with pytest.raises(OptionError, match=f"option '{name}' is '{size}'"):
        ProducerConfig(**cast("Any", {name: size}))


@pytest.mark.parametrize(("first", "second"), [(3, 1), (1, 3)])
def test_two_jobs_that_create_a_topic_differently(tmp_path: Path, first: int, second: int) -> None:
    """The later one has spread its rows over a number that is not the topic's."""
    table = ONE.append_column("topic", pa.array(["t"]))
    jobs = [WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), num_partitions=n))
            for n in (first, second)]  # fmt: skip
    staged = []
    for job in jobs:
        stager = job.stager(0)
        stager.add(table.to_batches()[0])
        staged.append(stager.close())
    jobs[0].commit(staged[0])
    with pytest.raises(LogDirectoryError, match="run the job again"):
        jobs[1].commit(staged[1])


@pytest.mark.parametrize("other", ["done", "unsynced", "about to decide"])
def test_a_writer_that_lost_its_lock_withdraws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Between its look at the logs and its guard; what the other has committed stays."""
    write(tmp_path, ONE)
    late = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), topic="t"))
    stager = late.stager(0)
    stager.add(pa.RecordBatch.from_pydict({"value": [b"late"] * 5}))
    extents = stager.close()
    stand, decide = commit._Commit.stand, commit._Commit.decide
    refused = []

    def stands_late(self: commit._Commit, intent: Any) -> None:
        with pytest.raises(LogLockedError):
            stand(self, intent)
        refused.append(self)

    def decides_last(self: commit._Commit, state: Any) -> None:
        stands_late(*held_up)
        decide(self, state)

    held_up: list = []

    def is_held_up(self: commit._Commit, intent: Any) -> None:
        held_up[:] = [self, intent]
        with monkeypatch.context() as patch:
            patch.setattr(commit._Commit, "stand", stand)
            if other == "about to decide":
                patch.setattr(commit._Commit, "decide", decides_last)
            patch.setattr(DirectoryLock, "__enter__", lambda self: self)
            patch.setattr(DirectoryLock, "__exit__", lambda *_: None)
            config = ProducerConfig(flush=other != "unsynced")
            write(tmp_path, pa.table({"value": [b"other"]}), config=config)
        if not refused:
            stands_late(self, intent)
        raise LogLockedError(self.directory, 0, 0.0)

    monkeypatch.setattr(commit._Commit, "stand", is_held_up)
    with pytest.raises(LogLockedError):
        late.commit(extents)
    late.abort()
    assert 1 == len(refused)
    assert [b"v", b"other"] == values(tmp_path)
    assert_tidy(tmp_path)
    assert (other != "unsynced") == (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_stale_guard_undoes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer had lost the lock and died behind its guard, before it looked again."""
    write(tmp_path, ONE)
    late = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), topic="t"))
    stager = late.stager(0)
    stager.add(pa.RecordBatch.from_pydict({"value": [b"late"] * 5}))
    extents = stager.close()
    intents = []

    def remembered(self: commit._Commit, intent: Intent) -> None:
        intents.append((self.guard, intent))
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(commit._Commit, "stand", remembered)
        with pytest.raises(ZeroDivisionError):
            late.commit(extents)
    write(tmp_path, pa.table({"value": [b"other"]}))
    guard, intent = intents[0]
    Path(guard.path).mkdir()
    Path(guard.intent_path).write_bytes(intent.encode())

    assert [b"v", b"other"] == values(tmp_path)
    write(tmp_path, ONE)
    late.abort()
    assert [b"v", b"other", b"v"] == values(tmp_path)
    assert_tidy(tmp_path)
