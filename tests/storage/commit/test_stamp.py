"""The stamp of a log directory: no two of its states have the same one."""

import os
import time
from pathlib import Path

import pytest
from plain_writes import ONE, write

from segmentlog.commit import stamp
from segmentlog.commit.stamp import read_stamp, renew_stamp
from segmentlog.commit.state import STATE_FILE, State


def test_a_directory_without_commits_has_none(tmp_path: Path) -> None:
    """And the first renewal gives it one, with a state that says that nothing is committed."""
    assert read_stamp(str(tmp_path)) is None
    renew_stamp(str(tmp_path))

    assert read_stamp(str(tmp_path)) is not None
    assert (0, "") == (State.read(str(tmp_path)).sequence, State.read(str(tmp_path)).token)


def test_each_renewal_gives_another(tmp_path: Path) -> None:
    """However quickly they follow each other, and the state stays as it is."""
    write(tmp_path, ONE)
    before = State.read(str(tmp_path))
    stamps = set()
    for _ in range(1000):
        renew_stamp(str(tmp_path))
        stamps.add(read_stamp(str(tmp_path)))

    assert 1000 == len(stamps)
    assert before == State.read(str(tmp_path))


def test_a_clock_that_was_set_wrongly_does_not_hold_it(tmp_path: Path) -> None:
    """The file's time may lie years ahead."""
    renew_stamp(str(tmp_path))
    ahead = time.time_ns() + 10**17
    os.utime(tmp_path / STATE_FILE, ns=(ahead, ahead))
    first = read_stamp(str(tmp_path))
    renew_stamp(str(tmp_path))

    assert (tmp_path / STATE_FILE).stat().st_mtime_ns > ahead
    assert first != read_stamp(str(tmp_path))


def test_a_file_system_with_coarse_times_gets_a_longer_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAT keeps two seconds."""
    renew_stamp(str(tmp_path))
    path, real = tmp_path / STATE_FILE, os.utime

    def utime(path: str, ns: tuple[int, int]) -> None:
        real(path, ns=(ns[0], ns[1] // 2_000_000_000 * 2_000_000_000))

    monkeypatch.setattr(stamp.os, "utime", utime)
    utime(str(path), (0, time.time_ns() + 10**15))
    before = path.stat().st_mtime_ns
    renew_stamp(str(tmp_path))

    assert path.stat().st_mtime_ns > before


def test_a_commit_changes_it_before_it_writes_and_when_it_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that lists files between two equal stamps sees nothing of it."""
    write(tmp_path, ONE)
    seen = [read_stamp(str(tmp_path))]
    real = os.replace

    def replace(source: str, target: str) -> None:
        if Path(target).name == STATE_FILE:
            seen.append(read_stamp(str(tmp_path)))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write(tmp_path, ONE)
    seen.append(read_stamp(str(tmp_path)))

    assert 3 == len(set(seen))
