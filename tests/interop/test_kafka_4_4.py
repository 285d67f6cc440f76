"""What Kafka 4.4 writes that no release before it has written."""

import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing

import segmentlog

pytestmark = [pytest.mark.interop, pytest.mark.slow]

VERSION = "4.4.0"
SECONDS = 60


@pytest.fixture(scope="module")
def parked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker whose share group has rejected two of the records of a topic."""
    broker = Broker(tmp_path_factory.mktemp("kafka"), VERSION)
    with broker, JavaClient(broker) as client:
        client.create_topic("orders")
        client.create_topic("dlq.orders", errors_deadletterqueue_group_enable="true")
        client.produce("orders", [Outgoing(b"k%d" % i, b"v%d" % i) for i in range(5)])
        reject(broker, client, {1, 3})
    return broker.log_dir


def reject(broker: Broker, client: JavaClient, offsets: set[int]) -> None:
    """Read `orders` in a share group that rejects some records, until their copies are there."""
    settings = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": "dlq.orders",
    }
    client.alter("GROUP", "shipping", settings)
    text = "org.apache.kafka.common.serialization.StringDeserializer"
    clients = client.jvm.org.apache.kafka.clients.consumer
    consumer = clients.KafkaShareConsumer(
        client._properties(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "shipping",
                "key.deserializer": text,
                "value.deserializer": text,
                "share.acknowledgement.mode": "explicit",
            }
        )
    )
    kinds = clients.AcknowledgeType
    consumer.subscribe(["orders"])
    deadline, n_seen = time.monotonic() + SECONDS, 0
    while n_seen < 5:
        assert time.monotonic() < deadline
        found = consumer.poll(client.jvm.java.time.Duration.ofMillis(200)).iterator()
        while found.hasNext():
            record, n_seen = found.next(), n_seen + 1
            is_bad = record.offset() in offsets
            consumer.acknowledge(record, kinds.REJECT if is_bad else kinds.ACCEPT)
    consumer.commitSync()
    while client.offsets("dlq.orders")[0][1] < len(offsets):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    consumer.close()


def test_dead_letters_find_the_records_that_they_came_from(parked: Path) -> None:
    """The join of the documentation returns the records that the group has rejected."""
    dead = segmentlog.table(parked, "dead_letters")
    records = segmentlog.read(parked, "orders").select(["partition", "offset", "key", "value"])
    origin = dead.filter(pc.field("topic") == "orders").join(records, ["partition", "offset"])

    rows: list[dict[str, Any]] = origin.sort_by("offset").to_pylist()
    assert [(1, b"v1"), (3, b"v3")] == [(row["offset"], row["value"]) for row in rows]
    assert {("shipping", 1, "Offset rejected by client.")} == {
        (row["group"], row["delivery_count"], row["message"]) for row in rows
    }


def test_a_directory_begins_with_its_snapshot(tmp_path: Path) -> None:
    """A formatted directory has each feature once, its voters, and no bootstrap.checkpoint."""
    settings = tmp_path / "server.properties"
    settings.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        "controller.quorum.bootstrap.servers=localhost:9093\n"
        "listeners=CONTROLLER://localhost:9093,PLAINTEXT://localhost:9092\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"log.dirs={tmp_path / 'logs'}\n"
    )
    Broker(tmp_path, VERSION).format(settings, "--standalone")
    (path,) = (tmp_path / "logs").glob("__cluster_metadata-0/*.checkpoint")
    assert path.name == f"{0:020d}-{0:010d}.checkpoint"
    assert not (tmp_path / "logs" / "bootstrap.checkpoint").exists()

    features = segmentlog.table(tmp_path / "logs", "features").to_pylist()
    names = [row["name"] for row in features]
    assert sorted(set(names)) == sorted(names)
    levels = {row["name"]: row["feature_level"] for row in features}
    assert (33, 2, 1) == tuple(
        levels[each] for each in ("metadata.version", "share.version", "kraft.version")
    )
    (voter,) = segmentlog.table(tmp_path / "logs", "voters").to_pylist()
    assert (1, 0, 1) == tuple(
        voter[each] for each in ("voter_id", "min_supported_version", "max_supported_version")
    )
    assert [{"name": "CONTROLLER", "host": "localhost", "port": 9093}] == voter["end_points"]


def test_the_features_of_a_cluster_appear_once(parked: Path) -> None:
    """The log has the records of the first snapshot again; the history has each change once."""
    for history in (False, True):
        names = segmentlog.table(parked, "features", history=history)["name"].to_pylist()
        assert sorted(set(names)) == sorted(names)
        assert "metadata.version" in names
    assert 0 == segmentlog.table(parked, "unknown_records").num_rows


def test_an_empty_mark_of_a_clean_stop_counts_as_an_unclean_one(tmp_path: Path) -> None:
    """The broker is no eligible leader any more, and is elected as the last known one."""
    broker = Broker(tmp_path, VERSION)
    with broker, JavaClient(broker) as client:
        client.create_topic("orders")
        client.produce("orders", [Outgoing(b"k", b"v")])
    (broker.log_dir / ".kafka_cleanshutdown").write_bytes(b"")
    with broker, JavaClient(broker) as client:
        assert 1 == len(client.consume("orders"))

    changes = [
        (row["leader"], row["eligible_leader_replicas"], row["leader_recovery_state"])
        for row in segmentlog.table(broker.log_dir, "partitions", history=True).to_pylist()
        if row["topic"] == "orders"
    ]
    assert [(1, [], 0), (-1, [1], 0), (-1, [], 0), (1, [], 1)] == changes[:4]
