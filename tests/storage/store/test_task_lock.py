"""Tasks share the lock of a directory, and may outlive the holder of the lock."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from descriptors import descriptors_below

from segmentlog.errors import LogLockedError
from segmentlog.store import lock as lock_module
from segmentlog.store.lock import DirectoryLock, LockShare, TaskLock

pytestmark = pytest.mark.linux


def test_a_byte_is_one_attempts(tmp_path: Path) -> None:
    """Other tasks take other bytes.

    A second attempt gets its byte once the first attempt has released it.
    """
    with (
        DirectoryLock(str(tmp_path)) as held,
        held.shared(2) as share,
        TaskLock(share, 1) as second,
        TaskLock(share, 2) as other,
    ):
        with TaskLock(share, 1) as first:
            assert [True, False, True] == [first.take(), second.take(), other.take()]
            first.close()
            first.close()
        assert second.take()
        assert second.is_shared()
    assert 0 == descriptors_below(tmp_path)


def test_a_task_keeps_others_out_after_the_holder_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder does not wait for ever, and the errors of other writers name the task."""
    monkeypatch.setattr(lock_module, "_TASKS_END_SECONDS", 0.01)
    directory = str(tmp_path)
    with DirectoryLock(directory) as held, held.shared(3) as share:
        task = TaskLock(share, 3)
        assert task.take()
        with pytest.raises(LogLockedError) as caught:
            DirectoryLock(directory, 0).__enter__()
        assert not caught.value.is_task  # the holder, not the task, is in the way
    with task:
        assert not task.is_shared()
        with pytest.raises(LogLockedError, match=r"a task .* will end soon") as caught:
            DirectoryLock(directory, 0).__enter__()
        assert caught.value.is_task
        waiting = threading.Thread(target=lambda: DirectoryLock(directory, 60).__enter__())
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
    waiting.join(60)
    assert not waiting.is_alive()


def test_the_holder_waits_for_tasks_and_lets_no_more_begin(tmp_path: Path) -> None:
    """A task sees at once that its holder wants to end."""
    with DirectoryLock(str(tmp_path)) as held:
        opened = held.shared(1)
        task = TaskLock(opened.__enter__(), 1)
        assert task.take()
        leaving = threading.Thread(target=lambda: opened.__exit__(None, None, None))
        leaving.start()
        while task.is_shared():
            time.sleep(0.001)
        leaving.join(0.1)
        assert leaving.is_alive()
        task.close()
        leaving.join(60)
        assert not leaving.is_alive()
        with pytest.raises(LogLockedError):
            DirectoryLock(str(tmp_path), 0).__enter__()


@pytest.mark.parametrize("has_other_holder", [False, True])
def test_a_task_that_comes_after_its_holder(tmp_path: Path, has_other_holder: bool) -> None:
    """A new holder has locked the byte of the late task, or nobody holds the directory."""
    with DirectoryLock(str(tmp_path)) as held, held.shared(1) as share:
        pass
    with TaskLock(share, 1) as late:
        assert not late.is_shared()
        if has_other_holder:
            with DirectoryLock(str(tmp_path)) as held, held.shared(1) as other:
                assert other != share
                assert not late.take()
                assert not late.is_shared()
        assert late.take()
        assert not late.is_shared()


def test_a_forked_child_does_not_keep_its_parents_byte(tmp_path: Path) -> None:
    """The byte of a parent that is killed becomes free, although its child is alive."""
    with DirectoryLock(str(tmp_path)) as held, held.shared(1) as share:
        asks, tells = os.pipe()
        parent = os.fork()
        if not parent:
            TaskLock(share, 1).take()
            if not (child := os.fork()):
                signal.pause()
            os.write(tells, b"%d" % child)
            signal.pause()
        with TaskLock(share, 1) as lock:
            child = int(os.read(asks, 20))
            was_taken = not lock.take()
            os.kill(parent, signal.SIGKILL)
            os.waitpid(parent, 0)
            is_free = lock.take()
            os.kill(child, signal.SIGKILL)

    assert was_taken
    assert is_free


def test_a_forked_child_that_leaves_the_block_changes_nothing(tmp_path: Path) -> None:
    """The share belongs to the parent, as the lock does."""
    with DirectoryLock(str(tmp_path)) as held:
        opened = held.shared(1)
        share = opened.__enter__()
        task = TaskLock(share, 1)
        assert task.take()
        child = os.fork()
        if not child:
            task.close()
            opened.__exit__(None, None, None)
            held.__exit__(None, None, None)
            os._exit(0)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with TaskLock(share, 1) as second:
            assert not second.take()
            assert second.is_shared()
        task.close()
        opened.__exit__(None, None, None)


def test_a_lock_file_that_is_not_there(tmp_path: Path) -> None:
    """A task does not create a missing lock file."""
    with pytest.raises(FileNotFoundError):
        TaskLock(LockShare(str(tmp_path / ".lock"), 1 << 62, -1), 1)
    assert [] == list(tmp_path.iterdir())
