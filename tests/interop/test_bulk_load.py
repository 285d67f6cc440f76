"""Logs that are written without a broker are then served by a broker."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crashing import Crash, crash_at
from kafka_here import Broker, JavaClient, assert_dump_is_sound
from kafka_here.java import KafkaRecord, Outgoing
from kafka_here.records import rows_of

import segmentlog
from segmentlog.errors import LogLockedError
from segmentlog.format.topic_config import TopicConfig
from segmentlog.model import Codec
from segmentlog.txn.guard import Guard, list_guards
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob

pytestmark = pytest.mark.interop

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def mixed_rows(n_rows: int) -> pa.Table:
    """Keys, tombstones, headers, values of every length."""
    numbers = range(n_rows)
    return pa.table(
        {
            "key": pa.array([None if i % 7 == 0 else b"k%d" % i for i in numbers], pa.binary()),
            "value": pa.array(
                [None if i % 11 == 0 else b"v" * (i % 300) for i in numbers], pa.binary()
            ),
            "headers": pa.array(
                [[{"key": "h", "value": b"%d" % i}] if i % 5 == 0 else None for i in numbers],
                HEADERS,
            ),
        }
    )


def append(broker: Broker, topic: str, n_rows: int, **settings: Any) -> None:
    """Write one of our jobs."""
    config = ProducerConfig(**settings)
    with segmentlog.open_writer(broker.log_dir, topic, config=config) as writer:
        writer.append(mixed_rows(n_rows))


def ours(broker: Broker, topic: str) -> list[KafkaRecord]:
    """The records that our reader sees, in the form of the consumer's records."""
    opened = segmentlog.open_log_dir(broker.log_dir)
    return [
        record
        for partition in opened.topics()[topic]
        for record in rows_of(opened.log(topic, partition).scan(include_headers=True).read_all())
    ]


def in_order(records: Sequence[KafkaRecord]) -> list[KafkaRecord]:
    """Records by partition and offset; a consumer has empty headers where we have null."""
    return sorted(
        (each._replace(headers=each.headers or None) for each in records),
        key=lambda each: (each.partition, each.offset),
    )


@pytest.fixture
def stopped(version: str, tmp_path) -> Broker:
    """A stopped broker of each version, with a topic for each codec and some records."""
    broker = Broker(tmp_path / "kafka", version)
    with broker, JavaClient(broker) as client:
        for codec in Codec:
            topic = f"codec-{codec.name.lower()}"
            client.create_topic(topic, 3)
            client.produce(topic, [Outgoing(b"first", b"1", partition=i) for i in range(3)])
    return broker


def test_a_broker_serves_what_was_written(stopped: Broker) -> None:
    """The consumer returns our rows, and Kafka's tool finds nothing wrong.

    We read the records that the broker appends.
    """
    topics = {f"codec-{codec.name.lower()}": codec for codec in Codec}
    for topic, codec in topics.items():
        append(stopped, topic, 5000, codec=codec, batch_size=4000)
        append(stopped, topic, 10, codec=codec)
    written = {topic: in_order(ours(stopped, topic)) for topic in topics}
    assert_dump_is_sound(stopped, "codec-*")
    with stopped, JavaClient(stopped) as client:
        for topic in topics:
            assert written[topic] == in_order(client.consume(topic))
            client.produce(topic, [Outgoing(b"last", b"2", partition=i) for i in range(3)])
    for topic in topics:
        assert 5013 + 3 == len(ours(stopped, topic))
        with_last = in_order(ours(stopped, topic))
        assert written[topic] == [each for each in with_last if each.key != b"last"]


def test_a_running_broker_keeps_writers_out(broker: Broker) -> None:
    """A writer takes the broker's lock, and its error names the broker's process."""
    with pytest.raises(LogLockedError) as caught:
        segmentlog.open_writer(broker.log_dir, "t", lock_timeout_seconds=0.1)
    assert caught.value.process


@pytest.mark.thorough
def test_a_broker_refuses_to_start_while_a_commit_is_unfinished(
    new_version: str, tmp_path
) -> None:
    """An empty guard is enough. The next writer removes the guard, and the broker starts."""
    broker = Broker(tmp_path / "kafka", new_version)
    with broker, JavaClient(broker) as client:
        client.create_topic("t")
    Path(Guard.of_job(str(broker.log_dir), "abc").path).mkdir()
    with pytest.raises(RuntimeError, match="stopped at start-up"):
        broker.start()
    append(broker, "t", 5)
    with broker, JavaClient(broker) as client:
        assert 5 == len(client.consume("t"))


@pytest.mark.slow
@pytest.mark.parametrize("stride", [19, pytest.param(1, marks=pytest.mark.timeout(3600))])
def test_a_broker_never_takes_half_a_job_for_data(
    new_version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    """After a crash, a broker refuses to start, or serves all of the job or nothing of it.

    The crash is at any step. Every second job has its files moved into the logs.
    """
    moving = ProducerConfig(TopicConfig(segment_bytes=100_000))
    broker, saved = Broker(tmp_path / "kafka", new_version), tmp_path / "saved"
    with broker, JavaClient(broker) as client:
        client.create_topic("t", 3)
        client.produce("t", [Outgoing(b"first", b"1", partition=i) for i in range(3)])
    shutil.copytree(broker.log_dir, saved)
    ends = {3: 0, 603: 0}
    n_refused, number, is_done = 0, 0, False
    while not is_done:
        shutil.rmtree(broker.log_dir)
        shutil.copytree(saved, broker.log_dir)
        config = moving if number % 2 else ProducerConfig()
        job = WriteJob.begin(WriteRequest(str(broker.log_dir), config, topic="t"))
        stager = job.stager(0)
        stager.add(mixed_rows(600).to_batches()[0])
        extents = [stager.finish()]
        with monkeypatch.context() as patch:
            crash_at(patch, number)
            try:
                job.commit(extents)
                is_done = True
            except Crash:
                number += stride
        if list_guards(str(broker.log_dir)):
            n_refused += 1
            with pytest.raises(RuntimeError, match="stopped at start-up"):
                broker.start()
            with segmentlog.open_writer(broker.log_dir, "t"):
                pass
        with broker, JavaClient(broker) as client:
            ends[len(client.consume("t"))] += 1

    assert n_refused > 1
    assert min(ends.values()) > 0, ends
