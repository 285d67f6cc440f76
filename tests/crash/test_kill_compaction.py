"""The driver or the workers of a compaction by Spark are killed.

The next compaction begins at once.
"""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from compaction.batches import lay_out, records_of
from killing import Driver

import segmentlog
from segmentlog.errors import LogLockedError

pytestmark = pytest.mark.spark

N_PARTITIONS, N_SEGMENTS, N_KEYS = 3, 150, 80
COMPACT = {"cleanup.policy": "compact", "segment.bytes": "2000"}

#: Compacts each directory whose path it reads, and prints a line before and after.
DRIVER = f"""
import pyspark_segmentlog
print("ready", flush=True)
for line in sys.stdin:
    pyspark_segmentlog.compact(spark, line.strip(), settings={COMPACT!r})
    print("done", flush=True)
"""


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
                records_of(
                    4 * number,
                    *((b"%d" % rng.randrange(N_KEYS), os.urandom(20)) for _ in range(4)),
                )
            ]
            for number in range(N_SEGMENTS)
        }
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
        driver = Driver(DRIVER, tmp_path / "driver.err")
        try:
            assert driver.process.stdout.readline() == b"ready\n", driver.errors.read_text()[
                -2000:
            ]
            driver.process.stdin.write(f"{directory}\n".encode())
            driver.process.stdin.flush()
            while not (found := [*directory.glob("*/*.cleaned")]):
                time.sleep(0.001)
            if number % 2:
                driver.kill("worker")
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
