"""Metadata logs that the tests build: transactions, damage, gaps, later versions."""

import os
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.cluster.directory_settings import (
    ClusterSettings,
    read_cluster_settings,
    read_partition_counts,
)
from segmentlog.errors import CorruptLogError, LogDirectoryError
from segmentlog.reads.cluster_image import ClusterMetadata
from segmentlog.reads.metadata_log import metadata_path
from segmentlog.testing.reference import Record, encode_batch

BEGIN, END, ABORT = bytes([1, 23, 0, 0]), bytes([1, 24, 0, 0]), bytes([1, 25, 0, 0])
SMALL = segmentlog.ProducerConfig(batch_size=1)
UNKNOWN = bytes([1, 3, 1]) + b"a partition, which nobody asks for"


def text(value: str | None) -> bytes:
    """A compact string shorter than 127 bytes."""
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def topic(name: str, number: int) -> bytes:
    """A TopicRecord."""
    return bytes([1, 2, 0]) + text(name) + uuid.UUID(int=number).bytes + b"\0"


def removal(number: int) -> bytes:
    """A RemoveTopicRecord."""
    return bytes([1, 9, 0]) + uuid.UUID(int=number).bytes + b"\0"


def partition(number: int, topic_number: int) -> bytes:
    """A PartitionRecord: broker 1 leads, in epoch 0."""
    ids = number.to_bytes(4, "big") + uuid.UUID(int=topic_number).bytes
    one = (1).to_bytes(4, "big")
    return bytes([1, 3, 0]) + ids + 2 * (b"\2" + one) + b"\1\1" + one + bytes(8) + b"\0"


def config(kind: int, resource: str, name: str, value: str | None) -> bytes:
    """A ConfigRecord."""
    return bytes([1, 4, 0, kind]) + text(resource) + text(name) + text(value) + b"\0"


def written(directory: Path, values: Sequence[bytes]) -> str:
    """A metadata log of these records; returns its path."""
    with segmentlog.open_writer(directory, "m") as writer:
        writer.append(pa.table({"value": list(values)}))
    return str((directory / "m-0").rename(directory / "__cluster_metadata-0"))


def settings_in(path: str | Path) -> ClusterSettings:
    """The settings in a metadata log."""
    return read_cluster_settings(os.path.dirname(path))


def test_the_last_record_counts(tmp_path: Path) -> None:
    """The removal of a topic removes its settings. A new topic of that name has none."""
    path = written(
        tmp_path,
        [
            topic("a", 1),
            config(2, "a", "retention.ms", "1"),
            UNKNOWN,
            topic("b", 2),
            config(2, "b", "retention.ms", "2"),
            config(2, "a", "retention.ms", "3"),
            config(2, "b", "segment.ms", "4"),
            config(2, "b", "segment.ms", None),
            config(4, "", "log.retention.ms", "5"),
            config(4, "7", "log.retention.ms", "6"),
            config(16, "a", "interval.ms", "7"),
            topic("c", 3),
            config(2, "c", "retention.ms", "8"),
            removal(3),
            topic("c", 4),
            removal(9),
        ],
    )
    found = settings_in(path)

    assert {"a": {"retention.ms": "3"}, "b": {"retention.ms": "2"}, "c": {}} == found.topics
    assert {"": {"log.retention.ms": "5"}, "7": {"log.retention.ms": "6"}} == found.brokers
    assert path == metadata_path(str(tmp_path))
    assert metadata_path(path) is None


def footer(offset: int) -> bytes:
    """The last batch of a snapshot, a control batch."""
    return encode_batch([Record(offset, 1, b"\0\0\0\4", b"\0\0\0")], attributes=32)


def test_partitions_are_counted(tmp_path: Path) -> None:
    """Partitions of a deleted topic, and those of an aborted transaction, do not count."""
    path = written(
        tmp_path,
        [
            topic("a", 1), partition(0, 1), partition(1, 1), topic("gone", 2), partition(0, 2),
            partition(0, 1), topic("b", 3), partition(0, 3), removal(2), BEGIN,
            partition(5, 1), ABORT, topic("empty", 4), config(2, "a", "retention.ms", "1"),
        ],
    )  # fmt: skip

    assert {"a": 2, "b": 1, "empty": 0} == read_partition_counts(
        ClusterMetadata([os.path.dirname(path)])
    )


@pytest.mark.parametrize(("ending", "expected"), [(END, "2"), (ABORT, "1"), (b"", "1")])
def test_transactions(tmp_path: Path, ending: bytes, expected: str) -> None:
    """The records of a transaction count once it is committed.

    An aborted or unfinished one does not count.
    """
    values = [
        topic("a", 1),
        config(2, "a", "retention.ms", "1"),
        BEGIN,
        config(2, "a", "retention.ms", "2"),
    ]
    path = written(
        tmp_path, [*values, ending, config(2, "b", "segment.ms", "9")] if ending else values
    )
    found = settings_in(path).topics

    assert {"retention.ms": expected} == found["a"]
    assert ({"segment.ms": "9"} if ending else None) == found.get("b")


def test_a_snapshot_has_what_came_before(tmp_path: Path) -> None:
    """The newest whole snapshot is read, and then the log from its end.

    Files with other names, and a snapshot without its footer, are not read.
    """
    old = written(tmp_path / "old", [topic("a", 1), config(2, "a", "retention.ms", "1")])
    path = Path(
        written(tmp_path / "new", [UNKNOWN, removal(1), config(2, "b", "retention.ms", "2")])
    )
    data = (Path(old) / f"{0:020d}.log").read_bytes()
    (path / f"{2:020d}-{1:010d}.checkpoint").write_bytes(data + footer(2))
    (path / f"{3:020d}-{1:010d}.checkpoint").write_bytes(data)
    (path / f"{4:020d}-{1:010d}.checkpoint.part").write_bytes(b"half")
    (path / f"{4:020d}-{1:010d}.checkpoint.deleted").write_bytes(b"old")

    assert {"a": {"retention.ms": "1"}, "b": {"retention.ms": "2"}} == settings_in(path).topics


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (bytes([1, 4, 1, 2]), "ConfigRecord of version 1, left as bytes, is newer than Kafka"),
        (bytes([1, 2, 0, 9, 65]), "offset 1 .* inside a field"),
        (b"", "offset 1 .* it ends after 0 bytes"),
    ],
)
def test_unreadable_metadata_is_named(tmp_path: Path, value: bytes, reason: str) -> None:
    """The error names the offset.

    Settings may be missing, so nothing may be deleted by the other settings.
    """
    path = written(tmp_path, [topic("a", 1), value])
    with pytest.raises(LogDirectoryError, match=reason):
        settings_in(path)
    with pytest.raises(LogDirectoryError, match=r"also give cleanup\.policy, retention\.ms, ret"):
        segmentlog.retain(tmp_path, kafka_defaults=True)


def test_a_gap_and_damage(tmp_path: Path) -> None:
    """A log that begins after offset 0 without a snapshot is refused. So is a changed batch."""
    path = Path(written(tmp_path, [topic("a", 1)]))
    log = path / f"{0:020d}.log"
    data = log.read_bytes()
    with segmentlog.open_writer(tmp_path / "c", "m", config=SMALL) as writer:
        writer.append(pa.table({"value": [topic("a", 1), UNKNOWN * 9, UNKNOWN * 9]}))
    several = bytearray((tmp_path / "c" / "m-0" / log.name).read_bytes())
    several[70] ^= 1
    log.write_bytes(several)
    with pytest.raises((CorruptLogError, LogDirectoryError), match=r"damaged|does not match"):
        settings_in(path)
    log.write_bytes(data)
    for name in path.glob(f"{0:020d}.*"):
        name.rename(path / name.name.replace(f"{0:020d}", f"{7:020d}"))
    with pytest.raises(LogDirectoryError, match="begins at offset 7, and no whole snapshot"):
        settings_in(path)
