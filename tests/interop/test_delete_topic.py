"""A broker starts after topics were deleted without it."""

import time
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from crashing import Crash
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing

import segmentlog
from segmentlog.format.names import HIGH_WATERMARK_CHECKPOINT
from segmentlog.log.checkpoint import read_offsets
from segmentlog.model import TopicPartition
from segmentlog.txn import effects

pytestmark = pytest.mark.interop


def _crash(*_: object) -> None:
    raise Crash


def _topics(broker: Broker) -> set[str]:
    """Topics that the broker knows."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    return set(admin.list_topics(timeout=30).topics)


@pytest.mark.thorough
def test_a_broker_starts_without_it(new_version: str, tmp_path: Path) -> None:
    """It removes leftovers of a crash. A topic of its cluster is created again, empty."""
    # A broker begins to delete 30 s after its start.
    settings = {"log.segment.delete.delay.ms": 100, "log.initial.task.delay.ms": 100}
    broker = Broker(tmp_path / "kafka", new_version, settings=settings)
    with broker, JavaClient(broker) as client:
        for topic in ("known", "kept"):
            client.create_topic(topic, 2)
            client.produce(topic, [Outgoing(b"k", b"v", partition=i) for i in range(2)])
    for topic in ("ours", "cut"):
        with segmentlog.open_writer(
            broker.log_dir, topic, num_partitions=2, auto_create_topics=True
        ) as writer:
            writer.append(pa.table({"value": [b"v"] * 10}))
    for topic in ("known", "ours"):
        assert 2 == segmentlog.delete_topic(broker.log_dir, topic).partitions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effects, "remove_taken_out", _crash)
        with pytest.raises(Crash):
            segmentlog.delete_topic(broker.log_dir, "cut")
    assert 2 == len(list(broker.log_dir.glob("cut-*-delete")))

    with broker, JavaClient(broker) as client:
        topics = _topics(broker)
        offsets = {topic: client.offsets(topic) for topic in ("known", "kept")}
        kept = client.consume("kept")
        deadline = time.monotonic() + 30
        while list(broker.log_dir.glob("cut-*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        names = {path.name for path in broker.log_dir.iterdir() if path.is_dir()}

    assert not topics & {"ours", "cut"}
    assert topics >= {"known", "kept"}
    assert {"known": {0: (0, 0), 1: (0, 0)}, "kept": {0: (0, 1), 1: (0, 1)}} == offsets
    assert 2 == len(kept)
    assert {"known-0", "known-1", "kept-0", "kept-1"} == {
        name for name in names if not name.startswith("__")
    }


@pytest.mark.thorough
def test_a_topic_that_a_broker_deletes_is_never_missed(new_version: str, tmp_path: Path) -> None:
    """The broker keeps its high watermarks until another topic of the directory is written."""
    settings = {
        "log.segment.delete.delay.ms": 1,
        "log.initial.task.delay.ms": 1,
        "replica.high.watermark.checkpoint.interval.ms": 50,
    }
    broker = Broker(tmp_path / "kafka", new_version, settings=settings)

    def missing() -> list[str]:
        directory = segmentlog.open_log_dir(broker.log_dir)
        return [str(each.topic_partition) for each in directory.missing_partitions()]

    def promised() -> list[int]:
        ends = read_offsets(str(broker.log_dir), HIGH_WATERMARK_CHECKPOINT)
        return [ends.get(TopicPartition("only", i), 0) for i in range(2)]

    with broker, JavaClient(broker) as client:
        client.create_topic("only", 2)
        client.produce("only", [Outgoing(b"k", b"v", partition=i) for i in range(2)])
        until = time.monotonic() + 60
        while promised() != [1, 1] and time.monotonic() < until:
            assert [] == missing()
            time.sleep(0.01)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_topics(["only"])["only"].result(60)
        while list(broker.log_dir.glob("only-*")) and time.monotonic() < until:
            assert [] == missing()
    assert [] == list(broker.log_dir.glob("only-*"))
    # A checkpoint that the broker writes between two deletions may lack the first partition.
    assert 1 in promised()
    assert [] == missing()
