"""Read a Kafka broker's log directory with Spark, and no broker.

Run with ``pip install '.[spark]' && python examples/quickstart.py``.  ``examples/data`` was left
by a real Apache Kafka broker; ``examples/MANIFEST.md`` says how.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention


def main() -> None:
    """Count, look at, and query three topics."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    directory = str(Path(__file__).parent / "data")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("segmentlog quickstart")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")

    print(f"\nEvery topic in {directory}, without a broker:\n")
    records = spark.read.format("segmentlog").load(directory)
    records.groupBy("topic", "partition").agg(
        F.count("*").alias("records"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.date_trunc("second", F.min("timestamp")).alias("from"),
        F.date_trunc("second", F.max("timestamp")).alias("to"),
    ).orderBy("topic", "partition").show(truncate=False)

    print("The five largest orders, with the shop they came from:\n")
    orders = (
        spark.read.format("segmentlog")
        .option("subscribe", "orders")
        .option("includeHeaders", "true")
        .load(directory)
    )
    order = F.from_json(F.col("value").cast("string"), "order int, customer string, cents int")
    orders.select(
        order["order"].alias("order"),
        order["customer"].alias("customer"),
        (order["cents"] / 100).alias("amount"),
        F.col("headers")[0]["value"].cast("string").alias("source"),
        "partition",
        "offset",
    ).orderBy(F.desc("amount")).show(5, truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
