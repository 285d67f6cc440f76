"""The driver or the workers of a compaction by Spark are killed.

The next compaction begins at once.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from compaction.batches import lay_out, records_of
from ready_worker import plain_python

import segmentlog
from segmentlog.errors import LogLockedError

pytestmark = pytest.mark.spark

N_PARTITIONS, N_SEGMENTS, N_KEYS = 3, 150, 80
COMPACT = {"cleanup.policy": "compact", "segment.bytes": "2000"}

#: Compacts each directory whose path it reads, and prints a line before and after.
DRIVER = f"""
import sys
import pyspark_segmentlog
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
print("ready", flush=True)
for line in sys.stdin:
    pyspark_segmentlog.compact(spark, line.strip(), settings={COMPACT!r})
    print("done", flush=True)
"""


class Driver:
    """A driver with its JVM and its Python workers, in one session of the operating system."""

    def __init__(self, errors: Path) -> None:
        with errors.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=output, start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": plain_python()},
            )  # fmt: skip
        assert self.says() == "ready", errors.read_text()[-2000:]

    def begin(self, directory: Path) -> None:
        """Make the driver compact a directory."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{directory}\n".encode())
        self.process.stdin.flush()

    def says(self) -> str:
        """The next line that the driver prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def members(self) -> Iterator[tuple[int, bool]]:
        """Processes of the session, and whether each is a worker. Daemons fork the workers."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                _, _, after = Path("/proc", name, "stat").read_text().rpartition(") ")
                state, _, group, session = after.split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    yield int(name), group not in {name, session}

    def kill_workers(self) -> None:
        """Kill all current workers."""
        for pid, is_worker in list(self.members()):
            if is_worker:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill all processes that are left."""
        while members := list(self.members()):
            for pid, _ in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.communicate()


def values_of(directory: Path) -> list[dict[bytes, bytes]]:
    """For each partition, the last value of each key that a reader finds."""
    opened = segmentlog.open_log_dir(directory)
    tables = [opened.log("t", each).scan().read_all() for each in range(N_PARTITIONS)]
    return [
        dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
        for table in tables
    ]


def lay_out_logs(directory: Path, rng: random.Random) -> None:
    """Write logs of many segments."""
    for partition in range(N_PARTITIONS):
        segments = {
            4 * number: [
                records_of(4 * number, *((b"%d" % rng.randrange(N_KEYS), os.urandom(20))
                                         for _ in range(4)))
            ]
            for number in range(N_SEGMENTS)
        }  # fmt: skip
        lay_out(directory, segments, f"t-{partition}")


_N_ROUNDS = 40


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_compaction_that_begins_as_soon_as_a_driver_is_killed(tmp_path: Path) -> None:
    """No key is lost: the new compaction waits for the tasks of the dead driver.

    In some rounds workers are killed before the driver. In a quarter of the rounds the driver is
    killed as soon as a segment is replaced.
    """
    rng = random.Random(_N_ROUNDS)
    n_met = 0
    for number in range(_N_ROUNDS):
        directory = tmp_path / str(number)
        lay_out_logs(directory, rng)
        expected = values_of(directory)
        driver = Driver(tmp_path / "driver.err")
        try:
            driver.begin(directory)
            while not (found := [*directory.glob("*/*.cleaned")]):
                time.sleep(0.001)
            if number % 2:
                driver.kill_workers()
            elif number % 4 == 0:
                while not [*directory.glob("*/*.deleted")] and driver.process.poll() is None:
                    time.sleep(0.001)
            else:
                time.sleep(rng.uniform(0, 0.5))
            os.kill(driver.process.pid, signal.SIGKILL)
            driver.process.wait()
            try:
                segmentlog.compact(directory, settings=COMPACT, lock_timeout_seconds=0)
            except LogLockedError as error:
                n_met += error.is_task
                segmentlog.compact(directory, settings=COMPACT)
            assert found
            assert expected == values_of(directory)
        finally:
            driver.end()
        assert expected == values_of(directory)
        shutil.rmtree(directory)
    print(f"tasks of dead drivers were met {n_met} times")
