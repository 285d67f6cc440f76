"""The files of a task: when it makes some, and which are on the disk when the task has ended."""

from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import numbers, values
from soundness import assert_tidy

import segmentlog
from segmentlog.format.topic_config import TopicConfig
from segmentlog.store import durable
from segmentlog.writes import WriteJob, WriteRequest, open_files
from segmentlog.writes.config import ProducerConfig

SEGMENT_BYTES = 1 << 20
MOVED_BYTES = SEGMENT_BYTES // 64


def synced_files(
    directory: Path, monkeypatch: pytest.MonkeyPatch, n_bytes: int, *, flush: bool = True
) -> int:
    """Commit one value, and return the number of files that its task has synced."""
    config = ProducerConfig(
        flush=flush,
        topic_config=TopicConfig(segment_bytes=SEGMENT_BYTES, max_message_bytes=MOVED_BYTES * 2),
    )
    job = WriteJob.begin(WriteRequest(str(directory), config, topic="t"))
    stager = job.stager(0)
    stager.add(pa.RecordBatch.from_pydict({"value": [bytes(n_bytes)]}))
    synced: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync_file", lambda _, path: synced.append(path))
        extents = stager.finish()
    job.commit([extents])
    assert [bytes(n_bytes)] == values(directory)
    return len(synced)


def test_a_task_syncs_only_the_files_that_the_commit_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit reads, checks and syncs what it copies; a sync of the task would be a second."""
    copied = {"shared": 100, "own": SEGMENT_BYTES // 512}
    assert {"shared": 0, "own": 0} == {
        name: synced_files(tmp_path / name, monkeypatch, n_bytes)
        for name, n_bytes in copied.items()
    }
    assert 1 == synced_files(tmp_path / "moved", monkeypatch, MOVED_BYTES)
    assert 0 == synced_files(tmp_path / "none", monkeypatch, MOVED_BYTES, flush=False)


def rows(first: int, n_rows: int) -> pa.Table:
    """Numbered values of a hundred bytes, for two partitions in turn, with offsets."""
    numbers = range(first, first + n_rows)
    return pa.table(
        {
            "value": pa.array([b"%0100d" % number for number in numbers], pa.binary()),
            "partition": pa.array([number % 2 for number in numbers], pa.int32()),
            "offset": pa.array([5 * number for number in numbers], pa.int64()),
        }
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of all staged files that are made."""
    found: list[str] = []
    real = open_files.OpenFiles.create

    def create(files: open_files.OpenFiles, path: str) -> None:
        found.append(path)
        real(files, path)

    monkeypatch.setattr(open_files.OpenFiles, "create", create)
    return found


@pytest.mark.parametrize("use_offsets", [False, True])
def test_a_writer_makes_files_only_beyond_its_memory(
    tmp_path: Path, made: list[str], use_offsets: bool
) -> None:
    """Batches in memory and those that do not fit keep their order."""
    config = ProducerConfig(batch_size=50, buffer_memory=20_000, use_offsets=use_offsets)
    n_made, first = [], 0
    with segmentlog.open_writer(tmp_path, "t", num_partitions=2, config=config) as writer:
        for n_rows in (12, 52, 600):
            for _ in range(2):
                writer.append(rows(first, n_rows // 2))
                first += n_rows // 2
            writer.flush()
            n_made.append(len(made))
    assert [0, 0] == n_made[:2]
    assert n_made[2] > 0
    assert {0: [*range(0, first, 2)], 1: [*range(1, first, 2)]} == numbers(tmp_path)
    log = segmentlog.open_log_dir(tmp_path).log("t", 1)
    offsets = log.scan(columns=["offset"]).read_all()["offset"].to_pylist()
    n_rows = first // 2
    assert offsets == ([5 + 10 * n for n in range(n_rows)] if use_offsets else [*range(n_rows)])
    assert_tidy(tmp_path)


def test_a_writer_with_a_limit_of_speed_keeps_no_batch_in_memory(
    tmp_path: Path, made: list[str]
) -> None:
    """The commit would write them in one burst."""
    for rate, n_made in ((None, 0), (1 << 30, 1)):
        config = ProducerConfig(max_bytes_per_second=rate)
        with segmentlog.open_writer(tmp_path, "t", config=config) as writer:
            writer.append(rows(0, 10).drop_columns("partition"))
        assert n_made == len(made)
    assert 20 == len(values(tmp_path))


def test_rows_in_memory_go_with_their_writer(tmp_path: Path) -> None:
    """A writer that is aborted leaves none of them."""
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(rows(0, 10).drop_columns("partition"))
    writer = segmentlog.open_writer(tmp_path, "t")
    writer.append(rows(10, 10).drop_columns("partition"))
    writer.abort()
    assert {0: [*range(10)]} == numbers(tmp_path)
    assert ["segmentlog.state"] == [path.name for path in tmp_path.glob("segmentlog.*")]
