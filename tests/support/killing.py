"""Numbered jobs of writers and of Spark that are killed, and the jobs that a reader may see.

Job `n` has ten rows of the value `n` in each of four partitions.  Run as a program, this looks at
a directory again and again until its standard input ends, and prints a line for each look.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from ready_worker import plain_python

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
            self._command,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
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


#: The beginning of a driver's program.
SESSION = """
import sys
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
"""


class Driver:
    """A driver of Spark with its JVM and Python workers, in one session of the operating system.

    `program`: in Python, without `SESSION`. `errors`: takes its error output.
    """

    def __init__(self, program: str, errors: Path, *arguments: object) -> None:
        self.errors = errors
        with errors.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SESSION + program, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": plain_python()},
            )

    def members(self) -> Iterator[tuple[int, str]]:
        """Processes of the session and their kinds; a daemon of Spark has forked each worker."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                _, _, after = Path("/proc", name, "stat").read_text().rpartition(") ")
                state, _, group, session = after.split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    is_forked = group not in {name, session}
                    is_java = Path("/proc", name, "comm").read_text() == "java\n"
                    yield int(name), "worker" if is_forked else "java" if is_java else "other"

    def kill(self, *kinds: str) -> set[int]:
        """Kill all processes of some kinds; returns their ids."""
        victims = {pid for pid, kind in self.members() if kind in kinds}
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return victims

    def end(self) -> None:
        """Kill all processes that are left."""
        while self.kill("worker", "java", "other"):
            pass
        self.process.communicate()


class JobDriver(Driver):
    """A driver that prints the number of each job that is committed.

    `program`: gets the directory and `first`. `directory`: the log directory that the jobs append
    to. `first`: the number of the first job.
    """

    def __init__(self, program: str, directory: Path, first: int) -> None:
        super().__init__(program, directory.parent / "driver.err", directory, first)
        assert self.process.stdout is not None
        self._output = self.process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._printed = b""
        self._first = first

    def acknowledged(self) -> int:
        """Number of the last job that the driver has reported as committed."""
        self._printed += self._output.read() or b""
        numbers = [*map(int, self._printed.split(b"\n")[:-1])]
        return numbers[-1] if numbers else self._first - 1

    def wait_for_a_job(self) -> int:
        """Wait until the driver has committed one more job, and return its number."""
        before, until = self.acknowledged(), time.monotonic() + 120
        while (now := self.acknowledged()) == before:
            assert self.process.poll() is None, self.errors.read_text()[-2000:]
            assert time.monotonic() < until, "no job was committed in time"
            time.sleep(0.01)
        return now

    def kill_during(self, directory: Path | None, *kinds: str, after: float) -> None:
        """Kill all processes of some kinds, after a while or once a directory has a guard."""
        if directory is None:
            time.sleep(after)
        else:
            until = time.monotonic() + 30
            while not list_guards(str(directory)) and time.monotonic() < until:
                time.sleep(0.001)
            time.sleep(after / 50)  # at any step: a guard exists for some tens of milliseconds
        victims = self.kill(*kinds)
        while victims & {pid for pid, _ in self.members()}:
            pass


if __name__ == "__main__":
    os.nice(10)  # the killed process needs the processor more
    _look_until_told(Path(sys.argv[1]))
    os._exit(0)  # the thread at the end of standard input is still there
