"""Index files, mapped or read piece by piece."""

from pathlib import Path

import pytest

from segmentlog.files.index_file import IndexFile


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
        assert (mapped, b"ij\0\0") == (file.is_mapped, file.read(8, 4))
