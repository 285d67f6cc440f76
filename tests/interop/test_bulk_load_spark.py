"""Topics that Spark wrote are served by a broker, and both append in turn."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka_here import Broker, JavaClient, assert_dump_is_sound
from kafka_here.java import Outgoing
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

N_PARTITIONS = 4
N_KEYS = 50
TOPICS = ("bulk", "latest")
PATTERNS = [f"{topic}-*" for topic in TOPICS]


def mixed_rows(spark: SparkSession, n_rows: int) -> DataFrame:
    """Rows that contain their numbers, for the partitions in turn.

    Some rows have no key, some are tombstones, some have headers.
    """
    return spark.range(0, n_rows, 1, 8).selectExpr(
        "if(id % 7 = 0, null, cast(id as string)) key",
        "if(id % 11 = 0 and id % 7 > 0, null, concat(id, ' ', repeat('v', id % 200))) value",
        "if(id % 5 = 0, array(named_struct('key', 'h', 'value', binary(cast(id as string)))), "
        "null) headers",
        f"cast(id % {N_PARTITIONS} as int) partition",
    )


def updates(spark: SparkSession, n_rows: int) -> DataFrame:
    """Values of a few keys, one after the other; the last values of some keys are tombstones."""
    return spark.range(0, n_rows, 1, 2).selectExpr(
        f"cast(id % {N_KEYS} as string) key",
        f"if(id >= {n_rows - N_KEYS} and id % 3 = 0, null, cast(id as string)) value",
    )


def append(frame: DataFrame, broker: Broker, topic: str, **options: Any) -> None:
    """Write one of our jobs."""
    (
        frame.write.format("segmentlog")
        .options(topic=topic, **options)
        .mode("append")
        .save(str(broker.log_dir))
    )


def theirs(spark: SparkSession, broker: Broker) -> DataFrame:
    """The rows that Spark's own source reads from the running broker."""
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", ",".join(TOPICS))
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )


def ours(spark: SparkSession, broker: Broker) -> DataFrame:
    """The rows that our source reads from the directory."""
    return (
        spark.read.format("segmentlog")
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .load(str(broker.log_dir))
    )


def digest(frame: DataFrame) -> list[Row]:
    """Number of rows, offsets, and a checksum over all columns, by partition."""
    checksum = F.xxhash64(*frame.columns).cast("decimal(38,0)")
    return (
        frame.groupBy("topic", "partition")
        .agg(F.count("*"), F.min("offset"), F.max("offset"), F.sum(checksum))
        .sort("topic", "partition")
        .collect()
    )


def n_in_their_place(frame: DataFrame) -> int:
    """How many rows of the first job have the offset that their number requires."""
    said = F.coalesce(F.col("key").cast("string"), F.split(F.col("value").cast("string"), " ")[0])
    expected = F.col("offset") * N_PARTITIONS + F.col("partition")
    is_there = said.try_cast("bigint") == expected
    return frame.where("topic = 'bulk'").where(is_there).count()


def transact(client: JavaClient, ends: Sequence[str]) -> None:
    """Send some records in a transaction for each end in `ends`."""
    producer = client.transactional_producer("bulk")
    for end in ends:
        producer.begin()
        producer.send(
            "bulk", [Outgoing(b"in transaction", end.encode(), partition=i) for i in range(4)]
        )
        producer.end(end)
    producer.abandon()


@pytest.fixture
def stopped(version: str, tmp_path: Path) -> Iterator[Broker]:
    """A stopped broker of each version with two empty topics, one of them compacted."""
    broker = Broker(tmp_path / "kafka", version)
    with broker, JavaClient(broker) as client:
        client.create_topic("bulk", N_PARTITIONS, segment_bytes=1 << 20, max_message_bytes=200_000)
        client.create_topic(
            "latest",
            cleanup_policy="compact",
            segment_ms=500,
            min_cleanable_dirty_ratio=0.01,
            delete_retention_ms=3_600_000,
        )
    yield broker
    broker.stop()


@pytest.mark.parametrize(
    ("version", "n_rows", "codec"),
    [
        ("4.3.1", 100_000, "none"),
        pytest.param("3.9.2", 100_000, "none", marks=pytest.mark.slow),
        pytest.param(
            "4.3.1", 3_000_000, "zstd", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]
        ),
    ],
    indirect=["version"],
)
def test_a_broker_continues_what_spark_wrote(
    stopped: Broker, spark: SparkSession, n_rows: int, codec: str
) -> None:
    """The broker serves all rows in order.

    Appends, transactions and compaction work, and then we append.
    """
    broker, every = stopped, max(1, n_rows // 1_000_000)
    options = {"segment.bytes": 1 << 20, "kafka.compression.type": codec}
    append(mixed_rows(spark, n_rows), broker, "bulk", **options)
    append(updates(spark, 3000), broker, "latest", **{"kafka.batch.size": 1000})
    assert len(list(broker.log_dir.glob("bulk-*/*.log"))) > 2 * N_PARTITIONS
    assert_dump_is_sound(broker, *PATTERNS, every=every)
    written = digest(ours(spark, broker))

    with broker, JavaClient(broker) as client:
        assert written == digest(theirs(spark, broker))
        assert n_rows == n_in_their_place(theirs(spark, broker))
        client.produce("bulk", [Outgoing(b"k", b"v", partition=i) for i in range(4)])
        transact(client, ["commit", "abort", "commit"])
        client.wait_until_compacted(broker.log_dir / "latest-0", fewer_than=2 * N_KEYS)
        client.wait_until_settled("latest")
        latest = client.consume("latest")
        served = digest(theirs(spark, broker))
    newest = {each.key: each.value for each in latest if each.key != b"roll"}
    assert {b"%d" % (i % N_KEYS): _newest(i) for i in range(3000 - N_KEYS, 3000)} == newest
    assert served == digest(ours(spark, broker))
    assert n_rows + 4 + 8 == ours(spark, broker).where("topic = 'bulk'").count()

    append(mixed_rows(spark, 1000), broker, "bulk", **options)
    append(updates(spark, 100), broker, "latest")
    assert_dump_is_sound(broker, *PATTERNS, every=every)
    with broker:
        served = digest(theirs(spark, broker))
    assert served == digest(ours(spark, broker))
    assert n_rows + 4 + 8 + 1000 == ours(spark, broker).where("topic = 'bulk'").count()


def _newest(number: int) -> bytes | None:
    return None if number % 3 == 0 else b"%d" % number
