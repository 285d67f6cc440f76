"""The driver or the workers of Spark jobs are killed: acknowledged jobs are there, once."""

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from killing import N_PARTITIONS, N_ROWS, JobDriver, Reader, n_whole_jobs, step_of
from soundness import assert_settled

import segmentlog

pytestmark = pytest.mark.spark

N_KILLS, N_WORKERS_KILLED_FIRST = int(os.environ.get("SPARK_KILLS", "200")), 7

#: Writes one job after the other and prints the number of each once it is committed. A job that
#: failed is repeated under its number.
DRIVER = f"""
from itertools import count
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


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_spark_jobs_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """Workers are killed several times, then the whole driver. A reader sees only whole jobs.

    Two jobs are committed before each kill.
    """
    directory, rng = tmp_path / "logs", random.Random(N_KILLS)
    steps: Counter[tuple[str, str]] = Counter()
    with segmentlog.open_writer(directory, "t", num_partitions=N_PARTITIONS):
        pass
    driver = JobDriver(DRIVER, directory, 0)
    try:
        with Reader(directory) as reader:
            for number in range(1, N_KILLS + 1):
                driver.wait_for_a_job()
                acknowledged = driver.wait_for_a_job()
                is_driver = number % (N_WORKERS_KILLED_FIRST + 1) == 0
                kinds = ("worker", "java", "other") if is_driver else ("worker",)
                aim = directory if rng.random() < 0.7 else None
                driver.kill_during(aim, *kinds, after=rng.uniform(0, 1))
                steps["driver" if is_driver else "workers", step_of(directory)] += 1
                reader.await_look()
                if is_driver:
                    acknowledged = driver.acknowledged()
                    driver.end()
                    assert n_whole_jobs(directory) - 1 in (acknowledged, acknowledged + 1)
                    driver = JobDriver(DRIVER, directory, acknowledged + 1)
            acknowledged = driver.wait_for_a_job()
    finally:
        driver.end()
    print(dict(steps), reader.n_looks)

    assert n_whole_jobs(directory) - 1 >= acknowledged >= 2 * N_KILLS
    with segmentlog.open_writer(directory, "t"):  # an empty job recovers, too
        pass
    assert_settled(directory)
    assert reader.n_looks >= N_KILLS
    assert sum(n for (_, step), n in steps.items() if step != "no guard") >= 0.3 * N_KILLS
