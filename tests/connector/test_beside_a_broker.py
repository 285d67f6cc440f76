"""Queries that leave a broker its disk and its page cache."""

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import segmentlog
from segmentlog.store.beside_broker import Pace

pytestmark = pytest.mark.spark

N_BYTES = 4_000_000


def shared(directory: Path) -> Path:
    """The file by which tasks share a limit."""
    return Path(Pace(1, str(directory))._path)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Path]:
    """A directory of 4 MB, whose file of the limit is removed after the test."""
    directory = tmp_path / "logs"
    with segmentlog.open_writer(directory, "a", num_partitions=4) as writer:
        writer.append(pa.table({"value": [os.urandom(1000) for _ in range(N_BYTES // 1000)]}))
    yield directory
    shared(directory).unlink(missing_ok=True)


@pytest.mark.thorough
def test_all_tasks_of_a_read_share_the_limit(spark: SparkSession, logs: Path) -> None:
    """Twelve tasks read 4 MB at 4 MB a second, two at a time."""
    options = {"maxBytesPerSecond": N_BYTES, "minPartitions": 12, "maxBytesPerPartition": 0}
    rows = spark.read.format("segmentlog").options(**options).load(str(logs))
    began = time.monotonic()
    counted = rows.selectExpr("sum(length(value)) n").first()["n"]
    took = time.monotonic() - began

    assert (N_BYTES, True) == (counted, shared(logs).exists())
    assert 0.9 <= took


@pytest.mark.slow
def test_all_tasks_of_a_write_share_the_limit(spark: SparkSession, logs: Path) -> None:
    """Four tasks write 4 MB at 4 MB a second, to the directory that is read without a limit."""
    rows = spark.read.format("segmentlog").schema("value binary").load(str(logs))
    began = time.monotonic()
    (
        rows.repartition(4)
        .write.format("segmentlog")
        .options(topic="b", maxBytesPerSecond="4000000b")
        .mode("append")
        .save(str(logs))
    )

    assert 0.9 <= time.monotonic() - began
    assert shared(logs).exists()
    assert 4000 == segmentlog.read(logs, "b").num_rows


@pytest.mark.linux
@pytest.mark.usefixtures("real_syncs")
def test_a_query_leaves_the_page_cache_as_it_was(spark: SparkSession, logs: Path) -> None:
    """Pages of a broker's consumers stay, and the pages that the query has read do not."""
    from segmentlog.store.beside_broker import _residency

    path = next(logs.glob("a-0/*.log"))
    descriptor = os.open(path, os.O_RDONLY)
    size = path.stat().st_size
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if any(_residency(descriptor, 0, size)):
        pytest.skip("the file system keeps files in memory")
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(descriptor, 1, 600_000)
    (before,) = [i for i, is_there in enumerate(_residency(descriptor, 0, size)) if is_there]
    read = spark.read.format("segmentlog").option("sparePageCache", "true").load(str(logs))
    counted = read.selectExpr("sum(length(value)) n").first()["n"]
    there = [i for i, is_there in enumerate(_residency(descriptor, 0, size)) if is_there]
    os.close(descriptor)

    assert N_BYTES == counted
    assert before in there
    assert len(there) < size // mmap.PAGESIZE / 2  # of look-ups while the query is planned
