"""The ledger of processes beside the log directory: a line an event, in the order of time."""

import json
import os
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

__all__ = ["Ledger", "now"]


def now() -> int:
    """Nanoseconds on the clock that all processes of a machine share."""
    return time.monotonic_ns()


class Ledger:
    """A file that several processes append to: a line is one write, so a kill leaves it whole.

    Parameters
    ----------
    path : outside of the log directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._descriptor)

    def note(self, what: str, **fields: Any) -> None:
        """Append an event."""
        line = json.dumps({"what": what, "at": now(), "pid": os.getpid(), **fields}) + "\n"
        os.write(self._descriptor, line.encode())

    def events(self) -> Iterator[dict[str, Any]]:
        """All of them; while others write, but for the last ones, which may not be whole yet."""
        with self.path.open() as lines:
            yield from map(json.loads, takewhile(lambda line: line.endswith("\n"), lines))
