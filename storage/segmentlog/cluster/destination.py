"""The destination of a mirror: a directory that can follow, and the partitions that it gets."""

import contextlib
import logging
import os
from collections.abc import Collection, Iterable

from segmentlog.cluster.placement import TargetCluster
from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import partition_path
from segmentlog.log.metadata import known_topic_id, read_meta_properties
from segmentlog.model import TopicPartition
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.store.destinations import refuse_overlap
from segmentlog.store.partitions import refuse_partition
from segmentlog.store.readable import exists, is_directory, status_of
from segmentlog.txn.topics import check_partition_path

logger = logging.getLogger(__name__)

_MOST_NAMED = 20  #: partitions that a warning names


def assigned_of(
    directory: str,
    source: LogDirectory,
    chosen: Collection[TopicPartition],
    topics: Collection[str],
    partitions: Collection[int],
) -> list[TopicPartition]:
    """The chosen partitions that the metadata assigns to a log directory.

    A warning names assigned partitions that no source has.

    `source`: the log directories of the cluster.  `topics`, `partitions`: the names and numbers
    that were asked for; all if empty.
    """
    cluster = TargetCluster([directory], [directory, *source.paths])
    found = [each for each in chosen if cluster.has_replica(directory, each)]
    absent = [
        each
        for each in cluster.lacks(directory, source.topic_partitions())
        if (not topics or each.topic in topics)
        and (not partitions or each.partition in partitions)
    ]
    if absent:
        logger.warning(
            "%s: the metadata assigns %d partitions to this directory that no source has: add the "
            "log directories of brokers that have them (%s)",
            directory, len(absent), ", ".join(map(str, absent[:_MOST_NAMED])),
        )  # fmt: skip
    return found


def refuse_destination(directory: str, sources: Collection[str]) -> None:
    """Refuse a directory that cannot follow the sources.

    Raises `LogDirectoryError` if it is not apart from the sources; if the path cannot be a log
    directory; if it belongs to another cluster.
    """
    refuse_overlap(directory, sources)
    if not exists(directory):
        if not is_directory(os.path.dirname(directory)):
            reason = "lies in a directory that does not exist: make that directory first"
            raise LogDirectoryError(directory, reason)
        with contextlib.suppress(FileNotFoundError):
            status_of(directory)  # of the name itself
            reason = "is a link to a directory that does not exist: make that directory first"
            raise LogDirectoryError(directory, reason)
        return
    if not is_directory(directory):
        raise LogDirectoryError(directory, "is a file; give a log directory")
    refuse_partition(directory)
    ids = [read_meta_properties(each).get("cluster.id") for each in (directory, *sources)]
    others = {each for each in ids[1:] if each}
    if ids[0] and others and ids[0] not in others:
        reason = (
            f"belongs to cluster {ids[0]}, and the sources to cluster {others.pop()}: topic ids "
            "of one cluster mean nothing in another one; give an empty directory"
        )
        raise LogDirectoryError(directory, reason)


def refuse_partitions(directory: str, logs: Iterable[Log]) -> None:
    """Refuse partitions of the destination that cannot follow the logs.

    Raises `LogDirectoryError` if the path of one is not a directory, or not writable; if one is of
    another topic.
    """
    for log in logs:
        path = partition_path(directory, log.topic_partition)
        check_partition_path(path)
        ours, theirs = known_topic_id(path), log.known_topic_id
        if ours and theirs and ours != theirs:
            reason = (
                f"belongs to a topic with the id {ours}, and the log to one with the id {theirs}: "
                "the topic was created again; delete it at the destination first "
                "(segmentlog delete-topic)"
            )
            raise LogDirectoryError(path, reason)
