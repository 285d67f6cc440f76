"""What processes beside a log directory note: one line for each event, in order of time."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_write = os.write  # without the faults that a test puts into `os` later


def now() -> int:
    """Nanoseconds on the clock that all processes of a machine share."""
    return time.monotonic_ns()


class Ledger:
    """A file that several processes append to: a line is one write, so a kill leaves it whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._position = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def note(self, what: str, **fields: Any) -> None:
        """Append an event."""
        line = json.dumps({"what": what, "at": now(), "pid": os.getpid(), **fields}) + "\n"
        _write(self._descriptor, line.encode())

    def events(self) -> Iterator[dict[str, Any]]:
        """The events that this object has not given yet, in whole lines."""
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._position += len(data)
        yield from map(json.loads, data.splitlines())
