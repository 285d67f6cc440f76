"""Who a log directory belongs to: its ``meta.properties``, and those of its neighbours.

A broker makes these checks first (``MetaPropertiesEnsemble``).  It takes the ids as Java parses
them: a blank at the end of a number or of an id is a fault, and one at the end of a version is
none.
"""

import base64
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from segmentlog.errors import CorruptCheckpointError
from segmentlog.format.messages.reader import uuid_text
from segmentlog.format.names import META_PROPERTIES_FILE, PARTITION_METADATA_FILE
from segmentlog.log.checkpoint import parse_properties
from segmentlog.maintain.health.faults import StartAction, whole_file
from segmentlog.maintain.health.java import java_int
from segmentlog.maintain.health.kinds import Fault, FaultKind
from segmentlog.maintain.health.topic_ids import topic_id_of, uuid_fault
from segmentlog.reads.cluster_image import Row
from segmentlog.store.partitions import list_partitions
from segmentlog.store.readable import is_directory

#: Partitions in the cluster's metadata, by topic id and number.
Rows = Mapping[tuple[str, int], Row]


class Identity(NamedTuple):
    """The ids in a ``meta.properties``."""

    path: str
    version: int
    cluster_id: str | None  # which may be empty
    node_id: int | None
    directory_id: str | None

    @property
    def directory(self) -> str:
        """The log directory."""
        return os.path.dirname(self.path)


def read_identity(directory: str, *, is_kraft: bool) -> Identity | Fault:
    """The ids of a directory, or the fault of its file.

    A broker continues without a directory whose file is malformed, but not without a file or a
    node id.  `is_kraft`: whether the broker is known to be a KRaft node, which needs the id of its
    cluster.
    """
    path = os.path.join(directory, META_PROPERTIES_FILE)
    action = StartAction.OFFLINE
    try:
        properties = parse_properties(whole_file(path))
        found = java_int(properties.get("version", "0").strip(_JAVA_BLANKS))
        version = -1 if found is None else found
        if version not in (0, 1):
            fault = f"version {properties['version']!r} is neither 0 nor 1"
            return FaultKind.IDS.of(path, fault, action=action)
        key = "node.id" if version else "broker.id"
        node_id = None
        if key in properties:
            node_id = java_int(properties[key])
            if node_id is None:
                fault = f"{key} {properties[key]!r} is no number"
                fault += _blanks(properties[key])
                return FaultKind.IDS.of(path, fault, action=action)
        cluster_id, directory_id = map(properties.get, ("cluster.id", "directory.id"))
        # Written by a broker that ZooKeeper coordinates.
        is_old = not (version or is_kraft) and properties.keys() & {"version", key} == {"version"}
        is_old &= "node.id" not in properties
        fault = ""
        if directory_id is not None and (reason := uuid_fault(directory_id)):
            fault = f"directory.id {directory_id!r} {reason}{_blanks(directory_id)}"
        elif is_old:
            pass  # its id is in its settings, or it takes a new one
        elif node_id is None or (cluster_id is None and (version or is_kraft)):
            # Kafka's order: the ids of the cluster and of the node are missed at different steps.
            missing = "cluster.id" if cluster_id is None and version else key
            missing = missing if node_id is None or version else "cluster.id"
            action = StartAction.OFFLINE if missing == "cluster.id" else StartAction.REFUSE
            fault = f"it has no {missing}"
        elif directory_id is not None and is_reserved(directory_id):
            action, fault = StartAction.REFUSE, f"directory.id {directory_id} is reserved"
    except FileNotFoundError:
        action, fault = StartAction.REFUSE, "the file is missing"
    except (CorruptCheckpointError, ValueError, OSError) as error:
        fault = f"the file cannot be read: {error}"
    if fault:
        return FaultKind.IDS.of(path, fault, action=action)
    return Identity(path, version, cluster_id, node_id, directory_id)


_JAVA_BLANKS = "".join(map(chr, range(33)))  #: of ``String.trim``


def _blanks(text: str) -> str:
    """What to say about an id that only a blank makes wrong."""
    return ": remove the blank at its end" if text != text.rstrip() else ""


class Identities:
    """The ids of all log directories of one broker.

    `node_id`: that the broker is configured with; None if it is not known.  `rows`: asked once the
    metadata is read.
    """

    def __init__(
        self,
        directories: Iterable[str],
        node_id: int | None,
        rows: Callable[[], Rows],
        *,
        metadata_directory: str | None,
        is_kraft: bool,
    ) -> None:
        self._rows = rows
        self._metadata_directory = metadata_directory
        self.found = {each: read_identity(each, is_kraft=is_kraft) for each in directories}
        self.known = [each for each in self.found.values() if isinstance(each, Identity)]
        known = (each.node_id for each in self.known if each.node_id is not None)
        self.node_id = next(known, None) if node_id is None else node_id

    def faults(self) -> Iterator[Fault]:
        """Files that a broker does not take, and ids that do not go together."""
        known = self.known
        for directory, each in self.found.items():
            if isinstance(each, Fault):
                is_last = not known or directory == self._metadata_directory
                action = StartAction.REFUSE if is_last else each.action
                yield each._replace(action=action, remedy=self._right_ids(directory))
        yield from self._disagreements()

    def _own_rows(self, directory: str) -> list[Row]:
        """The partitions of a directory that the cluster's metadata has, by their topic ids."""
        rows = []
        for each in list_partitions(directory):
            topic_id = topic_id_of(os.path.join(each.path, PARTITION_METADATA_FILE))
            if row := self._rows().get((str(topic_id), each.topic_partition.partition)):
                rows.append(row)
        return rows

    def _right_ids(self, directory: str) -> str:
        """The lines that belong into a ``meta.properties``, as far as these disks tell them."""
        try:
            rows = self._own_rows(directory)
        except OSError:  # it does not exist
            rows = []
        nodes = set.intersection(*(set(row["replicas"]) for row in rows)) if rows else set()
        if self.node_id is None and len(nodes) == 1:
            self.node_id = nodes.pop()
        node = self.node_id
        ids = Counter(filter(None, (directory_id_of(row, node) for row in rows)))
        taken = {each.directory_id for each in self.known}
        own = next((each for each, _ in ids.most_common() if each not in taken), None)
        cluster = next((each.cluster_id for each in self.known), None)
        lines = ["version=1", f"node.id={'…' if node is None else node}"]
        lines.append(f"cluster.id={cluster or '…'}")
        if own is not None:
            lines.append(f"directory.id={own}")
        remedy = f"restore the file, or write these lines into it: {' | '.join(lines)}"
        if not is_directory(directory) or not list_partitions(directory):
            remedy = (
                "put the directory back, with its meta.properties; if its disk was replaced, and "
                "its logs are not needed, kafka-storage.sh format --ignore-formatted -t "
                f"{cluster or 'CLUSTER-ID'} -c server.properties makes it an empty one"
            )
        if cluster is None:
            remedy += (
                "; the cluster.id is in the meta.properties of each node; without another node, "
                "take a new one (kafka-storage.sh random-uuid)"
            )
        return remedy

    def _disagreements(self) -> Iterator[Fault]:
        seen = dict[str, str]()
        right = self._right_cluster()
        for each in self.known:
            if right is not None and each.cluster_id != right.cluster_id:
                remedy = "start the broker without the directory that belongs to another cluster"
                if self._own_rows(each.directory):
                    remedy = (
                        "its topic ids are those of this cluster: write the line "
                        f"cluster.id={right.cluster_id or ''} into the file"
                    )
                yield FaultKind.IDS.of(
                    each.path,
                    f"cluster.id is {each.cluster_id}, but {right.path} has {right.cluster_id}",
                    remedy,
                )
            if each.node_id is not None and each.node_id != self.node_id:
                yield FaultKind.IDS.of(
                    each.path,
                    f"node.id is {each.node_id}, but {self.node_id} is expected",
                    "start the broker whose directory this is, with its node.id",
                )
            if each.directory_id is None:
                continue
            if (before := seen.setdefault(each.directory_id, each.path)) != each.path:
                yield FaultKind.IDS.of(
                    each.path,
                    f"directory.id {each.directory_id} is also in {before}",
                    "one of the directories is a copy: start the broker without the copy",
                )

    def _right_cluster(self) -> Identity | None:
        """The directory whose ``cluster.id`` the others must have: most have it."""
        if not self.known:
            return None
        counts = Counter(each.cluster_id for each in self.known)
        most = max(counts.values())
        likely = [each for each in self.known if counts[each.cluster_id] == most]
        own = [each for each in likely if each.directory == self._metadata_directory]
        return (own or likely)[0]


def directory_id_of(row: Row, node: int | None) -> str | None:
    """The id of the log directory to which a node's replica is assigned; None if there is none."""
    if node not in row["replicas"] or not row.get("directories"):
        return None
    found = uuid_text(row["directories"][row["replicas"].index(node)])
    return None if is_reserved(found) else found


def is_reserved(text: str) -> bool:
    """Whether an id is one of the first hundred (``DirectoryId.reserved``)."""
    return int.from_bytes(base64.urlsafe_b64decode(text.rstrip("=") + "=="), "big") < 100
