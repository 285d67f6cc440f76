"""Calls that go wrong: a process that dies between two of them, a disk that fails."""

import os
from collections.abc import Callable, Sequence

import pytest

__all__ = ["Crash", "act_at", "crash_at", "fail_at"]

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

    def before(made: Sequence[str], name: str, _: Sequence[object]) -> None:
        if len(made) >= number:
            raise Crash(name)

    return _intercept(patch, before)


def fail_at(patch: pytest.MonkeyPatch, number: int, code: int, *, is_final: bool) -> list[str]:
    """Have call `number` of `CALLS` fail with `code`; if `is_final`, and all that come later.

    Returns
    -------
    made : names of the calls, as they come, until undone; those that fail are not among them.
    """
    n_failed = 0

    def before(made: Sequence[str], name: str, arguments: Sequence[object]) -> None:
        nonlocal n_failed
        if len(made) == number and (is_final or not n_failed):
            n_failed += 1
            # As the system does: a path where there is one, and not for a descriptor.
            path = arguments[0] if isinstance(arguments[0], str | os.PathLike) else None
            raise OSError(code, os.strerror(code), *([str(path)] if path else []))

    return _intercept(patch, before)


def act_at(patch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> list[str]:
    """Do something right before call `number` of `CALLS`.

    Returns
    -------
    made : names of the calls, as they come, until undone.
    """
    is_done = False

    def before(made: Sequence[str], name: str, arguments: Sequence[object]) -> None:
        nonlocal is_done
        if len(made) == number and not is_done:
            is_done = True
            act()

    return _intercept(patch, before)


def _intercept(
    patch: pytest.MonkeyPatch, before: Callable[[Sequence[str], str, Sequence[object]], None]
) -> list[str]:
    """Ask `before` ahead of each call of `CALLS`; names of those that it lets through."""
    made: list[str] = []

    def counted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **keywords: object) -> object:
            before(made, name, arguments)
            made.append(name)
            return real(*arguments, **keywords)

        return call

    for name in CALLS:
        patch.setattr(os, name, counted(name, getattr(os, name)))
    return made
