"""The driver or the workers of Spark jobs are killed: acknowledged jobs are there, once."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from killing import N_PARTITIONS, N_ROWS, Reader, n_whole_jobs, step_of
from soundness import assert_settled

import segmentlog
from segmentlog.commit.guard import list_guards

pytestmark = pytest.mark.spark

#: Writes one job after the other and prints the number of each once it is committed. A job that
#: failed is repeated under its number.
DRIVER = f"""
import sys
from itertools import count
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
for number in count(int(sys.argv[2])):
    rows = spark.range(0, {N_PARTITIONS * N_ROWS}, 1, 4)
    rows = rows.selectExpr(f"'{{number}}' value", "cast(id % {N_PARTITIONS} as int) partition")
    while True:
        try:
            (
                rows.write.format("segmentlog")
                .options(topic="t", txnAppId="app", txnVersion=number)
                .mode("append").save(sys.argv[1])
            )
            break
        except Exception as error:  # an error of Java, when a worker without a task dies
            print(str(error)[:500], file=sys.stderr)
    print(number, flush=True)
"""


class Driver:
    """A driver with its JVM and its Python workers, in one session of the operating system.

    Parameters
    ----------
    directory : the log directory that the jobs append to.
    first : the number of the first job.
    """

    def __init__(self, directory: Path, first: int) -> None:
        self._errors = (directory.parent / "driver.err").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(directory), str(first)],
            stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )  # fmt: skip
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._printed = b""
        self._first = first

    def members(self) -> Iterator[tuple[int, str]]:
        """Processes of the session, and what they are. Daemons fork the workers."""
        for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - it has to be quick
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                _, _, after = Path("/proc", name, "stat").read_text().rpartition(") ")
                state, _, group, session = after.split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    is_forked = group not in {name, session}
                    yield int(name), "worker" if is_forked else "other"

    def acknowledged(self) -> int:
        """Number of the last job that the driver has reported as committed."""
        self._printed += self.process.stdout.read() or b""
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
        self.process.stdout.close()
        self._errors.close()


@pytest.mark.parametrize(
    ("n_kills", "n_workers_killed_first"),
    [
        pytest.param(2, 1, marks=pytest.mark.thorough),
        pytest.param(200, 7, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_killed_spark_jobs_lose_and_repeat_nothing(
    tmp_path: Path, n_kills: int, n_workers_killed_first: int
) -> None:
    """Workers are killed several times, then the whole driver. A reader sees only whole jobs.

    Two jobs are committed before each kill.
    """
    directory, rng = tmp_path / "logs", random.Random(n_kills)
    steps: Counter[tuple[str, str]] = Counter()
    with segmentlog.open_writer(directory, "t", num_partitions=N_PARTITIONS):
        pass
    driver = Driver(directory, 0)
    try:
        with Reader(directory) as reader:
            for number in range(1, n_kills + 1):
                driver.wait_for_a_job()
                acknowledged = driver.wait_for_a_job()
                is_driver = number % (n_workers_killed_first + 1) == 0
                kinds = {"worker", "other"} if is_driver else {"worker"}
                aim = directory if rng.random() < 0.7 else None
                driver.kill(kinds, in_guard_of=aim, after=rng.uniform(0, 1))
                steps["driver" if is_driver else "workers", step_of(directory)] += 1
                if is_driver:
                    acknowledged = driver.acknowledged()
                    driver.end()
                    assert n_whole_jobs(directory) - 1 in (acknowledged, acknowledged + 1)
                    driver = Driver(directory, acknowledged + 1)
            acknowledged = driver.wait_for_a_job()
    finally:
        driver.end()
    print(dict(steps), reader.n_looks)

    assert n_whole_jobs(directory) - 1 >= acknowledged >= 2 * n_kills
    with segmentlog.open_writer(directory, "t"):  # an empty job recovers, too
        pass
    assert_settled(directory)
    assert reader.n_looks > n_kills
    if n_kills > 100:  # two kills may both come too late for a guard
        assert sum(n for (_, step), n in steps.items() if step != "no guard") >= 0.3 * n_kills
