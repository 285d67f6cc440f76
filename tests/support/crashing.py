"""What a test does to the calls by which the engine changes a disk: watch them, or end them."""

import os
from collections.abc import Callable, Iterable
from functools import partial

import pytest

__all__ = ["Crash", "Forward", "around_calls", "crash_at"]

#: Every call of `os` by which the engine changes what is on a disk, but for opening a new file.
CALLS = (
    "pwrite", "fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir", "ftruncate",
)  # fmt: skip

#: A call that is about to be made: ``forward.args`` are its arguments, ``forward()`` makes it.
Forward = partial[object]


class Crash(BaseException):
    """The process is gone; no `except` of the engine's may do anything about it."""


def around_calls(
    patch: pytest.MonkeyPatch, names: Iterable[str], around: Callable[[str, Forward], object]
) -> None:
    """Let ``around(name, forward)`` stand for each call of these functions of `os`, until undone.

    What is put around calls later is outside: it decides whether the earlier one gets them.
    """

    def wrapped(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **keywords: object) -> object:
            return around(name, partial(real, *arguments, **keywords))

        return call

    for name in names:
        patch.setattr(os, name, wrapped(name, getattr(os, name)))


def crash_at(patch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Let `number` calls of `CALLS` through and raise `Crash` from all others, until undone.

    Returns
    -------
    made : names of the calls that went through, as they come.
    """
    made: list[str] = []

    def counted(name: str, forward: Forward) -> object:
        if len(made) >= number:
            raise Crash(name)
        made.append(name)
        return forward()

    around_calls(patch, CALLS, counted)
    return made
