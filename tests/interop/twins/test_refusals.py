"""Options, columns and rows that are refused: by which class, and with which words."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from twins import World, in_connect, refused, texts, twin

pytestmark = [pytest.mark.interop, pytest.mark.spark]

#: Options of reads; `"T"` stands for the topic.
OF_READS: dict[str, Mapping[str, Any]] = {
    "two_strategies": {"subscribe": "T", "subscribePattern": "T"},
    "assign_nothing": {"assign": ""},
    "assign_no_object": {"assign": "T"},
    "assign_no_json": {"assign": "{T}"},
    "subscribe_nothing": {"subscribe": " ,"},
    "pattern_nothing": {"subscribePattern": ""},
    "min_partitions_zero": {"minPartitions": "0"},
    "min_partitions_no_number": {"minPartitions": "1.0"},
    "min_partitions_too_large": {"minPartitions": str(2**31)},
    "headers_no_boolean": {"includeHeaders": "yes"},
    "max_records_negative": {"maxRecordsPerPartition": "-1"},
    "auto_offset_reset": {"kafka.auto.offset.reset": "latest"},
    "key_deserializer": {"kafka.key.deserializer": "x"},
    "value_deserializer": {"KAFKA.VALUE.DESERIALIZER": "x"},
    "auto_commit": {"kafka.enable.auto.commit": "true"},
    "interceptors": {"kafka.interceptor.classes": "x"},
    "retries_no_number": {"fetchOffset.numRetries": "x"},
    "retry_interval_no_number": {"fetchOffset.retryIntervalMs": "1.5"},
    "poll_timeout_no_number": {"kafkaConsumer.pollTimeoutMs": "5s"},
    "starting_word": {"startingOffsets": "first"},
    "starting_list": {"startingOffsets": "[1]"},
    "starting_words_in_a_map": {"startingOffsets": '{"T":{"0":"x"}}'},
    "starting_time_no_number": {"startingTimestamp": "yesterday"},
    "starting_time_too_large": {"startingTimestamp": str(2**63)},
    "starting_times_no_json": {"startingOffsetsByTimestamp": "{T"},
}

#: Options of batches alone.
OF_BATCHES: dict[str, Mapping[str, Any]] = {
    "batch_from_latest": {"startingOffsets": "latest"},
    "batch_from_minus_one": {"startingOffsets": '{"T":{"0":-1}}'},
    "batch_to_earliest": {"endingOffsets": " Earliest "},
    "batch_to_minus_two": {"endingOffsets": '{"T":{"0":-2}}'},
    "ending_time_no_number": {"endingTimestamp": "1.5"},
    "data_loss_no_boolean": {"failOnDataLoss": " true"},
    "least_above_most_of_a_batch": {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"},
}

#: Options of streams alone.
OF_STREAMS: dict[str, Mapping[str, Any]] = {
    "stream_with_an_end": {"endingOffsets": "latest"},
    "stream_with_ending_times": {"endingOffsetsByTimestamp": '{"T":{"0":1}}'},
    "least_above_most": {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"},
}


def _named(world: World, options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value).replace("T", world.topic) for name, value in options.items()}


def _is_late(name: str) -> bool:
    """Whether a stream of `kafka` reads an option when the query starts, and not when loaded."""
    return name.startswith(("starting", "retr", "poll")) or name == "assign_no_json"


def _of_batch(world: World, options: Mapping[str, Any]) -> Any:
    """Loaded and read, because a batch is checked when it is planned."""
    world.create()
    return refused(lambda: texts(world.read(**_named(world, options))))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if _is_late(name) else name
        for name in (*OF_READS, *OF_BATCHES)
    ],
)
@twin
def test_refused_in_a_batch(world: World, name: str) -> Any:
    return _of_batch(world, (OF_READS | OF_BATCHES)[name])


@pytest.mark.parametrize("name", [*(each for each in OF_READS if not _is_late(each)), *OF_STREAMS])
@twin
def test_refused_in_a_stream(world: World, name: str) -> Any:
    return refused(lambda: world.stream(**_named(world, (OF_READS | OF_STREAMS)[name])))


@twin
def test_refused_without_topics_or_servers(world: World) -> Any:
    """A read needs both; a write takes no serializers."""
    spark, frame = world.spark, world.spark.createDataFrame([("a",)], "value string")
    no_topic = spark.read.format("kafka").option("kafka.bootstrap.servers", world.servers)
    no_servers = spark.read.format("kafka").option("subscribe", "a")
    return [
        refused(lambda: no_topic.load().collect()),
        refused(lambda: no_servers.load().collect()),
        refused(spark.readStream.format("kafka").option("subscribe", "a").load),
        refused(lambda: world.save(frame, **{"kafka.key.serializer": "x"})),
        refused(lambda: world.save(frame, **{"kafka.value.serializer": "x"})),
    ]


@twin
def test_refused_schema(world: World) -> Any:
    """The source has a fixed schema; before 4.2, Spark names an error class only for Python's."""
    reader = world.spark.read.format("kafka").options(**world.options({}))
    kind, said = refused(lambda: reader.schema("value binary").load())
    return kind, said.removeprefix("[USER_SPECIFIED_AND_ACTUAL_SCHEMA_MISMATCH] ")


@in_connect
@twin
def test_refused_columns(world: World) -> Any:
    """A missing value, a missing topic, and wrong types: before a task starts."""
    found = []
    for select in (
        "id AS key",
        "id AS value",
        "'v' AS value, 1 AS key",
        "'v' AS value, 'a' AS partition",
        "'v' AS value, 'a' AS headers",
        "'v' AS value, array(struct('a' AS name, binary('b') AS value)) AS headers",
    ):
        frame = world.spark.range(1).selectExpr(*_split(select))
        found.append(refused(partial(world.save, frame)))
    for select in ("'v' AS value", "'v' AS value, 1 AS topic"):
        frame = world.spark.range(1).selectExpr(*_split(select))
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", world.servers)
        found.append(refused(writer.save))
    return found


def _split(select: str) -> list[str]:
    """The columns of a list in SQL, at commas outside of brackets."""
    parts, depth = [""], 0
    for each in select:
        depth += {"(": 1, ")": -1}.get(each, 0)
        if each == "," and not depth:
            parts.append("")
        else:
            parts[-1] += each
    return parts


@in_connect
@twin
def test_refused_modes(world: World) -> Any:
    """Rows can only be appended."""
    frame = world.spark.createDataFrame([("a",)], "value string")
    options = {"kafka.bootstrap.servers": world.servers, "topic": world.topic}
    writer = frame.write.format("kafka").options(**options)
    return [refused(writer.mode(mode).save) for mode in ("overwrite", "ignore")]


@twin
def test_refused_layouts(world: World) -> Any:
    """Buckets are for tables; partitions of files are ignored."""
    frame = world.spark.createDataFrame([("a", "b")], "key string, value string")
    options = {"kafka.bootstrap.servers": world.servers, "topic": world.topic}

    def writer() -> Any:
        return frame.write.format("kafka").options(**options)

    return [
        refused(writer().bucketBy(2, "key").save),
        refused(writer().bucketBy(2, "key").sortBy("key").save),
        refused(writer().sortBy("key").save),
    ]


@pytest.mark.slow
@twin
def test_refused_partition_sets(world: World) -> Any:
    """A map has to name exactly the partitions that are read: something is refused."""
    world.create(3)
    world.write({"value": "a", "timestamp": 1000})
    two = json.dumps({world.topic: {"0": 0, "1": 0}})
    one = json.dumps({world.topic: {"0": 0}})

    def read(options: Mapping[str, Any]) -> Any:
        return texts(world.read(**options))

    return [
        bool(refused(partial(read, options))[0])
        for options in (
            {"startingOffsets": two},
            {"endingOffsets": two},
            {"startingOffsetsByTimestamp": two},
            {"startingOffsets": two, "endingOffsets": one},
            {"startingTimestamp": "999999999999"},
            {"kafka.isolation.level": "none"},
        )
    ]
