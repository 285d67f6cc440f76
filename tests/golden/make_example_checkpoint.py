"""Make ``examples/checkpoint``: Spark's ``kafka`` source reads the orders of ``examples/data``.

Run from the top of the checkout: ``python tests/golden/make_example_checkpoint.py``.
"""

import os
import runpy
import shutil
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "support"))

from kafka_here import Broker, JavaClient, spark_kafka_jars  # noqa: E402

VERSION = "4.3.1"


def main() -> None:
    """Serve the orders, run a query, and keep what it had written after its second batch."""
    target = TOP / "examples" / "checkpoint"
    with tempfile.TemporaryDirectory() as scratch:
        broker = Broker(Path(scratch, "kafka"), VERSION)
        with broker, JavaClient(broker) as client:
            client.create_topic("orders", 3, retention_ms=-1)
        restore = runpy.run_path(str(TOP / "examples" / "restore_topic.py"))
        restore["main"](str(TOP / "examples" / "data"), str(broker.log_dir), "orders")
        with broker:
            run_query(broker.bootstrap_servers, f"{scratch}/checkpoint")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(f"{scratch}/checkpoint", target, ignore=shutil.ignore_patterns(".*"))
    for path in target.glob("[co]*/*"):
        if int(path.name) > 1:
            path.unlink()


def run_query(servers: str, checkpoint: str) -> None:
    """Read 900 orders, 300 a batch."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", ",".join(spark_kafka_jars()))
        .getOrCreate()
    )
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 300)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
