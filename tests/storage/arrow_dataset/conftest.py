"""Which files of a log a query opens."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_LISTENING: list[list[str]] = []


def _listen(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _LISTENING and isinstance(arguments[0], str):
        for heard in _LISTENING:
            heard.append(arguments[0])


@pytest.fixture(scope="session")
def audited() -> None:
    """A hook of the interpreter, which cannot be taken away again."""
    sys.addaudithook(_listen)


@pytest.fixture
def opening(audited: None) -> Callable[[], contextlib.AbstractContextManager[list[str]]]:
    """A context that notes the ``.log`` files that are opened within it, by their last names."""

    @contextlib.contextmanager
    def note() -> Iterator[list[str]]:
        heard, logs = [], []
        _LISTENING.append(heard)
        try:
            yield logs
        finally:
            _LISTENING.remove(heard)
            names = (Path(each) for each in heard if each.endswith(".log"))
            logs += sorted({f"{each.parent.name}/{int(each.stem)}" for each in names})

    return note
