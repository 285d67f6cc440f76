"""Spark jobs of two sessions, and plain Python, write to one directory at once."""

import threading
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import segmentlog

pytestmark = pytest.mark.spark

N_PARTITIONS = 3
N_JOBS = 4  # of each writer
N_ROWS = 10  # of each job in each partition


def by_spark(session: SparkSession, directory: Path, job: int) -> None:
    """Write one job of a session, in four tasks."""
    if hasattr(session, "_jvm"):  # Spark looks in the thread's session
        active = session._jvm.org.apache.spark.sql.classic.SparkSession
        active.setActiveSession(session._jsparkSession)
    rows = session.range(0, N_ROWS * N_PARTITIONS, 1, 4)
    (
        rows.selectExpr(f"'{job}' value", f"cast(id % {N_PARTITIONS} as int) partition")
        .write.format("segmentlog")
        .options(topic="t", numPartitions=N_PARTITIONS)
        .mode("append")
        .save(str(directory))
    )


def by_python(_: None, directory: Path, job: int) -> None:
    """Write the same rows without Spark."""
    n_rows = N_ROWS * N_PARTITIONS
    partitions = pa.array([i % N_PARTITIONS for i in range(n_rows)], pa.int32())
    rows = pa.table({"value": [b"%d" % job] * n_rows, "partition": partitions})
    with segmentlog.open_writer(directory, "t", num_partitions=N_PARTITIONS) as writer:
        writer.append(rows)


def look(directory: Path) -> list[int]:
    """Jobs in the order of the log; each is whole, and the order is the same in all partitions."""
    opened = segmentlog.open_log_dir(directory)
    found = []
    for partition in range(N_PARTITIONS):
        rows = opened.log("t", partition).scan(columns=["value"]).read_all()
        grouped = groupby(map(int, rows["value"].to_pylist()))
        found.append([(job, len(list(values))) for job, values in grouped])

    assert all(each == found[0] for each in found)
    assert {N_ROWS} == {n_rows for _, n_rows in found[0]}
    return [job for job, _ in found[0]]


@pytest.mark.parametrize(
    "any_spark", ["local", pytest.param("cluster", marks=pytest.mark.slow)], indirect=True
)
def test_jobs_follow_each_other(
    spark: SparkSession, any_spark: SparkSession, tmp_path: Path
) -> None:
    """No job is lost or interleaved. Readers see whole jobs in all partitions at once."""
    by_python(None, tmp_path, 0)
    writers = [(by_spark, spark), (by_spark, spark), (by_spark, any_spark), (by_python, None)]
    jobs = [range(100 * i, 100 * i + N_JOBS) for i in range(1, len(writers) + 1)]
    failed: list[BaseException] = []

    def run(write: Callable[..., None], session: SparkSession | None, numbers: range) -> None:
        try:
            for number in numbers:
                write(session, tmp_path, number)
        except BaseException as error:  # noqa: BLE001 - of any kind: the test fails with it
            failed.append(error)

    threads = [
        threading.Thread(target=run, args=(*writer, numbers))
        for writer, numbers in zip(writers, jobs, strict=True)
    ]
    for thread in threads:
        thread.start()
    seen = [look(tmp_path)]
    while any(thread.is_alive() for thread in threads):
        seen.append(look(tmp_path))
    last = look(tmp_path)

    assert [] == failed
    assert {0}.union(*jobs) == set(last)
    assert len(last) == len(set(last))
    assert all(each == last[: len(each)] for each in seen)
    assert len({len(each) for each in seen}) > N_JOBS
    assert ["segmentlog.state"] == [path.name for path in tmp_path.glob("segmentlog.*")]
