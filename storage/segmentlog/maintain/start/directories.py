"""The checks of a starting broker that decide on whole log directories, and on the logs in them.

A broker makes them in this order: ``meta.properties``, ``bootstrap.checkpoint``, the metadata of
the cluster, the checkpoints of each log directory, the names in it, and the topic id of each
partition.  The first check that fails ends the start, or takes a log directory offline.  All
checks are made here: a reader wants to mend all faults before the next start.

Rules: ``MetaPropertiesEnsemble``, ``LogManager``, ``PartitionMetadataFile``; each was compared
with brokers (``tests/interop/test_broker_start.py``).
"""

import base64
import contextlib
import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from segmentlog.errors import CorruptCheckpointError, SegmentLogError
from segmentlog.format.messages.reader import uuid_text
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOCK_FILE,
    LOG_START_CHECKPOINT,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_CHECKPOINT,
    DirectoryState,
    parse_partition_directory,
    parse_segment_file,
)
from segmentlog.log.checkpoint import parse_properties, read_offsets
from segmentlog.log.listing import list_segments
from segmentlog.log.segment import Segment, find_log_end
from segmentlog.maintain.start.steps import (
    MetadataStart,
    StartAction,
    StartStep,
    has_words,
    is_of_a_broker,
    legible,
    refused,
    topic_id_of,
    uuid_fault,
    whole_file,
)
from segmentlog.model import METADATA_TOPIC, TopicPartition
from segmentlog.reads.cluster_image import Image, Row
from segmentlog.reads.metadata_log import metadata_path
from segmentlog.store.partitions import NamedPartition, list_partitions
from segmentlog.store.readable import FileType, is_directory, list_entries, list_names
from segmentlog.store.system_errors import owner_of, why_not_opened

_INDEX_CACHE = "remote-log-index-cache"  #: a directory that brokers pass over
_SERVED = {DirectoryState.CURRENT, DirectoryState.FUTURE}

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
        self._is_sole_controller = is_sole_controller
        self._node_id = node_id
        self._holders = [each for each in self.directories if metadata_path(each) is not None]
        self._is_metadata_given = metadata_directory is not None
        self.metadata_directory = metadata_directory or next(iter(self._holders), None)
        self._metadata = MetadataStart(self.metadata_directory or "")
        self._is_old = False  #: a directory of a broker that ZooKeeper coordinates
        self._places: dict[str | None, str] = {}  #: log directories by their ids

    @property
    def image(self) -> Image | None:
        """The state that the broker reads from the metadata, once `steps` has ended.

        None if the metadata is not here, or cannot be read.
        """
        return self._metadata.image

    def steps(self) -> Iterator[StartStep]:
        """All that goes wrong, in the order of a broker's checks."""
        metadata = [
            refused(
                os.path.join(each, f"{METADATA_TOPIC}-0"),
                f"the metadata of the cluster is expected in {self.metadata_directory} alone",
                "move the older copy out of the log directories",
            )
            for each in self._holders
            if each != self.metadata_directory
        ]
        if self.metadata_directory is not None:  # it has the ids that a lost file has had
            metadata += self._metadata.steps(
                is_given=self._is_metadata_given, is_sole_controller=self._is_sole_controller
            )
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
        places = {each.directory_id: os.path.dirname(each.path) for each in known}
        # The logs of a directory that only has the metadata are not looked at.
        self._places = {each: at for each, at in places.items() if at in self.directories}
        yield from self._disagreements(known)

    def _right_ids(self, directory: str, known: Collection[_Identity]) -> str:
        """The lines that belong into a ``meta.properties``, as far as these disks tell them."""
        rows = []
        for each in list_partitions(directory):
            topic_id = topic_id_of(os.path.join(each.path, PARTITION_METADATA_FILE))
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
                yield refused(
                    each.path,
                    f"cluster.id is {each.cluster_id}, but {first.path} has {first.cluster_id}",
                    "start the broker without the directory that belongs to another cluster",
                )
            if each.node_id != expected_node:
                yield refused(
                    each.path, f"node.id is {each.node_id}, but {expected_node} is expected",
                    "start the broker whose directory this is, with its node.id",
                )  # fmt: skip
            if each.directory_id is None:
                continue
            if (before := seen.setdefault(each.directory_id, each.path)) != each.path:
                yield refused(
                    each.path, f"directory.id {each.directory_id} is also in {before}",
                    "one of the directories is a copy: start the broker without the copy",
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
                reason = f"line {error.line}: {legible(error.reason)}"
                if has_words(path, error.line, 3):
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
            if name == CLEAN_SHUTDOWN_FILE:  # it is deleted, which fails only with entries in it
                if list_names(path):
                    yield StartStep(
                        StartAction.OFFLINE, "", -1, path,
                        "is a directory with entries, which a broker cannot delete",
                        remedy="remove the directory",
                    )  # fmt: skip
            elif parse_partition_directory(name) is None and is_directory(path):
                yield refused(
                    path, "is a directory whose name is not that of a partition",
                    "move it out of the log directory, or give the broker a directory below this "
                    "one in log.dirs",
                )  # fmt: skip

    def _partitions(self) -> Iterator[StartStep]:
        """Step 6: the partitions that the cluster assigns to this broker."""
        served: dict[tuple[TopicPartition, DirectoryState], str] = {}
        there: set[TopicPartition] = set()
        deleted: dict[TopicPartition, str] = {}
        ids: dict[str, dict[str, list[NamedPartition]]] = {}  # partitions by topic and topic id
        kept: dict[tuple[TopicPartition, DirectoryState], tuple[str, str | None]] = {}
        for directory in filter(is_of_a_broker, self.directories):
            for each in list_partitions(directory):
                if each.is_metadata or not is_directory(each.path):
                    continue
                topic_id = topic_id_of(os.path.join(each.path, PARTITION_METADATA_FILE))
                if each.state in _SERVED:
                    there.add(each.topic_partition)
                    if isinstance(topic_id, str):
                        by_id = ids.setdefault(each.topic_partition.topic, {})
                        by_id.setdefault(topic_id, []).append(each)
                elif each.state == DirectoryState.DELETE:
                    deleted[each.topic_partition] = each.path
                steps = [*self._partition(each, topic_id)]
                yield from steps
                if not any(step.action == StartAction.STRAY for step in steps):
                    found = topic_id if isinstance(topic_id, str) else None
                    kept[each.topic_partition, each.state] = each.path, found
                if steps or each.state in (DirectoryState.DELETE, DirectoryState.STRAY):
                    continue
                before = served.setdefault((each.topic_partition, each.state), each.path)
                if before != each.path:
                    yield StartStep(
                        StartAction.REFUSE, *each.topic_partition, each.path,
                        f"{before} is the same partition",
                        remedy="move the older one out of the log directories",
                    )  # fmt: skip

        for (where, state), (path, topic_id) in kept.items():
            if state == DirectoryState.FUTURE and not self._is_old:
                yield from self._future(
                    where, path, topic_id, *kept.get((where, DirectoryState.CURRENT), (None, None))
                )
        yield from self._missing(there, deleted)
        # Without the metadata, the id of most partitions of a topic is right: a topic has one.
        for by_id in ids.values() if self.image is None else ():
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

    def _future(
        self,
        where: TopicPartition,
        path: str,
        topic_id: str | None,
        current: str | None,
        current_id: str | None,
    ) -> Iterator[StartStep]:
        """The fate of a copy that was on its way to its log directory when the broker stopped.

        If the metadata assigns the partition to this directory already, the broker gives the copy
        the name of the partition, and then deletes the other log
        (``LogManager.recoverAbandonedFutureLogs``).  `current`: the directory of that log.
        """
        row = self._rows.get((str(topic_id), where.partition))
        directory_id = _directory_id(row, self._node_id) if row else None
        assigned = self._places.get(directory_id) if directory_id else None
        own = os.path.dirname(path)
        name = f"{where.topic}-{where.partition}"
        begin, end = _span(current or path)
        copy_begin, copy_end = _span(path)
        n_bytes = sum(list_segments(current or path).sizes)
        offsets = (
            f"the copy has the offsets [{copy_begin}, {copy_end}), and the log [{begin}, {end})"
        )
        if current and os.path.dirname(current) == own:
            if self.image is not None and assigned != own:
                return
            yield StartStep(
                StartAction.REFUSE, *where, path,
                f"a broker gives this copy the name {name}, because the cluster assigns the "
                f"partition to {own}"
                + ("" if self.image else " (if its metadata, which is not here, says so)")
                + f", but {current} is there; {offsets}",
                remedy="move the copy out of the log directories; if the copy has more records, "
                f"move the log out instead, and rename the copy to {name}",
            )  # fmt: skip
        elif assigned == own and current and current_id == topic_id:
            is_whole = 0 <= end <= copy_end
            yield StartStep(
                StartAction.DELETE if is_whole else StartAction.EMPTY, *where, current,
                f"the cluster assigns the log to {own}: a starting broker serves the copy {path}, "
                f"and deletes this log after file.delete.delay.ms; {offsets}",
                "" if is_whole else "the records that the copy does not have",
                "" if is_whole else "move the copy out of the log directories",
                offset=begin, end_offset=end, n_bytes=n_bytes,
            )  # fmt: skip
        elif assigned and assigned != own and not current:
            yield StartStep(
                StartAction.EMPTY, *where, path,
                f"the cluster assigns the log to {assigned}, where it is not: a starting broker "
                "begins an empty log there, and cuts this copy off to it",
                f"offsets [{begin}, {end}), {n_bytes} bytes",
                f"move the directory to {os.path.join(assigned, name)} before the start",
                offset=begin, end_offset=end, n_bytes=n_bytes,
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
            elif topic_id_of(os.path.join(path, PARTITION_METADATA_FILE)) == topic_id:
                n_bytes = sum(list_segments(path).sizes)
                yield StartStep(
                    StartAction.EMPTY, *where, path,
                    f"the directory is renamed for deletion, but the cluster still has the topic: "
                    f"{new}",
                    f"{n_bytes} bytes of log", f"rename the directory to {name} before the start, "
                    "unless its records are not needed", n_bytes=n_bytes,
                )  # fmt: skip

    def _partition(
        self, each: NamedPartition, found: str | tuple[StartAction, str] | None
    ) -> Iterator[StartStep]:
        """The fate of one partition; `found`: its topic id, as `topic_id_of` returns it."""
        where = each.topic_partition
        path = os.path.join(each.path, PARTITION_METADATA_FILE)
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
            if self._metadata.is_doubtful:
                other += " in the part of the metadata that can be read"
            deleted = (
                "put the metadata back before the start"
                if self._metadata.is_doubtful
                else "if the topic was not deleted, put the metadata back from a backup; "
                "otherwise the directory may be removed"
            )
            reason = f"the topic id is {found}, but {other}"
            stray = self._stray(each, path, reason, remedy if right else deleted)
            if self._metadata.is_doubtful and not self._metadata.is_alone(self._node_id):
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


def _span(path: str) -> tuple[int, int]:
    """The base offset of a log's first segment, and its end; -1 if the end is not known."""
    segments = list_segments(path)
    if not segments:
        return 0, 0
    end = -1
    with contextlib.suppress(SegmentLogError, OSError):  # which is reported with its log
        end = find_log_end(Segment(segments[-1], is_sealed=False), warns=False).offset
    return segments[0].base_offset, end


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
    closed = []
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
                    closed.append((path, why))
    if closed:
        place = shlex.quote(directory)
        (path, why), n_more = closed[0], len(closed) - 1
        more = f", and {n_more} more files" if n_more else ""
        yield StartStep(
            StartAction.OFFLINE, "", -1, path, why + more,
            remedy=f"chown -R {owner.st_uid}:{owner.st_gid} {place} && chmod -R u+rwX {place}",
        )  # fmt: skip


def _identity(path: str) -> "_Identity | StartStep":
    """The ids of a file, or the step that the broker takes for it.

    It continues without a directory whose file is malformed, but not without a file or a node id.
    """
    action = StartAction.OFFLINE
    try:
        data = whole_file(path)
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
        elif directory_id is not None and (reason := uuid_fault(directory_id)):
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


def _is_reserved(text: str) -> bool:
    """Whether an id is one of the first hundred (``DirectoryId.reserved``)."""
    return int.from_bytes(base64.urlsafe_b64decode(text.rstrip("=") + "=="), "big") < 100
