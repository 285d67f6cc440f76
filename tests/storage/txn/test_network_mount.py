"""Readers and writers on a mount that caches names and sizes, while a server changes the files.

The mount is as a client of NFS sees a directory: late, by handles, close-to-open.  A server of
this file speaks the protocol of ``/dev/fuse``, so nothing has to be installed.  As in Linux:

- names, missing names, sizes and times are cached for a minute;
- opening a file asks the server for its size; opening a directory, for its names;
- calls use handles: a directory that another has renamed still takes what is sent to it;
- a file that another client has removed is ``ESTALE`` to processes that have it open;
- a file that this client has open is not removed but called ``.nfs…`` until it is closed;
- locks exclude on this mount alone, as with ``nolock``.
"""

import contextlib
import ctypes
import errno
import gc
import os
import signal
import stat
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crashing import in_child
from held_commit import Holder
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


_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_SETATTR = struct.Struct("<II6Q8I")
_ROOT = 1
_EXPIRES = 1  # looked up again; without it, names below a directory are forgotten, too
_DETACH = 2


@contextlib.contextmanager
def lagging_mount(source: Path, target: Path, lag: int = 60) -> Iterator[Path]:
    """The mount, during a ``with`` block; tests are skipped where mounts are not allowed."""
    if os.geteuid() or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("a separate mount needs root and /dev/fuse")
    target.mkdir()
    heard, told = os.pipe()

    def serve() -> None:
        device = os.open("/dev/fuse", os.O_RDWR)
        options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % device
        if not ctypes.CDLL(None).mount(b"lagging", os.fsencode(target), b"fuse", 0, options):
            os.write(told, b"x")
            _Server(device, source, lag).serve()

    child = in_child(serve)
    os.close(told)
    try:
        if not os.read(heard, 1):
            pytest.skip("mounting is not permitted here")
        yield target
    finally:
        os.close(heard)
        ctypes.CDLL(None).umount2(os.fsencode(target), _DETACH)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class _Server:
    """The mount of one client; its nodes are handles, which stay as long as it exists."""

    def __init__(self, device: int, source: Path, lag: int) -> None:
        self._device = device
        self._lag = lag
        self._nodes = {_ROOT: os.open(source, os.O_PATH)}
        self._ids: dict[tuple[int, int], int] = {}
        self._names: dict[int, set[bytes]] = {}
        self._changed: dict[int, int] = {}
        self._opened: dict[int, int] = {}  # of a node, how often it is open
        self._handles: dict[int, int] = {}  # node of an open file
        self._silly: dict[int, tuple[int, bytes]] = {}

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 21)
            except OSError as error:
                if error.errno in {errno.ENODEV, errno.EBADF}:
                    return
                continue
            _, opcode, unique, node, *_ = _IN.unpack_from(request)
            answer: Callable[[_Server, int, bytes], bytes] | None = _ANSWERS.get(opcode, _unknown)
            if answer is None:
                continue
            try:
                reply, number = answer(self, node, request[_IN.size :]), 0
            except OSError as error:
                reply, number = b"", -(error.errno or errno.EIO)
            with contextlib.suppress(OSError):
                os.write(self._device, _OUT.pack(16 + len(reply), number, unique) + reply)

    def _notify(self, code: int, body: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._device, _OUT.pack(16 + len(body), code, 0) + body)

    def _path(self, node: int, name: bytes = b"") -> bytes:
        path = b"/proc/self/fd/%d" % self._nodes[node]
        return path + b"/" + name if name else path

    def _node(self, path: bytes) -> tuple[int, os.stat_result]:
        found = os.lstat(path)
        key = found.st_dev, found.st_ino
        node = self._ids.get(key)
        if node is None or not os.fstat(self._nodes[node]).st_nlink:
            node = self._ids[key] = max(self._nodes) + 1
            self._nodes[node] = os.open(path, os.O_PATH | os.O_NOFOLLOW)
        return node, found

    def _check(self, node: int) -> None:
        if not os.fstat(self._nodes[node]).st_nlink:
            raise OSError(errno.ESTALE, "")

    def init(self, _: int, body: bytes) -> bytes:
        _, _, readahead, _ = struct.unpack_from("<4I", body)
        return struct.pack("<4IHHIIHHI7I", 7, 31, readahead, 0, 16, 12, 1 << 17, 1, *[0] * 10)

    def lookup(self, node: int, body: bytes) -> bytes:
        name = body.rstrip(b"\0")
        self._names.setdefault(node, set()).add(name)
        try:
            return self._entry(node, name)
        except FileNotFoundError:
            self._check(node)
            return struct.pack("<4QII", 0, 0, self._lag, 0, 0, 0) + bytes(_ATTR.size)

    def _entry(self, node: int, name: bytes) -> bytes:
        self._names.setdefault(node, set()).add(name)
        child, found = self._node(self._path(node, name))
        return struct.pack("<4QII", child, 0, self._lag, self._lag, 0, 0) + _attr(found)

    def getattr(self, node: int, _: bytes) -> bytes:
        self._check(node)
        found = os.fstat(self._nodes[node])
        return struct.pack("<QII", self._lag, 0, 0) + _attr(found)

    def setattr(self, node: int, body: bytes) -> bytes:
        self._check(node)
        (valid, _, _, size, _, atime, mtime, _, an, mn, _, mode, _, uid, gid, _) = (
            _SETATTR.unpack_from(body)
        )
        path = self._path(node)
        if valid & 1:
            os.chmod(path, mode & 0o7777)  # by its handle
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 8:
            os.truncate(path, size)
        if valid & 0x180:
            os.utime(path)
        elif valid & 0x30:
            found = os.stat(path)
            accessed = atime * 10**9 + an if valid & 16 else found.st_atime_ns
            modified = mtime * 10**9 + mn if valid & 32 else found.st_mtime_ns
            os.utime(path, ns=(accessed, modified))
        return self.getattr(node, b"")

    def mkdir(self, node: int, body: bytes) -> bytes:
        mode, umask = struct.unpack_from("<II", body)
        name = body[8:].rstrip(b"\0")
        self._check(node)
        os.mkdir(self._path(node, name), mode & ~umask)
        return self._entry(node, name)

    def unlink(self, node: int, body: bytes) -> bytes:
        name = body.rstrip(b"\0")
        path = self._path(node, name)
        child, _ = self._node(path)
        if child in self._silly:
            raise OSError(errno.EBUSY, "")
        if self._opened.get(child):
            self._keep(node, name, child)
        else:
            os.unlink(path)
        return b""

    def _keep(self, node: int, name: bytes, child: int) -> None:
        silly = b".nfs%024x" % child
        os.rename(self._path(node, name), self._path(node, silly))
        self._silly[child] = node, silly

    def rmdir(self, node: int, body: bytes) -> bytes:
        os.rmdir(self._path(node, body.rstrip(b"\0")))
        return b""

    def rename(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, 8)

    def rename2(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, 16)

    def _rename(self, node: int, body: bytes, at: int) -> bytes:
        (target,) = struct.unpack_from("<Q", body)
        old, new, _ = body[at:].split(b"\0", 2)
        self._check(node)
        path = self._path(target, new)
        with contextlib.suppress(FileNotFoundError):
            child, _ = self._node(path)
            if self._opened.get(child):
                self._keep(target, new, child)
        os.rename(self._path(node, old), path)
        return b""

    def open(self, node: int, body: bytes) -> bytes:
        """Close-to-open: size and times come from the server, whatever is cached."""
        (flags,) = struct.unpack_from("<I", body)
        self._check(node)
        self._notify(2, struct.pack("<Qqq", node, -1, 0))
        return self._open(node, flags)

    def _open(self, node: int, flags: int) -> bytes:
        handle = os.open(self._path(node), flags & ~(os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL))
        self._opened[node] = self._opened.get(node, 0) + 1
        self._handles[handle] = node
        return struct.pack("<QII", handle, 0, 0)

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode, umask, _ = struct.unpack_from("<4I", body)
        name = body[16:].rstrip(b"\0")
        self._check(node)
        os.close(os.open(self._path(node, name), flags | os.O_CREAT, mode & ~umask))
        entry = self._entry(node, name)
        (child,) = struct.unpack_from("<Q", entry)
        return entry + self._open(child, flags)

    def read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        self._check(node)
        return os.pread(handle, size, offset)

    def write(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        self._check(node)
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def release(self, node: int, body: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", body)
        os.close(handle)
        del self._handles[handle]
        self._opened[node] -= 1
        if not self._opened[node] and node in self._silly:
            directory, name = self._silly.pop(node)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(directory, name))
        return b""

    def fsync(self, _: int, body: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", body)
        os.fsync(handle)
        return b""

    def statfs(self, node: int, _: bytes) -> bytes:
        found = os.statvfs(self._path(node))
        sizes = found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree
        return struct.pack("<5Q10I", *sizes, found.f_bsize, 255, found.f_frsize, *[0] * 7)

    def opendir(self, node: int, _: bytes) -> bytes:
        """If a directory has changed, its cache is dropped, as with files."""
        self._check(node)
        changed = os.fstat(self._nodes[node]).st_mtime_ns
        if self._changed.get(node) != changed:
            for name in self._names.pop(node, ()):
                self._notify(3, struct.pack("<QII", node, len(name), _EXPIRES) + name + b"\0")
            self._changed[node] = changed
        return bytes(16)

    def readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        if not offset:
            self._listed = sorted(os.listdir(self._path(node)))
        reply = b""
        for number, name in enumerate(self._listed[offset:], offset + 1):
            entry = struct.pack("<QQII", number, number, len(name), 0) + name
            entry += bytes(-len(entry) % 8)
            if len(reply) + len(entry) > size:
                break
            reply += entry
        return reply

    def done(self, *_: object) -> bytes:
        return b""


def _attr(found: os.stat_result) -> bytes:
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    return _ATTR.pack(
        found.st_ino,
        found.st_size,
        found.st_blocks,
        *(each // 10**9 for each in times),
        *(each % 10**9 for each in times),
        found.st_mode,
        found.st_nlink,
        found.st_uid,
        found.st_gid,
        0,
        4096,
        0,
    )


def _unknown(*_: object) -> bytes:
    raise OSError(errno.ENOSYS, "")


_ANSWERS = {
    1: _Server.lookup, 2: None, 3: _Server.getattr, 4: _Server.setattr, 9: _Server.mkdir,
    10: _Server.unlink, 11: _Server.rmdir, 12: _Server.rename, 14: _Server.open,
    15: _Server.read, 16: _Server.write, 17: _Server.statfs, 18: _Server.release,
    20: _Server.fsync, 25: _Server.done, 26: _Server.init, 27: _Server.opendir,
    28: _Server.readdir, 29: _Server.done, 30: _Server.done, 35: _Server.create, 36: None,
    42: None, 45: _Server.rename2,
}  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """The directory as its server has it, and as programs on the server's machine see it."""
    (tmp_path / "server").mkdir()
    return tmp_path / "server"


@pytest.fixture
def mount(server: Path, tmp_path: Path) -> Iterator[Path]:
    with lagging_mount(server, tmp_path / "mount") as target:
        yield target
        gc.collect()  # the traceback of an error may hold a read with its open file


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
