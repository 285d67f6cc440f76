"""Progress of share groups: snapshots, the updates after them, and the bytes of Kafka 4.0."""

import struct
import uuid
from pathlib import Path
from typing import Any

import pytest
from coordinator_logs import Coordinator, message

import segmentlog
from segmentlog.reads.cluster_image import ClusterMetadata

TOPIC = "__share_group_state"
KEY = {"group_id": "g", "topic_id": uuid.UUID(int=5), "partition": 3}

Batch = tuple[int, int, int, int]


def state(kind: int, batches: list[Batch], **fields: Any) -> tuple[bytes, bytes | None]:
    """A snapshot (0) or an update (1)."""
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    value = {"state_batches": [dict(zip(names, each, strict=True)) for each in batches]} | fields
    return message(TOPIC, kind, KEY, value)


def shown(row: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The batches of a row."""
    return [tuple(each.values()) for each in row["state_batches"]]


def test_an_update_changes_the_snapshot(tmp_path: Path) -> None:
    """More deliveries hold, equal neighbours are joined, and old offsets are dropped."""
    log = Coordinator().add(
        state(0, [(0, 9, 0, 1), (10, 19, 2, 1)], start_offset=0, state_epoch=4, snapshot_epoch=7),
        state(1, [(4, 12, 0, 2), (20, 24, 2, 1)], start_offset=2, leader_epoch=-1),
        state(1, [(0, 30, 0, 1)], start_offset=-1, leader_epoch=6, snapshot_epoch=7),
    )
    directory = log.write(tmp_path, 1, TOPIC)
    (row,) = segmentlog.table(directory, "share_state").to_pylist()

    assert [
        (2, 3, "AVAILABLE", 1),
        (4, 12, "AVAILABLE", 2),
        (13, 24, "ACKNOWLEDGED", 1),
        (25, 30, "AVAILABLE", 1),
    ] == shown(row)
    assert ("g", 3, 2, 6, 4, 7, None) == tuple(
        row[each]
        for each in (
            "group",
            "partition",
            "start_offset",
            "leader_epoch",
            "state_epoch",
            "snapshot_epoch",
            "delivery_complete_count",
        )
    )
    history = segmentlog.table(directory, "share_state", history=True).to_pylist()
    assert ["snapshot", "update", "update"] == [each["record"] for each in history]
    assert [0, 2, None] == [each["start_offset"] for each in history]


def test_a_tombstone_removes_a_state(tmp_path: Path) -> None:
    """A later snapshot sets the state up again."""
    log = Coordinator().add(state(0, []), message(TOPIC, 0, KEY, None)).write(tmp_path, 0, TOPIC)

    assert segmentlog.table(log, "share_state").num_rows == 0
    history = segmentlog.table(log, "share_state", history=True)
    assert ["set", "removed"] == history["change"].to_pylist()


def test_the_bytes_of_kafka_4_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the metadata version of 4.1, snapshot epochs have two bytes, and times are absent."""
    key, _ = state(0, [])
    value = struct.pack(">hHiiq", 0, 7, 4, 6, 50) + b"\2" + struct.pack(">qqbh", 50, 59, 2, 1)
    directory = Coordinator().add((key, value + b"\0\0")).write(tmp_path, 0, TOPIC)
    monkeypatch.setattr(ClusterMetadata, "level", 25)
    (row,) = segmentlog.table(directory, "share_state").to_pylist()

    assert [(50, 59, "ACKNOWLEDGED", 1)] == shown(row)
    assert (7, 4, 6, 50, None) == tuple(
        row[each]
        for each in (
            "snapshot_epoch",
            "state_epoch",
            "leader_epoch",
            "start_offset",
            "write_timestamp",
        )
    )
    monkeypatch.setattr(ClusterMetadata, "level", 26)
    with pytest.raises(segmentlog.MalformedRecordError):
        segmentlog.table(directory, "share_state")


def test_a_share_group_of_kafka_4_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of the metadata is absent. The metadata is not read for groups of another kind."""
    group = struct.pack(">hh", 11, 1) + b"g"
    partitions = struct.pack(">hh", 9, 1) + b"g"
    records = [(group, struct.pack(">hib", 0, 5, 0)), (partitions, b"\0\0\1\0")]
    directory = Coordinator().add(*records).write(tmp_path)
    monkeypatch.setattr(ClusterMetadata, "level", 25)
    for history in (False, True):
        (row,) = segmentlog.table(directory, "groups", history=history).to_pylist()
        assert ("g", "share", 5) == (row["group"], row["kind"], row["epoch"])
    assert segmentlog.table(directory, "group_members").num_rows == 0
    assert segmentlog.table(directory, "unknown_records").num_rows == 0
    monkeypatch.setattr(ClusterMetadata, "level", None)
    with pytest.raises(segmentlog.MalformedRecordError):
        segmentlog.table(directory, "groups")

    asked: list[object] = []
    monkeypatch.setattr(ClusterMetadata, "level", property(asked.append))
    empty = message("__consumer_offsets", 2, {"group": "c"}, {"protocol_type": ""})
    other = Coordinator().add(empty).write(tmp_path / "classic")
    assert segmentlog.table(other, "groups").num_rows == 1
    assert not asked


def test_the_share_group_of_a_broker(example_cluster: str) -> None:
    """Topics have their names from the metadata, and the group has read 20 records."""
    rows = segmentlog.table(example_cluster, "share_state").to_pylist()

    assert [("orders", 0), ("orders", 1), ("orders", 2)] == sorted(
        (row["topic"], row["partition"]) for row in rows
    )
    (begun,) = [row for row in rows if row["state_batches"]]
    assert [(0, 19, "ACKNOWLEDGED", 1)] == shown(begun)
    assert begun["delivery_complete_count"] == 20
