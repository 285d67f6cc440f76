"""Changes of many partitions: the number of syncs, and that no partition is left out."""

import contextlib
import errno
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from descriptors import descriptors_below
from plain_writes import values, write
from soundness import assert_tidy

import segmentlog
from segmentlog.errors import SyncFailedError
from segmentlog.format.topic_config import TopicConfig
from segmentlog.maintain.health.mend import RecoveryKind
from segmentlog.txn.guard import list_guards, recover_commits
from segmentlog.txn.topics import create_partitions
from segmentlog.writes.config import Producer, ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob

pytestmark = pytest.mark.linux

N = 20
ROWS = pa.table({"value": [b"%d" % n for n in range(N)], "partition": pa.array(range(N))})


@contextlib.contextmanager
def counted_syncs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the syncs of each kind of a partition's files; threads make them together.

    The last partition may be synced alone.  A file that is replaced is synced as ``.tmp``.
    """
    found: Counter[str] = Counter()
    alone = []
    sync = os.fsync

    def counted(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if re.search(r"/t-\d+(/|$)", path):
            found[Path(path).suffix or "directory"] += 1
            if threading.current_thread() is threading.main_thread():
                alone.append(path)
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counted)
        yield found
    assert [] == [path for path in alone if f"/t-{N - 1}" not in path][:3]


def syncs_of(directory: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Counter[str]:
    """Write a row to each partition, and count the syncs."""
    with counted_syncs(monkeypatch) as found:
        write(directory, ROWS, num_partitions=N, **how)
    return found


def test_files_that_a_commit_has_not_changed_are_not_synced_again(
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


def test_the_partitions_of_a_new_topic_are_made_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last partition is made first: it shows how many partitions there are."""
    with counted_syncs(monkeypatch) as found:
        create_partitions(str(tmp_path), "t", N)

    # The topic's id and the leader epochs; their names, and then the names of the segment.
    assert {".tmp": 2 * N, "directory": 2 * N} == found


def test_snapshots_of_producers_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of a producer writes one at each log end, and so does retention before it."""
    write(tmp_path, ROWS, num_partitions=N, producer=Producer(1, 0, 0))
    appended = syncs_of(tmp_path, monkeypatch, producer=Producer(1, 0, 1))
    write(tmp_path, ROWS)
    with counted_syncs(monkeypatch) as removed:
        segmentlog.retain(tmp_path, settings={"retention.bytes": "0"})

    assert {".log": N, ".timeindex": N, ".tmp": N, "directory": N} == appended
    # A snapshot and its name; the name of the new segment; leader epochs and their name.
    assert {".tmp": 2 * N, "directory": 3 * N} == removed


def test_logs_are_recovered_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The syncs of each log keep their order, and the names of its index files are synced once."""
    write(tmp_path, ROWS, num_partitions=N)
    for path in tmp_path.glob("t-*/*index"):
        path.unlink()
    (tmp_path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    with counted_syncs(monkeypatch) as found:
        steps = segmentlog.recover(tmp_path)

    assert [f"t-{n}" for n in sorted(range(N), key=str)] == [
        Path(step.path).name for step in steps if step.kind is RecoveryKind.LOG_RECOVERED
    ]
    # Both indexes and a snapshot; the names after the cut, of the snapshot, and of the indexes.
    assert {".log": N, ".tmp": 3 * N, "directory": 3 * N} == found
    assert [[b"%d" % n] for n in range(N)] == [values(tmp_path, "t", n) for n in range(N)]


def test_a_commit_is_undone_in_all_logs_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next writer cuts each log back to its size before the commit."""
    write(tmp_path, ROWS, num_partitions=N)
    with monkeypatch.context() as patch:
        patch.setattr("segmentlog.txn.change.decide", crash)
        patch.setattr("segmentlog.txn.change.give_up", lambda *_, **__: None)
        with pytest.raises(RuntimeError):
            write(tmp_path, ROWS)
    with counted_syncs(monkeypatch) as found:
        recover_commits(str(tmp_path))

    assert {".log": N, ".timeindex": N, ".index": N, "directory": N} == found
    assert [[b"%d" % n] for n in range(N)] == [values(tmp_path, "t", n) for n in range(N)]


def crash(*_: object) -> None:
    """End a commit before its decision."""
    raise RuntimeError


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
        buffer_memory=8000,
        batch_size=100,
        use_offsets=keeps_offsets,
        topic_config=TopicConfig(segment_bytes=4_000_000),
    )
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
    names = {extent.file.name for extent in extents} | {job.files.mark.name}
    assert names == {path.name for path in tmp_path.glob("segmentlog.*")}
    job.commit([extents])

    expected = [b"%04d" % n * 10 for n in range(120)]
    for partition in range(3):
        assert expected == [each for each in values(tmp_path, "t", partition) if b"x" not in each]
    assert_tidy(tmp_path) if not keeps_offsets else None
