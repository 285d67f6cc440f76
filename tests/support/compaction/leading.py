"""A compaction whose leader and tasks are processes that may end at any moment."""

import contextlib
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

import pytest
from crashing import CALLS, Forward, around_calls, in_child

from segmentlog.maintain import CompactionSettings, CompactionTask, begin_compaction

NOW_MS = 10**12

#: Every call by which a task changes a disk, opens a file or lists a directory.
_ALL_CALLS = (*CALLS, "open", "utime", "stat", "scandir", "listdir")


def act_at_call(patch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> list[str]:
    """Call a function once, right before a call of `os`; return the names of the calls."""
    made: list[str] = []

    def around(name: str, forward: Forward) -> object:
        made.append(name)
        if len(made) == number + 1:
            act()
        return forward()

    around_calls(patch, _ALL_CALLS, around)
    return made


def dies_at_call(run: Callable[[], object], number: int) -> bool:
    """Run a function in a process that dies before a call of `os`; whether it got so far."""

    def dies() -> None:
        act_at_call(pytest.MonkeyPatch(), number, lambda: os._exit(9))
        run()

    status = os.waitstatus_to_exitcode(os.waitpid(in_child(dies), 0)[1])
    assert status in (0, 9)
    return status == 9


@contextlib.contextmanager
def leading(directory: Path, settings: Mapping[str, str]) -> Iterator[list[CompactionTask]]:
    """Lead a compaction; yields a task for each partition that is due."""
    given = CompactionSettings(
        settings={"cleanup.policy": "compact", **settings},
        dedupe_buffer_bytes=1 << 20,
        producer_expiration_ms=10**9,
        now_ms=NOW_MS,
    )
    with begin_compaction(directory, given) as job:
        assert job.lock is not None
        for each in job.due:
            job.begin(each)
        with job.lock.shared(len(job.due)) as share:
            yield [job.task(each, share, number) for number, each in enumerate(job.due, 1)]


class Leader:
    """A process that leads the compaction of a directory, from entering to leaving or `kill`."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self._directory = directory
        self._settings = settings
        self.tasks: list[CompactionTask] = []

    def __enter__(self) -> Self:
        heard, self._told = os.pipe()
        self._ending, self._end = os.pipe()
        self._child = in_child(self._lead)
        os.close(self._told)
        os.close(self._ending)
        with os.fdopen(heard, "rb") as pipe:
            self.tasks = pickle.load(pipe)
        return self

    def _lead(self) -> None:
        os.close(self._end)
        with leading(self._directory, self._settings) as tasks:
            with os.fdopen(self._told, "wb") as pipe:
                pickle.dump(tasks, pipe)
            os.read(self._ending, 1)

    def kill(self) -> None:
        """Kill the process, as when a machine is lost."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)
        self._wait()

    def begin_to_end(self) -> None:
        """Make the process leave the compaction; it may wait for tasks."""
        if self._end >= 0:
            os.close(self._end)
            self._end = -1

    def _wait(self) -> None:
        if self._child:
            os.waitpid(self._child, 0)
            self._child = 0

    def __exit__(self, *_: object) -> None:
        self.begin_to_end()
        self._wait()
