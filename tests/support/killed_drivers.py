"""Drivers of Spark in separate processes, which tests kill with their JVMs and workers."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ready_worker import plain_python

from segmentlog.txn.guard import list_guards


class Driver:
    """A driver with its JVM and its Python workers, in one session of the operating system.

    `program`: in Python; it gets the directory and `first`, and prints the number of each job that
    is committed. `directory`: the log directory that the jobs append to. `first`: the number of
    the first job.
    """

    def __init__(self, program: str, directory: Path, first: int) -> None:
        self._errors = (directory.parent / "driver.err").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(directory), str(first)],
            stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": plain_python()},
        )  # fmt: skip
        assert self.process.stdout is not None
        self._output = self.process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._printed = b""
        self._first = first

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

    def acknowledged(self) -> int:
        """Number of the last job that the driver has reported as committed."""
        self._printed += self._output.read() or b""
        numbers = [*map(int, self._printed.split(b"\n")[:-1])]
        return numbers[-1] if numbers else self._first - 1

    def wait_for_a_job(self) -> int:
        """Wait until the driver has committed one more job, and return its number."""
        before, until = self.acknowledged(), time.monotonic() + 120
        while (now := self.acknowledged()) == before:
            assert self.process.poll() is None, Path(self._errors.name).read_text()[-2000:]
            assert time.monotonic() < until, "no job was committed in time"
            time.sleep(0.01)
        return now

    def kill(self, kinds: set[str], *, in_guard_of: Path | None, after: float) -> None:
        """Kill all processes of some kinds, after a while or once a guard exists."""
        if in_guard_of is None:
            time.sleep(after)
        else:
            until = time.monotonic() + 30
            while not list_guards(str(in_guard_of)) and time.monotonic() < until:
                time.sleep(0.001)
            time.sleep(after / 50)  # at any step: a guard exists for some tens of milliseconds
        victims = {pid for pid, kind in self.members() if kind in kinds}
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while victims & {pid for pid, _ in self.members()}:
            pass

    def end(self) -> None:
        """Kill all processes that are left."""
        while members := list(self.members()):
            for pid, _ in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._output.close()
        self._errors.close()
