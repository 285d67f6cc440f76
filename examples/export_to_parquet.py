"""Export a topic to Parquet, a directory for each day, with keys, values and headers.

Run with ``pip install '.[spark]' && python examples/export_to_parquet.py [DIRECTORY [TOPIC
[TO]]]``.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

DATA = str(Path(__file__).parent / "data")


def main(directory: str = DATA, topic: str = "orders", target: str = "build/parquet") -> None:
    """Write the days, and count what Parquet then holds."""
    spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    records = (
        spark.read.format("segmentlog")
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load(directory)
        .withColumn("day", F.to_date("timestamp"))
    )
    (
        records.repartition("day")  # one file a day; leave it out for days of many gigabytes
        .sortWithinPartitions("day", "partition", "offset")
        .write.partitionBy("topic", "day")
        .mode("overwrite")
        .option("compression", "zstd")
        .parquet(target)
    )

    exported = spark.read.parquet(target)
    exported.groupBy("topic", "day").count().orderBy("topic", "day").show()
    print(f"{exported.count()} records are in {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])
