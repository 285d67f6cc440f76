"""The log directories of a stopped cluster, and the replicas that each of them is to have.

The metadata of the cluster assigns a partition to brokers, and may name the log directory of each.
Brokers move a partition aside that is not assigned to them, or whose topic id is not the one in
the metadata.

A broker does not start if it finds a partition in two of its log directories.  A log directory
that has the partition takes precedence over the one that the metadata names: the broker loads the
partition there, and reports the place to the controller.

Rules: ``PartitionRegistration`` (its directories), ``DirectoryId`` (reserved ids), ``LogManager``
(``Duplicate log directories``, ``getOrCreateLog``), KIP-858.

The brokers of new partitions follow from the rule of the controller.  Replicas are spread over
racks first, then over the brokers of a rack, and brokers that are not fenced come before those
that are.  A broker without a rack is in a rack of its kind.  Partition after partition, the first
rack and the first broker of each rack move on by one, and once there were as many partitions as
brokers that are not fenced, all lists are shuffled.

The controller begins each list at a random place, so nobody can compute a placement that it has
chosen.  With the same random numbers, the placement here is that of the controller.

Rules: ``StripedReplicaPlacer``, KIP-36, KIP-500.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from segmentlog.cluster.copies import refuse_two_clusters
from segmentlog.errors import LogDirectoryError, OptionError
from segmentlog.format.messages.reader import uuid_text
from segmentlog.format.names import partition_path
from segmentlog.log.checkpoint import known_topic_id, read_meta_properties
from segmentlog.model import TopicPartition
from segmentlog.reads.cluster_image import TOPIC, ClusterMetadata
from segmentlog.store.partitions import refuse_partition
from segmentlog.store.readable import exists

#: Returns a random number that is at least 0 and below its argument.
NextInt = Callable[[int], int]


class PlacedBroker(NamedTuple):
    """A broker that may get replicas."""

    node_id: int
    rack: str | None = None  # its rack, or None
    #: whether it does not take part: it gets replicas last, and never the first one
    is_fenced: bool = False


def place_replicas(
    brokers: Iterable[PlacedBroker], n_partitions: int, replication_factor: int, next_int: NextInt
) -> list[list[int]]:
    """The brokers of each partition of a new topic; the first one is the preferred leader.

    `brokers`: in the order in which the controller lists them.  `next_int`: returns a random
    number that is at least 0 and below its argument.
    """
    racks = _Racks(brokers, next_int)
    if not 1 <= replication_factor <= racks.n_brokers:
        accepted = f"the cluster has {racks.n_brokers} brokers, and each takes one replica"
        raise OptionError("replication_factor", str(replication_factor), accepted)
    if not racks.n_unfenced:
        accepted = "all brokers are fenced, and a leader must not be"
        raise OptionError("replication_factor", str(replication_factor), accepted)
    return [racks.place(replication_factor) for _ in range(n_partitions)]


class _Brokers:
    """Brokers of one rack in a circle."""

    def __init__(self, brokers: Iterable[int], next_int: NextInt) -> None:
        self.brokers = sorted(brokers)
        self._offset = next_int(len(self.brokers)) if self.brokers else 0
        self._n_taken, self._epoch = 0, 0

    def next(self, epoch: int) -> int | None:
        """The next broker for the partition of an epoch, or None if all were taken."""
        if not self.brokers:
            return None
        if self._epoch != epoch:
            self._epoch, self._n_taken = epoch, 0
            self._offset = (self._offset + 1) % len(self.brokers)
        if self._n_taken >= len(self.brokers):
            return None
        found = self.brokers[(self._n_taken + self._offset) % len(self.brokers)]
        self._n_taken += 1
        return found


class _Racks:
    """All racks in a circle (``RackList``)."""

    def __init__(self, brokers: Iterable[PlacedBroker], next_int: NextInt) -> None:
        self._next_int = next_int
        members: dict[str | None, list[PlacedBroker]] = {}
        for each in brokers:
            members.setdefault(each.rack, []).append(each)
        self.n_brokers = sum(map(len, members.values()))
        self.n_unfenced = sum(not each.is_fenced for rack in members.values() for each in rack)
        #: The brokers of each rack that are not fenced, and those that are.
        self._racks: dict[str | None, tuple[_Brokers, _Brokers]] = {}
        # Each rack takes its random numbers in the order of Kafka's map.
        for name in _in_order_of_a_hash_map([*members]):
            fenced, unfenced = (
                _Brokers(
                    (each.node_id for each in members[name] if each.is_fenced is is_fenced),
                    next_int,
                )
                for is_fenced in (True, False)
            )
            self._racks[name] = unfenced, fenced
        self._names = sorted(
            members, key=lambda each: (each is not None, (each or "").encode("utf-16-be"))
        )
        self._offset = next_int(len(self._names)) if self._names else 0
        self._epoch = 0

    def place(self, replication_factor: int) -> list[int]:
        """The brokers of the next partition."""
        if self._epoch == self.n_unfenced > 1:
            self._shuffle(self._names)
            for unfenced, fenced in self._racks.values():
                self._shuffle(fenced.brokers)
                self._shuffle(unfenced.brokers)
            self._epoch = 0
        n_racks = len(self._names)
        self._offset %= n_racks
        first = self._offset
        while (leader := self._rack(first)[0].next(self._epoch)) is None:
            first = (first + 1) % n_racks
        brokers, at, is_left_out = [leader], self._offset, True
        while len(brokers) < replication_factor:
            found = None
            if at == first and is_left_out:
                is_left_out = False  # the rack of the leader is left out once
            else:
                unfenced, fenced = self._rack(at)
                found = unfenced.next(self._epoch)
                found = fenced.next(self._epoch) if found is None else found
            at = (at + 1) % n_racks
            if found is not None:
                brokers.append(found)
        self._epoch += 1
        self._offset += 1
        return brokers

    def _rack(self, at: int) -> tuple[_Brokers, _Brokers]:
        return self._racks[self._names[at]]

    def _shuffle(self, items: list[Any]) -> None:
        """``Collections.shuffle``."""
        for i in range(len(items), 1, -1):
            at = self._next_int(i)
            items[i - 1], items[at] = items[at], items[i - 1]


def _in_order_of_a_hash_map(names: Sequence[str | None]) -> list[str | None]:
    """The names in the order in which ``HashMap<Optional<String>, …>`` yields them."""

    def spread(name: str | None) -> int:
        """``String.hashCode``, with its high bits spread to the low ones as by ``HashMap``."""
        found, units = 0, (name or "").encode("utf-16-be")
        for i in range(0, len(units), 2):
            found = (31 * found + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
        return found ^ found >> 16

    n_bins = 16
    while len(names) > n_bins * 3 // 4:
        n_bins *= 2
    return sorted(names, key=lambda name: spread(name) % n_bins)


#: Ids of log directories below this number mean that no directory is known: UNASSIGNED, LOST,
#: MIGRATING.
_FIRST_DIRECTORY_ID = 100


class Placement(NamedTuple):
    """The log directories of a partition."""

    #: in the order of the replicas: that of the preferred leader first
    directories: tuple[str, ...]
    missing: tuple[int, ...]  # replicas whose directory is not among the targets: ids of brokers
    problems: tuple[str, ...] = ()  # reasons for which a broker of a replica would not start


def node_of(directory: str) -> int:
    """The id of the broker that has a log directory."""
    number = read_meta_properties(directory).get("node.id", "")
    if not number.isdecimal():
        reason = (
            "has no meta.properties with a node.id: give the log directory of a broker that was "
            "started, or formatted with kafka-storage.sh"
        )
        raise LogDirectoryError(directory, reason)
    return int(number)


class TargetCluster:
    """Log directories of brokers of one cluster, and its metadata.

    `directories`: log directories; several of one broker may be among them.  `holders`: log
    directories that may hold ``__cluster_metadata-0``: the newest copy counts.
    """

    def __init__(self, directories: Sequence[str], holders: Sequence[str]) -> None:
        self.directories = directories
        for each in directories:
            refuse_partition(each)
        metadata = ClusterMetadata(holders)
        if metadata.path is None:
            reason = (
                "has no metadata of a cluster (__cluster_metadata-0): name a log directory of "
                "this cluster that has it (target_metadata)"
            )
            raise LogDirectoryError(holders[0], reason)
        #: the log directory that has the newest copy
        self.holder = os.path.dirname(metadata.path)
        tables = metadata.tables("partitions", "configs", "brokers")
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
        given = dict.fromkeys([*directories, *holders])
        self._properties = {each: read_meta_properties(each) for each in given}
        self._nodes = {each: node_of(each) for each in directories}
        refuse_two_clusters(self._properties, "give directories of one cluster")
        self._check_ids()
        self._n_replicas: Counter[str] = Counter()

    def _check_ids(self) -> None:
        """Refuse a log directory and a copy of it: the partitions would be spread over both."""
        known: dict[tuple[int, str], str] = {}
        for each in self.directories:
            own_id = self._id(each)
            if own_id is None:
                continue
            other = known.setdefault((self._nodes[each], own_id), each)
            if other != each:
                reason = (
                    f"is a log directory of broker {self._nodes[each]} with the directory.id "
                    f"{own_id}, and so is {other}: one is a copy of the other; give only one"
                )
                raise LogDirectoryError(each, reason)

    @property
    def nodes(self) -> list[int]:
        """The brokers that have the directories."""
        return sorted({*self._nodes.values()})

    def setting(self, topic: str, name: str) -> str | None:
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
        """The directories of a partition that the metadata has."""
        found, missing, problems = [], [], []
        for node, disk in self._disks(topic_partition).items():
            own = [each for each in self.directories if self._nodes[each] == node]
            ids = {self._id(each) for each in own}
            having = [each for each in own if self._has(each, topic_partition)]
            if len(having) > 1:
                problems.append(_twice(having, topic_partition))
            if having:
                own = having
            elif disk is not None:
                own = [each for each in own if self._id(each) == disk]
            elif self._registered(node) - ids:
                own = []  # a directory that is not given may have the partition
            if not own:
                missing.append(node)
                continue
            # A broker chooses so for a new partition, too.
            found.append(min(own, key=lambda each: self._n_replicas[each]))
            self._n_replicas[found[-1]] += 1
        return Placement(tuple(found), tuple(missing), tuple(problems))

    def has_replica(self, directory: str, topic_partition: TopicPartition) -> bool:
        """Whether a partition is to be in a log directory, by the metadata.

        One log directory of a broker gets a partition: the directory that has the partition
        already, or else the one that the metadata names.  A directory that its broker has not
        registered replaces the only registered one that is not given.

        Raises `LogDirectoryError` if another log directory of the broker may be meant, too; if two
        of them have the partition; if the metadata is damaged.
        """
        known, node = self.partitions.get(topic_partition), self._nodes[directory]
        if known is None or node not in known["replicas"]:
            return False
        disk, disks = self._disks(topic_partition)[node], self._broker_disks(directory)
        having = [each for each in disks.given if self._has(each, topic_partition)]
        is_here = self._has(directory, topic_partition)
        if is_here and having:
            raise LogDirectoryError(directory, _twice([directory, *having], topic_partition))
        if disk in disks.own:
            return not having
        if is_here and disk not in disks.absent:
            return True
        # A new directory beside all others of the broker: nothing shows its purpose.
        is_extra = disks.is_new and bool(disks.given) and not disks.absent
        if not is_extra:
            is_given = disk in disks.given.values()
            if having or is_given or (disk in disks.absent and not disks.is_new):
                return False
            if not disks.given and not disks.absent:
                return True
        raise LogDirectoryError(directory, disks.doubt(node, disk, topic_partition))

    def lacks(self, directory: str, given: Collection[TopicPartition]) -> Iterator[TopicPartition]:
        """Partitions that are to be in a log directory, and are neither there nor given.

        A partition is left out if the metadata alone does not show its log directory.
        """
        for each in sorted({*self.partitions}.difference(given)):
            with contextlib.suppress(LogDirectoryError):
                if self.has_replica(directory, each) and not self._has(directory, each):
                    yield each

    def _broker_disks(self, directory: str) -> "_BrokerDisks":
        """The log directories of the broker of a directory."""
        node, own_id = self._nodes[directory], self._id(directory)
        # Before KIP-858, a broker had one log directory, without an id.  A path with the id of
        # `directory` is an earlier place of this directory.
        given = {
            each: found
            for each, properties in self._properties.items()
            if properties.get("node.id") == str(node)
            and (found := self._id(each))
            and found != own_id
        }
        registered = self._registered(node)
        own = {own_id} if own_id else set()
        absent = registered - own - {*given.values()}
        is_new = own_id not in registered
        if is_new and len(absent) == 1:
            own, absent, is_new = own | absent, set(), False  # it takes the place of this one
        return _BrokerDisks(own, given, absent, is_new)

    def _disks(self, topic_partition: TopicPartition) -> dict[int, str | None]:
        """The brokers of the replicas, and the id of the log directory that each has chosen.

        The id is None if the broker has not chosen one, or has lost the directory.
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
        return {
            node: None if each is None or each.int < _FIRST_DIRECTORY_ID else uuid_text(each)
            for node, each in zip(known["replicas"], ids, strict=True)
        }

    def _registered(self, node: int) -> set[str]:
        """Ids of the log directories that a broker has registered."""
        return {
            uuid_text(each)
            for broker in self._brokers
            if broker["broker_id"] == node
            for each in broker["log_dirs"]
        }

    def _id(self, directory: str) -> str | None:
        return self._properties[directory].get("directory.id")

    def _has(self, directory: str, topic_partition: TopicPartition) -> bool:
        """Whether a log directory has a partition of this topic, and not of a former one."""
        path = partition_path(directory, topic_partition)
        # Without an id, it may be the partition.
        known = {"", self.topic_id(topic_partition)}
        return exists(path) and known_topic_id(path) in known


class _BrokerDisks(NamedTuple):
    """The log directories of a broker, beside one of them."""

    own: set[str]  # ids of that one: its own id, and the id of the directory whose place it takes
    given: dict[str, str]  # ids of others, by their paths
    absent: set[str]  # ids of others that the broker has registered, and that are not given
    #: whether the broker has not registered it, and nothing shows whose place it takes
    is_new: bool

    def doubt(self, node: int, disk: str | None, topic_partition: TopicPartition) -> str:
        """Why nothing shows whether the one directory is to have a partition."""
        named = "no log directory" if disk is None else f"the log directory with the id {disk}"
        others = [*self.given, *(f"the one with the id {each}" for each in self.absent)]
        return (
            f"is a log directory of broker {node}, and so are {', '.join(sorted(others))}; the "
            f"metadata assigns {topic_partition} to {named} of this broker, and the broker does "
            "not start if two have the partition: if this directory replaces another one, write "
            "the directory.id of that one into its meta.properties; or mirror the partition by "
            "its name, without assigned (--assigned), into the directory that is to have it"
        )


def _twice(directories: Sequence[str], topic_partition: TopicPartition) -> str:
    """Why a broker would not start with a partition in several of its log directories."""
    paths = [partition_path(each, topic_partition) for each in directories]
    return (
        f"{' and '.join(paths)} are in log directories of one broker, which does not start with "
        "a partition in two of them: move all but one of them away"
    )
