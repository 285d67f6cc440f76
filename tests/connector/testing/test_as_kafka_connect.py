"""Jobs that say ``format("kafka")`` run on log directories, in a session of Spark Connect.

The server and its executors are other processes, in which nothing was replaced.
"""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from segmentlog import OptionError
from segmentlog.testing.kafka_log import KafkaLog
from segmentlog.testing.topic_rows import assert_rows

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

SERVERS = "broker:9092"


@pytest.fixture
def log(kafka_log: KafkaLog, as_kafka: Any) -> KafkaLog:
    """The log directory that stands for the broker."""
    as_kafka({SERVERS: kafka_log})
    return kafka_log


def of_kafka(builder: Any, **options: Any) -> Any:
    """A reader or a writer with the format and the servers."""
    given = {"kafka.bootstrap.servers": SERVERS, **options}
    return builder.format("kafka").options(**given)


def test_a_batch_job_runs_unmodified(cluster: SparkSession, log: KafkaLog) -> None:
    """It writes without a mode, and its columns are checked before."""
    log.write("in", [{"key": "a", "value": {"n": 1}}])
    rows = of_kafka(cluster.read, subscribe="in").load()
    writer = rows.selectExpr("key", "upper(value) AS value").write.option("noSuchOption", "x")
    of_kafka(writer, topic="out").save()
    assert_rows(log.read("out"), [{"key": "a", "value": {"N": 1}}])
    with pytest.raises(Exception, match="value attribute unsupported type bigint"):
        of_kafka(cluster.range(1).selectExpr("id AS value").write, topic="out").save()


@pytest.mark.parametrize("mode", [pytest.param("append", marks=pytest.mark.slow), "update"])
def test_a_stream_runs_unmodified(
    cluster: SparkSession, log: KafkaLog, tmp_path: Path, mode: str
) -> None:
    """Spark refuses the mode `update` for Python sinks; a function takes its rows."""
    log.write("in", [{"key": "a"}, {"key": "a"}])
    stream = of_kafka(cluster.readStream, subscribe="in", startingOffsets="earliest").load()
    counts = stream.groupBy("key").count().selectExpr("key", "string(count) AS value")
    rows = counts if mode == "update" else stream.selectExpr("key", "'x' AS value")
    writer = of_kafka(rows.writeStream, topic="out", checkpointLocation=str(tmp_path / "c"))
    writer.outputMode(mode).trigger(availableNow=True).start().awaitTermination()
    expected = ["2"] if mode == "update" else ["x", "x"]

    assert expected == log.read("out").values()


@pytest.mark.slow
def test_a_function_of_micro_batches_writes_to_kafka(
    cluster: SparkSession, log: KafkaLog, tmp_path: Path
) -> None:
    """The function runs in another process, and knows the servers there."""
    log.write("in", ["a", "b"])

    def take(batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("concat(value, '!') AS value")
        options = {"kafka.bootstrap.servers": "broker:9092", "topic": f"out-{number}"}
        rows.write.format("kafka").options(**options).save()

    stream = of_kafka(cluster.readStream, subscribe="in", startingOffsets="earliest").load()
    writer = stream.writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(tmp_path / "c"))
    writer.trigger(availableNow=True).start().awaitTermination()

    assert ["a!", "b!"] == log.read("out-0").values()


def test_sql_and_tables_are_refused(cluster: SparkSession, log: KafkaLog) -> None:
    """The error says what to write instead."""
    del log
    with pytest.raises(OptionError, match=r"spark\.read\.format\('kafka'\)"):
        cluster.sql("CREATE TABLE t USING kafka")
    with pytest.raises(OptionError, match=r"\.save\(\)"):
        cluster.range(1).writeTo("t").using("kafka")
