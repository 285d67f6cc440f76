"""The lock of a log directory: refusals with reasons, and nothing left open by them."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from segmentlog.errors import LogDirectoryError
from segmentlog.files.lock import DirectoryLock
from segmentlog.write_errors import LogLockedError


def n_open() -> int:
    """Descriptors of this process."""
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_that_does_not_lock_is_named_and_nothing_is_leaked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """NFS without a lock daemon, a FUSE file system without locks, an old kernel."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    before = n_open()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "fcntl", refuse)
        for _ in range(3):
            with pytest.raises(LogDirectoryError, match="does not lock files") as caught:
                DirectoryLock(str(tmp_path)).__enter__()
    assert os.strerror(code) in str(caught.value)
    assert before == n_open()
    with DirectoryLock(str(tmp_path)):
        pass


def test_a_lock_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """A directory in its place, made by hand."""
    (tmp_path / ".lock").mkdir()
    before = n_open()
    with pytest.raises(LogDirectoryError, match=r"\.lock: .*Is a directory"):
        DirectoryLock(str(tmp_path)).__enter__()
    assert before == n_open()


def test_a_second_thread_of_the_process_waits(tmp_path: Path) -> None:
    """As another process does."""
    with DirectoryLock(str(tmp_path)), pytest.raises(LogLockedError, match="is in use"):
        DirectoryLock(str(tmp_path)).__enter__()
