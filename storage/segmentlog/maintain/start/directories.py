"""The checks of a starting broker that decide on whole log directories, and on the logs in them.

A broker makes them in this order: ``meta.properties``, ``bootstrap.checkpoint``, the metadata of
the cluster, the checkpoints of each log directory, the names in it, and the topic id of each
partition.  The first check that fails ends the start, or takes a log directory offline.  All
checks are made here: a reader wants to mend all faults before the next start.

Rules: ``MetaPropertiesEnsemble``, ``LogManager``, ``PartitionMetadataFile``; each was compared
with brokers (``tests/interop/test_broker_start.py``).
"""

import contextlib
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property

from segmentlog.errors import SegmentLogError
from segmentlog.format.messages.reader import uuid_text
from segmentlog.format.names import (
    BOOTSTRAP_FILE,
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA_FILE,
    DirectoryState,
    parse_partition_directory,
    parse_segment_file,
    partition_path,
)
from segmentlog.log.listing import list_segments
from segmentlog.log.segment import Segment, find_log_end
from segmentlog.maintain.health.checkpoints import checkpoint_faults
from segmentlog.maintain.health.faults import StartAction, is_within
from segmentlog.maintain.health.identity import Identities, Identity, directory_id_of
from segmentlog.maintain.health.kinds import Fault, FaultKind
from segmentlog.maintain.health.topic_ids import topic_id_of
from segmentlog.maintain.start.loading import LoadingDirectory
from segmentlog.maintain.start.metadata import MetadataStart
from segmentlog.model import METADATA_TOPIC, TopicPartition
from segmentlog.reads.cluster_image import Image, Row
from segmentlog.reads.metadata_log import is_of_a_broker, metadata_path
from segmentlog.store.partitions import NamedPartition, list_partitions
from segmentlog.store.readable import FileType, is_directory, is_file, list_entries, list_names
from segmentlog.store.system_errors import owner_of, why_not_opened

_INDEX_CACHE = "remote-log-index-cache"  #: a directory that brokers pass over
_SERVED = {DirectoryState.CURRENT, DirectoryState.FUTURE}


class BrokerStart:
    """The start of a broker on its log directories.

    `directories`: absolute paths of the log directories.  `metadata_directory`: the log directory
    with the cluster's metadata, which may be none of `directories`; None if it is one of them, or
    is not known.  `node_id`: that the broker is configured with; None if it is not known.
    `is_sole_controller`: whether the broker is configured as the only controller of its cluster.
    `is_kraft`: whether the broker is known to need no ZooKeeper.  `is_all`: whether these are all
    log directories of the broker.  `loading`: what is known of the loading of directories.
    """

    def __init__(
        self,
        directories: Iterable[str],
        *,
        metadata_directory: str | None = None,
        node_id: int | None = None,
        is_sole_controller: bool = False,
        is_kraft: bool = False,
        is_all: bool = False,
        loading: Callable[[str], LoadingDirectory] | None = None,
    ) -> None:
        self.directories = tuple(directories)
        self._is_sole_controller = is_sole_controller
        self._node_id = node_id
        self._is_kraft = is_kraft
        self._is_all = is_all
        self._holders = [each for each in self.directories if metadata_path(each) is not None]
        self._is_metadata_given = metadata_directory is not None
        formatted = [
            each for each in self.directories if is_file(os.path.join(each, BOOTSTRAP_FILE))
        ]
        self.metadata_directory = metadata_directory or next(iter(self._holders), None)
        # A directory that was formatted, and that no node has used.
        self._metadata = MetadataStart(self.metadata_directory or next(iter(formatted), ""))
        #: a log directory whose logs are loaded: its checkpoints are read once
        self.loading = loading or cache(LoadingDirectory)
        self._is_old = False  #: a directory of a broker that ZooKeeper coordinates
        self._places: dict[str | None, str] = {}  #: log directories by their ids
        self._offline: set[str] = set()

    @property
    def image(self) -> Image | None:
        """The state that the broker reads from the metadata, once `faults` has ended.

        None if the metadata is not here, or cannot be read.
        """
        return self._metadata.image

    @property
    def features(self) -> Mapping[str, int]:
        """The levels of the cluster's features, once `faults` has ended."""
        found = self.image.tables.get("features", {}) if self.image else {}
        return {
            name: row["feature_level"] for name, row in found.items()
        } or self._metadata.formatted

    @property
    def is_alone(self) -> bool:
        """Whether the cluster is known to have no other node, once `faults` has ended."""
        brokers = self.image.tables.get("brokers", {}) if self.image else {}
        is_voter = self._metadata.path is not None and self._metadata.is_alone(self._node_id)
        return is_voter and bool(brokers) and {*brokers} == {self._node_id}

    def faults(self) -> Iterator[Fault]:
        """All that goes wrong, in the order of a broker's checks."""
        yield from map(self.settled, self._faults())

    def settled(self, fault: Fault) -> Fault:
        """A fault with what comes of it: a broker ends if it has no log directory left.

        It also ends without the directory that has the metadata of the cluster.
        """
        directory = next((each for each in self.directories if is_within(fault.path, each)), None)
        if fault.action is not StartAction.OFFLINE or directory is None:
            return fault
        self._offline.add(directory)
        if len(self.directories) == 1:
            return fault
        if directory == self.metadata_directory:
            why = "the directory also has the metadata of the cluster"
        elif self._offline == {*self.directories}:
            why = "no other log directory is left"
        else:
            return fault
        return fault._replace(action=StartAction.REFUSE, evidence=f"{fault.evidence}; {why}")

    def _faults(self) -> Iterator[Fault]:
        metadata = [
            FaultKind.METADATA_TWICE.of(
                os.path.join(each, f"{METADATA_TOPIC}-0"),
                f"the metadata of the cluster is expected in {self.metadata_directory} alone",
                "move the older copy out of the log directories",
            )
            for each in self._holders
            if each != self.metadata_directory
        ]
        if self._metadata.directory:  # it has the ids that a lost file has had
            metadata += self._metadata.faults(
                is_given=self._is_metadata_given, is_sole_controller=self._is_sole_controller
            )
        yield from self._meta_properties()
        yield from metadata
        for directory in filter(is_directory, self.directories):
            if is_of_a_broker(directory):
                yield from _space(directory)
                yield from _owners(directory)
            is_only = len(self.directories) == 1
            for each in checkpoint_faults(directory, is_only=is_only):
                if each.action is not None:
                    yield each
            if is_of_a_broker(directory):
                yield from self._names(directory)
        yield from self._partitions()

    def _meta_properties(self) -> Iterator[Fault]:
        """Step 1: ids of the cluster, of the node and of the directories."""
        every = dict.fromkeys((*self.directories, *filter(None, [self.metadata_directory])))
        ids = Identities(
            filter(self._is_expected, every),
            self._node_id,
            lambda: self._rows,
            metadata_directory=self.metadata_directory,
            is_kraft=self._is_kraft,
        )
        yield from ids.faults()
        self._node_id = ids.node_id
        is_old = bool(ids.known) and all(each.version == 0 for each in ids.known)
        self._is_old = is_old and not self._is_kraft
        # The logs of a directory that only has the metadata are not looked at.
        self._places = {
            each.directory_id: each.directory
            for each in ids.known
            if each.directory in self.directories
        }

        yield from self._sole_voter(ids.known)

    def _sole_voter(self, known: Iterable[Identity]) -> Iterator[Fault]:
        """The only voter of a dynamic quorum votes with the directory id that it began with."""
        voters = self.image.tables.get("voters", {}).values() if self.image else ()
        own = next((each for each in known if each.directory == self.metadata_directory), None)
        if own is None or len(voters) != 1:
            return
        (voter,) = voters
        if voter["directory_id"] is None or voter["voter_id"] != own.node_id:
            return
        expected = uuid_text(voter["directory_id"])
        if own.directory_id != expected:
            yield FaultKind.IDS.of(
                own.path,
                f"directory.id is {own.directory_id}, but the only voter of the cluster's "
                f"metadata is node {own.node_id} with the directory id {expected}: no leader is "
                "elected, and the broker is not registered",
                f"write the line directory.id={expected} into the file",
            )

    def _is_expected(self, directory: str) -> bool:
        """Whether a broker looks for its ids in a directory; writers of logs need none."""
        if is_of_a_broker(directory) or not self._is_all:
            return is_of_a_broker(directory)
        is_empty = not is_directory(directory) or not list_partitions(directory)
        return is_empty or any(map(is_of_a_broker, self.directories))

    def _names(self, directory: str) -> Iterator[Fault]:
        """Step 5: a broker takes each directory for that of a partition."""
        for name, kind in sorted(list_entries(directory)):
            path = os.path.join(directory, name)
            if kind is FileType.FILE or name == _INDEX_CACHE or name.startswith("segmentlog."):
                continue
            if name == CLEAN_SHUTDOWN_FILE:  # it is deleted, which fails only with entries in it
                if list_names(path):
                    yield FaultKind.MARK.of(
                        path,
                        "is a directory with entries, which a broker cannot delete",
                        "remove the directory",
                    )
            elif parse_partition_directory(name) is None and is_directory(path):
                yield FaultKind.FOREIGN_DIRECTORY.of(
                    path,
                    "is a directory whose name is not that of a partition",
                    "move it out of the log directory, or give the broker a directory below this "
                    "one in log.dirs",
                )

    def _partitions(self) -> Iterator[Fault]:
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
                faults = [*self._partition(each, topic_id)]
                yield from faults
                if not any(fault.action == StartAction.STRAY for fault in faults):
                    found = topic_id if isinstance(topic_id, str) else None
                    kept[each.topic_partition, each.state] = each.path, found
                if faults or each.state in (DirectoryState.DELETE, DirectoryState.STRAY):
                    continue
                before = served.setdefault((each.topic_partition, each.state), each.path)
                if before != each.path:
                    yield FaultKind.TWICE.at(
                        each.topic_partition,
                        each.path,
                        f"{before} is the same partition",
                        remedy="segmentlog compare tells which of the two has more records; move "
                        "the other one out of the log directories",
                    )

        for (where, state), (path, topic_id) in kept.items():
            if state == DirectoryState.FUTURE and not self._is_old:
                yield from self._future(
                    where, path, topic_id, *kept.get((where, DirectoryState.CURRENT), (None, None))
                )
        yield from self._missing(there, deleted)
        yield from self._moved_starts()
        # Without the metadata, the id of most partitions of a topic is right: a topic has one.
        for by_id in ids.values() if self.image is None else ():
            right, *others = sorted(by_id, key=lambda each: -len(by_id[each]))
            for other in others:
                if len(by_id[other]) == len(by_id[right]):
                    continue  # one of them is wrong, but not known to be
                for each in by_id[other]:
                    yield _stray(
                        FaultKind.TOPIC_ID,
                        each,
                        os.path.join(each.path, PARTITION_METADATA_FILE),
                        f"the topic id is {other}, but {len(by_id[right])} other partitions of "
                        f"the topic have {right}",
                        f"write the two lines 'version: 0' and 'topic_id: {right}' into the file",
                    )

    def _future(
        self,
        where: TopicPartition,
        path: str,
        topic_id: str | None,
        current: str | None,
        current_id: str | None,
    ) -> Iterator[Fault]:
        """The fate of a copy that was on its way to its log directory when the broker stopped.

        If the metadata assigns the partition to this directory already, the broker gives the copy
        the name of the partition, and then deletes the other log
        (``LogManager.recoverAbandonedFutureLogs``).  `current`: the directory of that log.
        """
        row = self._rows.get((str(topic_id), where.partition))
        directory_id = directory_id_of(row, self._node_id) if row else None
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
            yield FaultKind.FUTURE.at(
                where,
                path,
                f"a broker gives this copy the name {name}, because the cluster assigns the "
                f"partition to {own}"
                + ("" if self.image else " (if its metadata, which is not here, says so)")
                + f", but {current} is there; {offsets}",
                remedy="move the copy out of the log directories; if the copy has more records, "
                f"move the log out instead, and rename the copy to {name}",
            )
        elif assigned == own and current and current_id == topic_id:
            is_whole = 0 <= end <= copy_end
            yield FaultKind.FUTURE.at(
                where,
                current,
                f"the cluster assigns the log to {own}: a starting broker serves the copy {path}, "
                f"and deletes this log after file.delete.delay.ms; {offsets}",
                "" if is_whole else "the records that the copy does not have",
                "" if is_whole else "move the copy out of the log directories",
                action=StartAction.DELETE if is_whole else StartAction.EMPTY,
                offset=begin,
                end_offset=end,
                n_bytes=n_bytes,
            )
        elif assigned and assigned != own and not current:
            yield FaultKind.FUTURE.at(
                where,
                path,
                f"the cluster assigns the log to {assigned}, where it is not: a starting broker "
                "begins an empty log there, and cuts this copy off to it",
                f"offsets [{begin}, {end}), {n_bytes} bytes",
                f"move the directory to {os.path.join(assigned, name)} before the start",
                action=StartAction.EMPTY,
                offset=begin,
                end_offset=end,
                n_bytes=n_bytes,
            )

    def _moved_starts(self) -> Iterator[Fault]:
        """Log starts in the checkpoint of another directory, where no broker looks for them."""
        there = list(filter(is_directory, self.directories))
        starts = {each: self.loading(each).starts for each in there}
        logs = {
            each.topic_partition: (directory, each.path)
            for directory in there
            for each in list_partitions(directory)
            if each.is_current
        }
        for other in there if len(there) > 1 else ():
            for where, found in starts[other].items():
                own, path = logs.get(where, (other, ""))
                if own == other:
                    continue
                first = max(starts[own].get(where, 0), _first_offset(path))
                if found <= first:
                    continue
                right = os.path.join(own, LOG_START_CHECKPOINT)
                yield FaultKind.MOVED_START.at(
                    where,
                    os.path.join(other, LOG_START_CHECKPOINT),
                    f"the log start {found} of {where} is in this file, but the log is in {own}, "
                    "where the broker does not have it: it serves the records from offset "
                    f"{first} on again",
                    f"the deletion of the records [{first}, {found})",
                    f"write the line '{where.topic} {where.partition} {found}' into {right} (and "
                    "raise the count in its second line)",
                    offset=first,
                    end_offset=found,
                )

    def _missing(
        self, there: Collection[TopicPartition], deleted: Mapping[TopicPartition, str]
    ) -> Iterator[Fault]:
        """Logs that the cluster assigns to these directories, and that are not in them."""
        for where, topic_id in self._ids.items():
            row = self._rows[topic_id, where.partition]
            if where in there or self._node_id not in row["replicas"]:
                continue
            path = deleted.get(where)
            assigned = directory_id_of(row, self._node_id)
            place = self._places.get(assigned) if assigned else None
            if path is None and place is None:
                # Without all directories, it may be in another one.
                if self._is_all and assigned is not None:
                    yield _lost(where, row, assigned, self.directories)
                continue
            is_sole = len(row["replicas"]) == 1
            new = "a starting broker begins an empty log" + (
                "" if is_sole else ", and fetches the records from another replica if it has them"
            )
            name = f"{where.topic}-{where.partition}"
            if path is None:
                yield FaultKind.LOG_GONE.at(
                    where,
                    os.path.join(place or "", name),
                    f"the cluster assigns the log to this broker, but it is not there: {new}",
                    "all records that it had" if is_sole else "",
                    "put the directory back from a backup or another replica before the start, "
                    "unless its records are not needed",
                )
            elif topic_id_of(os.path.join(path, PARTITION_METADATA_FILE)) == topic_id:
                n_bytes = sum(list_segments(path).sizes)
                yield FaultKind.RENAMED.at(
                    where,
                    path,
                    f"the directory is renamed for deletion, but the cluster still has the topic: "
                    f"{new}",
                    f"{n_bytes} bytes of log",
                    f"rename the directory to {name} before the start, "
                    "unless its records are not needed",
                    n_bytes=n_bytes,
                )

    def _partition(
        self, each: NamedPartition, found: str | tuple[StartAction, str] | None
    ) -> Iterator[Fault]:
        """The fate of one partition; `found`: its topic id, as `topic_id_of` returns it."""
        where = each.topic_partition
        path = os.path.join(each.path, PARTITION_METADATA_FILE)
        right = self._ids.get(where)
        remedy = "restore the file from another replica of the partition"
        if right:
            remedy = (
                "if these records are yours, write the two lines 'version: 0' and "
                f"'topic_id: {right}' into the file"
            )
            if found is None or isinstance(found, tuple):
                remedy += ", as segmentlog recover does"
        if not isinstance(found, str):
            if found is not None:
                yield FaultKind.TOPIC_ID.at(where, path, found[1], remedy=remedy, action=found[0])
            elif not self._is_old and each.state in _SERVED:
                yield _stray(FaultKind.TOPIC_ID, each, path, "the file is missing", remedy)
            return
        if self.image is None or each.state not in _SERVED:
            return
        row = self._rows.get((found, where.partition))
        if row is None:
            is_there = any(topic_id == found for topic_id, _ in self._rows)
            other = (
                f"topic {where.topic} has the topic id {right}"
                if right
                else (
                    "the cluster has no topic with this id"
                    if not is_there
                    else f"the topic has no partition {where.partition}"
                )
            )
            if self._metadata.is_doubtful:
                other += " in the part of the metadata that can be read"
            deleted = (
                "put the metadata back before the start"
                if self._metadata.is_doubtful
                else "if the topic was not deleted, put the metadata back from a backup; "
                "otherwise the directory may be removed"
            )
            reason = f"the topic id is {found}, but {other}"
            stray = _stray(FaultKind.TOPIC_ID, each, path, reason, remedy if right else deleted)
            if self._metadata.is_doubtful and not self._metadata.is_alone(self._node_id):
                # The broker fetches the metadata before it decides about strays.
                stray = stray._replace(
                    action=StartAction.UNKNOWN,
                    loss="",
                    n_bytes=-1,
                    remedy="the other controllers have the rest of the metadata",
                )
            yield stray
        elif row["topic"] != where.topic:
            yield FaultKind.TOPIC_ID.at(
                where,
                path,
                f"a broker does not serve the partition: the topic id {found} is that of topic "
                f"{row['topic']}",
                "partitions that the broker learns of together with it are not served either",
                f"{remedy}, or rename the directory to {row['topic']}-{where.partition}",
                action=StartAction.UNSERVED,
            )
        elif self._node_id is not None and self._node_id not in row["replicas"]:
            yield _stray(
                FaultKind.REPLICA,
                each,
                each.path,
                f"the replicas of the partition are on nodes {row['replicas']}, and not on "
                f"{self._node_id}",
                "the replica was moved away while the broker was down; another node has it",
            )

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


def _stray(kind: FaultKind, each: NamedPartition, path: str, reason: str, remedy: str) -> Fault:
    n_bytes = sum(list_segments(each.path).sizes)
    return kind.at(
        each.topic_partition,
        path,
        reason,
        f"{n_bytes} bytes of log stay in the -stray directory, and are gone from the topic "
        "unless another replica has them",
        remedy,
        action=StartAction.STRAY,
        n_bytes=n_bytes,
    )


def _lost(where: TopicPartition, row: Row, assigned: str, directories: Sequence[str]) -> Fault:
    """A log whose directory is none of the broker's: its disk was replaced, and formatted."""
    is_sole = len(row["replicas"]) == 1
    new = "" if is_sole else ", and fetches the records from another replica if it has them"
    return FaultKind.DISK_GONE.at(
        where,
        partition_path(directories[0], where),
        f"the cluster assigns the log to the log directory with the id {assigned}, which is none "
        f"of these: up to Kafka 4.3, a broker begins an empty log in its place{new}; since 4.4, "
        "the log is not served",
        "all records that it had" if is_sole else "",
        "name all log directories of the broker; if the disk was replaced, put its directory "
        f"back from a backup, with directory.id={assigned} in meta.properties, before the start, "
        "unless its records are not needed",
    )


def _span(path: str) -> tuple[int, int]:
    """The base offset of a log's first segment, and its end; -1 if the end is not known."""
    segments = list_segments(path)
    if not segments:
        return 0, 0
    end = -1
    with contextlib.suppress(SegmentLogError, OSError):  # which is reported with its log
        end = find_log_end(Segment(segments[-1], is_sealed=False), warns=False).offset
    return segments[0].base_offset, end


def _first_offset(path: str) -> int:
    with contextlib.suppress(SegmentLogError, OSError):  # which is reported with its log
        if segments := list_segments(path):
            return segments[0].base_offset
    return 0


def _space(directory: str) -> Iterator[Fault]:
    """A full disk: a broker writes checkpoints again while it starts."""
    found = os.statvfs(directory)
    if found.f_bavail or found.f_flag & os.ST_RDONLY or not found.f_blocks:
        return
    yield FaultKind.SPACE.of(
        directory,
        "no space is left on its file system",
        "segmentlog usage names what takes the space; segmentlog retain and "
        "delete-records free it",
    )


def _owners(directory: str) -> Iterator[Fault]:
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
        yield FaultKind.OWNERS.of(
            path,
            why + more,
            f"chown -R {owner.st_uid}:{owner.st_gid} {place} && chmod -R u+rwX {place}",
        )
