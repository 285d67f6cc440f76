"""Files that leave the log stay under a name that their readers find."""

from pathlib import Path

import pytest

from segmentlog.disk.aside import names_aside, set_aside
from segmentlog.names import FileState, parse_segment_file

LOG = f"{0:020d}.log"


def test_each_file_of_a_name_is_found_by_its_inode(tmp_path: Path) -> None:
    """And its name says that it is no part of the log."""
    inodes = {}
    for content in (b"first", b"second", b"third"):
        (tmp_path / LOG).write_bytes(content)
        inodes[content] = (tmp_path / LOG).stat().st_ino
        set_aside(str(tmp_path), LOG)

    for content, inode in inodes.items():
        names = names_aside(str(tmp_path / LOG), inode)
        found = [path for path in map(Path, names) if path.exists()]
        assert content in [path.read_bytes() for path in found if path.stat().st_ino == inode]
    parsed = [parse_segment_file(path.name) for path in tmp_path.iterdir()]
    assert [FileState.DELETED] * 3 == [each.state for each in parsed if each]


@pytest.mark.parametrize("name", [f"{0:020d}.index", f"{0:020d}.snapshot"])
def test_no_read_needs_two_of_another_kind(tmp_path: Path, name: str) -> None:
    """An index is only read while a read is planned."""
    for content in (b"first", b"second"):
        (tmp_path / name).write_bytes(content)
        set_aside(str(tmp_path), name)

    assert {f"{name}.deleted": b"second"} == {
        path.name: path.read_bytes() for path in tmp_path.iterdir()
    }
