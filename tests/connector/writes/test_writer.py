"""DataFrames are written to logs: columns, options, errors, attempts."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import segmentlog
from pyspark_segmentlog.source import SegmentLogDataSource
from segmentlog.errors import SegmentLogError

pytestmark = pytest.mark.spark


def save(frame: DataFrame, path: Path, **options: str) -> None:
    """Append with `options`."""
    frame.write.format("segmentlog").options(**options).mode("append").save(str(path))


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    """The values that a reader sees."""
    return spark.read.format("segmentlog").options(**options).load(str(path))


def numbers(spark: SparkSession, n_rows: int, n_tasks: int = 3) -> DataFrame:
    """Rows whose keys and values contain their numbers."""
    frame = spark.range(0, n_rows, 1, n_tasks)
    return frame.selectExpr("cast(id as string) key", "cast(id as string) value")


@pytest.mark.parametrize(
    "codec",
    [
        "none",
        "zstd",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("gzip", "snappy", "lz4")),
    ],
)
def test_rows_come_back(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    """All rows come once, keys with their values. A key is always in the same partition."""
    options = {"topic": "t", "numPartitions": "4", "kafka.compression.type": codec}
    save(numbers(spark, 10_000), tmp_path, **options)
    save(numbers(spark, 10_000), tmp_path, **options)
    found = load(spark, tmp_path).selectExpr("key", "value", "partition")

    assert 20_000 == found.count()
    assert 10_000 == found.filter("key = value").distinct().count()
    assert 4 == found.select("partition").distinct().count()


@pytest.mark.needs_spark("Sail cannot unite arrays whose elements differ in nullability")
def test_columns_are_those_of_the_kafka_sink(spark: SparkSession, tmp_path: Path) -> None:
    """Rows have topic, partition and headers, and may be tombstones. Other columns are ignored.

    The option ``topic`` replaces the column, whatever its type is.
    """
    frame = spark.sql(
        "select * from values "
        "('a', 0, 'k', 'v', array(named_struct('key', 'h', 'value', X'01'))), "
        "('b', 1, null, null, null) as rows(topic, partition, key, value, headers)"
    ).withColumn("offset", F.lit("ignored"))
    save(frame, tmp_path, numPartitions="2")
    found = load(spark, tmp_path, includeHeaders="true").orderBy("topic").collect()

    assert [("a", 0, b"k", b"v", 0), ("b", 1, None, None, 0)] == [
        (row.topic, row.partition, row.key, row.value, row.offset) for row in found
    ]
    assert [[("h", b"\1")], None] == [row.headers for row in found]
    save(spark.sql("select 1 topic, 'v' value"), tmp_path, topic="c")
    assert [(b"v", "c")] == load(spark, tmp_path, subscribe="c").select("value", "topic").collect()


def test_each_topic_has_its_own_settings(spark: SparkSession, tmp_path: Path) -> None:
    """The directory has settings for each topic. An option applies to all topics of the job."""
    segmentlog.alter_settings(tmp_path, "a", {"segment.bytes": "2000"})
    frame = numbers(spark, 2000).withColumn(
        "topic", F.expr("if(cast(value as int) % 2 = 0, 'a', 'b')")
    )
    for options in ({}, {"segment.bytes": "1000000"}):
        save(frame, tmp_path, **{"kafka.batch.size": "500", **options})
    opened = segmentlog.open_log_dir(tmp_path)
    sizes = {topic: [each.size for each in opened.log(topic, 0).segments] for topic in "ab"}

    assert len(sizes["a"]) > 5
    assert max(sizes["a"][:-1]) <= 2000 < sizes["a"][-1]
    assert 1 == len(sizes["b"])


def test_timestamps_are_taken_when_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """An option takes the column.

    Otherwise records get the time of writing, as from the kafka sink.
    """
    frame = spark.sql("select 'v' value, timestamp'2020-01-02 03:04:05.678' timestamp")
    save(frame, tmp_path, topic="t", includeTimestamp="true")
    save(frame, tmp_path, topic="t")
    kept, stamped = load(spark, tmp_path).orderBy("offset").collect()

    assert "2020-01-02 03:04:05.678000" == str(kept.timestamp)
    assert stamped.timestamp.year > 2020


@pytest.mark.parametrize(
    ("query", "options", "says"),
    [
        ("select 'k' key", {"topic": "t"}, "column 'value' is missing; the rows have: k"),
        ("select 'v' value", {}, "give the option topic"),
        ("select 1 value", {"topic": "t"}, "column 'value' is int; it has to be string or"),
        ("select 1 value", {"topic": "t"}, 'selectExpr("cast(value as string) as value"'),
        ("select 'v' value, 1L partition", {"topic": "t"}, "column 'partition' is bigint; it"),
        ("select 'v' value, array('x') headers", {"topic": "t"}, "array<struct<key:string,val"),
        ("select 'v' value", {"topic": "a/b"}, "a topic is 1 to 249"),
        ("select 'v' value", {"topic": "t", "topics": "x"}, "option 'topics' is 'x'; there"),
        ("select 'v' value", {"topic": "t", "kafka.compression.type": "brotli"}, "give none"),
        ("select 'v' value", {"topic": "t", "segment.bytes": "1m"}, "give a number from 14"),
        ("select 'v' value", {"topic": "t", "txnAppId": "a"}, "go together"),
        (
            "select 'v' value",
            {"topic": "t", "kafka.compression.type": "lz4", "kafka.compression.lz4.level": "18"},
            "1 to 17",
        ),
        ("select 'v' value", {"topic": "t", "compression.type": "xz"}, "give producer"),
        ("select 'v' value", {"topic": "t", "includeTimestampType": "true"}, "includeTimestamp="),
        ("select 'v' value", {"topic": "t", "includeOffset": "true"}, "'partition' is missing"),
        (
            "select 'v' value, 0 partition, 'x' `offset`",
            {"topic": "t", "includeOffset": "true"},
            "column 'offset' is string; it has to be bigint",
        ),
        (
            "select 'v' value, timestamp_ntz '2026-01-01' timestamp",
            {"topic": "t", "includeTimestamp": "true"},
            "'timestamp' is timestamp_ntz; it has to be",
        ),
        ("select 'v' value, null topic", {}, "column 'topic' is void"),
    ],
)
def test_columns_and_options_that_cannot_be_written_are_explained(
    spark: SparkSession, tmp_path: Path, query: str, options: dict[str, str], says: str
) -> None:
    """When Spark asks for a writer; no file is left."""
    source = SegmentLogDataSource({"path": str(tmp_path), **options})
    with pytest.raises(SegmentLogError) as caught:
        source.writer(spark.sql(query).schema, overwrite=False)
    assert says in str(caught.value)
    assert [] == [path for path in tmp_path.iterdir() if path.name.endswith((".stage", ".job"))]


@pytest.mark.parametrize(
    ("query", "options", "says"),
    [
        ("select 'k' key", {"topic": "t"}, "column 'value' is missing; the rows have: k"),
        (
            "select repeat('v', 2000) value",
            {"topic": "t", "kafka.max.request.size": "1k"},
            "the limit is 1024",
        ),
        ("select 'v' value, cast(null as string) topic", {}, "its topic is null"),
        (
            "select 'v' value, 7 partition",
            {"topic": "t"},
            "names partition 7, but the topic has partitions 0 to 0",
        ),
    ],
)
def test_rows_that_cannot_be_written_are_explained(
    spark: SparkSession, tmp_path: Path, query: str, options: dict[str, str], says: str
) -> None:
    """After the error, no row is visible."""
    with pytest.raises(PySparkException) as caught:
        save(spark.sql(query), tmp_path, **options)
    assert says in str(caught.value)
    assert [] == [path for path in tmp_path.iterdir() if path.name.endswith((".stage", ".job"))]


def test_overwriting_has_to_be_meant(spark: SparkSession, tmp_path: Path) -> None:
    """Records are deleted only if an option allows it."""
    save(spark.sql("select 'old' value"), tmp_path, topic="t")
    frame = spark.sql("select 'v' value").write.format("segmentlog").option("topic", "t")
    with pytest.raises(PySparkException, match=r'mode\("append"\).*deleteRecords'):
        frame.mode("overwrite").save(str(tmp_path))
    frame = frame.option("deleteRecords", "true")
    with pytest.raises(PySparkException, match=r'for mode\("overwrite"\)'):
        frame.mode("append").save(str(tmp_path))
    frame.mode("overwrite").save(str(tmp_path))

    assert [(1, b"v")] == [(row.offset, row.value) for row in load(spark, tmp_path).collect()]


@pytest.mark.needs_spark("Sail may leave an ORDER BY out before a write")
def test_a_log_is_restored_with_its_offsets_and_times(spark: SparkSession, tmp_path: Path) -> None:
    """Rows are written to another directory, sorted as they were read."""
    frame = spark.range(0, 1000, 1, 4).selectExpr(
        "cast(id as string) value",
        "'t' topic",
        "cast(id % 2 as int) partition",
        "id * 7 + 5 offset",
        "timestamp_millis(id * 1000) timestamp",
        "cast(id div 500 as int) timestampType",
    )
    options = dict.fromkeys(("includeOffset", "includeTimestamp"), "true")
    options |= {"includeTimestampType": "true", "numPartitions": "2"}
    with pytest.raises(PySparkException, match="sortWithinPartitions"):
        save(frame.orderBy(F.desc("offset")), tmp_path / "a", **options)
    order = ("topic", "partition", "offset")
    ordered = frame.repartition("topic", "partition").sortWithinPartitions(*order)
    save(ordered, tmp_path / "a", **options)
    again = load(spark, tmp_path / "a").repartition("partition").sortWithinPartitions(*order)
    save(again, tmp_path / "b", **options)

    names = frame.columns
    expected = frame.withColumn("value", F.col("value").cast("binary")).collect()
    found = load(spark, tmp_path / "b").select(names).collect()
    assert sorted(expected) == sorted(found)


def test_a_repeated_transaction_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    """The options have the names and the meaning of Delta's."""
    for version in ("1", "1", "2", "1"):
        options = {"topic": "t", "txnAppId": "job", "txnVersion": version}
        save(spark.sql("select 'v' value"), tmp_path, **options)

    assert 2 == load(spark, tmp_path).count()


@pytest.mark.needs_spark("Sail runs no streams of Python data sources")
def test_a_streaming_batch_goes_to_two_topics_once(spark: SparkSession, tmp_path: Path) -> None:
    """Two writes have the batch's number.

    After the loss of its checkpoint, the query writes nothing.
    """
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.txt").write_text("a\nb\n")
    tried = []

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        tried.append(batch_id)
        for topic in ("orders", "audit"):
            options = {"topic": topic, "txnAppId": "query-7", "txnVersion": str(batch_id)}
            save(batch, tmp_path / "logs", **options)

    for attempt in ("first", "second"):
        stream = spark.readStream.text(str(tmp_path / "in")).writeStream.foreachBatch(write_batch)
        checkpoint = str(tmp_path / attempt)
        query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        found = load(spark, tmp_path / "logs").groupBy("topic").count().collect()
        assert {"orders": 2, "audit": 2} == {row["topic"]: row["count"] for row in found}
    assert [0, 0] == tried
