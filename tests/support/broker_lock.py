"""The lock of a log directory as a broker holds it: a POSIX lock of another process."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from crashing import in_child


@contextlib.contextmanager
def as_broker(directory: Path) -> Iterator[int]:
    """Hold the lock in a child, whose process id this is."""
    held, hold = os.pipe()
    ending, end = os.pipe()

    def lock() -> None:
        os.close(end)
        with (directory / ".lock").open("a+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(hold, b"x")
            os.read(ending, 1)

    child = in_child(lock)
    os.close(hold)
    try:
        assert os.read(held, 1)  # nothing at all if the child is gone
        yield child
    finally:
        for descriptor in (held, ending, end):
            os.close(descriptor)
        os.waitpid(child, 0)
