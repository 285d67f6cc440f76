"""Write a topic without a broker, and read it back: rows, offsets, partitions.

python examples/write_and_read.py [DIRECTORY]
"""

import os
import sys
import tempfile

from pyspark.sql import SparkSession


def main(directory: str) -> None:
    """Append 1,000 orders in one atomic step, and count what is there then."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("segmentlog write and read")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    orders = spark.range(1000).selectExpr(
        "concat('customer-', id % 20) as key",
        "to_json(named_struct('order', id, 'amount', id % 7)) as value",
    )
    (
        orders.write.format("segmentlog")
        .option("topic", "orders")
        .option("numPartitions", "3")
        .option("kafka.compression.type", "zstd")
        .mode("append")
        .save(directory)
    )
    written = spark.read.format("segmentlog").load(directory)
    counts = written.groupBy("partition").agg({"offset": "max", "*": "count"})
    counts.orderBy("partition").show()
    print(f"{written.count():,} orders in {directory}")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(scratch)
