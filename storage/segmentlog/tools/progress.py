"""The progress of a command that works long: a bar on a terminal, and lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from segmentlog.tools.output import escape

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

    A line of the report goes above the bar, if both are on the same terminal.

    `what`: name of the work, shown before the bar.  `total`: amount of work; None if it is
    unknown.  `is_bytes`: whether `total` is counted in bytes.
    """

    def write_line(line: str) -> None:
        sys.stdout.write(line + "\n")

    if not sys.stderr.isatty():
        lines = _Lines(what, total, is_bytes=is_bytes)
        yield Bar(lines.advance, lines.name, write_line)
        return
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
    from rich.text import Text

    def write_above(line: str) -> None:
        console.print(Text.from_ansi(line), soft_wrap=True)

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn() if is_bytes else MofNCompleteColumn(),
        TimeElapsedColumn() if total is None else TimeRemainingColumn(),
    )
    # By default, rich would catch standard output, even if it is a file or a pipe.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=total)
        yield Bar(
            lambda done: bar.advance(task, done),
            lambda name: bar.update(task, description=f"{what} {name}"),
            write_above if sys.stdout.isatty() else write_line,
        )


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
        self._phase = f" {phase}"
        self._write_if_due()

    def _write_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _BETWEEN_SECONDS
            done = f"{self._done:,}{self._of}{self._unit}, {now - self._begun:.0f} s"
            sys.stderr.write(f"segmentlog: {self._what}{self._phase}: {done}\n")
            sys.stderr.flush()
