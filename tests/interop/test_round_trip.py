"""Logs that we read, restored, overwrote and moved are served by a broker."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka_here import Broker, JavaClient, assert_dump_is_sound
from kafka_here.java import KafkaRecord, Outgoing
from kafka_here.records import rows_of

import segmentlog
from segmentlog.format.topic_config import TopicConfig
from segmentlog.model import Codec
from segmentlog.writes.config import ProducerConfig

pytestmark = pytest.mark.interop

#: Topics of every codec, headers, tombstones, append times, transactions, compaction, retention.
GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.1"
RESTORE: dict[str, Any] = {
    "use_timestamps": True,
    "use_timestamp_types": True,
    "use_offsets": True,
}
KEEP = {"retention.ms": -1, "retention.bytes": -1}


def records(directory: Path, topic: str) -> list[KafkaRecord]:
    """The records that our reader sees, in the form of the consumer's records."""
    opened = segmentlog.open_log_dir(directory)
    return as_consumed(
        record
        for partition in opened.topics()[topic]
        for record in rows_of(opened.log(topic, partition).scan(include_headers=True).read_all())
    )


def as_consumed(found: Iterable[KafkaRecord]) -> list[KafkaRecord]:
    """Records in order; a consumer has empty headers where we have null."""
    return sorted(
        (each._replace(headers=each.headers or None) for each in found), key=lambda each: each[:3]
    )


@pytest.mark.slow
def test_a_broker_serves_restored_topics_as_they_were(version: str, tmp_path: Path) -> None:
    """Offsets, timestamps, their types, keys, values, headers and log starts are equal."""
    source = segmentlog.open_log_dir(GOLDEN)
    topics = source.topics()
    broker = Broker(tmp_path / "kafka", version)
    with broker, JavaClient(broker) as client:
        for topic, partitions in topics.items():
            client.create_topic(topic, len(partitions), **KEEP)
    for number, (topic, partitions) in enumerate(topics.items()):
        config = ProducerConfig(codec=[*Codec][number % 5], **RESTORE)
        with segmentlog.open_writer(broker.log_dir, topic, config=config) as writer:
            for partition in partitions:
                writer.append(source.log(topic, partition).scan(include_headers=True).read_all())
    assert_dump_is_sound(broker, "[!_]*-*")
    with broker, JavaClient(broker) as client:
        consumed = client.consume_each(topics)
    found = {topic: as_consumed(each) for topic, each in consumed.items()}

    assert sum(map(len, found.values())) > 500
    for topic in topics:
        assert records(GOLDEN, topic) == found[topic], topic
        assert records(broker.log_dir, topic) == found[topic], topic


def large(first: int, n_rows: int) -> pa.Table:
    """Numbered rows of a hundred bytes, in two partitions."""
    numbers = range(first, first + n_rows)
    return pa.table(
        {
            "key": pa.array([b"%d" % i for i in numbers], pa.binary()),
            "value": pa.array([b"%0100d" % i for i in numbers], pa.binary()),
            "partition": pa.array([i % 2 for i in numbers], pa.int32()),
        }
    )


@pytest.mark.thorough
def test_a_broker_serves_what_was_moved_and_what_was_overwritten(
    new_version: str, tmp_path: Path
) -> None:
    """Segments were staged files. Then the log start moves, and a producer continues."""
    config = ProducerConfig(
        TopicConfig(segment_bytes=600_000), batch_size=16_000, buffer_memory=200_000
    )
    broker = Broker(tmp_path / "kafka", new_version)
    with broker, JavaClient(broker) as client:
        client.create_topic("t", 2, **KEEP)
        client.produce("t", [Outgoing(b"first", b"1", partition=i) for i in range(2)])
    with segmentlog.open_writer(broker.log_dir, "t", config=config) as writer:
        for batch in large(0, 20_000).to_batches(max_chunksize=2000):
            writer.append(batch)
    moved = segmentlog.open_log_dir(broker.log_dir).log("t", 1).segments
    written = records(broker.log_dir, "t")
    assert len(moved) > 2
    assert_dump_is_sound(broker, "[!_]*-*")
    with broker, JavaClient(broker) as client:
        assert written == as_consumed(client.consume("t"))
    assert 20_002 == len(written)

    with segmentlog.open_writer(broker.log_dir, "t", config=config, overwrite=True) as writer:
        writer.append(large(0, 10))
    written = records(broker.log_dir, "t")
    with broker, JavaClient(broker) as client:
        assert {0: (10_001, 10_006), 1: (10_001, 10_006)} == client.offsets("t")
        assert written == as_consumed(client.consume("t"))
        client.produce("t", [Outgoing(b"last", b"2", partition=i) for i in range(2)])
    assert 12 == len(records(broker.log_dir, "t"))
    assert_dump_is_sound(broker, "[!_]*-*")
