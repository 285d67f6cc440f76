"""New directories, topics and partitions that are incomplete, changed or linked."""

import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import ONE, values, write
from soundness import assert_tidy

import segmentlog
from segmentlog.errors import (
    LogDirectoryError,
)
from segmentlog.format.names import HIGH_WATERMARK_CHECKPOINT
from segmentlog.log.checkpoint import read_offsets, write_offsets
from segmentlog.model import TopicPartition
from segmentlog.txn import topics
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob

pytestmark = pytest.mark.linux


def test_many_writers_begin_in_a_new_directory(tmp_path: Path) -> None:
    """One writer finds the directory empty, and the files of others stop no writer."""
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
    """Readers ignore links, so rows in such a directory would not be visible."""
    write(tmp_path / "logs", ONE)
    (tmp_path / "logs" / "t-0").rename(tmp_path / "elsewhere")
    (tmp_path / "logs" / "t-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LogDirectoryError, match="is a symbolic link"):
        write(tmp_path / "logs", ONE)


def test_a_topic_that_a_crash_left_half_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is completed, also for rows that name their topics."""
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
    """Rows that keep their partitions do not need the number of partitions."""
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


@pytest.mark.parametrize(("first", "second"), [(3, 1), (1, 3)])
def test_two_jobs_that_create_a_topic_differently(tmp_path: Path, first: int, second: int) -> None:
    """The later job has spread its rows over a wrong number of partitions."""
    table = ONE.append_column("topic", pa.array(["t"]))
    jobs = [
        WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), num_partitions=n))
        for n in (first, second)
    ]
    staged = []
    for job in jobs:
        stager = job.stager(0)
        stager.add(table.to_batches()[0])
        staged.append([stager.finish()])
    jobs[0].commit(staged[0])
    with pytest.raises(LogDirectoryError, match="run the job again"):
        jobs[1].commit(staged[1])
