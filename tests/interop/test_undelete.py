"""A topic that a broker has deleted comes back in the same broker."""

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing

import segmentlog
from segmentlog import UsageKind

pytestmark = [pytest.mark.interop, pytest.mark.thorough]

TOPIC, N_PARTITIONS = "or.de-rs-1", 2


@pytest.mark.parametrize("new_version", ["4.3.1", pytest.param("4.4.0", marks=pytest.mark.slow)])
def test_a_deleted_topic_is_served_again(new_version: str, tmp_path: Path) -> None:
    """All records have their offsets, keys, times and headers; no directory becomes stray."""
    settings = {"log.segment.delete.delay.ms": 3_600_000}
    broker = Broker(tmp_path / "kafka", new_version, settings=settings)
    with JavaClient(broker.start()) as client:
        client.create_topic(TOPIC, N_PARTITIONS)
        records = [
            Outgoing(b"k%d" % i, b"v" * i, [("h", b"%d" % i)], partition=i % N_PARTITIONS)
            for i in range(30)
        ]
        client.produce(TOPIC, records)
        client.produce(TOPIC, records, transactions=["commit", "abort", "commit"])
        expected = client.consume(TOPIC, isolation="read_committed")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_topics([TOPIC])[TOPIC].result(60)
        until = time.monotonic() + 60
        while len(found := segmentlog.renamed_partitions(broker.log_dir)) < N_PARTITIONS:
            assert time.monotonic() < until
            time.sleep(0.05)
        client.create_topic(TOPIC, N_PARTITIONS)
        while len([*broker.log_dir.glob(f"{TOPIC}-?")]) < N_PARTITIONS:
            assert time.monotonic() < until
            time.sleep(0.05)
    broker.kill()
    assert {UsageKind.DELETE} == {each.kind for each in found}
    assert all(
        abs(time.time() * 1000 - each.renamed_ms) < 120_000 and each.removed_ms for each in found
    )
    assert 1 == len({each.topic_id for each in found})

    segmentlog.undelete(broker.log_dir, TOPIC, to=tmp_path / "saved")
    restored = segmentlog.undelete(broker.log_dir, TOPIC)
    assert len(expected) == sum(each.n_records for each in restored.partitions)
    assert found[0].topic_id not in {each.topic_id for each in restored.partitions}
    assert len(expected) == segmentlog.read(tmp_path / "saved", TOPIC).num_rows
    assert {"equal"} == {
        each.comparison
        for each in segmentlog.compare(broker.log_dir, tmp_path / "saved", topics=TOPIC)
    }
    with broker, JavaClient(broker) as client:
        assert expected == client.consume(TOPIC, isolation="read_committed")
        assert not [*broker.log_dir.glob("*-stray")]
        assert N_PARTITIONS == len([*broker.log_dir.glob(f"{TOPIC}-*-delete")])
