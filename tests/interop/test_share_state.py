"""The table ``share_state`` says which records a share group gets again."""

import time
from pathlib import Path
from typing import Any

import pytest
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing

import segmentlog

pytestmark = [pytest.mark.interop, pytest.mark.thorough]

_TEXT = "org.apache.kafka.common.serialization.StringDeserializer"
_SECONDS = 120
_PER_PARTITION = 20

#: Times that each record was delivered, by partition and offset.
Deliveries = dict[tuple[int, int], int]


def _taken(client: JavaClient, broker: Broker, n: int, acknowledgements: list[str]) -> Deliveries:
    """What a member of the group gets until it has `n` records; it acknowledges them in turn."""
    consumers = client.jvm.org.apache.kafka.clients.consumer
    member: Any = consumers.KafkaShareConsumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "jobs",
            "key.deserializer": _TEXT,
            "value.deserializer": _TEXT,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 10,
        }
    )
    member.subscribe(["queue"])
    taken: Deliveries = {}
    until = time.monotonic() + _SECONDS
    while len(taken) < n:
        assert time.monotonic() < until, taken
        records = member.poll(client.jvm.java.time.Duration.ofMillis(500)).iterator()
        while records.hasNext():
            each = records.next()
            how = acknowledgements[len(taken) % len(acknowledgements)]
            taken[each.partition(), each.offset()] = int(each.deliveryCount().get())
            member.acknowledge(each, getattr(consumers.AcknowledgeType, how))
        member.commitSync()
    member.close()
    return taken


def _expected(directory: Path) -> Deliveries:
    """What the table says that the group gets, with the number of the delivery."""
    expected: Deliveries = {}
    for row in segmentlog.table(directory, "share_state").to_pylist():
        end = segmentlog.open_log_dir(directory).log("queue", row["partition"]).log_end_offset
        counts = dict.fromkeys(range(row["start_offset"] or 0, end), 0)
        for batch in row["state_batches"]:
            for offset in range(batch["first_offset"], batch["last_offset"] + 1):
                counts[offset] = batch["delivery_count"]
                if batch["delivery_state"] != "AVAILABLE":
                    del counts[offset]
        expected |= {(row["partition"], offset): n + 1 for offset, n in counts.items()}
    return expected


def test_a_share_group_gets_again_what_its_state_says(new_version: str, tmp_path: Path) -> None:
    """A broker that was stopped delivers what is available on its disk, and nothing else."""
    settings = {"share.coordinator.state.topic.num.partitions": 2}
    broker = Broker(tmp_path / "kafka", new_version, 1, settings)
    with broker, JavaClient(broker) as client:
        client.create_topic("queue", 2)
        rows = [Outgoing(b"k", b"v%d" % i, partition=i % 2) for i in range(2 * _PER_PARTITION)]
        client.produce("queue", rows)
        client.alter("GROUP", "jobs", {"share.auto.offset.reset": "earliest"})
        first = _taken(client, broker, 10, ["ACCEPT", "REJECT", "RELEASE", "ACCEPT"])
    expected = _expected(broker.log_dir)
    assert {*first.values()} == {1}
    assert {*expected.values()} == {1, 2}

    with broker, JavaClient(broker) as client:
        assert expected == _taken(client, broker, len(expected), ["ACCEPT"])
    assert _expected(broker.log_dir) == {}
