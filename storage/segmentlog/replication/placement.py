"""The log directories of a stopped cluster, and the replicas that each of them is to have.

The metadata of the cluster assigns a partition to brokers, and may name the log directory of each.
Brokers move a partition aside that is not assigned to them, or whose topic id is not the one in
the metadata.

Rules: ``PartitionRegistration`` (its directories), ``DirectoryId`` (reserved ids), ``LogManager``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from segmentlog.cluster.image import RECORDS, TOPIC, fold
from segmentlog.cluster.metadata_log import newest_metadata, read_metadata
from segmentlog.disk.readable import exists
from segmentlog.errors import LogDirectoryError
from segmentlog.layout.metadata import read_meta_properties
from segmentlog.layout.partitions import refuse_partition
from segmentlog.messages.reader import uuid_text
from segmentlog.model import TopicPartition
from segmentlog.names import partition_path
from segmentlog.replication.striped_placer import PlacedBroker

__all__ = ["Placement", "TargetCluster"]

#: Ids of log directories below this number mean that no directory is known.
_FIRST_DIRECTORY_ID = 100


class Placement(NamedTuple):
    """The log directories of a partition.

    Attributes
    ----------
    directories : in the order of the replicas: that of the preferred leader first.
    missing : replicas whose directory is not among the targets: ids of brokers.
    """

    directories: tuple[str, ...]
    missing: tuple[int, ...]


class TargetCluster:
    """Log directories of brokers of one cluster, and its metadata.

    Parameters
    ----------
    directories : log directories; several of one broker may be among them.
    holders : log directories that may hold ``__cluster_metadata-0``: the newest copy counts.

    Raises
    ------
    LogDirectoryError
        If no directory has metadata; if a directory is not one of a broker, or belongs to another
        cluster.
    """

    def __init__(self, directories: Sequence[str], holders: Sequence[str]) -> None:
        self.directories = directories
        for each in directories:
            refuse_partition(each)
        found = newest_metadata(holders)
        if found is None:
            reason = (
                "has no metadata of a cluster (__cluster_metadata-0): name a log directory of "
                "this cluster that has it (target_metadata)"
            )
            raise LogDirectoryError(holders[0], reason)
        names = {each for table in ("partitions", "configs", "brokers") for each in RECORDS[table]}
        tables = fold(read_metadata(found, names)).tables
        self.partitions: dict[TopicPartition, Mapping[str, Any]] = {
            TopicPartition(each["topic"], each["partition"]): each
            for each in tables["partitions"].values()
        }
        self._configs = {
            (resource, name): row["value"]
            for (kind, resource, name), row in tables["configs"].items()
            if kind == TOPIC
        }
        self._brokers = [*tables["brokers"].values()]
        self._properties = {each: read_meta_properties(each) for each in directories}
        self._nodes = {each: self._node(each) for each in directories}
        self._check_clusters([*directories, *holders])
        self._n_replicas: Counter[str] = Counter()

    def _node(self, directory: str) -> int:
        number = self._properties[directory].get("node.id", "")
        if not number.isdecimal():
            reason = (
                "has no meta.properties with a node.id: give the log directory of a broker that "
                "was started, or formatted with kafka-storage.sh"
            )
            raise LogDirectoryError(directory, reason)
        return int(number)

    def _check_clusters(self, directories: Sequence[str]) -> None:
        clusters: dict[str, str] = {}
        for each in directories:
            cluster = read_meta_properties(each).get("cluster.id")
            if cluster:
                clusters.setdefault(cluster, each)
        if len(clusters) > 1:
            (first, path_of_it), (second, other) = [*clusters.items()][:2]
            reason = (
                f"belongs to cluster {second}, and {path_of_it} to cluster {first}: give "
                "directories of one cluster"
            )
            raise LogDirectoryError(other, reason)

    @property
    def nodes(self) -> list[int]:
        """The brokers that have the directories."""
        return sorted({*self._nodes.values()})

    def setting(self, topic: str, name: str) -> str | None:
        """A topic's own setting."""
        return self._configs.get((topic, name))

    def n_partitions(self, topic: str) -> int:
        """The number of partitions of a topic; 0 if there is no such topic."""
        return sum(each.topic == topic for each in self.partitions)

    def topic_id(self, topic_partition: TopicPartition) -> str | None:
        """The id of the topic, as Kafka prints it; None if there is no such partition."""
        known = self.partitions.get(topic_partition)
        return None if known is None else uuid_text(known["topic_id"])

    def brokers(self) -> list[PlacedBroker]:
        """The brokers of the cluster.

        If all are fenced, the cluster is stopped, and none counts as fenced.
        """
        is_stopped = all(each["fenced"] for each in self._brokers)
        return [
            PlacedBroker(each["broker_id"], each["rack"], each["fenced"] and not is_stopped)
            for each in self._brokers
        ]

    def place(self, topic_partition: TopicPartition) -> Placement:
        """The directories of a partition that the metadata has.

        Raises
        ------
        LogDirectoryError
            If the metadata is damaged.
        """
        known = self.partitions[topic_partition]
        ids = known["directories"] or [None] * len(known["replicas"])
        if len(ids) != len(known["replicas"]):
            reason = (
                f"is a target, and the metadata has {len(ids)} directories for the "
                f"{len(known['replicas'])} replicas of {topic_partition}: give another copy of "
                "the metadata (target_metadata)"
            )
            raise LogDirectoryError(self.directories[0], reason)
        found, missing = [], []
        for node, directory_id in zip(known["replicas"], ids, strict=True):
            own = [each for each in self.directories if self._nodes[each] == node]
            if directory_id is not None and directory_id.int >= _FIRST_DIRECTORY_ID:
                text = uuid_text(directory_id)
                own = [each for each in own if self._properties[each].get("directory.id") == text]
            if not own:
                missing.append(node)
                continue
            found.append(min(own, key=lambda each: self._order(each, topic_partition)))
            self._n_replicas[found[-1]] += 1
        return Placement(tuple(found), tuple(missing))

    def has_replica(self, directory: str, topic_partition: TopicPartition) -> bool:
        """Whether a partition is to be in a log directory, by the metadata.

        A directory that its broker has not registered may replace any other one of the broker.
        """
        known = self.partitions.get(topic_partition)
        node = self._nodes[directory]
        if known is None or node not in known["replicas"]:
            return False
        own_id = self._properties[directory].get("directory.id")
        ids = dict(zip(known["replicas"], known["directories"] or (), strict=False))
        registered = {
            uuid_text(each)
            for broker in self._brokers
            if broker["broker_id"] == node
            for each in broker["log_dirs"]
        }
        assigned = uuid_text(ids[node]) if ids.get(node) else own_id
        return assigned == own_id or not {assigned, own_id} <= registered

    def _order(self, directory: str, topic_partition: TopicPartition) -> tuple[bool, int]:
        """A broker has a partition in one of its directories; a new one is where fewest are."""
        is_there = exists(partition_path(directory, topic_partition))
        return not is_there, self._n_replicas[directory]
