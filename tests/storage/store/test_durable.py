"""Files that are written durably."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import common_directory
from plain_writes import ONE, values, write

from segmentlog.errors import CorruptCheckpointError, LogDirectoryError, LogLockedError
from segmentlog.store import durable
from segmentlog.store.durable import (
    create_directory,
    create_file,
    do_together,
    open_to_write,
    replace_file,
    unsynced,
)
from segmentlog.store.lock import DirectoryLock


@pytest.mark.parametrize("call", ["write_all", "sync_file"])
def test_a_file_that_is_not_replaced_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A full disk needs its space, and nothing else would remove it."""
    path = tmp_path / "file"
    replace_file(str(path), b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(durable, call, full)
        with pytest.raises(OSError, match="No space left"):
            replace_file(str(path), b"new")
    assert {"file": b"old"} == {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    replace_file(str(path), b"new")
    assert path.read_bytes() == b"new"


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory that other users can reach, with two of user 4711."""
    if os.geteuid():
        pytest.skip("only root writes to the directories of others")
    with common_directory() as path:
        for name in ("logs", "elsewhere"):
            (path / name).mkdir()
            os.chown(path / name, 4711, 4711)
        yield path


@pytest.mark.parametrize("owner", [0, 4711])
def test_a_log_directory_that_is_a_link(top: Path, owner: int) -> None:
    """Root and the owner of the target may link it, as ``/var/lib/kafka``."""
    (top / "link").symlink_to("logs")
    os.chown(top / "link", owner, owner, follow_symlinks=False)
    write(top / "link", ONE)
    assert [b"v"] == values(top / "link") == values(top / "logs")
    assert {4711} == {path.lstat().st_uid for path in (top / "logs").rglob("*")}


def test_a_link_of_another_user_leads_nowhere(top: Path) -> None:
    """Nobody else chooses where root makes a file."""
    (top / "logs" / "t-0").symlink_to("../root")
    (top / "root").mkdir()
    os.chown(top / "logs" / "t-0", 4711, 4711, follow_symlinks=False)
    for make in (create_file, create_directory, open_to_write):
        with pytest.raises(
            LogDirectoryError, match=r"t-0: is a link of user 4711 .* not followed"
        ):
            make(str(top / "logs" / "t-0" / "file"))
    assert [] == [*(top / "root").iterdir()]
    (top / "logs" / "t-0").unlink()
    (top / "logs" / "t-0").symlink_to("../elsewhere")
    os.chown(top / "logs" / "t-0", 4711, 4711, follow_symlinks=False)
    os.close(create_file(str(top / "logs" / "t-0" / "file")))
    assert 4711 == (top / "elsewhere" / "file").stat().st_uid


def test_a_lock_that_root_has_left_is_given_to_the_owner(top: Path) -> None:
    """A file that existed before is replaced, and not given away."""
    (top / "logs" / ".lock").touch()
    before = (top / "logs" / ".lock").stat()
    with (top / "logs" / ".lock").open() as file, DirectoryLock(str(top / "logs"), 0):
        after = (top / "logs" / ".lock").stat()
        assert (0, 4711) == (before.st_uid, after.st_uid)
        assert 0 == os.fstat(file.fileno()).st_uid
        with pytest.raises(LogLockedError):
            DirectoryLock(str(top / "logs"), 0).__enter__()


def test_a_checkpoint_that_is_a_link_is_refused(top: Path) -> None:
    """An error of a reader would show lines of its target."""
    write(top / "logs", ONE)
    checkpoint = top / "logs" / "replication-offset-checkpoint"
    checkpoint.rename(top / "secret")
    checkpoint.symlink_to(top / "secret")
    with pytest.raises(CorruptCheckpointError, match="is a link, which is not followed"):
        values(top / "logs")


def test_a_pipe_in_the_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    """An open of a pipe would wait for its reader."""
    os.mkfifo(tmp_path / "file")
    with pytest.raises(LogDirectoryError, match="is not written to"):
        open_to_write(str(tmp_path / "file"))


def test_a_log_of_a_test_leaves_the_syncs_of_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the thread in the block syncs nothing, even if it writes many files together."""
    synced: list[int] = []
    monkeypatch.setattr(durable.os, "fsync", lambda _: synced.append(threading.get_ident()))
    path = str(tmp_path / "file")
    with unsynced():
        do_together(lambda number: replace_file(f"{path}{number}", b"1"), range(20))
        other = threading.Thread(target=replace_file, args=(path, b"2"))
        other.start()
        other.join()
        assert {other.ident} == set(synced)
    replace_file(path, b"3")
    assert {other.ident, threading.get_ident()} == set(synced)
