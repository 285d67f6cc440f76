"""`verify` continues after files that cannot be read."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.maintain.verification.findings import FindingKind, Severity
from segmentlog.maintain.verification.verify_log import LogCheck

SEGMENTS = [[(0, 5), (1, 6)], [(2, 7), (3, 8)], [(4, 9)]]
MIDDLE = f"{2:020d}.log"


def test_a_segment_that_vanishes_is_a_note(write_log: Callable[..., Path]) -> None:
    """Retention removes the segment during the run, and there is no other finding."""
    path = write_log(SEGMENTS)
    log = segmentlog.open_log_dir(path).log("t", 0)
    assert 3 == len(log.segments)
    for suffix in (".log", ".index", ".timeindex"):
        (path / MIDDLE).with_suffix(suffix).unlink()

    assert [(Severity.NOTE, FindingKind.VANISHED_SEGMENT, str(path / MIDDLE), 2)] == [
        (each.severity, each.kind, each.path, each.offset) for each in LogCheck(log).findings()
    ]


@pytest.mark.parametrize("log_start", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_damage_below_the_log_start_is_a_warning(
    write_log: Callable[..., Path], log_start: int, offset: int
) -> None:
    """No reader is served the batch; where one is, the damage is an error."""
    path = write_log(SEGMENTS)
    file = path / (f"{0:020d}.log" if offset < 2 else MIDDLE)
    data = bytearray(file.read_bytes())
    data[len(data) // 2 - 1 if offset in (0, 2) else -1] ^= 1  # in the first or the second batch
    file.write_bytes(data)
    (path.parent / "log-start-offset-checkpoint").write_text(f"0\n1\nt 0 {log_start}\n")
    found = segmentlog.verify(path.parent)

    expected = Severity.WARNING if offset < log_start else Severity.ERROR
    assert [(expected, offset)] == [
        (each.severity, each.offset) for each in found if each.kind == FindingKind.CORRUPT_BATCH
    ]


def test_a_disk_that_fails_is_an_error(
    write_log: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding names the file, and later files are verified."""
    path = write_log(SEGMENTS)
    log = segmentlog.open_log_dir(path).log("t", 0)
    inode = (path / MIDDLE).stat().st_ino
    (path / f"{4:020d}.index").unlink()
    read = os.preadv

    def failing(descriptor: int, *arguments: Any) -> int:
        if os.fstat(descriptor).st_ino == inode:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, *arguments)

    monkeypatch.setattr(os, "preadv", failing)
    first, second = LogCheck(log).findings()

    assert (FindingKind.UNREADABLE_FILE, str(path / MIDDLE), 2) == (
        first.kind,
        first.path,
        first.offset,
    )
    assert first.message.startswith("Input/output error; ")
    assert FindingKind.OFFSET_INDEX == second.kind


@pytest.mark.timeout(60)
def test_a_segment_that_is_cut_meanwhile_is_verified_to_its_end(
    write_log: Callable[..., Path],
) -> None:
    """A broker truncates its log inside a batch that was listed as whole."""
    path = write_log(SEGMENTS)
    log = segmentlog.open_log_dir(path).log("t", 0)
    assert 3 == len(log.segments)
    size = (path / MIDDLE).stat().st_size
    os.truncate(path / MIDDLE, size - 1)

    found = [each for each in LogCheck(log).findings() if each.path == str(path / MIDDLE)]

    assert [(Severity.ERROR, FindingKind.CORRUPT_BATCH, size // 2, 3)] == [
        (each.severity, each.kind, each.position, each.offset) for each in found
    ]
    assert f"needs {size // 2} bytes, but the file has {size // 2 - 1} left" in found[0].message


def test_a_segment_below_the_log_start_may_have_lost_its_indexes(tmp_path: Path) -> None:
    """A broker deletes the indexes first, and may die before it deletes the log."""
    config = segmentlog.ProducerConfig(segmentlog.TopicConfig(segment_bytes=260), batch_size=0)
    rows = pa.table({"value": [b"x" * 20] * 30})
    for replaces in (False, True):
        with segmentlog.open_writer(tmp_path, "t", config=config, overwrite=replaces) as writer:
            writer.append(rows)
    for path in (tmp_path / "t-0").glob("*.deleted"):
        path.rename(path.with_suffix(""))  # a file that is not put aside yet
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    live = next(each for each in log.segments if each.base_offset >= log.log_start_offset)
    (tmp_path / "t-0" / f"{0:020d}.index").unlink()

    found = list(LogCheck(log).findings())
    assert [(Severity.NOTE, 0)] == [(each.severity, each.offset) for each in found]
    assert "below the log start" in found[0].message
    Path(live.offset_index_path).unlink()
    assert [Severity.NOTE, Severity.WARNING] == [
        each.severity for each in LogCheck(log).findings()
    ]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_terabyte_of_preallocated_zeros_takes_no_time(
    write_log: Callable[..., Path], *, is_closed: bool
) -> None:
    """The segment and its indexes are sparse, and no record is missing."""
    path = write_log(SEGMENTS)
    base = 0 if is_closed else 4
    log = path / f"{base:020d}.log"
    size = log.stat().st_size
    for suffix in (".log", ".index", ".timeindex"):
        os.truncate(log.with_suffix(suffix), 12 << 37)
    n_zeros = (12 << 37) - size
    message = f"{n_zeros} bytes of zeros follow the last batch"
    expected = Severity.NOTE, FindingKind.ZEROS_AT_THE_END, size, f"{message}: preallocated"
    if is_closed:
        message += ", and no record is missing; a broker's consumers fail there"
        expected = Severity.ERROR, FindingKind.CORRUPT_BATCH, size, message
    opened = segmentlog.open_log_dir(path.parent).log("t", 0)

    assert [expected] == [
        (each.severity, each.kind, each.position, each.message)
        for each in LogCheck(opened).findings()
    ]
    assert 5 == segmentlog.read(path.parent, "t").num_rows
    assert 3 == opened.offset_for_timestamp(8).offset


def test_bytes_after_the_zeros_of_an_index_are_no_entries(write_log: Callable[..., Path]) -> None:
    """The finding names the first of them, and memory is not taken for the bytes before them."""
    path = write_log(SEGMENTS)
    index = path / f"{0:020d}.index"
    n_entries = index.stat().st_size // 8
    with index.open("r+b") as file:
        file.seek(1 << 40)
        file.write(b"x")
    found = list(LogCheck(segmentlog.open_log_dir(path.parent).log("t", 0)).findings())

    assert (Severity.ERROR, FindingKind.OFFSET_INDEX, str(index), 1 << 40) == (
        *found[0][:2],
        found[0].path,
        found[0].position,
    )
    assert found[0].message.startswith(
        f"its entries end at entry {n_entries}, and the bytes from {1 << 40} on cannot be entries"
    )
