"""Streams whose driver is killed: each row is in the log once, whatever the driver was doing."""

import os
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from killing import JobDriver, step_of
from plain_writes import write
from soundness import assert_settled

import segmentlog

pytestmark = pytest.mark.spark

N_ROWS = 20  #: of each micro-batch

#: Sources of numbers with `N_ROWS` in each micro-batch.
SOURCES = {
    "rate": f"""
    spark.readStream.format("rate-micro-batch").option("rowsPerBatch", {N_ROWS}).load()
""",
    "segmentlog": f"""
    spark.readStream.format("segmentlog").option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", {N_ROWS}).option("strings", "true")
    .option("initialOffsetsLocation", str(Path(sys.argv[1]).with_name("checkpoint") / "sources/0"))
    .load(str(Path(sys.argv[1]).with_name("source")))
""",
}

#: Writes micro-batch after micro-batch to two topics, and prints the number of each that Spark has
#: noted.
STREAM = """
import time
from pathlib import Path
numbers = (SOURCE)
query = (
    numbers.selectExpr("string(value) value", "if(value % 2 = 0, 'even', 'odd') topic")
    .writeStream.format("segmentlog").option("numPartitions", 2)
    .option("checkpointLocation", str(Path(sys.argv[1]).with_name("checkpoint")))
    .start(sys.argv[1])
)
last = int(sys.argv[2]) - 1
while query.isActive:
    progress = query.lastProgress
    if progress and progress["batchId"] > last:
        last = progress["batchId"]
        print(last, flush=True)
    time.sleep(0.01)
print(query.exception(), file=sys.stderr)
"""


def n_batches(directory: Path) -> int:
    """The number of whole micro-batches in both topics, each of whose rows is there once."""
    opened = segmentlog.open_log_dir(directory)
    found = sorted(
        int(value)
        for each in opened.topic_partitions()
        for value in opened.log(*each).scan(columns=["value"]).read_all()["value"].to_pylist()
    )
    assert found == [*range(len(found))]
    assert len(found) % N_ROWS == 0
    return len(found) // N_ROWS


_N_KILLS = int(os.environ.get("SPARK_KILLS", "100"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("source", [*SOURCES])
def test_killed_streams_lose_and_repeat_nothing(tmp_path: Path, source: str) -> None:
    """Half of the times only the JVM is killed, and its Python processes continue for a while.

    The next run begins at once.  Two thirds of the kills come while a commit stands.
    """
    numbers = pa.array([b"%d" % i for i in range(1000 * _N_KILLS)], pa.binary())
    write(tmp_path / "source", pa.table({"value": numbers}))
    program = STREAM.replace("SOURCE", SOURCES[source])
    directory, rng = tmp_path / "logs", random.Random(_N_KILLS)
    steps: Counter[str] = Counter()
    killed: list[JobDriver] = []
    driver = JobDriver(program, directory, 0)
    try:
        for _ in range(_N_KILLS):
            acknowledged = driver.wait_for_a_job()
            kinds = ("java",) if rng.random() < 0.5 else ("worker", "java", "other")
            aim = directory if rng.random() < 0.67 else None
            driver.kill_during(aim, *kinds, after=rng.uniform(0, 1))
            steps[step_of(directory)] += 1
            acknowledged = max(acknowledged, driver.acknowledged())
            assert n_batches(directory) > acknowledged
            killed.append(driver)
            driver = JobDriver(program, directory, acknowledged + 1)
        acknowledged = driver.wait_for_a_job()
    finally:
        for each in (driver, *killed):
            each.end()
    print(dict(steps))

    with segmentlog.open_writer(directory, "odd"):  # recovers what the last kill has left
        pass
    assert n_batches(directory) > acknowledged
    assert acknowledged >= _N_KILLS
    assert_settled(directory)
    assert sum(n for step, n in steps.items() if step != "no guard") >= 0.2 * _N_KILLS
