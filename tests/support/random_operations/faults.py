"""Faults at a call of the operating system: death, Ctrl-C, a power cut, a failing or full disk."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from crashing import Crash, Forward, around_calls

#: Calls by which the engine changes a disk; `open` counts where it makes or empties a file.
CALLS = (
    "open", "write", "pwrite", "fsync", "rename", "replace", "link", "unlink", "remove", "mkdir",
    "rmdir", "truncate", "ftruncate",
)  # fmt: skip

#: Calls by which it reads.
_READS = ("pread", "preadv", "scandir", "listdir", "stat", "lstat", "fstat")

#: Calls that need room on a disk.
_GROWING = frozenset({"open", "write", "pwrite", "link", "mkdir", "rename", "replace"})

#: The process dies, is interrupted, meets one failing call or a disk that fails from there on, a
#: disk that is full from there on, or a failing read; the latter's number is that of a read.
KINDS = ("dies", "interrupt", "eio", "broken", "full", "unreadable")
#: The process dies with the machine: what was not synced may be lost.
POWER = "power"


class Fault(NamedTuple):
    """A fault at call `number` of an operation: before the call is made, or after it."""

    kind: str
    number: int
    is_after: bool = False

    def __str__(self) -> str:
        return f"{self.kind}@{self.number}{'+' if self.is_after else ''}"

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """The fault that this text describes."""
        kind, _, number = text.partition("@")
        return cls(kind, int(number.rstrip("+")), number.endswith("+"))


class Calls:
    """The calls of an operation: how many of them read, and whether the fault was met."""

    def __init__(self) -> None:
        self.n_made = self.n_read = 0
        self.is_met = False

    def of(self, kind: str) -> int:
        """The number of calls at which a fault of this kind can occur."""
        return self.n_read if kind == "unreadable" else self.n_made


@contextmanager
def met(fault: Fault | None) -> Iterator[Calls]:
    """Count the calls meanwhile, and raise the fault at one of them."""
    calls = Calls()

    def around(name: str, forward: Forward) -> object:
        if name in _READS or (name == "open" and not _makes_a_file(forward)):
            number, calls.n_read = calls.n_read, calls.n_read + 1
            if fault is None or fault.kind != "unreadable" or number != fault.number:
                return forward()
            calls.is_met = True
            return _fail(errno.EIO, forward)
        number, calls.n_made = calls.n_made, calls.n_made + 1
        if fault is None or fault.kind == "unreadable" or number < fault.number:
            return forward()
        calls.is_met, is_first = True, number == fault.number
        if fault.kind == "full":
            return _fail(errno.ENOSPC, forward) if name in _GROWING else forward()
        if not is_first and fault.kind not in {"broken", "dies", POWER}:
            return forward()
        if is_first and fault.is_after:
            forward()
        if fault.kind in {"dies", POWER}:
            raise Crash(name)
        if fault.kind == "interrupt":
            raise KeyboardInterrupt
        return _fail(errno.EIO, forward)

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, (*CALLS, *_READS), around)
        yield calls


def _makes_a_file(forward: Forward) -> bool:
    flags = forward.args[1] if len(forward.args) > 1 else forward.keywords.get("flags", 0)
    return isinstance(flags, int) and bool(flags & (os.O_CREAT | os.O_TRUNC))


def _fail(code: int, forward: Forward) -> object:
    path = forward.args[0] if isinstance(forward.args[0], str | os.PathLike) else None
    raise OSError(code, os.strerror(code), *([os.fspath(path)] if path else []))
