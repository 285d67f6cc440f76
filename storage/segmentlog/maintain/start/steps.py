"""The steps of a starting broker, and the first of them: what it knows of its cluster.

Before a broker loads a log, it reads ``bootstrap.checkpoint``, and then the metadata of the
cluster: the last election, the newest snapshot, and the log up to its first bad batch
(`MetadataStart`, steps 2 and 3).

Rules: ``BootstrapDirectory``, ``KafkaMetadataLog``.
"""

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from segmentlog.cluster import directory_settings
from segmentlog.errors import (
    CorruptCheckpointError,
    CorruptLogError,
    LogDirectoryError,
    SegmentLogError,
    TruncatedBatchError,
    UnsupportedFormatError,
)
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA_FILE
from segmentlog.log.checkpoint import read_leader_epochs
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.log.listing import list_segments
from segmentlog.model import METADATA_TOPIC
from segmentlog.reads.cluster_image import RECORDS, Image
from segmentlog.reads.metadata_log import (
    Snapshot,
    is_whole,
    list_metadata_snapshots,
    metadata_path,
    read_metadata,
    read_snapshot,
)
from segmentlog.store.readable import exists, is_file, list_names, open_file, read_whole, status_of
from segmentlog.store.system_errors import in_words

BOOTSTRAP_FILE = "bootstrap.checkpoint"


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

_DOES: Mapping[StartAction, str] = {
    StartAction.REFUSE: "a starting broker ends here",
    StartAction.OFFLINE: "a starting broker takes the log directory offline, and ends if it has "
    "no other",
    StartAction.STRAY: "a starting broker renames the directory to -stray and does not serve it",
    StartAction.EMPTY: "a starting broker deletes all segments of this log",
}


def is_of_a_broker(directory: str) -> bool:
    """Whether a broker has used this log directory, or was told to use it."""
    is_told = exists(os.path.join(directory, BOOTSTRAP_FILE))
    return is_told or directory_settings.is_of_a_broker(directory)


def refused(path: str, reason: str, remedy: str) -> StartStep:
    """A step that concerns a directory, and ends the start."""
    return StartStep(StartAction.REFUSE, "", -1, path, reason, remedy=remedy)


def legible(text: str) -> str:
    """A reason without the line it quotes, if that is no text."""
    head, _, quoted = text.partition(", found ")
    n_nul = quoted.count("\\x00")
    if n_nul > 3:
        return f"{head}, found bytes that are zero"
    return text if len(quoted) < 60 else f"{head}, found {quoted[:50]}…"


def whole_file(path: str) -> bytes:
    """The bytes of a small file."""
    return read_whole(path, lambda reason: CorruptCheckpointError(path, 1, reason, ""))


def has_words(path: str, line: int, n_parts: int) -> bool:
    """Whether a line has the right number of parts, and words in place of numbers."""
    try:
        lines = whole_file(path).split(b"\n")
    except CorruptCheckpointError:  # it is a directory, or too large
        return False
    return 2 < line <= len(lines) and len(lines[line - 1].split()) == n_parts


def epochs_step(topic: str, partition: int, partition_path: str) -> Iterator[StartStep]:
    """The step for a partition's ``leader-epoch-checkpoint`` that is not as a broker writes it."""
    path = os.path.join(partition_path, LEADER_EPOCH_CHECKPOINT)
    action = StartAction.REFUSE if topic == METADATA_TOPIC else StartAction.OFFLINE
    remedy = "segmentlog recover builds the file again from the log"
    try:
        entries = read_leader_epochs(path)
    except CorruptCheckpointError as error:
        reason = f"line {error.line}: {legible(error.reason)}"
        action = StartAction.REFUSE if has_words(path, error.line, 2) else action
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        fault = EpochStarts(partition_path, warns=False).error
        if fault is None:
            return
        action, reason = StartAction.REFUSE, fault.reason
        if all(min(each) >= 0 for each in entries):
            yield StartStep(
                StartAction.DROP, topic, partition, path,
                f"{reason}: a starting broker drops the epochs that a later line contradicts",
                "the offsets at which followers have to cut their copies off", remedy,
            )  # fmt: skip
            return
    yield StartStep(action, topic, partition, path, reason, remedy=remedy)


def uuid_fault(text: str) -> str | None:
    """Why Kafka does not take a text for an id (``Uuid.fromString``); None if it does."""
    if len(text) > 24:
        return "is longer than 24 characters"
    if not re.fullmatch(r"[A-Za-z0-9_-]*={0,2}", text):
        return "is not base64"
    n_bytes = len(text.rstrip("=")) * 6 // 8
    return None if n_bytes == 16 else f"has {n_bytes} bytes instead of 16"


def topic_id_of(path: str) -> "str | tuple[StartAction, str] | None":
    """The topic id of a ``partition.metadata``; what a broker does with the file, and why; None.

    None stands for a missing file.
    """
    try:
        data = whole_file(path)
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
        return StartAction.OFFLINE, legible(f"{expected}, found {lines[0][:80]!r}")
    if int(parts[0][1]) < 0:
        return StartAction.OFFLINE, f"version {parts[0][1]} is below 0"
    if len(parts) < 2:
        return StartAction.REFUSE, f"{expected}, but the second line is missing"
    if len(parts[1]) != 2:
        return StartAction.OFFLINE, legible(f"{expected}, found {lines[1][:80]!r}")
    text = parts[1][1]
    if fault := uuid_fault(text):
        return StartAction.REFUSE, f"topic_id {text!r} {fault}"
    text = text.rstrip("=")
    if not base64.urlsafe_b64decode(text + "==").strip(b"\0"):
        return StartAction.OFFLINE, "topic_id is zero"
    return text


METADATA_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"  #: the same in all clusters
_QUORUM_STATE = "quorum-state"
_SNAPSHOT = re.compile(r"[0-9]{20}-[0-9]{10}\.checkpoint")
_SNAPSHOT_LIKE = re.compile(r"\.checkpoint(\.part|\.deleted)?$")
_BACKUP = "put the directory back from another controller or a backup"


class MetadataStart:
    """The metadata that a starting broker reads.

    `directory`: the log directory that holds it, or should hold it.  `image`: the state that the
    broker reads, once `steps` has ended; None if the metadata is not here, or cannot be read.
    `is_doubtful`: whether the log is damaged, so that the image may be old.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.path = metadata_path(directory) if directory else None
        self.image: Image | None = None
        self.is_doubtful = False

    def steps(self, *, is_given: bool, is_sole_controller: bool) -> Iterator[StartStep]:
        """All that goes wrong.

        `is_given`: whether the directory was named as that of the metadata.
        `is_sole_controller`: whether the broker is configured as the only controller.
        """
        yield from _bootstrap(self.directory)
        if self.path is not None:
            is_readable = True
            try:
                for step in (*self._small_files(self.path), *self._snapshots(self.path)):
                    is_readable &= not step.has_harm
                    yield step
                yield from self._log(self.path, is_readable=is_readable)
            except (LogDirectoryError, OSError) as error:
                yield _step(
                    StartAction.UNKNOWN, self.path,
                    f"the metadata of the cluster cannot be read: {in_words(error)}",
                )  # fmt: skip
        elif is_sole_controller:
            self.image = Image()
            yield _step(
                StartAction.MISSING, self.directory,
                "there is no __cluster_metadata-0, and the broker is the only controller: it "
                "begins a new cluster, without any topic",
                "all topics and settings", "put the directory back from a backup before the start",
            )  # fmt: skip
        elif is_given:
            yield _step(
                StartAction.UNKNOWN, self.directory,
                "there is no __cluster_metadata-0: a broker that is also the only controller "
                "begins a new cluster, and renames all partitions to -stray; another broker "
                "fetches the metadata from the controllers",
                remedy="put the directory back from a backup before the start",
            )  # fmt: skip

    def _small_files(self, path: str) -> Iterator[StartStep]:
        """The last election, the leader epochs, the topic id, and names that are none."""
        file = os.path.join(path, _QUORUM_STATE)
        try:
            found = json.loads(whole_file(file))
            if not isinstance(found, dict) or "data_version" not in found:
                raise ValueError("it has no data_version")
        except FileNotFoundError:
            pass
        except (CorruptCheckpointError, ValueError, OSError) as error:
            yield _step(
                StartAction.REFUSE, file,
                f"the file is not what a node writes: {legible(str(error))}",
                remedy="remove the file: the node then takes part in a new election",
            )  # fmt: skip
        yield from epochs_step(METADATA_TOPIC, 0, path)
        file = os.path.join(path, PARTITION_METADATA_FILE)
        topic_id = topic_id_of(file)
        fault = topic_id[1] if isinstance(topic_id, tuple) else None
        if isinstance(topic_id, str) and topic_id != METADATA_TOPIC_ID:
            fault = f"topic_id is {topic_id}, but the metadata of every cluster has "
            fault += METADATA_TOPIC_ID
        if fault is not None:
            yield _step(StartAction.REFUSE, file, fault, remedy="remove the file")
        for name in sorted(list_names(path)):
            if _SNAPSHOT_LIKE.search(name) and not _SNAPSHOT.match(name):
                yield _step(
                    StartAction.REFUSE, os.path.join(path, name),
                    "the name is not that of a snapshot",
                    remedy="move the file out of the directory",
                )  # fmt: skip

    def _snapshots(self, path: str) -> Iterator[StartStep]:
        """Damaged snapshots: the newest one ends the start."""
        snapshots = list_metadata_snapshots(path)[::-1]
        faults = [batches_fault(each) for _, each, _ in snapshots]
        files = list_segments(path)
        first = files[0].base_offset if files else None
        for i, ((end_offset, each, _), fault) in enumerate(zip(snapshots, faults, strict=True)):
            if fault is None:
                continue
            # The snapshot that formats a directory (Kafka 4.4) may end early: the log goes on.
            is_newest = not i and not (first == 0 and not end_offset and _ends_early(each))
            action = StartAction.REFUSE if is_newest else StartAction.KEEP
            older = "an older snapshot is not read instead" if is_newest else "it is not read"
            # The log may still reach back to an older snapshot.
            sound = [end for (end, *_), other in zip(snapshots, faults, strict=True) if not other]
            remedy = "put the file back from another controller or a backup"
            if first is not None and (not first or any(end >= first for end in sound)):
                remedy = "move the file away: an older snapshot and the log have all that it has"
            yield _step(
                action, each, f"the snapshot is damaged: {fault}; {older}", remedy=remedy,
                offset=end_offset,
            )  # fmt: skip

    def _log(self, path: str, *, is_readable: bool) -> Iterator[StartStep]:
        """The end of the log, which a start reads to its first bad batch; and the image."""
        end, epoch, error = 0, -1, None
        for segment in list_segments(path):
            end, last, error = _end_of(segment.path, segment.base_offset)
            epoch = max(epoch, last)
            if error is not None:
                break
        newest, _, newest_epoch = next(reversed(list_metadata_snapshots(path)), Snapshot(0, ""))
        if error is not None:
            self.is_doubtful = True
            yield _step(
                StartAction.TRUNCATE, error.path,
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
            yield _step(
                StartAction.EMPTY, path,
                f"the log of the cluster's metadata ends at offset {end}, before its newest "
                f"snapshot at offset {newest}",
                "the changes of the cluster after this snapshot, unless other controllers have "
                "them",
                _BACKUP, offset=newest,
            )  # fmt: skip
            end = min(end, newest)
        if not is_readable:
            return
        image = Image()
        try:
            names = {*RECORDS["partitions"], *RECORDS["features"]}
            for record in read_metadata(path, names, end_offset=end):
                image.apply(record)
            self.image = image
        except (SegmentLogError, ValueError) as fault:
            yield _step(
                StartAction.REFUSE, getattr(fault, "path", path),
                f"the metadata of the cluster cannot be read: {fault}", remedy=_BACKUP,
            )  # fmt: skip

    def is_alone(self, node_id: int | None) -> bool:
        """Whether a node is the only voter, by its last election; also if that is not known."""
        if self.path is None:
            return True
        try:
            found = json.loads(whole_file(os.path.join(self.path, _QUORUM_STATE)))
            voters = {each["voterId"] for each in found["currentVoters"]}
        except (CorruptCheckpointError, ValueError, LookupError, TypeError, OSError):
            return True
        return voters == {node_id}


def _step(
    action: StartAction, path: str, reason: str, loss: str = "", remedy: str = "", **numbers: int
) -> StartStep:
    return StartStep(action, METADATA_TOPIC, 0, path, reason, loss, remedy, **numbers)


def _bootstrap(directory: str) -> Iterator[StartStep]:
    """Step 2: the metadata that a new cluster begins with; read at each start, if it is there."""
    path = os.path.join(directory, BOOTSTRAP_FILE)
    if not is_file(path):
        return
    fault = batches_fault(path)
    if fault is None:
        try:
            records = read_snapshot(path, ["FeatureLevelRecord"])
            if any(each.fields["name"] == "metadata.version" for each in records):
                return
            fault = "it has no metadata.version"
        except (SegmentLogError, ValueError) as error:
            fault = str(error)
    yield refused(
        path, fault,
        "remove the file if __cluster_metadata-0 is sound: a start reads it, but needs it only "
        "for a new cluster",
    )  # fmt: skip


def batches_fault(path: str) -> str | None:
    """The first fault of a snapshot's batches; None if they are sound, and the last is the footer.

    A file that has no footer was not written to its end.
    """
    try:
        error = _end_of(path, 0).error
        if error is not None:
            return str(error)
        return None if is_whole(Snapshot(0, path)) else "its last batch, the footer, is missing"
    except OSError as failure:
        return failure.strerror or str(failure)


def _ends_early(path: str) -> bool:
    """Whether a snapshot has whole batches, and perhaps a part of one at its end."""
    error = _end_of(path, 0).error
    if error is None or not error.position:
        return error is None
    return isinstance(error, TruncatedBatchError)


class _End(NamedTuple):
    """Offset and leader epoch after the last good batch of a file, and the damage there."""

    offset: int
    epoch: int
    error: CorruptLogError | UnsupportedFormatError | None


def _end_of(path: str, base_offset: int) -> _End:
    from segmentlog.format.kernels import layout
    from segmentlog.log.walk import walk  # the compiled kernels load here

    end = _End(base_offset, -1, None)
    size = status_of(path, follow=True).size
    with open_file(path) as file:
        for stretch in walk(path, file, 0, size, base_offset, goes_on=False):
            if (batches := stretch.batches) is None:
                return end._replace(error=stretch.error)
            at = int(batches.headers[-1, layout.POSITION]) + layout.LEADER_EPOCH_AT
            epoch = int.from_bytes(bytes(batches.buf[at : at + 4]), "big", signed=True)
            end = _End(stretch.next_offset, epoch, None)
    return end


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
