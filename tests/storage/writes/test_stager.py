"""Staged files of a task: their number, the open ones, and damage to them."""

import errno
import os
import re
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from descriptors import descriptors, descriptors_below
from soundness import assert_tidy

import segmentlog
from segmentlog.errors import StagedFileError, SyncFailedError
from segmentlog.format.kernels.encode import N_BATCH_COLUMNS
from segmentlog.format.records.encoder import EncodedBatches
from segmentlog.format.topic_config import TopicConfig
from segmentlog.model import TopicPartition
from segmentlog.writes import commit
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob
from segmentlog.writes.staged_files import TaskStage
from segmentlog.writes.stager import RowStager

pytestmark = pytest.mark.linux

N = 600
ROUNDS = 3
DESCRIPTORS = 256


@pytest.fixture
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The limit of macOS, and as many more as earlier tests have left open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS + descriptors(), hard))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (DESCRIPTORS, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def begin(directory: Path, n: int = 150, *, flush: bool = True) -> tuple[WriteJob, RowStager]:
    """A job that writes out all rows of a round together."""
    config = ProducerConfig(
        TopicConfig(segment_bytes=400_000), batch_size=12_000, buffer_memory=7_500_000, flush=flush
    )
    job = WriteJob.begin(WriteRequest(str(directory), config, topic="t", num_partitions=n))
    return job, job.stager(0)


def value(partition: int, number: int) -> bytes:
    """A value of a kilobyte that contains its place."""
    return b"%04d/%04d" % (partition, number) * 110


def dealt_rows(number: int, n: int, each: int = 10) -> pa.RecordBatch:
    """An equal number of rows for each of `n` partitions, in turns."""
    places = [(p, number * each + i) for i in range(each) for p in range(n)]
    numbers = pa.array([partition for partition, _ in places], pa.int32())
    return pa.record_batch({"value": [value(*place) for place in places], "partition": numbers})


def stage_much(stager: RowStager, n: int = 150) -> None:
    """Some 30 KB for each partition."""
    for number in range(ROUNDS):
        stager.add(dealt_rows(number, n))
        stager._write_held()  # each round is a buffer


def assert_all_there(directory: Path) -> None:
    """All rows, in order."""
    opened = segmentlog.open_log_dir(directory)
    for partition in range(N):
        expected = [value(partition, i) for i in range(10 * ROUNDS)]
        found = opened.log("t", partition).scan(columns=["value"]).read_all()["value"]
        assert expected == found.to_pylist(), partition
    assert_tidy(directory)


@pytest.mark.slow
@pytest.mark.usefixtures("few_descriptors")
def test_each_of_many_partitions_with_much_is_moved_in_files_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may have far fewer open files than there are partitions."""
    moved: set[str] = set()
    move = commit.move_segment

    def noted(*given: Any) -> object:
        moved.add(given[2])
        return move(*given)

    monkeypatch.setattr(commit, "move_segment", noted)
    before, most = descriptors(), 0
    pwrite = os.pwrite

    def counted(descriptor: int, data: bytes, position: int) -> int:
        nonlocal most
        most = max(most, descriptors_below(tmp_path))
        return pwrite(descriptor, data, position)

    job, stager = begin(tmp_path, N)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", counted)
        stage_much(stager, N)
    extents = stager.finish()
    assert 0 == descriptors_below(tmp_path)
    assert 32 < most <= (DESCRIPTORS + before) // 2 + 4
    own = Counter(each.partition for each in extents if each.file.is_own)
    assert [*range(N)] == sorted(own)
    job.commit([extents])

    assert N == len(moved)
    assert_all_there(tmp_path)


def test_a_few_rows_for_each_of_many_partitions_make_few_files(tmp_path: Path) -> None:
    """Each partition has one piece from which more rows are expected, but no more rows come."""
    job, stager = begin(tmp_path, N)
    stager.add(dealt_rows(0, N, each=1))
    extents = stager.finish()
    assert N == len(extents)
    assert len(list(tmp_path.glob("*.stage"))) < 300
    job.abort()


@pytest.mark.usefixtures("few_descriptors")
@pytest.mark.parametrize("flush", [True, False])
def test_a_file_that_is_closed_early_is_synced_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, flush: bool
) -> None:
    """An error of writing back is reported once, to a descriptor that was open then."""
    dirty: set[int] = set()
    lost: list[str] = []
    n_synced = 0
    pwrite, fsync, close = os.pwrite, os.fsync, os.close

    def writes(descriptor: int, data: bytes, position: int) -> int:
        dirty.add(descriptor)
        return pwrite(descriptor, data, position)

    def syncs(descriptor: int) -> None:
        nonlocal n_synced
        n_synced += 1
        dirty.discard(descriptor)
        fsync(descriptor)

    def closes(descriptor: int) -> None:
        if descriptor in dirty:
            lost.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        dirty.discard(descriptor)
        close(descriptor)

    job, stager = begin(tmp_path, flush=flush)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", writes)
        patch.setattr(os, "fsync", syncs)
        patch.setattr(os, "close", closes)
        stage_much(stager)
        assert len(lost) == 0 if flush else len(lost) > 150
        stager.finish()
    assert not dirty
    assert (n_synced > 150) == flush
    # A table of batches may be lost: the headers give the same result.
    unsynced = [path for path in lost if "stage" in path and ".batches." not in path]
    assert not flush or all("(deleted)" in path for path in unsynced), unsynced
    job.abort()


@pytest.mark.usefixtures("few_descriptors")
def test_an_early_sync_that_fails_fails_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task fails before its end, and leaves neither files nor descriptors."""
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        if re.search(r"\.33\.stage$", str(Path(f"/proc/self/fd/{descriptor}").readlink())):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    job, stager = begin(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(SyncFailedError, match=r"\.33\.stage"):
            stage_much(stager)
    stager.discard()
    assert 0 == descriptors_below(tmp_path)
    assert [] == list(tmp_path.glob("*.stage"))
    job.abort()


@pytest.mark.parametrize("damage", ["bytes", "shorter", "magic"])
def test_a_shared_file_that_is_damaged_before_it_is_grouped(tmp_path: Path, damage: str) -> None:
    """The task reports the damage as a commit would: the job has to be run again."""
    config = ProducerConfig(buffer_memory=1000, batch_size=100)
    job = WriteJob.begin(WriteRequest(str(tmp_path), config, topic="t", num_partitions=2))
    stager = job.stager(0)
    for _ in range(20):
        columns = {"value": [b"x" * 9000] * 2, "partition": pa.array([0, 1], pa.int32())}
        stager.add(pa.RecordBatch.from_pydict(columns))
    stager._write_held()  # all but the last bytes are in the file
    (path,) = tmp_path.glob("*.stage")
    data = bytearray(path.read_bytes())
    if damage == "bytes":
        data[70] ^= 1
    elif damage == "magic":
        data[16] = 3
    else:
        del data[-1:]
    path.write_bytes(data)

    with pytest.raises(StagedFileError, match="run the job again") as caught:
        stager.finish()
    assert path.name in str(caught.value)
    stager.discard()
    assert [] == list(tmp_path.glob("*.stage"))
    job.abort()


def test_a_shared_file_is_written_in_large_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces end at whole pages, whatever the sizes of batches. The task holds at most a piece."""
    pwrite, positions = os.pwrite, []

    def writes(descriptor: int, data: memoryview, position: int) -> int:
        positions.append(position)
        return pwrite(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", writes)
    stage = TaskStage(str(tmp_path), "token", 0, 1 << 40, flush=False)
    sources, everything = [3, 262_000, 144, 700_000, 1, 0, 262_143, 300_000, 5], b""
    for number, n_bytes in enumerate(sources):
        piece = np.frombuffer(np.random.default_rng(number).bytes(n_bytes), np.uint8)
        batches = EncodedBatches(piece, np.empty((0, N_BATCH_COLUMNS), np.int64))
        stage.add(TopicPartition("t", number), batches)
        everything += piece.tobytes()
        (path,) = tmp_path.glob("*.stage")
        assert 0 <= len(everything) - path.stat().st_size < 1 << 18
    extents = stage.close()

    assert everything == path.read_bytes()
    assert [each.end - each.start for each in extents] == sources
    assert all(position % (1 << 18) == 0 for position in positions)
    assert len(positions) == 6
