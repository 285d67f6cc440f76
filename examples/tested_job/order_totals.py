"""A job that uses Kafka, as it runs in production: nothing in it knows of its tests.

It reads the topic ``orders``, writes the total of each customer to ``order-totals``, and what it
cannot read to ``orders-rejected``.  Run it with ``spark-submit --packages
org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 order_totals.py broker:9092 /checkpoints/totals``.
Its tests need no Kafka: ``pip install '.[spark]' pytest && pytest examples/tested_job``.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

ORDER = "customer string, amount decimal(12,2)"


def run(spark: SparkSession, servers: str, checkpoints: str) -> None:
    """Process what is new in ``orders``, and end."""
    orders = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.security.protocol", "SASL_SSL")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    order = F.from_json(F.col("value").cast("string"), ORDER)
    parsed = orders.select("key", "value", order.alias("order"))
    is_order = F.col("order.customer").isNotNull() & F.col("order.amount").isNotNull()
    totals = (
        parsed.where(is_order)
        .groupBy(F.col("order.customer").alias("key"))
        .agg(F.sum("order.amount").alias("total"), F.count("*").alias("orders"))
        .select("key", F.to_json(F.struct("total", "orders")).alias("value"))
    )
    rejected = parsed.where(~is_order).select("key", "value")
    _write(totals, servers, "order-totals", checkpoints, "update")
    _write(rejected, servers, "orders-rejected", checkpoints, "append")


def _write(rows: DataFrame, servers: str, topic: str, checkpoints: str, mode: str) -> None:
    query = (
        rows.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("checkpointLocation", f"{checkpoints}/{topic}")
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    run(SparkSession.builder.getOrCreate(), *sys.argv[1:])
