"""Hooks for the calls by which the engine changes a disk: watch them, fail them, end there."""

import errno
import hashlib
import os
import shutil
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

#: Every call of `os` by which the engine changes what is on a disk, but for opening a new file.
CALLS = (
    "pwrite",
    "fsync",
    "rename",
    "replace",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "ftruncate",
)

#: Every call of `os` by which the engine reads a disk, and opens files.
READS = ("open", "pread", "preadv", "scandir", "listdir", "stat", "lstat", "fstat")

#: A call that is about to be made: ``forward.args`` are its arguments, ``forward()`` makes it.
Forward = partial[object]


#: A loop over the calls at which something is cut: each eleventh call, and each night all of them.
#: `tests/storage/txn/test_change.py` always cuts each call of the steps that all changes share.
cut_loop = pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])


def refuse_copies(patch: pytest.MonkeyPatch) -> None:
    """Let the system not copy files by itself: a recorder of changes sees writes."""

    def copy_file_range(*_: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    patch.setattr(os, "copy_file_range", copy_file_range)


class Crash(BaseException):
    """The process dies; no `except` of the engine may handle it."""


def around_calls(
    patch: pytest.MonkeyPatch, names: Iterable[str], around: Callable[[str, Forward], object]
) -> None:
    """Replace each call of these functions of `os` by ``around(name, forward)``, until undone.

    A later wrapper is outside: it decides whether the earlier one gets the calls.
    """

    def wrapped(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **keywords: object) -> object:
            # Names in open directories: the watcher gets paths.
            parents = [keywords.get(each) for each in ("src_dir_fd", "dst_dir_fd")]
            if "dir_fd" in keywords:
                parents = [keywords["dir_fd"]]
            if not any(each is not None for each in parents):  # `shutil` gives None, too
                keywords.pop("dir_fd", None)
                return around(name, partial(real, *arguments, **keywords))
            paths = [
                str(Path(f"/proc/self/fd/{parent}").readlink() / str(each))
                for parent, each in zip(parents, arguments, strict=False)
            ]
            made = partial(real, *arguments, **keywords)
            return around(name, partial(lambda *_: made(), *paths, *arguments[len(paths) :]))

        return call

    for name in names:
        patch.setattr(os, name, wrapped(name, getattr(os, name)))


def crash_at(patch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Let `number` calls of `CALLS` through and raise `Crash` from all others, until undone.

    Returns `made`: names of the calls that went through, as they come.
    """

    def before(made: Sequence[str], name: str, _: Sequence[object]) -> None:
        if len(made) >= number:
            raise Crash(name)

    return _intercept(patch, before)


def fail_at(
    patch: pytest.MonkeyPatch,
    number: int,
    code: int,
    *,
    is_final: bool,
    calls: Sequence[str] = CALLS,
) -> list[str]:
    """Have call `number` of `calls` fail with `code`; if `is_final`, and all that come later.

    Returns `made`: names of the calls that do not fail, in order, until undone.
    """
    n_failed = 0

    def before(made: Sequence[str], name: str, arguments: Sequence[object]) -> None:
        nonlocal n_failed
        if len(made) == number and (is_final or not n_failed):
            n_failed += 1
            # As the system does: a path where there is one, and not for a descriptor.
            path = arguments[0] if isinstance(arguments[0], str | os.PathLike) else None
            raise OSError(code, os.strerror(code), *([str(path)] if path else []))

    return _intercept(patch, before, calls)


def act_at(patch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> list[str]:
    """Call a function right before call `number` of `CALLS`."""
    is_done = False

    def before(made: Sequence[str], name: str, arguments: Sequence[object]) -> None:
        nonlocal is_done
        if len(made) == number and not is_done:
            is_done = True
            act()

    return _intercept(patch, before)


def _intercept(
    patch: pytest.MonkeyPatch,
    before: Callable[[Sequence[str], str, Sequence[object]], None],
    calls: Sequence[str] = CALLS,
) -> list[str]:
    """Ask `before` ahead of each call of `calls`; names of those that it lets through."""
    made: list[str] = []

    def counted(name: str, forward: Forward) -> object:
        before(made, name, forward.args)
        made.append(name)
        return forward()

    around_calls(patch, calls, counted)
    return made


def copy_states(
    directory: Path, act: Callable[[], object], to: Path, passing: Sequence[str] = ()
) -> list[Path]:
    """Change a directory, and copy it at each step, as a crash there would leave it.

    `directory`: what is changed. `act`: makes calls of `CALLS`. `to`: an empty or missing
    directory for the copies. `passing`: ends of names of files whose contents do not make a state:
    no one reads them. Returns `copies`: one of each state, in their order, from before `act` to
    after it.
    """
    copies: list[Path] = []
    seen = set[tuple[tuple[str, bytes], ...]]()

    def look() -> None:
        state = tuple(sorted(_contents(directory, tuple(passing))))
        if state not in seen:
            seen.add(state)
            copy = to / f"{len(copies):03d}" / directory.name
            copies.append(Path(shutil.copytree(directory, copy, copy_function=shutil.copy2)))

    def around(_: str, forward: Forward) -> object:
        look()
        return forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, around)
        act()
    look()
    return copies


def _contents(directory: Path, passing: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Names below a directory, and the contents of its files."""
    for path in directory.rglob("*"):
        is_passing = path.is_dir() or path.name.endswith(passing)
        data = b"" if is_passing else hashlib.sha256(path.read_bytes()).digest()
        yield str(path.relative_to(directory)), data


def in_child(run: Callable[[], object]) -> int:
    """The id of a forked process that calls a function and ends, with status 1 after an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads
        child = os.fork()
    if not child:
        status = 1
        try:
            run()
            status = 0
        except BaseException:  # noqa: BLE001 - it is to be seen in the test's output
            traceback.print_exc()
        finally:
            os._exit(status)
    return child
