"""Readers and writers work on one log directory at the same time, as hard as they can.

Writers append, move files, overwrite, create topics, fail in the middle, and are killed.  Readers
read in every possible way.  Their results are compared with the order of the commits: each read
sees one moment of the whole directory.  `test_reads_beside_commits` has the single interleavings.

The work of each writer and reader comes from a seed, ``STRESS_SEED``.  The times of the work, and
of the kills, depend on the machine.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from numbered_jobs import LEVELS, look
from soundness import assert_tidy
from stressing.ledger import Ledger, now
from stressing.plan import READS, TOPICS
from stressing.verdict import Failure, Verdict, tally

import segmentlog
from segmentlog.txn.state import State

_SECONDS_TO_END = 60
_PATIENCE = 5
_WEEK = 8 * 24 * 3600


class Stress(NamedTuple):
    """One stress run.

    Attributes
    ----------
    seconds : the duration of the run without its start and its end.
    delay_ms : the delay before files of overwritten records are deleted; Kafka's is a minute.
    longest_ms : the longest pause of a reader in the middle of a read.
    """

    seed: int
    seconds: float
    n_writers: int
    n_readers: int
    delay_ms: int
    longest_ms: int
    n_new_topics: int
    least: int  # of each kind of operation and read


_SEED = int(os.environ.get("STRESS_SEED", "1"))
#: A run to try a change; on a slow machine, it continues until each kind of work was done.
SHORT = Stress(_SEED, 16, 2, 3, 2000, 4000, 6, 1)
#: A run that is longer than Kafka's delay for files of overwritten records.
LONG = Stress(_SEED, 240, 3, 4, 60_000, 75_000, 20, 5)


class _Processes:
    """Writers and readers. The death of a reader is noted, and a new reader replaces it."""

    def __init__(self, directory: Path, ledger: Ledger, run: Stress) -> None:
        self._directory, self._ledger, self._run = directory, ledger, run
        self._n_readers = 0
        self.errors = ledger.path.with_suffix(".stderr")
        self._writers = [self._start("writer", slot) for slot in range(1, run.n_writers + 1)]
        self._readers = [self._start_reader() for _ in range(run.n_readers)]

    def begin(self) -> None:
        """Start all of them at once."""
        for each in (*self._writers, *self._readers):
            _begin(each)

    def watch(self) -> None:
        """Wait until the time is over.

        A slow machine gets more time, until enough has happened.
        """
        begun = time.monotonic()
        while (past := time.monotonic() - begun) < self._run.seconds or (
            past < _PATIENCE * self._run.seconds and missing(self._tally(), self._run)
        ):
            time.sleep(0.2)
            for i, each in enumerate(self._readers):
                if each.poll() is not None:
                    self._note_death(each)
                    self._readers[i] = self._start_reader()
                    _begin(self._readers[i])

    def end(self) -> None:
        """Kill the writers, and let the readers finish."""
        processes = (*self._writers, *self._readers)
        for each in processes:
            assert each.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                each.stdin.write("end\n")
                each.stdin.flush()
        for each in processes:
            each.communicate(timeout=_SECONDS_TO_END)
            if each.returncode:
                self._note_death(each)

    def kill(self) -> None:
        """Kill all processes that are left."""
        for each in (*self._writers, *self._readers):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)  # a writer's child holds its pipes, too
            each.communicate()

    def _tally(self) -> Counter[str]:
        run = self._run
        return tally(self._ledger.events(), seed=run.seed, n_new_topics=run.n_new_topics)

    def _note_death(self, process: "subprocess.Popen[str]") -> None:
        process.communicate()  # closes its pipes
        code = process.returncode
        name = signal.Signals(-code).name if code < 0 else f"code {code}"
        self._ledger.note("death", name=name, text=self.errors.read_text()[-3000:])

    def _start_reader(self) -> "subprocess.Popen[str]":
        self._n_readers += 1
        return self._start("reader", self._n_readers)

    def _start(self, program: str, slot: int) -> "subprocess.Popen[str]":
        how = {**self._run._asdict(), "slot": slot}
        with self.errors.open("a") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", f"stressing.{program}", str(self._directory),
                 str(self._ledger.path), json.dumps(how)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,
            )  # fmt: skip


def _begin(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("begin\n")
    process.stdin.flush()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory in memory where possible: nothing here loses power, and syncs cost time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(SHORT, id="short", marks=pytest.mark.slow),
        pytest.param(LONG, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_each_look_is_one_moment_of_the_whole_directory(
    scratch: Path, say: Callable[[str], None], run: Stress
) -> None:
    directory, ledger = scratch / "logs", Ledger(scratch / "ledger")
    for topic, n_partitions in TOPICS.items():
        with segmentlog.open_writer(directory, topic, num_partitions=n_partitions):
            pass
    delay = {"file.delete.delay.ms": str(run.delay_ms)}
    segmentlog.alter_settings(directory, None, delay)
    first_token = State.read(str(directory)).token
    processes = _Processes(directory, ledger, run)
    try:
        processes.begin()
        begun = now()
        processes.watch()
        processes.end()
    finally:
        processes.kill()
        ledger.close()

    recover(directory)
    verdict = Verdict(
        ledger.events(), seed=run.seed, n_new_topics=run.n_new_topics, first_token=first_token,
        last_token=State.read(str(directory)).token, delay_ms=run.delay_ms,
    )  # fmt: skip
    failures = [
        *verdict.failures(),
        *(Failure(f"death by {each['name']}", "", each["at"], each["text"])
          for each in verdict.of("death")),
    ]  # fmt: skip
    say(f"\nstress {run}\n{table(verdict.counts)}")
    assert not failures, report_of(run, failures, begun)
    for level in LEVELS:
        opened = segmentlog.open_log_dir(directory)
        seen = {str(key): found for key, found in look(opened, level).items()}
        assert not verdict.final_look(seen), level
    sweep(directory)
    assert_tidy(directory)
    assert not missing(verdict.counts, run)


def recover(directory: Path) -> None:
    """Recover as after a crash, because the last writers were killed."""
    command = [sys.executable, "-m", "segmentlog", "recover", str(directory)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def sweep(directory: Path) -> None:
    """Files of killed writers are removed when two jobs, a week apart, have found them old."""
    for _ in range(2):
        for path in directory.glob("segmentlog.*"):
            if path.is_file():
                os.utime(path, (time.time() - _WEEK, time.time() - _WEEK))
        with segmentlog.open_writer(directory, next(iter(TOPICS))):
            pass


def missing(counts: Counter[str], run: Stress) -> dict[str, int]:
    """Events that were too rare. A run without them would prove nothing about them."""
    jobs = ("append", "append large", "append tiny", "append to both", "create", "overwrite")
    wanted = dict.fromkeys([f"job: {kind}" for kind in jobs], 2 * run.least)
    wanted |= {f"read: {kind}, {level}": run.least for kind in READS for level in LEVELS}
    events = ("failed", "aborted", "recovered", "forgotten")
    wanted |= dict.fromkeys([f"event: {what}" for what in events], run.least)
    wanted |= {"event: killed": 8 * run.least, "recovery: undid": run.least}
    wanted |= {"job: numbered, again": run.least}
    return {name: counts[name] for name, least in wanted.items() if counts[name] < least}


def table(counts: Counter[str]) -> str:
    """Counts, sorted by name."""
    return "\n".join(f"{counts[name]:7,d}  {name}" for name in sorted(counts))


def report_of(run: Stress, failures: Sequence[Failure], begun: int) -> str:
    """The failures of each kind: their number, the time of the first, and its text."""
    kinds: dict[tuple[str, str], list[Failure]] = {}
    for each in failures:
        kinds.setdefault((each.what, each.level), []).append(each)
    lines = [f"{len(failures)} failures; {run}"]
    for (what, level), found in kinds.items():
        seconds = (found[0].at - begun) / 1e9
        lines.append(f"\n{len(found)} x {what} [{level}], first after {seconds:.1f} s")
        lines += [f"    {line}" for line in found[0].text.splitlines()[-25:]]
    return "\n".join(lines)
