"""The directory and the partitions that upkeep works on."""

import os
from collections.abc import Collection

from segmentlog.arguments import topic_names
from segmentlog.disk.paths import local_path
from segmentlog.layout.partitions import refuse_partition
from segmentlog.logs.log_directory import open_log_dir
from segmentlog.model import INTERNAL_TOPICS, TopicPartition

__all__ = ["log_directory", "partitions_of"]


def log_directory(path: str | os.PathLike[str]) -> str:
    """The absolute path of a log directory.

    Raises
    ------
    LogDirectoryError
        If `path` is something else.
    """
    directory = local_path(path)
    refuse_partition(directory)
    open_log_dir(directory).topic_partitions()  # otherwise the lock would leave a file anywhere
    return directory


def partitions_of(
    directory: str, topics: str | Collection[str], *, has_settings: bool
) -> list[TopicPartition]:
    """The partitions to look at; raises for a topic that the directory does not hold.

    Settings that are given for all topics are not meant for those of brokers: a policy of
    ``delete`` would take away committed offsets.

    Parameters
    ----------
    topics : one name or several; all topics if empty, but none of brokers' own if `has_settings`.

    Raises
    ------
    UnknownTopicOrPartitionError
        If the directory does not hold a topic.
    """
    opened = open_log_dir(directory)
    held = opened.topics(internal=True)
    topics = topic_names("topics", topics)
    for topic in topics:
        if topic not in held:
            opened.log(topic, -1)  # raises, and names the nearest topic
    wanted = topics or (held.keys() - INTERNAL_TOPICS if has_settings else held.keys())
    return [each for each in opened.topic_partitions() if each.topic in wanted]
