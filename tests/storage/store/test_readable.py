"""The contract of a disk holds for mounted file systems and for object stores."""

import os
import time
from pathlib import Path

import pytest
from stores_here import serve, store_of

from segmentlog.store.readable import (
    Entry,
    FileType,
    after_zeros,
    disk_of,
    exists,
    is_directory,
    is_file,
    list_entries,
    list_inodes,
    list_names,
    measure,
    open_file,
    status_of,
    survey,
)

DATA = bytes(range(256)) * 300


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with files of several sizes and one directory below."""
    found = tmp_path / "bucket"
    (found / "logs" / "orders-0").mkdir(parents=True)
    (found / "logs" / "data").write_bytes(DATA)
    (found / "logs" / "empty").write_bytes(b"")
    (found / "logs" / "orders-0" / "0.log").write_bytes(b"0")
    return found


@pytest.fixture(params=["local", "store", "surveyed store"])
def logs(request: pytest.FixtureRequest, directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Path of the directory on each kind of disk."""
    if request.param == "local":
        return str(directory / "logs")
    path = serve(monkeypatch, store_of(directory), "bucket") + "/logs"
    if request.param == "surveyed store":
        survey(path)
    return path


def test_names_and_types(logs: str) -> None:
    """Names, types and inodes are listed in any order."""
    assert ["data", "empty", "orders-0"] == sorted(list_names(logs))
    assert [
        Entry("data", FileType.FILE),
        Entry("empty", FileType.FILE),
        Entry("orders-0", FileType.DIRECTORY),
    ] == sorted(list_entries(logs))
    names = ["data", "empty", "orders-0"]
    inodes = {name: 0 if "://" in logs else status_of(f"{logs}/{name}").inode for name in names}
    assert inodes == list_inodes(logs)
    assert ["0.log"] == list_names(f"{logs}/orders-0")
    for missing in ("nope", "orders-1"):
        with pytest.raises(FileNotFoundError):
            list_names(f"{logs}/{missing}")


def test_status_of_files_and_directories(logs: str) -> None:
    """A status has the size, the type and the times."""
    assert (len(DATA), FileType.FILE) == (status_of(f"{logs}/data").size, FileType.FILE)
    assert FileType.DIRECTORY is status_of(logs).type is status_of(f"{logs}/orders-0").type
    assert abs(status_of(f"{logs}/data").modified_ns / 1e9 - time.time()) < 100
    found = measure(logs, ["empty", "orders-0", "data"])
    assert [0, len(DATA)] == found.sizes[::2]
    assert found.inodes[2] == status_of(f"{logs}/data").inode > 0
    assert {1: FileType.DIRECTORY} == found.types
    with pytest.raises(FileNotFoundError):
        measure(logs, ["data", "nope"])
    with pytest.raises(FileNotFoundError):
        status_of(f"{logs}/nope")


def test_the_kind_of_a_path_is_found(logs: str) -> None:
    """Files, directories and missing paths are distinguished."""
    kinds = [(exists(p), is_file(p), is_directory(p)) for p in (logs, f"{logs}/data", f"{logs}/x")]

    assert [(True, False, True), (True, True, False), (False, False, False)] == kinds


def test_reads_at_a_position(logs: str) -> None:
    """A read returns fewer bytes near the end of the file, and no bytes beyond the end."""
    with open_file(f"{logs}/data") as file:
        assert DATA[5:9] == file.read(5, 4)
        assert DATA[70000:70100] == file.read(70000, 100)
        assert DATA[6:8] == file.read(6, 2)
        assert DATA[-3:] == file.read(len(DATA) - 3, 100)
        assert b"" == file.read(len(DATA), 1)
        assert b"" == file.read(len(DATA) + 5, 1)
        buffer = bytearray(300)
        assert 300 == file.read_into(memoryview(buffer), 1000)
        assert DATA[1000:1300] == buffer
        assert 7 == file.read_into(memoryview(buffer), len(DATA) - 7)
        assert len(DATA) == file.status().size


def test_a_range_that_is_expected_is_read_in_order(logs: str) -> None:
    """Reads outside the expected range are correct, and so is the status of the file."""
    with open_file(f"{logs}/data") as file:
        file.expect(100, 50_000)
        assert DATA[100:161] == file.read(100, 61)
        buffer, read = bytearray(9000), b""
        while len(read) < 49_900:
            n_read = file.read_into(memoryview(buffer), 100 + len(read))
            read += buffer[:n_read]
        assert DATA[100 : 100 + len(read)] == read
        assert DATA[3:9] == file.read(3, 6)
        assert DATA[60_000:60_009] == file.read(60_000, 9)
        assert file.status().inode == status_of(f"{logs}/data").inode
        file.check_unchanged()


def test_all_of_a_file_as_memory(logs: str) -> None:
    """The mapping outlives its context. An empty file has no mapping."""
    with open_file(f"{logs}/data") as file:
        mapped = file.map()
    assert DATA == mapped[:]
    with open_file(f"{logs}/empty") as file:
        assert file.map() is None
        assert b"" == file.read(0, 10)


def test_a_missing_file_cannot_be_opened(logs: str) -> None:
    """A missing file is an error of `open_file`, not of the first read.

    A directory cannot be read.
    """
    with pytest.raises(FileNotFoundError) as caught:
        open_file(f"{logs}/nope")
    assert f"{logs}/nope" == caught.value.filename
    with pytest.raises(OSError, match="directory"):
        open_file(logs).read(0, 1)


def test_another_file_under_the_name_has_another_inode(logs: str, directory: Path) -> None:
    """On a store, the size or the time of an object distinguishes it from its replacement."""
    path, before = directory / "logs" / "data", open_file(f"{logs}/data").status().inode
    other = directory / "other"
    other.write_bytes(DATA[::-1])
    os.utime(other, (1_700_000_000, 1_700_000_000))
    other.rename(path)
    disk_of(logs)
    survey(logs)

    assert before != open_file(f"{logs}/data").status().inode


def test_zeros_end_at_the_first_other_byte(logs: str, directory: Path) -> None:
    """Holes, written zeros and other bytes are found on each kind of disk, up to a given end."""
    path = directory / "logs" / "empty"
    path.write_bytes(bytes(10) + b"x" + bytes(3 << 20) + b"y" + bytes(5))
    os.truncate(path, 8 << 20)
    y_at = 11 + (3 << 20)
    if "://" in logs:
        survey(logs)
    with open_file(f"{logs}/empty") as file:
        found = [after_zeros(file, at, 8 << 20) for at in (0, 10, 11, y_at, y_at + 1)]
        assert [10, 10, y_at, y_at, 8 << 20] == found
        assert 1 << 20 == after_zeros(file, 11, 1 << 20)
