"""The precedence of settings, and the settings that writers use."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.cluster.directory_settings import (
    ClusterSettings,
    DirectorySettings,
    Source,
    topic_defaults,
)
from segmentlog.txn.settings_file import SettingsFile


def shown(known: DirectorySettings, name: str, topic: str | None = "t") -> tuple[str, Source]:
    """The value of one setting, and its source."""
    found = known.of(topic)[name]
    return found.value, found.source


def test_the_order_in_a_brokers_directory() -> None:
    """The order is: call, topic, node, all brokers, server.properties, Kafka's default."""
    cluster = ClusterSettings(
        {"t": {"retention.ms": "1"}},
        {"": {"log.retention.ms": "3"}, "7": {"log.retention.ms": "2"}, "8": {}},
    )
    static = {"log.retention.ms": "4"}
    found = [
        DirectorySettings({"retention.ms": "0"}, cluster=cluster, node_id="7"),
        DirectorySettings(cluster=cluster, node_id="7", server_properties=static),
    ]
    assert [("0", Source.CALL), ("1", Source.TOPIC)] == [
        shown(each, "retention.ms") for each in found
    ]
    others = [
        DirectorySettings(cluster=cluster, node_id=node_id, server_properties=static)
        for node_id in ("7", "8", "")
    ]
    assert [("2", Source.NODE), ("3", Source.BROKERS), ("3", Source.BROKERS)] == [
        shown(each, "retention.ms", "u") for each in others
    ]
    alone = DirectorySettings(server_properties=static)
    assert ("4", Source.SERVER_PROPERTIES) == shown(alone, "retention.ms")
    assert ("604800000", Source.DEFAULT) == shown(DirectorySettings(), "retention.ms")


def test_the_order_in_a_directory_without_a_broker() -> None:
    """The order is: call, topic, defaults, Kafka's default."""
    file = SettingsFile({"retention.ms": "2", "segment.bytes": "50"}, {"t": {"retention.ms": "1"}})
    known = DirectorySettings({"segment.bytes": "60"}, file=file)

    assert ("1", Source.FILE) == shown(known, "retention.ms")
    assert ("2", Source.FILE_DEFAULTS) == shown(known, "retention.ms", "u")
    assert ("2", Source.FILE_DEFAULTS) == shown(known, "retention.ms", None)
    assert ("60", Source.CALL) == shown(known, "segment.bytes")
    assert 60 == known.config("t").segment_bytes


def test_kafkas_own_topics_are_never_cleaned_by_defaults() -> None:
    """The rule also holds for a copy that has lost its cluster's metadata."""
    known = DirectorySettings()

    assert ("compact", Source.INTERNAL) == shown(known, "cleanup.policy", "__consumer_offsets")
    assert ("compact", Source.INTERNAL) == shown(known, "cleanup.policy", "__transaction_state")
    assert ("-1", Source.INTERNAL) == shown(known, "retention.ms", "__share_group_state")


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        ({"log.retention.hours": "2"}, "7200000"),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, "180000"),
        ({"log.retention.hours": "2", "log.retention.ms": "5"}, "5"),
        ({"log.retention.hours": "-1"}, "-1"),
        ({"log.retention.hours": " "}, None),
        ({"log.retention.bytes": "7"}, None),
    ],
)
def test_a_brokers_older_names(broker: dict[str, str], expected: str | None) -> None:
    """The setting with the finest unit counts."""
    found = {name: value for name, value, _ in topic_defaults(broker)}

    assert expected == found.get("retention.ms")


def test_settings_of_tests_of_the_broker_come_before() -> None:
    """``internal.segment.bytes`` takes precedence; other unknown settings are ignored."""
    own = {"internal.segment.bytes": "90", "segment.bytes": "80", "min.insync.replicas": "1"}
    known = DirectorySettings(cluster=ClusterSettings({"t": own}))

    assert 90 == known.config("t").segment_bytes
    assert "min.insync.replicas" not in known.of("t")


def segments(directory: Path, topic: str) -> int:
    """Number of segments."""
    return len(list(directory.glob(f"{topic}-0/*.log")))


def write(directory: Path, topic: str | None = "t", **how: Any) -> None:
    """Ten batches of a few hundred bytes."""
    table = pa.table({"value": [b"x" * 200] * 10})
    if topic is None:
        table = table.append_column("topic", pa.array(["v"] * 10))
    config = segmentlog.ProducerConfig(batch_size=1, **how)
    with segmentlog.open_writer(directory, topic, config=config) as writer:
        writer.append(table)


def test_a_writer_uses_the_settings_of_the_directory(tmp_path: Path) -> None:
    """Settings of the directory apply to each job. Settings of the job take precedence."""
    segmentlog.alter_settings(tmp_path, None, {"segment.bytes": "1000"})
    segmentlog.alter_settings(tmp_path, "t", {"segment.bytes": "300"})
    write(tmp_path)
    write(tmp_path, "u")
    write(tmp_path, None)
    assert (10, 4, 4) == tuple(segments(tmp_path, topic) for topic in "tuv")
    given = segmentlog.TopicConfig(segment_bytes=600)
    for topic, config in (
        ("w", given),
        ("x", segmentlog.TopicConfig.parse({})),
        ("y", segmentlog.TopicConfig.parse({"segment.bytes": "1073741824"})),
    ):
        write(tmp_path, topic, topic_config=config)
    assert (5, 4, 1) == tuple(segments(tmp_path, topic) for topic in "wxy")

    assert (tmp_path / ".kafka_cleanshutdown").exists()  # although a file existed before


def test_a_writer_uses_other_settings_as_well(tmp_path: Path) -> None:
    """The settings are the codec, the largest batch and the type of timestamps."""
    segmentlog.alter_settings(
        tmp_path, "t", {"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"}
    )
    write(tmp_path)
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    headers = [placed.header for segment in log.segments for placed in segment.headers(0)]
    assert {(4, 1)} == {(each.codec, each.timestamp_type) for each in headers}
    segmentlog.alter_settings(tmp_path, "t", {"max.message.bytes": "70"})
    with pytest.raises(segmentlog.RecordTooLargeError):
        write(tmp_path)


def test_public_settings(tmp_path: Path) -> None:
    """`topic_settings` returns settings by name, with their sources."""
    segmentlog.alter_settings(tmp_path, "t", {"retention.ms": "5"})
    found = segmentlog.topic_settings(tmp_path, "t")

    assert segmentlog.Setting("5", Source.FILE) == found["retention.ms"]
    assert "Kafka's default" == segmentlog.topic_settings(tmp_path)["retention.ms"].source


def test_a_job_of_several_topics_uses_the_settings_of_each(tmp_path: Path) -> None:
    """Each topic has its own sizes, codec and times. Settings of the call take precedence."""
    segmentlog.alter_settings(tmp_path, None, {"segment.bytes": "3000"})
    segmentlog.alter_settings(
        tmp_path, "small", {"segment.bytes": "300", "compression.type": "zstd"}
    )
    segmentlog.alter_settings(
        tmp_path, "late", {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "200"}
    )
    topics = ("late", "small", "usual")
    rows = pa.table({"topic": [*topics] * 60, "value": [b"%0100d" % i for i in range(180)]})
    config = segmentlog.ProducerConfig(batch_size=150)
    with segmentlog.open_writer(tmp_path, config=config) as writer:
        writer.append(rows)
    opened = segmentlog.open_log_dir(tmp_path)
    logs = {topic: opened.log(topic, 0) for topic in topics}
    sizes = {topic: [each.size for each in log.segments] for topic, log in logs.items()}
    codecs = {
        topic: {placed.header.codec for each in log.segments for placed in each.headers(0)}
        for topic, log in logs.items()
    }
    kinds = {
        topic: {*log.scan(columns=["timestampType"]).read_all()["timestampType"].to_pylist()}
        for topic, log in logs.items()
    }

    assert max(sizes["small"]) <= 300 < 2000 < max(sizes["usual"]) <= 3000
    assert ({segmentlog.Codec.NONE}, {segmentlog.Codec.ZSTD}) == (codecs["usual"], codecs["small"])
    assert ({0}, {0}, {1}) == (kinds["usual"], kinds["small"], kinds["late"])
    big = pa.table({"topic": ["late"], "value": [b"x" * 300]})
    with pytest.raises(segmentlog.RecordTooLargeError):
        _write(tmp_path, big, config)
    given = segmentlog.TopicConfig.parse({"max.message.bytes": "400"})
    _write(tmp_path, big, segmentlog.ProducerConfig(given))
    _write(tmp_path, pa.table({"topic": ["usual"], "value": [b"x" * 300]}), config)


def _write(directory: Path, rows: pa.Table, config: segmentlog.ProducerConfig) -> None:
    with segmentlog.open_writer(directory, config=config) as writer:
        writer.append(rows)
