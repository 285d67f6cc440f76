"""Files of users that are written whole, or not at all."""

import os
import threading
from pathlib import Path

import pytest

from segmentlog import OptionError
from segmentlog.store.durable import OutputFile


def names(directory: Path) -> list[str]:
    """Names of all files, hidden ones, too."""
    return sorted(each.name for each in directory.iterdir())


def write(path: Path, *, is_published: bool = True) -> None:
    """Write a file of one line."""
    with OutputFile("offsets", path) as file:
        file.file.write(b"new\n")
        file.finish()
        if is_published:
            file.publish()


def test_an_earlier_file_is_replaced_only_when_the_new_one_is_published(tmp_path: Path) -> None:
    """The permissions are those of the earlier file, or of any new file."""
    path = tmp_path / "f"
    write(path, is_published=False)
    assert [] == names(tmp_path)
    path.write_text("earlier")
    write(path, is_published=False)
    assert ("earlier", ["f"]) == (path.read_text(), names(tmp_path))
    write(path)
    assert ("new\n", ["f"]) == (path.read_text(), names(tmp_path))
    (tmp_path / "g").touch()
    assert (tmp_path / "g").stat().st_mode == path.stat().st_mode
    path.chmod(0o600)
    write(path)
    assert 0o600 == path.stat().st_mode & 0o777


def test_a_link_is_followed(tmp_path: Path) -> None:
    """The file of the link gets the bytes, and the link stays."""
    (tmp_path / "link").symlink_to(tmp_path / "f")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert "new\n" == (tmp_path / "f").read_text()


def test_a_pipe_takes_the_bytes(tmp_path: Path) -> None:
    """A pipe cannot be replaced by a rename."""
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    thread = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    thread.start()
    write(tmp_path / "pipe")
    thread.join()
    assert ["new\n"] == read
    assert (tmp_path / "pipe").is_fifo()


def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    """The error names the option."""
    with pytest.raises(OptionError, match="is a directory"):
        write(tmp_path)
    with pytest.raises(OptionError, match=r"offsets.*in a directory that exists"):
        write(tmp_path / "absent" / "f")


def test_a_full_disk_is_an_error_before_the_file_gets_its_name() -> None:
    """The end of the block, which cannot write the bytes either, does not hide the error."""
    with pytest.raises(OSError, match="No space left"):
        write(Path("/dev/full"))
