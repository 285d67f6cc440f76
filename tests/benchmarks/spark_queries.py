"""Queries of a small part of a log through Spark and in the engine, against its full scan."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from engine import digest_of
from kafka_here import Broker
from measure import Digest, Result, Row, compare
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from query_data import N_PARTITIONS, TOPIC, QueryData, median_window
from segmentlog_bench_floor import FloorSource
from spark_scan import session

import segmentlog
from segmentlog.reads.scan import scan_slice

__all__ = [
    "narrow_engine",
    "narrow_spark",
    "small_query",
    "time_window",
    "time_window_engine",
]

_N_FEW = 600


def _against(results: Mapping[str, Result], ours: str, theirs: str) -> str:
    return f"{results[theirs].median / results[ours].median:.2f}"


def _times(results: Mapping[str, Result], *names: str) -> str:
    """Seconds of the contestants, with the spread of each."""
    return " against ".join(
        f"{results[name].median:.3f} s (±{results[name].spread:.0%})" for name in names
    )


def _sink(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _digest(frame: DataFrame) -> Digest:
    """Rows, and the sum of their offsets."""
    found = frame.agg(F.count("*"), F.sum("offset")).first()
    return tuple(int(number or 0) for number in found)


def _ours(spark: SparkSession, path: object, **options: Any) -> DataFrame:
    reader = spark.read.format("segmentlog").option("readUpTo", "logEnd").options(**options)
    return reader.load(str(path))


def time_window(data: QueryData, rounds: int) -> list[Row]:
    """Both sources get the same two timestamps, and each round plans the query again."""
    with data.broker as broker:
        loopback, unix = (_windows(data, broker, rounds, unix) for unix in (False, True))
    n_rows = loopback["kafka"].digest[0]
    detail = (
        f"{_times(loopback, 'segmentlog', 'kafka')}; {n_rows:,} of {data.n_large:,} rows in "
        f"{N_PARTITIONS} tasks; bound by Spark: a Python source without rows takes "
        f"{loopback['floor'].median:.3f} s, a ratio of {_against(loopback, 'floor', 'kafka')}"
    )
    of_unix = (
        f"{_times(unix, 'two tasks', 'kafka')}; {unix['segmentlog'].median:.3f} s in "
        f"{N_PARTITIONS} tasks; bound by Spark, as above: without rows, {N_PARTITIONS} tasks take "
        f"{unix['floor'].median:.3f} s"
    )
    work = "1 % of a log by time, through Spark, `load` included"
    against = "Spark's `kafka` source with the same timestamps"
    quicker = f"{work}; `maxPartitions=2`, `spark.python.unix.domain.socket.enabled=true`"
    return [
        Row(work, against, "≥ 4", _against(loopback, "segmentlog", "kafka"), detail),
        Row(quicker, against, "≥ 4", _against(unix, "two tasks", "kafka"), of_unix),
    ]


def _windows(
    data: QueryData, broker: Broker, rounds: int, unix_sockets: bool
) -> Mapping[str, Result]:
    start, end = median_window(data.n_large)
    options: dict[str, Any] = {
        "subscribe": TOPIC,
        "startingTimestamp": start,
        "endingTimestamp": end,
    }
    spark = session(unix_sockets=unix_sockets)
    spark.dataSource.register(FloorSource)

    def kafka() -> DataFrame:
        reader = spark.read.format("kafka").options(**options)
        return reader.option("kafka.bootstrap.servers", broker.bootstrap_servers).load()

    frames: dict[str, Callable[[], DataFrame]] = {
        "segmentlog": lambda: _ours(spark, broker.log_dir, **options),
        "two tasks": lambda: _ours(spark, broker.log_dir, **options, maxPartitions=2),
        "kafka": kafka,
        "floor": lambda: spark.read.format("bench_floor").load(),
    }
    known = {name: _digest(frames[name]()) for name in ("segmentlog", "two tasks", "kafka")}
    known["floor"] = known["kafka"]  # it has no rows

    def scan(name: str) -> Digest:
        _sink(frames[name]())
        return known[name]

    results = compare({name: partial(scan, name) for name in frames}, rounds)
    spark.stop()
    return results


def small_query(data: QueryData, rounds: int) -> list[Row]:
    """A few rows of each partition, against a source without rows, with ``load`` included."""
    n_tasks, n_rows = N_PARTITIONS, _N_FEW // N_PARTITIONS
    starts = {str(partition): data.n_small // 8 for partition in range(n_tasks)}
    ends = {partition: at + n_rows for partition, at in starts.items()}
    spark = session()
    spark.dataSource.register(FloorSource)
    edges = {
        "startingOffsets": json.dumps({TOPIC: starts}),
        "endingOffsets": json.dumps({TOPIC: ends}),
    }
    frames: dict[str, Callable[[], DataFrame]] = {
        "segmentlog": lambda: _ours(spark, data.small, **edges),
        "floor": lambda: spark.read.format("bench_floor").load(),
    }
    assert frames["segmentlog"]().count() == n_tasks * n_rows

    def scan(name: str) -> Digest:
        _sink(frames[name]())
        return ()

    results = compare({name: partial(scan, name) for name in frames}, 4 * rounds)
    spark.stop()
    detail = (
        f"{_times(results, 'segmentlog', 'floor')}; {n_tasks * n_rows} of {data.n_small:,} rows; "
        "bound by Spark's start of Python tasks; less is better"
    )
    work = f"{n_tasks * n_rows} rows in {n_tasks} tasks through Spark, `load` included"
    measured = f"{results['segmentlog'].median / results['floor'].median:.2f}"
    against = "a Python source without rows, with the same number of tasks"
    return [Row(work, against, "≤ 1.1", measured, detail)]


def _counted(readers: list[pa.RecordBatchReader]) -> Digest:
    return digest_of(batch for reader in readers for batch in reader)


def time_window_engine(data: QueryData, rounds: int) -> list[Row]:
    """Timestamps are looked up in directories that are opened in each round; one core reads."""
    start, end = median_window(data.n_large)
    log_dir = data.broker.log_dir

    def read(**bounds: Any) -> Digest:
        directory = segmentlog.open_log_dir(log_dir)
        logs = [directory.log(TOPIC, partition) for partition in range(N_PARTITIONS)]
        return _counted(
            [log.scan(read_up_to="logEnd", use_threads=False, **bounds) for log in logs]
        )

    window = {"since": start, "until": end}
    n_rows = read(**window)[0]
    found = compare({"window": lambda: read(**window)}, rounds)
    found |= compare({"all": read}, rounds)
    detail = (
        f"{_times(found, 'window', 'all')}; {n_rows:,} of {data.n_large:,} rows; bound by the "
        "scan of these rows, and look-ups; a scan of exactly 1 % would be 100 times faster"
    )
    work = "1 % of a log by time, in the engine, one core"
    return [Row(work, "its own full scan", "≥ 30", _against(found, "window", "all"), detail)]


def narrow_spark(data: QueryData, rounds: int) -> list[Row]:
    """Schemas of few columns against all columns, to the `noop` sink, and counted."""
    spark = session()
    schemas = {
        "all": "",
        "two": "offset bigint, timestamp timestamp",
        "partition": "partition int",
    }

    def frame(name: str) -> DataFrame:
        reader = spark.read.format("segmentlog")
        return (reader.schema(schemas[name]) if schemas[name] else reader).load(str(data.small))

    known = {name: (frame(name).count(),) for name in schemas}

    def sink(name: str) -> Callable[[], Digest]:
        return lambda: (_sink(frame(name)), known[name])[1]

    def count(name: str) -> Callable[[], Digest]:
        return lambda: (frame(name).count(),)

    results = compare(
        {
            "two": sink("two"),
            "all": sink("all"),
            "count partition": count("partition"),
            "count all": count("all"),
        },
        rounds,
    )
    spark.stop()
    n_rows = f"{data.n_small:,} rows"
    return [
        Row(
            'schema "offset, timestamp" through Spark, `local[2]`',
            "all columns",
            "≥ 3",
            _against(results, "two", "all"),
            f"{_times(results, 'two', 'all')}; {n_rows}; bound by Spark's rows, and the "
            "copy of all bytes out of the page cache",
        ),
        Row(
            'count over the schema "partition", `local[2]`',
            "a count over all columns",
            "≥ 3",
            _against(results, "count partition", "count all"),
            f"{_times(results, 'count partition', 'count all')}; {n_rows}; bound by Spark's job, "
            "and the copy of all bytes out of the page cache",
        ),
    ]


def narrow_engine(data: QueryData, rounds: int) -> list[Row]:
    """One core reads from files; another row only reads and verifies the bytes."""
    directory = segmentlog.open_log_dir(data.small)
    logs = [directory.log(TOPIC, partition) for partition in range(N_PARTITIONS)]
    slices = [each for log in logs for each in log.slices(0, log.log_end_offset)]

    def scan(columns: list[str] | None) -> Callable[[], Digest]:
        return lambda: (
            sum(batch.num_rows for each in slices for batch in scan_slice(each, columns=columns)),
        )

    results = compare(
        {"two": scan(["offset", "timestamp"]), "all": scan(None), "none": scan(["partition"])},
        rounds,
    )
    share = results["none"].median / results["two"].median
    bound = results["all"].median / results["none"].median
    detail = (
        f"{_times(results, 'two', 'all')}; {data.n_small:,} rows; to copy the bytes out of the "
        f"page cache, and check them, is {share:.0%} of it: without any column the ratio is "
        f"{bound:.1f}"
    )
    work = "columns `offset` and `timestamp` in the engine, one core"
    return [Row(work, "all columns", "≥ 3", _against(results, "two", "all"), detail)]
