"""Writes through Spark: ours, two ceilings of Python sinks, Spark's `kafka` sink, Parquet."""

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_here import Broker
from measure import Digest, Result, Row, compare
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from spark_scan import session

import segmentlog

_PARTITIONS = 4
_WORK = "write through Spark, `local[2]`"
_COPYING = "a Python sink that only writes the Arrow bytes to files"


class Targets:
    """A target for each contestant, new in every round, and the number of its rows."""

    def __init__(self, frame: DataFrame, broker: Broker, scratch: Path) -> None:
        self._frame = frame
        self._servers: dict[str, Any] = {
            "bootstrap.servers": broker.bootstrap_servers,
            "broker.address.family": "v4",
        }
        self._admin = AdminClient(self._servers)
        self._scratch = scratch
        self._numbers = itertools.count()
        self._topic = ""
        self.prepare()

    def prepare(self) -> None:
        """Remove the files of the last contestant, and make a new topic for the `kafka` sink.

        Wait until the disk is idle: otherwise the next contestant pays for the writes of the last
        one.
        """
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        if self._topic:
            self._admin.delete_topics([self._topic])[self._topic].result()
        self._topic = f"written-{next(self._numbers)}"
        self._admin.create_topics([NewTopic(self._topic, _PARTITIONS)])[self._topic].result()
        os.sync()

    def segmentlog(self, flush: str) -> Digest:
        """Write to a new log directory."""
        target = self._scratch / f"logs-{flush}"
        writer = self._frame.write.format("segmentlog").option("topic", "t")
        writer = writer.option("numPartitions", _PARTITIONS).option("flush", flush)
        writer.mode("append").save(str(target))
        return (_rows_of_logs(target),)

    def ceiling(self, name: str) -> Digest:
        """Write to nothing, or to files of Arrow's bytes."""
        writer = self._frame.write.format(name).option("directory", str(self._scratch))
        writer.mode("append").save()
        return (json.loads((self._scratch / "counts.json").read_text()),)

    def parquet(self) -> Digest:
        """Write to Parquet files, in the order of the rows."""
        target = self._scratch / "parquet"
        self._frame.write.option("compression", "none").parquet(str(target))
        return (sum(pq.read_metadata(each).num_rows for each in target.glob("*.parquet")),)

    def kafka(self) -> Digest:
        """Write to the broker."""
        writer = self._frame.write.format("kafka").option("topic", self._topic)
        writer.option("kafka.bootstrap.servers", self._servers["bootstrap.servers"]).save()
        return (self._rows_of_broker(),)

    def _rows_of_broker(self) -> int:
        consumer = Consumer(self._servers | {"group.id": "bench"})
        try:
            found = [
                consumer.get_watermark_offsets(TopicPartition(self._topic, partition))
                for partition in range(_PARTITIONS)
            ]
        finally:
            consumer.close()
        return sum(end - start for start, end in found)


def _rows_of_logs(target: Path) -> int:
    directory = segmentlog.open_log_dir(target)
    return sum(directory.log("t", number).log_end_offset for number in directory.topics()["t"])


def _frame(n_rows: int) -> DataFrame:
    """Rows of about 100 bytes that Spark has cached, so that making them is not measured."""
    text = '{"customer":"name","state":"open","n":' * 2
    ids = session().range(0, n_rows, 1, _PARTITIONS)
    key = F.format_string("key-%06d", F.col("id") % 1_000_000).cast("binary")
    value = F.concat(F.lit(text[:48]), F.sha1(F.col("id").cast("string"))).cast("binary")
    frame = ids.select(key.alias("key"), value.alias("value")).cache()
    frame.count()
    return frame


def rows(broker: Broker, scratch: Path, n_rows: int, rounds: int) -> list[Row]:
    """Writes of the same rows, one after the other."""
    from segmentlog_bench_ceilings import CheckedSource, CopyingSource, CountingSource

    frame = _frame(n_rows)
    spark = frame.sparkSession
    spark.dataSource.register(CountingSource)
    spark.dataSource.register(CopyingSource)
    spark.dataSource.register(CheckedSource)
    targets = Targets(frame, broker, scratch / "written")
    contestants: dict[str, Callable[[], Digest]] = {
        "none": lambda: targets.segmentlog("none"),
        "count": lambda: targets.ceiling("bench_count"),
        "copy": lambda: targets.ceiling("bench_copy"),
        "checked": lambda: targets.ceiling("bench_checked"),
    }
    # New pages of files come at very different speeds, so few rounds would not be enough.
    sinks = compare(contestants, 3 * rounds, between=targets.prepare)
    contestants = {
        "none": contestants["none"],
        "commit": lambda: targets.segmentlog("commit"),
        "parquet": targets.parquet,
        "kafka": targets.kafka,
    }
    results = compare(contestants, rounds, between=targets.prepare)
    spark.stop()
    return [
        _row(sinks, "none", "count", "a Python sink that only counts", "–"),
        _row(sinks, "none", "copy", _COPYING, "≥ 0.8"),
        _row(
            sinks,
            "checked",
            "copy",
            _COPYING,
            "–",
            "the limit for the row above: a Python sink "
            "that copies the bytes together, computes their CRC-32C, and writes them",
        ),
        _row(results, "none", "kafka", "Spark's `kafka` sink into a running broker", "≥ 2.5"),
        _row(results, "none", "parquet", "Spark's Parquet writer, uncompressed", "≥ 0.7"),
        _row(results, "commit", "none", "the same with `flush=none`, as in the row before", "–"),
    ]


def _row(
    results: dict[str, Result], name: str, other: str, against: str, goal: str, work: str = ""
) -> Row:
    ours, theirs = results[name], results[other]
    n_rows = ours.digest[0]
    detail = (
        f"{n_rows / ours.median / 1e6:.1f} against {n_rows / theirs.median / 1e6:.1f} M rows/s; "
        f"{n_rows:,} rows; ±{ours.spread:.0%}, ±{theirs.spread:.0%}; "
        f"median of {len(ours.seconds)} rounds; "
        "bound by Spark, which makes the rows and sends them to Python, and by new pages of files"
    )
    ratio = f"{theirs.median / ours.median:.2f}"
    return Row(work or f"{_WORK}, `flush={name}`", against, goal, ratio, detail)
