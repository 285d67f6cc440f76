"""Commands on a terminal of their own: how long they are silent, and what Ctrl-C does to them."""

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

__all__ = ["Seen", "run"]

_CTRL_C = b"\x03"
_TICK_SECONDS = 0.02
_SAMPLE_SECONDS = 0.1
_LONGEST_SECONDS = 1800
_SURVIVING_SECONDS = 3.0  #: in which the other processes of a command that has ended may end, too

#: Makes standard error, which is the terminal, that of the new session, and becomes the command.
#: The command begins with the memory of this small process, not with that of the benchmark.
_ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Seen(NamedTuple):
    """What a command cost, and what its user saw."""

    seconds: float
    processor: float  #: seconds, of all of its processes
    n_bytes: int  #: the most resident memory that its processes had at one time
    silence: float  #: the longest time in seconds without a byte on the terminal
    status: int  #: as a shell shows it
    after_interrupt: float  #: seconds between Ctrl-C and the end; 0 without Ctrl-C
    text: str  #: what it wrote to the terminal
    survivors: tuple[str, ...]  #: its processes that lived longer than it


class _Family:
    """A process and its descendants."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._processes: dict[int, psutil.Process] = {}
        self._processor: dict[int, float] = {}
        self.n_bytes = 0
        self.status: int | None = None
        self._own = 0.0

    def sample(self) -> None:
        """Note the memory and the processor time of all members."""
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self._pid)
            for each in (root, *root.children(recursive=True)):
                self._processes.setdefault(each.pid, each)
        n_bytes = 0
        for pid, each in self._processes.items():
            with contextlib.suppress(psutil.Error), each.oneshot():
                times = each.cpu_times()
                self._processor[pid] = times.user + times.system
                n_bytes += each.memory_info().rss
        self.n_bytes = max(self.n_bytes, n_bytes)

    @property
    def processor(self) -> float:
        """Seconds, as far as they were seen."""
        return max(self._own, sum(self._processor.values()))

    def has_ended(self) -> bool:
        """Whether the first process has ended; its status is then known."""
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            self.status = code if code >= 0 else 128 - code
            self._own = usage.ru_utime + usage.ru_stime
        return bool(pid)

    def survivors(self) -> tuple[str, ...]:
        """Command lines of the members that do not end."""
        others = [each for pid, each in self._processes.items() if pid != self._pid]
        _, alive = psutil.wait_procs(others, timeout=_SURVIVING_SECONDS)
        found = []
        for each in alive:
            with contextlib.suppress(psutil.Error):
                found.append(" ".join(each.cmdline())[:100])
                each.kill()
        return tuple(found)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: Path | None = None,
    stdout: Path | None = None,
    interrupt_after: float | None = None,
) -> Seen:
    """Run a command; its streams are the terminal, except those that have a file.

    Parameters
    ----------
    interrupt_after : seconds until Ctrl-C is typed, once.
    """
    terminal, inside = pty.openpty()
    with contextlib.ExitStack() as stack:
        given = stack.enter_context(stdin.open("rb")) if stdin else inside
        taken = stack.enter_context(stdout.open("wb")) if stdout else inside
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", _ON_TERMINAL, *command],
            env={**environment, "TERM": "xterm", "COLUMNS": "120"},
            stdin=given,
            stdout=taken,
            stderr=inside,
            start_new_session=True,
        )
    start = last = sampled = time.monotonic()
    os.close(inside)
    family, written = _Family(process.pid), bytearray()
    silence = typed = 0.0
    while not family.has_ended():
        ready, _, _ = select.select([terminal], [], [], _TICK_SECONDS)
        now = time.monotonic()
        if ready:
            written += _read(terminal)
            silence, last = max(silence, now - last), now
        if now - sampled >= _SAMPLE_SECONDS:
            family.sample()
            sampled = now
        if interrupt_after is not None and not typed and now - start >= interrupt_after:
            os.write(terminal, _CTRL_C)
            typed = now
        if now - start > _LONGEST_SECONDS:
            process.kill()
    end = time.monotonic()
    process.returncode = family.status
    survivors = family.survivors()
    while select.select([terminal], [], [], 0)[0] and (piece := _read(terminal)):
        written += piece
    os.close(terminal)
    assert family.status is not None
    return Seen(
        end - start,
        family.processor,
        family.n_bytes,
        max(silence, end - last),
        family.status,
        end - typed if typed else 0.0,
        written.decode(errors="replace"),
        survivors,
    )


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the last process has closed its side
        return b""
