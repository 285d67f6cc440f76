"""Settings of topics and brokers, and partitions of topics, from a cluster's metadata."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from segmentlog.errors import LogDirectoryError, MalformedRecordError, SegmentLogError
from segmentlog.format.messages.reader import uuid_text
from segmentlog.format.newer import KNOWN_KAFKA, LEFT, note, notes_of
from segmentlog.log.listing import list_segments
from segmentlog.model import INTERNAL_TOPICS
from segmentlog.reads.cluster_image import BROKER, RECORDS, TOPIC, Image, Row
from segmentlog.reads.listed import LostSegments
from segmentlog.reads.log import Log
from segmentlog.reads.metadata_log import metadata_path, read_metadata
from segmentlog.store.readable import is_url, list_names

_REMEDY = "give all settings in the call, or name a complete copy of the metadata"


@dataclass
class ClusterSettings:
    """The settings in a cluster's metadata, by Kafka's names."""

    #: topics' own settings, by topic; a topic without settings has an empty entry
    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    #: dynamic settings of brokers, by node id in text; ``""`` are those of all brokers
    brokers: dict[str, dict[str, str]] = field(default_factory=dict)
    metadata_level: int | None = None  # level of ``metadata.version``, or None if it is not known


def read_cluster_settings(path: str) -> ClusterSettings:
    """The settings in a metadata log."""
    tables = _tables(path, "configs", "features")
    settings = ClusterSettings({row["topic"]: {} for row in tables["topics"].values()})
    if "metadata.version" in tables["features"]:
        settings.metadata_level = tables["features"]["metadata.version"]["feature_level"]
    by_kind: Mapping[int, dict[str, dict[str, str]]] = {
        TOPIC: settings.topics,
        BROKER: settings.brokers,
    }
    for (kind, resource, name), row in tables["configs"].items():
        if kind in by_kind:
            by_kind[kind].setdefault(resource, {})[name] = row["value"]
    return settings


def known_losses(log: Log) -> tuple[LostSegments, ...]:
    """Offsets in the middle of a log whose segments are gone, by its indexes or the metadata.

    A gap between two segments of a log that was never compacted is a loss.  Bytes that a recovery
    has put aside are not.
    """
    found = {each.end_offset: each for each in log.lost_segments}
    path = None if is_url(log.path) else metadata_path(os.path.dirname(log.path))
    if path is None or len(log.segments) < 2 or log.cleaned_to >= 0:
        return tuple(found.values())
    newest = max(list_segments(path), default=None)
    try:
        topics = _never_compacted(path, newest)
    except (SegmentLogError, OSError):  # the findings about the metadata name its damage
        topics = frozenset()
    if log.topic_partition.topic not in topics:
        return tuple(found.values())
    aside = [
        int(parts[1]) for name in list_names(log.path)
        if name.endswith(".broken") and len(parts := name.split(".")) > 2 and parts[1].isdecimal()
    ]  # fmt: skip
    why = "the metadata of the cluster shows that the topic was never compacted"
    for gap in log.segment_gaps:
        if not any(gap.start_offset <= each < gap.end_offset for each in aside):
            found.setdefault(gap.end_offset, LostSegments(*gap, why))
    return tuple(found[each] for each in sorted(found))


@lru_cache(maxsize=8)
def _never_compacted(path: str, _: object) -> frozenset[str]:
    """Topics whose ``cleanup.policy`` was delete all along, as far as the metadata goes back.

    The second argument changes with the metadata.
    """
    image, compacted, is_default = Image(), set[str](), False
    for record in read_metadata(path, RECORDS["configs"]):
        for change in image.apply(record):
            if change.table != "configs" or change.row is None:
                continue
            kind, resource, name = cast("tuple[int, str, str]", change.key)
            if name.endswith("cleanup.policy") and "compact" in change.row["value"]:
                compacted.add(resource)
                is_default |= kind == BROKER
    every = {row["topic"] for row in image.tables["topics"].values()}
    return frozenset() if is_default else frozenset(every - compacted - INTERNAL_TOPICS)


def read_partition_counts(path: str) -> dict[str, int]:
    """The numbers of partitions of topics in a metadata log, by topic."""
    tables = _tables(path, "partitions")
    counts = Counter(topic_id for topic_id, _ in tables["partitions"])
    return {row["topic"]: counts[topic_id] for topic_id, row in tables["topics"].items()}


def read_partition_ids(path: str) -> set[tuple[str, int]]:
    """Topic ids, as Kafka prints them, and numbers of all partitions in a metadata log."""
    keys = _tables(path, "partitions")["partitions"]
    return {(uuid_text(topic_id), number) for topic_id, number in keys}


def _tables(path: str, *tables: str) -> Mapping[str, Mapping[Any, Row]]:
    wanted, image = [each for name in tables for each in RECORDS[name]], Image()

    def read() -> None:
        for record in read_metadata(path, wanted):
            image.apply(record)

    try:
        newer = notes_of(read)
    except MalformedRecordError as error:
        reason = f"its record at offset {error.offset} cannot be read: {error.reason}"
        raise LogDirectoryError(path, f"{reason}; {_REMEDY}") from error
    except LogDirectoryError as error:
        raise LogDirectoryError(error.path, f"{error.reason}; {_REMEDY}") from error
    for each in newer:
        if each.endswith(LEFT):  # records are removed by these settings
            raise LogDirectoryError(path, f"{each}, is newer than Kafka {KNOWN_KAFKA}; {_REMEDY}")
        note(each)
    return image.tables
