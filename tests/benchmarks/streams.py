"""Streams through Spark beside ``kafka`` and trivial streams in Python, over Unix domain sockets.

A contestant is a query on its own checkpoint, and ends with the records that are there.
Its figures are those of Spark's progress, ``triggerExecution`` of each micro-batch with rows.
"""

import itertools
import json
import random
import re
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_here import Broker
from measure import Row
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from query_data import N_PARTITIONS, TOPIC, QueryData
from segmentlog_bench_streams import TrivialSource
from spark_scan import session

import segmentlog

__all__ = ["StreamData", "backlog", "idle", "large_batches", "latency", "small_batches"]

_SMALL = 400  #: rows of a small micro-batch
_WARM_UP = 3  #: micro-batches of each query that are not counted
_MIRRORED = ["key", "value", "partition"]
_MB = 1e6


class StreamData:
    """The log that the rows about streams read, and scratch space for what they write.

    Parameters
    ----------
    scratch : a directory for these rows alone.
    n_small : counted micro-batches of a query with small micro-batches.
    n_large : records of a large micro-batch.
    idle_seconds : for which an idle query is watched.
    """

    def __init__(self, scratch: Path, n_small: int, n_large: int, idle_seconds: float) -> None:
        self.scratch = scratch
        self.n_small, self.n_large = n_small, n_large
        self.n_records = 4 * n_large
        self.idle_seconds = idle_seconds
        self._data = QueryData(scratch, self.n_records, 0)
        self._numbers = itertools.count()

    @property
    def broker(self) -> Broker:
        """A stopped broker with all records."""
        return self._data.broker

    @cached_property
    def prepared(self) -> str:
        """An Arrow file of the last records, a record batch for each partition and micro-batch."""
        path = self.scratch / "prepared.arrow"
        directory = segmentlog.open_log_dir(self.broker.log_dir)
        n_rows, n_batches = _SMALL // N_PARTITIONS, self.n_small + _WARM_UP
        tables = [
            directory.log(TOPIC, partition).scan(start, read_up_to="logEnd").read_all()
            for partition, start in enumerate(self.starts.values())
        ]
        batches = [
            table.slice(at, n_rows).combine_chunks().to_batches()[0]
            for at in range(0, n_batches * n_rows, n_rows)
            for table in tables
        ]
        with pa.ipc.new_file(str(path), batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return str(path)

    @cached_property
    def starts(self) -> Mapping[str, int]:
        """The offset of each partition at which the small micro-batches begin."""
        n_read = (self.n_small + _WARM_UP) * _SMALL // N_PARTITIONS
        return {str(each): self.n_records // N_PARTITIONS - n_read for each in range(N_PARTITIONS)}

    def new_path(self) -> Path:
        """A path where nothing is."""
        return self.scratch / f"made-{next(self._numbers)}"


class _Streams:
    """A session, a running broker, and the sources and sinks of the contestants."""

    def __init__(self, data: StreamData, spark: SparkSession) -> None:
        self.data, self.spark = data, spark
        self._servers: dict[str, Any] = {"bootstrap.servers": data.broker.bootstrap_servers}

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self._servers | {"broker.address.family": "v4"})

    def ours(self, path: Path | None = None, **options: Any) -> DataFrame:
        """Our source."""
        given = {"subscribe": TOPIC, "startingOffsets": "earliest", "readUpTo": "logEnd"}
        reader = self.spark.readStream.format("segmentlog").options(**given | options)
        return reader.load(str(path or self.data.broker.log_dir))

    def kafka(self, **options: Any) -> DataFrame:
        """Spark's ``kafka`` source."""
        given = {"subscribe": TOPIC, "startingOffsets": "earliest"}
        reader = self.spark.readStream.format("kafka").options(**given | options)
        servers = self._servers["bootstrap.servers"]
        return reader.option("kafka.bootstrap.servers", servers).load()

    def trivial(self) -> DataFrame:
        """The source in Python that yields the Arrow batches of small micro-batches."""
        reader = self.spark.readStream.format("bench_stream")
        return reader.options(file=self.data.prepared, atOnce=N_PARTITIONS).load()

    def to(self, sink: str) -> Callable[[DataFrame], list[int]]:
        """A run of a query into ``noop``, ``segmentlog``, ``kafka`` or a trivial sink.

        ``received`` only receives rows, and ``written`` writes their bytes to files.
        """
        return lambda frame: self._run(frame, sink)

    def _run(self, frame: DataFrame, sink: str) -> list[int]:
        """Milliseconds of the micro-batches of a query that ends by itself."""
        target, options = self.data.new_path(), {}
        if sink == "segmentlog":
            options = {"path": str(target), "topic": TOPIC, "numPartitions": N_PARTITIONS}
        elif sink == "kafka":
            servers = self._servers["bootstrap.servers"]
            options = {"kafka.bootstrap.servers": servers, "topic": target.name}
            new = NewTopic(target.name, N_PARTITIONS)
            self._admin.create_topics([new])[target.name].result()
        elif sink == "written":
            options = {"path": str(target)}
        trivial = sink in ("received", "written")
        progress = self.run(frame, "bench_stream" if trivial else sink, **options)
        if sink == "segmentlog":
            n_rows, n_read = _rows_of_log(target), sum(each["numInputRows"] for each in progress)
            if n_rows != n_read:
                message = f"{n_rows} rows were written, and {n_read} were read"
                raise SystemExit(message)
        if sink in ("segmentlog", "written"):
            shutil.rmtree(target)
        elif sink == "kafka":
            self._admin.delete_topics([target.name])[target.name].result()
        return [each["durationMs"]["triggerExecution"] for each in progress]

    def run(self, frame: DataFrame, sink: str, **options: Any) -> list[Any]:
        """The progress of the micro-batches with rows of a query that ends by itself."""
        query = self.start(frame, sink, {"availableNow": True}, **options)
        query.awaitTermination()
        return with_rows(query)

    def start(
        self, frame: DataFrame, sink: str, trigger: Mapping[str, Any], **options: Any
    ) -> StreamingQuery:
        """Start a query on a new checkpoint."""
        options = {"checkpointLocation": str(self.data.new_path()), **options}
        writer = frame.writeStream.format(sink).options(**options)
        return writer.trigger(**trigger).start()


def with_rows(query: StreamingQuery) -> list[Any]:
    """The progress of the micro-batches that had rows."""
    return [each for each in query.recentProgress if each["numInputRows"]]


def _rows_of_log(target: Path) -> int:
    directory = segmentlog.open_log_dir(target)
    return sum(directory.log(TOPIC, number).log_end_offset for number in directory.topics()[TOPIC])


@contextmanager
def _streams(data: StreamData) -> Iterator[_Streams]:
    """A broker that runs, and a session."""
    with data.broker:
        spark = session(unix_sockets=True)
        try:
            spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
            spark.dataSource.register(TrivialSource)
            yield _Streams(data, spark)
        finally:
            spark.stop()


class _Batches(NamedTuple):
    """Milliseconds of the counted micro-batches of one contestant."""

    found: list[int]

    @property
    def p50(self) -> float:
        """Median."""
        return statistics.median(self.found)

    def __str__(self) -> str:
        return f"{self.p50:.0f} ms (least {min(self.found)}, {len(self.found)} micro-batches)"


def _compare(
    contestants: Mapping[str, Callable[[], list[int]]], rounds: int, skipped: int
) -> dict[str, _Batches]:
    """Run each contestant once to warm up, then all in a random order, `rounds` times.

    Parameters
    ----------
    skipped : micro-batches at the beginning of each query that are not counted.

    Raises
    ------
    SystemExit
        If two contestants had different numbers of micro-batches.
    """
    counts = {name: len(run()) for name, run in contestants.items()}
    if len(set(counts.values())) > 1:
        message = f"the contestants disagree: {counts}"
        raise SystemExit(message)
    found: dict[str, list[int]] = {name: [] for name in contestants}
    order = random.Random(rounds)
    for _ in range(rounds):
        for name in order.sample([*contestants], len(contestants)):
            found[name] += contestants[name]()[skipped:]
    return {name: _Batches(each) for name, each in found.items()}


def small_batches(data: StreamData, rounds: int) -> list[Row]:
    """Micro-batches of 400 rows, 100 of each partition, from sources and into sinks."""
    starts = json.dumps({TOPIC: data.starts})
    options: dict[str, Any] = {"startingOffsets": starts, "maxOffsetsPerTrigger": _SMALL}
    with _streams(data) as streams:
        noop, ours = streams.to("noop"), streams.to("segmentlog")
        received = streams.to("received")
        sources = _compare(
            {
                "ours": lambda: noop(streams.ours(**options)),
                "kafka": lambda: noop(streams.kafka(**options)),
                "trivial": lambda: noop(streams.trivial()),
            },
            rounds,
            _WARM_UP,
        )
        sinks = _compare(
            {
                "ours": lambda: ours(streams.trivial().select(*_MIRRORED)),
                "trivial": lambda: received(streams.trivial().select(*_MIRRORED)),
            },
            rounds,
            _WARM_UP,
        )
    work = f"micro-batch of {_SMALL} rows of {N_PARTITIONS} partitions, `triggerExecution`"

    def row(other: str, against: str, goal: str) -> Row:
        detail = (
            f"p50 {sources['ours']} against {sources[other]}; into `noop`; bound by Spark, which "
            "writes two files of the checkpoint; less is better"
        )
        ratio = f"{sources['ours'].p50 / sources[other].p50:.2f}"
        return Row(f"source: {work}", against, goal, ratio, detail)

    more = sinks["ours"].p50 - sinks["trivial"].p50
    detail = (
        f"p50 {sinks['ours']} against {sinks['trivial']}; from a trivial Python source, "
        "`flush=commit`; bound by the syncs of the commit"
    )
    against = "a Python sink that only receives rows: the difference"
    return [
        row("kafka", "Spark's `kafka` source on a running broker", "≤ 1"),
        row("trivial", "a Python source that yields the same Arrow batches", "≤ 1.1"),
        Row(f"sink: {work}", against, "≤ 40 ms", f"{more:.0f} ms", detail),
    ]


def large_batches(data: StreamData, rounds: int) -> list[Row]:
    """Micro-batches of a million rows, from sources, into sinks, and from logs into logs."""
    options = {"maxOffsetsPerTrigger": data.n_large}
    with _streams(data) as streams:

        def run(source: Callable[..., DataFrame], sink: str) -> Callable[[], list[int]]:
            to = streams.to(sink)
            if sink == "noop":
                return lambda: to(source(**options))
            return lambda: to(source(**options).select(*_MIRRORED))

        found = _compare(
            {
                "source": run(streams.ours, "noop"),
                "kafka": run(streams.kafka, "noop"),
                "mirror": run(streams.ours, "segmentlog"),
                "kafka mirror": run(streams.kafka, "kafka"),
                "kafka sink": run(streams.ours, "kafka"),
                "received": run(streams.ours, "received"),
                "written": run(streams.ours, "written"),
            },
            rounds,
            1,
        )

    def row(work: str, ours: str, theirs: str, against: str, goal: str, bound: str) -> Row:
        speeds = " against ".join(
            f"{data.n_large / found[name].p50 / 1e3:.2f}" for name in (ours, theirs)
        )
        detail = f"{speeds} M rows/s; p50 {found[ours]} against {found[theirs]}; bound by {bound}"
        ratio = f"{found[theirs].p50 / found[ours].p50:.2f}"
        size = f"micro-batches of {data.n_large:,} rows of 110 B"
        return Row(f"{work}, {size}", against, goal, ratio, detail)

    return [
        row("source", "source", "kafka", "Spark's `kafka` source on a running broker", "≥ 2",
            "the connection from Python to the JVM"),
        row("mirror, our source into our sink", "mirror", "kafka mirror",
            "`kafka` source into `kafka` sink", "≥ 2",
            "the connections from Python to the JVM and back"),
        row("sink, after our source", "mirror", "kafka sink", "Spark's `kafka` sink", "≥ 1.5",
            "the connections from Python to the JVM and back"),
        row("sink, after our source", "mirror", "received",
            "a Python sink that only receives rows", "≥ 0.8", "new pages of files, and syncs"),
        row("sink, after our source", "mirror", "written",
            "a Python sink that writes the columns' bytes to a file and syncs it", "–",
            "the same; the Python sink shows the speed that a sink can reach if it keeps its "
            "rows"),
    ]  # fmt: skip


def latency(data: StreamData, rounds: int) -> list[Row]:
    """From the beginning of one query's micro-batch to the end of that which reads its rows."""
    n_batches = data.n_small + _WARM_UP
    total, target = n_batches * _SMALL, data.new_path()
    with segmentlog.open_writer(target, TOPIC, num_partitions=N_PARTITIONS):
        pass  # the topic is created, without rows
    with _streams(data) as streams:
        second = streams.start(
            streams.ours(target, readUpTo="highWatermark"), "noop", {"processingTime": "0 seconds"}
        )
        first = streams.start(
            streams.trivial().select(*_MIRRORED),
            "segmentlog",
            {"processingTime": "1 second"},
            path=str(target),
            topic=TOPIC,
        )
        while sum(each["numInputRows"] for each in with_rows(second)) < total:
            for query in (first, second):
                if query.exception() is not None:
                    raise query.exception()
            time.sleep(0.2)
        sent, read = with_rows(first), with_rows(second)
        first.stop()
        second.stop()
    found, ends = [], iter(_ends(read))
    n_read, at = 0, 0.0
    for n_sent, each in zip(_sums(sent), sent, strict=True):
        while n_read < n_sent:
            n_read, at = next(ends)
        found.append(round(1000 * (at - _begin(each))))
    found = found[_WARM_UP:]
    detail = (
        f"least {min(found)} ms, most {max(found)} ms of {len(found)} micro-batches of {_SMALL} "
        "rows, one a second; bound by Spark's part of two micro-batches"
    )
    p50 = f"{statistics.median(found) / 1000:.2f} s"
    work = (
        "from the beginning of a micro-batch that writes to a log to the end of the micro-batch "
        "that reads its rows"
    )
    return [Row(f"{work}, two queries, p50", "–", "≤ 0.6 s", p50, detail)]


def _sums(progress: list[Any]) -> list[int]:
    """Rows of all micro-batches up to each."""
    return [*itertools.accumulate(each["numInputRows"] for each in progress)]


def _begin(progress: Any) -> float:
    return datetime.fromisoformat(progress["timestamp"]).timestamp()


def _ends(progress: list[Any]) -> Iterator[tuple[int, float]]:
    """Rows up to the end of each micro-batch, and the time of this end."""
    for n_rows, each in zip(_sums(progress), progress, strict=True):
        yield n_rows, _begin(each) + each["durationMs"]["triggerExecution"] / 1000


def _jvm(spark: SparkSession) -> psutil.Process:
    """The process of Spark, whose children are Python's daemons and workers."""
    handles = spark.sparkContext._jvm.java.lang.ProcessHandle
    return psutil.Process(int(handles.current().pid()))


def _peak_bytes(process: psutil.Process) -> int:
    """The largest resident size that a process has had; 0 if it has ended."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def backlog(data: StreamData, rounds: int) -> list[Row]:
    """The Python workers' memory while a query with ``maxBytesPerTrigger`` reads all records."""
    n_at_once = data.n_records * 120 // 16
    with _streams(data) as streams:
        frame = streams.ours(maxBytesPerTrigger=n_at_once)
        query = streams.start(frame, "noop", {"availableNow": True})
        peaks = []
        while query.isActive:
            workers = _jvm(streams.spark).children(recursive=True)
            peaks.append((len(with_rows(query)), max(map(_peak_bytes, workers), default=0)))
            time.sleep(0.1)
        query.awaitTermination()  # raises the error of the query, if it has one
        progress = with_rows(query)
    n_rows = sum(each["numInputRows"] for each in progress)
    if n_rows != data.n_records:
        message = f"{n_rows} of {data.n_records} rows were read"
        raise SystemExit(message)
    early = max(peak for n_batches, peak in peaks if n_batches <= len(progress) // 4)
    most = max(peak for _, peak in peaks)
    detail = (
        f"{n_rows:,} rows in {len(progress)} micro-batches of {n_at_once / _MB:.0f} MB; "
        f"{early / _MB:.0f} MB after a quarter of them; the largest of all Python processes; "
        "bound by the libraries, and by a window of the file and a batch of rows"
    )
    work = "memory of a stream's Python workers, a backlog with `maxBytesPerTrigger`"
    return [Row(work, "–", "< 400 MB", f"{most / _MB:.0f} MB", detail)]


def idle(data: StreamData, rounds: int) -> list[Row]:
    """The processor's time of idle queries, of Spark and its Python processes together."""
    shares: dict[str, list[float]] = {"ours": [], "trivial": []}
    with _streams(data) as streams:
        frames = {
            "ours": lambda: streams.ours(startingOffsets="latest", readUpTo="highWatermark"),
            "trivial": streams.trivial,
        }
        for _ in range(2):
            for name, frame in frames.items():
                query = streams.start(frame(), "noop", {"processingTime": "0 seconds"})
                query.processAllAvailable()
                shares[name].append(_share(_jvm(streams.spark), data.idle_seconds / 2))
                query.stop()
    ours, trivial = (100 * statistics.mean(shares[name]) for name in ("ours", "trivial"))
    detail = (
        f"{ours:.1f} % of a core against {trivial:.1f} %, {data.idle_seconds:.0f} s each; "
        "beside a running broker; bound by Spark, which polls every few milliseconds"
    )
    against = "an idle query of a trivial Python source: the difference"
    measured = f"{ours - trivial:.1f} % of a core"
    return [Row("an idle query", against, "≤ 3 %", measured, detail)]


def _share(process: psutil.Process, seconds: float) -> float:
    """The processor's time of a process and its descendants, in parts of a core."""
    begin, used = time.perf_counter(), _used(process)
    time.sleep(seconds)
    return (_used(process) - used) / (time.perf_counter() - begin)


def _used(process: psutil.Process) -> float:
    used = 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system
    return used
