"""DataFrames and streams in logs in object stores: tasks write objects, a driver commits."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import spark_server
from moto_here import CREDENTIALS, Moto
from namespaces import in_namespace
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from ready_worker import ready_python
from spark_server import SparkServer

import segmentlog

pytestmark = [
    pytest.mark.spark,
    pytest.mark.needs_spark("Sail has no streams; tests/connector/sail writes into a store"),
]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An empty place that all processes of this machine reach."""
    return f"bucket+file://{tmp_path}/log"


def _numbers(spark: SparkSession, n_rows: int, n_tasks: int = 3) -> DataFrame:
    frame = spark.range(0, n_rows, 1, n_tasks)
    return frame.selectExpr("cast(id as string) key", "cast(id as string) value")


def _save(frame: DataFrame, url: str, **options: str) -> None:
    frame.write.format("segmentlog").options(**options).mode("append").save(url)


def _load(spark: SparkSession, url: str, topic: str) -> DataFrame:
    return spark.read.format("segmentlog").option("subscribe", topic).load(url)


def _copy(spark: SparkSession, url: str, checkpoint: Path, **options: str) -> None:
    """A streaming query that copies what is new, and ends."""
    rows = spark.readStream.format("segmentlog").options(subscribe="t", startingOffsets="earliest")
    copied = rows.load(url).select("key", "value").writeStream.format("segmentlog")
    query = copied.options(topic="copy", checkpointLocation=str(checkpoint), **options)
    query.trigger(availableNow=True).start(url).awaitTermination()


def test_batches_and_streams(spark: SparkSession, url: str, tmp_path: Path) -> None:
    _save(_numbers(spark, 1000), url, topic="t", numPartitions="4")
    _save(_numbers(spark, 1000), url, topic="t")
    found = _load(spark, url, "t")
    assert found.count() == 2000
    assert found.filter("key = value").select("value").distinct().count() == 1000
    assert found.select("partition").distinct().count() == 4
    assert found.filter("partition = 1 and offset between 10 and 19").count() == 10
    _copy(spark, url, tmp_path / "checkpoint", numPartitions="2")
    assert _load(spark, url, "copy").count() == 2000
    _save(_numbers(spark, 10), url, topic="t")
    _copy(spark, url, tmp_path / "checkpoint")
    assert _load(spark, url, "copy").count() == 2010


def test_a_batch_that_is_repeated_is_written_once(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """As after a driver that was killed between the commit of the log and that of Spark."""
    _save(_numbers(spark, 100), url, topic="t")
    _copy(spark, url, tmp_path / "checkpoint")
    for each in (tmp_path / "checkpoint/commits").iterdir():
        each.unlink()
    _copy(spark, url, tmp_path / "checkpoint")
    assert _load(spark, url, "copy").count() == 100


def test_numbered_writes(spark: SparkSession, url: str) -> None:
    for version in ("0", "0", "1"):
        _save(_numbers(spark, 10), url, topic="t", txnAppId="app", txnVersion=version)
    assert _load(spark, url, "t").count() == 20


def test_a_failed_job_leaves_nothing_visible(spark: SparkSession, url: str) -> None:
    _save(_numbers(spark, 10), url, topic="t")
    failing = _numbers(spark, 1000).selectExpr(
        "key", "if(key = '990', raise_error('no'), value) value"
    )
    with pytest.raises(PySparkException):
        _save(failing, url, topic="t")
    assert _load(spark, url, "t").count() == 10
    swept = segmentlog.sweep(url, longest_job_days=0)
    assert {each.partition("/")[0] for each in swept.keys} <= {"data"}
    assert _load(spark, url, "t").count() == 10


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A place in S3 for one test, whose credentials tasks find in their environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with Moto() as server:
        yield server.url(tmp_path.name)  # servers of one process share their objects


#: A Python that, in an executor, has its own empty ``/mnt``, and finds the hidden folders empty.
_APART = """#!/bin/sh
[ -n "$HIDDEN" ] && exec unshare --mount --propagation private sh -c '
for each in $HIDDEN; do mount -t tmpfs -o ro,mode=0 tmpfs "$each" || exit 1; done
mount -t tmpfs tmpfs /mnt && exec "$0" "$@"' {python} "$@"
exec {python} "$@"
"""


@pytest.mark.slow
@pytest.mark.linux
def test_executors_that_share_nothing_but_the_bucket(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks have other folders than the driver, and those of the driver are empty to them."""
    in_namespace("")  # or it skips the test
    hidden = [tmp_path / each for each in ("tmp", "home", "logs")]
    for each in hidden:
        each.mkdir()
    python = tmp_path / "python"
    python.write_text(_APART.format(python=shlex.quote(ready_python())))
    python.chmod(0o755)
    monkeypatch.setattr(spark_server, "ready_python", lambda: str(python))
    monkeypatch.setenv("TMPDIR", str(hidden[0]))
    monkeypatch.setenv("HOME", str(hidden[1]))
    apart = {"HIDDEN": " ".join(map(str, hidden)), "TMPDIR": "/mnt", "HOME": "/mnt"}
    settings = {f"spark.executorEnv.{name}": value for name, value in apart.items()}
    (tmp_path / "spark").mkdir()
    with SparkServer("local-cluster[2,1,1024]", tmp_path / "spark", settings) as server:
        spark = server.session()
        try:
            # Were the folders not hidden, this would be a log directory of the driver.
            with pytest.raises(PySparkException):
                _save(_numbers(spark, 100), str(hidden[2]), topic="t")
            for _ in range(2):
                _save(_numbers(spark, 1000, 8), s3, topic="t", numPartitions="4")
            found = _load(spark, s3, "t")
            assert (found.count(), found.select("value").distinct().count()) == (2000, 1000)
            _copy(spark, s3, tmp_path / "checkpoint", numPartitions="2")
            assert _load(spark, s3, "copy").count() == 2000
        finally:
            spark.stop()


@pytest.mark.slow
def test_s3_with_workers_of_their_own(s3: str, tmp_path: Path) -> None:
    """Spark's workers inherit the environment of a new JVM, so this test starts one."""
    script = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(0, 1000, 1, 4).selectExpr("cast(id as string) key", "cast(id as string) value")
for _ in range(3):
    rows.write.format("segmentlog").option("topic", "t").mode("append").save({s3!r})
found = spark.read.format("segmentlog").load({s3!r})
print("rows", found.count(), found.select("value").distinct().count())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "rows 3000 1000" in done.stdout, done.stderr[-2000:]
