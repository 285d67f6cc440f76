"""A job of Spark's that continues a read, and one that writes sometimes.

The connector has no streams yet. So the job does what a stream would do: it keeps the next offset
of each partition, and reads from there to the end, with ``failOnDataLoss``.
"""

import json
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from stressing.ledger import Ledger

import pyspark_segmentlog
import segmentlog
from segmentlog.errors import LogLockedError
from soaking.checker import last_values, numbered
from soaking.history import History
from soaking.plan import PARTITIONS, SPARK, Soak, records_of
from soaking.writer import table_of

__all__ = ["Stream"]


class Stream:
    """One job; `step` is a micro batch.

    Parameters
    ----------
    spark : the session.
    directory : the log directory.
    ledger : what was committed.
    run : the soak.

    Attributes
    ----------
    counts : what has happened.
    """

    def __init__(self, spark: SparkSession, directory: Path, ledger: Ledger, run: Soak) -> None:
        self._spark, self._directory, self._ledger, self._run = spark, directory, ledger, run
        self._history = History(run, ledger.path)
        self._next = {topic: dict.fromkeys(range(n), 0) for topic, n in PARTITIONS.items()}
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._view: dict[bytes, bytes | None] = {}
        self._looked = time.monotonic()
        self._written = 0
        self.counts: Counter[str] = Counter()

    def step(self) -> None:
        """Read the new records."""
        begun, before = time.monotonic(), self._looked
        since = self._history.update()
        is_loss = False
        try:
            rows = self._read(fails=True)
        except PySparkException as error:
            why = self._why_not(str(error), begun)
            if why:
                self._ledger.note("bad", text=f"stream: {why}")
            is_loss = True
            begun, since = time.monotonic(), self._history.update()
            rows = self._read(fails=False)
        # A plan counts as long as removed files stay: late tasks miss what a pass has removed.
        is_slow = time.monotonic() - begun >= 0.95 * self._run.delete_delay
        self._looked = begun
        self._history.update()
        self.counts["stream: micro batches"] += 1
        self.counts["stream: records"] += len(rows)
        for topic, counts in self._next.items():
            of_topic = rows.filter(pc.equal(rows["topic"], topic))
            for partition in counts:
                is_here = pc.equal(of_topic["partition"], partition)
                self._take(topic, partition, of_topic.filter(is_here), is_loss=is_loss)
        # A tombstone may be gone before the stream has come to it.
        is_late = time.monotonic() - before >= 0.9 * self._run.tombstones_stay
        self.counts["stream: late for tombstones"] += is_late
        why = self._history.misfit(self._view, since, may_keep=is_late)
        self.counts["stream: read too late"] += bool(why) and is_slow
        if why and is_slow:
            self._read_anew()
        elif why:
            self._ledger.note("bad", text=f"stream: {why}")
        if is_late:
            self._forget_deleted()

    def _read(self, *, fails: bool) -> pa.Table:
        offsets = json.dumps(self._next)
        return (
            self._spark.read.format("segmentlog")
            .option("subscribe", ",".join(PARTITIONS))
            .option("startingOffsets", offsets)
            .option("failOnDataLoss", str(fails).lower())
            .load(str(self._directory))
            .select("topic", "partition", "offset", "key", "value")
            .toArrow()
        )

    def _why_not(self, said: str, begun: float) -> str:
        """The error, or an empty text if the read had to fail."""
        if "LogChangedError" in said:
            self.counts["stream: came too late"] += 1
            is_late = time.monotonic() - begun >= 0.95 * self._run.delete_delay
            return "" if is_late else said
        opened = segmentlog.open_log_dir(self._directory)
        is_gone = any(
            opened.log(topic, partition).log_start_offset > offset
            for topic, offsets in self._next.items()
            for partition, offset in offsets.items()
        )
        self.counts["stream: retention was faster"] += 1
        return "" if is_gone and "OffsetOutOfRangeError" in said else said

    def _take(self, topic: str, partition: int, rows: pa.Table, *, is_loss: bool) -> None:
        if not len(rows):
            return
        offsets = rows["offset"].to_pylist()
        at, self._next[topic][partition] = self._next[topic][partition], offsets[-1] + 1
        where = f"stream, {topic}-{partition} from {at}"
        if offsets[0] < at or any(b <= a for a, b in pairwise(offsets)):
            self._ledger.note("bad", text=f"{where}: offsets do not rise: {offsets[:5]}")
        if topic == "latest":
            self._view.update(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))
            return
        if offsets[-1] - offsets[0] + 1 != len(offsets) or (offsets[0] > at and not is_loss):
            self._ledger.note("bad", text=f"{where}: {len(offsets)} records from {offsets[0]}")
        self.counts["stream: records that retention took first"] += offsets[0] - at
        for slot, numbers in numbered(rows["value"].to_pylist()).items():
            key = topic, partition, slot
            expected = self._numbers.get(key, 0)
            self._numbers[key] = numbers[-1] + 1
            is_next = numbers[0] == expected or (offsets[0] > at and numbers[0] > expected)
            if not is_next or numbers != list(range(numbers[0], numbers[-1] + 1)):
                text = f"{where}: writer {slot}, {numbers[:3]} instead of {expected}"
                self._ledger.note("bad", text=text)

    def _read_anew(self) -> None:
        """Read the last values again, up to the stream's position."""
        opened = segmentlog.open_log_dir(self._directory)
        tables = []
        for partition, end in self._next["latest"].items():
            rows = opened.log("latest", partition).scan(columns=["offset", "key", "value"])
            table = rows.read_all()
            tables.append(table.filter(pc.less(table["offset"], end)))
        self._view = last_values(tables)

    def _forget_deleted(self) -> None:
        """Read all keys again, as a job does after its stream has paused for too long."""
        opened = segmentlog.open_log_dir(self._directory)
        kept: set[bytes] = set()
        for partition in range(PARTITIONS["latest"]):
            rows = opened.log("latest", partition).scan(columns=["key"]).read_all()
            kept |= {*rows["key"].to_pylist()}
        self._view = {key: value for key, value in self._view.items() if key in kept}

    def write(self) -> None:
        """Write one job under its number; sometimes it runs twice."""
        number = self._written
        self._ledger.note("begin", slot=SPARK, number=number)
        _, records = records_of(self._run, SPARK, number, {})
        frame = self._spark.createDataFrame(table_of(records)).repartition(2, "partition")
        for _ in range(2 if number % 5 == 0 else 1):
            (
                frame.write.format("segmentlog")
                .options(topic="latest", txnAppId="soak", txnVersion=str(number))
                .option("kafka.compression.type", ("none", "zstd", "lz4")[number % 3])
                .mode("append")
                .save(str(self._directory))
            )
            self.counts["jobs of Spark's"] += 1
        self._ledger.note("committed", slot=SPARK, number=number)
        self._written += 1

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
