"""A real broker's directory through Spark: columns, options, errors, plans."""

import gc
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StructType

import segmentlog
from pyspark_segmentlog.source import SegmentLogDataSource
from pyspark_segmentlog.spark_versions import IS_41
from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.testing.reference import Record, encode_batch

pytestmark = pytest.mark.spark


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    """A read of `path` with `options`, without a call to register the source."""
    return spark.read.format("segmentlog").options(**options).load(path)


def write(directory: Path, n_rows: int, topic: str = "t") -> None:
    """A job from plain Python. Workers import this file, so it imports no helper of the tests."""
    with segmentlog.open_writer(directory, topic) as writer:
        writer.append(pa.table({"value": ["v"] * n_rows}))


def test_the_columns_are_those_of_the_kafka_source(spark: SparkSession, example_data: str) -> None:
    """Names, types, order and nullability are equal, with and without headers."""
    expected = (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int"
    )
    headers = ",headers:array<struct<key:string,value:binary>>"
    plain = load(spark, example_data).schema
    full = load(spark, example_data, includeHeaders="true").schema

    assert expected + ">" == plain.simpleString()
    assert expected + headers + ">" == full.simpleString()
    assert all(field.nullable for field in full.fields)


def test_all_topics_but_internal_ones_are_read(spark: SparkSession, example_data: str) -> None:
    """The path chooses the data, without a broker's internal topics."""
    counts = load(spark, example_data).groupBy("topic").count().collect()

    assert {"customers": 42, "orders": 900, "payments": 120} == dict(counts)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": " orders , payments "}, {"orders", "payments"}),
        ({"subscribePattern": "ment|tom"}, {"payments", "customers"}),
        ({"subscribePattern": "__transaction"}, set()),
        ({"subscribe": "__transaction_state"}, {"__transaction_state"}),
        ({"assign": '{"orders":[1,99]}'}, {"orders"}),
        ({"SUBSCRIBE": "customers"}, {"customers"}),
    ],
)
def test_topics_are_chosen_as_by_the_kafka_source(
    spark: SparkSession, example_data: str, options: dict[str, str], expected: set[str]
) -> None:
    """Lists are trimmed, patterns match anywhere, internal topics only by name."""
    found = load(spark, example_data, **options).select("topic").distinct().collect()

    assert expected == {row.topic for row in found}


def test_offsets_bound_the_read(spark: SparkSession, example_data: str) -> None:
    """Starts are inclusive, ends exclusive, and a topic may be given as a word."""
    rows = (
        load(
            spark,
            example_data,
            subscribe="orders,payments",
            startingOffsets='{"orders":{"0":300,"1":-2,"2":100},"payments":"earliest"}',
            endingOffsets='{"orders":{"0":-1,"1":5,"2":100},"payments":{"0":7}}',
        )
        .groupBy("topic", "partition")
        .agg({"offset": "min", "*": "count"})
        .sort("topic", "partition")
        .collect()
    )

    assert [("orders", 0, 300, 35), ("orders", 1, 0, 5), ("payments", 0, 0, 7)] == [
        tuple(row) for row in rows
    ]


def test_a_users_schema_selects_columns(spark: SparkSession, example_data: str) -> None:
    """The columns of the schema come back in its order. Headers then need no option."""
    schema = StructType.fromDDL(
        "offset bigint, headers array<struct<key:string,value:binary>>, topic string"
    )
    assert isinstance(schema, StructType)
    frame = spark.read.schema(schema).format("segmentlog").load(example_data)
    row = frame.where("topic = 'orders'").orderBy("offset").first()

    assert ["offset", "headers", "topic"] == frame.columns
    assert row.headers[0].key == "source"


def test_a_schema_without_columns_has_rows(spark: SparkSession, example_data: str) -> None:
    """The rows can be counted; Spark 4.0 would lose them."""
    if not IS_41:
        with pytest.raises(PySparkException, match="name one in the schema"):
            spark.read.schema(StructType()).format("segmentlog").load(example_data).count()
        return
    assert 1062 == spark.read.schema(StructType()).format("segmentlog").load(example_data).count()


def test_keys_and_values_are_read_as_text(spark: SparkSession, tmp_path: Path) -> None:
    """The text is that of a cast, except for bytes that are not text."""
    with segmentlog.open_writer(tmp_path, "t", num_partitions=1) as writer:
        writer.append(pa.table({"key": [b"k", None, b"\xffk"], "value": [b"", None, b"\xc3\xa4"]}))

    def read(on_invalid: str) -> list[tuple[str, ...]]:
        reader = spark.read.schema("value string, key string").format("segmentlog")
        frame = reader.option("onInvalidUtf8", on_invalid).load(str(tmp_path))
        return [tuple(row) for row in frame.collect()]

    assert [("", "k"), (None, None), ("ä", None)] == read("NULL")
    assert [("", "k"), (None, None), ("ä", "\ufffdk")] == read("replace")
    with pytest.raises(PySparkException, match="t-0: the key of the record at offset 2 is not"):
        read("fail")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "order"}, ["no topic 'order'", "did you mean 'orders'"]),
        ({"subscribe": "orders", "assign": '{"orders":[0]}'}, ["only one of"]),
        ({"startingOffsets": "latest"}, ["startingOffsets", "may not start at latest"]),
        ({"endingOffsets": "earliest"}, ["endingOffsets", "may not end at earliest"]),
        ({"startingOffset": "earliest"}, ["startingOffset", "did you mean 'startingOffsets'"]),
        ({"includeHeaders": "yes"}, ["includeHeaders", "'yes'", "true or false"]),
        ({"kafka.isolation.level": "committed"}, ["give read_uncommitted or read_committed"]),
        ({"kafka.auto.offset.reset": "latest"}, ["kafka.auto.offset.reset", "startingOffsets"]),
        ({"minPartitions": "0"}, ["minPartitions", "'0'", "give a number from 1"]),
        ({"startingTimestamp": "tomorrow"}, ["startingTimestamp", "'tomorrow'", "milliseconds"]),
        (
            {"startingTimestamp": "9999999999999"},
            ["customers-0 has none at or after 9999999999999 ms"],
        ),
        (
            {"assign": '{"orders":[0]}', "startingOffsets": '{"orders":{"0":999}}'},
            ["orders-0 would start at 999 and end at 335", "not after that offset, the latest"],
        ),
        (
            {
                "assign": '{"orders":[0]}',
                "startingOffsets": '{"orders":{"0":300}}',
                "endingOffsets": '{"orders":{"0":999}}',
            },
            ["orders-0", "offset 999", "[0, 335)", "failOnDataLoss=false"],
        ),
        (
            {"subscribe": "orders", "endingOffsetsByTimestamp": '{"orders":{"0":1,"9":1}}'},
            ["endingOffsetsByTimestamp", "exactly the partitions", "orders-9"],
        ),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders":{"0":1}}'},
            ["exactly the partitions", "orders-1"],
        ),
    ],
)
def test_a_bad_option_is_explained(
    example_data: str, options: dict[str, str], words: list[str]
) -> None:
    """The message names the option, the value, and what is accepted."""
    source = SegmentLogDataSource({"path": example_data, **options})
    with pytest.raises(SegmentLogError) as caught:
        source.reader(source.schema()).partitions()

    assert [] == [word for word in words if word not in str(caught.value)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "order"}, "did you mean 'orders'"),  # known when the query is planned
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),  # known at `load`
    ],
)
def test_an_error_is_shown_by_spark(
    spark: SparkSession, example_data: str, options: dict[str, str], said: str
) -> None:
    """The exception of a query has our message."""
    with pytest.raises(PySparkException, match=said):
        load(spark, example_data, **options).collect()


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": "orders", "subscribePattern": "o"},
        {"assign": "orders"},
        {"subscribe": ","},
        {"maxRecordsPerPartition": "1.0"},
        {"kafka.enable.auto.commit": "true"},
        {"endingOffsets": '{"orders":{"0":-2}}'},
        {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":4}}'},
        {"endingTimestamp": "noon"},
        {"startingOffsetsByTimestampStrategy": "never"},
        {"kafka.isolation.level": "committed"},
        {"lastDuration": "a while"},
    ],
)
def test_mistakes_in_options_alone_are_found_without_the_directory(
    options: dict[str, str],
) -> None:
    """When Spark asks for the schema, or, with a schema of the user's, for a reader."""
    source = SegmentLogDataSource({"path": "/no/such/directory", **options})
    with pytest.raises(OptionError, match="is '"):
        source.schema()
    with pytest.raises(OptionError, match="is '"):
        source.reader(StructType().add("offset", LongType()))


def test_mistakes_in_options_alone_are_refused_by_load(
    spark: SparkSession, example_data: str
) -> None:
    """The error comes before any action.

    With a schema of the user's, Spark asks the source later.
    """
    with pytest.raises(PySparkException, match="is '"):
        _ = load(spark, example_data, assign="orders").schema  # a client of Sail asks for it here
    frame = spark.read.schema("offset bigint").format("segmentlog").option("assign", "orders")
    with pytest.raises(PySparkException, match="is '"):
        frame.load(example_data).collect()


def test_a_schema_that_does_not_fit_is_explained(spark: SparkSession, example_data: str) -> None:
    """The message has the column, its type, and the accepted type."""
    with pytest.raises(PySparkException, match="'offset' is int; read it as bigint"):
        spark.read.schema("offset int").format("segmentlog").load(example_data).collect()


def test_data_loss_can_be_allowed(spark: SparkSession, example_data: str) -> None:
    """With failOnDataLoss=false, the existing part of a range is read."""
    frame = load(
        spark,
        example_data,
        assign='{"orders":[0]}',
        startingOffsets='{"orders":{"0":330}}',
        endingOffsets='{"orders":{"0":1000}}',
        failOnDataLoss="false",
    )

    assert frame.count() == 5


def test_lost_segments_fail_a_query_unless_data_loss_is_allowed(
    spark: SparkSession, example_data: str, tmp_path: Path
) -> None:
    """The last segment of a broker's log is gone; the error names its offsets."""
    shutil.copytree(example_data, tmp_path / "kafka")
    (tmp_path / "kafka" / "payments-0" / f"{60:020d}.log").unlink()
    path = str(tmp_path / "kafka")

    with pytest.raises(PySparkException, match=r"offsets \[60, 122\) are missing"):
        load(spark, path, subscribe="payments").count()
    assert load(spark, path, subscribe="payments", failOnDataLoss="false").count() == 60


@pytest.mark.needs_spark("a Connect client has no RDDs, whose partitions are counted")
def test_slices_cut_a_partition_into_tasks(spark: SparkSession, example_data: str) -> None:
    """`maxBytesPerPartition` gives more tasks than partitions, and the same rows."""
    small = load(spark, example_data, subscribe="orders", maxBytesPerPartition="1500")
    whole = load(spark, example_data, subscribe="orders", maxBytesPerPartition="0")

    assert whole.rdd.getNumPartitions() == 3
    assert small.rdd.getNumPartitions() > 3
    assert sorted(whole.collect()) == sorted(small.collect())


@pytest.mark.needs_spark("Sail passes no list of paths; the option paths does")
def test_partition_directories_and_files_are_paths_too(
    spark: SparkSession, example_data: str
) -> None:
    """The paths are `load([...])`, a partition directory, one file, and a file URI."""
    both = spark.read.format("segmentlog").load(
        [f"{example_data}/orders-0", Path(example_data, "orders-2").as_uri()]
    )
    one = load(spark, f"{example_data}/orders-1/00000000000000000000.log")

    assert {0: 335, 2: 248} == dict(both.groupBy("partition").count().collect())
    assert {1: 317} == dict(one.groupBy("partition").count().collect())


def test_a_path_that_is_no_log_directory_is_explained(spark: SparkSession, tmp_path: Path) -> None:
    """A mistyped path is an error, and not an empty result."""
    with pytest.raises(PySparkException, match="no such file or directory"):
        load(spark, str(tmp_path / "gone")).count()
    with pytest.raises(PySparkException, match="neither a directory named"):
        load(spark, str(tmp_path)).count()


def test_tables_can_be_made_in_sql(spark: SparkSession, example_data: str) -> None:
    """`USING segmentlog` accepts options in any case."""
    spark.sql(
        "CREATE TEMPORARY VIEW orders_log USING segmentlog "
        f"OPTIONS (PATH '{example_data}', SUBSCRIBE 'orders')"
    )
    (row,) = spark.sql("SELECT count(*) AS n, max(offset) AS top FROM orders_log").collect()

    assert (900, 334) == (row.n, row.top)


def test_damage_in_a_task_names_file_byte_and_offset(
    spark: SparkSession, example_data: str, tmp_path: Path
) -> None:
    """The message passes through a Spark task."""
    partition = tmp_path / "orders-0"
    partition.mkdir()
    data = bytearray(Path(example_data, "orders-0", "00000000000000000000.log").read_bytes())
    data[100] ^= 1
    (partition / "00000000000000000000.log").write_bytes(data)

    with pytest.raises(PySparkException, match="ChecksumMismatchError") as caught:
        load(spark, str(partition)).collect()
    assert "batch at byte 0 (base offset 0)" in str(caught.value)
    assert str(partition) in str(caught.value)


def test_damage_is_left_out_when_asked(
    spark: SparkSession, example_data: str, tmp_path: Path
) -> None:
    """All rows are read except those of the bad batch."""
    partition = tmp_path / "orders-0"
    partition.mkdir()
    data = bytearray(Path(example_data, "orders-0", "00000000000000000000.log").read_bytes())
    (partition / "00000000000000000000.log").write_bytes(data)
    intact = load(spark, str(partition)).count()
    data[100] ^= 1
    (partition / "00000000000000000000.log").write_bytes(data)
    n_lost = int.from_bytes(data[57:61], "big")

    assert intact - n_lost == load(spark, str(partition), onCorruptBatch="skip").count()


def test_a_batch_beyond_the_bound_is_refused_in_a_task(
    spark: SparkSession, example_data: str
) -> None:
    """The bound reaches the tasks. The example data has compressed batches."""
    with pytest.raises(PySparkException, match="inflate beyond 100 bytes"):
        load(spark, example_data, maxInflatedBatchBytes="100").collect()


@pytest.mark.needs_spark("Sail plans each query of a data frame again")
def test_a_data_frame_keeps_the_ends_of_its_first_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark plans a loaded path once, so later queries and views see the same records."""
    write(tmp_path, 5)
    frame = load(spark, str(tmp_path))
    frame.createOrReplaceTempView("kept")
    write(tmp_path, 5)
    assert 10 == frame.count()
    write(tmp_path, 5)
    twice = frame.select("offset").union(frame.select("offset"))
    if not IS_41:  # it plans each query
        assert [15, 30, 15] == [frame.count(), twice.count(), spark.table("kept").count()]
        return
    assert [10, 20, 10] == [frame.count(), twice.count(), spark.table("kept").count()]
    assert 15 == load(spark, str(tmp_path)).count()


@pytest.mark.needs_spark("a Connect client has no RDDs, whose partitions are counted")
def test_a_data_frame_that_is_bound_late_sees_new_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The behaviour is that of `kafka`, also for views, and if several tasks read a partition."""
    write(tmp_path, 6)
    frames = [
        load(spark, str(tmp_path), lateBinding="true", minPartitions="3"),
        load(spark, str(tmp_path), lateBinding="true"),
        load(spark, str(tmp_path), lateBinding="true", endingOffsets='{"t":{"0":6}}'),
    ]
    frames[1].createOrReplaceTempView("late")

    assert [6, 6, 6] == [frame.count() for frame in frames]
    assert 3 == frames[0].rdd.getNumPartitions()
    write(tmp_path, 4)
    assert [10, 10, 6] == [frame.count() for frame in frames]
    assert 10 == spark.table("late").count()


@pytest.mark.slow
def test_a_data_frame_joined_with_itself_and_in_a_union(
    spark: SparkSession, example_data: str
) -> None:
    """A join matches each row with itself once, and a union has each row twice."""
    frame = load(spark, example_data, subscribe="orders", lateBinding="true", minPartitions="7")
    frame = frame.select("partition", "offset")
    joined = frame.alias("a").join(frame.alias("b"), ["partition", "offset"])
    times = frame.union(frame).groupBy("partition", "offset").count().groupBy("count").count()

    assert joined.count() == 900
    assert [(2, 900)] == [tuple(row) for row in times.collect()]


def test_a_read_by_time(spark: SparkSession, example_data: str) -> None:
    """In each partition, the rows are those that a filter on the column keeps."""
    everything = load(spark, example_data, subscribe="orders").select(
        "partition", "offset", functions.unix_millis("timestamp").alias("ms")
    )
    by_partition: dict[int, list[tuple[int, int]]] = {}
    for row in everything.sort("partition", "offset").collect():
        by_partition.setdefault(row.partition, []).append((row.offset, row.ms))
    middle = by_partition[0][100][1]
    expected = {
        each: [at for at, _ in rows if at >= next(at for at, ms in rows if ms >= middle)]
        for each, rows in by_partition.items()
    }

    for value in (str(middle), datetime.fromtimestamp(middle / 1000, UTC).isoformat()):
        found = load(spark, example_data, subscribe="orders", startingTimestamp=value)
        rows = (
            found.groupBy("partition").agg(functions.min("offset"), functions.count("*")).collect()
        )
        assert {each: (at[0], len(at)) for each, at in expected.items()} == {
            row[0]: (row[1], row[2]) for row in rows
        }
    rest = load(spark, example_data, subscribe="orders", endingTimestamp=str(middle)).count()
    assert 900 == rest + sum(map(len, expected.values()))


@pytest.mark.needs_spark("a Connect client has no RDDs, whose partitions are counted")
def test_as_many_tasks_as_asked_for(spark: SparkSession, example_data: str) -> None:
    """Three partitions are read by six tasks or more, and every row comes once."""
    whole = load(spark, example_data, subscribe="orders").select("partition", "offset")
    for options in ({"minPartitions": "6"}, {"maxRecordsPerPartition": "100"}):
        frame = load(spark, example_data, subscribe="orders", **options)

        assert frame.rdd.getNumPartitions() >= 6
        assert sorted(whole.collect()) == sorted(frame.select("partition", "offset").collect())


def test_a_table_sees_new_records_in_each_query(spark: SparkSession, tmp_path: Path) -> None:
    """The catalog plans each query again, so new partitions are read, too."""
    logs = tmp_path / "logs"
    write(logs, 5)
    spark.sql(f"CREATE TABLE planned USING segmentlog OPTIONS (path '{logs}')")
    try:
        assert 5 == spark.table("planned").count()
        write(logs, 3)
        write(logs, 2, topic="another")
        assert 10 == spark.table("planned").count()
    finally:
        spark.sql("DROP TABLE planned")


def test_a_timestamp_beyond_microseconds_is_named_with_its_record(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A producer wrote nanoseconds. The other columns can be read."""
    nanoseconds = 1_769_821_200_000_000_000
    partition = tmp_path / "t-0"
    partition.mkdir()
    records = [Record(7, 1000, None, b"v"), Record(8, nanoseconds, None, b"v")]
    (partition / "00000000000000000007.log").write_bytes(encode_batch(records))

    message = f"t-0: the record at offset 8 has timestamp {nanoseconds} ms"
    with pytest.raises(PySparkException, match=message):
        load(spark, str(tmp_path)).collect()
    found = spark.read.schema("offset bigint").format("segmentlog").load(str(tmp_path))
    assert [(7,), (8,)] == [tuple(row) for row in found.collect()]


class WatchedSource(SegmentLogDataSource):
    """The data source, which also returns numbers about the processes of its tasks."""

    @classmethod
    def name(cls) -> str:
        return "watched"

    def reader(self, schema: StructType) -> DataSourceReader:
        return HeapReader() if schema.names == ["partition"] else super().reader(schema)


class HeapReader(DataSourceReader):
    """A reader of the number of objects that the garbage collector ignores."""

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (gc.get_freeze_count(),)


@pytest.mark.slow
def test_garbage_collection_after_a_task_leaves_the_modules_alone(
    spark: SparkSession, example_data: str
) -> None:
    """Spark makes a Python worker collect after each task, which would visit all modules."""
    spark.dataSource.register(WatchedSource)
    reader = spark.read.format("watched")
    for _ in range(3):  # the second task of each worker freezes them
        assert 1062 == reader.load(example_data).count()
    frozen = reader.schema("partition int").load(example_data).collect()

    assert frozen[0].partition > 50_000
