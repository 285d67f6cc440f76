"""Commits to many partitions: the number of syncs, and that no partition is left out."""

import errno
import os
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from descriptors import descriptors_below
from plain_writes import values, write
from soundness import assert_tidy

from segmentlog.commit.guard import list_guards
from segmentlog.errors import SyncFailedError
from segmentlog.stage.config import ProducerConfig
from segmentlog.topic_config import TopicConfig
from segmentlog.writes.job import WriteJob
from segmentlog.writes.request import WriteRequest

pytestmark = pytest.mark.linux

N = 20
ROWS = pa.table({"value": [b"%d" % n for n in range(N)], "partition": pa.array(range(N))})


def syncs_of(directory: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Counter[str]:
    """Write a row to each partition, and count the syncs of each kind of a partition's files."""
    found: Counter[str] = Counter()
    threads = set()
    sync = os.fsync

    def counted(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if re.search(r"/t-\d+(/|$)", path):
            found[Path(path).suffix or "directory"] += 1
            threads.add(threading.get_ident())
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counted)
        write(directory, ROWS, num_partitions=N, **how)
    assert len(threads) > 1
    return found


def test_what_a_commit_has_not_changed_is_not_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 3,000 partitions, an overwrite took 41 s, and an append took 9 s."""
    write(tmp_path, ROWS, num_partitions=N)
    appended = syncs_of(tmp_path, monkeypatch)
    overwritten = syncs_of(tmp_path, monkeypatch, overwrite=True)

    assert {".log": N, ".timeindex": N} == appended
    # Leader epochs; the directory a second time, for them and for segments that are put aside.
    assert {".log": N, ".timeindex": N, "directory": 2 * N, ".tmp": N} == overwritten
    assert [[b"%d" % n] for n in range(N)] == [values(tmp_path, "t", n) for n in range(N)]
    assert_tidy(tmp_path)


@pytest.mark.parametrize("what", [r"t-13/\d+\.log", r"t-13"])
def test_one_sync_of_many_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """No row is visible, the guard stays, and the next writer undoes the commit."""
    write(tmp_path, ROWS, num_partitions=N)
    sync = os.fsync

    def failing(descriptor: int) -> None:
        if re.search(f"/{what}$", str(Path(f"/proc/self/fd/{descriptor}").readlink())):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(SyncFailedError, match="t-13"):
            write(tmp_path, ROWS, num_partitions=N, overwrite=True)
    assert 0 == descriptors_below(tmp_path)
    assert 1 == len(list_guards(str(tmp_path)))
    assert [[b"%d" % n] for n in range(N)] == [values(tmp_path, "t", n) for n in range(N)]
    write(tmp_path, ROWS)
    assert [[b"%d" % n] * 2 for n in range(N)] == [values(tmp_path, "t", n) for n in range(N)]
    assert_tidy(tmp_path)


@pytest.mark.parametrize("keeps_offsets", [False, True])
def test_a_task_has_one_extent_for_each_partition_of_its_shared_file(
    tmp_path: Path, *, keeps_offsets: bool
) -> None:
    """The driver holds the extents of all tasks, so there is not one for each buffer of rows."""
    config = ProducerConfig(
        buffer_memory=8000, batch_size=100, use_offsets=keeps_offsets,
        topic_config=TopicConfig(segment_bytes=4_000_000),
    )  # fmt: skip
    job = WriteJob.begin(WriteRequest(str(tmp_path), config, topic="t", num_partitions=3))
    stager = job.stager(0)
    for n in range(120):
        columns = {"value": [b"%04d" % n * 10] * 3, "partition": pa.array([0, 1, 2], pa.int32())}
        columns["offset"] = pa.array([2 * n] * 3, pa.int64())
        stager.add(pa.RecordBatch.from_pydict(columns))
        if n == 20:  # partition 1 gets a separate file
            rows = {"value": [b"x" * 90] * 200, "partition": pa.array([1] * 200, pa.int32())}
            if not keeps_offsets:
                stager.add(pa.RecordBatch.from_pydict({**rows, "offset": [0] * 200}))
    extents = stager.finish()
    assert 3 <= len(extents) <= (3 if keeps_offsets else 5)
    names = {extent.name for extent in extents} | {job.files.mark.name}
    assert names == {path.name for path in tmp_path.glob("segmentlog.*")}
    job.commit([extents])

    expected = [b"%04d" % n * 10 for n in range(120)]
    for partition in range(3):
        assert expected == [each for each in values(tmp_path, "t", partition) if b"x" not in each]
    assert_tidy(tmp_path) if not keeps_offsets else None
