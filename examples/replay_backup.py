"""Replay a topic of a backup for a running query, at the pace of its timestamps.

Run with ``pip install '.[spark]' && python examples/replay_backup.py [--speed 3600] [DIRECTORY
[TOPIC]]``.  With a speed of 3600, an hour of the backup takes a second.
"""

import argparse
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery

import segmentlog

DATA = str(Path(__file__).parent / "data")
TICK = 0.5  # seconds between writes
COLUMNS = ["timestamp", "partition", "key", "value", "headers"]


def show(customers: DataFrame, _: int) -> None:
    """Print the last order that has come, and the best customers so far."""
    best = customers.orderBy(F.desc("cents")).limit(3).collect()
    ((last,),) = customers.agg(F.max("last")).collect()
    print(last, *(f"{each['customer']} {each['cents'] / 100:.2f}" for each in best), sep="  ")


def start_job(spark: SparkSession, directory: str, topic: str) -> StreamingQuery:
    """Start the job of production; put yours here, with ``load(directory)`` as its source."""
    orders = (
        spark.readStream.schema("timestamp timestamp, value string")
        .format("segmentlog")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load(directory)
    )
    order = F.from_json("value", "customer string, cents int")
    customers = (
        orders.select("timestamp", order.alias("order"))
        .groupBy("order.customer")
        .agg(F.sum("order.cents").alias("cents"), F.max("timestamp").alias("last"))
    )
    return customers.writeStream.outputMode("complete").foreachBatch(show).start()


def create_topic(source: str, target: str, topic: str) -> None:
    """Create the topic without records: a query needs a topic to start with."""
    partitions = segmentlog.open_log_dir(source).topics()[topic]
    with segmentlog.open_writer(target, topic, num_partitions=len(partitions)):
        pass


def replay(source: str, target: str, topic: str, speed: float) -> None:
    """Write each record when its time has come; partitions, timestamps and headers stay."""
    records = segmentlog.dataset(source, topics=[topic], include_headers=True)
    config = segmentlog.ProducerConfig(use_timestamps=True)
    begun, first = time.monotonic(), None
    with segmentlog.open_writer(target, topic, config=config) as writer:
        for batch in records.scan(COLUMNS, order="timestamp"):
            times = batch["timestamp"].cast(pa.int64()).to_numpy() / 1e6  # seconds
            first = times[0] if first is None else first
            n_written = 0
            while n_written < batch.num_rows:
                time.sleep(TICK)
                now = first + (time.monotonic() - begun) * speed
                due = int(times.searchsorted(now, side="right"))
                writer.append(batch.slice(n_written, due - n_written))
                writer.flush()  # visible to the job
                n_written = due


def main(directory: str = DATA, topic: str = "orders", speed: float = 3600) -> None:
    """Replay the topic into a temporary directory that the job reads."""
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    with tempfile.TemporaryDirectory() as scratch:
        create_topic(directory, scratch, topic)
        job = start_job(spark, scratch, topic)
        replay(directory, scratch, topic, speed)
        job.processAllAvailable()
        job.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", default=DATA)
    parser.add_argument("topic", nargs="?", default="orders")
    parser.add_argument("--speed", type=float, default=3600, help="3600: an hour in a second")
    given = parser.parse_args()
    main(given.directory, given.topic, given.speed)
