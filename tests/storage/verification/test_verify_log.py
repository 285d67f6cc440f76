"""`verify` continues after files that cannot be read."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.verification.findings import FindingKind, Severity
from segmentlog.verification.verify_log import verify_log

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
        (each.severity, each.kind, each.path, each.offset) for each in verify_log(log)
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
    first, second = verify_log(log)

    assert (FindingKind.UNREADABLE_FILE, str(path / MIDDLE), 2) == (
        first.kind, first.path, first.offset,
    )  # fmt: skip
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

    found = [each for each in verify_log(log) if each.path == str(path / MIDDLE)]

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

    found = list(verify_log(log))
    assert [(Severity.NOTE, 0)] == [(each.severity, each.offset) for each in found]
    assert "below the log start" in found[0].message
    Path(live.offset_index_path).unlink()
    assert [Severity.NOTE, Severity.WARNING] == [each.severity for each in verify_log(log)]
