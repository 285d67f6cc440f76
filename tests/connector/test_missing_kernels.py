"""Jobs of Spark where the engine has no compiled kernels."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_server import SparkServer

import segmentlog
from pyspark_segmentlog.reads.task import read_slice
from pyspark_segmentlog.writes.writer import stage_rows
from segmentlog import native
from segmentlog.errors import KernelsError
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


def test_tasks_refuse_to_run_without_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine of another platform would otherwise hold up the whole job."""
    monkeypatch.setattr(native, "VARIANT", None)
    monkeypatch.delenv("SEGMENTLOG_PYTHON_KERNELS", raising=False)
    nothing: Any = None
    tasks: list[Callable[[], object]] = [
        lambda: next(read_slice(nothing, [], nothing)),
        lambda: stage_rows(nothing, iter(())),
    ]
    for task in tasks:
        with pytest.raises(KernelsError) as error:
            task()
        assert str(error.value).endswith(REFUSAL)


@pytest.mark.slow
def test_jobs_without_compiled_kernels_are_refused(
    kafka_log: KafkaLog, tmp_path: Path, without_kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning refuses them, no task runs, and nothing is written."""
    kafka_log.write("t", ["a"])
    monkeypatch.setenv("PYTHONPATH", without_kernels)
    directory = tmp_path / "spark"
    directory.mkdir()
    with SparkServer("local-cluster[1,1,1024]", directory) as server:
        spark = server.session()
        works: list[Callable[[SparkSession, str], object]] = [read, write, stream]
        for work in works:
            with pytest.raises(Exception, match="KernelsError") as error:
                work(spark, str(kafka_log.path))
            assert REFUSAL in str(error.value)
            assert "Job aborted due to stage failure" not in str(error.value)
        spark.stop()

    assert ["a"] == kafka_log.read("t").values()
    assert ["t"] == [*segmentlog.open_log_dir(kafka_log.path).topics()]


@pytest.mark.slow
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
