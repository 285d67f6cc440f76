"""``format("kafka")`` on Sail: batch jobs run unmodified, with neither Kafka nor Java."""

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from segmentlog.errors import OptionError
from segmentlog.testing.kafka_log import KafkaLog
from segmentlog.testing.topic_rows import assert_rows

pytestmark = pytest.mark.only_sail

JOB = """
import sys
from pyspark_segmentlog import sail_session
from pyspark_segmentlog.testing import as_kafka

def job(spark, servers):
    orders = (spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
              .option("subscribe", "orders").load())
    totals = orders.groupBy("key").count().selectExpr("key", "cast(count as string) value")
    (totals.write.format("kafka").option("kafka.bootstrap.servers", servers)
     .option("topic", "totals").save())

with as_kafka({"broker:9092": sys.argv[1]}):
    job(sail_session(), "broker:9092")
"""


def test_a_batch_job_runs_unmodified_in_three_seconds(tmp_path: Path) -> None:
    """From the start of the process to its end; the topic that it wrote is there."""
    program = tmp_path / "job.py"
    program.write_text(JOB)
    logs = KafkaLog(tmp_path / "a b%20é")
    logs.write("orders", [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}] * 2)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, program, logs.path], check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    totals = [{"key": "a", "value": "2"}, {"key": "b", "value": "2"}]
    assert_rows(logs.read("totals"), totals)
    # The processor's time: other processes may have the machine.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 3


def test_a_stream_is_refused_before_it_starts(
    spark: SparkSession, tmp_path: Path, as_kafka: Callable[..., object]
) -> None:
    """The message says which engine has streams."""
    logs = KafkaLog(tmp_path)
    logs.write("orders", [{"value": "1"}])
    as_kafka({"broker:9092": logs})
    stream = spark.readStream.format("kafka").option("subscribe", "orders")
    with pytest.raises(OptionError, match="a job of streams needs Spark"):
        stream.option("kafka.bootstrap.servers", "broker:9092").load()
