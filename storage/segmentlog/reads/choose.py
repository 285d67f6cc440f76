"""The partitions of a directory that topics and numbers choose, those that are there and not."""

import os
from collections.abc import Collection, Iterable, Mapping

from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import LOG_START_CHECKPOINT
from segmentlog.log.checkpoint import read_offsets
from segmentlog.model import OffsetRange, TopicPartition
from segmentlog.reads.left_out import MissingPartition
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.store.paths import is_tiered, plain_path


def partitions_of(
    directory: LogDirectory,
    topics: Collection[str],
    partitions: Collection[int] = (),
    missing: Collection[MissingPartition] = (),
) -> list[TopicPartition]:
    """The chosen topic-partitions, sorted; brokers' own topics, too.

    A topic may have only partitions that `missing_of` has found, if the caller reports them.
    Raises `UnknownTopicOrPartitionError` if one of `topics` does not exist, or has none of
    `partitions`; `LogDirectoryError` if no topic has one of `partitions`.
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


def only_in_a_tier(
    directory: LogDirectory, chosen: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetRange]:
    """Offsets of logs that are in remote storage and not on these disks."""
    # A broker writes an entry below the first local offset only for a log with remote segments.
    # Nothing is found in a directory that was opened with its tier.
    found: dict[TopicPartition, OffsetRange] = {}
    known: dict[str, Mapping[TopicPartition, int]] = {}
    for each in () if is_tiered(directory.paths[0]) else chosen:
        log = directory.log(*each)
        parent = os.path.dirname(log.path)
        if parent not in known:
            known[parent] = read_offsets(parent, LOG_START_CHECKPOINT)
        # While the commit of a deletion is unfinished, the checkpoint has the start before it.
        start = max(known[parent].get(each, log.log_start_offset), log.log_start_checkpoint)
        if start < log.log_start_offset:
            found[each] = OffsetRange(start, log.log_start_offset)
    return found
