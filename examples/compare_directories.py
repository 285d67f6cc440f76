"""Compare a topic in two log directories, record by record: a restored copy with its original.

Run with ``pip install '.[spark]' && python examples/compare_directories.py [LEFT RIGHT [TOPIC]]``.
Without directories, ``examples/data`` is compared with a copy that lacks a record and has another
one changed.
"""

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import segmentlog

DATA = str(Path(__file__).parent / "data")
PLACE = ["topic", "partition", "offset"]
CONTENTS = ["key", "value", "headers", "timestamp", "timestampType"]


def compare(spark: SparkSession, left: str, right: str, topic: str) -> DataFrame:
    """A row for each record that one directory lacks, or has with other contents."""
    reader = spark.read.format("segmentlog").options(subscribe=topic, includeHeaders="true")
    sides = [
        reader.load(directory).select(*PLACE, F.struct(*CONTENTS).alias(side))
        for directory, side in ((left, "left"), (right, "right"))
    ]
    finding = (
        F.when(F.col("right").isNull(), "only left")
        .when(F.col("left").isNull(), "only right")
        .when(~F.col("left").eqNullSafe(F.col("right")), "differs")
    )
    joined = sides[0].join(sides[1], PLACE, "full").withColumn("finding", finding)
    return joined.where("finding is not null")


def flawed_copy(target: str) -> None:
    """The example's orders with their offsets, but for one, and with a value of another."""
    orders = segmentlog.dataset(DATA, topics=["orders"], include_headers=True).to_table()
    place = pc.and_(pc.equal(orders["partition"], 1), pc.equal(orders["offset"], 7))
    value = pc.if_else(place, pa.scalar(b"{}"), orders["value"])
    changed = orders.set_column(orders.column_names.index("value"), "value", value)
    missing = (pc.field("partition") == 2) & (pc.field("offset") == 100)
    with segmentlog.open_writer(target, "orders", num_partitions=3, preserve=True) as writer:
        writer.append(changed.filter(~missing))


def main(left: str, right: str, topic: str = "orders") -> None:
    """Count the differences, and show the first ones."""
    spark = SparkSession.builder.getOrCreate()
    found = compare(spark, left, right, topic).cache()
    if found.isEmpty():
        print(f"{topic}: both directories have the same records")
        return
    found.groupBy("topic", "partition", "finding").count().orderBy("topic", "partition").show()
    values = [F.col(f"{side}.value").cast("string").alias(side) for side in ("left", "right")]
    found.orderBy(*PLACE).select(*PLACE, "finding", *values).show(20, truncate=False)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            flawed_copy(scratch)
            main(DATA, scratch)
