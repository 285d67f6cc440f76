"""A directory that is newer than the Kafka we know is read as far as it can be, and says so."""

import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from coordinator_logs import Coordinator, commit_key, commit_value, framed, message

import segmentlog
from segmentlog.cluster.copies import Copy
from segmentlog.cluster.directory_settings import read_cluster_settings
from segmentlog.format.messages.records import framed_schemas, read_frame
from segmentlog.format.newer import KNOWN_KAFKA, note, noting
from segmentlog.log.checkpoint import read_leader_epochs

METADATA, GROUPS = "__cluster_metadata", "__consumer_offsets"
SHARES, REMOTE = "__share_group_state", "__remote_log_metadata"
TOPIC_ID = UUID(int=7)
STRING = b"\x06extra"  # a new field, of five letters

Pair = tuple[bytes | None, bytes | None]


def later(record: Pair, version: int, more: bytes = b"", tags: bytes = b"\0") -> Pair:
    """A framed record of a later version, with more fields before its tagged fields."""
    key, value = record
    assert value is not None
    assert value[-1] == 0  # the empty section of tagged fields
    return key, value[:2] + bytes([version]) + value[3:-1] + more + tags


def later_value(record: Pair, version: int, more: bytes = b"", tags: bytes = b"\0") -> Pair:
    """A coordinator's record of a later version."""
    key, value = record
    assert value is not None
    assert value[-1] == 0
    return key, struct.pack(">h", version) + value[2:-1] + more + tags


def metadata(kind: int, **fields: Any) -> Pair:
    """A record of the metadata in our newest version."""
    return framed(METADATA, kind, fields)


def segment(number: int, state: int, kind: int = 0, **fields: Any) -> Pair:
    """A record about a segment in a tier."""
    place = {"name": "orders", "id": TOPIC_ID, "partition": 0}
    ids = {"topic_id_partition": place, "id": UUID(int=number)}
    value = {"remote_log_segment_id": ids, "remote_log_segment_state": state}
    return framed(REMOTE, kind, value | fields)


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A directory with every kind of thing that a later Kafka may write."""
    orders = metadata(2, name="orders", topic_id=TOPIC_ID)
    others = metadata(2, name="others", topic_id=UUID(int=8))
    partition = metadata(3, partition_id=0, topic_id=TOPIC_ID, leader=1, replicas=[1])
    Coordinator().add(
        orders,
        later(others, 1, STRING),
        later(partition, 3, STRING, b"\1\x64\x08" + struct.pack(">q", 40)),
        (None, b"\1\2\x09no topic"),
        (None, b"\1\x63\0new"),
        metadata(12, name="metadata.version", feature_level=34),
        later(metadata(12, name="share.version", feature_level=2), 1),
    ).write(tmp_path, 0, METADATA)
    Coordinator().add(
        (commit_key("g"), commit_value(5, 4)),
        later_value((commit_key("h"), commit_value(6, 4)), 5),
        later_value((commit_key("i"), commit_value(7, 4)), 6, STRING),
        (commit_key("j"), commit_value(8, 4, tail=b"\1\x09\1x")),
        (commit_key("k"), struct.pack(">h", 9) + b"no commit"),
        later_value(message(GROUPS, 3, {"group_id": "c"}, {"epoch": 4}), 1, STRING),
        (struct.pack(">h", 99) + b"key", b"value"),
    ).write(tmp_path, 0)
    state = {"group_id": "s", "topic_id": TOPIC_ID, "partition": 0}
    snapshot = message(SHARES, 0, state, {"snapshot_epoch": 1, "start_offset": 3})
    Coordinator().add(later_value(snapshot, 1, STRING)).write(tmp_path, 0, SHARES)
    Coordinator().add(
        segment(1, 0, start_offset=5),
        later(segment(1, 1, kind=1), 1, STRING),
        (None, b"\1\x63\0new"),
    ).write(tmp_path, 0, REMOTE)
    Coordinator().add((None, b"v"), (None, b"w")).write(tmp_path, 0, "orders")
    (tmp_path / "meta.properties").write_text("version=2\nnode.id=1\ncluster.id=x\nregion=eu\n")
    (tmp_path / "replication-offset-checkpoint").write_text("1\n1\norders 0 1 extra\n")
    (tmp_path / "orders-0" / "leader-epoch-checkpoint").write_text("1\n2\n0 0 x\n3 1 y\n")
    return tmp_path


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The warnings of a test."""
    with caplog.at_level(logging.WARNING):
        yield caplog


@pytest.mark.parametrize(
    ("table", "columns", "expected", "said"),
    [
        (
            "topics",
            ("topic",),
            {("orders",), ("others",)},
            [
                "TopicRecord of version 1, read by the fields of version 0 (1)",
                "TopicRecord of version 9, left as bytes (1)",
                "type 99 of __cluster_metadata (1)",
            ],
        ),
        (
            "partitions",
            ("topic", "leader"),
            {("orders", 1)},
            [
                "PartitionRecord of version 3, read by the fields of version 2 (1)",
                "tagged fields 100 of PartitionRecord (1)",
            ],
        ),
        (
            "features",
            ("name", "feature_level"),
            {("metadata.version", 34), ("share.version", 2)},
            ["FeatureLevelRecord of version 1", "the feature metadata.version at level 34 (1)"],
        ),
        (
            "group_offsets",
            ("group", "offset"),
            {("g", 5), ("h", 6), ("i", 7), ("j", 8)},
            [
                "OffsetCommitValue of version 5",
                "OffsetCommitValue of version 6",
                "tagged fields 9 of OffsetCommitValue (1)",
                "OffsetCommitValue of version 9, left as bytes (1)",
            ],
        ),
        (
            "groups",
            ("group", "epoch"),
            {("c", 4), *((each, None) for each in "ghijk")},
            ["ConsumerGroupMetadataValue of version 1", "type 99 of __consumer_offsets"],
        ),
        (
            "share_state",
            ("group", "topic", "start_offset"),
            {("s", "orders", 3)},
            ["ShareSnapshotValue of version 1, read by the fields of version 0 (1)"],
        ),
        (
            "remote_segments",
            ("start_offset", "remote_log_segment_state"),
            {(5, "COPY_SEGMENT_FINISHED")},
            ["RemoteLogSegmentMetadataUpdateRecord of version 1", "type 99 of __remote_log_metad"],
        ),
    ],
)
def test_a_table_has_what_is_known_and_names_the_rest(
    newer: Path,
    warnings: pytest.LogCaptureFixture,
    table: str,
    columns: tuple[str, ...],
    expected: set[tuple[object, ...]],
    said: list[str],
) -> None:
    """One warning names each thing, and the Kafka that we know; strict makes it an error."""
    rows = segmentlog.table(newer, table).to_pylist()
    assert expected == {tuple(row[name] for name in columns) for row in rows}
    (warning,) = [each for each in warnings.messages if each.startswith(f"table {table}: ")]
    assert f"newer than Kafka {KNOWN_KAFKA}, which this version knows" in warning
    assert not [each for each in said if each not in warning], warning
    with pytest.raises(segmentlog.MalformedRecordError, match="strict was asked for"):
        segmentlog.table(newer, table, strict=True)


def test_unknown_records_has_each_of_them(newer: Path) -> None:
    """A record is named if its type is known, and its bytes are all there."""
    found = [
        (row["topic"], row["offset"], row["record"], row["newer"])
        for row in segmentlog.table(newer, "unknown_records").to_pylist()
    ]
    assert [1, 2, 3, 4, 5 + 1] == [offset for topic, offset, *_ in found if topic == METADATA]
    assert [1, 2, 3, 4, 5, 6] == sorted(offset for topic, offset, *_ in found if topic == GROUPS)
    assert [1, 2] == [offset for topic, offset, *_ in found if topic == REMOTE]
    some = {
        (
            SHARES,
            0,
            "ShareSnapshot",
            "ShareSnapshotValue of version 1, read by the fields of version 0",
        ),
        (METADATA, 4, None, "type 99"),
        (METADATA, 3, "TopicRecord", "TopicRecord of version 9, left as bytes"),
        (GROUPS, 3, "OffsetCommit", "tagged fields 9 of OffsetCommitValue"),
    }
    assert some <= {*found}


def test_files_of_newer_versions_are_read_by_their_known_lines(
    newer: Path, warnings: pytest.LogCaptureFixture
) -> None:
    """A reader takes the high watermark, and the ids of the directory."""
    opened = segmentlog.open_log_dir(newer)
    assert 1 == opened.log("orders", 0).high_watermark
    assert "replication-offset-checkpoint of version 1" in warnings.text


def test_leader_epochs_of_a_newer_version_are_read_and_never_written(
    newer: Path, warnings: pytest.LogCaptureFixture
) -> None:
    """A replica's lineage is known; a writer would drop what it does not know, and refuses."""
    path = str(newer / "orders-0" / "leader-epoch-checkpoint")
    copy = Copy(segmentlog.open_log_dir(newer).log("orders", 0), str(newer), {})
    assert 3 == copy.epochs.last_epoch
    assert "leader-epoch-checkpoint of version 1, read by its known lines" in warnings.text
    with pytest.raises(segmentlog.CorruptCheckpointError, match="expected version 0, found '1'"):
        read_leader_epochs(path)


def test_a_new_field_inside_of_a_struct_leaves_bytes() -> None:
    """Fields after it would be read from the wrong bytes."""
    broker = framed(METADATA, 0, {"broker_id": 1, "end_points": [{"name": "a", "port": 9}] * 2})[1]
    point = b"\x02a\x01\x00\x09\x00\x00\x00"
    assert point * 2 in broker
    moved = broker.replace(point, point[:-1] + STRING + b"\0")
    changed = moved[:2] + b"\x05" + moved[3:]

    assert read_frame(changed, framed_schemas(METADATA)) is None


def test_each_thing_is_said_once_outside_of_tables(warnings: pytest.LogCaptureFixture) -> None:
    """A reader that asks again and again does not fill a log."""
    for _ in range(3):
        note("a thing of this test")
    assert 1 == warnings.text.count("a thing of this test")


def test_a_warning_has_an_end(warnings: pytest.LogCaptureFixture) -> None:
    """Bytes that are no records may look like any number of newer ones."""
    with noting("a table"):
        for version in range(5000):
            note(f"version {version:04d}")
    (warning,) = [each for each in warnings.messages if each.startswith("a table: ")]
    assert "version 0000 (1)" in warning
    assert "; and 981 more" in warning
    assert len(warning) < 1000


def test_settings_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    """Records are removed by them; unknown types and new fields of known records do no harm."""
    setting = metadata(4, resource_type=2, resource_name="a", name="retention.ms", value="5")
    unknown = (None, b"\1\x63\0new")
    Coordinator().add(later(setting, 1, STRING), unknown).write(tmp_path / "new", 0, METADATA)
    found = read_cluster_settings(str(tmp_path / "new"))
    assert {"a": {"retention.ms": "5"}} == found.topics
    left = (None, b"\1\4\x09no setting")
    Coordinator().add(left).write(tmp_path / "left", 0, METADATA)
    with pytest.raises(segmentlog.LogDirectoryError, match="version 9, left as bytes, is newer"):
        read_cluster_settings(str(tmp_path / "left"))
