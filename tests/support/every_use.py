"""One job with every use of the connector, for each version of Spark that it runs on.

``python tests/support/every_use.py DIRECTORY`` prints a line for each use, and fails if one is
wrong; with ``--remote``, through Spark Connect.  Names after DIRECTORY choose uses.  The lines are
the same with all versions.
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from quick_java import spark_variables
from ready_worker import ready_python

import pyspark_segmentlog
import segmentlog
from pyspark_segmentlog.testing import as_kafka, run_until_idle
from segmentlog.testing.kafka_log import KafkaLog

N_ROWS = 300
EXAMPLES = Path(__file__).parents[2] / "examples"


def session(*, remote: bool) -> SparkSession:
    """A local session, or a client of Spark Connect with its server."""
    os.environ.update(spark_variables(), PYSPARK_PYTHON=ready_python())
    builder = SparkSession.builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.log.level", "OFF")
    return (builder.remote("local[2]") if remote else builder.master("local[2]")).getOrCreate()


def rows(spark: SparkSession, first: int = 0, n_rows: int = N_ROWS) -> DataFrame:
    """Numbered rows for three partitions."""
    return spark.range(first, first + n_rows, 1, 2).selectExpr(
        "cast(concat('k', id % 10) as binary) AS key",
        "cast(id as string) AS value",
        "cast(id % 3 as int) AS partition",
        "array(named_struct('key', 'h', 'value', cast('x' as binary))) AS headers",
        "timestamp_millis(1767225600000 + id) AS timestamp",
    )


def numbers(directory: Path, topic: str = "t") -> list[int]:
    """The values in a log, which are numbers, read without Spark."""
    opened = segmentlog.open_log_dir(directory)
    parts = [opened.log(topic, each).scan(columns=["value"]) for each in opened.topics()[topic]]
    return sorted(int(value) for each in parts for value in each.read_all()["value"].to_pylist())


def values(frame: DataFrame) -> list[int]:
    """The values of a frame, which are numbers."""
    return sorted(int(value) for (value,) in frame.selectExpr("cast(value as string)").collect())


class Uses:
    """Each public method is one use; it returns what is printed, and asserts what is right."""

    def __init__(self, spark: SparkSession, place: Path, *, remote: bool) -> None:
        self.spark, self.place, self.remote = spark, place, remote
        self.logs = place / "logs"

    def _reader(self, **options: Any) -> DataFrame:
        frames = self.spark.read.format("segmentlog").options(**{"subscribe": "t", **options})
        return frames.load(str(self.logs))

    def batch(self) -> str:
        """Write, and read all columns, also of a short range and of headers."""
        writer = rows(self.spark).write.format("segmentlog")
        writer.options(topic="t", numPartitions=3, includeTimestamp="true").mode("append").save(
            str(self.logs)
        )
        found = self._reader(includeHeaders="true").orderBy("timestamp").collect()
        assert [str(each) for each in range(N_ROWS)] == [each.value.decode() for each in found]
        assert [[("h", b"x")]] * N_ROWS == [
            [(key, bytes(value)) for key, value in each.headers] for each in found
        ]
        some = {"startingOffsets": '{"t":{"0":90,"1":-2,"2":0}}', "minPartitions": "7"}
        n_some = self._reader(**some).count()
        assert n_some == N_ROWS - 90
        assert 10 == self._reader().where("partition = 1 and offset < 10").count()
        assert N_ROWS - 5 == self._reader(startingTimestamp="1767225600005").count()
        return f"{len(found)} rows, {n_some} of a range"

    def columns(self) -> str:
        """Some columns, and keys and values as strings."""
        found = pyspark_segmentlog.read(self.spark, str(self.logs), ["key", "value"], strings=True)
        assert {"k3"} == {key for key, value in found.collect() if value == "13"}
        counted = pyspark_segmentlog.read(self.spark, str(self.logs), "partition").count()
        return f"{found.columns}, {counted} counted"

    def preserve(self) -> str:
        """Restore a log: offsets, times and headers stay."""
        kept = self._reader(preserve="true")
        kept.write.format("segmentlog").option("preserve", "true").mode("append").save(
            str(self.place / "restored")
        )
        pairs = [
            segmentlog.open_log_dir(each).log("t", 1).scan().read_all()
            for each in (self.logs, self.place / "restored")
        ]
        assert pairs[0].equals(pairs[1])
        return f"{pairs[1].num_rows} rows of a partition are equal"

    def sql(self) -> str:
        """A table, a view, a query with options, and an insert."""
        run = self.spark.sql
        run("DROP TABLE IF EXISTS t")
        run(f"CREATE TABLE t USING segmentlog OPTIONS (path '{self.logs}', subscribe 't')")
        found = run("SELECT count(*), max(offset) FROM t WHERE partition = 2").head()
        place = self.place / "sql"
        run(
            "CREATE OR REPLACE TEMPORARY VIEW sink (key STRING, value STRING) USING segmentlog "
            f"OPTIONS (path '{place}', topic 't', numPartitions 2)"
        )
        run("INSERT INTO sink VALUES ('a', '1'), ('b', NULL)")
        run("INSERT INTO sink SELECT CAST(key AS STRING), CAST(value AS STRING) FROM t")
        n_inserted = self.spark.read.format("segmentlog").load(str(place)).count()
        run("DROP TABLE t")
        assert found is not None
        assert n_inserted == N_ROWS + 2
        return f"{tuple(found)} selected, {n_inserted} inserted"

    def numbered_writes(self) -> str:
        """A job with a version is written once; an overwrite deletes the earlier records."""
        place = self.place / "numbered"
        for version in (1, 1, 2):
            writer = rows(self.spark, 100 * version, 100).write.format("segmentlog")
            options: dict[str, Any] = {
                "topic": "t",
                "txnAppId": "job",
                "txnVersion": version,
                "numPartitions": 3,
            }
            writer.options(**options).mode("append").save(str(place))
        assert [*range(100, 300)] == numbers(place)
        writer = rows(self.spark, 0, 7).write.format("segmentlog").option("topic", "t")
        writer.option("deleteRecords", "true").mode("overwrite").save(str(place))
        assert [*range(7)] == numbers(place)
        return "200 rows of 3 jobs, then 7"

    def refusals(self) -> str:
        """A bad option is one sentence, also of a stream."""
        said = []
        for begin in (
            lambda: self._reader(startingOfsets="earliest").count(),
            lambda: self._run(self._stream(endingOffsets="latest"), "refused", lambda *_: None),
        ):
            try:
                begin()
            except Exception as error:  # noqa: BLE001 - of py4j, or of Spark Connect
                said += [each for each in str(error).splitlines() if "segmentlog.errors" in each]
        assert "startingOffsets" in said[0]
        assert "endingOffsets" in said[-1]
        kinds = {found for each in said for found in re.findall(r"segmentlog\.errors\.\w+", each)}
        return ", ".join(sorted(kinds))

    def _stream(self, **options: Any) -> DataFrame:
        given = {"startingOffsets": "earliest", "subscribe": "t", **options}
        return self.spark.readStream.format("segmentlog").options(**given).load(str(self.logs))

    def _run(self, frame: DataFrame, name: str, take: Callable[[DataFrame, int], None]) -> None:
        writer = frame.writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(self.place / name))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(300)
        assert not query.isActive

    def stream(self) -> str:
        """Limited micro-batches over restarts, of which one repeats a micro-batch."""
        place, checkpoint = self.place / "batches", self.place / "stream"
        place.mkdir()

        def take(batch: DataFrame, number: int) -> None:
            found = [(each.partition, each.offset) for each in batch.collect()]
            (place / f"{number}.json").write_text(json.dumps(found))

        def batches() -> dict[int, list[list[int]]]:
            return {int(each.stem): json.loads(each.read_text()) for each in place.iterdir()}

        before: dict[int, list[list[int]]] = {}
        n_runs = 0
        while n_runs == 0 or batches() != before:
            before = batches()
            self._run(self._stream(maxOffsetsPerTrigger=128), "stream", take)
            n_runs += 1
            if n_runs == 1:  # as if the driver had died before Spark's commit
                last = max(batches())
                repeated = batches()[last]
                (checkpoint / "commits" / str(last)).unlink()
                (checkpoint / "commits" / f".{last}.crc").unlink()
                self._run(self._stream(maxOffsetsPerTrigger=128), "stream", take)
                assert repeated == batches()[last]
        found = [tuple(each) for batch in before.values() for each in batch]
        assert len(found) == len({*found}) == N_ROWS
        sizes = {number: len(batch) for number, batch in sorted(before.items())}
        assert max(sizes.values()) <= 128 < N_ROWS
        return f"{len(found)} rows in {len(sizes)} micro-batches, {max(sizes.values())} at most"

    def stream_from_latest(self) -> str:
        """A new query that starts at latest follows what comes; lag is 0 in the end."""
        query = (
            self._stream(startingOffsets="latest")
            .writeStream.format("memory")
            .queryName("latest")
            .option("checkpointLocation", str(self.place / "latest"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        query.processAllAvailable()
        writer = rows(self.spark, N_ROWS, 9).write.format("segmentlog").option("topic", "t")
        writer.option("includeTimestamp", "true").mode("append").save(str(self.logs))
        query.processAllAvailable()
        found = values(self.spark.table("latest"))
        while not (told := [each for each in query.recentProgress if each["numInputRows"]]):
            time.sleep(0.05)
        lags = pyspark_segmentlog.lag(told[-1], str(self.logs))
        query.stop()
        assert [*range(N_ROWS, N_ROWS + 9)] == found
        assert [0, 0, 0] == [each.lag for each in lags]
        return f"{len(found)} rows, lag {[each.lag for each in lags]}"

    def sink(self) -> str:
        """A stream into a log, run twice, of which the second repeats a micro-batch."""
        place, checkpoint = self.place / "copy", self.place / "sink"

        def run() -> None:
            stream = self._stream(includeHeaders="true", preserve="true")
            writer = stream.writeStream.format("segmentlog").option("topic", "t")
            writer = writer.option("numPartitions", 3).option("includeTimestamp", "true")
            writer = writer.option("checkpointLocation", str(checkpoint))
            writer.trigger(availableNow=True).start(str(place)).awaitTermination(300)

        run()
        last = max(int(each.name) for each in (checkpoint / "commits").glob("[0-9]*"))
        (checkpoint / "commits" / str(last)).unlink()
        (checkpoint / "commits" / f".{last}.crc").unlink()
        run()
        run()
        assert [*range(N_ROWS + 9)] == numbers(place)
        read = self.spark.read.format("segmentlog").option("includeHeaders", "true")
        kinds = {
            (each.headers[0].key, each.timestampType) for each in read.load(str(place)).collect()
        }
        assert {("h", 0)} == kinds
        return f"{N_ROWS + 9} rows, each once"

    def foreach_batch(self) -> str:
        """Numbered writes in a function of micro-batches."""
        place = str(self.place / "fanned")

        def fan_out(batch: DataFrame, number: int) -> None:
            for topic, rest in (("even", 0), ("odd", 1)):
                chosen = batch.where(f"cast(cast(value as string) as int) % 2 = {rest}")
                options: dict[str, Any] = {"topic": topic, "txnAppId": "fan", "txnVersion": number}
                chosen.select("key", "value").write.format("segmentlog").options(**options).mode(
                    "append"
                ).save(place)

        for _ in range(2):
            self._run(self._stream(), "fan", fan_out)
        found = [numbers(Path(place), topic) for topic in ("even", "odd")]
        assert [*range(N_ROWS + 9)] == sorted(found[0] + found[1])
        return f"{len(found[0])} even, {len(found[1])} odd"

    def as_kafka(self) -> str:
        """Jobs that say ``format("kafka")``: a batch, a limited stream, and one without an end."""
        log = KafkaLog(self.place / "plugin")
        servers = {"kafka.bootstrap.servers": "broker:9092"}
        log.write("in", [str(each) for each in range(20)])

        def copy(**trigger: Any) -> None:
            stream = self.spark.readStream.format("kafka").options(**servers)
            stream = stream.option("subscribe", "in").option("startingOffsets", "earliest")
            writer = stream.option("maxOffsetsPerTrigger", 6).load().writeStream.format("kafka")
            writer = writer.options(**servers, topic="out")
            writer = writer.option("checkpointLocation", str(self.place / "plugin-checkpoint"))
            writer.trigger(**trigger).start().awaitTermination()

        with as_kafka({"broker:9092": log}):
            batch = self.spark.read.format("kafka").options(**servers, subscribe="in").load()
            n_read = batch.count()
            batch.select("value").write.format("kafka").options(**servers, topic="all").save()
            copy(availableNow=True)
            assert 20 == len(log.read("out").values())
            log.write("in", ["20", "21"])
            run_until_idle(lambda: copy(processingTime="1 minute"))
        assert [str(each) for each in range(22)] == sorted(log.read("out").values(), key=int)
        return f"{n_read} read, {len(log.read('all'))} and {len(log.read('out'))} written"

    def tables(self) -> str:
        """A table of what Kafka knows about itself."""
        found = self.spark.read.format("segmentlog").option("table", "group_offsets")
        return f"{found.load(str(EXAMPLES / 'cluster')).count()} rows of group_offsets"

    def analyze(self) -> str:
        """Figures of the records."""
        found = pyspark_segmentlog.analyze(self.spark, str(self.logs), topics="t")
        return f"{found.topics[0].figures.keys.distinct} keys"

    def audit(self) -> str:
        """A table that lacks rows of its log."""
        table = pyspark_segmentlog.read(
            self.spark, str(self.logs), ["topic", "partition", "offset"]
        )
        found = pyspark_segmentlog.audit(
            self.spark, str(self.logs), "t", table.where("offset > 4")
        )
        n_missing = found.count("missing")
        assert 15 == n_missing == found.missing().count()
        found.unpersist()
        return f"{n_missing} missing"

    def clone(self) -> str:
        """A topic under another name, with other values."""
        place, source = self.place / "clones", self.place / "fanned"
        pyspark_segmentlog.clone(
            self.spark, str(source), "even", "u", to=str(place), num_partitions=5
        )
        assert [*range(0, N_ROWS + 9, 2)] == numbers(place, "u")
        return f"{len(segmentlog.open_log_dir(place).topics()['u'])} partitions"

    def compact(self) -> str:
        """The newest record of each key stays."""
        config = segmentlog.TopicConfig(segment_bytes=2000)
        place = self.place / "compacted"
        for first in (0, 100, 200):
            options: dict[str, Any] = {
                "topic": "t",
                "numPartitions": 1,
                "segment.bytes": config.segment_bytes,
            }
            some = rows(self.spark, first, 100).drop("partition")
            some.coalesce(1).write.format("segmentlog").options(**options).mode("append").save(
                str(place)
            )
        done = pyspark_segmentlog.compact(
            self.spark, str(place), settings={"cleanup.policy": "compact"}
        )
        assert len(numbers(place)) < N_ROWS
        return f"{len(done)} partition"


def uses() -> Iterator[str]:
    """The names of the uses, in their order."""
    return (name for name in vars(Uses) if not name.startswith("_"))


def main(place: Path, names: Sequence[str], *, remote: bool) -> None:
    """Run all uses, or those of the names, and print what each has shown."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    os.chdir(place)
    spark = session(remote=remote)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    print(f"pyspark {pyspark.__version__}", file=sys.stderr)
    run = Uses(spark, place, remote=remote)
    for name in names or uses():
        print(f"{name}: {getattr(run, name)()}", flush=True)
    spark.stop()


if __name__ == "__main__":
    place, *names = (each for each in sys.argv[1:] if each != "--remote")
    main(Path(place).absolute(), names, remote="--remote" in sys.argv)
