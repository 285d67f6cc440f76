"""Streams into log directories: ``writeStream`` with its modes, restarts and refusals."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import ONE, values
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType
from soundness import assert_tidy

import segmentlog
from pyspark_segmentlog.source import SegmentLogDataSource
from pyspark_segmentlog.writes.stream import SegmentLogStreamWriter, StreamedMessage
from segmentlog.errors import LogDirectoryError, OptionError
from segmentlog.txn.state import CommittedBatch, State
from segmentlog.writes import WriteJob

pytestmark = [
    pytest.mark.spark,
    pytest.mark.needs_spark("Sail runs no streams of Python data sources"),
]


class Stream:
    """A stream of text files into a topic; each file is a micro-batch.

    Parameters
    ----------
    directory : of all its files.
    rows : what the query does with the lines.
    """

    def __init__(
        self, spark: SparkSession, directory: Path, rows: Callable[[DataFrame], DataFrame]
    ) -> None:
        self.logs, self.checkpoint = directory / "logs", directory / "checkpoint"
        self._files = directory / "in"
        self._files.mkdir()
        self._rows, self._spark = rows, spark

    def add(self, *lines: object) -> Path:
        """A file with these lines, which is newer than the others."""
        number = len(os.listdir(self._files))
        path = self._files / f"{number}.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        os.utime(path, (number, number))
        return path

    def writer(self, mode: str = "append", **options: str | int) -> DataStreamWriter:
        """A query that ends when it has read the existing files."""
        lines = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._files))
        return (
            self._rows(lines)
            .writeStream.format("segmentlog")
            .outputMode(mode)
            .options(checkpointLocation=str(self.checkpoint), topic="t")
            .options(**options)
            .trigger(availableNow=True)
        )

    def run(self, mode: str = "append", **options: str | int) -> None:
        """Run the query to its end."""
        self.writer(mode, **options).start(str(self.logs)).awaitTermination()

    def fail(self, said: str, mode: str = "append", **options: str | int) -> None:
        """Run the query, which fails."""
        with pytest.raises(StreamingQueryException, match=said):
            self.run(mode, **options)

    def last_batch(self) -> int:
        """The last batch of which Spark knows that it was committed."""
        return max(int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*"))

    def forget(self, batch: int) -> None:
        """Leave the checkpoint as if the driver had died right after the sink's commit."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    """Lines that are the values of a topic with one partition."""
    return Stream(spark, tmp_path, lambda lines: lines)


def test_restarts_neither_lose_nor_repeat(stream: Stream) -> None:
    """A query continues from its checkpoint, and each batch is one commit under the query's id."""
    stream.add(1, 2)
    stream.add(3)
    stream.run()
    assert 2 == State.read(str(stream.logs)).sequence, "a batch has begun more than one commit"
    stream.add(4, 5)
    stream.run()

    assert [b"1", b"2", b"3", b"4", b"5"] == values(stream.logs)
    query = json.loads((stream.checkpoint / "metadata").read_text())["id"]
    [(name, (batch, _))] = State.read(str(stream.logs)).streams.items()
    assert (query, 2, 2) == (name, batch.number, batch.n_records)
    assert re.fullmatch("[0-9a-f-]{36}", batch.run)
    assert batch.run != query
    assert_tidy(stream.logs)

    # The driver dies between the commit and Spark's note of it: the batch is repeated.
    stream.forget(2)
    stream.run()
    assert 2 == stream.last_batch()
    assert [b"1", b"2", b"3", b"4", b"5"] == values(stream.logs)
    stream.add(6)
    stream.run()
    assert b"6" == values(stream.logs)[-1]

    # A source that does not repeat the rows of a batch.
    stream.forget(3)
    stream.add()  # a newer file, so that the name below is that of the fourth
    (stream.logs.parent / "in" / "3.txt").write_text("6\n7\n")
    os.utime(stream.logs.parent / "in" / "3.txt", (3, 3))
    stream.fail("batch 3 of query .* has 2 records and is not written.* with 1, by run")
    assert b"6" == values(stream.logs)[-1]
    assert_tidy(stream.logs)


@pytest.mark.slow
def test_a_checkpoint_that_was_rolled_back_is_an_error(stream: Stream) -> None:
    """Without the error, the sink would leave batches out; it once lost two of them so."""
    stream.add(1)
    stream.run()
    earlier = shutil.copytree(stream.checkpoint, stream.checkpoint.with_name("earlier"))
    stream.add(2)
    stream.add(3)
    stream.run()
    shutil.rmtree(stream.checkpoint)
    earlier.rename(stream.checkpoint)
    stream.add(4)

    stream.fail("StreamBatchError.*batch 1 of query .* batch 2 was committed last")
    assert [b"1", b"2", b"3"] == values(stream.logs)
    assert_tidy(stream.logs)


@pytest.mark.thorough
def test_complete_mode_appends_or_replaces_results(spark: SparkSession, tmp_path: Path) -> None:
    """Each result is appended, as by `kafka`; with deleteRecords it replaces the previous one."""
    stream = Stream(
        spark, tmp_path, lambda lines: lines.groupBy().count().selectExpr("string(count) value")
    )
    stream.add(1)
    stream.add(2, 3)
    stream.run("complete")
    assert [b"1", b"3"] == values(stream.logs)

    stream.add(4)
    stream.run("complete", deleteRecords="true")
    assert [b"4"] == values(stream.logs)
    stream.add(5)
    stream.fail("does not support Update mode", "update")
    assert [b"4"] == values(stream.logs)


def test_a_stream_writes_to_several_topics(spark: SparkSession, tmp_path: Path) -> None:
    """A batch without rows changes nothing, and the next may go to other topics."""

    def rows(lines: DataFrame) -> DataFrame:
        return lines.where("value != 'none'").selectExpr(
            "split(value, ' ')[0] topic", "split(value, ' ')[1] value"
        )

    stream = Stream(spark, tmp_path, rows)
    stream.add("a 1", "b 2")
    stream.add("none")
    stream.add("b 3")
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    query = (
        rows(lines)
        .writeStream.format("segmentlog")
        .queryName("by topic")
        .option("checkpointLocation", str(stream.checkpoint))
        .trigger(availableNow=True)
        .start(str(stream.logs))
    )
    query.awaitTermination()

    assert [b"1"] == values(stream.logs, "a")
    assert [b"2", b"3"] == values(stream.logs, "b")
    assert [2, 0, 1] == [each["sink"]["numOutputRows"] for each in query.recentProgress]
    assert 2 == State.read(str(stream.logs)).sequence, "an empty batch is a commit"
    assert_tidy(stream.logs)


def test_two_queries_write_to_one_topic(spark: SparkSession, tmp_path: Path) -> None:
    """Each has its own record, whatever their numbers; the option overrides the column `topic`."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        stream = Stream(
            spark, tmp_path / name, lambda lines: lines.selectExpr("value", "'other' topic")
        )
        stream.logs = tmp_path / "logs"
        stream.add(name)
        stream.run()

    assert [b"a", b"b"] == values(tmp_path / "logs")
    streams = State.read(str(tmp_path / "logs")).streams
    assert [0, 0] == [batch.number for batch, _ in streams.values()]


@pytest.mark.thorough
def test_a_query_of_which_all_tasks_fail_leaves_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark then aborts without a message, so without the token of the job."""
    stream = Stream(spark, tmp_path, lambda lines: lines.selectExpr("value", "99 partition"))
    stream.add(1)
    stream.fail("partition 99")

    assert [] == [path for path in stream.logs.glob("segmentlog.*") if path.suffix != ".state"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"txnAppId": "a", "txnVersion": 1}, "a stream numbers its batches by itself"),
        ({"topics": "t"}, "option 'topics' is 't'; there is no such option; give 'topic'"),
        ({"deleteRecords": "true"}, r'deleteRecords=true is for outputMode\("complete"\)'),
    ],
)
def test_options_of_a_stream_that_are_refused(
    tmp_path: Path, options: dict[str, str | int], said: str
) -> None:
    """They are refused before any file is created."""
    given = {"path": str(tmp_path / "logs"), "checkpointLocation": "/c", "topic": "t"}
    source = SegmentLogDataSource(given | {name: str(value) for name, value in options.items()})
    with pytest.raises(OptionError, match=said):
        source.streamWriter(SCHEMA, overwrite=False)

    assert not (tmp_path / "logs").exists()


def test_a_stream_without_its_checkpoint_is_refused(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """Spark's setting does not reach a sink."""
    stream.add(1)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "all"))
    try:
        lines = spark.readStream.text(str(tmp_path / "in"))
        query = lines.writeStream.format("segmentlog").option("topic", "t").start(str(stream.logs))
        with pytest.raises(StreamingQueryException, match="give it as an option of the query"):
            query.awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert not stream.logs.exists()


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("key string", {"topic": "t"}, "column 'value' is missing; the rows have: key"),
        ("value int", {"topic": "t"}, "column 'value' is int; it has to be string or"),
        ("value string, partition bigint", {"topic": "t"}, "column 'partition' is bigint"),
        ("value string, headers array<string>", {"topic": "t"}, "column 'headers' is array"),
        ("value string, topic int", {}, "column 'topic' is int"),
        ("value string", {}, "give the option topic"),
        ("value string", {"topic": "t", "kafka.value.serializer": "x"}, "it is not supported"),
        ("value string", {"topic": "t", "kafka.key.serializer": "x"}, "it is not supported"),
    ],
)
def test_columns_and_serializers_that_are_refused(
    spark: SparkSession, tmp_path: Path, columns: str, options: dict[str, str], said: str
) -> None:
    """The process that plans the first micro-batch refuses them, before anything is made."""
    given = {"path": str(tmp_path / "logs"), "checkpointLocation": "/c", **options}
    schema = spark.createDataFrame([], columns).schema
    with pytest.raises(OptionError, match=said):
        SegmentLogDataSource(given).streamWriter(schema, overwrite=False)

    assert not (tmp_path / "logs").exists()


SCHEMA = StructType().add("value", "string")


class Batch:
    """One micro-batch, as Spark's processes carry it out, without Spark."""

    def __init__(self, directory: Path) -> None:
        options = {"path": str(directory), "checkpointLocation": "/c", "topic": "t"}
        source = SegmentLogDataSource(options)
        # Spark pickles the source that it has made at the start of the query.
        self._pickled = cloudpickle.dumps(source)
        writer = source.streamWriter(SCHEMA, overwrite=False)
        assert isinstance(writer, SegmentLogStreamWriter)
        self.job = cloudpickle.loads(cloudpickle.dumps(writer))._job
        assert isinstance(self.job, WriteJob)

    def message(self, *texts: bytes, run: str = "run") -> StreamedMessage:
        """The message of a task that has staged these values."""
        stager = self.job.stager(0)
        stager.add(pa.record_batch({"value": pa.array(texts, pa.binary())}))
        return StreamedMessage(0, stager.finish(), self.job, ("query", run))

    def commit(self, number: int, message: StreamedMessage | None) -> None:
        """Commit in the second process, where `streamWriter` is called once more."""
        self._writer().commit([message], number)

    def abort(self, number: int, message: StreamedMessage | None) -> None:
        """Abort in that process."""
        self._writer().abort([message], number)

    def _writer(self) -> SegmentLogStreamWriter:
        writer = cloudpickle.loads(self._pickled).streamWriter(SCHEMA, overwrite=False)
        assert isinstance(writer, SegmentLogStreamWriter)
        return writer


def test_a_job_begins_only_where_tasks_are_planned(tmp_path: Path) -> None:
    """The process that commits makes a writer, too, and no job."""
    batch = Batch(tmp_path)
    batch.commit(0, batch.message(b"a"))

    assert [b"a"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_a_process_that_outlives_its_driver_commits_nothing(tmp_path: Path) -> None:
    """A killed driver's Python process was seen to commit five seconds later."""
    late = Batch(tmp_path)
    message = late.message(b"late")
    batch = Batch(tmp_path)
    with pytest.raises(LogDirectoryError, match="a later batch or run of its query has begun"):
        late.commit(0, message)
    late.abort(0, message)
    batch.commit(0, batch.message(b"a", b"b", run="next"))

    assert [b"a", b"b"] == values(tmp_path)
    assert CommittedBatch(0, "next", 2) == State.read(str(tmp_path)).streams["query"][0]
    assert_tidy(tmp_path)


def test_an_abort_without_messages_leaves_nothing(tmp_path: Path) -> None:
    """The job is found by the name of its stream; a job of nobody's stream stays."""
    with segmentlog.open_writer(tmp_path, "t") as writer:
        batch = Batch(tmp_path)
        batch.message(b"lost")
        batch.abort(0, None)
        writer.append(ONE)

    assert [b"v"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_a_batch_without_the_message_of_a_task_is_refused(tmp_path: Path) -> None:
    """Its rows would be lost."""
    batch = Batch(tmp_path)
    with pytest.raises(LogDirectoryError, match="1 of the job's 1 tasks have sent no message"):
        batch.commit(0, None)
