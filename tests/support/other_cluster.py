"""The brokers of another cluster, which take a restoration; their metadata is not in a log."""

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import segmentlog
from segmentlog.cluster import placement
from segmentlog.cluster.directory_settings import DirectorySettings
from segmentlog.reads.cluster_image import Image
from segmentlog.store.durable import make_directory, sync_directory, write_new_file


def image_here(image: Image) -> Any:
    """Metadata of which no log is read."""
    return SimpleNamespace(path="metadata", tables=lambda *_: image.tables)


def format_brokers(*directories: Path) -> None:
    """Make the log directories of the brokers 1, 2, …, durably, as a power cut may come."""
    for node, each in enumerate(directories, 1):
        make_directory(str(each))
        properties = b"version=1\nnode.id=%d\ncluster.id=other\n" % node
        write_new_file(str(each / "meta.properties"), properties)
        sync_directory(str(each))
        sync_directory(str(each.parent))


def restore_to(
    source: Path, to: Sequence[Path], topics: Mapping[str, Sequence[Sequence[int]]], **options: Any
) -> segmentlog.Restoration:
    """Restore topics, of which the other cluster has these replicas of each partition."""
    image = Image()
    for number, (topic, partitions) in enumerate(topics.items()):
        topic_id = uuid.UUID(int=7000 + number)
        for partition, replicas in enumerate(partitions):
            image.tables["partitions"][topic_id, partition] = {
                "topic": topic,
                "topic_id": topic_id,
                "partition": partition,
                "replicas": [*replicas],
                "directories": None,
                "leader_epoch": 3,
            }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "ClusterMetadata", lambda _: image_here(image))
        known = DirectorySettings({"retention.ms": "-1"})
        patch.setattr(DirectorySettings, "read", lambda *_, **__: known)
        return segmentlog.restore(source, **{"to": to, "topics": [*topics], **options})
