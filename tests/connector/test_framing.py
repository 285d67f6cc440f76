"""Ids of schemas as columns of Spark."""

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, functions

import pyspark_segmentlog
import segmentlog

VALUES = [
    b"\0\0\0\1\2rest",
    b"\0\0\0\0\7",
    b"\0\x7f\xff\xff\xff\0",
    b"\0\xff\xff\xff\xff",
    None,
    b"",
    b"\0\0\0\1",
    b"\1\0\0\0\1x",
]


@pytest.mark.spark
@pytest.mark.needs_spark("Sail refuses bytes that are not UTF-8 in a cast to string")
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


@pytest.mark.spark
@pytest.mark.needs_spark("Sail refuses bytes that are not UTF-8 in a cast to string")
def test_headers_and_paths_are_those_of_arrow(spark: SparkSession) -> None:
    """The functions take headers as a read returns them, and leave out the path of protobuf."""
    name, guid = "__value_schema_id", b"\1" + bytes(range(16))
    rest = [
        b"\0m",
        b"\2\2m",
        b"\4\2\x80\1m",
        b"\1\3m",
        b"\4\2",
        b"",
        b"\x80m",
        b"\2" + b"\x80" * 6,
        b"\x7e" + b"\x80\x80\x80\x80\1" * 63 + b"m",
        b"\x7f" + b"\1" * 127,
    ]
    rows: list[tuple[list[tuple[str, bytes | None]] | None, bytes | None]] = [
        *((None, b"\0\0\0\0\7" + each) for each in rest),
        ([(name, guid)], b"\0\0\0\0\7x"),
        ([(name, guid), (name, VALUES[1])], b"x"),
        ([("__key_schema_id", guid)], b"\0\0\0\0\7\0x"),
        ([], b"x"),
        ([(name, b"\2")], b"x"),
        ([(name, None)], b"\0\0\0\0\7\0x"),
        ([(name, guid)], None),
    ]
    schema = "i int, headers array<struct<key string, value binary>>, value binary"
    frame = spark.createDataFrame([(i, *each) for i, each in enumerate(rows)], schema)
    found = frame.orderBy("i").select(
        pyspark_segmentlog.schema_id("value", "headers"),
        pyspark_segmentlog.schema_guid("headers"),
        pyspark_segmentlog.payload("value", functions.col("headers"), is_protobuf=True),
        pyspark_segmentlog.schema_guid("headers", is_key=True),
    )
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array(
        [None if each is None else [{"key": k, "value": v} for k, v in each] for each, _ in rows],
        kind,
    )
    values = pa.array([value for _, value in rows], pa.binary())
    expected = [
        segmentlog.schema_id(values, headers),
        segmentlog.schema_guid(headers),
        segmentlog.payload(values, headers, is_protobuf=True),
        segmentlog.schema_guid(headers, is_key=True),
    ]

    printed = [
        [each and bytes(each) if i == 2 else each for i, each in enumerate(row)]
        for row in found.collect()
    ]
    assert printed == [
        [*row] for row in zip(*(each.to_pylist() for each in expected), strict=True)
    ]
    assert {None} != {row[2] for row in printed}
