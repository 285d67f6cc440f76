"""A topic of a test: written and read back by the pytest plugin, and by a broker."""

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing
from measure import Digest, Row, compare
from pyspark.sql import DataFrame
from spark_scan import session

import segmentlog
from pyspark_segmentlog.testing import as_kafka
from segmentlog.testing.kafka_log import KafkaLog

__all__ = ["rows"]

_N_RECORDS = 100
_ROWS = [{"key": f"key-{i}", "value": {"n": i}} for i in range(_N_RECORDS)]

#: A first test, from the import on.
_FIRST = f"""
import time
begin = time.perf_counter()
from segmentlog.testing.kafka_log import KafkaLog
import sys
log = KafkaLog(sys.argv[1])
log.write("t", [{{"key": f"key-{{i}}", "value": {{"n": i}}}} for i in range({_N_RECORDS})])
assert len(log.read("t").rows()) == {_N_RECORDS}
print(time.perf_counter() - begin)
"""


def rows(scratch: Path, version: str, rounds: int) -> list[Row]:
    """The rows of the table about tests without Kafka.

    Parameters
    ----------
    scratch : an empty directory.
    version : of the broker.
    rounds : number of topics, and of processes.
    """
    scratch.mkdir()
    begin = time.perf_counter()
    with Broker(scratch / "kafka", version) as broker, JavaClient(broker) as client:
        started = time.perf_counter() - begin
        theirs = [_of_broker(client, f"t{i}") for i in range(rounds + 1)][1:]
        query = _of_foreach_batch(scratch / "queries", broker, rounds)
    log = KafkaLog(scratch / "log")
    ours = [_of_plugin(log, f"t{i}") for i in range(10 * rounds + 1)][1:]
    first = [_first() for _ in range(rounds)]
    topic, broker_topic = statistics.median(ours), statistics.median(theirs)
    work = f"a test's topic of {_N_RECORDS} records: created, written and read back"
    return [
        Row(
            work,
            "Kafka's Java clients on a broker",
            "≤ 20 ms",
            f"{1000 * topic:.0f} ms",
            f"{1000 * broker_topic:.0f} ms with the broker, which takes {started:.1f} s to start; "
            "bound by Python, and by small files",
        ),
        Row(
            f"{work}, for the first time in a process",
            "–",
            "≤ 0.5 s",
            f"{statistics.median(first):.2f} s",
            "imports too; bound by the imports of numpy and pyarrow",
        ),
        _in_spark(scratch / "spark", 10 * rounds),
        query,
    ]


def _in_spark(directory: Path, rounds: int) -> Row:
    """A test of a job that reads Kafka, against a Python source of as many rows in one task."""
    from segmentlog_bench_few_rows import FewRowsSource

    log, numbers = KafkaLog(directory), itertools.count()
    spark = session()
    spark.dataSource.register(FewRowsSource)

    def test() -> Digest:
        topic = f"t{next(numbers)}"
        log.write(topic, _ROWS)
        with as_kafka({"broker:9092": directory}):
            reader = spark.read.format("kafka").option("kafka.bootstrap.servers", "broker:9092")
            return (min(len(reader.option("subscribe", topic).load().collect()), _N_RECORDS),)

    def floor() -> Digest:
        found = spark.read.format("bench_few_rows").option("tasks", 1).load().collect()
        return (min(len(found), _N_RECORDS),)

    results = compare({"test": test, "floor": floor}, rounds)
    spark.stop()
    ours, theirs = results["test"].median, results["floor"].median
    return Row(
        f"a test's topic of {_N_RECORDS} records: created, written and read through `kafka` of "
        "Spark by `as_kafka`",
        "a Python source of as many rows in one task: the difference",
        "≤ 0.1 s",
        f"{ours - theirs:.2f} s",
        f"{ours:.2f} s (±{results['test'].spread:.0%}) against {theirs:.2f} s "
        f"(±{results['floor'].spread:.0%}); bound by Spark",
    )


def _of_foreach_batch(scratch: Path, broker: Broker, rounds: int) -> Row:
    """A query that reads a topic once, which the broker has from the rounds before.

    The third contestant is a Python source of as many rows from a mapped file: Spark starts a
    process for the reader of any such query, and that process imports PySpark and Arrow.
    """
    from segmentlog_bench_ipc import SCHEMA
    from segmentlog_bench_streams import TrivialSource

    log, spark, numbers = KafkaLog(scratch / "log"), session(), itertools.count()
    log.write("t0", _ROWS)
    mapped = str(scratch / "mapped.arrow")
    table = pa.table(segmentlog.read(scratch / "log", "t0"))
    table = table.select([each.split()[0] for each in SCHEMA.split(", ")]).combine_chunks()
    with pa.ipc.new_file(mapped, table.schema) as writer:
        writer.write_table(table)
    spark.dataSource.register(TrivialSource)

    def run(rows: DataFrame) -> Digest:
        taken: list[int] = []
        writer = rows.writeStream.foreachBatch(lambda batch, _: taken.append(batch.count()))
        place = str(scratch / f"checkpoint-{next(numbers)}")
        writer.option("checkpointLocation", place).trigger(
            availableNow=True
        ).start().awaitTermination()
        return (sum(taken),)

    def of(servers: str) -> Digest:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
        return run(reader.option("subscribe", "t0").option("startingOffsets", "earliest").load())

    def ours() -> Digest:
        with as_kafka({"broker:9092": log}):
            return of("broker:9092")

    def floor() -> Digest:
        reader = spark.readStream.format("bench_stream").option("file", mapped)
        return run(reader.option("atOnce", 1).load())

    results = compare(
        {"ours": ours, "theirs": lambda: of(broker.bootstrap_servers), "floor": floor},
        max(rounds, 5),
    )
    spark.stop()
    found, theirs, least = (results[each].median for each in ("ours", "theirs", "floor"))
    return Row(
        f"a query with `foreachBatch` over {_N_RECORDS} records by `as_kafka`",
        "the same query on a running broker",
        "≤ 1.2 times",
        f"{found / theirs:.1f} times",
        f"{found:.2f} s (±{results['ours'].spread:.0%}) against {theirs:.2f} s "
        f"(±{results['theirs'].spread:.0%}); bound by the Python process that Spark starts for "
        f"each query: a Python source of as many rows takes {least:.2f} s "
        f"(±{results['floor'].spread:.0%}), {least / theirs:.1f} times",
    )


def _of_plugin(log: KafkaLog, topic: str) -> float:
    begin = time.perf_counter()
    log.write(topic, _ROWS)
    if len(log.read(topic).rows()) != _N_RECORDS:
        message = "records are missing"
        raise SystemExit(message)
    return time.perf_counter() - begin


def _of_broker(client: JavaClient, topic: str) -> float:
    begin = time.perf_counter()
    client.create_topic(topic)
    records = [Outgoing(f"key-{i}".encode(), b'{"n": %d}' % i) for i in range(_N_RECORDS)]
    client.produce(topic, records, linger_ms=0)
    if len(client.consume(topic)) != _N_RECORDS:
        message = "records are missing"
        raise SystemExit(message)
    return time.perf_counter() - begin


def _first() -> float:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-c", _FIRST, f"{directory}/log"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)
