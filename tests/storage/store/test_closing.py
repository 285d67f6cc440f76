"""Contexts close what they hold, whether their block succeeds or fails."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from segmentlog.format.records.one_pass import Workspace
from segmentlog.log.indexes import SMALL_BYTES, IndexFile, OffsetIndex
from segmentlog.model import ScanPolicy, SliceFile
from segmentlog.reads.listed import UNCHECKED
from segmentlog.reads.scan import PlannedFile
from segmentlog.store.readable import Closing, LocalDisk

OPENED: dict[str, Callable[[str], Closing]] = {
    "file": LocalDisk().open,
    "index file": lambda path: IndexFile(path, mapped=False),
    "index": lambda path: OffsetIndex(path, 0, mapped=False),
    "planned file": lambda path: PlannedFile(
        SliceFile(path, 0, 8, 0, UNCHECKED, 0), ScanPolicy(), Workspace()
    ),
}


def n_open(path: Path) -> int:
    """Number of descriptors of this process for a file."""
    found = 0
    for name in Path("/dev/fd").iterdir():
        try:
            found += os.path.samestat(os.fstat(int(name.name)), path.stat())
        except OSError:
            continue
    return found


@pytest.mark.parametrize("kind", [*OPENED])
def test_a_file_is_closed_at_the_end_of_the_block(tmp_path: Path, kind: str) -> None:
    """The file is closed whether its block raises an error or not.

    A second `close` does nothing.
    """
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes(bytes(SMALL_BYTES + 8))  # a smaller index would be read and closed at once
    with OPENED[kind](str(path)) as opened:
        assert 1 == n_open(path)
    assert 0 == n_open(path)
    opened.close()
    with pytest.raises(KeyError), OPENED[kind](str(path)):
        raise KeyError
    assert 0 == n_open(path)
