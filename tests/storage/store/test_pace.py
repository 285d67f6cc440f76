"""The limit of bytes a second, by a clock of the test, and by the clock of the machine."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.errors import OptionError
from segmentlog.store import beside_broker
from segmentlog.store.beside_broker import Pace, pace_of

MB = 1_000_000


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        monkeypatch.setattr(beside_broker, "_clock", lambda: self.now)
        monkeypatch.setattr(beside_broker, "_sleep", self.sleep)
        monkeypatch.setattr(beside_broker.tempfile, "gettempdir", lambda: str(tmp_path))

    def sleep(self, seconds: float) -> None:
        """Move the clock."""
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    """The clock of all limits of the test."""
    return Clock(monkeypatch, tmp_path)


def take(limit: Pace, n_bytes: int) -> None:
    """Take bytes in pieces, as reads do."""
    while n_bytes:
        limit.take(min(n_bytes, limit.piece))
        n_bytes -= min(n_bytes, limit.piece)


def test_bytes_take_their_time(clock: Clock) -> None:
    """A tenth of a second's bytes are free after an idle time; a piece lasts a twentieth."""
    limit = Pace(10 * MB, "logs")
    take(limit, 20 * MB)

    assert 500_000 == limit.piece
    assert 1001.9 == pytest.approx(clock.now)
    assert 0.05 == pytest.approx(max(clock.slept))


def test_idle_time_is_not_saved_up(clock: Clock) -> None:
    """A task that waits for Spark does not read faster than the limit afterwards."""
    limit = Pace(10 * MB, "logs")
    take(limit, 10 * MB)
    clock.now += 60
    before = clock.now
    take(limit, 10 * MB)

    assert 0.9 == pytest.approx(clock.now - before)


def test_time_between_pieces_counts(clock: Clock) -> None:
    """A reader that is slower than the limit never sleeps."""
    limit = Pace(10 * MB, "logs")
    for _ in range(20):
        limit.take(500_000)
        clock.now += 0.06

    assert [] == clock.slept


def test_limits_of_one_name_share_their_bytes(clock: Clock) -> None:
    """Each task has its own object; another directory has its own bytes."""
    tasks = [Pace(10 * MB, "logs") for _ in range(4)]
    for _ in range(5):
        for task in tasks:
            take(task, MB)
    assert 1001.9 == pytest.approx(clock.now)
    before = clock.now
    Pace(10 * MB, "other").take(500_000)
    assert before == clock.now


def test_two_limits_of_one_name_take_their_shares(clock: Clock) -> None:
    """Bytes of each job last as long as its own limit says."""
    take(Pace(10 * MB, "logs"), 10 * MB)
    take(Pace(5 * MB, "logs"), 5 * MB)

    assert 1001.9 == pytest.approx(clock.now)


def test_a_small_limit_has_pieces_that_last(clock: Clock) -> None:
    """A disk is not asked for fewer than 64 KiB at once."""
    limit = Pace(1 << 10, "logs")

    assert 64 << 10 == limit.piece
    limit.take(limit.piece)
    assert 1063.9 == pytest.approx(clock.now)


@pytest.mark.parametrize("state", [b"", b"x", b"\xff" * 8, b"\xff" * 7 + b"\x7f"])
def test_the_state_of_an_earlier_start_of_the_machine_is_not_waited_for(
    clock: Clock, tmp_path: Path, state: bytes
) -> None:
    """The clock begins at 0 with each start, and the file may stay, or be cut."""
    limit = Pace(10 * MB, "logs")
    take(limit, 10 * MB)
    (path,) = tmp_path.iterdir()
    path.write_bytes(state)
    before = clock.now
    take(limit, MB)

    assert clock.now - before <= 0.1 + 1e-6
    path.write_bytes(beside_broker._STATE.pack(1e9))
    before = clock.now
    take(limit, MB)
    assert clock.now - before <= 0.1 + 1e-6


def test_a_file_that_another_made_is_not_used(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit then holds for each process, and one warning says so."""
    limit = Pace(10 * MB, "logs")
    take(limit, MB)
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    take(limit, 10 * MB)
    take(limit, 10 * MB)

    assert 1002.0 == pytest.approx(clock.now)
    assert not (tmp_path / "elsewhere").exists()
    assert 1 == sum("applies to each process" in each for each in caplog.messages)


@pytest.mark.parametrize(("call", "number"), [("pwrite", errno.ENOSPC), ("flock", errno.ENOLCK)])
def test_a_file_that_fails_is_done_without(
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    number: int,
) -> None:
    """A full disk for temporary files is no fault of the log. One warning names the file."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    limit = Pace(10 * MB, f"logs of {call}")
    monkeypatch.setattr(beside_broker.os if call == "pwrite" else beside_broker.fcntl, call, fail)
    take(limit, 20 * MB)

    assert 1001.9 == pytest.approx(clock.now)
    assert 1 == sum("applies to each process" in each for each in caplog.messages)


def test_threads_and_processes_share_a_limit(tmp_path: Path) -> None:
    """Two processes of two threads take 2 MB at 4 MB a second."""
    code = (
        "import threading\nfrom segmentlog.store.beside_broker import pace_of\n"
        "limit = pace_of(4_000_000, 'logs')\n"
        "def take():\n"
        "    for _ in range(5): limit.take(100_000)\n"
        "input()\n"
        "threads = [threading.Thread(target=take) for _ in range(2)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()\n"
    )
    tasks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            text=True,
            env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        )
        for _ in range(2)
    ]
    began = time.monotonic()
    threads = [threading.Thread(target=each.communicate, args=("\n",)) for each in tasks]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert [0, 0] == [each.returncode for each in tasks]
    assert 0.39 <= time.monotonic() - began


def test_a_read_takes_the_time_of_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads of a read share the limit, and so do a scan and a dataset."""
    monkeypatch.setattr(beside_broker.tempfile, "gettempdir", lambda: str(tmp_path))
    pace_of.cache_clear()
    logs = tmp_path / "logs"
    with segmentlog.open_writer(logs, "a", num_partitions=4) as writer:
        writer.append(pa.table({"value": [b"x" * 1000] * 4000}))
    log = segmentlog.open_log_dir(logs).log("a", 0)
    n_bytes = segmentlog.dataset(logs).to_table().nbytes
    began = time.monotonic()
    rows = segmentlog.read(logs, max_bytes_per_second=8 * MB).num_rows
    took = time.monotonic() - began

    assert (4000, True) == (rows, n_bytes > 4 * MB)
    assert 0.4 <= took
    began = time.monotonic()
    log.scan(max_bytes_per_second=log.size_bytes * 4).read_all()
    assert 0.1 <= time.monotonic() - began
    bad: Any
    for bad in (0, -1, "x"):
        with pytest.raises(OptionError, match="max_bytes_per_second"):
            segmentlog.read(logs, max_bytes_per_second=bad)


def test_a_write_takes_the_time_of_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that tasks stage count, in files of one partition and in shared files."""
    monkeypatch.setattr(beside_broker.tempfile, "gettempdir", lambda: str(tmp_path))
    pace_of.cache_clear()
    config = segmentlog.ProducerConfig(max_bytes_per_second=8 * MB, flush=False)
    for n_partitions in (1, 100):
        began = time.monotonic()
        with segmentlog.open_writer(
            tmp_path / "logs", f"a{n_partitions}", num_partitions=n_partitions, config=config
        ) as writer:
            writer.append(pa.table({"value": [b"x" * 1000] * 4000}))
        assert 0.4 <= time.monotonic() - began
        assert 4000 == segmentlog.read(tmp_path / "logs", f"a{n_partitions}").num_rows
    with pytest.raises(OptionError, match="max_bytes_per_second"):
        segmentlog.ProducerConfig(max_bytes_per_second=0)
