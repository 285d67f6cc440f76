"""The files of a task: which of them are on the disk when the task has ended."""

from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import values

from segmentlog.format.topic_config import TopicConfig
from segmentlog.store import sync_together
from segmentlog.writes import WriteJob, WriteRequest
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
        patch.setattr(sync_together, "sync_file", lambda _, path: synced.append(path))
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
