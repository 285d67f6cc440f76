"""Settings of a broker, read from its disk after its stop."""

import os
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing

import segmentlog
from segmentlog.cluster.directory_settings import Source
from segmentlog.format.topic_config import setting_names

pytestmark = pytest.mark.interop

#: The admin client's words for sources of settings, and our words.
SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: Source.TOPIC,
    ConfigSource.DYNAMIC_BROKER_CONFIG: Source.NODE,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: Source.BROKERS,
    ConfigSource.STATIC_BROKER_CONFIG: Source.SERVER_PROPERTIES,
    ConfigSource.DEFAULT_CONFIG: Source.DEFAULT,
}
STATIC = {
    "log.retention.ms": -1,
    "log.retention.hours": 50,
    "log.roll.hours": 3,
    "log.segment.delete.delay.ms": 100,
    "log.cleaner.min.cleanable.ratio": 0.25,
    # So that a snapshot comes after a few records, and the log continues after it.
    "metadata.log.max.record.bytes.between.snapshots": 400,
}


def told(broker: Broker, topic: str) -> dict[str, tuple[str, Source]]:
    """The broker's own values of a topic's settings, as far as we know the settings."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    return {
        name: (entry.value, SOURCES[ConfigSource(entry.source)])
        for name, entry in future.result(30).items()
        if name in setting_names()
    }


def in_hours(source: Source) -> set[str]:
    """Settings that `STATIC` has in hours, and that the broker reports as defaults."""
    return {"segment.ms"} if source is Source.DEFAULT else set()


@pytest.fixture(scope="module")
def stopped(
    new_version: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Broker, dict[str, dict[str, tuple[str, Source]]]]:
    """A broker that was configured in every way, and its report about its topics."""
    broker = Broker(tmp_path_factory.mktemp("kafka"), new_version, settings=STATIC)
    topics = ("plain", "own", "altered", "again")
    with broker, JavaClient(broker) as client:
        for topic in topics:
            client.create_topic(topic, 2)
        client.create_topic("gone", 1, retention_ms=5)
        client.alter("TOPIC", "own", {"retention.ms": 11, "cleanup.policy": "compact,delete"})
        client.alter("TOPIC", "altered", {"retention.bytes": 1, "segment.bytes": 1048576})
        client.alter("TOPIC", "altered", {"retention.bytes": 2, "compression.type": "zstd"})
        client.alter("TOPIC", "altered", {"segment.bytes": None, "min.insync.replicas": 1})
        client.alter("TOPIC", "again", {"retention.ms": 12})
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for future in admin.delete_topics(["gone", "again"], operation_timeout=30).values():
            future.result(30)
        client.create_topic("again", 1, max_message_bytes=9999)
        client.alter("BROKER", "", {"log.retention.bytes": 1000, "message.max.bytes": 70000})
        client.alter("BROKER", "1", {"log.retention.bytes": 2000, "log.index.interval.bytes": 50})
        client.alter("BROKER", "", {"log.cleaner.delete.retention.ms": 77})
        client.produce("own", [Outgoing(b"k", b"v", partition=0)])
        said = {topic: told(broker, topic) for topic in topics}
    return broker, said


def test_settings_are_those_that_the_broker_uses(
    stopped: tuple[Broker, dict[str, dict[str, tuple[str, Source]]]],
) -> None:
    """Values and sources equal those of the admin client on the running broker."""
    broker, said = stopped
    metadata = broker.log_dir / "__cluster_metadata-0"
    assert [path for path in metadata.glob("*.checkpoint") if int(path.name[:20]) > 0]
    for topic, expected in said.items():
        found = segmentlog.topic_settings(
            broker.log_dir, topic, server_properties=broker.directory / "server.properties"
        )
        assert len(expected) == len(found)
        for name, (value, source) in expected.items():
            if name == "min.cleanable.dirty.ratio":
                assert float(value) == float(found[name].value)
            elif name == "cleanup.policy":
                assert {*value.split(",")} == {*found[name].value.split(",")}
            else:
                assert value == found[name].value, (topic, name)
            # The broker reports a value with an older name, in hours, as a default.
            expected_source = Source.SERVER_PROPERTIES if name in in_hours(source) else source
            assert expected_source is found[name].source, (topic, name)


def test_without_snapshots_and_with_the_newest_alone(
    stopped: tuple[Broker, dict[str, dict[str, tuple[str, Source]]]], tmp_path: Path
) -> None:
    """The whole log gives the settings that a snapshot and the rest of the log give."""
    broker, _ = stopped
    source = broker.log_dir / "__cluster_metadata-0"
    snapshots = sorted(source.glob("*.checkpoint"))
    expected = segmentlog.topic_settings(broker.log_dir, "altered")
    for kept in ([], snapshots[-1:], snapshots[:1], snapshots):
        copy = tmp_path / str(len(list(tmp_path.iterdir()))) / "__cluster_metadata-0"
        copy.mkdir(parents=True)
        for path in [*source.glob("*.log"), *kept]:
            os.link(path, copy / path.name)
        (copy.parent / "meta.properties").write_bytes(
            (broker.log_dir / "meta.properties").read_bytes()
        )
        assert expected == segmentlog.topic_settings(copy.parent, "altered"), kept


def test_another_disk_of_the_same_broker(
    stopped: tuple[Broker, dict[str, dict[str, tuple[str, Source]]]], tmp_path: Path
) -> None:
    """The metadata is in one of the broker's log directories, which is named."""
    broker, _ = stopped
    (tmp_path / "meta.properties").write_bytes((broker.log_dir / "meta.properties").read_bytes())
    with pytest.raises(segmentlog.OptionError, match="is in another log directory"):
        segmentlog.topic_settings(tmp_path, "own")
    found = segmentlog.topic_settings(tmp_path, "own", metadata=broker.log_dir)

    assert ("11", Source.TOPIC) == tuple(found["retention.ms"])
    assert ("2000", Source.NODE) == tuple(found["retention.bytes"])


def test_a_writer_uses_them(
    stopped: tuple[Broker, dict[str, dict[str, tuple[str, Source]]]],
) -> None:
    """The writer uses the topic's codec, and the largest batch of all brokers."""
    import pyarrow as pa

    broker, _ = stopped
    with segmentlog.open_writer(broker.log_dir, "altered") as writer:
        writer.append(pa.table({"value": [b"x" * 100] * 10, "partition": [0] * 10}))
    log = segmentlog.open_log_dir(broker.log_dir).log("altered", 0)
    codecs = {placed.header.codec for each in log.segments for placed in each.headers(0)}

    assert {segmentlog.Codec.ZSTD} == codecs
    writer = segmentlog.open_writer(broker.log_dir, "plain")
    writer.append(pa.table({"value": [os.urandom(80_000)]}))
    with pytest.raises(segmentlog.RecordTooLargeError):
        writer.flush()
    writer.abort()
