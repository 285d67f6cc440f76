"""What a starting broker knows of its cluster: the first steps of a start.

Before a broker loads a log, it reads ``bootstrap.checkpoint``, and then the metadata of the
cluster: the last election, the newest snapshot, and the log up to its first bad batch
(`MetadataStart`).

Rules: ``BootstrapDirectory``, ``KafkaMetadataLog``.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from segmentlog.errors import (
    CorruptCheckpointError,
    LogDirectoryError,
    SegmentLogError,
)
from segmentlog.format.names import (
    BOOTSTRAP_FILE,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA_FILE,
)
from segmentlog.log.checkpoint import read_leader_epochs
from segmentlog.log.listing import list_segments
from segmentlog.maintain.health.faults import StartAction, legible, whole_file
from segmentlog.maintain.health.kinds import Fault, FaultKind
from segmentlog.maintain.health.leader_epochs import epochs_fault
from segmentlog.maintain.health.snapshots import (
    end_of,
    fault_in_words,
    snapshot_fault,
    snapshot_faults,
)
from segmentlog.maintain.health.topic_ids import METADATA_TOPIC_ID, topic_id_of
from segmentlog.model import METADATA_TOPIC, TopicPartition
from segmentlog.reads.cluster_image import RECORDS, Image
from segmentlog.reads.metadata_log import (
    MetadataSnapshot,
    list_metadata_snapshots,
    metadata_path,
    read_metadata,
    read_snapshot,
)
from segmentlog.store.readable import is_file, list_names
from segmentlog.store.system_errors import in_words

_QUORUM_STATE = "quorum-state"
_SNAPSHOT = re.compile(r"[0-9]{20}-[0-9]{10}\.checkpoint")
_SNAPSHOT_LIKE = re.compile(r"\.checkpoint(\.part|\.deleted)?$")
_METADATA = TopicPartition(METADATA_TOPIC, 0)
_BACKUP = "put the directory back from another controller or a backup"


class MetadataStart:
    """The metadata that a starting broker reads.

    `directory`: the log directory that holds it, or should hold it.  `image`: the state that the
    broker reads, once `faults` has ended; None if the metadata is not here, or cannot be read.
    `is_doubtful`: whether the log is damaged, so that the image may be old.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.path = metadata_path(directory) if directory else None
        self.image: Image | None = None
        self.is_doubtful = False
        self.formatted: dict[str, int] = {}  #: features of a directory that no node has used

    def faults(self, *, is_given: bool, is_sole_controller: bool) -> Iterator[Fault]:
        """All that goes wrong.

        `is_given`: whether the directory was named as that of the metadata.
        `is_sole_controller`: whether the broker is configured as the only controller.
        """
        yield from self._bootstrap()
        if self.path is not None:
            is_readable = True
            try:
                for fault in (*self._small_files(self.path), *snapshot_faults(self.path)):
                    is_readable &= not fault.has_harm
                    yield fault
                yield from self._log(self.path, is_readable=is_readable)
            except (LogDirectoryError, OSError) as error:
                yield FaultKind.METADATA_UNREAD.at(
                    _METADATA,
                    self.path,
                    f"the metadata of the cluster cannot be read: {in_words(error)}",
                )
        elif is_sole_controller:
            self.image = Image()
            yield FaultKind.METADATA_GONE.at(
                _METADATA,
                self.directory,
                "there is no __cluster_metadata-0, and the broker is the only controller: it "
                "begins a new cluster, without any topic",
                "all topics and settings",
                "put the directory back from a backup before the start",
            )
        elif is_given:
            yield FaultKind.METADATA_GONE.at(
                _METADATA,
                self.directory,
                "there is no __cluster_metadata-0: a broker that is also the only controller "
                "begins a new cluster, and renames all partitions to -stray; another broker "
                "fetches the metadata from the controllers",
                remedy="put the directory back from a backup before the start",
                action=StartAction.UNKNOWN,
            )

    def _bootstrap(self) -> Iterator[Fault]:
        """Step 2: the metadata that a new cluster begins with; read at each start, if there."""
        path = os.path.join(self.directory, BOOTSTRAP_FILE)
        if not is_file(path):
            return
        damage = snapshot_fault(path)
        fault = "" if damage is None else fault_in_words(damage)
        if damage is None:
            try:
                for each in read_snapshot(path, ["FeatureLevelRecord"]):
                    self.formatted[each.fields["name"]] = each.fields["feature_level"]
                if "metadata.version" in self.formatted:
                    return
                fault = "it has no metadata.version"
            except (SegmentLogError, ValueError) as error:
                fault = str(error)
        yield FaultKind.BOOTSTRAP.of(
            path,
            fault,
            "remove the file if __cluster_metadata-0 is sound: a start reads it, but needs it "
            "only for a new cluster",
        )

    def _small_files(self, path: str) -> Iterator[Fault]:
        """The last election, the leader epochs, the topic id, and names that are none."""
        file = os.path.join(path, _QUORUM_STATE)
        try:
            _read_quorum_state(file)
        except FileNotFoundError:
            pass
        except (CorruptCheckpointError, ValueError, OSError) as error:
            yield FaultKind.ELECTION.at(
                _METADATA,
                file,
                f"the file is not what a node writes: {legible(str(error))}",
                remedy="remove the file: the node then takes part in a new election",
            )
        yield from epochs_fault(_METADATA, path)
        file = os.path.join(path, PARTITION_METADATA_FILE)
        topic_id = topic_id_of(file)
        fault = topic_id[1] if isinstance(topic_id, tuple) else None
        if isinstance(topic_id, str) and topic_id != METADATA_TOPIC_ID:
            fault = f"topic_id is {topic_id}, but the metadata of every cluster has "
            fault += METADATA_TOPIC_ID
        if fault is not None:
            yield FaultKind.METADATA_ID.at(_METADATA, file, fault, remedy="remove the file")
        for name in sorted(list_names(path)):
            if _SNAPSHOT_LIKE.search(name) and not _SNAPSHOT.match(name):
                yield FaultKind.SNAPSHOT_NAME.at(
                    _METADATA,
                    os.path.join(path, name),
                    "the name is not that of a snapshot",
                    remedy="move the file out of the directory",
                )

    def _log(self, path: str, *, is_readable: bool) -> Iterator[Fault]:
        """The end of the log, which a start reads to its first bad batch; and the image."""
        end, epoch, error = 0, -1, None
        for segment in list_segments(path):
            end, last, error, _ = end_of(segment.path, segment.base_offset)
            epoch = max(epoch, last)
            if error is not None:
                break
        newest, _, newest_epoch = next(
            reversed(list_metadata_snapshots(path)), MetadataSnapshot(0, "")
        )
        if error is not None:
            self.is_doubtful = True
            yield FaultKind.METADATA_CUT.at(
                _METADATA,
                error.path,
                "a starting broker cuts the metadata of the cluster off at offset "
                f"{max(end, newest)}: {getattr(error, 'finding', error)}",
                "the changes of the cluster after this offset, such as topics and moves: a sole "
                "controller then takes their partitions for strays; one of several controllers "
                "fetches them again",
                "put the file back from another controller or a backup; without one, copy the "
                "logs into another cluster (segmentlog restore)",
                offset=max(end, newest),
            )
        if (newest_epoch, newest) > (_last_epoch(path, end, epoch), end):
            yield FaultKind.METADATA_END.at(
                _METADATA,
                path,
                f"the log of the cluster's metadata ends at offset {end}, before its newest "
                f"snapshot at offset {newest}",
                "the changes of the cluster after this snapshot, unless other controllers have "
                "them",
                _BACKUP,
                offset=newest,
            )
            end = min(end, newest)
        if not is_readable:
            return
        image = Image()
        try:
            tables = ("partitions", "features", "brokers", "voters")
            names = {name for each in tables for name in RECORDS[each]}
            for record in read_metadata(path, names, end_offset=end):
                image.apply(record)
            self.image = image
        except (SegmentLogError, ValueError) as fault:
            yield FaultKind.METADATA_UNREAD.at(
                _METADATA,
                getattr(fault, "path", path),
                f"the metadata of the cluster cannot be read: {fault}",
                remedy=_BACKUP,
                action=StartAction.REFUSE,
            )

    def is_alone(self, node_id: int | None) -> bool:
        """Whether a node is the only voter, by its last election; also if that is not known."""
        if self.path is None:
            return True
        try:
            found = _read_quorum_state(os.path.join(self.path, _QUORUM_STATE))
            voters = {each["voterId"] for each in found["currentVoters"]}
        except (CorruptCheckpointError, ValueError, LookupError, TypeError, OSError):
            return True
        return voters == {node_id}


#: Fields of ``quorum-state`` by version (``QuorumStateData``), and the types of their values.
_OF_QUORUM: tuple[Mapping[str, type], ...] = (
    {
        "clusterId": str,
        "leaderId": int,
        "leaderEpoch": int,
        "votedId": int,
        "appliedOffset": int,
        "currentVoters": list,
    },
    {"leaderId": int, "leaderEpoch": int, "votedId": int, "votedDirectoryId": str},
)


def _read_quorum_state(path: str) -> Mapping[str, Any]:
    """The last election, as a node reads it; raises `ValueError` if it does not."""
    # What follows the object is not read.
    found: Any
    found, _ = json.JSONDecoder().raw_decode(whole_file(path).decode().lstrip(" \t\r\n"))
    if not isinstance(found, dict) or "data_version" not in found:
        raise ValueError("it has no data_version")
    version = found["data_version"]
    version = version if type(version) is int else 0  # as of a word in Java
    if version not in range(len(_OF_QUORUM)):
        raise ValueError(f"its data_version {version} is neither 0 nor 1")
    for name, kind in _OF_QUORUM[version].items():
        if name not in found:
            raise ValueError(f"it has no {name}")
        value: object = found[name]
        least, most = (-(1 << 63), 1 << 63) if name == "appliedOffset" else (-(1 << 31), 1 << 31)
        is_right = type(value) is kind
        if type(value) is int:
            is_right &= least <= value < most
        if not is_right and not (kind is list and value is None):
            raise ValueError(f"its {name} is {str(value)[:40]!r}")
    return found


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
