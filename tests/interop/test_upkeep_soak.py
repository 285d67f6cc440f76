"""Processes as in `test_stress`, and a stream of Spark's, use one directory; a broker serves it.

A writer and the upkeep are killed sometimes.  Jobs of Spark's write and compact, and one reads on
from where it has come to.  The long run takes an hour, or ``SOAK_SECONDS``; ``SOAK_SEED`` is the
seed of the written data.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kafka_here import Broker, JavaClient
from numbered_jobs import LEVELS
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from random_operations.ledger import Ledger, now
from random_operations.reader import look, seen_in
from random_operations.run import Processes, Run, run_command, spark_rows
from random_operations.verdict import Verdict, report, table, tally

import pyspark_segmentlog
import segmentlog
from segmentlog.errors import LogLockedError
from segmentlog.txn.state import State

pytestmark = [pytest.mark.interop, pytest.mark.spark]


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
                "look",
                kind="stream",
                level="",
                begun=begun,
                planned=now(),
                changed=[],
                topics=[*first],
                seen={name: seen_in(name, each.to_batches()) for name, each in partitions.items()},
                **{"from": offsets_of},
            )
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


_SECONDS = float(os.environ.get("SOAK_SECONDS", "3600"))

SHORT = Run(
    int(os.environ.get("SOAK_SEED", "1")), seconds=10, n_readers=1, lives=5, rest=1,
    writers=[{"append": 3, "append_large": 1, "produce": 8}, {"compacting": 3, "retaining": 1}],
    topics={"latest": 4, "sized": 2, "timed": 2}, made=["latest", "sized", "timed"],
    compacted=["latest"], delay_ms=3000, longest_ms=1500, n_keys=300, tombstones_ms=4000,
    timed_ms=4000, sized_bytes=100_000, segment_bytes=(3000, 30_000),
)  # fmt: skip
LONG = SHORT._replace(
    seconds=_SECONDS,
    lives=30,
    rest=6,
    delay_ms=15_000,
    longest_ms=7000,
    n_keys=3000,
    tombstones_ms=45_000,
    timed_ms=40_000,
    sized_bytes=1_500_000,
    segment_bytes=(15_000, 150_000),
)


def made(directory: Path, version: str, run: Run) -> Broker:
    """A stopped broker's directory with the topics."""
    broker = Broker(directory, version)
    common: dict[str, object] = {
        "internal_segment_bytes": run.segment_bytes[-1],
        "file_delete_delay_ms": run.delay_ms,
        "index_interval_bytes": 500,
    }
    own: dict[str, dict[str, object]] = {
        "latest": {
            "cleanup_policy": "compact",
            "min_cleanable_dirty_ratio": 0.05,
            "delete_retention_ms": run.tombstones_ms,
        },
        "sized": {"retention_bytes": run.sized_bytes, "retention_ms": -1},
        "timed": {"retention_ms": run.timed_ms},
    }
    with broker, JavaClient(broker) as client:
        for topic, settings in own.items():
            client.create_topic(topic, run.topics[topic], **common, **settings)
    return broker


@pytest.mark.slow
@pytest.mark.timeout(_SECONDS + 900)
@pytest.mark.parametrize("run", [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long")])
def test_each_look_is_one_moment_and_a_broker_serves_the_last_one(
    new_version: str, spark: SparkSession, tmp_path: Path, say: Callable[[str], None], run: Run
) -> None:
    broker = made(tmp_path / "kafka", new_version, run)
    directory, ledger = broker.log_dir, Ledger(tmp_path / "ledger")
    first, begun = State.read(str(directory)), now()
    stream = Stream(spark, directory, ledger, run)
    seen, n_polls = Counter[str](), 0

    def poll() -> None:
        nonlocal n_polls
        n_polls += 1
        stream.step()
        if n_polls % 3 == 0:
            stream.write()
        elif n_polls % 3 == 1:
            stream.compact()
        time.sleep(0.5)

    def is_enough() -> bool:
        seen.update(tally(ledger.events()))
        return not missing(seen + stream.counts)

    processes = Processes(directory, ledger, run)
    try:
        processes.watch(is_enough, poll)
        processes.end()
    finally:
        processes.kill()
    for command in (
        "recover",
        "compact",
        "retain --kafka-defaults",
        "recover",
        "verify --records --producers",
    ):
        if command.startswith("retain"):
            stream.step()  # a change by a command is in no note of the ledger
            verdict = Verdict(Ledger(ledger.path).events(), run, first, State.read(str(directory)))
        run_command(command, directory)
    counts = verdict.counts + stream.counts
    say(f"\nsoak {run}\n{table(counts)}")
    assert not verdict.failures, report(verdict.failures, begun)
    assert not list(directory.glob("segmentlog.unfinished.*"))

    opened = segmentlog.open_log_dir(directory)
    last = {
        str(each): (opened.log(*each).log_start_offset, opened.log(*each).log_end_offset)
        for each in opened.topic_partitions()
        if each.topic in run.topics
    }
    assert {name: end for name, (_, end) in last.items()} == {
        name: end for name, (_, end) in verdict.moments[-1].items()
    }
    for level in LEVELS:
        event = {"seen": look(opened, level), "changed": [], "at": now(), "topics": run.topics}
        assert not verdict.difference(event, last), level
    with broker, JavaClient(broker) as client:
        served = {name: seen_in(name, rows_of(client, *name.rsplit("-"))) for name in last}
        event = {"seen": served, "changed": [], "at": now()}
        assert not verdict.difference(event, last)
        for topic in run.topics:
            for partition, (_, end) in client.offsets(topic).items():
                assert last[f"{topic}-{partition}"][1] == end
    assert not missing(counts)


def rows_of(client: JavaClient, topic: str, partition: str) -> list[pa.RecordBatch]:
    """The rows of a partition that a consumer gets."""
    rows = [each for each in client.consume(topic) if each.partition == int(partition)]
    columns = {
        "offset": pa.array([each.offset for each in rows], pa.int64()),
        "key": pa.array([each.key for each in rows], pa.binary()),
        "value": pa.array([each.value for each in rows], pa.binary()),
    }
    return pa.table(columns).to_batches()


def missing(counts: Counter[str]) -> list[str]:
    """Events that have not happened; the run does not test them."""
    wanted = (
        "job: append",
        "job: produce",
        "event: killed",
        "jobs of Spark's",
        "stream: records",
        "upkeep: compacting, partitions or files",
        "upkeep: retaining, partitions or files",
        "compactions on executors: partitions",
        "read: held, default",
        "read: dataset, default",
    )
    return [name for name in wanted if not counts[name]]
