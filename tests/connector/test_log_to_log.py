"""Streams from a log to a log: the source and the sink of segmentlog in one query."""

from pathlib import Path

import pytest
from plain_writes import dealt, numbered_rows, numbers, write
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from segmentlog.txn.state import State

pytestmark = pytest.mark.spark

COLUMNS = ("topic", "partition", "key", "value")


@pytest.fixture(autouse=True)
def logs(tmp_path: Path) -> None:
    """Ten numbers in the topic `a`, and the next ten in the topic `b`."""
    write(tmp_path / "logs", numbered_rows(0, 10), topic="a", num_partitions=2)
    write(tmp_path / "logs", numbered_rows(10, 10), topic="b", num_partitions=2)


def writer(spark: SparkSession, directory: Path, topics: str) -> DataStreamWriter:
    """A query of some topics in micro-batches of four offsets, which ends with the topics."""
    stream = spark.readStream.format("segmentlog").option("startingOffsets", "earliest")
    stream = stream.options(subscribe=topics, maxOffsetsPerTrigger=4)
    rows = stream.load(str(directory / "logs")).select(*COLUMNS)
    checkpoint = str(directory / f"checkpoint-{topics}")
    return rows.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)


def forget(checkpoint: Path, batch: int) -> None:
    """Leave the checkpoint as if the driver had died before Spark's note of a commit."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.mark.slow
def test_two_queries_write_to_one_topic_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Their micro-batches alternate in any order, and each record is there once."""
    queries = [
        writer(spark, tmp_path, topic)
        .format("segmentlog")
        .options(topic="t", numPartitions=2)
        .start(str(tmp_path / "copy"))
        for topic in ("a", "b")
    ]
    for query in queries:
        query.awaitTermination()

    found = numbers(tmp_path / "copy")
    assert dealt((0, 20)) == {partition: sorted(each) for partition, each in found.items()}
    assert [2, 2] == [
        batch.number for batch, _ in State.read(str(tmp_path / "copy")).streams.values()
    ]


@pytest.mark.slow
def test_one_query_writes_to_the_topics_of_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    """The topics come from the source, and a repeated micro-batch repeats no topic."""
    query = writer(spark, tmp_path, "a,b").format("segmentlog").option("numPartitions", 2)
    query.start(str(tmp_path / "copy")).awaitTermination()
    forget(tmp_path / "checkpoint-a,b", 4)
    query.start(str(tmp_path / "copy")).awaitTermination()

    assert dealt((0, 10)) == numbers(tmp_path / "copy", "a")
    assert dealt((10, 10)) == numbers(tmp_path / "copy", "b")


@pytest.mark.thorough
def test_foreach_batch_writes_numbered_jobs(spark: SparkSession, tmp_path: Path) -> None:
    """A repeated micro-batch reads the same rows, and its jobs are left out."""
    tried = []

    def write_batch(batch: DataFrame, number: int) -> None:
        tried.append((number, batch.count()))
        (
            batch.write.format("segmentlog")
            .mode("append")
            .options(numPartitions=2, txnAppId="copy", txnVersion=number)
            .save(str(tmp_path / "copy"))
        )

    query = writer(spark, tmp_path, "a").foreachBatch(write_batch)
    query.start().awaitTermination()
    forget(tmp_path / "checkpoint-a", 2)
    query.start().awaitTermination()

    assert [(0, 4), (1, 4), (2, 2), (2, 2)] == tried
    assert dealt((0, 10)) == numbers(tmp_path / "copy", "a")
