"""The checks of a starting broker that decide on whole log directories, and on the logs in them.

A broker makes them in this order: ``meta.properties``, ``bootstrap.checkpoint``, the metadata of
the cluster, the checkpoints of each log directory, the names in it, and the topic id of each
partition.  The first check that fails ends the start, or takes a log directory offline.  All
checks are made here: a reader wants to mend all faults before the next start.

Rules: ``MetaPropertiesEnsemble``, ``BootstrapDirectory``, ``KafkaMetadataLog``, ``LogManager``,
``PartitionMetadataFile``; each was compared with brokers (``tests/interop/test_broker_start.py``).
"""

import base64
import contextlib
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from segmentlog.errors import (
    CorruptCheckpointError,
    CorruptLogError,
    SegmentLogError,
    UnsupportedFormatError,
)
from segmentlog.format.messages.reader import uuid_text
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOCK_FILE,
    LOG_START_CHECKPOINT,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_CHECKPOINT,
    DirectoryState,
    parse_partition_directory,
    parse_segment_file,
)
from segmentlog.log.checkpoint import read_leader_epochs, read_offsets
from segmentlog.log.listing import list_segments
from segmentlog.log.metadata import parse_properties
from segmentlog.model import METADATA_TOPIC, TopicPartition
from segmentlog.reads.cluster_image import RECORDS, Image, Row
from segmentlog.reads.metadata_log import (
    Snapshot,
    is_whole,
    list_metadata_snapshots,
    metadata_path,
    read_metadata,
    read_snapshot,
)
from segmentlog.store.contract import FileType
from segmentlog.store.partitions import NamedPartition, list_partitions
from segmentlog.store.readable import (
    exists,
    is_directory,
    is_file,
    list_entries,
    list_names,
    open_file,
    read_whole,
    status_of,
)
from segmentlog.store.system_errors import owner_of, why_not_opened

BOOTSTRAP_FILE = "bootstrap.checkpoint"
_QUORUM_STATE = "quorum-state"
_SNAPSHOT = re.compile(r"[0-9]{20}-[0-9]{10}\.checkpoint")
_SNAPSHOT_LIKE = re.compile(r"\.checkpoint(\.part|\.deleted)?$")
METADATA_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"  #: the same in all clusters
_INDEX_CACHE = "remote-log-index-cache"  #: a directory that brokers pass over

_WINDOW_BYTES = 1 << 20


class StartAction(StrEnum):
    """The action of a starting broker; values never change, because programs read reports."""

    REFUSE = "refuse"  #: it ends
    OFFLINE = "offline"  #: it takes the log directory offline, and ends if it has no other
    UNSERVED = "unserved"  #: it runs, and serves none of the logs
    STRAY = "stray"  #: it renames the partition's directory to ``-stray``
    EMPTY = "empty"  #: it deletes all segments of the log
    TRUNCATE = "truncate"  #: it cuts the log off
    SPLIT = "split"  #: it divides a segment
    RECOVER = "recover"  #: it reads the log from the recovery point on
    REBUILD = "rebuild"  #: it builds an index again
    DROP = "drop"  #: it drops producers, leader epochs or an entry of a checkpoint
    DELETE = "delete"  #: it removes files that are no longer part of a log
    MISSING = "missing"  #: it begins an empty log in place of one that is not there
    KEEP = "keep"  #: it leaves files that it does not use
    UNKNOWN = "unknown"  #: these disks do not tell


class StartStep(NamedTuple):
    """One thing that a starting broker does, and why.

    A step that concerns a whole log directory has no topic, and has partition -1.  Numbers that
    do not apply are -1, and words that do not apply are empty.

    Attributes
    ----------
    action : what the broker does.
    topic, partition : the log, or the log that a file belongs to.
    path : the file or the directory that decides it.
    reason : what is in the file, and what a broker expects.
    loss : what is lost.
    remedy : what to do before the start.
    offset, end_offset : half-open range of the offsets that are lost.
    n_bytes : number of the bytes that are read, deleted or renamed.
    """

    action: StartAction
    topic: str
    partition: int
    path: str
    reason: str
    loss: str = ""
    remedy: str = ""
    offset: int = -1
    end_offset: int = -1
    n_bytes: int = -1

    @property
    def has_harm(self) -> bool:
        """Whether the broker does not serve a log, or has removed its records."""
        return self.action in _HARM

    @property
    def message(self) -> str:
        """The step in words."""
        does = f"{_DOES[self.action]}: {self.reason}" if self.action in _DOES else self.reason
        return "; ".join(filter(None, (does, self.loss, self.remedy)))


_HARM = {
    StartAction.REFUSE, StartAction.OFFLINE, StartAction.UNSERVED, StartAction.STRAY,
    StartAction.EMPTY,
}  # fmt: skip
_OFFLINE = "a starting broker takes the log directory offline, and ends if it has no other"

_DOES: Mapping[StartAction, str] = {
    StartAction.REFUSE: "a starting broker ends here",
    StartAction.OFFLINE: _OFFLINE,
    StartAction.STRAY: "a starting broker renames the directory to -stray and does not serve it",
    StartAction.EMPTY: "a starting broker deletes all segments of this log",
}

#: The checkpoints of a log directory in the order of their reads, and the remedy for each.
_CHECKPOINTS = {
    RECOVERY_POINT_CHECKPOINT: "remove the file: the start then reads each log from its beginning",
    LOG_START_CHECKPOINT: "remove the file: records that DeleteRecords has deleted, and that are "
    "still in a segment, are then served again",
    HIGH_WATERMARK_CHECKPOINT: "remove the file: the start then sets each high watermark again",
    CLEANER_OFFSET_CHECKPOINT: "remove the file: the cleaner then reads compacted logs from their "
    "beginning",
}


#: What a broker does about a line that has a word in place of a number.
_OF_WORDS = {
    RECOVERY_POINT_CHECKPOINT: (StartAction.DROP, "the start reads each log from its beginning"),
    LOG_START_CHECKPOINT: (StartAction.DROP, "records that were deleted are served again"),
    HIGH_WATERMARK_CHECKPOINT: (
        StartAction.UNSERVED, "the broker runs, and serves no log of this directory"
    ),
    CLEANER_OFFSET_CHECKPOINT: (StartAction.DROP, "no log of this directory is compacted"),
}  # fmt: skip


def is_of_a_broker(directory: str) -> bool:
    """Whether a broker has used this log directory, or was told to use it."""
    return (
        exists(os.path.join(directory, META_PROPERTIES_FILE))
        or exists(os.path.join(directory, BOOTSTRAP_FILE))
        or metadata_path(directory) is not None
    )


class _Identity(NamedTuple):
    """The ids in a ``meta.properties``."""

    path: str
    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None


class BrokerStart:
    """The start of a broker on its log directories.

    `directories`: absolute paths of the log directories.  `metadata_directory`: the log directory
    with the cluster's metadata, which may be none of `directories`; None if it is one of them, or
    is not known.  `node_id`: that the broker is configured with; None if it is not known.
    `is_sole_controller`: whether the broker is configured as the only controller of its cluster.
    `image`: the state that the broker reads from the metadata, once `steps` has ended; None if the
    metadata is not here, or cannot be read.
    """

    def __init__(
        self,
        directories: Iterable[str],
        *,
        metadata_directory: str | None = None,
        node_id: int | None = None,
        is_sole_controller: bool = False,
    ) -> None:
        self.directories = tuple(directories)
        self.image: Image | None = None
        self._is_sole_controller = is_sole_controller
        self._node_id = node_id
        holders = [each for each in self.directories if metadata_path(each) is not None]
        self._is_metadata_given = metadata_directory is not None
        self.metadata_directory = metadata_directory or next(iter(holders), None)
        self._holders = holders
        self._is_old = False  #: a directory of a broker that ZooKeeper coordinates
        self._is_metadata_doubtful = False
        self._places: dict[str | None, str] = {}  #: log directories by their ids

    def steps(self) -> Iterator[StartStep]:
        """All that goes wrong, in the order of a broker's checks."""
        metadata = [*self._metadata()]  # has the ids that a lost file has had
        yield from self._meta_properties()
        yield from metadata
        for directory in self.directories:
            if is_of_a_broker(directory):
                yield from _space(directory)
                yield from _owners(directory)
            yield from self._checkpoints(directory)
            if is_of_a_broker(directory):
                yield from self._names(directory)
        yield from self._partitions()

    def _meta_properties(self) -> Iterator[StartStep]:
        """Step 1: ids of the cluster, of the node and of the directories."""
        every = dict.fromkeys((*self.directories, *filter(None, [self.metadata_directory])))
        found = {
            each: _identity(os.path.join(each, META_PROPERTIES_FILE))
            for each in every if is_of_a_broker(each)
        }  # fmt: skip
        known = [each for each in found.values() if isinstance(each, _Identity)]
        if self._node_id is None and known:
            self._node_id = known[0].node_id
        for directory, each in found.items():
            if isinstance(each, StartStep):
                is_last = not known or directory == self.metadata_directory
                action = StartAction.REFUSE if is_last else each.action
                yield each._replace(action=action, remedy=self._right_ids(directory, known))
        self._is_old = bool(known) and all(each.version == 0 for each in known)
        self._places = {each.directory_id: os.path.dirname(each.path) for each in known}
        yield from self._disagreements(known)

    def _right_ids(self, directory: str, known: Collection[_Identity]) -> str:
        """The lines that belong into a ``meta.properties``, as far as these disks tell them."""
        rows = []
        for each in list_partitions(directory):
            topic_id = _topic_id(os.path.join(each.path, PARTITION_METADATA_FILE))
            if row := self._rows.get((str(topic_id), each.topic_partition.partition)):
                rows.append(row)
        nodes = set.intersection(*(set(row["replicas"]) for row in rows)) if rows else set()
        if self._node_id is None and len(nodes) == 1:
            self._node_id = nodes.pop()
        node = self._node_id
        ids = Counter(filter(None, (_directory_id(row, node) for row in rows)))
        taken = {each.directory_id for each in known}
        own = next((each for each, _ in ids.most_common() if each not in taken), None)
        cluster = next((each.cluster_id for each in known), None)
        lines = ["version=1", f"node.id={'…' if node is None else node}"]
        lines.append(f"cluster.id={cluster or '…'}")
        if own is not None:
            lines.append(f"directory.id={own}")
        remedy = f"restore the file, or write these lines into it: {' | '.join(lines)}"
        if cluster is None:
            remedy += (
                "; the cluster.id is in the meta.properties of each node; without another node, "
                "take a new one (kafka-storage.sh random-uuid)"
            )
        return remedy

    def _disagreements(self, known: Collection[_Identity]) -> Iterator[StartStep]:
        expected_node, seen = self._node_id, dict[str, str]()
        first = next(iter(known), None)
        for each in known:
            if first and each.cluster_id != first.cluster_id:
                yield _refused(
                    each.path,
                    f"cluster.id is {each.cluster_id}, but {first.path} has {first.cluster_id}",
                    "start the broker without the directory that belongs to another cluster",
                )
            if each.node_id != expected_node:
                yield _refused(
                    each.path, f"node.id is {each.node_id}, but {expected_node} is expected",
                    "start the broker whose directory this is, with its node.id",
                )  # fmt: skip
            if each.directory_id is None:
                continue
            if (before := seen.setdefault(each.directory_id, each.path)) != each.path:
                yield _refused(
                    each.path, f"directory.id {each.directory_id} is also in {before}",
                    "one of the directories is a copy: start the broker without the copy",
                )  # fmt: skip

    def _metadata(self) -> Iterator[StartStep]:
        """Steps 2 and 3: what the broker knows of its cluster before it loads a log."""
        directory = self.metadata_directory
        for each in self._holders:
            if each != directory:
                yield _refused(
                    os.path.join(each, f"{METADATA_TOPIC}-0"),
                    f"the metadata of the cluster is expected in {directory} alone",
                    "move the older copy out of the log directories",
                )
        if directory is None:
            return
        yield from _bootstrap(directory)
        path = metadata_path(directory)
        if path is None:
            if self._is_sole_controller:
                self.image = Image()
                yield StartStep(
                    StartAction.MISSING, METADATA_TOPIC, 0, directory,
                    "there is no __cluster_metadata-0, and the broker is the only controller: it "
                    "begins a new cluster, without any topic",
                    "all topics and settings", "put the directory back from a backup before the "
                    "start",
                )  # fmt: skip
            elif self._is_metadata_given:
                yield StartStep(
                    StartAction.UNKNOWN, METADATA_TOPIC, 0, directory,
                    "there is no __cluster_metadata-0: a broker that is also the only controller "
                    "begins a new cluster, and renames all partitions to -stray; another broker "
                    "fetches the metadata from the controllers",
                    remedy="put the directory back from a backup before the start",
                )  # fmt: skip
            return
        yield from self._metadata_log(path)

    def _metadata_log(self, path: str) -> Iterator[StartStep]:
        is_readable = True
        epochs = epochs_step(METADATA_TOPIC, 0, path)
        for step in (*_quorum_state(path), *epochs, *_metadata_id(path)):
            is_readable &= not step.has_harm
            yield step
        snapshots = list_metadata_snapshots(path)[::-1]
        for name in sorted(list_names(path)):
            if _SNAPSHOT_LIKE.search(name) and not _SNAPSHOT.match(name):
                is_readable = False
                yield StartStep(
                    StartAction.REFUSE, METADATA_TOPIC, 0, os.path.join(path, name),
                    "the name is not that of a snapshot",
                    remedy="move the file out of the directory",
                )  # fmt: skip
        begins_at_0 = any(each.base_offset == 0 for each in list_segments(path))
        for i, (end_offset, each, _) in enumerate(snapshots):
            fault = _batches_fault(each)
            if fault is None:
                continue
            # The snapshot that formats a directory (Kafka 4.4) may end early: the log goes on.
            is_newest = not i and not (begins_at_0 and not end_offset and _ends_early(each))
            is_readable &= not is_newest
            action = StartAction.REFUSE if is_newest else StartAction.KEEP
            older = "an older snapshot is not read instead" if is_newest else "it is not read"
            yield StartStep(
                action, METADATA_TOPIC, 0, each, f"the snapshot is damaged: {fault}; {older}",
                remedy=_remedy_of_snapshot(path, snapshots),
                offset=end_offset,
            )  # fmt: skip
        end, epoch, error = _good_end(path)
        newest, _, newest_epoch = snapshots[0] if snapshots else Snapshot(0, "")
        if error is not None:
            self._is_metadata_doubtful = True
            yield StartStep(
                StartAction.TRUNCATE, METADATA_TOPIC, 0, error.path,
                "a starting broker cuts the metadata of the cluster off at offset "
                f"{max(end, newest)}: {getattr(error, 'finding', error)}",
                "the changes of the cluster after this offset, such as topics and moves: a sole "
                "controller then takes their partitions for strays; one of several controllers "
                "fetches them again",
                "put the file back from another controller or a backup; without one, copy the "
                "logs into another cluster (segmentlog restore)",
                offset=max(end, newest),
            )  # fmt: skip
        if (newest_epoch, newest) > (_last_epoch(path, end, epoch), end):
            yield StartStep(
                StartAction.EMPTY, METADATA_TOPIC, 0, path,
                f"the log of the cluster's metadata ends at offset {end}, before its newest "
                f"snapshot at offset {newest}",
                "the changes of the cluster after this snapshot, unless other controllers have "
                "them",
                "put the directory back from another controller or a backup",
                offset=newest,
            )  # fmt: skip
            end = min(end, newest)
        if not is_readable:
            return
        try:
            self.image = _image(path, end)
        except (SegmentLogError, ValueError) as fault:
            yield StartStep(
                StartAction.REFUSE, METADATA_TOPIC, 0, getattr(fault, "path", path),
                f"the metadata of the cluster cannot be read: {fault}",
                remedy="put the directory back from another controller or a backup",
            )  # fmt: skip

    def _checkpoints(self, directory: str) -> Iterator[StartStep]:
        """Step 4."""
        for name, remedy in _CHECKPOINTS.items():
            path = os.path.join(directory, name)
            # A log that finds its directory offline ends the start.
            is_early = name in (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT)
            action, loss = StartAction.REFUSE if is_early else StartAction.OFFLINE, ""
            try:
                read_offsets(directory, name)
            except CorruptCheckpointError as error:
                reason = f"line {error.line}: {_shown(error.reason)}"
                if _has_words(path, error.line, 3):
                    action, loss = _OF_WORDS[name]
            except OSError as error:
                reason = error.strerror or str(error)
                remedy = "give the file to the user of the broker"  # noqa: PLW2901
            else:
                continue
            yield StartStep(action, "", -1, path, reason, loss, remedy)

    def _names(self, directory: str) -> Iterator[StartStep]:
        """Step 5: a broker takes each directory for that of a partition."""
        for name, kind in sorted(list_entries(directory)):
            path = os.path.join(directory, name)
            if kind is FileType.FILE or name == _INDEX_CACHE or name.startswith("segmentlog."):
                continue
            if parse_partition_directory(name) is None and is_directory(path):
                yield _refused(
                    path, "is a directory whose name is not that of a partition",
                    "move it out of the log directory, or give the broker a directory below this "
                    "one in log.dirs",
                )  # fmt: skip

    def _partitions(self) -> Iterator[StartStep]:
        """Step 6: the partitions that the cluster assigns to this broker."""
        served: dict[tuple[TopicPartition, DirectoryState], str] = {}
        there: set[TopicPartition] = set()
        deleted: dict[TopicPartition, str] = {}
        for directory in filter(is_of_a_broker, self.directories):
            for each in list_partitions(directory):
                if each.is_metadata or not is_directory(each.path):
                    continue
                if each.state in _SERVED:
                    there.add(each.topic_partition)
                elif each.state == DirectoryState.DELETE:
                    deleted[each.topic_partition] = each.path
                steps = [*self._partition(each)]
                yield from steps
                if steps or each.state in (DirectoryState.DELETE, DirectoryState.STRAY):
                    continue
                before = served.setdefault((each.topic_partition, each.state), each.path)
                if before != each.path:
                    yield StartStep(
                        StartAction.REFUSE, *each.topic_partition, each.path,
                        f"{before} is the same partition",
                        remedy="move the older one out of the log directories",
                    )  # fmt: skip

        yield from self._missing(there, deleted)
        if self.image is None:
            yield from self._other_ids()

    def _other_ids(self) -> Iterator[StartStep]:
        """Partitions whose topic id is not that of most others of their topic: a topic has one."""
        ids: dict[str, dict[str, list[NamedPartition]]] = {}
        for directory in filter(is_of_a_broker, self.directories):
            for each in list_partitions(directory):
                found = _topic_id(os.path.join(each.path, PARTITION_METADATA_FILE))
                if each.state in _SERVED and not each.is_metadata and isinstance(found, str):
                    by_id = ids.setdefault(each.topic_partition.topic, {})
                    by_id.setdefault(found, []).append(each)
        for by_id in ids.values():
            right, *others = sorted(by_id, key=lambda each: -len(by_id[each]))
            for other in others:
                if len(by_id[other]) == len(by_id[right]):
                    continue  # one of them is wrong, but not known to be
                for each in by_id[other]:
                    yield self._stray(
                        each, os.path.join(each.path, PARTITION_METADATA_FILE),
                        f"the topic id is {other}, but {len(by_id[right])} other partitions of "
                        f"the topic have {right}",
                        f"write the two lines 'version: 0' and 'topic_id: {right}' into the file",
                    )  # fmt: skip

    def _missing(
        self, there: Collection[TopicPartition], deleted: Mapping[TopicPartition, str]
    ) -> Iterator[StartStep]:
        """Logs that the cluster assigns to these directories, and that are not in them."""
        for where, topic_id in self._ids.items():
            row = self._rows[topic_id, where.partition]
            if where in there or self._node_id not in row["replicas"]:
                continue
            path = deleted.get(where)
            assigned = _directory_id(row, self._node_id)
            place = self._places.get(assigned) if assigned else None
            if path is None and place is None:
                continue  # it may be in a directory that was not named
            is_sole = len(row["replicas"]) == 1
            new = "a starting broker begins an empty log" + (
                "" if is_sole else ", and fetches the records from another replica if it has them"
            )
            name = f"{where.topic}-{where.partition}"
            if path is None:
                yield StartStep(
                    StartAction.MISSING, *where, os.path.join(place or "", name),
                    f"the cluster assigns the log to this broker, but it is not there: {new}",
                    "all records that it had" if is_sole else "",
                    "put the directory back from a backup or another replica before the start, "
                    "unless its records are not needed",
                )  # fmt: skip
            elif _topic_id(os.path.join(path, PARTITION_METADATA_FILE)) == topic_id:
                n_bytes = sum(list_segments(path).sizes)
                yield StartStep(
                    StartAction.EMPTY, *where, path,
                    f"the directory is renamed for deletion, but the cluster still has the topic: "
                    f"{new}",
                    f"{n_bytes} bytes of log", f"rename the directory to {name} before the start, "
                    "unless its records are not needed", n_bytes=n_bytes,
                )  # fmt: skip

    def _partition(self, each: NamedPartition) -> Iterator[StartStep]:
        where = each.topic_partition
        path = os.path.join(each.path, PARTITION_METADATA_FILE)
        found = _topic_id(path)
        right = self._ids.get(where)
        remedy = "restore the file from another replica of the partition"
        if right:
            remedy = f"write the two lines 'version: 0' and 'topic_id: {right}' into the file"
            if found is None or isinstance(found, tuple):
                remedy += ", as segmentlog recover does"
        if not isinstance(found, str):
            if found is not None:
                yield StartStep(found[0], *where, path, found[1], remedy=remedy)
            elif not self._is_old and each.state in _SERVED:
                yield self._stray(each, path, "the file is missing", remedy)
            return
        if self.image is None or each.state not in _SERVED:
            return
        row = self._rows.get((found, where.partition))
        if row is None:
            is_there = any(topic_id == found for topic_id, _ in self._rows)
            other = f"topic {where.topic} has the topic id {right}" if right else (
                "the cluster has no topic with this id" if not is_there else
                f"the topic has no partition {where.partition}"
            )  # fmt: skip
            if self._is_metadata_doubtful:
                other += " in the part of the metadata that can be read"
            deleted = (
                "put the metadata back before the start"
                if self._is_metadata_doubtful
                else "if the topic was not deleted, put the metadata back from a backup; "
                "otherwise the directory may be removed"
            )
            reason = f"the topic id is {found}, but {other}"
            stray = self._stray(each, path, reason, remedy if right else deleted)
            if self._is_metadata_doubtful and not self._is_alone:
                # The broker fetches the metadata before it decides about strays.
                stray = stray._replace(
                    action=StartAction.UNKNOWN, loss="", n_bytes=-1,
                    remedy="the other controllers have the rest of the metadata",
                )  # fmt: skip
            yield stray
        elif row["topic"] != where.topic:
            yield StartStep(
                StartAction.UNSERVED, *where, path,
                f"a broker does not serve the partition: the topic id {found} is that of topic "
                f"{row['topic']}",
                "partitions that the broker learns of together with it are not served either",
                f"{remedy}, or rename the directory to {row['topic']}-{where.partition}",
            )  # fmt: skip
        elif self._node_id is not None and self._node_id not in row["replicas"]:
            yield self._stray(
                each, each.path,
                f"the replicas of the partition are on nodes {row['replicas']}, and not on "
                f"{self._node_id}",
                "the replica was moved away while the broker was down; another node has it",
            )  # fmt: skip

    def _stray(self, each: NamedPartition, path: str, reason: str, remedy: str) -> StartStep:
        n_bytes = sum(list_segments(each.path).sizes)
        return StartStep(
            StartAction.STRAY, *each.topic_partition, path, reason,
            f"{n_bytes} bytes of log stay in the -stray directory, and are gone from the topic "
            "unless another replica has them",
            remedy, n_bytes=n_bytes,
        )  # fmt: skip

    @cached_property
    def _rows(self) -> Mapping[tuple[str, int], Row]:
        """Partitions in the metadata, by topic id as Kafka prints it; asked once it is read."""
        tables = self.image.tables if self.image else {}
        return {
            (uuid_text(topic_id), number): row
            for (topic_id, number), row in tables.get("partitions", {}).items()
        }

    @cached_property
    def _ids(self) -> Mapping[TopicPartition, str]:
        """The topic ids that partitions must have by their names."""
        return {
            TopicPartition(row["topic"], number): topic_id
            for (topic_id, number), row in self._rows.items()
        }

    @property
    def _is_alone(self) -> bool:
        """Whether this node is the only voter, by its last election; also if that is not known."""
        path = metadata_path(self.metadata_directory or "")
        if path is None:
            return True
        try:
            found = json.loads(_whole(os.path.join(path, _QUORUM_STATE)))
            voters = {each["voterId"] for each in found["currentVoters"]}
        except (CorruptCheckpointError, ValueError, LookupError, TypeError, OSError):
            return True
        return voters == {self._node_id}


_SERVED = {DirectoryState.CURRENT, DirectoryState.FUTURE}


def _refused(path: str, reason: str, remedy: str) -> StartStep:
    """A step that concerns a directory, and ends the start."""
    return StartStep(StartAction.REFUSE, "", -1, path, reason, remedy=remedy)


def _shown(text: str) -> str:
    """A reason without the line it quotes, if that is no text."""
    head, _, quoted = text.partition(", found ")
    n_nul = quoted.count("\\x00")
    if n_nul > 3:
        return f"{head}, found bytes that are zero"
    return text if len(quoted) < 60 else f"{head}, found {quoted[:50]}…"


def _space(directory: str) -> Iterator[StartStep]:
    """A full disk: a broker writes checkpoints again while it starts."""
    found = os.statvfs(directory)
    if found.f_bavail or found.f_flag & os.ST_RDONLY or not found.f_blocks:
        return
    yield StartStep(
        StartAction.OFFLINE, "", -1, directory, "no space is left on its file system",
        remedy="segmentlog usage names what takes the space; segmentlog retain and "
        "delete-records free it",
    )  # fmt: skip


def _owners(directory: str) -> Iterator[StartStep]:
    """Files that the owner of the directory, as whom a broker runs, may not open."""
    owner = owner_of(directory)
    if not owner.st_uid:
        return
    refused = []
    for folder in (directory, *(each.path for each in list_partitions(directory))):
        names = list[str]()
        with contextlib.suppress(OSError):  # the directory itself is refused, too
            names = sorted(list_names(folder))
        for name in ("", *names):
            path = os.path.join(folder, name)
            mode = os.R_OK
            if not name:
                mode |= os.W_OK | os.X_OK
            elif name == LOCK_FILE or parse_segment_file(name) is not None:
                mode |= os.W_OK
            elif name == CLEAN_SHUTDOWN_FILE or name.startswith("segmentlog."):
                continue  # never read
            with contextlib.suppress(OSError):
                if why := why_not_opened(path, mode, owner):
                    refused.append((path, why))
    if refused:
        place = shlex.quote(directory)
        (path, why), n_more = refused[0], len(refused) - 1
        more = f", and {n_more} more files" if n_more else ""
        yield StartStep(
            StartAction.OFFLINE, "", -1, path, why + more,
            remedy=f"chown -R {owner.st_uid}:{owner.st_gid} {place} && chmod -R u+rwX {place}",
        )  # fmt: skip


def _whole(path: str) -> bytes:
    """The bytes of a small file."""
    return read_whole(path, lambda reason: CorruptCheckpointError(path, 1, reason, ""))


def _identity(path: str) -> "_Identity | StartStep":
    """The ids of a file, or the step that the broker takes for it.

    It continues without a directory whose file is malformed, but not without a file or a node id.
    """
    action = StartAction.OFFLINE
    try:
        data = _whole(path)
        properties = parse_properties(data)
        version = int(properties.get("version", "0"))
        key = "node.id" if version else "broker.id"
        node_id = int(properties[key]) if key in properties else None
        cluster_id, directory_id = (
            properties.get(each) for each in ("cluster.id", "directory.id")
        )
        fault = None
        if version not in (0, 1):
            fault = f"version {version} is neither 0 nor 1"
        elif directory_id is not None and (reason := _uuid_fault(directory_id)):
            fault = f"directory.id {directory_id!r} {reason}"
        elif version and not cluster_id:
            fault = "it has no cluster.id"
        elif node_id is None or not cluster_id:
            action, fault = StartAction.REFUSE, f"it has no {key if cluster_id else 'cluster.id'}"
        elif directory_id is not None and _is_reserved(directory_id):
            action, fault = StartAction.REFUSE, f"directory.id {directory_id} is reserved"
    except FileNotFoundError:
        action, fault = StartAction.REFUSE, "the file is missing"
    except (CorruptCheckpointError, ValueError, OSError) as error:
        fault = f"the file cannot be read: {error}"
    if fault:
        return StartStep(action, "", -1, path, fault)
    return _Identity(path, version, cluster_id, node_id, directory_id)


def _directory_id(row: Row, node: int | None) -> str | None:
    """The id of the log directory to which a node's replica is assigned; None if there is none."""
    if node not in row["replicas"] or not row.get("directories"):
        return None
    found = uuid_text(row["directories"][row["replicas"].index(node)])
    return None if _is_reserved(found) else found


def _uuid_fault(text: str) -> str | None:
    """Why Kafka does not take a text for an id (``Uuid.fromString``); None if it does."""
    if len(text) > 24:
        return "is longer than 24 characters"
    if not re.fullmatch(r"[A-Za-z0-9_-]*={0,2}", text):
        return "is not base64"
    n_bytes = len(text.rstrip("=")) * 6 // 8
    return None if n_bytes == 16 else f"has {n_bytes} bytes instead of 16"


def _is_reserved(text: str) -> bool:
    """Whether an id is one of the first hundred (``DirectoryId.reserved``)."""
    return int.from_bytes(base64.urlsafe_b64decode(text.rstrip("=") + "=="), "big") < 100


def _topic_id(path: str) -> "str | tuple[StartAction, str] | None":
    """The topic id of a ``partition.metadata``; what a broker does with the file, and why; None.

    None stands for a missing file.
    """
    try:
        data = _whole(path)
    except FileNotFoundError:
        return None
    except CorruptCheckpointError as error:
        return StartAction.OFFLINE, error.reason
    except OSError as error:
        return StartAction.OFFLINE, error.strerror or str(error)
    lines = data[:4096].decode(errors="replace").splitlines()
    parts = [re.split(r":\s+", line) for line in lines[:2]]
    if not parts:
        return StartAction.REFUSE, "the file is empty"
    expected = "expected 'version: 0' and 'topic_id: …'"
    if len(parts[0]) != 2 or not re.fullmatch(r"[+-]?[0-9]{1,10}", parts[0][1]):
        return StartAction.OFFLINE, _shown(f"{expected}, found {lines[0][:80]!r}")
    if int(parts[0][1]) < 0:
        return StartAction.OFFLINE, f"version {parts[0][1]} is below 0"
    if len(parts) < 2:
        return StartAction.REFUSE, f"{expected}, but the second line is missing"
    if len(parts[1]) != 2:
        return StartAction.OFFLINE, _shown(f"{expected}, found {lines[1][:80]!r}")
    text = parts[1][1]
    if fault := _uuid_fault(text):
        return StartAction.REFUSE, f"topic_id {text!r} {fault}"
    text = text.rstrip("=")
    if not base64.urlsafe_b64decode(text + "==").strip(b"\0"):
        return StartAction.OFFLINE, "topic_id is zero"
    return text


def _bootstrap(directory: str) -> Iterator[StartStep]:
    """Step 2: the metadata that a new cluster begins with; read at each start, if it is there."""
    path = os.path.join(directory, BOOTSTRAP_FILE)
    if not is_file(path):
        return
    fault = _batches_fault(path)
    if fault is None:
        try:
            records = read_snapshot(path, ["FeatureLevelRecord"])
            if any(each.fields["name"] == "metadata.version" for each in records):
                return
            fault = "it has no metadata.version"
        except (SegmentLogError, ValueError) as error:
            fault = str(error)
    yield _refused(
        path, fault,
        "remove the file if __cluster_metadata-0 is sound: a start reads it, but needs it only "
        "for a new cluster",
    )  # fmt: skip


def _quorum_state(path: str) -> Iterator[StartStep]:
    """The election that the node took part in last."""
    file = os.path.join(path, _QUORUM_STATE)
    try:
        data = _whole(file)
        found = json.loads(data)
        if not isinstance(found, dict) or "data_version" not in found:
            raise ValueError("it has no data_version")
    except FileNotFoundError:
        return
    except (CorruptCheckpointError, ValueError, OSError) as error:
        yield StartStep(
            StartAction.REFUSE, METADATA_TOPIC, 0, file, f"the file is not what a node writes: "
            f"{_shown(str(error))}",
            remedy="remove the file: the node then takes part in a new election",
        )  # fmt: skip


def epochs_step(topic: str, partition: int, partition_path: str) -> Iterator[StartStep]:
    """The step for a partition's ``leader-epoch-checkpoint``, if it cannot be read."""
    path = os.path.join(partition_path, LEADER_EPOCH_CHECKPOINT)
    action = StartAction.REFUSE if topic == METADATA_TOPIC else StartAction.OFFLINE
    try:
        read_leader_epochs(path)
        return
    except CorruptCheckpointError as error:
        reason = f"line {error.line}: {_shown(error.reason)}"
        action = StartAction.REFUSE if _has_words(path, error.line, 2) else action
    except OSError as error:
        reason = error.strerror or str(error)
    remedy = "segmentlog recover builds the file again from the log"
    yield StartStep(action, topic, partition, path, reason, remedy=remedy)


def _has_words(path: str, line: int, n_parts: int) -> bool:
    """Whether a line has the right number of parts, and words in place of numbers."""
    data = _whole(path)
    lines = data.split(b"\n")
    return 2 < line <= len(lines) and len(lines[line - 1].split()) == n_parts


def _metadata_id(path: str) -> Iterator[StartStep]:
    """The topic id of the metadata log, which is the same in all clusters."""
    file = os.path.join(path, PARTITION_METADATA_FILE)
    found = _topic_id(file)
    fault = found[1] if isinstance(found, tuple) else None
    if isinstance(found, str) and found != METADATA_TOPIC_ID:
        fault = f"topic_id is {found}, but the metadata of every cluster has {METADATA_TOPIC_ID}"
    if fault is not None:
        yield StartStep(
            StartAction.REFUSE, METADATA_TOPIC, 0, file, fault, remedy="remove the file"
        )


def _remedy_of_snapshot(path: str, snapshots: list[Snapshot]) -> str:
    """The remedy for a damaged snapshot: the log may still reach back to an older one."""
    files = list_segments(path)
    first = files[0].base_offset if files else None
    sound = [end for end, each, _ in snapshots if _batches_fault(each) is None]
    if first is not None and (not first or any(end >= first for end in sound)):
        return "move the file away: an older snapshot and the log have all that it has"
    return "put the file back from another controller or a backup"


def _batches_fault(path: str) -> str | None:
    """The first fault of a snapshot's batches; None if they are sound, and the last is the footer.

    A file that has no footer was not written to its end.
    """
    try:
        error = _scan(path, 0, status_of(path, follow=True).size)[2]
        if error is not None:
            return str(error)
        return None if is_whole(Snapshot(0, path)) else "its last batch, the footer, is missing"
    except OSError as failure:
        return failure.strerror or str(failure)


def _ends_early(path: str) -> bool:
    """Whether a snapshot has whole batches, and perhaps a part of one at its end."""
    size = status_of(path, follow=True).size
    error = _scan(path, 0, size)[2]
    if error is None or not error.position:
        return error is None
    with open_file(path) as file:
        length = int.from_bytes(file.read(error.position, 12)[8:], "big", signed=True)
    return size < error.position + 12 or length > size - error.position - 12


def _scan(
    path: str, base_offset: int, size: int
) -> tuple[int, int, CorruptLogError | UnsupportedFormatError | None]:
    """The offset and the leader epoch after the last batch that is good, and the damage there."""
    from segmentlog.format.kernels import layout  # the compiled kernels load here
    from segmentlog.format.records.decoder import BatchScanner
    from segmentlog.log.windows import BatchWindows

    reached, epoch = base_offset, -1
    with open_file(path) as file:
        windows = BatchWindows(_WINDOW_BYTES)
        try:
            for batches in windows.batches(
                file.read_into, BatchScanner(path, base_offset), 0, size
            ):
                reached = batches.next_offset
                at = int(batches.headers[-1, layout.POSITION]) + layout.LEADER_EPOCH_AT
                epoch = int.from_bytes(bytes(batches.buf[at : at + 4]), "big", signed=True)
        except (CorruptLogError, UnsupportedFormatError) as error:
            return reached, epoch, error
    return reached, epoch, None


def _good_end(path: str) -> tuple[int, int, CorruptLogError | UnsupportedFormatError | None]:
    """The end of the metadata log after a start, which reads all of it; see `_scan`."""
    reached, epoch = 0, -1
    for each in list_segments(path):
        reached, last, error = _scan(each.path, each.base_offset, each.size)
        epoch = max(epoch, last)
        if error is not None:
            return reached, epoch, error
    return reached, epoch, None


def _last_epoch(path: str, end: int, of_batches: int) -> int:
    """The last leader epoch that the checkpoint has after a start, which adds those of batches.

    An epoch is added only above all others; then those at or beyond the log end go.
    """
    try:
        known = read_leader_epochs(os.path.join(path, LEADER_EPOCH_CHECKPOINT))
    except CorruptCheckpointError:
        known = ()
    if of_batches > max((epoch for epoch, _ in known), default=-1):
        return of_batches
    return max((epoch for epoch, start in known if start < end), default=0)


def _image(path: str, end: int) -> Image:
    """The state of the cluster by the newest snapshot and the good part of the log."""
    image = Image()
    names = {*RECORDS["partitions"], *RECORDS["features"]}
    for record in read_metadata(path, names, end_offset=end):
        image.apply(record)
    return image
