"""Transactions of real producers, read at both isolation levels, against the broker's consumer."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from kafka_here import Broker, JavaClient, KafkaRecord
from kafka_here.java import Outgoing, TransactionalProducer
from pyspark.sql import SparkSession

import segmentlog
from segmentlog.errors import TornTransactionError
from segmentlog.model import IsolationLevel, ScanPolicy
from segmentlog.reads.scan import scan_slice

pytestmark = pytest.mark.interop

LEVELS = tuple(IsolationLevel)
_T0 = 1_700_000_000_000


def _records(n: int, text: str) -> list[Outgoing]:
    return [Outgoing(b"k%d" % i, text.encode() * 9, (), _T0 + i) for i in range(n)]


def _each_way(client: JavaClient, topic: str) -> None:
    """Transactions that commit, abort, and stay open; the open one holds back later records."""
    producer = client.transactional_producer("each-way")
    for how in ("commit", "abort", "commit", "abort"):
        producer.begin()
        producer.send(topic, _records(5, how))
        producer.end(how)
    client.produce(topic, _records(3, "outside"))
    producer.begin()
    producer.send(topic, _records(4, "open"))
    client.produce(topic, _records(3, "held back"))
    producer.abandon()


def _at_random(client: JavaClient, topic: str) -> None:
    """Five transactional producers and one without transactions; some transactions stay open."""
    rng = random.Random(7)
    producers: list[TransactionalProducer] = [
        client.transactional_producer(f"random-{i}", compression_type="lz4") for i in range(5)
    ]
    for step in range(220):
        producer = rng.choice(producers)
        if rng.random() < 0.15:
            client.produce(topic, _records(2, f"plain {step}"), linger_ms=0)
        elif not producer.is_open:
            producer.begin()
            producer.send(topic, _records(rng.randrange(1, 4), f"first {step}"))
        elif rng.random() < 0.5:
            producer.send(topic, _records(rng.randrange(1, 9), f"more {step}"))
        else:
            producer.end(rng.choice(["commit", "abort"]))
    for producer in producers:
        producer.abandon()


def _all_decided(client: JavaClient, topic: str) -> None:
    """A long aborted transaction over several segments, with committed ones inside it."""
    long = client.transactional_producer("long", compression_type="none")
    short = client.transactional_producer("short")
    long.begin()
    for step in range(30):
        long.send(topic, _records(20, f"long {step}"))
        short.begin()
        short.send(topic, _records(2, f"short {step}"))
        short.end("commit")
    long.end("abort")
    client.produce(topic, _records(5, "after"))


TOPICS = {"each-way": _each_way, "at-random": _at_random, "all-decided": _all_decided}


class Seen(NamedTuple):
    """The broker's answers about a topic."""

    log_dir: Path
    rows: dict[IsolationLevel, list[KafkaRecord]]
    last_stable_offset: int


@pytest.fixture(scope="module")
def seen(version: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """Each topic at both isolation levels; the broker is stopped cleanly."""
    broker = Broker(tmp_path_factory.mktemp("kafka"), version)
    small = "internal_segment_bytes" if version.startswith("4") else "segment_bytes"
    found = {}
    with broker, JavaClient(broker) as client:
        for topic, make in TOPICS.items():
            client.create_topic(topic, **{small: 20_000}, index_interval_bytes=500)
            make(client, topic)
        rows = {level: client.consume_each(TOPICS, isolation=level) for level in LEVELS}
        for topic in TOPICS:
            _, stable = client.offsets(topic, isolation="read_committed")[0]
            rows_of = {level: rows[level][topic] for level in LEVELS}
            found[topic] = Seen(broker.log_dir, rows_of, stable)
    return found


def _brief(rows: list[KafkaRecord]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(row.offset, row.key, row.value) for row in rows]


def _rows(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [
        (row["offset"], row["key"], row["value"]) for batch in batches for row in batch.to_pylist()
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("topic", TOPICS)
def test_rows_equal_the_consumers(
    seen: dict[str, Seen], topic: str, level: IsolationLevel
) -> None:
    """The rows equal those of a consumer with that isolation level."""
    log = segmentlog.open_log_dir(seen[topic].log_dir).log(topic, 0)

    assert _brief(seen[topic].rows[level]) == _rows(log.scan(isolation_level=level))


def test_the_data_have_what_they_should(seen: dict[str, Seen]) -> None:
    """The data have aborts, open transactions and several segments."""
    for topic, each in seen.items():
        log = segmentlog.open_log_dir(each.log_dir).log(topic, 0)
        uncommitted, committed = (each.rows[level] for level in LEVELS)

        assert len(committed) < len(uncommitted)
        assert (topic == "all-decided") == (each.last_stable_offset == log.log_end_offset)
        assert topic == "each-way" or len(log.segments) > 2


@pytest.mark.parametrize("topic", TOPICS)
def test_the_last_stable_offset_is_the_brokers(seen: dict[str, Seen], topic: str) -> None:
    """It is the first offset of the first open transaction, or the high watermark."""
    log = segmentlog.open_log_dir(seen[topic].log_dir).log(topic, 0)

    assert seen[topic].last_stable_offset == log.last_stable_offset()


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("max_bytes", [1, 3000])
def test_slices_that_begin_and_end_inside_transactions_agree(
    seen: dict[str, Seen], topic: str, max_bytes: int
) -> None:
    """A task finds the end marker of each transaction, wherever the marker is."""
    log = segmentlog.open_log_dir(seen[topic].log_dir).log(topic, 0)
    slices = log.slices(0, log.last_stable_offset(), max_bytes)
    policy = ScanPolicy(IsolationLevel.READ_COMMITTED)
    found = [row for each in slices for row in _rows(scan_slice(each, policy=policy))]

    assert len(slices) > 5 or topic == "each-way"
    assert _brief(seen[topic].rows[IsolationLevel.READ_COMMITTED]) == found


@pytest.mark.parametrize("topic", TOPICS)
def test_indexes_and_snapshots_are_not_needed(
    seen: dict[str, Seen], topic: str, tmp_path: Path
) -> None:
    """The log is enough. A broker without these files would serve aborted records."""
    shutil.copytree(seen[topic].log_dir / f"{topic}-0", tmp_path / f"{topic}-0")
    for path in (tmp_path / f"{topic}-0").iterdir():
        if path.suffix in {".txnindex", ".snapshot", ".index", ".timeindex"}:
            path.unlink()
    log = segmentlog.open_log_dir(tmp_path).log(topic, 0)
    found = _rows(log.scan(isolation_level="read_committed"))

    assert _brief(seen[topic].rows[IsolationLevel.READ_COMMITTED]) == found
    assert seen[topic].last_stable_offset == log.last_stable_offset()


def test_a_transaction_without_its_marker_is_reported(
    seen: dict[str, Seen], tmp_path: Path
) -> None:
    """A snapshot without open transactions does not make the transaction committed."""
    source = seen["each-way"].log_dir / "each-way-0"
    partition = shutil.copytree(source, tmp_path / "each-way-0")
    for path in partition.glob("*.snapshot"):
        path.unlink()
    empty = bytes.fromhex("000148674bc700000000")  # no producers, with the right checksum
    log_end = segmentlog.open_log_dir(tmp_path).log("each-way", 0).log_end_offset
    (partition / f"{log_end:020d}.snapshot").write_bytes(empty)
    log = segmentlog.open_log_dir(tmp_path).log("each-way", 0)

    with pytest.raises(TornTransactionError, match="no end marker") as caught:
        log.scan(isolation_level="read_committed").read_all()

    assert seen["each-way"].last_stable_offset == caught.value.base_offset


@pytest.mark.slow  # `tests/connector` has the option
def test_spark_reads_what_was_committed(seen: dict[str, Seen], spark: SparkSession) -> None:
    """The option is that of the kafka source, and many tasks read."""
    for level in LEVELS:
        frame = (
            spark.read.format("segmentlog")
            .option("kafka.isolation.level", level)
            .option("maxBytesPerPartition", "4k")
            .load(str(seen["at-random"].log_dir))
        )
        counts = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}

        assert {topic: len(each.rows[level]) for topic, each in seen.items()} == counts
