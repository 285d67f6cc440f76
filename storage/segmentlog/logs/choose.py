"""The partitions of a directory that topics and numbers choose, those that are there and not."""

from collections.abc import Collection

from segmentlog.errors import LogDirectoryError
from segmentlog.logs.log_directory import LogDirectory, MissingPartition
from segmentlog.model import TopicPartition
from segmentlog.tiered.location import plain_path

__all__ = ["missing_of", "partitions_of"]


def partitions_of(
    directory: LogDirectory,
    topics: Collection[str],
    partitions: Collection[int] = (),
    missing: Collection[MissingPartition] = (),
) -> list[TopicPartition]:
    """The chosen topic-partitions, sorted; brokers' own topics, too.

    Parameters
    ----------
    topics, partitions : all if empty.
    missing : the result of `missing_of` for them, if the caller reports it.  A topic may then have
        only missing partitions.

    Raises
    ------
    UnknownTopicOrPartitionError
        If one of `topics` does not exist, or has none of `partitions`.
    LogDirectoryError
        If no topic has one of `partitions`.
    """
    known = directory.topics(internal=True)
    lost = {each.topic_partition.topic for each in missing}
    for topic in topics:
        is_there = topic in known and (not partitions or {*partitions} & {*known[topic]})
        if not is_there and topic not in lost:
            directory.log(topic, min(partitions, default=-1))
    chosen = [
        found
        for found in directory.topic_partitions()
        if (not topics or found.topic in topics)
        and (not partitions or found.partition in partitions)
    ]
    if partitions and not chosen and not missing:
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
