"""Settings of topics and brokers, and partitions of topics, from a cluster's metadata."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from segmentlog.cluster.image import BROKER, RECORDS, TOPIC, Row, fold
from segmentlog.cluster.metadata_log import read_metadata
from segmentlog.errors import LogDirectoryError, MalformedRecordError
from segmentlog.messages.reader import uuid_text

__all__ = [
    "ClusterSettings",
    "read_cluster_settings",
    "read_partition_counts",
    "read_partition_ids",
]

_REMEDY = "give all settings in the call, or name a complete copy of the metadata"


@dataclass
class ClusterSettings:
    """The settings in a cluster's metadata, by Kafka's names.

    Attributes
    ----------
    topics : topics' own settings, by topic; a topic without settings has an empty entry.
    brokers : dynamic settings of brokers, by node id in text; ``""`` are those of all brokers.
    """

    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    brokers: dict[str, dict[str, str]] = field(default_factory=dict)


def read_cluster_settings(path: str) -> ClusterSettings:
    """The settings in a metadata log.

    Parameters
    ----------
    path : of the directory ``__cluster_metadata-0``.

    Raises
    ------
    LogDirectoryError
        If a record cannot be decoded, or has a newer version; if records between the snapshot and
        the log are missing.
    CorruptLogError
        If a batch is damaged.
    """
    tables = _tables(path, "configs")
    settings = ClusterSettings({row["topic"]: {} for row in tables["topics"].values()})
    by_kind: Mapping[int, dict[str, dict[str, str]]] = {
        TOPIC: settings.topics,
        BROKER: settings.brokers,
    }
    for (kind, resource, name), row in tables["configs"].items():
        if kind in by_kind:
            by_kind[kind].setdefault(resource, {})[name] = row["value"]
    return settings


def read_partition_counts(path: str) -> dict[str, int]:
    """The numbers of partitions of topics in a metadata log, by topic.

    Parameters
    ----------
    path : of the directory ``__cluster_metadata-0``.

    Raises
    ------
    LogDirectoryError, CorruptLogError
        See `read_cluster_settings`.
    """
    tables = _tables(path, "partitions")
    counts = Counter(topic_id for topic_id, _ in tables["partitions"])
    return {row["topic"]: counts[topic_id] for topic_id, row in tables["topics"].items()}


def read_partition_ids(path: str) -> set[tuple[str, int]]:
    """Topic ids, as Kafka prints them, and numbers of all partitions in a metadata log.

    Parameters
    ----------
    path : of the directory ``__cluster_metadata-0``.

    Raises
    ------
    LogDirectoryError, CorruptLogError
        See `read_cluster_settings`.
    """
    keys = _tables(path, "partitions")["partitions"]
    return {(uuid_text(topic_id), number) for topic_id, number in keys}


def _tables(path: str, table: str) -> Mapping[str, Mapping[Any, Row]]:
    try:
        return fold(read_metadata(path, RECORDS[table])).tables
    except MalformedRecordError as error:
        reason = f"its record at offset {error.offset} cannot be read: {error.reason}"
        raise LogDirectoryError(path, f"{reason}; {_REMEDY}") from error
    except LogDirectoryError as error:
        raise LogDirectoryError(error.path, f"{error.reason}; {_REMEDY}") from error
