"""Processes that are begun quickly: they are forked from one that has imported everything."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Self

__all__ = ["Nursery", "serve"]


class Nursery:
    """A program that calls `serve`, and forks a process for each piece of work.

    `program`: its file.  A context that ends it.
    """

    def __init__(self, program: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, program],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def begin(self, work: dict[str, Any]) -> int:
        """Start a piece of work; its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def await_end(self) -> tuple[int, list[str]]:
        """Its status, as `os.waitpid` returns it, and the lines that it has written."""
        said = list[str]()
        while not (line := self._answer().strip()).startswith("ended "):
            said.append(line)
        return int(line.removeprefix("ended ")), said

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise EOFError("the nursery has ended")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def serve(work: Callable[..., int]) -> None:
    """The program of a nursery; `work` has the exit status of its process."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            print(os.getpid(), flush=True)  # before all that it says itself
            os._exit(work(**json.loads(line)))
        print("ended", os.waitpid(child, 0)[1], flush=True)
