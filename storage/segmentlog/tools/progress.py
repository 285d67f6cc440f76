"""A bar on a terminal while a command works, and lines that go above it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

__all__ = ["Bar", "progress"]


class Bar(NamedTuple):
    """Functions that move a bar; without a bar, the first two do nothing.

    Parameters
    ----------
    advance : takes the amount of work done since the last call.
    name : takes the name of the present work.
    write : takes a line of the report, without its end; it may have colours.
    """

    advance: Callable[[int], object]
    name: Callable[[str], object]
    write: Callable[[str], object]


@contextmanager
def progress(
    what: str,
    total: int | None,
    *,
    is_bytes: bool = True,
    write: Callable[[str], object] | None = None,
) -> Iterator[Bar]:
    """A bar on standard error, if this is a terminal.

    A line of the report goes above the bar, if both are on the same terminal.

    Parameters
    ----------
    what : name of the work, shown before the bar.
    total : amount of work; None if it is unknown.
    is_bytes : whether `total` is counted in bytes.
    write : takes lines, with their ends, that need not go above a bar; standard output.
    """

    def write_line(line: str) -> None:
        (write or sys.stdout.write)(line + "\n")

    if not sys.stderr.isatty():
        yield Bar(lambda _: None, lambda _: None, write_line)
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
