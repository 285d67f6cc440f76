"""Batch reads: bounds by offset and by time, topics, isolation levels, tasks, and columns."""

import json
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from twins import World, in_connect, rows, texts, twin

pytestmark = [pytest.mark.interop, pytest.mark.spark]

T0 = 1_700_000_000_000


def fill(world: World, n_partitions: int = 3, n_records: int = 5) -> None:
    """Records ``p-0``, ``p-1``, … in each partition, 10 ms apart."""
    world.create(n_partitions)
    for partition in range(n_partitions):
        values = [
            {"value": f"{partition}-{i}", "timestamp": T0 + 10 * i} for i in range(n_records)
        ]
        world.write(*values, partition=partition)


def bounds(world: World, *numbers: int) -> str:
    """A number for each partition, as JSON."""
    return json.dumps({world.topic: {str(p): n for p, n in enumerate(numbers)}})


@in_connect
@twin
def test_earliest_to_latest(world: World) -> Any:
    """All rows of all columns; the same DataFrame sees later rows."""
    fill(world)
    frame = world.read()
    before = rows(frame, *frame.columns)
    world.write("later", partition=1)
    return before, texts(frame), texts(world.read(startingOffsets="earliest"))


@pytest.mark.slow
@in_connect
@twin
def test_offsets_with_sentinels(world: World) -> Any:
    """A partition with a number at its end does not grow; one that ends at -1 grows."""
    fill(world)
    frame = world.read(
        startingOffsets=bounds(world, -2, 3, 5), endingOffsets=bounds(world, 2, -1, -1)
    )
    before = texts(frame)
    for partition in range(3):
        world.write("later", partition=partition)
    return before, rows(frame, "partition", "offset", "value")


@in_connect
@twin
def test_headers_of_records(world: World) -> Any:
    """Without headers the column is null; names may come twice, and values may be null."""
    world.write(
        {"value": "none"},
        {"value": "two", "headers": [("a", "1"), ("b", "2")]},
        {"value": "twice", "headers": [("a", "1"), ("a", None), ("a", "")]},
    )
    return rows(world.read(includeHeaders="true"), "value", "headers"), world.read().columns


@pytest.mark.slow
@in_connect
@twin
def test_timestamps_for_each_partition(world: World) -> Any:
    """Start and end by time; only one of them; the other one by offset."""
    fill(world)
    start, end = bounds(world, T0 + 11, T0, T0 + 40), bounds(world, T0 + 30, T0 + 99, T0 + 41)
    return [
        texts(world.read(**options))
        for options in (
            {"startingOffsetsByTimestamp": start, "endingOffsetsByTimestamp": end},
            {"startingOffsetsByTimestamp": start},
            {"endingOffsetsByTimestamp": end},
            {"startingOffsetsByTimestamp": start, "endingOffsets": bounds(world, 4, 2, -1)},
            {"startingOffsets": bounds(world, 1, 1, -2), "endingOffsetsByTimestamp": end},
        )
    ]


@pytest.mark.slow
@in_connect
@twin
def test_one_timestamp_for_all(world: World) -> Any:
    """An end after the last record is the end of the log."""
    fill(world)
    return [
        texts(world.read(startingTimestamp=str(T0 + 20), endingTimestamp=str(T0 + 40))),
        texts(world.read(startingTimestamp=f" {T0 + 35} ")),
        texts(world.read(endingTimestamp=T0 + 10**6)),
    ]


@pytest.mark.slow
@in_connect
@twin
def test_precedence_of_bounds(world: World) -> Any:
    """One time for all comes first, then times, then offsets; the others are not even parsed."""
    fill(world)
    return [
        texts(world.read(startingTimestamp=T0 + 40, startingOffsets="{no json")),
        texts(
            world.read(
                startingTimestamp=T0 + 30, startingOffsetsByTimestamp=bounds(world, T0, T0, T0)
            )
        ),
        texts(
            world.read(
                startingOffsetsByTimestamp=bounds(world, T0 + 20, T0, T0),
                startingOffsets=bounds(world, 4, 4, 4),
            )
        ),
    ]


@pytest.mark.slow
@in_connect
@twin
def test_a_time_after_the_last_record(world: World) -> Any:
    """With the strategy `latest`, a read begins at the end."""
    fill(world)
    return texts(
        world.read(startingTimestamp=T0 + 10**6, startingOffsetsByTimestampStrategy="LATEST")
    )


@pytest.mark.slow
@in_connect
@twin
def test_times_out_of_order(world: World) -> Any:
    """The first offset with a time at or after the bound counts, not the smallest such time."""
    world.write(*[{"value": str(t), "timestamp": T0 + t} for t in (30, 10, 50, 20, 40)])
    return [rows(world.read(startingTimestamp=T0 + t), "offset", "value") for t in (0, 15, 35, 45)]


@pytest.mark.slow
@in_connect
@twin
def test_a_union_with_itself(world: World) -> Any:
    """Each row comes twice."""
    fill(world, 2, 3)
    frame = world.read()
    return texts(frame.union(frame))


@pytest.mark.slow
@in_connect
@twin
def test_deleted_records(world: World) -> Any:
    """The read begins at the new log start, also of a DataFrame that was loaded before."""
    fill(world, 1)
    frame = world.read()
    world.delete_records(3)
    return rows(frame, "offset", "value"), rows(world.read(), "offset")


@pytest.mark.slow
@in_connect
@twin
def test_deleted_records_below_the_start(world: World) -> Any:
    """With failOnDataLoss=false, the read begins at the log start."""
    fill(world, 1)
    world.delete_records(3)
    return rows(
        world.read(startingOffsets=bounds(world, 1), failOnDataLoss="false"), "offset", "value"
    )


@in_connect
@twin
def test_committed_records(world: World) -> Any:
    """Nothing of an open transaction, all of a committed one, and never an aborted one."""
    world.write("plain")
    committed, aborted, still_open = (world.transaction() for _ in range(3))
    committed.write(world.topic, ["committed"])
    committed.commit()
    aborted.write(world.topic, ["aborted"])
    aborted.abort()
    still_open.write(world.topic, ["open"])
    world.write("after")
    level = "kafka.isolation.level"
    before = rows(world.read(**{level: "read_committed"}), "offset", "value")
    found = rows(world.read(**{level: "read_uncommitted"}), "offset", "value")
    still_open.commit()
    return before, found, rows(world.read(**{level: "read_committed"}), "offset", "value")


@pytest.mark.slow
@twin
def test_number_of_tasks(world: World) -> Any:
    """One for each partition, unless options ask for more."""
    fill(world, 3, 8)
    found = []
    for options in (
        {},
        {"minPartitions": "6"},
        {"minPartitions": "2"},
        {"maxRecordsPerPartition": "3", "endingOffsets": bounds(world, 8, 8, 8)},
        {
            "endingOffsets": bounds(world, 3, 8, 8),
            "startingOffsets": bounds(world, 2, 0, 7),
            "minPartitions": "5",
        },
    ):
        frame = world.read(**options)
        tasks = frame.select(F.spark_partition_id().alias("task"), "value")
        found.append((len(texts(frame)), len({row[0] for row in rows(tasks, "task")})))
    return found


@pytest.mark.slow
@in_connect
@twin
def test_assigned_partitions(world: World) -> Any:
    """Listed partitions alone; those that do not exist are left out."""
    fill(world)
    return [
        texts(world.read(assign=json.dumps({world.topic: each}))) for each in ([1], [0, 2], [2, 9])
    ]


@pytest.mark.slow
@in_connect
@twin
def test_lists_and_patterns_of_topics(world: World) -> Any:
    """Blanks in a list do not matter; a pattern matches anywhere in a name."""
    for name in ("one", "two", "other"):
        world.write(name, topic=f"{world.topic}.{name}")
    listed = f" {world.topic}.one ,{world.topic}.two,"
    return [
        rows(world.read(subscribe=listed), "topic", "value"),
        texts(world.read(subscribePattern=f"{world.topic}\\.(one|other)")),
        texts(world.read(subscribePattern=f"{world.topic}.*o$")),
        texts(world.read(subscribePattern="no-such-topic-.*")),
    ]


@pytest.mark.slow
@in_connect
@twin
def test_nulls_and_empty_bytes(world: World) -> Any:
    """A tombstone is null, and an empty value is not."""
    world.write(
        {"key": None, "value": None}, {"key": "", "value": ""}, {"key": "k", "value": None}
    )
    return rows(world.read(), "key", "value", "offset")


@in_connect
@twin
def test_types_of_columns(world: World) -> Any:
    """Names, types and nullability, with and without headers."""
    world.write({"value": "a", "timestamp": T0})
    frame = world.read(includeHeaders="TRUE")
    return (
        frame.schema.jsonValue(),
        world.read().dtypes,
        [row.timestamp.isoformat() for row in frame.select("timestamp").collect()],
        rows(frame, "timestampType"),
    )


@pytest.mark.slow
@in_connect
@twin
def test_options_in_any_case(world: World) -> Any:
    """Upper and lower case do not matter in the names of options and in their words."""
    fill(world, 2)
    options = {"SUBSCRIBE": world.topic, "startingoffsets": "EARLIEST", "ENDINGOFFSETS": "Latest"}
    return texts(world.read(**options))


@pytest.mark.slow
@in_connect
@twin
def test_gaps_between_offsets(world: World) -> Any:
    """End markers of transactions take offsets, and are no rows."""
    for end in ("commit", "abort", "commit"):
        transaction = world.transaction()
        transaction.write(world.topic, [end, end])
        getattr(transaction, end)()
    return [
        rows(world.read(), "offset", "value"),
        rows(
            world.read(startingOffsets=bounds(world, 2), endingOffsets=bounds(world, 6)), "offset"
        ),
    ]


@pytest.mark.slow
@twin
def test_a_query_of_the_guide(world: World) -> Any:
    """Casts, JSON with a schema, and SQL over a view, as the guide of Spark shows them."""
    world.write(*[{"key": f"k{i % 2}", "value": {"name": "x" * i, "n": i}} for i in range(4)])
    frame = world.read().selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
    parsed = frame.select("key", F.from_json("value", "name string, n int").alias("v"))
    parsed.select("key", "v.*").createOrReplaceTempView("of_the_guide")
    query = "SELECT key, sum(n), max(name) FROM of_the_guide GROUP BY key"
    return rows(world.spark.sql(query))


@pytest.mark.slow
@twin
def test_filters_limits_and_joins(world: World) -> Any:
    """Spark's own operations over the columns of the source."""
    fill(world)
    world.write({"key": "1-3", "value": "joined"}, topic=f"{world.topic}-names")
    frame, names = world.read(), world.read(subscribe=f"{world.topic}-names")
    joined = frame.join(names, frame.value == names.key).select(names.value)
    return [
        texts(frame.where("partition = 1 AND offset >= 3")),
        frame.limit(4).count(),
        frame.where(f"timestamp > timestamp_millis({T0 + 25})").count(),
        rows(joined),
        rows(frame.groupBy("partition").agg(F.max("offset").alias("m")), "partition", "m"),
    ]


@pytest.mark.slow
@in_connect
@twin
def test_more_partitions(world: World) -> Any:
    """A new load reads partitions that were added."""
    fill(world, 1, 2)
    world.add_partitions(3)
    world.write("new", partition=2)
    return rows(world.read(), "partition", "offset", "value")


@pytest.mark.slow
@in_connect
@twin
def test_compaction_between_reads(world: World) -> Any:
    """The last record of each key stays, at its offset."""
    world.create(compacted=True)
    world.write(*[{"key": f"k{i % 3}", "value": str(i)} for i in range(9)])
    frame = world.read()
    before = rows(frame.where("cast(key as string) != 'roll'"), "offset", "key", "value")
    world.compact()
    return before, rows(frame.where("cast(key as string) != 'roll'"), "offset", "key", "value")
