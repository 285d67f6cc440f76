"""Read a Kafka broker's log directory, write a log of one's own, and look at it; no broker runs.

Run with ``pip install '.[spark]' && python examples/quickstart.py [DIRECTORY]``, or without Java
with ``pip install '.[sail]'`` in an environment that has no PySpark.  The new log goes to
DIRECTORY, or to one that is removed afterwards.  ``examples/data`` was left by a real Apache Kafka
broker; ``examples/MANIFEST.md`` says how.
"""

import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import segmentlog
from pyspark_segmentlog import sail_session

BROKER = str(Path(__file__).parent / "data")
SINCE = datetime(2025, 10, 12, tzinfo=UTC)


def start_spark() -> SparkSession:
    """A local session that keeps quiet: Spark's, or Sail's where Spark is not installed."""
    if not find_spec("pyspark.jars"):
        spark = sail_session()
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        return spark
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("segmentlog quickstart")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
    )
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        sys.exit(
            f"Spark does not start, and needs Java 17 or newer: {error}\n"
            "Without Java, make a new environment and use Sail: pip install '.[sail]'"
        )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read_all(spark: SparkSession) -> DataFrame:
    """Every topic of the broker's directory, a row for each partition."""
    records = spark.read.format("segmentlog").load(BROKER)
    return (
        records.groupBy("topic", "partition")
        .agg(
            F.count("*").alias("records"),
            F.min("offset").alias("first_offset"),
            F.max("offset").alias("last_offset"),
            F.date_trunc("second", F.min("timestamp")).alias("from"),
            F.date_trunc("second", F.max("timestamp")).alias("to"),
        )
        .orderBy("topic", "partition")
    )


def write(spark: SparkSession, directory: str) -> None:
    """Orders above 400, in a topic of their own: all of them become visible at once."""
    orders = spark.read.format("segmentlog").option("subscribe", "orders").load(BROKER)
    order = F.from_json(F.col("value").cast("string"), "order int, customer string, cents int")
    (
        orders.where(order["cents"] > 40_000)
        .select("key", "value", "timestamp")
        .orderBy("timestamp")  # tasks are committed in their order
        .write.format("segmentlog")
        .option("topic", "large-orders")
        .option("numPartitions", "2")
        .option("includeTimestamp", "true")
        .option("kafka.compression.type", "zstd")
        .mode("append")
        .save(directory)
    )


def read_since(spark: SparkSession, directory: str) -> DataFrame:
    """Read from a time on: the time index determines the offset at which each partition begins."""
    opened = segmentlog.open_log_dir(directory)
    starts = {}
    for partition in opened.topics()["large-orders"]:
        log = opened.log("large-orders", partition)
        found = log.offset_for_timestamp(int(SINCE.timestamp() * 1000))
        starts[str(partition)] = found.offset if found else log.end_offset()
    return (
        spark.read.format("segmentlog")
        .option("subscribe", "large-orders")
        .option("startingOffsets", json.dumps({"large-orders": starts}))
        .load(directory)
        .where(F.col("timestamp") >= F.lit(SINCE))
        .selectExpr("partition", "offset", "timestamp", "cast(value as string) value")
        .orderBy("timestamp")
    )


def main(directory: str) -> None:
    """One step after the other."""
    spark = start_spark()
    print(f"\nEvery topic in {BROKER}:\n")
    read_all(spark).show(truncate=False)

    write(spark, directory)
    print(f"Large orders of {SINCE:%d %B %Y}, from the log that was just written:\n")
    read_since(spark, directory).show(5, truncate=False)
    spark.stop()

    for command in ("describe", "verify"):
        print(f"\n$ segmentlog {command} {directory}", flush=True)
        subprocess.run([sys.executable, "-m", "segmentlog", command, directory], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(scratch)
        print(f"\n{scratch} is gone again; python {sys.argv[0]} DIRECTORY writes a log that stays")
