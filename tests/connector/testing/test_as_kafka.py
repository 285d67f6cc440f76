"""Jobs that say ``format("kafka")`` run on log directories, in the classic session."""

import inspect
import json
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_segmentlog.spark_versions import TELLS_STREAMS
from pyspark_segmentlog.testing import as_kafka as begin
from segmentlog import OptionError
from segmentlog.testing.kafka_log import KafkaCluster, KafkaLog
from segmentlog.testing.topic_rows import assert_rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.needs_spark("covers streams and the JVM; `sail/test_as_kafka.py` is for Sail"),
]

SERVERS = "broker:9092"
LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="user" password="secret";'
)
PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
DOCUMENT = Path(__file__).parents[3] / "connector" / "docs" / "testing.md"


def count_values(spark: SparkSession, servers: str) -> None:
    """A job as users write it: nothing in it knows of log directories."""
    orders = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "orders")
        .option("kafka.security.protocol", "SASL_SSL")
        .option("kafka.sasl.mechanism", "PLAIN")
        .option("kafka.sasl.jaas.config", LOGIN)
        .option("groupIdPrefix", "counts")
        .load()
    )
    counts = orders.groupBy("key").count()
    (
        counts.select("key", F.to_json(F.struct("count")).alias("value"))
        .write.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", "counts")
        .option("kafka.acks", "all")
        .save()
    )


def test_a_batch_job_runs_unmodified(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any
) -> None:
    """It writes without a mode, which Spark's own sink takes for an append."""
    as_kafka(servers={SERVERS: kafka_log})
    kafka_log.write("orders", [{"key": key} for key in "abac"])
    count_values(spark, SERVERS)

    assert_rows(
        kafka_log.read("counts"),
        [
            {"key": "a", "value": {"count": 2}},
            {"key": "b", "value": {"count": 1}},
            {"key": "c", "value": {"count": 1}},
        ],
    )


def sum_values(spark: SparkSession, servers: str) -> None:
    """The job that the test in the document tests."""
    orders = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
    number = F.get_json_object(F.col("value").cast("string"), "$.n").cast("int")
    rows = orders.option("subscribe", "orders").load().groupBy("key").agg(F.sum(number).alias("n"))
    writer = rows.selectExpr("key", "to_json(struct(n)) AS value").write.format("kafka")
    writer.option("kafka.bootstrap.servers", servers).option("topic", "totals").save()


def test_the_test_of_the_document_passes(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any
) -> None:
    """The first block of Python is a test, of which only the job is left out."""
    block = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)[0]
    names: dict[str, Any] = {"assert_rows": assert_rows, "run_job": sum_values}
    exec(block, names)
    names["test_totals"](spark, kafka_log, as_kafka)

    assert 1 == len(kafka_log.read("totals"))


def copied(spark: SparkSession, checkpoint: Path, **trigger: Any) -> Any:
    """A stream from a topic to a topic, until it has read all."""
    stream = spark.readStream.format("KAFKA").options(
        **{"kafka.bootstrap.servers": SERVERS, "subscribe": "in", "startingOffsets": "earliest"}
    )
    query = (
        stream.load(maxOffsetsPerTrigger=2)
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("topic", "out")
        .option("checkpointLocation", str(checkpoint))
        .trigger(**trigger or {"availableNow": True})
        .start()
    )
    query.awaitTermination()
    return query


def test_a_stream_runs_unmodified_and_goes_on(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, tmp_path: Path
) -> None:
    """A second run continues at its checkpoint."""
    as_kafka({SERVERS: str(kafka_log.path)})
    kafka_log.write("in", ["a", "b", "c"])
    copied(spark, tmp_path / "checkpoint")
    kafka_log.write("in", ["d"])
    copied(spark, tmp_path / "checkpoint")

    assert ["a", "b", "c", "d"] == kafka_log.read("out").values()
    first_run = 1 if TELLS_STREAMS else 0  # its last micro-batch
    logged = (tmp_path / "checkpoint" / "offsets" / f"{first_run}").read_text().splitlines()
    assert {"in": {"0": 3}} == json.loads(logged[-1])


class Listening(StreamingQueryListener):
    """Keeps the progress of a query."""

    def __init__(self) -> None:
        self.progress: list[Any] = []
        self.has_ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        self.progress.append(event.progress)

    def onQueryTerminated(self, event: Any) -> None:
        self.has_ended.set()


@pytest.mark.thorough
def test_the_progress_is_that_of_sparks_source(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, tmp_path: Path
) -> None:
    """Descriptions, lags and numbers of rows, of a query and in a listener, also in their JSON."""
    as_kafka({SERVERS: kafka_log})
    kafka_log.write("in", ["a", "b", "c"], num_partitions=2, partition=1)
    kafka_log.create_topic("out", 2)  # the rows that are read name their partition
    listener = Listening()
    spark.streams.addListener(listener)
    try:
        query = copied(spark, tmp_path / "c")
        assert listener.has_ended.wait(60)
    finally:
        spark.streams.removeListener(listener)
    expected = [("1", "0.5", 2), ("0", "0.0", 1)]
    for progress in (query.recentProgress, listener.progress):
        with_rows = [each for each in progress if each.numInputRows]
        for each, (most, mean, n_rows) in zip(with_rows, expected, strict=True):
            metrics = {
                "minOffsetsBehindLatest": "0",
                "maxOffsetsBehindLatest": most,
                "avgOffsetsBehindLatest": mean,
            }
            assert metrics == each.sources[0].metrics
            assert "KafkaV2[Subscribe[in]]" == each["sources"][0]["description"]
            assert n_rows == each.sink.numOutputRows
            if progress is listener.progress:  # of Spark's source, without blanks
                end = each.sources[0].endOffset
                assert json.dumps(json.loads(end), separators=(",", ":")) == end
            table = "org.apache.spark.sql.kafka010.KafkaSourceProvider$KafkaTable"
            assert table == each.sink.description.partition("@")[0]
            document = json.loads(each.json)
            assert metrics == document["sources"][0]["metrics"]
            assert n_rows == document["sink"]["numOutputRows"]


@pytest.mark.slow
def test_a_stream_in_the_update_mode_is_written(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, tmp_path: Path
) -> None:
    """Spark refuses this mode for Python sinks, and its own sink takes it."""
    as_kafka({SERVERS: kafka_log})
    kafka_log.write("in", [{"key": "a"}, {"key": "b"}, {"key": "a"}])
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", SERVERS)
    counts = (
        stream.option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .load()
        .groupBy("key")
        .agg(F.count("*").cast("string").alias("value"))
    )
    writer = counts.writeStream.format("kafka").option("kafka.bootstrap.servers", SERVERS)
    writer.option("topic", "out").option("checkpointLocation", str(tmp_path / "c")).trigger(
        availableNow=True
    ).start(outputMode="update", queryName="counted").awaitTermination()

    assert_rows(kafka_log.read("out"), [{"key": "a", "value": "2"}, {"key": "b", "value": "1"}])


def test_options_stand_in_load_and_in_save(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any
) -> None:
    """The format may stand there, too, or after the options."""
    as_kafka({SERVERS: kafka_log})
    kafka_log.write("in", ["a"])
    options = {"kafka.bootstrap.servers": SERVERS, "subscribe": "in"}
    rows = spark.read.load(format="kafka", includeHeaders=True, **options)
    assert "headers" in rows.columns
    rows = spark.read.options(**options).format("kafka").load()
    to_kafka: dict[str, Any] = {
        "kafka.bootstrap.servers": SERVERS,
        "topic": "out",
        "includeHeaders": True,
    }
    rows.write.save(format="kafka", mode="append", **to_kafka)
    rows.write.options(**to_kafka).option("noSuchOption", "x").format("kafka").save()

    assert ["a", "a"] == kafka_log.read("out").values()


def test_columns_are_found_by_their_exact_names(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any
) -> None:
    """The first one counts, as with Spark's own sink; others may differ in their case alone."""
    as_kafka({SERVERS: kafka_log})
    for columns in (
        "'a' AS key, 'b' AS value, 1 AS value",
        "'A' AS Key, 'b' AS value, 'B' AS VALUE, 7 AS Partition, 'a' AS key",
    ):
        of_kafka(spark.sql(f"SELECT {columns}").write, topic="out").save()
    left = spark.sql("SELECT 'a' AS key, 'b' AS value")
    right = spark.sql("SELECT 'a' AS key, 'c' AS value")
    of_kafka(left.join(right, left.key == right.key).write, topic="out").save()

    assert [{"key": "a", "value": "b"}] * 3 == kafka_log.read("out").rows()


def test_options_of_a_stream_stand_before_the_format(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, tmp_path: Path
) -> None:
    """Options that Spark's own sink ignores are left out there, too."""
    as_kafka({SERVERS: kafka_log})
    kafka_log.write("in", ["a"])
    given: dict[str, Any] = {"kafka.bootstrap.servers": SERVERS, "noSuchOption": "x"}
    reader = spark.readStream.options(**given, subscribe="in", startingOffsets="earliest")
    writer = reader.format("kafka").load().writeStream.trigger(availableNow=True)
    writer = writer.options(**given, checkpointLocation=str(tmp_path / "c")).option("topic", "out")
    writer.format("kafka").start().awaitTermination()

    assert ["a"] == kafka_log.read("out").values()


def start_offsets(checkpoint: Path) -> dict:
    """The start that a checkpoint keeps, in the form of Spark's own source."""
    return json.loads((checkpoint / "sources" / "0" / "0").read_bytes().split(b"\n")[1])


@pytest.mark.slow
def test_queries_of_one_dataframe_have_separate_starts(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, tmp_path: Path
) -> None:
    """Each query starts at the end that the topic has then, without and with a checkpoint."""
    as_kafka({SERVERS: kafka_log})
    kafka_log.write("in", ["v1"])
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", SERVERS)
    rows = reader.option("subscribe", "in").load().selectExpr("string(value)")

    def start(name: str, **options: str) -> Any:
        return rows.writeStream.format("memory").queryName(name).options(**options).start()

    for name, expected in (("first", ["v2"]), ("second", ["v3"])):
        query = start(name)
        query.processAllAvailable()
        kafka_log.write("in", [expected[0]])
        query.processAllAvailable()
        query.stop()
        assert expected == [row.value for row in spark.table(name).collect()]
    started = [start(name, checkpointLocation=str(tmp_path / name)) for name in ("c1", "c2")]
    for query in started:
        query.processAllAvailable()
        query.stop()
    assert {"in": {"0": 3}} == start_offsets(tmp_path / "c1") == start_offsets(tmp_path / "c2")


@pytest.mark.slow
def test_the_checkpoint_comes_from_the_session(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, tmp_path: Path
) -> None:
    """A query with a name has the same checkpoint in each run; any other run has a new one.

    One writer may start several queries.
    """
    as_kafka({SERVERS: kafka_log})
    kafka_log.write("in", ["a"])
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", SERVERS)
    rows = reader.option("subscribe", "in").load(startingOffsets="earliest")

    def writer() -> Any:
        made = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", SERVERS)
        return made.option("topic", "out").trigger(availableNow=True)

    without_name = writer()
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "checkpoints"))
    try:
        for _ in range(2):
            writer().start(queryName="named").awaitTermination()
            without_name.start().awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")

    assert ["a", "a", "a"] == kafka_log.read("out").values()
    found = [*(tmp_path / "checkpoints").iterdir()]
    assert (3, True) == (len(found), tmp_path / "checkpoints" / "named" in found)
    assert [{"in": {"0": 0}}] * 3 == [start_offsets(each) for each in found]


def test_a_dataframe_sees_later_records(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any
) -> None:
    """Partitions are found, and ends bound, when a task starts, as by Spark's own source."""
    as_kafka({SERVERS: kafka_log})
    kafka_log.write("in", ["a"])
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", SERVERS)
    rows = reader.option("subscribePattern", "in.*").load().where("offset < 2")
    assert 1 == rows.count()
    kafka_log.write("in", ["b"])
    kafka_log.add_partitions("in", 2)
    kafka_log.write("in", ["c"], partition=1)
    kafka_log.write("in.2", ["d"])

    assert 4 == rows.count()


def test_several_servers_have_directories_of_their_own(
    spark: SparkSession, kafka_cluster: KafkaCluster, as_kafka: Any
) -> None:
    """One known name of a list is enough; blanks do not matter."""
    for name in ("eu:9092", "us:9092"):
        kafka_cluster.server(name).write("t", [name])
    as_kafka(kafka_cluster)

    def values(servers: str) -> list[str]:
        rows = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
        return [
            bytes(row.value).decode() for row in rows.option("subscribe", "t").load().collect()
        ]

    assert ["eu:9092"] == values("eu:9092")
    assert ["us:9092"] == values(" us2:9092, us:9092 ")
    with pytest.raises(OptionError, match="as_kafka has eu:9092, us:9092"):
        values("asia:9092")
    as_kafka({"a:9092, b:9092": kafka_cluster["eu:9092"]})
    assert ["eu:9092"] == values("b:9092,a:9092") == values("b:9092")


@pytest.mark.parametrize(
    "of", [lambda log: log, str, lambda log: {b"x": log}, lambda _: {"x": None}]
)
def test_servers_that_are_no_dictionary_of_directories_are_refused(
    kafka_log: KafkaLog, of: Any
) -> None:
    """The error shows the right call, and nothing is replaced."""
    with pytest.raises(OptionError, match=r"as_kafka\(\{'broker:9092': kafka_log\}\)"):
        begin(of(kafka_log))
    with begin({SERVERS: str(kafka_log.path)}) as begun:
        assert {SERVERS: str(kafka_log.path)} == begun.servers


def test_inner_calls_have_precedence_and_all_of_them_end(
    spark: SparkSession, kafka_cluster: KafkaCluster
) -> None:
    """After the last one, `format("kafka")` is Spark's own again."""
    before = type(spark.read).format
    first, second = kafka_cluster.server("first"), kafka_cluster.server("second")
    first.write("t", ["outer"])
    second.write("t", ["inner"])

    def value() -> str:
        rows = spark.read.format("kafka").option("kafka.bootstrap.servers", "x")
        return bytes(rows.option("subscribe", "t").load().first().value).decode()

    with begin({"x": first}):
        with begin({"x": second}) as inner:
            assert "inner" == value()
        inner.stop()
        assert "outer" == value()
    assert type(spark.read).format is before


def test_other_formats_are_as_before(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, tmp_path: Path
) -> None:
    """Options, modes and schemas reach them."""
    as_kafka({SERVERS: kafka_log})
    rows = spark.createDataFrame([("a", 1), ("b", 2)], "k string, n int")
    path = str(tmp_path / "rows.csv")
    rows.write.format("csv").option("header", True).mode("overwrite").save(path)
    rows.write.mode("append").options(header=True).csv(path)
    found = spark.read.format("csv").schema("k string, n int").options(header="true").load(path)

    assert {("a", 1), ("b", 2)} == {tuple(row) for row in found.collect()}
    assert 4 == spark.read.csv(path, header=True).count()
    assert 4 == spark.read.option("header", True).csv(path).count()
    assert 4 == spark.read.format("kafka").option("header", True).csv(path).count()
    assert 4 == spark.read.options(header=True, sep=",").load(path, format="csv").count()


@pytest.mark.slow
def test_streams_of_other_formats_are_as_before(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, tmp_path: Path
) -> None:
    """Options reach them, whether their format is named or not."""
    as_kafka({SERVERS: kafka_log})
    spark.range(3).write.mode("append").parquet(str(tmp_path / "in"))
    reader = spark.readStream.option("maxFilesPerTrigger", "1").schema("id bigint")
    rows = reader.load(str(tmp_path / "in"))  # by default, the format is parquet
    counts: list[int] = []
    writer = rows.writeStream.foreachBatch(lambda batch, _: counts.append(batch.count()))
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    writer.start().awaitTermination()

    assert 3 == sum(counts)
    assert (tmp_path / "c" / "commits").exists()


@pytest.mark.parametrize(
    "use",
    [
        lambda spark, _: spark.sql("CREATE TABLE t USING kafka OPTIONS (subscribe 'a')"),
        lambda spark, _: spark.sql("create temporary view t\nusing `Kafka`"),
        lambda spark, _: spark.sql("create table t comment 'as it is' using kafka as select 1"),
        lambda spark, _: spark.sql(f"create table t using {PROVIDER.replace('.', '`.`')}"),
        lambda spark, _: spark.catalog.createTable("t", source="kafka"),
        lambda spark, _: spark.catalog.createTable("t", source=PROVIDER),
        lambda _, rows: rows.writeTo("t").using("kafka").create(),
        lambda _, rows: rows.write.saveAsTable("t", format="kafka"),
        lambda _, rows: rows.write.format("kafka").saveAsTable("t"),
    ],
)
def test_a_use_that_cannot_be_covered_is_refused(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, use: Any
) -> None:
    """The error says what to write instead."""
    as_kafka({SERVERS: kafka_log})
    with pytest.raises(OptionError, match=r"format\('kafka'\)"):
        use(spark, spark.range(1))


def test_words_of_other_statements_are_not_refused(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any
) -> None:
    """Only a statement that makes a table or a view has a format."""
    as_kafka({SERVERS: kafka_log})

    assert "using kafka" == spark.sql("SELECT 'using kafka' AS text -- using kafka").first().text
    for text in (
        "create or replace temp view v as select 'made using kafka ' as text",
        "create or replace temp view v comment 'using kafka ' as select 'made using kafka ' text",
        "create or replace temp view v /* using kafka */ as select 'made using kafka ' text",
    ):
        spark.sql(text)
        assert "made using kafka " == spark.table("v").first().text
    spark.catalog.dropTempView("v")


def test_a_stream_into_a_table_of_kafka_is_refused(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any
) -> None:
    """The error says what to write instead."""
    as_kafka({SERVERS: kafka_log})
    writer = spark.readStream.format("rate").load().writeStream
    with pytest.raises(OptionError, match=r"start\(\)"):
        writer.toTable("t", format="kafka")


READS: list[tuple[dict, str]] = [
    ({}, "One of the following options must be specified for Kafka source"),
    ({"subscribe": "a", "assign": "{}"}, "Only one of the following options can be specified"),
    ({"subscribe": " , "}, "No topics to subscribe to"),
    ({"subscribe": "a", "minPartitions": "0"}, "minPartitions must be positive"),
    ({"subscribe": "a", "kafka.auto.offset.reset": "x"}, "'auto.offset.reset' is not supported"),
    ({"subscribe": "a", "kafka.key.deserializer": "x"}, "'key.deserializer' is not supported"),
]


@pytest.mark.parametrize(("options", "message"), READS)
def test_options_that_the_source_refuses_are_refused(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, options: dict, message: str
) -> None:
    """Class and message are those of Spark, in batches and in streams."""
    as_kafka({SERVERS: kafka_log})
    readers: list[Any] = [spark.read, spark.readStream]
    for reader in readers:
        given = {"kafka.bootstrap.servers": SERVERS, **options}
        with pytest.raises(IllegalArgumentException, match=message):
            reader.format("kafka").options(**given).load()


def test_a_schema_and_modes_are_refused(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any
) -> None:
    """Spark's own source and sink refuse them with these words."""
    as_kafka({SERVERS: kafka_log})
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", SERVERS)
    with pytest.raises(AnalysisException, match="user-specified: value binary, actual: key"):
        reader.schema("value binary").option("subscribe", "a").load()
    rows: DataFrame = spark.createDataFrame([("a",)], "value string")
    writer = rows.write.format("kafka").option("kafka.bootstrap.servers", SERVERS)
    for mode in ("overwrite", "ignore"):
        with pytest.raises(AnalysisException, match="not allowed for Kafka"):
            writer.mode(mode).save()
    with pytest.raises(IllegalArgumentException, match="must be specified"):
        rows.write.format("kafka").option("topic", "t").save()


def of_kafka(builder: Any, **options: Any) -> Any:
    """A reader or a writer with the format and the servers."""
    given = {"kafka.bootstrap.servers": SERVERS, **options}
    return builder.format("kafka").options(**given)


@pytest.mark.slow
def test_threads_of_a_job_read_and_write(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, tmp_path: Path
) -> None:
    """Those of a function of micro-batches, too; they have no active session, and get none."""
    as_kafka({SERVERS: kafka_log})
    kafka_log.write("in", ["a", "b"])
    sessions = getattr(spark._jvm, "org.apache.spark.sql.classic.SparkSession")

    def copy(rows: DataFrame, topic: str) -> bool:
        of_kafka(rows.select("value").write, topic=topic).save()
        return bool(sessions.getActiveSession().isDefined())

    def take(rows: DataFrame, _: int) -> None:
        with ThreadPoolExecutor(2) as pool:
            assert [False] * 2 == list(pool.map(copy, [rows] * 2, ["out-a", "out-b"]))

    def job() -> bool:
        stream = of_kafka(spark.readStream, subscribe="in", startingOffsets="earliest").load()
        writer = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()
        return copy(of_kafka(spark.read, subscribe="in").load(), "out-c")

    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(job).result()
    assert [["a", "b"]] * 3 == [kafka_log.read(f"out-{each}").values() for each in "abc"]


def test_the_class_of_the_source_and_the_default_format_are_found(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any
) -> None:
    """A class has one case; Spark does not find it by another one."""
    as_kafka({SERVERS: kafka_log})
    kafka_log.write("in", ["a"])
    options = {"kafka.bootstrap.servers": SERVERS, "subscribe": "in"}

    assert 1 == spark.read.format(PROVIDER).options(**options).load().count()
    assert 1 == spark.read.load(format=PROVIDER, **options).count()
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        spark.read.format(PROVIDER.lower()).options(**options).load()
    spark.conf.set("spark.sql.sources.default", "kafka")
    try:
        spark.read.load(**options).write.save(topic="out", **options)
    finally:
        spark.conf.unset("spark.sql.sources.default")
    assert ["a"] == kafka_log.read("out").values()


_HAS_REAL_TIME = "realTime" in inspect.signature(DataStreamWriter.trigger).parameters
_REAL_TIME = pytest.mark.skipif(not _HAS_REAL_TIME, reason="this version of Spark has none")


@pytest.mark.parametrize(
    "trigger",
    [{"continuous": "1 second"}, pytest.param({"realTime": "5 seconds"}, marks=_REAL_TIME)],
)
def test_triggers_without_micro_batches_are_refused(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, tmp_path: Path, trigger: dict
) -> None:
    """The error says what to do; it is the same for a query that only reads or only writes."""
    as_kafka({SERVERS: kafka_log})
    kafka_log.create_topic("in")
    kafka = of_kafka(spark.readStream, subscribe="in").load()
    for rows in (kafka, spark.readStream.format("rate").load().selectExpr("string(value)")):
        writer = of_kafka(rows.writeStream, topic="out", checkpointLocation=str(tmp_path))
        with pytest.raises(OptionError, match=r"as_kafka runs .* trigger\(availableNow=True\)"):
            writer.trigger(**trigger).start()
    with pytest.raises(OptionError, match="as_kafka runs"):
        kafka.writeStream.format("console").trigger(**trigger).start()


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_a_sink_needs_a_checkpoint(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, mode: str
) -> None:
    """Spark refuses a stream into kafka without it; a function and other sinks need none."""
    as_kafka({SERVERS: kafka_log})
    kafka_log.create_topic("in")
    rows = of_kafka(spark.readStream, subscribe="in").load()
    if mode != "append":
        rows = rows.groupBy("key").agg(F.count("*").cast("string").alias("value"))
    with pytest.raises(AnalysisException, match=r"^checkpointLocation must be specified"):
        of_kafka(rows.writeStream, topic="out").outputMode(mode).start()


@pytest.mark.slow
def test_rows_come_again_after_a_rolled_back_checkpoint(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, tmp_path: Path
) -> None:
    """Spark's own sink writes a repeated micro-batch at least once, and does not know it."""
    as_kafka({SERVERS: kafka_log})
    kafka_log.write("in", ["a"])
    copied(spark, tmp_path / "c")
    shutil.copytree(tmp_path / "c", tmp_path / "backup")
    kafka_log.write("in", ["b"])
    copied(spark, tmp_path / "c")
    shutil.rmtree(tmp_path / "c")
    copied(spark, tmp_path / "backup")

    assert ["a", "b", "b"] == kafka_log.read("out").values()
