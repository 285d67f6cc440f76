"""Locks of bytes: each of them for one description of the file, until that is closed."""

import os
import signal
from pathlib import Path

import pytest

from segmentlog.files.byte_locks import ByteLocks

pytestmark = pytest.mark.linux


def test_a_byte_is_one_holders(tmp_path: Path) -> None:
    """Others take other bytes, and that one once it is free."""
    (tmp_path / "mark").touch()
    with ByteLocks(str(tmp_path / "mark")) as second:
        with ByteLocks(str(tmp_path / "mark")) as first:
            assert [True, False, True] == [first.take(5), second.take(5), second.take(6)]
            assert (True, False) == (second.is_taken(5), second.is_taken(6))
            assert (True, False) == (first.is_taken(6), first.is_taken(7))
            first.close()
            first.close()
        assert not second.is_taken(5)
        assert second.take(5)


def test_a_forked_child_does_not_keep_its_parents_bytes(tmp_path: Path) -> None:
    """A parent that is killed gives them up, although its child lives on."""
    (tmp_path / "mark").touch()
    asks, tells = os.pipe()
    parent = os.fork()
    if not parent:
        ByteLocks(str(tmp_path / "mark")).take(0)
        if not os.fork():
            signal.pause()
        os.write(tells, b"%d" % os.getpid())
        signal.pause()
    with ByteLocks(str(tmp_path / "mark")) as locks:
        os.read(asks, 20)
        was_taken = locks.is_taken(0)
        child = int(Path(f"/proc/{parent}/task/{parent}/children").read_text())
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        is_taken = locks.is_taken(0)
        os.kill(child, signal.SIGKILL)

    assert was_taken
    assert not is_taken


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Nothing is made."""
    with pytest.raises(FileNotFoundError):
        ByteLocks(str(tmp_path / "mark"))
    assert [] == list(tmp_path.iterdir())
