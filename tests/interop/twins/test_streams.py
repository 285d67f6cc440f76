"""Streams: triggers, limits, restarts, data loss, transactions, sinks, progress, checkpoints."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from twins import World, refused, rows, texts, twin

from pyspark_segmentlog.spark_versions import TELLS_STREAMS

pytestmark = [pytest.mark.interop, pytest.mark.spark]

T0 = 1_700_000_000_000


class Run:
    """One run of a query with a checkpoint, until it has read all.

    `batches`: the values of each micro-batch. `progress`: of the last micro-batch that had rows.
    """

    def __init__(
        self, world: World, frame: DataFrame, name: str = "c", trigger: str = "availableNow"
    ) -> None:
        self.batches: list[list[Any]] = []
        self._place = world.place / name
        writer = frame.writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._place))
        query = writer.trigger(**{trigger: True}).start()
        query.awaitTermination()
        self.progress = [each for each in query.recentProgress if each["numInputRows"]]

    def _take(self, batch: DataFrame, _: int) -> None:
        self.batches.append(texts(batch))

    def start(self) -> Any:
        """The offsets at which the query has started, of its first source."""
        return json.loads((self._place / "sources" / "0" / "0").read_text().splitlines()[-1])

    def offsets(self) -> list[Any]:
        """The offsets that the checkpoint has of each micro-batch."""
        logged = sorted((self._place / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [
            [json.loads(line) for line in path.read_text().splitlines()[2:]] for path in logged
        ]


def values(n: int, first: int = 0) -> list[str]:
    """Different values of one width."""
    return [f"{i:03}" for i in range(first, first + n)]


@twin
def test_a_stream_and_its_restart(world: World) -> Any:
    """Micro-batches by a limit, offsets in the checkpoint, and a second run with new records."""
    world.write(*values(15))
    first = Run(world, world.stream(maxOffsetsPerTrigger=6))
    world.write(*values(4, 15))
    second = Run(world, world.stream(maxOffsetsPerTrigger=6))
    assert [each for run in (first, second) for batch in run.batches for each in batch] == values(
        19
    )
    source = first.progress[0]["sources"][0]
    if not TELLS_STREAMS:  # such a run of the plugin takes all in one micro-batch
        return second.start(), first.offsets()[-1], second.offsets()[-1], source["startOffset"]
    names = ("description", "metrics", "startOffset", "endOffset", "latestOffset", "numInputRows")
    return (
        first.batches,
        second.batches,
        second.start(),
        second.offsets(),
        [source[name] for name in names],
    )


@pytest.mark.slow
@twin
def test_a_first_batch_that_fails(world: World) -> Any:
    """The restart begins where the first run began, although later records came meanwhile."""
    world.write("old")

    def fail(batch: DataFrame, _: int) -> None:
        batch.collect()
        raise RuntimeError

    stream = world.spark.readStream.format("kafka").options(**world.options({}))
    checkpoint = str(world.place / "c")
    query = (
        stream.load()
        .writeStream.foreachBatch(fail)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    kept = world.place / "c" / "sources" / "0" / "0"
    while not kept.exists():
        time.sleep(0.02)
    world.write("new")
    failed, _ = refused(query.awaitTermination)
    world.write("newer")
    found = [each for batch in Run(world, stream.load()).batches for each in batch]
    return failed, sorted(found), kept.read_text().splitlines()[1:]


@pytest.mark.slow
@twin
def test_limits_in_proportion(world: World) -> Any:
    """A limit is shared by backlog, and each partition with a backlog advances."""
    world.create(3)
    for partition, n_records in enumerate((51, 6, 1)):
        world.write(*values(n_records, 100 * partition), partition=partition)
    run = Run(world, world.stream(maxOffsetsPerTrigger=10))
    return run.batches, run.offsets()


@pytest.mark.slow
@twin
def test_a_stream_from_latest(world: World) -> Any:
    """The default start is the end at the first run; a restart misses nothing."""
    world.write("old")
    stream = world.spark.readStream.format("kafka").options(**world.options({}))
    first = Run(world, stream.load())
    world.write("new")
    second = Run(world, stream.load())
    return first.batches, second.batches


@pytest.mark.slow
@twin
def test_a_stream_from_offsets(world: World) -> Any:
    """A number, earliest and latest, for each partition."""
    world.create(3)
    for partition in range(3):
        world.write(*values(4, 10 * partition), partition=partition)
    start = json.dumps({world.topic: {"0": 2, "1": -2, "2": -1}})
    first = Run(world, world.stream(startingOffsets=start))
    world.write("later", partition=2)
    return first.batches, Run(world, world.stream(startingOffsets=start)).batches


@pytest.mark.slow
@twin
def test_a_stream_from_a_time(world: World) -> Any:
    """The first record at or after the time, and with a strategy the end."""
    world.write(*[{"value": str(i), "timestamp": T0 + i} for i in range(5)])
    late = {"startingTimestamp": T0 + 99, "startingOffsetsByTimestampStrategy": "latest"}
    return [
        Run(world, world.stream(startingTimestamp=T0 + 3), "a").batches,
        Run(world, world.stream(**late), "b").batches,
        Run(
            world,
            world.stream(startingOffsetsByTimestamp=json.dumps({world.topic: {"0": T0 + 4}})),
            "c",
        ).batches,
    ]


@pytest.mark.slow
@twin
def test_partitions_and_topics_that_come(world: World) -> Any:
    """A restart reads them from earliest."""
    world.write("first", topic=f"{world.topic}.a")
    world.create()
    pattern = {"subscribePattern": f"^{world.topic}", "startingOffsets": "latest"}
    first = Run(world, world.stream(**pattern))
    world.add_partitions(2)
    world.write("in a new partition", partition=1)
    world.write("in a new topic", topic=f"{world.topic}.b")
    second = Run(world, world.stream(**pattern))
    return first.batches, [sorted(each) for each in second.batches], second.offsets()[-1]


@pytest.mark.slow
@twin
def test_assigned_partitions_of_a_stream(world: World) -> Any:
    """Other partitions are not read, also those that come later."""
    world.create(2)
    world.write("a", partition=0)
    world.write("b", partition=1)
    assigned = {"assign": json.dumps({world.topic: [1]})}
    first = Run(world, world.stream(**assigned))
    world.add_partitions(3)
    world.write("c", partition=2)
    world.write("d", partition=1)
    return first.batches, Run(world, world.stream(**assigned)).batches


@pytest.mark.slow
@twin
def test_data_loss_of_a_stream(world: World) -> Any:
    """Deleted records fail a query, or are skipped with failOnDataLoss=false."""
    world.write(*values(6))
    first = Run(world, world.stream())
    world.write(*values(4, 6))
    world.delete_records(8)
    failed, _ = refused(lambda: Run(world, world.stream()))
    return first.batches, failed, Run(world, world.stream(failOnDataLoss="false")).batches


@pytest.mark.slow
@twin
def test_transactions_in_a_stream(world: World) -> Any:
    """Micro-batches by offsets: aborted records and markers leave them smaller, or empty."""
    for end, n_records in (("commit", 4), ("abort", 4), ("commit", 3)):
        transaction = world.transaction()
        transaction.write(world.topic, [f"{end}-{i}" for i in range(n_records)])
        getattr(transaction, end)()
    found = []
    for level in ("read_committed", "read_uncommitted"):
        options = {"kafka.isolation.level": level, "maxOffsetsPerTrigger": 3}
        run = Run(world, world.stream(**options), level)
        found.append((run.batches, run.offsets()))
    return found


def _to_topic(
    world: World,
    change: Callable[[DataFrame], DataFrame],
    mode: str = "append",
    between: Callable[[Path], object] = lambda _: None,
    **options: Any,
) -> Any:
    """Rows of a stream from the topic into another topic, and what its sink has reported.

    `between`: a change of the checkpoint before the second run, which sees it as before the first.
    """
    out = f"{world.topic}-out"
    world.create(topic=out)
    checkpoint = world.place / out
    given = {
        "kafka.bootstrap.servers": world.servers,
        "topic": out,
        "checkpointLocation": str(checkpoint),
        **options,
    }
    reported = []
    for act in (between, lambda _: None):
        writer = change(world.stream()).writeStream.format("kafka").options(**given)
        query = writer.outputMode(mode).trigger(availableNow=True).start()
        query.awaitTermination()
        with_rows = [each["sink"] for each in query.recentProgress if each["numInputRows"]]
        shown = [(each["description"].split("@")[0], each["numOutputRows"]) for each in with_rows]
        reported.append(shown)
        act(checkpoint)
        world.write({"key": "a", "value": "9"})
    return rows(world.read(subscribe=out), "key", "value"), reported


def _counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").agg(F.count("*").cast("string").alias("value"))


@pytest.mark.slow
@twin
def test_from_topic_to_topic(world: World) -> Any:
    """Two runs, each with what was new."""
    world.write(*[{"key": key, "value": key} for key in "abc"])
    return _to_topic(world, lambda frame: frame.select("key", F.upper("value").alias("value")))


@pytest.mark.slow
@twin
def test_counts_in_the_update_mode(world: World) -> Any:
    """Each run writes the counts that have changed."""
    world.write(*[{"key": key, "value": key} for key in "abca"])
    return _to_topic(world, _counted, "update")


@pytest.mark.slow
@twin
def test_counts_in_the_complete_mode(world: World) -> Any:
    """Each run writes all counts."""
    world.write(*[{"key": key, "value": key} for key in "abca"])
    return _to_topic(world, _counted, "complete")


@twin
def test_a_rolled_back_checkpoint(world: World) -> Any:
    """The rows of the micro-batch that is run again come twice."""
    world.write({"key": "a", "value": "1"}, {"key": "b", "value": "2"})

    def roll_back(checkpoint: Path) -> None:
        for each in ("commits", "offsets"):
            for path in (checkpoint / each).glob("*0*"):
                path.unlink()

    return _to_topic(world, lambda frame: frame.select("key", "value"), between=roll_back)


@pytest.mark.slow
@twin
def test_a_pool_in_a_function_of_micro_batches(world: World) -> Any:
    """Threads write the parts of a micro-batch to two topics."""
    world.write(*[{"key": f"k{i}", "value": "ab"[i % 2]} for i in range(6)])
    topics = {each: f"{world.topic}-{each}" for each in "ab"}
    for topic in topics.values():
        world.create(topic=topic)

    def take(batch: DataFrame, _: int) -> None:
        def write(value: str) -> None:
            chosen = batch.where(F.col("value").cast("string") == value)
            world.save(chosen.select("key", "value"), topic=topics[value])

        batch.persist()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(write, topics))
        batch.unpersist()

    query = world.stream().writeStream.foreachBatch(take)
    query = query.option("checkpointLocation", str(world.place / "c"))
    query.trigger(availableNow=True).start().awaitTermination()
    return [rows(world.read(subscribe=each), "key", "value") for each in topics.values()]


@pytest.mark.slow
@twin
def test_a_function_after_or_before_the_format(world: World) -> Any:
    """The last of the calls names the sink; a function needs no checkpoint and no topic.

    Partitions of files are ignored.
    """
    world.write("a")
    out, taken = f"{world.topic}-out", []
    world.create(topic=out)

    def take(batch: DataFrame, _: int) -> None:
        taken.extend(texts(batch))

    to_kafka = {"kafka.bootstrap.servers": world.servers, "topic": out}
    writer = world.stream().writeStream.format("kafka").options(**to_kafka).foreachBatch(take)
    writer.trigger(availableNow=True).start().awaitTermination()
    after = list(taken)
    writer = world.stream().writeStream.foreachBatch(take).format("kafka").options(**to_kafka)
    writer = writer.option("checkpointLocation", str(world.place / "c")).partitionBy("nothing")
    writer.trigger(availableNow=True).start(partitionBy="value").awaitTermination()
    return after, taken, texts(world.read(subscribe=out))


@twin
def test_streams_without_a_checkpoint(world: World) -> Any:
    """A sink needs a checkpoint in each output mode."""
    world.write({"key": "a", "value": "1"})
    counts = _counted(world.stream())
    frames = {"append": world.stream(), "update": counts, "complete": counts}
    options = {"kafka.bootstrap.servers": world.servers, "topic": f"{world.topic}-out"}
    return [
        refused(frame.writeStream.format("kafka").options(**options).outputMode(mode).start)
        for mode, frame in frames.items()
    ]


@pytest.mark.slow
@twin
def test_asynchronous_progress(world: World) -> Any:
    """Spark refuses it with triggers that end."""
    world.write("a")
    out = f"{world.topic}-out"
    world.create(topic=out)
    options = {
        "kafka.bootstrap.servers": world.servers,
        "topic": out,
        "checkpointLocation": str(world.place / "c"),
    }
    writer = world.stream().select("value").writeStream.format("kafka").options(**options)
    writer = writer.option("asyncProgressTrackingEnabled", True)
    found = [refused(writer.trigger(**{name: True}).start) for name in ("availableNow", "once")]
    query = writer.trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    query.stop()
    return found, texts(world.read(subscribe=out))


@pytest.mark.slow
@twin
def test_once_ignores_limits(world: World) -> Any:
    """The trigger `once` reads all in one micro-batch."""
    world.write(*values(9))
    return Run(world, world.stream(maxOffsetsPerTrigger=2), trigger="once").batches


@pytest.mark.slow
@twin
def test_windows_with_a_watermark(world: World) -> Any:
    """The column `timestamp` is the time of events."""
    world.write(*[{"value": "v", "timestamp": T0 + 40_000 * i} for i in range(6)])
    frame = world.stream().withWatermark("timestamp", "1 minute")
    counts = frame.groupBy(F.window("timestamp", "1 minute")).count()
    counts = counts.select(F.unix_timestamp("window.start").alias("start"), "count")
    found: list[Any] = []
    query = counts.writeStream.foreachBatch(lambda batch, _: found.extend(rows(batch)))
    query = query.option("checkpointLocation", str(world.place / "w")).outputMode("append")
    query.trigger(availableNow=True).start().awaitTermination()
    return sorted(found)


@pytest.mark.slow
@twin
def test_a_stream_with_headers_and_nulls(world: World) -> Any:
    """The columns are those of a batch."""
    world.write({"key": None, "value": None, "headers": [("h", "1")]}, {"key": "k", "value": ""})
    found: list[Any] = []
    query = world.stream(includeHeaders=True).writeStream.foreachBatch(
        lambda batch, _: found.extend(rows(batch, "key", "value", "headers", "offset"))
    )
    query = query.option("checkpointLocation", str(world.place / "h"))
    query.trigger(availableNow=True).start().awaitTermination()
    return found


@pytest.mark.slow
@twin
def test_two_streams_and_a_table(world: World) -> Any:
    """A union of two sources advances both, and is joined with a batch."""
    other = f"{world.topic}-other"
    world.write("a", "b")
    world.write("c", topic=other)
    world.write({"key": "b", "value": "joined"}, topic=f"{world.topic}-names")
    names = world.read(subscribe=f"{world.topic}-names").select("key", F.col("value").alias("n"))
    union = world.stream().select("value").union(world.stream(subscribe=other).select("value"))
    joined = union.join(names, union.value == names.key, "left")
    run = Run(world, joined.select(F.coalesce("n", "value").alias("value")))
    return [sorted(each) for each in run.batches], run.offsets()


@pytest.mark.slow
@twin
def test_duplicates_are_dropped(world: World) -> Any:
    """State of Spark over two runs."""
    world.write("a", "b", "a")
    first = Run(world, world.stream().dropDuplicates(["value"]).select("value"))
    world.write("b", "c")
    second = Run(world, world.stream().dropDuplicates(["value"]).select("value"))
    return first.batches, second.batches


@pytest.mark.slow
@twin
def test_an_idle_restart(world: World) -> Any:
    """A run without new records has no micro-batch."""
    world.write("a")
    return [Run(world, world.stream()).batches for _ in range(3)]


@pytest.mark.slow
@twin
def test_minimal_offsets_of_a_stream(world: World) -> Any:
    """The first micro-batch does not wait for the least number of offsets."""
    world.write(*values(3))
    options = {"minOffsetsPerTrigger": 100, "maxTriggerDelay": "15m"}
    return Run(world, world.stream(**options)).batches
