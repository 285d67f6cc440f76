"""Faults at a call of the operating system: death, Ctrl-C, a failing disk, a full one."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from crashing import Crash, Forward, around_calls

__all__ = ["CALLS", "KINDS", "Calls", "Fault", "met"]

#: Calls by which the engine changes a disk; `open` counts where it makes or empties a file.
CALLS = (
    "open", "write", "pwrite", "fsync", "rename", "replace", "link", "unlink", "remove", "mkdir",
    "rmdir", "truncate", "ftruncate",
)  # fmt: skip

#: Calls that need room on a disk.
_GROWING = frozenset({"open", "write", "pwrite", "link", "mkdir", "rename", "replace"})

#: The process dies, is interrupted, meets one failing call or a disk that fails from there on, or
#: a disk that is full from there on.
KINDS = ("dies", "interrupt", "eio", "broken", "full")


class Fault(NamedTuple):
    """A fault at call `number` of an operation: before the call is made, or after it."""

    kind: str
    number: int
    is_after: bool = False

    def __str__(self) -> str:
        return f"{self.kind}@{self.number}{'+' if self.is_after else ''}"

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """The fault of which this is the text."""
        kind, _, number = text.partition("@")
        return cls(kind, int(number.rstrip("+")), number.endswith("+"))


class Calls:
    """The calls of an operation: how many were made, and at which one the fault was met."""

    def __init__(self) -> None:
        self.n_made = 0
        self.at = ""


@contextmanager
def met(fault: Fault | None) -> Iterator[Calls]:
    """Count the calls meanwhile, and let the fault be met."""
    calls = Calls()

    def around(name: str, forward: Forward) -> object:
        if name == "open" and not _makes_a_file(forward):
            return forward()
        number, calls.n_made = calls.n_made, calls.n_made + 1
        if fault is None or number < fault.number:
            return forward()
        is_first = number == fault.number
        if is_first:
            calls.at = f"{name} {' '.join(map(_shown, forward.args[:2]))}"
        if fault.kind == "dies":
            if is_first and fault.is_after:
                forward()
            raise Crash(name)
        if fault.kind == "full":
            return _fail(errno.ENOSPC, forward) if name in _GROWING else forward()
        if not is_first and fault.kind != "broken":
            return forward()
        if fault.is_after:
            forward()
        if fault.kind == "interrupt":
            raise KeyboardInterrupt
        return _fail(errno.EIO, forward)

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, around)
        yield calls


def _makes_a_file(forward: Forward) -> bool:
    flags = forward.args[1] if len(forward.args) > 1 else forward.keywords.get("flags", 0)
    return isinstance(flags, int) and bool(flags & (os.O_CREAT | os.O_TRUNC))


def _fail(code: int, forward: Forward) -> object:
    path = forward.args[0] if isinstance(forward.args[0], str | os.PathLike) else None
    raise OSError(code, os.strerror(code), *([os.fspath(path)] if path else []))


def _shown(argument: object) -> str:
    return Path(argument).name if isinstance(argument, str) else type(argument).__name__
