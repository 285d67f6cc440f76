"""A log directory with diskless topics (KIP-1150)."""

import struct
from pathlib import Path
from typing import Any
from uuid import UUID

from coordinator_logs import Coordinator, framed

METADATA = "__cluster_metadata"
SEAL = 2  #: of the partitions that were switched


def _with_seal(record: tuple[None, bytes], offset: int) -> tuple[None, bytes]:
    """A record of a partition with the offset at which it was switched."""
    assert record[1][-1] == 0
    return None, record[1][:-1] + b"\1\x64\x08" + struct.pack(">q", offset)


def diskless_topics(path: Path) -> Path:
    """Topics that were switched, or have only the setting, a pending one, and a classic one."""
    records: list[tuple[None, bytes]] = []
    for number, topic in enumerate(("switched", "born", "changed", "classic", "pending")):
        topic_id = UUID(int=number + 7)
        partition: dict[str, Any] = {"partition_id": 0, "topic_id": topic_id, "replicas": [1]}
        records.append(framed(METADATA, 2, {"name": topic, "topic_id": topic_id}))
        made = framed(METADATA, 3, partition)
        records.append(
            {"switched": _with_seal(made, SEAL), "pending": _with_seal(made, -2)}.get(topic, made)
        )
        if topic == "changed":
            change = framed(METADATA, 5, {"partition_id": 0, "topic_id": topic_id})
            records.append(_with_seal(change, SEAL))
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
