"""The table beside a staged file lists its batches, so that the file need not be read."""

import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from large_writes import LARGE, pieces, staged, wide_rows
from plain_writes import numbers, write
from soundness import assert_tidy

from segmentlog.errors import StagedFileError, StorageError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.crc32c import checksum
from segmentlog.writes.append import Extent, plan_segment, read_table, table_name
from segmentlog.writes.staged_files import TaskExtents


def own(extents: list[Extent]) -> Extent:
    """The first extent of a file that is moved."""
    return next(each for each in extents if each.file.is_own and each.end > 300_000)


def logs(directory: Path) -> dict[str, bytes]:
    """The bytes of all files of the partitions."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.glob("t-*/*")
        if path.suffix in {".log", ".index", ".timeindex"}
    }


def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Number of reads of each file, by its name."""
    found: Counter[str] = Counter()
    real = os.pread

    def counting(descriptor: int, n_bytes: int, position: int) -> bytes:
        found[Path(f"/proc/self/fd/{descriptor}").readlink().name] += 1
        return real(descriptor, n_bytes, position)

    monkeypatch.setattr(os, "pread", counting)
    return found


@pytest.mark.linux
def test_a_commit_reads_a_few_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a table, the commit copies the batches, and makes the same segments and indexes."""
    job, extents = staged(tmp_path / "a", [*pieces(0, 3300)])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    there = str(tmp_path / "b")
    request = replace(job.request, directory=there)
    other = replace(job, request=request, topics=replace(job.topics, place=there))
    for path in (tmp_path / "b").glob("*.batches.stage"):
        path.unlink()
    name = own(extents).file.name
    moved = [(tmp_path / each / name).stat().st_ino for each in "ab"]
    with monkeypatch.context() as patch:
        found = reads(patch)
        job.commit([TaskExtents.of(extents)])
    other.commit([TaskExtents.of(extents)])

    assert (16, 1) == (found[name], found[table_name(name)])
    segments = [tmp_path / each / "t-0" / f"{0:020d}.log" for each in "ab"]
    assert [True, False] == [
        path.stat().st_ino == inode for path, inode in zip(segments, moved, strict=True)
    ]
    assert logs(tmp_path / "a") == logs(tmp_path / "b")
    assert len(logs(tmp_path / "a")) > 2
    assert_tidy(tmp_path / "a")
    assert_tidy(tmp_path / "b")


def _flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "mark": _flipped(0),
    "version": _flipped(4),
    "size": _flipped(8),
    "rows": _flipped(16),
    "row": _flipped(60),
    "sum": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "cut": lambda data: data[:-24],
    "longer": lambda data: data + b"x",
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "head": lambda data: data[:24],
}


@pytest.mark.parametrize("damage", [*_DAMAGES, "missing", "directory"])
def test_a_damaged_table_is_not_used(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is copied with the same result, and a warning names the damaged table."""
    job, extents = staged(tmp_path, [*pieces(0, 3300)])
    extent = own(extents)
    assert read_table(job.directory, extent) is not None
    assert plan_segment(job.directory, extent, 0, 5, 3, LARGE.topic_config) is not None
    path = tmp_path / table_name(extent.file.name)
    if damage in _DAMAGES:
        path.write_bytes(_DAMAGES[damage](path.read_bytes()))
    else:
        path.unlink()
    if damage == "directory":
        path.mkdir()
    with caplog.at_level(logging.WARNING):
        assert read_table(job.directory, extent) is None
    assert (path.name in caplog.text) == (damage != "missing")
    assert plan_segment(job.directory, extent, 0, 5, 3, LARGE.topic_config) is None
    if damage == "directory":
        path.rmdir()
    job.commit([TaskExtents.of(extents)])

    assert [*range(3300)] == numbers(tmp_path)[0]
    assert_tidy(tmp_path)


@pytest.mark.parametrize("at", [4, 24, 32, 40, 44])
def test_a_table_that_is_whole_and_wrong(tmp_path: Path, at: int) -> None:
    """A table with a right checksum is refused if its format or its batches are wrong."""
    job, extents = staged(tmp_path, [*pieces(0, 3300)])
    extent = own(extents)
    path = tmp_path / table_name(extent.file.name)
    data = bytearray(path.read_bytes()[:-4])
    data[at] ^= 1
    named = np.frombuffer(extent.file.name.encode() + data, np.uint8)
    path.write_bytes(data + checksum(named, 0, len(named)).to_bytes(4, "little"))

    assert read_table(job.directory, extent) is None
    job.commit([TaskExtents.of(extents)])
    assert [*range(3300)] == numbers(tmp_path)[0]
    assert_tidy(tmp_path)


def test_the_table_of_another_file(tmp_path: Path) -> None:
    """Both tables have the same size and the same batches, but another file's name."""
    kind, config = pa.timestamp("us", "UTC"), replace(LARGE, use_timestamps=True)
    rows = [
        batch.append_column("timestamp", pa.array([10**15] * batch.num_rows, kind))
        for batch in pieces(0, 3300)
    ]
    job, extents = staged(tmp_path, rows, rows, config=config)
    first, second = (each for each in extents if each.file.is_own and each.end > 300_000)
    assert first[3:] == second[3:]
    shutil.copy(tmp_path / table_name(first.file.name), tmp_path / table_name(second.file.name))

    assert read_table(job.directory, first) is not None
    assert read_table(job.directory, second) is None
    job.abort()


@pytest.mark.parametrize("damage", ["first", "last", "shorter", "gone"])
def test_a_file_that_is_not_what_its_table_says(tmp_path: Path, damage: str) -> None:
    """The file is refused, although its table is whole."""
    write(tmp_path, wide_rows(0, 50), config=LARGE)
    job, extents = staged(tmp_path, [*pieces(50, 3300)])
    extent = own(extents)
    rows = read_table(job.directory, extent)
    assert rows is not None
    path = tmp_path / extent.file.name
    data = bytearray(path.read_bytes())
    data[0 if damage == "first" else extent.end - int(rows[-1, layout.SIZE])] ^= 1
    if damage == "shorter":
        del data[-1:]
    path.write_bytes(data)
    if damage == "gone":
        path.unlink()
    with pytest.raises(StorageError if damage == "gone" else StagedFileError):
        job.commit([TaskExtents.of(extents)])
    job.abort()

    assert [*range(50)] == numbers(tmp_path)[0]
    assert_tidy(tmp_path)


def test_files_that_are_copied_have_no_table(tmp_path: Path) -> None:
    """Small files and files of small batches have no table, and no table in memory."""
    small = replace(LARGE, batch_size=4_000)
    for config, n_rows in ((LARGE, 30), (small, 3300)):
        job, _ = staged(tmp_path, [*pieces(0, n_rows)], config=config)
        assert [] == [*tmp_path.glob("*.batches.stage")]
        job.abort()


@pytest.mark.parametrize("end", ["discard", "abort", "sweep"])
def test_tables_go_with_their_files(tmp_path: Path, end: str) -> None:
    """A task that fails, a job that fails and a job that is gone leave no table."""
    job, _ = staged(tmp_path, [*pieces(0, 3300)])
    stager = job.stager(1)
    for batch in pieces(0, 9000):
        stager.add(batch)
    of_task = [*tmp_path.glob("segmentlog.*.1.*.batches.stage")]
    assert of_task
    if end == "discard":
        stager.discard()
        assert not any(path.exists() for path in of_task)
        assert [*tmp_path.glob("segmentlog.*.0.*.batches.stage")]
        job.abort()
    elif end == "abort":
        job.abort()
    else:
        job.files.mark.unlink()
        write(tmp_path, wide_rows(0, 50), config=LARGE)
    assert [] == [*tmp_path.glob("*.stage")]
