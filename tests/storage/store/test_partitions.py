"""Files that are removed from a log stay for a while under a name that its readers find."""

import time
from pathlib import Path

import pytest

from segmentlog.format.names import FileState, parse_segment_file
from segmentlog.store import partitions
from segmentlog.store.partitions import names_aside, put_file_aside, remove_deleted
from segmentlog.store.readable import FileStatus

LOG = f"{0:020d}.log"


def test_each_file_of_a_name_is_found_by_its_inode(tmp_path: Path) -> None:
    """Several files that had one name are found by their inodes.

    Their new names show that they are not a part of the log.
    """
    inodes = {}
    for content in (b"first", b"second", b"third"):
        (tmp_path / LOG).write_bytes(content)
        inodes[content] = (tmp_path / LOG).stat().st_ino
        put_file_aside(str(tmp_path), LOG)

    for content, inode in inodes.items():
        names = names_aside(str(tmp_path / LOG), inode)
        found = [path for path in map(Path, names) if path.exists()]
        assert content in [path.read_bytes() for path in found if path.stat().st_ino == inode]
    parsed = [parse_segment_file(path.name) for path in tmp_path.iterdir()]
    assert [FileState.DELETED] * 3 == [each.state for each in parsed if each]


@pytest.mark.parametrize("name", [f"{0:020d}.index", f"{0:020d}.snapshot"])
def test_no_read_needs_two_of_another_kind(tmp_path: Path, name: str) -> None:
    """Only the last file of a name is kept, because an index is read only during planning."""
    for content in (b"first", b"second"):
        (tmp_path / name).write_bytes(content)
        put_file_aside(str(tmp_path), name)

    assert {f"{name}.deleted": b"second"} == {
        path.name: path.read_bytes() for path in tmp_path.iterdir()
    }


def test_a_file_of_a_clock_that_was_ahead_goes_after_its_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is removed after its delay, although the clock was a year ahead before."""
    (tmp_path / LOG).touch()
    put_file_aside(str(tmp_path), LOG)
    year_ns, real = 365 * 24 * 3600 * 10**9, partitions.status_of
    ahead_until_ns = time.time_ns()

    def status_of(path: str) -> FileStatus:
        found = real(path)
        is_ahead = found.changed_ns <= ahead_until_ns
        return found._replace(changed_ns=found.changed_ns + year_ns * is_ahead)

    monkeypatch.setattr(partitions, "status_of", status_of)
    time.sleep(0.05)  # the file system's clock has steps
    assert not remove_deleted(str(tmp_path), 60_000)
    assert not remove_deleted(str(tmp_path), 60_000)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    assert remove_deleted(str(tmp_path), 60_000)
    assert [] == [*tmp_path.iterdir()]
