"""Numbered jobs of writers that are killed, and the jobs that a reader may see.

Job `n` has ten rows of the value `n` in each of four partitions.  Run as a program, this looks at
a directory again and again until its standard input ends, and prints a line for each look.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

import segmentlog
from segmentlog.txn.guard import list_guards
from segmentlog.txn.state import State

N_PARTITIONS = 4
N_ROWS = 10


def n_whole_jobs(directory: Path) -> int:
    """The number of jobs: they begin at 0, and each is once in all partitions, with all rows."""
    opened = segmentlog.open_log_dir(directory)
    ends = set()
    for partition in range(N_PARTITIONS):
        found = opened.log("t", partition).scan(columns=["value"]).read_all()["value"]
        numbers = np.asarray(found.cast(pa.string()).cast(pa.int64()))
        n_jobs = len(numbers) // N_ROWS
        assert np.array_equal(np.repeat(np.arange(n_jobs), N_ROWS), numbers), partition
        ends.add(n_jobs)
    assert len(ends) == 1, ends
    return ends.pop()


def step_of(directory: Path) -> str:
    """The last step of the killed commit."""
    guards = list_guards(str(directory))
    if not guards:
        return "no guard"
    if guards[0].intent() is None:
        return "guard without intent"
    is_decided = State.read(str(directory)).token == guards[0].token
    return "decided" if is_decided else "appending"


class Reader:
    """A process that reads all the time during a ``with`` block, which fails if a read fails."""

    def __init__(self, directory: Path) -> None:
        self._command = [sys.executable, __file__, str(directory)]
        self.n_looks = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        return self

    def await_look(self) -> None:
        """Wait for the end of a look."""
        assert self._process.stdout is not None
        self.n_looks += bool(self._process.stdout.readline())  # an error is shown at the end

    def __exit__(self, *_: object) -> None:
        output, errors = self._process.communicate()
        assert self._process.returncode == 0, errors
        self.n_looks += len(output.splitlines())


def _look_until_told(directory: Path) -> None:
    is_over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait, daemon=True).start()
    n_before = 0
    while not is_over.is_set():
        n_jobs = n_whole_jobs(directory)
        assert n_jobs >= n_before, "jobs that were visible are gone"
        n_before = n_jobs
        print(n_jobs, flush=True)


if __name__ == "__main__":
    os.nice(10)  # the killed process needs the processor more
    _look_until_told(Path(sys.argv[1]))
    os._exit(0)  # the thread at the end of standard input is still there
