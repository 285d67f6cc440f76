"""A job of Spark's that continues a read, as a stream does, and one that writes and compacts."""

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pyspark_segmentlog
import segmentlog
from random_operations.ledger import Ledger, now
from random_operations.reader import seen_in
from random_operations.run import Run, spark_rows
from segmentlog.errors import LogLockedError


class Stream:
    """It keeps the next offset of each partition, and reads on with ``failOnDataLoss``."""

    def __init__(self, spark: SparkSession, directory: Path, ledger: Ledger, run: Run) -> None:
        self._spark, self._directory, self._ledger, self._run = spark, directory, ledger, run
        self._next = {topic: dict.fromkeys(range(n), 0) for topic, n in run.topics.items()}
        self._n_written = 0
        self.counts: Counter[str] = Counter()

    def step(self) -> None:
        """Read the new records."""
        begun = now()
        try:
            rows = self._read(fails=True)
        except PySparkException as error:
            why = self._why_not(str(error), begun)
            if why:
                self._ledger.note("bad read", kind="stream", level="", error="fails", text=why)
            begun = now()
            rows = self._read(fails=False)
        first = self._next
        offsets_of = {
            f"{topic}-{each}": at for topic, of in first.items() for each, at in of.items()
        }
        if now() - begun >= 0.95e6 * self._run.delay_ms:
            self.counts["stream: read too late"] += 1  # tasks miss what was removed meanwhile
        else:
            partitions = {
                f"{topic}-{each}": rows.filter(
                    pc.and_(pc.equal(rows["topic"], topic), pc.equal(rows["partition"], each))
                ).sort_by("offset")
                for topic, offsets in first.items()
                for each in offsets
            }
            self._ledger.note(
                "look", kind="stream", level="", begun=begun, planned=now(), changed=[],
                topics=[*first],
                seen={name: seen_in(name, each.to_batches()) for name, each in partitions.items()},
                **{"from": offsets_of},
            )  # fmt: skip
        ends = rows.group_by(["topic", "partition"]).aggregate([("offset", "max")]).to_pylist()
        self._next = {topic: dict(offsets) for topic, offsets in first.items()}
        for each in ends:
            self._next[each["topic"]][each["partition"]] = each["offset_max"] + 1
        self.counts["stream: micro batches"] += 1
        self.counts["stream: records"] += len(rows)

    def _read(self, *, fails: bool) -> pa.Table:
        return (
            self._spark.read.format("segmentlog")
            .option("subscribe", ",".join(self._next))
            .option("startingOffsets", json.dumps(self._next))
            .option("failOnDataLoss", str(fails).lower())
            .load(str(self._directory))
            .select("topic", "partition", "offset", "key", "value")
            .toArrow()
        )

    def _why_not(self, said: str, begun: int) -> str:
        """The error, or an empty text if the read had to fail."""
        if "LogChangedError" in said:
            self.counts["stream: came too late"] += 1
            return "" if now() - begun >= 0.95e6 * self._run.delay_ms else said
        opened = segmentlog.open_log_dir(self._directory)
        is_gone = any(
            opened.log(topic, partition).log_start_offset > offset
            for topic, offsets in self._next.items()
            for partition, offset in offsets.items()
        )
        self.counts["stream: retention was faster"] += 1
        return "" if is_gone and "OffsetOutOfRangeError" in said else said

    def write(self) -> None:
        """Write one job under its number; sometimes it runs twice."""
        number = self._n_written
        rows = spark_rows(self._run, number)
        table = pa.table(
            {
                "n": pa.array(range(len(rows)), pa.int32()),
                "key": pa.array([each.key for each in rows], pa.binary()),
                "value": pa.array([each.value for each in rows], pa.binary()),
                "partition": pa.array([each.partition for each in rows], pa.int32()),
            }
        )
        frame = self._spark.createDataFrame(table).repartition(2, "partition")
        frame = frame.sortWithinPartitions("n").drop("n")
        self._ledger.note("spark begun", number=number)
        for _ in range(2 if number % 5 == 0 else 1):
            (
                frame.write.format("segmentlog")
                .options(topic=next(iter(self._next)), txnAppId="soak", txnVersion=str(number))
                .option("kafka.compression.type", ("none", "zstd", "lz4")[number % 3])
                .mode("append")
                .save(str(self._directory))
            )
            self.counts["jobs of Spark's"] += 1
        self._ledger.note("spark committed", number=number)
        self._n_written += 1

    def compact(self) -> None:
        """Compact on executors."""
        try:
            done = pyspark_segmentlog.compact(
                self._spark, self._directory, lock_timeout_seconds=30
            )
        except LogLockedError:
            self.counts["compactions on executors: locked"] += 1
            return
        self.counts["compactions on executors: partitions"] += len(done)
        removed = sum(each.bytes_before - each.bytes_after for each in done)
        self.counts["compactions on executors: bytes"] += removed
