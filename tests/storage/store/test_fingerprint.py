"""Looks at files: what they prove, and from when on."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from segmentlog.store import fingerprint as look
from segmentlog.store import readable
from segmentlog.store.fingerprint import Fingerprint

#: Sets the time of all files.
SetTimes = Callable[[int], None]


@pytest.fixture
def set_times(monkeypatch: pytest.MonkeyPatch) -> SetTimes:
    """The times of all files are as they are set, as on a file system with a coarse clock."""
    real = readable._status

    def set_to(time_ns: int) -> None:
        monkeypatch.setattr(
            readable,
            "_status",
            lambda found, **how: real(found, **how)._replace(
                modified_ns=time_ns,
                changed_ns=time_ns,
                is_remembered=False,
                n_allocated=0,
            ),
        )

    return set_to


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clock that nobody sets, in nanoseconds."""
    now = [10**15]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    return now


def test_a_time_that_was_set_back_is_not_trusted(tmp_path: Path) -> None:
    """A copy has the time of its original; the time of its inode is that of the copy."""
    path = tmp_path / "file"
    path.touch()
    hour_ago = time.time_ns() - 3600 * 10**9
    os.utime(path, ns=(hour_ago, hour_ago))
    found = look.fingerprint(str(path))

    assert found.stamp is not None
    assert not found.is_settled  # its inode was changed just now


@pytest.mark.parametrize(
    ("age_ns", "is_settled"), [(10**10, True), (10**7, False), (-(10**9), False)]
)
def test_the_time_of_a_file_shows_whether_it_is_trusted(
    tmp_path: Path, set_times: SetTimes, age_ns: int, is_settled: bool
) -> None:
    """A time in the future proves nothing, either."""
    set_times((time.time_ns() - age_ns) | 1)
    first = look.fingerprint(str(tmp_path))

    assert is_settled == first.is_settled
    assert is_settled == (look.fingerprint(str(tmp_path), first) is first)


def test_whole_seconds_may_be_steps_of_two_seconds(tmp_path: Path, set_times: SetTimes) -> None:
    """FAT has such times."""
    second = (time.time_ns() // 10**9 - 2) * 10**9
    set_times(second)
    assert not look.fingerprint(str(tmp_path)).is_settled
    set_times(second + 1 - 10**9)

    assert look.fingerprint(str(tmp_path)).is_settled


def test_a_young_file_is_trusted_at_the_second_look(
    tmp_path: Path, set_times: SetTimes, clock: list[int]
) -> None:
    """The first look after the step still asks for one more read; no later look does."""
    set_times(time.time_ns() + 10**12 | 1)
    path = str(tmp_path)
    first = look.fingerprint(path)
    clock[0] += 10**7
    second = look.fingerprint(path, first)
    clock[0] += 2 * 10**9
    third = look.fingerprint(path, second)

    assert second is not first
    assert third is not second
    assert [False, False, True] == [each.is_settled for each in (first, second, third)]
    assert look.fingerprint(path, third) is third


def test_a_new_time_begins_anew(tmp_path: Path, set_times: SetTimes, clock: list[int]) -> None:
    """A look that is older than the change does not count."""
    ahead = time.time_ns() + 10**12 | 1
    set_times(ahead)
    first = look.fingerprint(str(tmp_path))
    set_times(ahead + 2)
    clock[0] += 10**10

    assert not look.fingerprint(str(tmp_path), first).is_settled


def test_times_of_a_server_are_trusted_later(
    tmp_path: Path, set_times: SetTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock may lag, by less than a minute."""
    set_times(time.time_ns() - 10**10 | 1)
    trusted = readable._status
    monkeypatch.setattr(
        readable,
        "_status",
        lambda found, **how: trusted(found, **how)._replace(is_remembered="is_open" not in how),
    )
    opened: list[str] = []
    real = os.open

    def noting(path: str, flags: int) -> int:
        opened.append(path)
        return real(path, flags)

    monkeypatch.setattr(os, "open", noting)

    assert not look.fingerprint(str(tmp_path)).is_settled
    assert [str(tmp_path)] == opened  # the client asks its server


def test_a_missing_file_is_proven_to_be_missing(tmp_path: Path) -> None:
    """A file that has come is another look."""
    path = tmp_path / "file"
    missing = look.fingerprint(str(path))
    assert look.fingerprint(str(path), missing) is missing
    path.touch()
    found = look.fingerprint(str(path), missing)
    path.unlink()

    assert found is not missing
    assert missing == look.fingerprint(str(path), found)


def test_a_refused_look_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read that follows reports the error."""

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(os, "stat", refused)
    first = look.fingerprint(str(tmp_path))

    assert Fingerprint(None, 0, is_settled=False) == first
    assert look.fingerprint(str(tmp_path), first) is not first
