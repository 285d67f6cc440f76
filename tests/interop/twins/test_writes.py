"""Batch writes: topics, partitions, types of columns, modes."""

import re
import time
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from twins import World, in_connect, rows, texts, twin

pytestmark = [pytest.mark.interop, pytest.mark.spark]

HEADERS = "array<struct<key: string, value: binary>>"


@pytest.mark.slow
@in_connect
@twin
def test_a_topic_as_option_and_as_column(world: World) -> Any:
    """The option has precedence over the column, in silence."""
    spark, one, two = world.spark, f"{world.topic}.1", f"{world.topic}.2"
    for name in (one, two, world.topic):
        world.create(topic=name)
    # Two tasks would write to one partition in any order.
    by_column = spark.createDataFrame(
        [(one, "a"), (two, "b")], "topic string, value string"
    ).coalesce(1)
    plain = by_column.write.format("kafka").option("kafka.bootstrap.servers", world.servers)
    plain.save()
    world.save(by_column)
    return rows(world.read(subscribePattern=f"^{world.topic}"), "topic", "value", "offset")


@pytest.mark.slow
@in_connect
@twin
def test_partitions_of_keys(world: World) -> Any:
    """Each key has the partition that the Java client chooses, also an empty key."""
    world.create(5)
    keys = [f"key-{i}" for i in range(40)] + ["", "ä", "x" * 300]
    world.save(
        world.spark.createDataFrame([(key, "v") for key in keys], "key string, value string")
    )
    world.write(*[{"key": key, "value": "produced"} for key in keys])
    return rows(world.read(), "key", "partition")


@pytest.mark.slow
@in_connect
@twin
def test_partitions_that_rows_name(world: World) -> Any:
    """A null leaves the choice to the partitioner."""
    world.create(4)
    frame = world.spark.createDataFrame(
        [(3, "a", "v"), (0, "a", "v"), (None, "a", "v"), (2, None, "v")],
        "partition int, key string, value string",
    )
    world.save(frame.coalesce(1))
    return rows(world.read(), "partition", "offset", "key")


@in_connect
@twin
def test_headers_that_are_written(world: World) -> Any:
    """One, two, repeated names, none, and an empty list; null values stay null."""
    world.create()
    lists = [[("a", b"1")], [("a", b"1"), ("b", None)], [("a", b"1"), ("a", b"")], None, []]
    frame = world.spark.createDataFrame(
        [(str(i), each) for i, each in enumerate(lists)], f"value string, headers {HEADERS}"
    )
    world.save(frame)
    return rows(world.read(includeHeaders=True), "value", "headers")


@pytest.mark.slow
@twin
def test_strings_bytes_and_nulls(world: World) -> Any:
    """Keys and values are strings or binary; a null is no key, or a tombstone."""
    world.create()
    for kind in ("string", "binary"):
        frame = world.spark.createDataFrame(
            [("k", "v"), (None, "v"), ("k", None)], "key string, value string"
        )
        world.save(frame.select(*[F.col(each).cast(kind) for each in ("key", "value")]))
    world.save(world.spark.createDataFrame([("only",)], "value string"))
    return rows(world.read(), "key", "value")


@twin
def test_times_of_written_records(world: World) -> Any:
    """Records have the time of the write; a column `timestamp` has no effect."""
    world.create()
    before = int(time.time() * 1000)
    frame = world.spark.range(3).select(
        F.col("id").cast("string").alias("value"),
        F.lit("2001-01-01").cast("timestamp").alias("timestamp"),
    )
    world.save(frame)
    after = int(time.time() * 1000)
    found = world.read().select(F.unix_millis("timestamp").alias("t"), "timestampType").collect()
    return [(before <= row.t <= after, row.timestampType) for row in found]


@pytest.mark.slow
@in_connect
@twin
def test_a_read_that_is_written_back(world: World) -> Any:
    """Other columns of a read are ignored; its column `partition` is taken."""
    world.create(2)
    world.write({"key": "a", "value": "1"}, {"key": "b", "value": "2"}, partition=1)
    copy = f"{world.topic}-copy"
    world.create(2, copy)
    world.read().write.format("kafka").options(
        **{"kafka.bootstrap.servers": world.servers, "topic": copy}
    ).save()
    return rows(world.read(subscribe=copy), "key", "value", "partition", "offset")


@pytest.mark.slow
@in_connect
@twin
def test_columns_with_one_name(world: World) -> Any:
    """The first one counts, and others may differ in their case alone."""
    world.create()
    for columns in (
        "'a' AS key, 'b' AS value, 1 AS value",
        "'A' AS Key, 'b' AS value, 'B' AS VALUE, 7 AS Partition, 'a' AS key",
    ):
        world.save(world.spark.sql(f"SELECT {columns}"))
    return rows(world.read(), "key", "value")


@pytest.mark.slow
@twin
def test_json_of_all_columns(world: World) -> Any:
    """The usual `to_json(struct(*))`, with a key by an expression."""
    world.create(3)
    frame = world.spark.range(6).withColumn("name", F.concat(F.lit("n"), F.col("id") % 3))
    world.save(frame.selectExpr("name AS key", "to_json(struct(*)) AS value"))
    return rows(world.read(), "key", "value", "partition")


@pytest.mark.slow
@in_connect
@twin
def test_modes_of_a_write(world: World) -> Any:
    """Without a mode, and with `append` and `error`, rows are appended."""
    world.create()
    frame = world.spark.createDataFrame([("a",)], "value string")
    options = {"kafka.bootstrap.servers": world.servers, "topic": f" {world.topic} "}
    writer = frame.write.format("kafka").options(**options)
    writer.save()
    writer.mode("append").save()
    writer.mode("error").save()
    frame.write.save(format="kafka", mode="append", **options)
    return texts(world.read())


@pytest.mark.slow
@in_connect
@twin
def test_options_of_clients(world: World) -> Any:
    """Settings of producers and consumers are accepted; codecs can be read."""
    world.create()
    frame = world.spark.createDataFrame([("a" * 100,)], "value string")
    of_producers = {"kafka.acks": "all", "kafka.linger.ms": 5, "includeHeaders": True}
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        world.save(frame, **of_producers, **{"kafka.compression.type": codec})
    of_consumers = {"kafka.max.poll.records": 7, "kafka.group.id": "own", "kafka.client.id": "c"}
    return texts(world.read(**of_consumers, groupIdPrefix="x"))


@pytest.mark.slow
@in_connect
@twin
def test_records_that_a_producer_refuses(world: World) -> Any:
    """By their bytes before compression, with keys and headers: the message, with the size."""
    world.create()
    frame = world.spark.sql(
        "SELECT repeat('k', 9) AS key, repeat('v', 70) AS value, "
        "array(named_struct('key', 'ä', 'value', binary('1')),"
        " named_struct('key', 'h', 'value', binary(NULL))) AS headers"
    )
    found = []
    for options in (
        {"kafka.max.request.size": 60},
        {"kafka.max.request.size": 60, "kafka.compression.type": "gzip"},
        {"kafka.buffer.memory": 60},
    ):
        for each in (frame, frame.select("value")):
            try:
                world.save(each, **options)
                found.append("written")
            except (Py4JJavaError, PySparkException) as error:
                told = re.search(
                    r"RecordTooLargeException: (The message .*? configuration)", str(error)
                )
                found.append(told[1] if told else str(error))
    return found, texts(world.read())


@pytest.mark.slow
@in_connect
@twin
def test_a_topic_that_is_missing(world: World) -> Any:
    """A write makes it, with one partition."""
    world.save(world.spark.createDataFrame([("a", "v"), ("b", "v")], "key string, value string"))
    return rows(world.read(), "key", "partition")
