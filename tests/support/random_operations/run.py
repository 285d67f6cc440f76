"""A run of several processes on one directory: what they do, and how they are started and killed.

The run's seed, and the number of a step, determine each step; the times, and the moments of the
kills, depend on the machine.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from random_operations.faults import Fault
from random_operations.ledger import Ledger
from random_operations.model import Model, NewRow
from random_operations.operations import OPERATIONS, Mirrored, Scene
from random_operations.playing import Step

_SECONDS_TO_END = 60

_FAULTS = ("eio", "broken", "full", "interrupt")


class Run(NamedTuple):
    """One run.

    `tombstones_ms`, `timed_ms`, `sized_bytes`: ``delete.retention.ms`` of compacted topics,
    ``retention.ms`` of the topic ``timed``, ``retention.bytes`` of the topic ``sized``. `lives`,
    `rest`: mean seconds before a writer is killed, and before each step of the upkeep.
    """

    seed: int
    seconds: float  # that it lasts, beside its beginning and its end
    n_readers: int
    # for each of them, the operations that it draws, with their weights; or upkeep:
    # ``recovering``, ``compacting``, ``retaining``, ``forgetting`` of high watermarks
    writers: Sequence[Mapping[str, int]]
    topics: Mapping[str, int]  # with their numbers of partitions
    made: Sequence[str]  # those that exist from the beginning; a write makes the others
    # topics in which a reader may miss rows that have a newer row of their key
    compacted: Sequence[str] = ()
    delay_ms: int = 2000  # ``file.delete.delay.ms``
    longest_ms: int = 4000  # the longest pause of a reader in the middle of a read
    tombstones_ms: int = 4000
    timed_ms: int = 4000
    sized_bytes: int = 300_000
    segment_bytes: Sequence[int] = (400, 2000, 20_000)
    n_keys: int = 60  # of the records; without keys if 0
    lives: float = 1.3
    rest: float = 0.05
    least: int = 1  # how often each kind of operation and read has to happen

    def steps(self, slot: int) -> Callable[[int], Step]:
        """The steps of a writer, by their numbers, which are unique."""
        weights = self.writers[slot - 1]

        def step(number: int) -> Step:
            seed = slot * 10**7 + number
            rng = random.Random(f"{self.seed} {seed}")
            (name,) = rng.choices([*weights], [*weights.values()])
            fault = Fault(rng.choice(_FAULTS), rng.randrange(120), rng.random() < 0.3)
            is_faulty = name in OPERATIONS and rng.random() < 0.2
            return Step(name, seed + self.seed * 10**9, fault if is_faulty else None)

        return step


def spark_rows(run: Run, number: int) -> list[NewRow]:
    """The rows of one job of Spark's, to the first topic."""
    rng = random.Random(f"{run.seed} Spark {number}")
    rows = []
    for each in rng.sample(range(run.n_keys), min(run.n_keys, rng.randint(5, 40))):
        value = None if rng.random() < 0.1 else b"spark %d/%d" % (number, each)
        n_partitions = next(iter(run.topics.values()))
        rows.append(NewRow(rng.randrange(n_partitions), 0, b"k%d" % each, value))
    return rows


def run_command(command: str, directory: Path) -> None:
    """A command with its flags ends without a finding."""
    name, *flags = command.split()
    done = subprocess.run(
        [sys.executable, "-m", "segmentlog", name, str(directory), *flags],
        check=False,
        env=_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def scene_of(run: Run, directory: Path, model: Model, step: Step, now_ms: int) -> Scene:
    """The scene of a step that knows no more of a directory than what its own process did."""
    return Scene(
        directory,
        model,
        random.Random(f"{step.name}:{step.seed}"),
        now_ms,
        lambda _: None,
        Mirrored(directory, []),
        is_powered=False,
        topics=run.topics,
        made=run.made,
        segment_bytes=run.segment_bytes,
        keys=[b"k%d" % each for each in range(run.n_keys)],
        slot=step.seed // 10**7 % 100,
    )


class Processes:
    """Writers and readers; the death of a reader is noted, and a new reader replaces it."""

    def __init__(self, directory: Path, ledger: Ledger, run: Run) -> None:
        self._directory, self._ledger, self._run = directory, ledger, run
        self._errors = ledger.path.with_suffix(".stderr")
        self._n_started = 0
        self._writers = [self._start("writer", slot + 1) for slot in range(len(run.writers))]
        self._readers = [self._start("reader") for _ in range(run.n_readers)]
        for each in (*self._writers, *self._readers):  # all at once
            _begin(each)

    def replace_dead(self) -> None:
        """Note each death, and start readers again."""
        for i, each in enumerate(self._readers):
            if each.poll() is not None:
                self._note_death(each)
                self._readers[i] = self._start("reader")
                _begin(self._readers[i])

    def watch(self, is_enough: Callable[[], bool], meanwhile: Callable[[], object]) -> None:
        """Wait until the time is over, on a slow machine longer, until enough has happened."""
        begun = time.monotonic()
        while (past := time.monotonic() - begun) < self._run.seconds or (
            past < max(5 * self._run.seconds, self._run.seconds + 240) and not is_enough()
        ):
            meanwhile()
            self.replace_dead()

    def end(self) -> None:
        """Kill the writers, and let the readers finish."""
        processes = (*self._writers, *self._readers)
        for each in processes:
            assert each.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                each.stdin.write("end\n")
                each.stdin.flush()
        for each in processes:
            each.communicate(timeout=_SECONDS_TO_END + self._run.longest_ms / 1000)
            if each.returncode:
                self._note_death(each)

    def kill(self) -> None:
        """Kill all processes that are left."""
        for each in (*self._writers, *self._readers):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)  # a writer's child holds its pipes, too
            each.communicate()

    def _note_death(self, process: "subprocess.Popen[str]") -> None:
        process.communicate()  # closes its pipes
        code = process.returncode
        name = signal.Signals(-code).name if code < 0 else f"code {code}"
        self._ledger.note("death", name=name, text=self._errors.read_text()[-3000:])

    def _start(self, program: str, slot: int | None = None) -> "subprocess.Popen[str]":
        self._n_started += 1
        with self._errors.open("a") as errors:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    f"random_operations.{program}",
                    str(self._directory),
                    str(self._ledger.path),
                    json.dumps(self._run._asdict()),
                    str(slot or self._n_started),
                ],
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )


def _begin(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("begin\n")
    process.stdin.flush()
