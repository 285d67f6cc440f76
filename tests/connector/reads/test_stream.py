"""Streams of log directories: ``readStream`` with its triggers, restarts and refusals."""

import json
import os
import random
import re
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plain_writes import write
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

import segmentlog
from pyspark_segmentlog.source import SegmentLogDataSource
from pyspark_segmentlog.spark_versions import TELLS_STREAMS
from segmentlog.errors import SegmentLogError

pytestmark = [
    pytest.mark.spark,
    pytest.mark.needs_spark("Sail runs no streams of Python data sources"),
]


def rows(*numbers: int, partition: int = 0) -> pa.Table:
    """Rows whose values are numbers, for one partition."""
    return pa.table(
        {
            "value": pa.array([b"%d" % each for each in numbers], pa.binary()),
            "partition": pa.array([partition] * len(numbers), pa.int32()),
        }
    )


#: Whether a run with limits is one micro-batch: each run is then several.
BATCH_BY_BATCH = not TELLS_STREAMS


class Query:
    """A query on one checkpoint, which keeps the numbers of each of its micro-batches."""

    def __init__(self, spark: SparkSession, directory: Path, **options: Any) -> None:
        self.logs, self.checkpoint = directory / "logs", directory / "checkpoint"
        self._spark = spark
        self._options = {"startingOffsets": "earliest", "subscribe": "t", **options}
        self.batches: dict[int, list[int]] = {}

    def reader(self, **options: Any) -> DataStreamReader:
        """The source with its options."""
        reader = self._spark.readStream.format("segmentlog")
        given = {**self._options, **options}  # Spark 4.2 does not take None
        return reader.options(**{name: each for name, each in given.items() if each is not None})

    def _take(self, frame: DataFrame, number: int) -> None:
        taken = frame.select(F.col("value").cast("string").cast("int")).collect()
        self.batches[number] = sorted(value for (value,) in taken)

    def start(self, options: dict[str, Any] | None = None, **trigger: Any) -> StreamingQuery:
        """Start the query, by default until it has read all."""
        writer = self.reader(**(options or {})).load(str(self.logs)).writeStream
        writer = writer.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, options: dict[str, Any] | None = None, **trigger: Any) -> StreamingQuery:
        """Run the query to its end."""
        before = -1
        while before < len(self.batches):
            before = len(self.batches) if BATCH_BY_BATCH else 1 << 30
            query = self.start(options, **trigger)
            query.awaitTermination()
        return query

    def forget(self, number: int) -> None:
        """Leave the checkpoint as if the driver had died before Spark's commit of a batch."""
        for name in (f"{number}", f".{number}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def logged(self, number: int) -> dict[str, dict[str, int]]:
        """The offset to which a micro-batch reads."""
        found = (self.checkpoint / "offsets" / str(number)).read_text().splitlines()[2]
        offsets: dict[str, dict[str, int]] = json.loads(found)
        return offsets


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    """A query on fifteen records in three partitions."""
    query = Query(spark, tmp_path)
    write(query.logs, rows(*range(15)), num_partitions=3)
    return query


def test_restarts_neither_lose_nor_repeat(query: Query) -> None:
    """Batches that Spark has not noted as committed are repeated with the same rows."""
    query.run({"maxOffsetsPerTrigger": 5})
    assert {0: [*range(5)], 1: [*range(5, 10)], 2: [*range(10, 15)]} == query.batches
    topic_id = segmentlog.open_log_dir(query.logs).log("t", 0).topic_id
    assert {"t": {"0": 10, "1": 0, "2": 0}, f"t@{topic_id}": {}} == query.logged(1)

    query.forget(2)
    write(query.logs, rows(15, 16), rows(17, partition=2))
    repeated, query.batches = query.batches.pop(2), {}
    query.run()
    assert {2: repeated, 3: [15, 16, 17]} == query.batches

    query.batches = {}
    query.run()
    assert {} == query.batches, "nothing is new"


@pytest.mark.slow
@pytest.mark.skipif(BATCH_BY_BATCH, reason="this version of Spark does not tell the trigger")
def test_once_ignores_limits(query: Query) -> None:
    """``Trigger.Once`` takes all in one micro-batch, as with ``kafka``."""
    query.run({"maxOffsetsPerTrigger": 5, "minOffsetsPerTrigger": 5}, once=True)

    assert {0: [*range(15)]} == query.batches


def test_a_running_query_follows_the_log(query: Query) -> None:
    """Records, segments, partitions and topics that come while the query runs are read once."""
    running = query.start(
        {"subscribePattern": "t|u", "subscribe": None}, processingTime="0 seconds"
    )
    small = segmentlog.ProducerConfig(topic_config=segmentlog.TopicConfig(segment_bytes=200))
    number = 15
    try:
        running.processAllAvailable()
        for topic, partition in (("t", 0), ("t", 2), ("u", 0), ("u", 1), ("t", 0)):
            table = rows(*range(number, number + 4), partition=partition)
            new = {} if topic == "t" or partition else {"num_partitions": 2}
            write(query.logs, table, topic=topic, config=small, **new)
            number += 4
            running.processAllAvailable()
        if not BATCH_BY_BATCH:  # where the progress has the latest offset
            progress = running.lastProgress["sources"][0]
            assert json.loads(progress["endOffset"]) == json.loads(progress["latestOffset"])
        assert running.lastProgress["numInputRows"] == 4
    finally:
        running.stop()

    values = Counter(value for batch in query.batches.values() for value in batch)
    assert Counter(range(number)) == values
    # The partitions of a new topic may be seen before its records: a micro-batch without rows.
    assert sum(map(bool, query.batches.values())) == 6


@pytest.mark.slow
def test_an_idle_query_begins_no_batch(query: Query) -> None:
    """A broker rewrites its checkpoints with equal bytes; partition 10 follows partition 2."""
    write(query.logs, rows(15), topic="a", num_partitions=12)
    running = query.start({"subscribe": "a,t"}, processingTime="0 seconds")
    try:
        running.processAllAvailable()
        for name in ("replication-offset-checkpoint", "log-start-offset-checkpoint"):
            if (query.logs / name).exists():
                shutil.copyfile(query.logs / name, query.logs / "draft")
                (query.logs / "draft").rename(query.logs / name)
        running.processAllAvailable()
        running.processAllAvailable()
    finally:
        running.stop()

    assert [0] == [*query.batches]
    assert ["a", "t"] == [*query.logged(0)][:2]
    assert [str(each) for each in range(12)] == [*query.logged(0)["a"]]


@pytest.mark.slow
def test_a_restart_before_the_first_batch_looks_up_the_start_again(query: Query) -> None:
    """The driver dies before Spark plans batch 0: records that come meanwhile are missed.

    With `initialOffsetsLocation` none are.
    """
    place = {"initialOffsetsLocation": str(query.checkpoint / "sources" / "0")}
    for given in (place, {}):
        query.batches = {}
        shutil.rmtree(query.checkpoint, ignore_errors=True)
        options = {"startingOffsets": "latest", **given}
        query.run(options)
        for name in ("offsets", "commits"):
            shutil.rmtree(query.checkpoint / name)
        write(query.logs, rows(99))
        query.run(options)
        assert {0: [99] if given else []} == query.batches


@pytest.mark.thorough
def test_a_repeated_first_batch_without_its_start_says_so(query: Query) -> None:
    """Batch 0 is planned, and not committed. Its start is looked up again, after its end."""
    write(query.logs, rows(99))
    query.run({"startingOffsets": '{"t": {"0": 15, "1": 0, "2": 0}}'})
    assert {0: [99]} == query.batches
    query.forget(0)
    write(query.logs, rows(100))
    with pytest.raises(StreamingQueryException, match=r"offset 17.* ends at 16.*initialOffsets"):
        query.run({"startingOffsets": "latest"})


@pytest.mark.thorough
def test_a_shorter_log_is_an_error(query: Query) -> None:
    """The error is one sentence with both offsets, and without our traceback."""
    query.run()
    shutil.rmtree(query.logs)
    write(query.logs, rows(1, 2), num_partitions=3)
    with pytest.raises(StreamingQueryException) as caught:
        query.run()
    text = str(caught.value)

    assert re.search("StreamOffsetError: t-0: .* stands at offset 15, and the log ends at 2", text)
    assert "UnboundLocalError" not in text
    assert "/pyspark_segmentlog/" not in text
    query.run({"failOnDataLoss": "false"})
    write(query.logs, rows(3))
    query.batches = {}
    query.run()
    assert [3] in query.batches.values()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingOffsets": "latest"}, "'endingOffsets' is 'latest'; a stream has no end"),
        ({"endingOffsetsByTimestamp": '{"t":{"0":5}}'}, "a stream has no end"),
        ({"maxOffsetsPerTrigger": 5, "minOffsetsPerTrigger": 6}, "maxOffsetsPerTrigger is 5"),
        (
            {"maxTriggerDelay": "soon", "minOffsetsPerTrigger": "1"},
            "'maxTriggerDelay' is 'soon'; give a duration",
        ),
        ({"subscribe": "nothing"}, "holds no topic 'nothing'"),
        ({"startingOffsets": '{"t":{"0":5}}'}, "must name exactly the partitions"),
        ({"minPartitions": "1.0"}, "give a number from 1"),
        ({"kafka.enable.auto.commit": "true"}, "it is not supported"),
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "give only one of"),
    ],
)
def test_options_that_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    """Options are refused when the query starts, or already by `load`."""
    write(tmp_path, rows(1), num_partitions=3)
    given = {"startingOffsets": "earliest", "subscribe": "t", "path": str(tmp_path), **options}
    source = SegmentLogDataSource({name: str(value) for name, value in given.items()})
    with pytest.raises(SegmentLogError, match=re.escape(said)):
        source.streamReader(source.schema()).initialOffset()


def test_spark_shows_which_option_was_refused(query: Query) -> None:
    """Spark's own runner of streams fails after an error of the source, and would show that."""
    for options, said in (
        ({"endingOffsets": "latest"}, "'endingOffsets' is 'latest'; a stream has no end"),
        ({"subscribe": "nothing"}, "holds no topic 'nothing'"),
    ):
        with pytest.raises(Exception, match=said) as caught:
            query.run(options)
        assert "UnboundLocalError" not in str(caught.value)


@pytest.mark.slow
def test_columns_may_be_chosen(query: Query) -> None:
    """A schema of the user's, strings and headers, as in batch queries."""
    found: list[list[Any]] = []
    stream = query.reader(strings="true", includeHeaders="true").load(str(query.logs))
    few = query.reader(strings="true").schema("value string, offset bigint").load(str(query.logs))
    both = stream.select("value", "offset").union(few)
    running = both.writeStream.foreachBatch(lambda frame, _: found.append(frame.collect()))
    running.trigger(availableNow=True).start().awaitTermination()

    assert "headers" in stream.columns
    assert Counter({(str(i), i): 2 for i in range(15)}) == Counter(
        tuple(row) for batch in found for row in batch
    )


@pytest.mark.slow
def test_a_union_advances_both_of_its_sources(query: Query) -> None:
    """A source that has no more rows stays where it is, and a self-join reads one log twice."""
    write(query.logs, rows(*range(100, 107)), topic="u")
    found: list[list[int]] = []
    few = query.reader(maxOffsetsPerTrigger=10).load(str(query.logs))
    more = query.reader(maxOffsetsPerTrigger=3, subscribe="u").load(str(query.logs))
    running = few.union(more).writeStream.foreachBatch(
        lambda frame, _: found.append([int(row.value) for row in frame.collect()])
    )
    running.trigger(availableNow=True).start().awaitTermination()

    assert [13, 8, 1] == [*map(len, found)]
    assert [*range(15), *range(100, 107)] == sorted(number for batch in found for number in batch)


@pytest.mark.slow
def test_event_time_and_state(query: Query) -> None:
    """A watermark on `timestamp` closes windows, and null keys and values pass."""
    logs = query.logs.parent / "timed"
    keep = segmentlog.ProducerConfig(use_timestamps=True)
    for minute in (0, 0, 1, 5):
        time = pa.array([minute * 60_000_000], pa.timestamp("us", "UTC"))
        write(logs, rows(1).append_column("timestamp", time), config=keep)
    write(logs, pa.table({"value": pa.nulls(1, pa.binary())}), topic="t")
    counts = Counter[int]()
    stream = query.reader(maxOffsetsPerTrigger=1).load(str(logs))
    windows = (
        stream.where("value is not null")
        .withWatermark("timestamp", "1 minute")
        .groupBy(F.window("timestamp", "1 minute"))
        .count()
    )
    running = windows.writeStream.outputMode("append").foreachBatch(
        lambda frame, _: counts.update(row["count"] for row in frame.collect())
    )
    running.trigger(availableNow=True).start().awaitTermination()

    assert {2: 1, 1: 1} == counts


@pytest.mark.slow
def test_progress_is_tracked_asynchronously(query: Query) -> None:
    """The source goes with Spark's asynchronous progress tracking."""
    stream = query.reader().load(str(query.logs))
    writer = stream.writeStream.format("noop").option("asyncProgressTrackingEnabled", "true")
    writer = writer.option("asyncProgressTrackingCheckpointIntervalMs", 0)
    writer = writer.option("checkpointLocation", str(query.checkpoint))
    running = writer.trigger(processingTime="0 seconds").start()
    try:
        running.processAllAvailable()
        assert sum(each["numInputRows"] for each in running.recentProgress) == 15
    finally:
        running.stop()


@pytest.mark.slow
def test_many_micro_batches_give_the_rows_of_a_batch_query(
    spark: SparkSession, example_data: str, tmp_path: Path
) -> None:
    """Aborted transactions and control records leave gaps, and some micro-batches are empty."""
    for level in ("read_committed", "read_uncommitted"):
        options = {"subscribe": "payments", "kafka.isolation.level": level}
        expected = spark.read.format("segmentlog").options(**options).load(example_data)
        found: list[tuple[int, int]] = []
        stream = spark.readStream.format("segmentlog").options(**options)
        stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 25)

        def take(frame: DataFrame, _: int, found: list[tuple[int, int]] = found) -> None:
            found += map(tuple, frame.select("partition", "offset").collect())

        running = stream.load(example_data).writeStream.foreachBatch(take)
        running.trigger(availableNow=True).start().awaitTermination()
        assert [*map(tuple, expected.select("partition", "offset").collect())] == sorted(found)


@pytest.mark.slow
def test_a_stream_of_a_connect_client(cluster: SparkSession, tmp_path: Path) -> None:
    """Tasks run in other processes than the driver; the sink is ours, too."""
    write(tmp_path / "logs", rows(*range(15)), num_partitions=3)
    stream = cluster.readStream.format("segmentlog").option("startingOffsets", "earliest")
    query = (
        stream.load(str(tmp_path / "logs"))
        .writeStream.format("segmentlog")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "copy"))
    )
    query.awaitTermination(60)

    copy = cluster.read.format("segmentlog").load(str(tmp_path / "copy"))
    assert [*range(15)] == sorted(int(row.value) for row in copy.select("value").collect())


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_topics_and_partitions_that_come_and_go(query: Query) -> None:
    """Random changes beside a running query, for `STRESS_SECONDS`.

    Records of topics that stay come once.  Records of topics that are deleted may be missed.
    """
    options = {"subscribe": None, "subscribePattern": "^(t|x)", "failOnDataLoss": "false"}
    draw, end = (
        random.Random(20),
        time.monotonic() + float(os.environ.get("STRESS_SECONDS", "300")),
    )
    number, kept, live = 15, [*range(15)], dict[str, int]()
    running = query.start(options, processingTime="0 seconds")
    try:
        while time.monotonic() < end:
            act = draw.random()
            topic = draw.choice(["t", *live])
            if act < 0.1:
                topic = f"x{number}"
                live[topic] = draw.randint(1, 4)
            elif act < 0.2 and live:
                topic = draw.choice([*live])
                segmentlog.delete_topic(query.logs, topic)
                del live[topic]
                continue
            numbers = [*range(number, number + draw.randint(1, 50))]
            number += len(numbers)
            n_partitions = live.get(topic, 3)
            table = rows(*numbers, partition=draw.randrange(n_partitions))
            there = topic in segmentlog.open_log_dir(query.logs).topics()
            write(
                query.logs,
                table,
                topic=topic,
                **({} if there else {"num_partitions": n_partitions}),
            )
            kept += numbers if topic == "t" else []
            if draw.random() < 0.05:
                running.stop()
                running = query.start(options, processingTime="0 seconds")
            assert running.isActive, running.exception()
        running.processAllAvailable()
    finally:
        running.stop()

    values = Counter(value for batch in query.batches.values() for value in batch)
    assert {1} == set(values.values()), "a record has come twice"
    assert set() == set(kept) - set(values), "a record has been lost"
