"""Jobs of Spark where the engine has no compiled kernels."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_server import SparkServer

import segmentlog
from segmentlog import native
from segmentlog.testing.kafka_log import KafkaLog

REFUSAL = f" has no compiled kernels of segmentlog: {native.REMEDY}"


@pytest.fixture
def without_kernels(tmp_path: Path) -> str:
    """A path for Python on which the engine has no compiled kernels."""
    engine = Path(segmentlog.__file__).parent
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(engine, tmp_path / "engine" / "segmentlog", ignore=ignored)
    return os.pathsep.join([str(tmp_path / "engine"), os.environ.get("PYTHONPATH", "")])


def read(spark: SparkSession, path: str) -> list[str]:
    """The values of a topic."""
    rows = spark.read.format("segmentlog").option("subscribe", "t").load(path)
    return [row.value.decode() for row in rows.collect()]


def write(spark: SparkSession, path: str) -> None:
    """Append a row."""
    frame = spark.sql("SELECT 'b' value").write.format("segmentlog").option("topic", "t")
    frame.mode("append").save(path)


def stream(spark: SparkSession, path: str) -> None:
    """Read the topic as a stream, and write what is there to another one."""
    rows = spark.readStream.format("segmentlog").option("subscribe", "t").load(path)
    query = rows.writeStream.format("segmentlog").option("topic", "copy")
    query = query.option("checkpointLocation", f"{path}-checkpoint").trigger(availableNow=True)
    query.start(path).awaitTermination()


@pytest.mark.thorough
@pytest.mark.parametrize("of", ["all", "executors"])
def test_jobs_without_compiled_kernels_are_refused(
    kafka_log: KafkaLog, tmp_path: Path, without_kernels: str, of: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Planning refuses them, and a task where only executors lack the kernels; nothing is written.

    One machine of another platform would otherwise hold up the whole job.
    """
    kafka_log.write("t", ["a"])
    settings = {"spark.executorEnv.PYTHONPATH": without_kernels, "spark.task.maxFailures": "1"}
    if of == "all":
        monkeypatch.setenv("PYTHONPATH", without_kernels)
        settings = {}
    directory = tmp_path / "spark"
    directory.mkdir()
    with SparkServer("local-cluster[1,1,1024]", directory, settings) as server:
        spark = server.session()
        works: list[Callable[[SparkSession, str], object]] = [read, write, stream]
        for work in works:
            with pytest.raises(Exception, match="KernelsError") as error:
                work(spark, str(kafka_log.path))
            assert REFUSAL in str(error.value)
            assert ("Job aborted due to stage failure" in str(error.value)) == (of == "executors")
        spark.stop()

    assert ["a"] == kafka_log.read("t").values()
    assert ["t"] == [*segmentlog.open_log_dir(kafka_log.path).topics()]


@pytest.mark.thorough
def test_jobs_run_with_kernels_in_python_where_that_is_accepted(
    kafka_log: KafkaLog, tmp_path: Path, without_kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment variable counts on the driver and on executors."""
    kafka_log.write("t", ["a"])
    monkeypatch.setenv("PYTHONPATH", without_kernels)
    monkeypatch.setenv("SEGMENTLOG_PYTHON_KERNELS", "1")
    settings = {"spark.executorEnv.SEGMENTLOG_PYTHON_KERNELS": "1"}
    directory = tmp_path / "spark"
    directory.mkdir()
    with SparkServer("local-cluster[1,1,1024]", directory, settings) as server:
        spark = server.session()
        write(spark, str(kafka_log.path))
        assert ["a", "b"] == read(spark, str(kafka_log.path))
        spark.stop()
