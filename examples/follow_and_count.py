"""Follow a topic, and count its records in each window of their timestamps.

Run with ``pip install '.[spark]' && python examples/follow_and_count.py [DIRECTORY [TOPIC
[WINDOW]]]``.  The query ends after the records that are there.  With ``--follow`` it runs until
Ctrl-C, and counts records as they come.
"""

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery

DATA = str(Path(__file__).parent / "data")


def show(windows: DataFrame, _: int) -> None:
    """Print the windows that a micro-batch has changed, with their new counts."""
    columns = ["window.start", "window.end", "count"]
    for start, end, count in (
        windows.orderBy("window")
        .selectExpr(*(f"cast({each} as string)" for each in columns))
        .collect()
    ):
        print(f"{start} to {end} {count:>8}")


def start(
    spark: SparkSession,
    directory: str = DATA,
    topic: str = "orders",
    window: str = "6 hours",
    *,
    follow: bool = False,
    checkpoint: str | None = None,
) -> StreamingQuery:
    """Start the query; with a checkpoint, it continues where its last run has ended."""
    records = (
        spark.readStream.schema("timestamp timestamp")  # nothing else is decoded
        .format("segmentlog")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", "64m")
        .load(directory)
    )
    # A record is counted if it is up to a day older than the newest one. Older windows are closed.
    windows = records.withWatermark("timestamp", "1 day").groupBy(F.window("timestamp", window))
    writer = windows.count().writeStream.outputMode("update").foreachBatch(show)
    if checkpoint:
        writer = writer.option("checkpointLocation", checkpoint)
    if follow:
        return writer.trigger(processingTime="1 second").start()
    return writer.trigger(availableNow=True).start()


def main() -> None:
    """Run the query to its end, or until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", default=DATA)
    parser.add_argument("topic", nargs="?", default="orders")
    parser.add_argument("window", nargs="?", default="6 hours")
    parser.add_argument("--follow", action="store_true", help="run until Ctrl-C")
    parser.add_argument("--checkpoint", help="a directory that keeps the offsets and the counts")
    given = vars(parser.parse_args())
    builder = SparkSession.builder.config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    query = start(builder.getOrCreate(), **given)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()


if __name__ == "__main__":
    main()
