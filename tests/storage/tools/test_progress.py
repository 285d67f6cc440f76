"""Progress of a command: a bar on a terminal, and a closing line."""

import io
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bars_at_once import AT_ONCE
from typer.testing import Result

import segmentlog
from segmentlog.tools import progress

Run = Callable[..., Result]
GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.1"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A copy of a real broker's directory, without the mark of a clean stop."""
    copied = shutil.copytree(GOLDEN, tmp_path / "kafka")
    (copied / ".kafka_cleanshutdown").unlink()
    return copied


def run_on_a_terminal(*arguments: object, **streams: Any) -> tuple[bytes, bytes]:
    """The output of a command to a pipe, and on a terminal that is its standard error."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", AT_ONCE, *map(str, arguments)],
        stdin=streams.get("stdin"),
        stdout=streams.get("stdout", subprocess.PIPE),
        stderr=follower,
        env=os.environ | {"TERM": "xterm"},
    ) as process:
        os.close(follower)
        shown = b""
        while piece := _read(leader):
            shown += piece
        written = process.stdout.read() if process.stdout else b""
    os.close(leader)
    assert 0 == process.returncode, shown
    return written, shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize(
    ("command", "closing"),
    [
        (["dump", "{}", "--topic", "segments", "--records", "-o", "{}/out"], b" records, "),
        (["dump", "{}", "-f", "parquet", "-o", "{}/out"], b" batches, "),
        (["verify", "{}"], b" partitions, "),
        (["recover", "{}"], b" logs read and indexed"),
        (["reindex", "{}"], b" segments indexed, "),
        (
            ["compact", "{}", "--topic", "segments", "-s", "cleanup.policy=compact", "-y"],
            b"files stay as .deleted",
        ),
        (["preflight", "{}"], b" newer metadata: "),
        (["delete-topic", "{}", "segments", "--yes"], b"delete"),
        (
            [
                "delete-records",
                "{}",
                "--topic",
                "segments",
                "--partition",
                "0",
                "--offset",
                "1",
                "--dry-run",
            ],
            b"segments-0",
        ),
        (["topics", "{}"], "\u2588".encode()),
        (["describe", "{}"], b" none "),
        (["usage", "{}"], b"all "),
    ],
)
def test_a_terminal_gets_a_bar_and_a_pipe_a_closing_line(
    log_dir: Path, command: list[str], closing: bytes
) -> None:
    """The terminal gets a bar, which disappears at the end; the pipe gets the line."""
    written, shown = run_on_a_terminal(*(each.format(log_dir) for each in command))

    assert command[0].encode() in shown
    assert "\u2501".encode() in shown
    assert closing in written.splitlines()[-1]
    assert b"\x1b" not in written


@pytest.mark.parametrize("command", [["cat", "{}", "segments"], ["dump", "{}"]])
def test_records_that_go_to_a_file_leave_the_terminal_to_a_bar(
    log_dir: Path, tmp_path: Path, command: list[str]
) -> None:
    """The reader of a pipe may write to the same terminal, so there is no bar beside it."""
    words = [each.format(log_dir) for each in command]
    piped, disturbed = run_on_a_terminal(*words)
    with (tmp_path / "out").open("wb") as out:
        _, shown = run_on_a_terminal(*words, stdout=out)

    assert b"" == disturbed
    assert command[0].encode() in shown
    assert "\u2501".encode() in shown
    assert piped == (tmp_path / "out").read_bytes()


def test_lines_of_a_file_are_counted(tmp_path: Path) -> None:
    """The bar stays until the records are committed."""
    (tmp_path / "lines").write_text("a\nb\n")
    with (tmp_path / "lines").open("rb") as lines:
        written, shown = run_on_a_terminal("produce", tmp_path / "log", "t", stdin=lines)

    assert b"t: 2 records" == written.strip()
    assert b"produce" in shown
    assert "\u2501".encode() in shown


def test_a_short_work_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A work that ends before the bar begins shows nothing, and imports nothing to show it."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    begin = []

    class Timer:
        daemon = False

        def __init__(self, _: float, function: Callable[[], None]) -> None:
            begin.append(function)

        def start(self) -> None: ...

        def cancel(self) -> None: ...

    monkeypatch.setattr(progress.threading, "Timer", Timer)
    with progress.progress("topics", None) as bar:
        bar.begin("orders-0")
        bar.write("orders")
    begin[0]()  # of a timer that is late

    assert "" == terminal.getvalue()


@pytest.mark.parametrize("command", ["recover", "reindex", "verify"])
def test_without_a_terminal_there_is_no_bar(run: Run, log_dir: Path, command: str) -> None:
    """Standard error is empty."""
    assert "" == run(command, log_dir).stderr


def test_a_dump_says_what_it_has_written(run: Run, example_data: str, tmp_path: Path) -> None:
    """With a file, the line has rows, bytes and the file.

    Without a file, only the records are printed.
    """
    partition = f"{example_data}/payments-0"
    for number, (options, what) in enumerate(
        [
            (["--records", "-f", "parquet"], "122 records"),
            (["--records", "-n", "1", "-f", "json"], "1 record"),
            (["-f", "arrow"], "4 batches"),
            (["-n", "1"], "1 batch"),
        ]
    ):
        output = tmp_path / f"out{number}"
        printed = run("dump", partition, *options, "-o", output)
        size = f"{output.stat().st_size:,}"

        assert (f"{output}: {what}, {size} bytes\n", "") == (printed.stdout, printed.stderr)
    entries = run("dump", f"{example_data}/cleaner-offset-checkpoint", "-o", tmp_path / "e").stdout
    assert "0 batches, 1 entry, " in entries


def test_lines_tell_of_the_progress_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A work that takes long writes its phase and its counts; a short one writes none."""
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 2.0)
    clock = iter([0.0, 1.0, 3.0, 4.0, 14.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.progress("verify", 9_000) as bar:
        bar.advance(1000)
        bar.name("orders-0")
        bar.advance(1000)
        bar.advance(1000)

    assert (
        "segmentlog: verify (orders-0): 1,000 of 9,000 bytes, 3 s\n"
        "segmentlog: verify (orders-0): 3,000 of 9,000 bytes, 14 s\n"
    ) == capsys.readouterr().err


@pytest.mark.linux
def test_the_phases_of_one_log_are_named(tmp_path: Path) -> None:
    """A compaction and a mirror of one large log say what they do with it."""
    logs = tmp_path / "logs"
    with segmentlog.open_writer(logs, "orders") as writer:
        for _ in range(3):
            writer.append(pa.table({"key": ["a", "b"], "value": ["x", "y"]}))
            writer.roll()
    phases: list[str] = []
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    segmentlog.compact(logs, settings=settings, on_phase=phases.append)
    assert ["orders-0: reads the keys", "orders-0: writes segment 1 of 1"] == phases

    phases.clear()
    segmentlog.mirror(logs, to=tmp_path / "copy", on_phase=phases.append)
    steps = [f"orders-0: {each}" for each in ("begins", "compares", "copies")]
    assert [*steps, "the logs become visible"] == phases
