"""The lock of a log directory: refusals have reasons and leave no file open."""

import errno
import fcntl
import gc
import inspect
import itertools
import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from broker_lock import as_broker
from crashing import in_child
from descriptors import descriptors_below

import segmentlog
from segmentlog.errors import LogDirectoryError, LogLockedError
from segmentlog.model import LOCK_TIMEOUT_SECONDS
from segmentlog.store import lock
from segmentlog.store.durable import remove_file, rename
from segmentlog.store.lock import DirectoryLock

pytestmark = pytest.mark.linux


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_that_does_not_lock_is_named_and_nothing_is_leaked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Examples are NFS without a lock daemon, FUSE without locks, and an old kernel."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "fcntl", refuse)
        for _ in range(3):
            with pytest.raises(LogDirectoryError, match="does not lock files") as caught:
                DirectoryLock(str(tmp_path)).__enter__()
    assert os.strerror(code) in str(caught.value)
    assert 0 == descriptors_below(tmp_path)
    with DirectoryLock(str(tmp_path)):
        pass


def test_a_lock_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """A directory at the path of the lock file is an error that names the path."""
    (tmp_path / ".lock").mkdir()
    with pytest.raises(LogDirectoryError, match=r"\.lock: .*Is a directory"):
        DirectoryLock(str(tmp_path)).__enter__()
    assert 0 == descriptors_below(tmp_path)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_lock_file_that_is_a_link_is_named(tmp_path: Path, *, is_there: bool) -> None:
    """It is not followed: the owner of the directory chooses its target."""
    (tmp_path / "target").touch() if is_there else None
    (tmp_path / ".lock").symlink_to(tmp_path / "target")
    with pytest.raises(LogDirectoryError, match=r"\.lock: .*is a link, .*; remove the link$"):
        DirectoryLock(str(tmp_path)).__enter__()
    assert 0 == descriptors_below(tmp_path)


def test_a_second_thread_of_the_process_waits(tmp_path: Path) -> None:
    """A second thread is refused in the way that another process is."""
    with DirectoryLock(str(tmp_path)), pytest.raises(LogLockedError, match="is in use"):
        DirectoryLock(str(tmp_path), 0).__enter__()


def test_a_broker_is_not_waited_for(tmp_path: Path) -> None:
    """It keeps its lock as long as it runs; a writer has ended in a moment."""
    with as_broker(tmp_path) as broker:
        begin = time.monotonic()
        with pytest.raises(LogLockedError) as caught:
            DirectoryLock(str(tmp_path)).__enter__()
        assert time.monotonic() - begin < 30
    assert (broker, 0) == (caught.value.process, caught.value.waited_seconds)
    with DirectoryLock(str(tmp_path)):
        pass


@pytest.mark.parametrize(
    "function",
    [
        segmentlog.open_writer,
        segmentlog.retain,
        segmentlog.compact,
        segmentlog.delete_records,
        segmentlog.delete_topic,
        segmentlog.alter_settings,
        DirectoryLock,
    ],
)
def test_all_wait_for_a_writer_for_the_same_time(function: Callable[..., object]) -> None:
    """Unless the caller gives another time."""
    (default,) = (
        each.default
        for name, each in inspect.signature(function).parameters.items()
        if "timeout_seconds" in name
    )

    assert LOCK_TIMEOUT_SECONDS == default


def ended(child: int) -> int:
    """Wait for a child, and return its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def take(directory: Path, seconds: float = 0.0) -> None:
    """Lock and unlock the directory."""
    with DirectoryLock(str(directory), seconds):
        pass


def test_a_child_that_was_forked_while_a_thread_held_the_lock(tmp_path: Path) -> None:
    """The child waits only as long as the thread holds the lock.

    The error does not name the child as the holder.
    """
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with DirectoryLock(str(tmp_path)):
            held.set()
            done.wait(60)

    def wait_for_it(lock: DirectoryLock) -> None:
        with pytest.raises(LogLockedError) as caught:
            take(tmp_path)
        assert caught.value.process != os.getpid()
        os.write(told, b"x")
        with lock:
            pass
        take(tmp_path, 60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    heard, told = os.pipe()
    made_before = DirectoryLock(str(tmp_path), 60)
    child = in_child(lambda: wait_for_it(made_before))
    os.close(told)
    try:
        assert os.read(heard, 1)  # empty if the child has died
    finally:
        done.set()
        thread.join()
        os.close(heard)
        assert 0 == ended(child)


def test_a_child_does_not_keep_the_lock_of_a_parent_that_is_killed(tmp_path: Path) -> None:
    """The lock is free once its holder is killed, although a child of the holder is alive."""
    heard, told = os.pipe()
    ending, end = os.pipe()

    def wait() -> None:
        os.close(end)
        os.write(told, b"child")
        os.read(ending, 1)

    def parent() -> None:
        with DirectoryLock(str(tmp_path)):
            in_child(wait)
            time.sleep(60)

    holder = in_child(parent)
    assert b"child" == os.read(heard, 5)
    with pytest.raises(LogLockedError):
        take(tmp_path)
    os.kill(holder, signal.SIGKILL)
    ended(holder)
    take(tmp_path, 5)
    for descriptor in (heard, told, ending, end):
        os.close(descriptor)


def test_a_child_that_leaves_the_block_does_not_unlock_for_its_parent(tmp_path: Path) -> None:
    """The child is forked inside the block, and leaves the block before its parent does."""

    def leave() -> None:
        lock.__exit__(None, None, None)
        with pytest.raises(LogLockedError):
            take(tmp_path)

    with DirectoryLock(str(tmp_path)) as lock:
        assert 0 == ended(in_child(leave))
        with pytest.raises(LogLockedError):
            take(tmp_path)
    take(tmp_path)
    assert 0 == descriptors_below(tmp_path)


def interrupted_at(number: int, act: Callable[[], None]) -> bool:
    """Call a function, with Ctrl-C before one of the lines of the module; whether it came."""
    n_lines, is_done = 0, False

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal n_lines, is_done
        if frame.f_code.co_filename != lock.__file__ or frame.f_code.co_name == "__del__":
            return None
        caller = frame.f_back
        while caller is not None and caller.f_code.co_name != "__del__":
            caller = caller.f_back
        if caller is not None:  # the second chance, after the first Ctrl-C
            return None
        # No signal is handled between the end of a block and the release of its lock.
        line = linecache.getline(lock.__file__, frame.f_lineno).strip()
        if event == "line" and not is_done and line != "with _guard:":
            is_done = n_lines == number
            n_lines += 1
            if is_done:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return is_done


def take_a_task(directory: Path) -> None:
    """Lock the directory, and a byte of it for a task."""
    with (
        DirectoryLock(str(directory)) as held,
        held.shared(1) as share,
        lock.TaskLock(share, 1) as task,
    ):
        task.take()


@pytest.mark.parametrize("act", [take, take_a_task])
def test_ctrl_c_at_any_line_gives_up_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None]
) -> None:
    """Otherwise the lock would stay with a notebook until its process ends."""
    monkeypatch.setattr(lock, "_TASKS_END_SECONDS", 0.0)
    numbers = itertools.count()
    gc.freeze()  # a collection of all that the tests have loaded takes a tenth of a second
    try:
        while interrupted_at(next(numbers), partial(act, tmp_path)):
            gc.collect()
            take(tmp_path)
    finally:
        gc.unfreeze()
    assert next(numbers) > 50


def test_each_holder_gives_the_file_another_time(tmp_path: Path) -> None:
    """Also within one step of the file system's clock, and if the time lies in the future."""
    path, times = tmp_path / ".lock", []
    for _ in range(20):
        with DirectoryLock(str(tmp_path)):
            times.append(path.stat().st_mtime_ns)
    assert all(before != after for before, after in itertools.pairwise(times))


@pytest.mark.parametrize("by", [os.utime, os.unlink], ids=["writer", "broker"])
def test_a_holder_that_has_lost_the_lock_changes_nothing(
    tmp_path: Path, by: Callable[[Path], None]
) -> None:
    """Another writer has changed the time of the file; a broker removes it when it stops."""
    (tmp_path / "t-0").mkdir()
    for name in ("a", "t-0/a"):
        (tmp_path / name).touch()
    with DirectoryLock(str(tmp_path)):
        remove_file(str(tmp_path / "t-0" / "a"))
        by(tmp_path / ".lock")
        for name in ("a", "t-0/b"):
            with pytest.raises(LogLockedError, match="another process has taken its lock") as lost:
                rename(str(tmp_path / name), str(tmp_path / "c"))
            assert lost.value.is_lost
    remove_file(str(tmp_path / "a"))


def test_a_holder_notices_a_broker_that_has_the_lock(tmp_path: Path) -> None:
    """A broker does not change the time of the file, and holds its lock for days."""
    (tmp_path / "a").touch()
    with DirectoryLock(str(tmp_path)) as held:
        lock._unlock(held._descriptor)  # as when a lease expires
        with as_broker(tmp_path), pytest.raises(LogLockedError, match="another process has taken"):
            remove_file(str(tmp_path / "a"))
        remove_file(str(tmp_path / "a"))  # the lock is taken back
