"""Readers and writers on a mount that caches names and sizes, while a server changes the files.

The mount's answers may be a minute old (`lagging_mount`): it answers from its cache for anything
that it has looked at before.
"""

import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from held_commit import Holder
from lagging_mount import lagging_mount
from numbered_jobs import Job

import segmentlog
from segmentlog.errors import LogChangedError, SegmentLogError, StorageError, SyncFailedError
from segmentlog.format.topic_config import TopicConfig
from segmentlog.model import ReadUpTo
from segmentlog.txn import change
from segmentlog.txn import guard as settle
from segmentlog.txn.guard import Guard
from segmentlog.txn.state import State
from segmentlog.writes import commit
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob
from segmentlog.writes.staged_files import TaskExtents

pytestmark = pytest.mark.linux


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """The directory as its server has it, and as programs on the server's machine see it."""
    (tmp_path / "server").mkdir()
    return tmp_path / "server"


@pytest.fixture
def mount(server: Path, tmp_path: Path) -> Iterator[Path]:
    with lagging_mount(server, tmp_path / "mount") as target:
        yield target


def _write_batches(
    directory: Path, *values: int, segment_bytes: int = 1 << 20, **more: Any
) -> None:
    config = ProducerConfig(TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=1))
    with segmentlog.open_writer(directory, "t", config=config, **more) as writer:
        for value in values:
            writer.append(pa.table({"value": [b"%05d" % value * 40]}))
            writer.flush()


def _numbers_of(
    log_dir: segmentlog.LogDirectory, read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK
) -> list[int]:
    stream = log_dir.log("t", 0).scan(columns=["value"], read_up_to=read_up_to)
    return [int(each[:5]) for each in stream.read_all()["value"].to_pylist()]


def _look_at_all(directory: Path) -> None:
    """Make the mount cache all names and sizes."""
    for path, _, names in os.walk(directory):
        for name in names:
            Path(path, name).lstat()


def test_committed_rows_are_read_although_sizes_are_remembered(server: Path, mount: Path) -> None:
    _write_batches(server, 1)
    assert _numbers_of(segmentlog.open_log_dir(mount)) == [1]
    _look_at_all(mount)
    _write_batches(server, 2)
    assert _numbers_of(segmentlog.open_log_dir(mount)) == [1, 2]


def test_segments_that_were_closed_since_are_read_to_their_ends(server: Path, mount: Path) -> None:
    """The segment that was active when the mount cached its size is read beyond that size.

    Otherwise rows would be missing from the middle of the log.
    """
    _write_batches(server, 1)
    _look_at_all(mount)
    _write_batches(server, *range(2, 12), segment_bytes=1100)
    assert len(list(server.glob("t-0/*.log"))) > 2
    assert _numbers_of(segmentlog.open_log_dir(mount)) == list(range(1, 12))


def test_a_directory_that_is_held_while_writers_go_on(server: Path, mount: Path) -> None:
    _write_batches(server, 1, 2)
    _look_at_all(mount)
    held = segmentlog.open_log_dir(mount)
    _write_batches(server, 3, 4, segment_bytes=1100)
    later = segmentlog.open_log_dir(mount)
    _write_batches(server, 5)
    for read_up_to in ReadUpTo:
        assert _numbers_of(held, read_up_to) == [1, 2]
        assert _numbers_of(later, read_up_to) == [1, 2, 3, 4]


def test_the_first_commit_of_a_directory(server: Path, mount: Path) -> None:
    """The directory has checkpoints and no state, as a broker's has.

    The mount has cached that no state exists.
    """
    _write_batches(server, 1)
    (server / "segmentlog.state").unlink()
    opened = segmentlog.open_log_dir(mount)
    assert not (mount / "segmentlog.state").exists()
    with Holder() as holder:
        held = holder.hold(server, Job(1, {"t": 1}, 3))
        assert _numbers_of(opened, ReadUpTo.LOG_END) == [1]  # before the mount is asked for names
        during = segmentlog.open_log_dir(mount)
        assert _numbers_of(during, ReadUpTo.LOG_END) == [1]
        held.decide()
    assert _numbers_of(during, ReadUpTo.LOG_END) == [1]
    assert segmentlog.open_log_dir(mount).log("t", 0).end_offset() == 4


def test_a_commit_that_fails_beside_a_reader(server: Path, mount: Path) -> None:
    _write_batches(server, 1)
    held = segmentlog.open_log_dir(mount)
    job = Job(1, {"t": 1}, 3)
    with Holder() as holder:
        at_work = holder.hold(server, job)
        during = segmentlog.open_log_dir(mount)
        assert _numbers_of(during, ReadUpTo.LOG_END) == [1]
        at_work.fail()
    assert _numbers_of(held, ReadUpTo.LOG_END) == _numbers_of(during, ReadUpTo.LOG_END) == [1]


def test_a_file_that_is_replaced_while_it_is_read(server: Path, mount: Path) -> None:
    """Compaction replaces files in this way. The server reports a stale handle."""
    _big(server)
    stream = segmentlog.open_log_dir(mount).log("t", 0).scan(columns=["offset"])
    first = stream.read_next_batch().num_rows
    log = server / "t-0" / f"{0:020d}.log"
    (server / "copy").write_bytes(log.read_bytes())
    (server / "copy").rename(log)
    assert first + stream.read_all().num_rows == 40_000


def test_a_file_that_is_deleted_while_it_is_read(server: Path, mount: Path) -> None:
    _big(server)
    stream = segmentlog.open_log_dir(mount).log("t", 0).scan(columns=["offset"])
    stream.read_next_batch()
    (server / "t-0" / f"{0:020d}.log").unlink()
    with pytest.raises(LogChangedError):
        stream.read_all()


def _big(directory: Path) -> None:
    """Write more than a read has in its buffers or the system reads ahead."""
    with segmentlog.open_writer(directory, "t") as writer:
        for _ in range(40):
            writer.append(pa.table({"value": [os.urandom(1000)] * 1000}))


@pytest.mark.parametrize("closed_in", ["a pause", "a listing"])
def test_a_guard_is_removed_although_a_reader_has_its_intent_open(
    server: Path, mount: Path, closed_in: str
) -> None:
    """A file that is open on this mount keeps a name in the guard until the reader closes it."""
    _write_batches(mount, 1)
    opened, closed = [], []
    finish, sleep, list_names = settle.finish, time.sleep, settle.list_names

    def looked_into(directory: str, guard: Guard, *more: Any) -> None:
        opened.append(os.open(guard.intent_path, os.O_RDONLY))
        finish(directory, guard, *more)

    def close() -> None:
        if opened:
            closed.append(os.close(opened.pop()))

    def paused(seconds: float) -> None:
        if closed_in == "a pause":
            close()
        sleep(seconds)

    def listed(directory: str) -> Any:
        names = list_names(directory)
        if closed_in == "a listing" and any(each.startswith(".nfs") for each in names):
            close()
            while list((server / Path(directory).name).glob(".nfs*")):
                sleep(0.01)  # a mount learns of a close later
        return names

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(change, "finish", looked_into)
        patched.setattr(settle.time, "sleep", paused)
        patched.setattr(settle, "list_names", listed)
        patched.setattr(settle, "_MOST_SECONDS", 60)
        _write_batches(mount, 2)
    assert closed
    assert not segmentlog.open_log_dir(server).unfinished_commits
    assert _numbers_of(segmentlog.open_log_dir(server)) == [1, 2]


def test_a_writer_that_was_taken_over_decides_nothing_by_its_handle(
    server: Path, mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer whose guard was taken over and undone must not decide its commit.

    Its mount has cached the guard, which has another name now, and could still rename a file out
    of it. Its records are gone by then.
    """
    _write_batches(mount, 1)
    slow, extents = _staged(mount)
    decide, undo = change.decide, settle._undo

    def taken_over(directory: str, guard: Guard, *more: Any, **how: Any) -> None:
        """Let the slow writer continue when its guard is taken over, before the undo."""
        monkeypatch.setattr(settle, "_undo", undo)
        late.append(None)
        with pytest.raises(OSError, match=r"segmentlog\.unfinished"):
            decide(*held)
        undo(directory, guard, *more, **how)

    late: list[None] = []
    held: list[Any] = []

    def overtaken(*arguments: Any) -> None:
        held.extend(arguments)
        held[1].intent()
        monkeypatch.setattr(settle, "_undo", taken_over)
        settle.recover_commits(str(server))
        raise OSError("as its answer is")

    monkeypatch.setattr(change, "decide", overtaken)
    with pytest.raises(SegmentLogError):
        slow.commit(extents)
    monkeypatch.undo()
    assert late
    assert State.read(str(server)).token != slow.token
    assert _numbers_of(segmentlog.open_log_dir(server)) == [1]
    _write_batches(server, 2)
    assert _numbers_of(segmentlog.open_log_dir(server)) == [1, 2]


def _staged(directory: Path) -> tuple[WriteJob, list[TaskExtents]]:
    job = WriteJob.begin(WriteRequest(str(directory), ProducerConfig(), topic="t"))
    stager = job.stager(0)
    stager.add(pa.RecordBatch.from_pydict({"value": [b"00009" * 40]}))
    return job, [stager.finish()]


def test_a_writer_on_a_mount_that_remembers_what_another_has_changed(
    server: Path, mount: Path
) -> None:
    """Writers take turns on two machines. Each appends after the records of the other."""
    for turn in range(1, 9, 2):
        _write_batches(mount, turn)
        _look_at_all(mount)
        _write_batches(server, turn + 1, segment_bytes=600)
    assert _numbers_of(segmentlog.open_log_dir(server)) == list(range(1, 9))
    assert _numbers_of(segmentlog.open_log_dir(mount)) == list(range(1, 9))


def test_a_rename_that_was_done_although_the_server_reports_an_error(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was lost, and the repeated request found nothing to rename."""
    _write_batches(server, 1)
    real = os.rename

    def sent_again(source: str, target: str, **how: int) -> None:
        real(source, target, **how)
        if source == "state":
            real(source, target, **how)

    monkeypatch.setattr(os, "rename", sent_again)
    _write_batches(server, 2)
    assert _numbers_of(segmentlog.open_log_dir(server)) == [1, 2]
    assert not segmentlog.open_log_dir(server).unfinished_commits


def test_a_commit_on_a_full_disk_is_undone_although_nothing_can_be_made_there(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_batches(server, 1)
    job, extents = _staged(server)
    real = os.mkdir

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def mkdir(path: str, *mode: int, **where: int) -> None:
        (full if path.endswith("/state") else real)(path, *mode, **where)

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(commit, "_append", full)
    with pytest.raises(StorageError):
        job.commit(extents)
    monkeypatch.undo()
    assert not segmentlog.open_log_dir(server).unfinished_commits
    assert _numbers_of(segmentlog.open_log_dir(server)) == [1]


def test_a_file_system_that_does_not_sync_directories(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SMB is such a file system.

    A commit cannot be made durable there, so nothing becomes visible.
    """
    _write_batches(server, 1)
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(SyncFailedError, match="nothing of this write is visible"):
        _write_batches(server, 2)
    assert _numbers_of(segmentlog.open_log_dir(server)) == [1]
    monkeypatch.undo()
    _write_batches(server, 3)
    assert _numbers_of(segmentlog.open_log_dir(server)) == [1, 3]
