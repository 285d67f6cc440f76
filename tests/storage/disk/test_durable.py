"""Files that are written durably."""

import errno
import os
from pathlib import Path

import pytest

from segmentlog.disk import durable
from segmentlog.disk.durable import replace_file


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
