"""Directories with which many tests begin: made once in a process, and copied for each test."""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Concatenate, ParamSpec

_Given = ParamSpec("_Given")


def made_once(
    make: Callable[Concatenate[Path, _Given], object],
) -> Callable[Concatenate[Path, _Given], None]:
    """`make` then fills a directory once for the same arguments; later ones get copies.

    The copies have the same ids of topics and directories.
    """
    kept: dict[Hashable, Path] = {}

    @functools.wraps(make)
    def made(directory: Path, /, *args: _Given.args, **kwargs: _Given.kwargs) -> None:
        key = (args, *sorted(kwargs.items()))
        if key not in kept:
            place = Path(tempfile.mkdtemp(prefix="segmentlog-tests-"))
            atexit.register(shutil.rmtree, place, ignore_errors=True)
            make(place / "made", *args, **kwargs)
            kept[key] = place / "made"
        shutil.copytree(kept[key], directory, symlinks=True, dirs_exist_ok=True)

    return made
