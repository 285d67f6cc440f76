"""A query moves from ``kafka`` to a copy of its cluster on one checkpoint, and back."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

pytestmark = [pytest.mark.interop, pytest.mark.spark]

#: Settings of a session for each form of the offset log.
FORMS = {
    "v1": {},
    "v2": {"spark.sql.streaming.offsetLog.formatVersion": "2"},
    "named": {
        "spark.sql.streaming.offsetLog.formatVersion": "2",
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    },
}

N_PARTITIONS = 11  # "10" follows "2" only as a number


@dataclass
class Moved:
    """One query on one checkpoint, which either source feeds.

    Parameters
    ----------
    form : of the offset log, one of `FORMS`.

    Attributes
    ----------
    batches : the values of each micro-batch, by its number; a repeat replaces the values.
    """

    spark: SparkSession
    broker: Broker
    client: JavaClient
    checkpoint: Path
    topic: str
    form: str = "v1"
    batches: dict[int, list[int]] = field(default_factory=dict)
    n_produced: int = 0

    def produce(self, n_records: int) -> None:
        """Records in all partitions; each value is the next number."""
        numbers = range(self.n_produced, self.n_produced + n_records)
        self.client.produce(
            self.topic,
            [
                Outgoing(b"%d" % (i % 3), b"%d" % i, (), 1_700_000_000_000 + i, i % N_PARTITIONS)
                for i in numbers
            ],
        )
        self.n_produced += n_records

    def source(self, name: str, **options: str) -> DataFrame:
        """Rows of the topic by one of the two sources."""
        reader = self.spark.readStream.format(name).option("startingOffsets", "earliest")
        reader = reader.option("subscribe", self.topic).options(**options)
        if self.form == "named":
            reader = reader.name("orders")
        if name == "kafka":
            return reader.option("kafka.bootstrap.servers", self.broker.bootstrap_servers).load()
        # The high watermark on the disk of a running broker is up to five seconds old.
        return reader.option("readUpTo", "logEnd").load(str(self.broker.log_dir))

    def run(self, name: str, **options: str) -> list[int]:
        """Run the query until it has read all, and return the numbers of its new batches."""
        before = set(self.batches)

        def take(rows: DataFrame, number: int) -> None:
            values = rows.select(F.col("value").cast("string").cast("int")).collect()
            self.batches[number] = [row[0] for row in values]

        query = (
            self.source(name, **options)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(set(self.batches) - before)

    def assert_each_once(self) -> None:
        """All records that were produced have come once."""
        values = Counter(value for batch in self.batches.values() for value in batch)
        assert Counter(range(self.n_produced)) == values

    def forget_last_commit(self) -> int:
        """Let the last batch look as if Spark had died before it noted the commit."""
        number = max(int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*"))
        (self.checkpoint / "commits" / str(number)).unlink()
        (self.checkpoint / "commits" / f".{number}.crc").unlink(missing_ok=True)
        return number

    def logged(self, number: int) -> list[str]:
        """The offsets of a batch, a line for each source."""
        return (self.checkpoint / "offsets" / str(number)).read_text().splitlines()[2:]


@pytest.fixture
def moved(
    shared: tuple[Broker, JavaClient],
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Moved]:
    """A query that has not begun, and its topic, with the form of the offset log as parameter."""
    broker, client = shared
    form = getattr(request, "param", "v1")
    topic = f"t{abs(hash(request.node.name)):x}"
    client.create_topic(topic, N_PARTITIONS, retention_ms=-1)
    for name, value in FORMS[form].items():
        spark.conf.set(name, value)
    query = Moved(spark, broker, client, tmp_path / "checkpoint", topic, form)
    query.produce(40)
    yield query
    for name in FORMS[form]:
        spark.conf.unset(name)


@pytest.mark.parametrize(
    "moved",
    [
        pytest.param("v1", marks=pytest.mark.thorough),
        pytest.param("v2", marks=pytest.mark.slow),
        pytest.param("named", marks=pytest.mark.slow),
    ],
    indirect=True,
)
def test_a_query_moves_there_and_back_twice(moved: Moved) -> None:
    """No row is lost or repeated. A move costs at most one batch without rows."""
    for number, name in enumerate(("kafka", "segmentlog", "kafka", "segmentlog")):
        if number:
            moved.produce(15)
        new = moved.run(name)
        n_empty = sum(not moved.batches[each] for each in new)
        assert n_empty <= bool(number), moved.batches
        moved.assert_each_once()
        assert not moved.run(name), "an idle source has begun a batch"


@pytest.mark.slow
@pytest.mark.parametrize("moved", ["v1", "named"], indirect=True)
def test_ours_comes_first(moved: Moved) -> None:
    """A checkpoint that our source has begun is continued by ``kafka``."""
    moved.run("segmentlog")
    moved.produce(15)
    moved.run("kafka")

    moved.assert_each_once()


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [("kafka", "segmentlog"), ("segmentlog", "kafka")])
def test_an_uncommitted_batch_is_repeated_by_the_other_source(
    moved: Moved, first: str, then: str
) -> None:
    """The other source returns the rows of the repeated batch, and then the new rows."""
    moved.run(first)
    moved.produce(20)
    moved.run(first)
    last = moved.forget_last_commit()
    expected = sorted(moved.batches.pop(last))
    moved.produce(10)
    moved.run(then)

    assert expected == sorted(moved.batches[last])
    moved.assert_each_once()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("kafka", "segmentlog"),
        ("segmentlog", "kafka"),
    ],
)
def test_an_uncommitted_batch_0_is_repeated_by_the_other_source(
    moved: Moved, first: str, then: str
) -> None:
    """Both sources read the start of the query in the file of ``kafka``, not in the options.

    The query starts at its first record. The other source is asked to start at the latest record.
    """
    place = {"initialOffsetsLocation": str(moved.checkpoint / "sources" / "0")}
    moved.run(first, **(place if first == "segmentlog" else {}))
    assert moved.forget_last_commit() == 0
    expected = sorted(moved.batches.pop(0))
    moved.produce(10)
    moved.run(then, **{"startingOffsets": "latest", **(place if then == "segmentlog" else {})})

    assert expected == sorted(moved.batches[0])
    moved.assert_each_once()


@pytest.mark.slow
def test_state_moves_with_the_query(moved: Moved) -> None:
    """Counts for each key continue where the other source had left them."""
    counts: dict[str, int] = {}

    def take(rows: DataFrame, _: int) -> None:
        counts.update({row["k"]: row["count"] for row in rows.collect()})

    for number, name in enumerate(("kafka", "segmentlog", "kafka")):
        if number:
            moved.produce(15)
        rows = moved.source(name).groupBy(F.col("key").cast("string").alias("k")).count()
        query = rows.writeStream.foreachBatch(take).outputMode("update")
        query = query.option("checkpointLocation", str(moved.checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    expected = Counter(str(i % 3) for i in range(moved.n_produced))
    assert dict(expected) == counts


@pytest.mark.thorough
def test_offsets_are_logged_as_kafka_logs_them(moved: Moved, tmp_path: Path) -> None:
    """Both sources log equal numbers, with partitions in the order of their numbers.

    Ours adds the id of the topic, as a topic without partitions.
    """
    moved.run("kafka")
    ours = Moved(moved.spark, moved.broker, moved.client, tmp_path / "ours", moved.topic)
    ours.run("segmentlog")
    (theirs,), (logged,) = moved.logged(0), ours.logged(0)

    found = json.loads(logged)
    ids = {name for name in found if not found[name]}
    assert 1 == len(ids)
    assert json.loads(theirs) == {name: found[name] for name in found if name not in ids}
    assert [str(each) for each in range(N_PARTITIONS)] == [*json.loads(logged)[moved.topic]]


@pytest.mark.slow
def test_a_shorter_copy_is_refused(moved: Moved, tmp_path: Path) -> None:
    """A copy that ends before the checkpoint has lost records. The error names both offsets."""
    copy = tmp_path / "copy"
    shutil.copytree(moved.broker.log_dir, copy)
    moved.produce(22)
    moved.run("kafka")
    reader = moved.spark.readStream.format("segmentlog").option("subscribe", moved.topic)
    query = (
        reader.option("readUpTo", "logEnd")
        .load(str(copy))
        .writeStream.format("noop")
        .option("checkpointLocation", str(moved.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match=r"\d+.*\d+"):
        query.awaitTermination()
