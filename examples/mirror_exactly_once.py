"""Mirror all topics of a directory exactly once, although the mirror is interrupted twice.

Run with ``pip install '.[spark]' && python examples/mirror_exactly_once.py [SOURCE [TARGET]]``.
Without TARGET, the mirror is made in a temporary directory.
"""

import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import segmentlog

DATA = str(Path(__file__).parent / "data")


def create_topics(source: str, target: str) -> None:
    """Give the mirror's topics the numbers of partitions of the source."""
    for topic, partitions in segmentlog.open_log_dir(source).topics().items():
        if not topic.startswith("__"):  # topics of a broker's own
            with segmentlog.open_writer(target, topic, num_partitions=len(partitions)):
                pass


def mirror(spark: SparkSession, source: str, target: str) -> StreamingQuery:
    """Copy all records that the mirror lacks, about 300 in a micro-batch."""
    records = (
        spark.readStream.format("segmentlog")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 300)
        .option("preserve", "true")  # also reads headers
        .load(source)
    )
    return (
        records.writeStream.format("segmentlog")
        .option("preserve", "true")  # partitions, offsets and timestamps stay as they are
        .option("checkpointLocation", f"{target}-checkpoint")
        .trigger(availableNow=True)
        .start(target)
    )


def forget_last_commit(target: str) -> str:
    """Leave the checkpoint as if Spark had died after the last commit, before its note of it."""
    notes = Path(f"{target}-checkpoint", "commits").glob("[0-9]*")
    last = max(notes, key=lambda note: int(note.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    return last.name


def compare(spark: SparkSession, source: str, target: str) -> None:
    """Count the records of both sides, and those that only one of them has."""
    reader = spark.read.format("segmentlog").option("includeHeaders", "true")
    left, right = reader.load(source), reader.load(target)
    lost, extra = left.exceptAll(right).count(), right.exceptAll(left).count()
    print(f"source: {left.count()} records, mirror: {right.count()}, lost: {lost}, extra: {extra}")


def main(source: str, target: str) -> None:
    """Interrupt the mirror twice, let it end, and compare."""
    spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    create_topics(source, target)

    query = mirror(spark, source, target)
    while query.isActive and not query.recentProgress:
        time.sleep(0.01)
    query.stop()
    print(f"stopped after micro-batch {query.recentProgress[-1]['batchId']}")

    mirror(spark, source, target).awaitTermination()
    print(f"forgot the commit of micro-batch {forget_last_commit(target)}")

    mirror(spark, source, target).awaitTermination()
    compare(spark, source, target)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(sys.argv[1] if len(sys.argv) > 1 else DATA, f"{scratch}/mirror")
