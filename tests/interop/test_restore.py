"""A topic of a killed broker on a broker of another cluster, with the places of its groups."""

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kafka_here import Broker, JavaClient, KafkaRecord
from kafka_here.java import Outgoing

import segmentlog
from segmentlog import LogDirectoryError
from segmentlog.maintain.restoration.restore import offsets_csv

pytestmark = [pytest.mark.interop, pytest.mark.thorough]

TOPIC, N_PARTITIONS = "orders", 2
UNDECIDED = "undecided"  # a transaction is open
CLONE, N_CLONED = "orders-v2", 5  # with more partitions


def commit(client: JavaClient, group: str, offsets: dict[int, int]) -> None:
    """Commit offsets of the topic for a group without members."""
    asked = client.jvm.java.util.HashMap()
    for partition, offset in offsets.items():
        found = client.jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset)
        asked.put(client.jvm.org.apache.kafka.common.TopicPartition(TOPIC, partition), found)
    client._wait(client._admin.alterConsumerGroupOffsets(group, asked).all())


def places(client: JavaClient, group: str, topic: str = TOPIC) -> dict[int, int]:
    """The committed offsets of a group in a topic."""
    found = client._wait(
        client._admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()
    )
    return {each.partition(): found[each].offset() for each in found if each.topic() == topic}


def fill(client: JavaClient) -> None:
    """Records outside of transactions, and records of committed and aborted transactions."""
    client.create_topic(TOPIC, N_PARTITIONS)
    records = [
        Outgoing(b"k%d" % i, b"v" * i, [("h", b"%d" % i)], partition=i % N_PARTITIONS)
        for i in range(30)
    ]
    client.produce(TOPIC, records)
    client.produce(TOPIC, records, transactions=["commit", "abort", "commit"])
    client.create_topic(UNDECIDED)
    client.produce(UNDECIDED, records[:1] * 5)
    open_producer = client.transactional_producer("crashed")
    open_producer.begin()
    open_producer.send(UNDECIDED, records[:1] * 3)
    client.produce(UNDECIDED, records[:1])
    commit(client, "billing", {0: 7, 1: 15})
    commit(client, "at the end", {each: end for each, (_, end) in client.offsets(TOPIC).items()})


def next_records(records: list[KafkaRecord], offsets: dict[int, int]) -> dict[int, int]:
    """Offset of the record that a group with these places gets next, or -1 for none."""
    return {
        partition: min(
            (
                each.offset
                for each in records
                if each.partition == partition and each.offset >= offset
            ),
            default=-1,
        )
        for partition, offset in offsets.items()
    }


def check_mirror(lost: Broker, version: str, directory: Path, expected: list[KafkaRecord]) -> None:
    """A broker with the metadata of the lost one serves the mirror of its log directory."""
    broker = Broker(directory, version)
    directory.mkdir()
    segmentlog.mirror(lost.log_dir, to=broker.log_dir)
    for name in ("meta.properties", "bootstrap.checkpoint"):  # the latter up to Kafka 4.3
        if (lost.log_dir / name).exists():
            shutil.copy(lost.log_dir / name, broker.log_dir)
    shutil.copytree(lost.log_dir / "__cluster_metadata-0", broker.log_dir / "__cluster_metadata-0")
    stood = segmentlog.table(lost.log_dir, "group_offsets").num_rows
    with broker, JavaClient(broker) as client:
        assert expected == client.consume(TOPIC, isolation="read_committed")
        assert {0: 7, 1: 15} == places(client, "billing")
    assert not [*broker.log_dir.glob("*-stray")]
    assert stood == segmentlog.table(broker.log_dir, "group_offsets").num_rows


@pytest.mark.parametrize("new_version", ["4.3.1", pytest.param("4.4.0", marks=pytest.mark.slow)])
def test_a_restored_topic_is_served_and_groups_stand_where_they_stood(
    new_version: str, tmp_path: Path
) -> None:
    """The broker finds no stray partition, and serves each record at its offset."""
    lost = Broker(tmp_path / "lost", new_version)
    with JavaClient(lost.start()) as client:
        fill(client)
        expected = client.consume(TOPIC, isolation="read_committed")
        decided = [each for each in client.consume(UNDECIDED) if each.offset not in {5, 6, 7}]
        stood = {each: places(client, each) for each in ("billing", "at the end")}
    lost.kill()
    check_mirror(lost, new_version, tmp_path / "mirrored", expected)

    target = Broker(tmp_path / "target", new_version)
    missing = Broker(tmp_path / "empty", new_version)
    with missing:
        pass
    plan = segmentlog.restore(lost.log_dir, to=missing.log_dir, dry_run=True)
    assert all("does not exist at the target" in each.problems[0] for each in plan.partitions)
    with target, JavaClient(target) as client:
        client.create_topic(TOPIC, N_PARTITIONS)
        client.create_topic(UNDECIDED)
        client.create_topic(CLONE, N_CLONED)
    with pytest.raises(LogDirectoryError, match="a transaction is open since offset 5"):
        segmentlog.restore(lost.log_dir, to=target.log_dir)
    found = segmentlog.restore(
        lost.log_dir,
        to=target.log_dir,
        open_transactions="end",
        offset_map=tmp_path / "map.parquet",
    )
    assert len(expected) + len(decided) == sum(each.n_records for each in found.partitions)

    cloned = segmentlog.clone(
        lost.log_dir, TOPIC, CLONE, to=target.log_dir, num_partitions=N_CLONED
    )

    mapped = pq.read_table(tmp_path / "map.parquet").to_pylist()
    in_map = [
        (each["topic"], each["partition"], each["target_offset"] + i)
        for each in mapped
        for i in range(each["n_records"])
    ]

    with target, JavaClient(target) as client:
        served = client.consume_each([TOPIC, UNDECIDED])
        assert in_map == sorted(
            (topic, each.partition, each.offset) for topic in served for each in served[topic]
        )
        assert expected == client.consume(TOPIC, isolation="read_committed")
        assert decided == client.consume(UNDECIDED)
        assert not [*target.log_dir.glob("*-stray")]
        text, _ = offsets_csv([*found.offsets, *cloned.offsets])
        file = tmp_path / "groups.csv"
        file.write_text(text)
        command = target._command(
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            "--bootstrap-server",
            target.bootstrap_servers,
            "--reset-offsets",
            "--from-file",
            str(file),
            "--group",
            "billing",
            "--group",
            "at the end",
            "--execute",
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert 0 == done.returncode, done.stdout + done.stderr
        for group, offsets in stood.items():
            now = places(client, group)
            assert next_records(expected, offsets) == next_records(expected, now), group
        assert stood["billing"] == places(client, "billing")
        # Records can follow the last restored record.
        client.produce(TOPIC, [Outgoing(b"k", b"new", partition=0)])
        assert len(expected) + 1 == len(client.consume(TOPIC))
        for group in stood:
            check_clone(client, group, expected, stood[group], cloned)
        keys = {each.key for each in expected}
        client.produce(CLONE, [Outgoing(key, b"by a producer") for key in keys])
        assert len(keys) == len({(each.key, each.partition) for each in client.consume(CLONE)})


def check_clone(
    client: JavaClient,
    group: str,
    source: list[KafkaRecord],
    stood: dict[int, int],
    cloned: segmentlog.Clone,
) -> None:
    """The broker serves every record, each key in order, and the group skips none."""
    served, goes_on = client.consume(CLONE), places(client, group, CLONE)
    assert set(range(N_CLONED)) == set(goes_on)

    def shown(record: KafkaRecord) -> tuple[object, ...]:
        return record.key, record.value, record.timestamp_ms, tuple(record.headers or ())

    for key in {each.key for each in source}:
        old, new = ([each for each in part if each.key == key] for part in (source, served))
        assert [*map(shown, old)] == [*map(shown, new)]
        assert 1 == len({each.partition for each in new})
    was_read = Counter(shown(each) for each in source if each.offset < stood[each.partition])
    comes = Counter(shown(each) for each in served if each.offset >= goes_on[each.partition])
    (report,) = (each for each in cloned.groups if each.group == group)
    assert Counter(map(shown, source)) - was_read <= comes
    assert (was_read + comes).total() == len(source) + report.n_repeated
