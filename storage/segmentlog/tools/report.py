"""How a command shows the results of its operation: one report for each type of result.

A report has a line for people, a row for programs, and the exit status, which is that of the
results' own `has_problem`: Python's callers get the same.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar, cast

import typer

from segmentlog.tools.arguments import PROBLEM
from segmentlog.tools.output import json_fields, to_json

_Result = TypeVar("_Result")
_Row: TypeAlias = Mapping[str, object]


def _to_standard_output(line: str) -> None:
    sys.stdout.write(f"{line}\n")


class Report(Generic[_Result]):
    """The report of one type.

    `lines`: of a result, printable; none for one that only JSON has.  `rows`: its objects in JSON,
    one or several; by default one, of its fields.
    """

    def __init__(
        self,
        lines: Callable[[_Result], str | Iterable[str]],
        rows: Callable[[_Result], _Row | Iterable[_Row]] | None = None,
        *,
        as_json: bool,
    ) -> None:
        self._lines, self._as_json = lines, as_json
        self._rows = rows or cast("Any", json_fields)
        self._has_problem = False

    def show(self, found: _Result, write: Callable[[str], object] = _to_standard_output) -> None:
        """Write one result, and note its status.  `write` takes lines without their ends."""
        self._has_problem |= bool(getattr(found, "has_problem", False))
        if self._as_json:
            rows = self._rows(found)
            for row in [rows] if isinstance(rows, Mapping) else rows:
                write(to_json(row))
            return
        lines = self._lines(found)
        for line in [lines] if isinstance(lines, str) else lines:
            write(line)

    def show_all(self, found: Iterable[_Result]) -> None:
        """Write several results."""
        for each in found:
            self.show(each)

    def end(self) -> None:
        """End the command with the status of a problem, if a result that was shown has one."""
        if self._has_problem:
            raise typer.Exit(PROBLEM)
