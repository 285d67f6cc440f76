"""A process that dies between two steps: from some call on, nothing changes the disk any more."""

import os
from collections.abc import Callable

import pytest

__all__ = ["Crash", "crash_at"]

#: Every call of `os` by which the engine changes what is on a disk.
CALLS = ("pwrite", "fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "ftruncate")


class Crash(BaseException):
    """The process is gone; no `except` of the engine's may do anything about it."""


def crash_at(patch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Let `number` calls of `CALLS` through and raise `Crash` from all others, until undone.

    Returns
    -------
    made : names of the calls that went through, as they come.
    """
    made: list[str] = []

    def counted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **keywords: object) -> object:
            if len(made) >= number:
                raise Crash(name)
            made.append(name)
            return real(*arguments, **keywords)

        return call

    for name in CALLS:
        patch.setattr(os, name, counted(name, getattr(os, name)))
    return made
