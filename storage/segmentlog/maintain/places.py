"""The directory and the partitions that upkeep works on."""

import os
from collections.abc import Collection

from segmentlog.arguments import topic_names
from segmentlog.model import INTERNAL_TOPICS, TopicPartition
from segmentlog.reads.choose import partitions_of
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.partitions import refuse_partition
from segmentlog.store.paths import BucketLocation, is_bucket, local_path, opened_path, parse_bucket


def log_directory(path: str | os.PathLike[str]) -> str:
    """The absolute path of a log directory.

    Raises `LogDirectoryError` if `path` is something else.
    """
    directory = local_path(path)
    refuse_partition(directory)
    open_log_dir(directory).topic_partitions()  # otherwise the lock would leave a file anywhere
    return directory


def place_in_store(path: str | os.PathLike[str]) -> BucketLocation | None:
    """The place of a log in an object store, or None if the path is none.

    Raises `LogDirectoryError` if the path leads to a part of such a log.
    """
    if "://" not in str(path):
        return None
    found = opened_path(path)
    if not is_bucket(found):
        return None
    location, rest = parse_bucket(found)
    if rest:
        local_path(path)  # raises: nothing but reads goes to a part of a log
    return location


def partitions_for_upkeep(
    directory: str, topics: str | Collection[str], *, has_settings: bool
) -> list[TopicPartition]:
    """The partitions that upkeep looks at.

    Settings that are given for all topics are not meant for those of brokers: a policy of
    ``delete`` would take away committed offsets.

    `topics`: one name or several; all topics if empty, but none of brokers' own if `has_settings`.
    """
    topics = topic_names("topics", topics)
    chosen = partitions_of(open_log_dir(directory), topics)
    if topics or not has_settings:
        return chosen
    return [each for each in chosen if each.topic not in INTERNAL_TOPICS]
