"""The progress of a command that works long: a bar on a terminal, and lines elsewhere."""

import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from segmentlog.tools.output import escape

_UNSEEN_SECONDS = 0.5  #: of a work that needs no bar
_QUIET_SECONDS = 2.0  #: of a work that needs no lines
_BETWEEN_SECONDS = 10.0  #: two lines


class Bar(NamedTuple):
    """Functions that move a bar, or write the next line once it is due."""

    advance: Callable[[int], object]  # takes the amount of work done since the last call
    rename: Callable[[str], object]  # takes the name of the present work, safe to print
    write: Callable[[str], object]  # takes a line without its end; it may have colours

    def name(self, work: str) -> None:
        self.rename(escape(work))

    def begin(self, work: str) -> None:
        """Begin the next of several works."""
        self.name(work)
        self.advance(1)


@contextmanager
def progress(
    what: str,
    total: int | None,
    *,
    is_bytes: bool = True,
) -> Iterator[Bar]:
    """A bar on standard error if this is a terminal, and otherwise a line from time to time.

    A work that is done within half a second shows nothing.  A line of the report goes above the
    bar, if both are on the same terminal.

    `what`: name of the work, shown before the bar.  `total`: amount of work; None if it is
    unknown.  `is_bytes`: whether `total` is counted in bytes.
    """
    if not sys.stderr.isatty():
        lines = _Lines(what, total, is_bytes=is_bytes)
        yield Bar(lines.advance, lines.name, _write_line)
        return
    shown = _OnTerminal(what, total, is_bytes=is_bytes)
    # A single step may take longer, and nothing would call: so a thread begins to show the bar.
    timer = threading.Timer(_UNSEEN_SECONDS, shown.begin)
    timer.daemon = True
    timer.start()
    try:
        yield Bar(shown.advance, shown.name, shown.write)
    finally:
        timer.cancel()
        shown.end()


def shows_bar_beside_output() -> bool:
    """Whether a bar does not disturb output that goes to standard output.

    The output must go to a file: the reader of a pipe may write to the same terminal.
    """
    if not sys.stderr.isatty():
        return False
    try:
        mode = os.fstat(sys.stdout.fileno()).st_mode
    except (OSError, ValueError):  # standard output is closed, or none of the system
        return False
    return stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not sys.stdout.isatty())


def _with_phase(what: str, phase: str) -> str:
    return f"{what} ({phase})" if phase else what


def _write_line(line: str) -> None:
    sys.stdout.write(line + "\n")


class _OnTerminal:
    """A bar that is first shown when `begin` is called, by another thread."""

    def __init__(self, what: str, total: int | None, *, is_bytes: bool) -> None:
        self._what, self._total, self._is_bytes = what, total, is_bytes
        # Both threads use what follows, under the lock.
        self._lock = threading.RLock()
        self._bar: Any = None
        self._done, self._phase, self._has_ended = 0, "", False

    def begin(self) -> None:
        # The import takes as long as a small command, so a small command goes without.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn() if self._is_bytes else MofNCompleteColumn(),
            TimeElapsedColumn() if self._total is None else TimeRemainingColumn(),
        )
        with self._lock:
            if self._has_ended:
                return
            # By default, rich would catch standard output, even if it is a file or a pipe.
            console = Console(stderr=True)
            self._bar = Progress(*columns, console=console, transient=True, redirect_stdout=False)
            name = _with_phase(self._what, self._phase)
            self._bar.add_task(name, total=self._total, completed=self._done)
            self._bar.start()

    def end(self) -> None:
        with self._lock:
            self._has_ended = True
            if self._bar is not None:
                self._bar.stop()

    def advance(self, done: int) -> None:
        with self._lock:
            self._done += done
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=self._done)

    def name(self, phase: str) -> None:
        with self._lock:
            self._phase = phase
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], description=_with_phase(self._what, phase))

    def write(self, line: str) -> None:
        with self._lock:
            if self._bar is None or not sys.stdout.isatty():
                _write_line(line)
                return
        from rich.text import Text

        self._bar.console.print(Text.from_ansi(line), soft_wrap=True)


class _Lines:
    """Lines on standard error about a work that takes long: its phase, and how much is done."""

    def __init__(self, what: str, total: int | None, *, is_bytes: bool) -> None:
        self._what, self._phase = what, ""
        self._of = "" if total is None else f" of {total:,}"
        self._unit = " bytes" if is_bytes else ""
        self._done = 0
        self._begun = time.monotonic()
        self._due = self._begun + _QUIET_SECONDS

    def advance(self, done: int) -> None:
        """Add what is done since the last call."""
        self._done += done
        self._write_if_due()

    def name(self, phase: str) -> None:
        """Begin a phase."""
        self._phase = phase
        self._write_if_due()

    def _write_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _BETWEEN_SECONDS
            done = f"{self._done:,}{self._of}{self._unit}, {now - self._begun:.0f} s"
            sys.stderr.write(f"segmentlog: {_with_phase(self._what, self._phase)}: {done}\n")
            sys.stderr.flush()
