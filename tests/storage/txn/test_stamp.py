"""The stamp of a log directory: no two states of a directory have equal stamps."""

import os
import time
from pathlib import Path

import pytest
from plain_writes import ONE, write

from segmentlog.txn.state import STATE_FILE, State, read_stamp, renew_stamp


def test_a_directory_without_commits_has_none(tmp_path: Path) -> None:
    """The first renewal gives the directory a stamp and a state without any commit."""
    assert read_stamp(str(tmp_path)) is None
    renew_stamp(str(tmp_path))

    assert read_stamp(str(tmp_path)) is not None
    assert (0, "") == (State.read(str(tmp_path)).sequence, State.read(str(tmp_path)).token)


def test_each_renewal_gives_another(tmp_path: Path) -> None:
    """Renewals in quick succession give different stamps and keep the state."""
    write(tmp_path, ONE)
    before = State.read(str(tmp_path))
    stamps = set()
    for _ in range(1000):
        renew_stamp(str(tmp_path))
        stamps.add(read_stamp(str(tmp_path)))

    assert 1000 == len(stamps)
    assert before == State.read(str(tmp_path))


def test_a_clock_that_was_set_wrongly_does_not_hold_it(tmp_path: Path) -> None:
    """A stamp is renewed although the time of the file lies years ahead."""
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
    """FAT keeps times in steps of two seconds."""
    renew_stamp(str(tmp_path))
    path, real = tmp_path / STATE_FILE, os.utime

    def utime(path: str, ns: tuple[int, int], *, follow_symlinks: bool = True) -> None:
        coarse = ns[0], ns[1] // 2_000_000_000 * 2_000_000_000
        real(path, ns=coarse, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "utime", utime)
    utime(str(path), (0, time.time_ns() + 10**15))
    before = path.stat().st_mtime_ns
    renew_stamp(str(tmp_path))

    assert path.stat().st_mtime_ns > before


def test_a_commit_changes_it_before_it_writes_and_when_it_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader whose stamps before and after a listing are equal has seen no part of a commit."""
    write(tmp_path, ONE)
    seen = [read_stamp(str(tmp_path))]
    real = os.rename

    def rename(source: str, target: str, **how: int) -> None:
        if Path(target).name == STATE_FILE:
            seen.append(read_stamp(str(tmp_path)))
        real(source, target, **how)

    monkeypatch.setattr(os, "rename", rename)
    write(tmp_path, ONE)
    seen.append(read_stamp(str(tmp_path)))

    assert 3 == len(set(seen))
