"""Propose the brokers of topics that another cluster does not have yet."""

import json
import os
import random
from collections.abc import Collection, Mapping, Sequence

from segmentlog.arguments import topic_names, whole_number
from segmentlog.cluster.placement import NextInt, TargetCluster, place_replicas
from segmentlog.cluster.replicated import open_replicas
from segmentlog.dialects import one_dialect
from segmentlog.errors import LogDirectoryError
from segmentlog.maintain.restoration.plan import TOPICS_OF_BROKERS
from segmentlog.reads.choose import partitions_of
from segmentlog.store.paths import local_path
from segmentlog.store.system_errors import storage_errors
from segmentlog.txn.topics import MOST_PARTITIONS


@one_dialect()
@storage_errors()
def propose_placement(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    to: str | os.PathLike[str],
    replication_factor: int,
    topics: str | Collection[str] = (),
    next_int: NextInt = random.randrange,
) -> dict[str, list[list[int]]]:
    """Brokers for the partitions of topics that a cluster lacks, as its controller chooses them.

    Racks and fenced brokers count (`segmentlog.cluster.placement`).  If all brokers are
    fenced, the cluster is stopped, and all of them count.

    Parameters
    ----------
    path, more : log directories with the topics.
    to : a log directory with the metadata of the cluster that is to get them.
    replication_factor : number of replicas of each partition.
    topics : one or several; by default all but brokers' own.  Topics that the cluster has are left
        out.
    next_int : returns a random number that is at least 0 and below its argument.

    Returns
    -------
    dict of str to list of list of int
        For each partition of each topic the ids of brokers, the preferred leader first; see
        `creation_commands` and `reassignment_json`.

    Raises
    ------
    LogDirectoryError
        If a path is not a log directory, or if `to` has no metadata; if a directory is named as
        one of more than a million partitions.
    OptionError
        If the cluster has fewer brokers than `replication_factor`.
    UnknownTopicOrPartitionError
        If the sources lack one of `topics`.
    MalformedRecordError, CorruptLogError, StorageError
        If the metadata, or a directory, cannot be read.
    """
    names = topic_names("topics", topics)
    whole_number("replication_factor", replication_factor, 1)
    source = open_replicas(path, *more)
    cluster = TargetCluster([], [local_path(to)])
    n_partitions: dict[str, int] = {}
    for topic, partition in partitions_of(source, names):
        if topic not in TOPICS_OF_BROKERS and not cluster.n_partitions(topic):
            if partition >= MOST_PARTITIONS:
                reason = (
                    "no topic of Kafka has so many partitions: move the directory out of the log "
                    "directory, or name the topics to place"
                )
                raise LogDirectoryError(source.log(topic, partition).path, reason)
            n_partitions[topic] = max(n_partitions.get(topic, 0), partition + 1)
    brokers = cluster.brokers()
    return {
        topic: place_replicas(brokers, number, replication_factor, next_int)
        for topic, number in sorted(n_partitions.items())
    }


@one_dialect()
def creation_commands(placement: Mapping[str, Sequence[Sequence[int]]]) -> list[str]:
    """The arguments of ``kafka-topics.sh`` that make each topic so.

    Parameters
    ----------
    placement : as `propose_placement` returns it.

    Returns
    -------
    list of str
        With ``BOOTSTRAP`` to be replaced.
    """
    return [
        "kafka-topics.sh --bootstrap-server BOOTSTRAP --create "
        f"--topic {topic} --replica-assignment "
        + ",".join(":".join(map(str, replicas)) for replicas in partitions)
        for topic, partitions in placement.items()
    ]


@one_dialect()
def reassignment_json(placement: Mapping[str, Sequence[Sequence[int]]]) -> str:
    """The file that ``kafka-reassign-partitions.sh`` takes, for topics that exist.

    Parameters
    ----------
    placement : as `propose_placement` returns it.
    """
    partitions = [
        {"topic": topic, "partition": partition, "replicas": [*replicas]}
        for topic, found in placement.items()
        for partition, replicas in enumerate(found)
    ]
    return json.dumps({"version": 1, "partitions": partitions})
