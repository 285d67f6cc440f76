"""Reads leave the page cache as they found it; ``mincore`` shows what it holds."""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.store import beside_broker
from segmentlog.store.beside_broker import BorrowedPages, _residency

pytestmark = [pytest.mark.linux, pytest.mark.usefixtures("real_syncs")]

PAGE = os.sysconf("SC_PAGESIZE")
MB = 1 << 20


def resident(path: Path) -> set[int]:
    """Numbers of the pages of a file that are in the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = _residency(descriptor, 0, path.stat().st_size)
    finally:
        os.close(descriptor)
    return {page for page, is_there in enumerate(found) if is_there}


def forget(path: Path) -> None:
    """Drop a file from the page cache, or skip the test: a file system in memory keeps it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if resident(path):
        pytest.skip("the file system keeps files in memory")


def touch(path: Path, first: int, n_pages: int) -> set[int]:
    """Read pages as a broker's consumer does; return the pages that are in the cache then."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        os.pread(descriptor, n_pages * PAGE, first * PAGE)
    finally:
        os.close(descriptor)
    return resident(path)


def undisturbed(test: Callable[..., None]) -> Callable[..., None]:
    """Repeat a test in which the system has taken a page, or has held one for a moment.

    The system may do so at any time.  A test of wrong code fails each time.
    """

    @wraps(test)
    def repeated(**fixtures: Any) -> None:
        for _ in range(4):
            try:
                return test(**fixtures)
            except AssertionError:
                if "file" in fixtures:
                    forget(fixtures["file"])
        return test(**fixtures)

    return repeated


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 12 MiB and some bytes, not in the page cache."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(12 * MB + 100))
    forget(path)
    return path


def read(path: Path, start: int, end: int, *, window: int = MB) -> set[int]:
    """Read a range with care; return the pages that were in the cache in the middle of it."""
    descriptor = os.open(path, os.O_RDONLY)
    borrowed = BorrowedPages(descriptor, str(path), start, end)
    middle: set[int] = set()
    for position in range(start, end, window):
        borrowed.read_up_to(position)
        os.pread(descriptor, min(window, end - position), position)
        if position <= (start + end) // 2:
            middle = resident(path)
    borrowed.give_back()
    os.close(descriptor)
    return middle


@undisturbed
def test_pages_that_were_there_stay_and_others_go(file: Path) -> None:
    """The pages of a consumer in the middle of the range stay, to the page."""
    before = touch(file, 700, 3) | touch(file, 1000, 1)
    assert {700, 701, 702, 1000} <= before
    read(file, 0, 12 * MB + 100)

    assert before == resident(file)


@undisturbed
def test_pages_go_while_the_file_is_read(file: Path) -> None:
    """A large file never takes much of the cache: a window and the next one."""
    middle = read(file, 0, 12 * MB, window=MB // 4)

    assert 0 < len(middle) <= 2 * (MB // 4) // PAGE
    assert set() == resident(file)


@undisturbed
@pytest.mark.parametrize(("start", "end"), [(5000, 3 * MB + 77), (4 * MB, 5 * MB), (77, 78)])
def test_a_part_of_a_file_is_given_back(file: Path, start: int, end: int) -> None:
    """Pages at both edges go, too; the system reads nothing ahead, after the end of the range."""
    before = touch(file, (2 * MB) // PAGE, 2)
    read(file, start, end)

    assert before == resident(file)


def test_a_range_beyond_the_file_is_nothing(file: Path) -> None:
    """A file may have become shorter since it was planned."""
    assert set() == read(file, 13 * MB, 14 * MB)
    os.truncate(file, 0)
    assert set() == read(file, 0, MB)


def test_pages_stay_where_the_system_shows_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A user that may only read sees all pages as if they were there; a warning says so."""
    monkeypatch.setattr(beside_broker.os, "geteuid", lambda: 54321)
    monkeypatch.setattr(beside_broker.os, "access", lambda *_, **__: False)
    beside_broker._warn_of_owner.cache_clear()
    for _ in range(2):
        read(file, 0, MB)

    assert len(resident(file)) >= MB // PAGE
    (warning,) = caplog.messages
    assert "only to users who may write to them" in warning


def test_other_systems_do_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A C library without the functions, and another system, leave reads as they are."""
    monkeypatch.setattr(beside_broker, "_libc", lambda: None)
    read(file, 0, MB)
    there = resident(file)
    monkeypatch.undo()
    monkeypatch.setattr(beside_broker.sys, "platform", "darwin")
    read(file, 0, MB)

    assert set() == there
    assert len(resident(file)) >= MB // PAGE


@undisturbed
@pytest.mark.parametrize("threads", [False, True])
def test_a_scan_leaves_the_cache_as_it_was(tmp_path: Path, *, threads: bool) -> None:
    """Without the option, the log is in the cache afterwards."""
    config = segmentlog.ProducerConfig(batch_size=100_000)
    directory = tmp_path / f"{len([*tmp_path.iterdir()])}"
    with segmentlog.open_writer(directory, "a", config=config) as writer:
        writer.append(pa.table({"value": [os.urandom(1000)] * 24_000}))
    log = segmentlog.open_log_dir(directory).log("a", 0)
    path = Path(log.segments[0].path)
    forget(path)
    before = touch(path, 1500, 4)
    rows = log.scan(spare_page_cache=True, use_threads=threads).read_all().num_rows

    assert 24_000 == rows
    assert {1500, 1501, 1502, 1503} <= before <= resident(path)
    assert len(resident(path) - before) <= 128  # planning looks up the ends of eight slices
    assert 24_000 == log.scan(use_threads=threads).read_all().num_rows
    assert len(resident(path)) > 20 * MB // PAGE
