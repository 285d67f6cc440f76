"""A kernel moves the window of a scan over a file; rows and errors are those of any other read."""

import os
import random
from pathlib import Path

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.errors import CorruptLogError, LogChangedError, StorageError
from segmentlog.format.kernels.memory import COPY_SLACK
from segmentlog.format.records.one_pass import ReadMemory, Workspace
from segmentlog.model import Codec, ScanPolicy
from segmentlog.native import address_of
from segmentlog.reads import scan
from segmentlog.store.readable import LocalFile
from segmentlog.testing.reference import Record, encode_batch

WINDOW_BYTES = [1, 70, 300, 4096, 1 << 20]


def batches(seed: int = 1, n: int = 60) -> list[bytes]:
    """Batches of many sizes; some are compressed, and some take the careful decoder."""
    draw, found, offset = random.Random(seed), [], 0
    for _ in range(n):
        size = draw.choice([0, 3, 40, 900, 5000])
        records = [
            Record(offset + i, 1_700_000_000_000 + i, b"%d" % i, draw.randbytes(size))
            for i in range(draw.randrange(1, 5))
        ]
        codec = draw.choice([Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.LZ4, Codec.GZIP])
        found.append(encode_batch(records, codec=codec))
        offset += len(records)
    return found


def written(tmp_path: Path, data: bytes) -> segmentlog.Log:
    """A log of one segment."""
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(data)
    return segmentlog.open_log_dir(tmp_path).log("t", 0)


def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only Python read files."""
    monkeypatch.setattr(LocalFile, "descriptor", None)


def rows_of(log: segmentlog.Log, start: int = 0, end: int | None = None) -> pa.Table:
    return log.scan(start, end).read_all()


@pytest.mark.parametrize("window_bytes", WINDOW_BYTES)
def test_rows_do_not_depend_on_windows(
    tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches are larger than a window, end with it, or cross its end."""
    log = written(tmp_path, b"".join(batches()))
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        expected = rows_of(log)
        part = rows_of(log, 17, 90)
    monkeypatch.setattr(scan, "_SMALL_WINDOW_BYTES", window_bytes)

    assert expected == rows_of(log)
    assert part == rows_of(log, 17, 90)


def test_rows_do_not_depend_on_what_earlier_slices_left(tmp_path: Path) -> None:
    """Slices of all codecs take one workspace; rows of a slice stay as they are after it."""
    log = written(tmp_path, b"".join(batches()))
    slices = log.slices(*log.bounds(), 4_000)
    memory = ReadMemory()
    with memory.workspace() as workspace:
        pass

    found = [batch for each in slices for batch in scan.scan_slice(each, memory=memory)]

    assert pa.Table.from_batches(found) == rows_of(log)
    assert min(workspace.window.size, workspace.inflated.size) > COPY_SLACK
    with memory.workspace() as last:
        assert last is workspace, "a slice did not give it back, or took another one"


def test_the_system_is_called_by_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python reads the first window of a file only."""
    usual = [encode_batch([Record(i, 0, None, bytes(500))]) for i in range(100)]
    log = written(tmp_path, b"".join(usual))
    monkeypatch.setattr(scan, "_SMALL_WINDOW_BYTES", 1000)
    read_into, n_calls = LocalFile.read_into, 0

    def counted(self: LocalFile, buffer: memoryview, position: int) -> int:
        nonlocal n_calls
        n_calls += 1
        return read_into(self, buffer, position)

    monkeypatch.setattr(LocalFile, "read_into", counted)

    assert 100 == rows_of(log).num_rows
    assert 1 == n_calls


@pytest.mark.parametrize("window_bytes", WINDOW_BYTES)
def test_a_call_that_fails_is_repeated_by_python(
    tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gets a descriptor that cannot be read; Python's call names a fault, if any."""
    log = written(tmp_path, b"".join(batches()))
    expected = rows_of(log)
    monkeypatch.setattr(scan, "_SMALL_WINDOW_BYTES", window_bytes)
    descriptor = os.open(tmp_path / "unreadable", os.O_WRONLY | os.O_CREAT)
    monkeypatch.setattr(LocalFile, "descriptor", descriptor)
    try:
        assert expected == rows_of(log)
    finally:
        os.close(descriptor)


def test_a_disk_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the kernel nor Python can read on; the rows before the fault come first."""
    log = written(tmp_path, b"".join(batches()))
    monkeypatch.setattr(scan, "_SMALL_WINDOW_BYTES", 6000)
    monkeypatch.setattr(LocalFile, "descriptor", os.open(tmp_path, os.O_RDONLY))
    read_into = LocalFile.read_into

    def broken(self: LocalFile, buffer: memoryview, position: int) -> int:
        if position > 20_000:
            raise OSError(5, "Input/output error", self.path)
        return read_into(self, buffer, position)

    monkeypatch.setattr(LocalFile, "read_into", broken)
    found: list[pa.RecordBatch] = []
    with pytest.raises(StorageError, match=r"0\.log"):
        found.extend(log.scan())
    os.close(LocalFile.descriptor)  # type: ignore[arg-type]

    assert found


@pytest.mark.parametrize("n_left", [2_000, 40_000])
def test_a_file_that_is_cut_during_the_read(
    tmp_path: Path, n_left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the file is looked up again, and the missing records are an error."""
    data = b"".join(batches())
    log = written(tmp_path, data)
    monkeypatch.setattr(scan, "_SMALL_WINDOW_BYTES", 300)
    (log_slice,) = log.slices(0, log.end_offset())
    os.truncate(tmp_path / "t-0" / f"{0:020d}.log", n_left)

    with pytest.raises((LogChangedError, CorruptLogError)):
        list(scan.scan_slice(log_slice))


def test_damage_is_named_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are those of the file, not of the moved window."""
    every = batches()
    data = bytearray(b"".join(every))
    position = sum(map(len, every[:40]))
    data[position + 80] ^= 1
    log = written(tmp_path, bytes(data))
    monkeypatch.setattr(scan, "_SMALL_WINDOW_BYTES", 300)

    with pytest.raises(CorruptLogError) as caught:
        rows_of(log)
    assert position == caught.value.position


def test_a_limit_of_bytes_a_second_keeps_the_reads_in_python(tmp_path: Path) -> None:
    """The kernel would not wait."""
    log = written(tmp_path, b"".join(batches(n=5)))
    (planned,) = log.slices(0, log.end_offset())[0].files
    for policy, may in [
        (ScanPolicy(), True),
        (ScanPolicy(max_bytes_per_second=1 << 30), False),
        (ScanPolicy(spare_page_cache=True), False),
    ]:
        with scan.PlannedFile(planned, policy, Workspace()) as file:
            assert may == (file.descriptor is not None), policy


def test_the_address_of_the_system_call_is_known() -> None:
    """Linux and macOS have it in the C library of the process."""
    assert address_of("pread") > 0
