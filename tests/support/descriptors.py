"""Descriptors that this process has open."""

from pathlib import Path


def descriptors() -> int:
    """All of them.

    Use them only for limits, since a collected object of another test may close some.
    """
    return len([*Path("/proc/self/fd").iterdir()])


def descriptors_below(directory: Path) -> int:
    """Open descriptors of a directory and of files below it, including removed files."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            found += each.readlink().is_relative_to(directory)
        except FileNotFoundError:  # that of the listing itself
            continue
    return found
