"""Settings of topics and brokers, from the metadata of a cluster (KRaft)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from segmentlog.cluster.image import BROKER, RECORDS, TOPIC, fold
from segmentlog.cluster.metadata_log import metadata_path, read_metadata
from segmentlog.errors import LogDirectoryError, MalformedRecordError

__all__ = ["ClusterSettings", "metadata_path", "read_cluster_settings"]

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
    try:
        tables = fold(read_metadata(path, RECORDS["configs"])).tables
    except MalformedRecordError as error:
        reason = f"its record at offset {error.offset} cannot be read: {error.reason}"
        raise LogDirectoryError(path, f"{reason}; {_REMEDY}") from error
    except LogDirectoryError as error:
        raise LogDirectoryError(error.path, f"{error.reason}; {_REMEDY}") from error
    settings = ClusterSettings({row["topic"]: {} for row in tables["topics"].values()})
    by_kind: Mapping[int, dict[str, dict[str, str]]] = {
        TOPIC: settings.topics,
        BROKER: settings.brokers,
    }
    for (kind, resource, name), row in tables["configs"].items():
        if kind in by_kind:
            by_kind[kind].setdefault(resource, {})[name] = row["value"]
    return settings
