"""Index files are read whole, mapped, or read piece by piece."""

import errno
from pathlib import Path

import pytest

from segmentlog.log import indexes
from segmentlog.log.indexes import SMALL_BYTES, IndexFile
from segmentlog.store.readable import FileStatus, MadeFile, ReadableFile


@pytest.mark.parametrize("mapped", [True, False])
def test_an_index_file_answers_zeros_where_it_ends(tmp_path: Path, mapped: bool) -> None:
    """Missing, empty and short files read as if they were preallocated."""
    path = tmp_path / "i"
    with IndexFile(str(path), mapped=mapped) as missing:
        assert missing.read(0, 8) == bytes(8)
    path.write_bytes(b"")
    with IndexFile(str(path), mapped=mapped) as empty:
        assert (0, bytes(8)) == (empty.size, empty.read(0, 8))
    path.write_bytes(b"abcdefghij")
    with IndexFile(str(path), mapped=mapped) as file:
        assert (b"cdef", b"ij\0\0") == (file.read(2, 4), file.read(8, 4))
    path.write_bytes(b"ab" + bytes(SMALL_BYTES - 2) + b"yz")
    with IndexFile(str(path), mapped=mapped) as file:
        assert (mapped, b"yz\0\0") == (file.is_mapped, file.read(SMALL_BYTES, 4))


@pytest.mark.parametrize("mapped", [True, False])
def test_a_small_index_is_read_when_it_is_opened(tmp_path: Path, mapped: bool) -> None:
    """A small index is not mapped, so its reader does not notice a later truncation."""
    path = tmp_path / "i"
    path.write_bytes(b"ab" * (SMALL_BYTES // 2))
    with IndexFile(str(path), mapped=mapped) as file:
        path.write_bytes(b"")
        assert (False, b"abab") == (file.is_mapped, file.read(SMALL_BYTES - 4, 4))
    assert bytes(4) == file.read(0, 4)


@pytest.mark.parametrize("n_bytes", [SMALL_BYTES, SMALL_BYTES + 8])
def test_an_index_that_fails_after_it_was_opened_costs_a_scan(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    n_bytes: int,
) -> None:
    """A disk has a bad sector: the index answers zeros, and a warning names it once."""
    path = tmp_path / "i"
    path.write_bytes(b"\1" * n_bytes)
    usual = indexes.open_file

    def failing(name: str) -> ReadableFile:
        file = usual(name)

        def read(position: int, n_bytes: int) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(type(file), "read", lambda _, *range_: read(*range_))
        return file

    monkeypatch.setattr(indexes, "open_file", failing)
    with IndexFile(str(path), mapped=False) as index:
        assert [bytes(8), bytes(8)] == [index.read(at, 8) for at in (0, 8)]
    (message,) = caplog.messages
    assert message.startswith(f"{path} cannot be read")


class UnpromisedFile(ReadableFile):
    """A file of a class that promises nothing: another process may cut it."""

    def __init__(self, data: bytes) -> None:
        self.path, self._data = "i", data

    def status(self) -> FileStatus:
        return FileStatus.made(len(self._data), 1)

    def read(self, position: int, n_bytes: int) -> bytes:
        return self._data[position : position + n_bytes]

    def map(self) -> bytes:
        raise AssertionError("a touch of a page after the new end would be SIGBUS")


def test_only_a_file_that_is_never_cut_is_mapped_unasked() -> None:
    """A class of files has to promise it."""
    data = b"ab" + bytes(SMALL_BYTES - 2) + b"yz"
    with IndexFile("i", mapped=False, file=UnpromisedFile(data)) as index:
        assert (b"ab", b"yz\0\0") == (index.read(0, 2), index.read(SMALL_BYTES, 4))
    made = MadeFile("i", data)
    with IndexFile("i", mapped=False, file=made) as index:
        assert (b"ab", b"yz\0\0") == (index.read(0, 2), index.read(SMALL_BYTES, 4))
