"""The partitions of a directory that topics and numbers choose, those that are there and not."""

from collections.abc import Collection

from segmentlog.errors import LogDirectoryError
from segmentlog.logs.log_directory import LogDirectory, MissingPartition
from segmentlog.model import TopicPartition
from segmentlog.tiered.location import plain_path

__all__ = ["missing_of", "partitions_of"]


def partitions_of(
    directory: LogDirectory, topics: Collection[str], partitions: Collection[int] = ()
) -> list[TopicPartition]:
    """The chosen topic-partitions, sorted; brokers' own topics, too.

    Parameters
    ----------
    topics, partitions : all if empty.

    Raises
    ------
    UnknownTopicOrPartitionError
        If one of `topics` is missing, or has none of `partitions`.
    LogDirectoryError
        If no topic has one of `partitions`.
    """
    known = directory.topics(internal=True)
    for topic in topics:
        if topic not in known or (partitions and not {*partitions} & {*known[topic]}):
            directory.log(topic, min(partitions, default=-1))
    chosen = [
        found
        for found in directory.topic_partitions()
        if (not topics or found.topic in topics)
        and (not partitions or found.partition in partitions)
    ]
    if partitions and not chosen:
        numbers = ", ".join(map(str, sorted(partitions)))
        reason = f"no topic has a partition {numbers} here: give other numbers, or none for all"
        raise LogDirectoryError(", ".join(map(plain_path, directory.paths)), reason)
    return chosen


def missing_of(
    directory: LogDirectory, topics: Collection[str], partitions: Collection[int] = ()
) -> list[MissingPartition]:
    """The chosen topic-partitions whose directories are gone, sorted."""
    return [
        each
        for each in directory.missing_partitions(topics or None)
        if not partitions or each.topic_partition.partition in partitions
    ]
