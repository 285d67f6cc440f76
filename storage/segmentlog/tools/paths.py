"""The paths that a command is given: the partitions there, and files under the names given."""

import os
from collections.abc import Sequence

from segmentlog.disk.paths import readable_path
from segmentlog.disk.readable import is_file
from segmentlog.disk.remote.location import is_url, without_options
from segmentlog.logs.log_directory import LogDirectory, MissingPartition
from segmentlog.model import TopicPartition

__all__ = ["as_given", "missing_of", "partitions_of"]


def as_given(file: str, paths: Sequence[str]) -> str:
    """Path of `file`, below or beside one of `paths`, with the beginning that the user wrote.

    At a URL, it is the path without options.
    """
    if is_url(file):
        return without_options(file)
    for given in paths:
        begin, root = given, readable_path(given)
        if is_file(root):
            begin, root = os.path.dirname(begin), os.path.dirname(root)
        below = os.path.relpath(file, root)
        if below == os.curdir:
            return begin
        if below.partition(os.sep)[0] != os.pardir:
            return os.path.join(begin, below)
    return file


def partitions_of(
    directory: LogDirectory, topics: Sequence[str], partitions: Sequence[int] = ()
) -> list[TopicPartition]:
    """The selected topic-partitions, sorted.

    Raises
    ------
    UnknownTopicOrPartitionError
        If one of `topics` is missing, or has none of `partitions`.
    """
    known = directory.topics(internal=True)
    for topic in topics:
        if topic not in known or (partitions and not set(partitions) & set(known[topic])):
            directory.log(topic, partitions[0] if partitions else -1)
    return [
        found
        for found in directory.topic_partitions()
        if (not topics or found.topic in topics)
        and (not partitions or found.partition in partitions)
    ]


def missing_of(
    directory: LogDirectory, topics: Sequence[str], partitions: Sequence[int] = ()
) -> list[MissingPartition]:
    """The selected topic-partitions whose directories are gone, sorted."""
    return [
        each
        for each in directory.missing_partitions(topics or None)
        if not partitions or each.topic_partition.partition in partitions
    ]
