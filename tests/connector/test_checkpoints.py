"""Reads that begin or end where a streaming query stands, and the lag of a query."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoints import kafka_like_source, write_checkpoint
from plain_writes import ONE, numbered_rows, write
from planned_reads import plan, read
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import pyspark_segmentlog
from pyspark_segmentlog.progress import PartitionLag
from segmentlog.errors import LogDirectoryError, OptionError
from segmentlog.model import TopicPartition
from segmentlog.reads.stream_checkpoint import read_stream_checkpoint

EXAMPLE = Path(__file__).parents[2] / "examples" / "checkpoint"
PROGRESS = {
    "sources": [
        {"endOffset": {"logOffset": 3}, "latestOffset": None},
        {"endOffset": {"a": {"10": 5, "9": 6}}, "latestOffset": {"a": {"10": 8, "9": 6, "11": 2}}},
    ]
}
ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
LAGS = [(1, "a", 9, 6, 6, 0), (1, "a", 10, 5, 8, 3), (1, "a", 11, 0, 2, 2)]


@pytest.fixture(scope="module")
def streams(spark: SparkSession) -> SparkSession:
    """The session, which knows a source with offsets of the form of `kafka`."""
    spark.dataSource.register(kafka_like_source())
    return spark


def run(frame: DataFrame, checkpoint: Path) -> StreamingQuery:
    """A finished query over the existing rows."""
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def rows(path: str, **options: str) -> dict[TopicPartition, list[int]]:
    """Offsets of the rows of a read, by partition."""
    return read(plan(path, **options), path, **options)


@pytest.mark.needs_spark("Sail runs no streams of Python data sources")
@pytest.mark.parametrize("version", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_a_real_checkpoint_is_read(
    streams: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, version: str
) -> None:
    """Spark writes both versions of its offset log; a failed batch is planned, not committed."""
    versions = "spark.sql.streaming.offsetLog.formatVersion"
    request.addfinalizer(lambda: streams.conf.unset(versions))
    lines = streams.readStream.text(str(tmp_path)).selectExpr("length(value) number")
    streams.conf.set(versions, version)
    path = tmp_path / "checkpoints"
    frame = streams.readStream.format("kafka_like").option("fails_after", 10)
    with pytest.raises(StreamingQueryException, match="the batch fails"):
        run(frame.option("end", 23).load().union(lines), path)
    found = read_stream_checkpoint(path)

    assert (1, 2) == (found.batch, found.planned_batch)
    assert "0" in found.sources
    assert {0: 10, 2: 20, 10: 7} == {
        each.partition: offset for each, offset in found.offsets().items()
    }
    written = (path / "offsets" / "1").read_text()
    assert written.startswith(f"v{version}\n")


@pytest.mark.thorough
def test_sources_of_a_real_checkpoint_have_names(
    streams: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With the setting of Spark 4.3 for it, every source has a name."""
    setting = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    request.addfinalizer(lambda: streams.conf.unset(setting))
    streams.conf.set(setting, "true")
    reader = streams.readStream.format("kafka_like")
    if not hasattr(reader, "name"):
        pytest.skip("this version of Spark does not name sources")
    named = [
        streams.readStream.format("kafka_like").option("end", end).name(name).load()
        for name, end in (("first", 5), ("second", 3))
    ]
    run(named[0].union(named[1]), tmp_path / "c")
    found = read_stream_checkpoint(tmp_path / "c")

    assert {"first", "second"} == set(found.sources)
    assert 3 == found.offsets("second")[TopicPartition("orders", 0)]


def test_a_read_begins_and_ends_where_a_query_stands(
    spark: SparkSession, example_data: str
) -> None:
    """Both parts together are the topic. The query has read nothing of other topics."""
    given = f"checkpoint:{EXAMPLE}"
    reads = spark.read.format("segmentlog").option("subscribe", "orders,customers")
    read = reads.option("endingOffsets", given).load(example_data)
    reads = spark.read.format("segmentlog").option("subscribe", "orders,customers")
    rest = reads.option("startingOffsets", given).load(example_data)
    ends = {
        row["partition"]: row["end"]
        for row in read.groupBy("partition")
        .agg({"offset": "max"})
        .withColumnRenamed("max(offset)", "end")
        .collect()
    }

    assert {0: 221, 1: 209, 2: 163} == ends
    assert {"customers", "orders"} == {row["topic"] for row in rest.select("topic").collect()}
    assert 900 == read.count() + rest.where("topic = 'orders'").count()
    assert 304 == rest.where("topic = 'orders'").count()


@pytest.mark.parametrize("late", ["true", "false"])
@pytest.mark.parametrize(
    "start", [{"lastRecords": "3"}, {"startingOffsets": "earliest"}, {"startingTimestamp": "1"}]
)
def test_a_partition_that_a_query_has_not_read_is_empty(
    tmp_path: Path, example_data: str, start: dict[str, str], late: str
) -> None:
    """A partition that the checkpoint does not name has no task, whatever the start is."""
    path = write_checkpoint(tmp_path / "c", {0: '{"orders":{"1":5,"2":-2}}'}, committed=0)
    options = {"subscribe": "orders", "endingOffsets": f"checkpoint:{path}", "lateBinding": late}
    first = 2 if "lastRecords" in start else 0

    assert {ORDERS_1: list(range(first, 5))} == rows(example_data, **options, **start)
    assert {ORDERS_1} == {each.topic_partition for each in plan(example_data, **options, **start)}


def test_a_read_between_two_checkpoints(tmp_path: Path, example_data: str) -> None:
    """A partition that only the end names is read from earliest."""
    first = write_checkpoint(tmp_path / "a", {0: '{"orders":{"0":5}}'}, committed=0)
    second = write_checkpoint(tmp_path / "b", {0: '{"orders":{"0":7,"1":2}}'}, committed=0)
    options = {
        "subscribe": "orders",
        "startingOffsets": f"checkpoint:{first}",
        "endingOffsets": f"checkpoint:{second}",
    }

    assert {ORDERS_0: [5, 6], ORDERS_1: [0, 1]} == rows(example_data, **options)
    backwards = {
        **options,
        "startingOffsets": options["endingOffsets"],
        "endingOffsets": options["startingOffsets"],
    }
    with pytest.raises(OptionError, match="orders-0 would start at 7 and end at 5"):
        rows(example_data, **backwards)


@pytest.mark.needs_spark("Sail runs no streams of Python data sources")
def test_a_bad_checkpoint_is_one_sentence_in_spark(
    spark: SparkSession, example_data: str, tmp_path: Path
) -> None:
    """The query raises the error, not `load`: a stream with its own checkpoint needs no other."""
    reader = spark.read.format("segmentlog").option("startingOffsets", f"checkpoint:{tmp_path}")

    with pytest.raises(AnalysisException, match="not a checkpoint of a streaming query"):
        reader.load(example_data).count()


@pytest.mark.needs_spark("Sail runs no streams of Python data sources")
def test_the_lag_of_a_query(streams: SparkSession, tmp_path: Path) -> None:
    """The progress may be an object of Spark, a dictionary or JSON."""
    frame = streams.readStream.format("kafka_like").option("end", 8).load()
    progress = run(frame, tmp_path / "c").recentProgress[0]
    found = pyspark_segmentlog.lag(progress)

    assert [(0, 5, 8, 3), (2, 10, 16, 6), (10, 7, 7, 0)] == [each[2:] for each in found]
    assert found == pyspark_segmentlog.lag(progress.json)
    assert found == pyspark_segmentlog.lag(json.loads(progress.json))
    assert ["source", "topic", "partition", "offset", "latest_offset", "lag"] == (
        streams.createDataFrame(found).columns
    )


@pytest.mark.slow
def test_the_lag_of_a_query_of_spark_connect(cluster: SparkSession, tmp_path: Path) -> None:
    """The client gets the progress as JSON."""
    cluster.dataSource.register(kafka_like_source())
    frame = cluster.readStream.format("kafka_like").option("end", 8).load()
    found = pyspark_segmentlog.lag(run(frame, tmp_path / "c").recentProgress[0])

    assert [3, 6, 0] == [each.lag for each in found]


def test_sources_without_offsets_of_partitions_have_no_lag() -> None:
    """Sources keep their numbers. A new partition counts from offset 0, as in `kafka`."""
    assert [PartitionLag(*each) for each in LAGS] == pyspark_segmentlog.lag(PROGRESS)
    texts = [
        {name: json.dumps(value) for name, value in source.items()}
        for source in PROGRESS["sources"]
    ]
    assert LAGS == pyspark_segmentlog.lag({"sources": texts})
    assert [] == pyspark_segmentlog.lag(None)


def test_the_lag_without_latest_offsets_comes_from_the_directory(tmp_path: Path) -> None:
    """Spark 4.0 and 4.1 have none of a source in Python, and make the offsets Python's text."""
    write(tmp_path / "logs", numbered_rows(0, 10), num_partitions=2)
    write(tmp_path / "logs", ONE, topic="u")
    ends = {"t": {"0": 3}, "t@AAAAAAAAAAAAAAAAAAAAAQ": {}}
    document = {"sources": [{"endOffset": ends, "latestOffset": None}]}
    shown = [{"endOffset": str(ends), "latestOffset": "None"}]
    progress: Any = SimpleNamespace(sources=shown, json=json.dumps(document))

    assert [] == pyspark_segmentlog.lag(progress)
    for given in (progress, document, progress.json):
        found = pyspark_segmentlog.lag(given, tmp_path / "logs")
        assert [(0, "t", 0, 3, 5, 2), (0, "t", 1, 0, 5, 5)] == found
    with pytest.raises(LogDirectoryError):
        pyspark_segmentlog.lag(progress, [str(tmp_path / "none")])


@pytest.mark.parametrize("progress", ["", "{", "3", {}, {"sources": 3}, {"sources": [3]}])
def test_the_lag_of_anything_else_is_refused(progress: Any) -> None:
    """The message names what a query has."""
    with pytest.raises(OptionError, match=r"give query\.lastProgress"):
        pyspark_segmentlog.lag(progress)
