"""Failures of a command over many things: named on standard error, counted, in its status.

All such commands follow one rule: continue after a failure, name each one, count them, and fail at
the end.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

import typer

from segmentlog.errors import CorruptCheckpointError
from segmentlog.model import TopicPartition
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.store.system_errors import Failures
from segmentlog.tools.arguments import PROBLEM
from segmentlog.tools.output import complain, counted

_MOST_NAMED = 10

#: What a command shows of a log whose start is not known.
WITHOUT_LOG_START = "records below the log start are shown, too"


class Failed:
    """The failures of a command.

    `status`: the exit status if there is one.  `names`: of the things that failed, or that are
    shown in part; at first, those that the library's warnings have named.
    """

    def __init__(self, status: int = PROBLEM, names: Iterable[str] = ()) -> None:
        self._status = status
        self._failures = Failures(self.add)
        self.names = dict.fromkeys(names)
        self._told: set[str] = set()

    def of(self, name: object) -> AbstractContextManager[None]:
        """Do the work of one thing, and continue after it if it fails; see `Failures.of`."""
        return self._failures.of(name)

    def add(self, name: object, reason: object = "") -> None:
        """Note a failure, and name it, unless the library's warnings have named it."""
        self.names[str(name)] = None
        if reason:
            told = str(reason)
            line = told if str(name) in told.partition(" ")[0] else f"{name}: {told}"
            if line not in self._told:
                self._told.add(line)
                complain(line)

    def end(self) -> None:
        """End the command with its status if there is a failure, after their number."""
        if self.names:
            n = counted(failures=len(self.names))
            named = ", ".join([*self.names][:_MOST_NAMED])
            more = ", …" if len(self.names) > _MOST_NAMED else ""
            complain(f"{n}: {named}{more}; all else was done")
            raise typer.Exit(self._status)


class Result(Protocol):
    """A result of an operation, which Python's callers get, too."""

    @property
    def has_problem(self) -> bool: ...


def end_with_status(found: Iterable[Result]) -> None:
    """End the command with the status of a problem, if one of its results has one."""
    if any(each.has_problem for each in found):
        raise typer.Exit(PROBLEM)


def log_of(directory: LogDirectory, topic_partition: TopicPartition, failed: Failed) -> Log:
    """A log; if the checkpoint of log starts is damaged, from its first segment on."""
    try:
        return directory.log(*topic_partition)
    except CorruptCheckpointError as error:
        failed.add(topic_partition, f"{error}; {WITHOUT_LOG_START}")
        return directory.log_without_checkpoints(topic_partition)


def damaged_end(offset: int) -> str:
    """A log whose last segment is damaged, in words."""
    return f"damaged from offset {offset} on; segmentlog verify reports where"
