"""The ledger of processes beside the log directory: one line for each event, in order of time."""

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
        """Close the file."""
        os.close(self._descriptor)

    def note(self, what: str, **fields: Any) -> None:
        """Append an event."""
        line = json.dumps({"what": what, "at": now(), "pid": os.getpid(), **fields}) + "\n"
        os.write(self._descriptor, line.encode())

    def events(self) -> Iterator[dict[str, Any]]:
        """All events; while others write, the last line may be partial and is left out."""
        with self.path.open() as lines:
            yield from map(json.loads, takewhile(lambda line: line.endswith("\n"), lines))
