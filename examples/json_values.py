"""Decode JSON values with a schema, and count those that do not fit it.

Run with ``pip install '.[spark]' && python examples/json_values.py [DIRECTORY [TOPIC [SCHEMA]]]``.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

DATA = str(Path(__file__).parent / "data")
BAD = "_corrupt_record"


def main(
    directory: str = DATA,
    topic: str = "orders",
    schema: str = "order int, customer string, cents int",
) -> None:
    """A column for each field; a value that is not such JSON stands in a separate column."""
    spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    records = (
        spark.read.schema("partition int, offset bigint, timestamp timestamp, value string")
        .format("segmentlog")
        .option("subscribe", topic)
        .option("onInvalidUtf8", "replace")
        .load(directory)
    )
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
    decoded = F.from_json("value", f"{schema}, {BAD} string", options)
    rows = records.select("partition", "offset", "timestamp", decoded.alias("json"))
    rows = rows.select("partition", "offset", "timestamp", "json.*").orderBy("timestamp")

    rows.drop(BAD).show(5, truncate=False)
    rows.agg(F.count("*").alias("records"), F.count(BAD).alias("not decoded")).show()


if __name__ == "__main__":
    main(*sys.argv[1:])
