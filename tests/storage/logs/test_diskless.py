"""Diskless topics (KIP-1150): their last records are in no log directory, and readers say so."""

import logging
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from coordinator_logs import Coordinator, framed

import segmentlog
from segmentlog.cluster.diskless import diskless_partitions

METADATA = "__cluster_metadata"
SEAL = 2
ELSEWHERE = f"the topic is diskless: records from offset {SEAL} on are in its object store"


def with_seal(record: tuple[None, bytes], offset: int) -> tuple[None, bytes]:
    """A record of a partition with the offset at which it was switched."""
    assert record[1][-1] == 0
    return None, record[1][:-1] + b"\1\x64\x08" + struct.pack(">q", offset)


def directory(path: Path) -> Path:
    """Topics that were switched, or have only the setting, a pending one, and a classic one."""
    records: list[tuple[None, bytes]] = []
    for number, topic in enumerate(("switched", "born", "changed", "classic", "pending")):
        topic_id = UUID(int=number + 7)
        partition: dict[str, Any] = {"partition_id": 0, "topic_id": topic_id, "replicas": [1]}
        records.append(framed(METADATA, 2, {"name": topic, "topic_id": topic_id}))
        made = framed(METADATA, 3, partition)
        records.append(
            {"switched": with_seal(made, SEAL), "pending": with_seal(made, -2)}.get(topic, made)
        )
        if topic == "changed":
            change = framed(METADATA, 5, {"partition_id": 0, "topic_id": topic_id})
            records.append(with_seal(change, SEAL))
        Coordinator().add((None, b"a"), (None, b"b")).write(path, 0, topic)
    for topic, value in (("born", "true"), ("classic", "false")):
        setting = {
            "resource_type": 2,
            "resource_name": topic,
            "name": "diskless.enable",
            "value": value,
        }
        records.append(framed(METADATA, 4, setting))
    return Coordinator().add(*records).write(path, 0, METADATA)


def test_the_metadata_tells_where_the_files_end(tmp_path: Path) -> None:
    """A later record of a partition counts; without a seal, the log end is all that is known."""
    found = {
        each.topic: seal for each, seal in diskless_partitions([str(directory(tmp_path))]).items()
    }
    assert {"switched": SEAL, "changed": SEAL, "born": None} == found


@pytest.mark.parametrize("topic", ["switched", "born", "changed"])
def test_a_read_to_the_latest_records_is_refused(
    tmp_path: Path, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Data loss does not fail a read on request, and never a read to an offset."""
    path = directory(tmp_path)
    with pytest.raises(segmentlog.LogDirectoryError) as refused:
        segmentlog.read(path, topic)
    assert ELSEWHERE in str(refused.value)
    assert "fail_on_data_loss=False reads those that are here" in str(refused.value)
    assert 2 == segmentlog.read(path, topic, ending_offsets={(topic, 0): 2}).num_rows
    with caplog.at_level(logging.WARNING):
        assert 2 == segmentlog.read(path, topic, fail_on_data_loss=False).num_rows
    assert ELSEWHERE in caplog.text


@pytest.mark.parametrize("topic", ["classic", "pending"])
def test_other_topics_are_read_as_before(tmp_path: Path, topic: str) -> None:
    """A classic topic, and one whose switch has not happened, end with their files."""
    assert 2 == segmentlog.read(directory(tmp_path), topic).num_rows


def test_verify_names_the_offset(tmp_path: Path) -> None:
    """A finding for each diskless partition."""
    found = segmentlog.verify(directory(tmp_path))
    diskless = [(each.topic, each.message) for each in found if each.kind == "diskless"]
    assert ["born", "changed", "switched"] == sorted(topic for topic, _ in diskless)
    assert all(message.startswith(ELSEWHERE) for _, message in diskless)
