"""A directory that changes while it is listed, as other processes may change it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

__all__ = ["act_in_scan"]


class _Scan:
    """The entries of `os.scandir`, with one call in between."""

    def __init__(self, path: str, real: Callable[..., Any], after: str, act: Callable[[], object]):
        self._entries = self._list(path, real, after, act)

    @staticmethod
    def _list(
        path: str, real: Callable[..., Any], after: str, act: Callable[[], object]
    ) -> Iterator[os.DirEntry[str]]:
        with real(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name != after)
        seen = {entry.name for entry in found}
        if after:
            yield found.pop(0)
            act()
            with real(path) as entries:
                found += [entry for entry in entries if entry.name not in seen]
        yield from found
        if not after:
            act()

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        return self._entries

    def __next__(self) -> os.DirEntry[str]:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        for _ in self._entries:
            pass


def act_in_scan(
    patch: pytest.MonkeyPatch, directory: Path, act: Callable[[], object], *, after: str = ""
) -> list[str]:
    """Have `act` called once, in the middle or at the end of the next scan of `directory`.

    Parameters
    ----------
    after : name of the entry after which it is called; names that it adds are listed, too.
        By default it is called when all entries have been listed.

    Returns
    -------
    done : the directory, once it has been done.
    """
    real, real_listdir = os.scandir, os.listdir
    done: list[str] = []

    def act_once() -> None:
        done.append(str(directory))
        act()

    def scan(path: Any = ".") -> Any:
        if done or os.fspath(path) != str(directory):
            return real(path)
        return _Scan(os.fspath(path), real, after, act_once)

    def listdir(path: Any = ".") -> list[str]:
        names = real_listdir(path)
        if done or os.fspath(path) != str(directory):
            return names
        act_once()
        if after:
            names += [name for name in real_listdir(path) if name not in names]
        return names

    patch.setattr(os, "scandir", scan)
    patch.setattr(os, "listdir", listdir)
    return done
