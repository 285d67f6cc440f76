"""Ids of schemas as columns of Spark."""

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, functions

import pyspark_segmentlog
import segmentlog

VALUES = [b"\0\0\0\1\2rest", b"\0\0\0\0\7", b"\0\x7f\xff\xff\xff\0", b"\0\xff\xff\xff\xff",
          None, b"", b"\0\0\0\1", b"\1\0\0\0\1x"]  # fmt: skip


@pytest.mark.spark
def test_ids_and_payloads_are_those_of_arrow(spark: SparkSession) -> None:
    """The functions take a column or its name."""
    frame = spark.createDataFrame(
        [(i, each) for i, each in enumerate(VALUES)], "i int, value binary"
    )
    found = frame.select(
        "i",
        pyspark_segmentlog.schema_id("value").alias("id"),
        pyspark_segmentlog.payload(functions.col("value")).alias("rest"),
    )
    rows = sorted(tuple(row) for row in found.collect())
    values = pa.array(VALUES, pa.binary())

    assert "int" == dict(found.dtypes)["id"]
    assert segmentlog.schema_id(values).to_pylist() == [row[1] for row in rows]
    assert segmentlog.payload(values).to_pylist() == [row[2] and bytes(row[2]) for row in rows]
