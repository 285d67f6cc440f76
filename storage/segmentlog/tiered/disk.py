"""A virtual disk: log directories with a tier, or a tier alone, as brokers' log directories.

A partition has the files of the local log.  Before the first local segment, it has the remote
segments of the log (`segmentlog.tiered.plan`) under the names that they had on the broker.  A file
is opened where it is: locally, or in the tier.

With a log directory, the partitions are those of the directory.  A tier alone has all partitions
that it has segments of.

The local log is listed before the tier is.  A broker deletes a local segment only after its copy
is complete, so a segment that goes between the two listings is in the second.  What the disk knows
of the tier is learnt once, by one of several threads, and belongs to one look at the directory: if
a local file has gone since, or offsets are missing, the tier is listed again.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from segmentlog.errors import CorruptCheckpointError, OptionError, RemoteSegmentError
from segmentlog.format.names import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA_FILE,
    FileKind,
    FileState,
    parse_partition_directory,
    parse_segment_file,
)
from segmentlog.log.checkpoint import read_leader_epochs, read_topic_id
from segmentlog.model import LARGEST_LONG, RemoteStorageLayout, TopicPartition
from segmentlog.reads.snapshot import DirectorySnapshot
from segmentlog.store.paths import TieredLocation, parse_tiered
from segmentlog.store.readable import (
    MADE_DIRECTORY,
    Entry,
    FileStatus,
    FileType,
    MadeFile,
    Measured,
    ReadableFile,
    SurveyedDisk,
    gone,
    is_directory,
    list_entries,
    list_names,
    open_file,
    status_of,
)
from segmentlog.tiered.aiven import AivenTier
from segmentlog.tiered.chunked_file import SectionFile
from segmentlog.tiered.layout import Layout, LocalTier, RemoteFileKind, RemoteLog, RemoteSegment
from segmentlog.tiered.metadata import remote_segments
from segmentlog.tiered.plan import PlacedSegment, choose, of_lineage

logger = logging.getLogger(__name__)

_RESTORE_ID = (
    "restore the file with the id of the topic, or read without the tier (failOnDataLoss=false, "
    "in Python fail_on_data_loss=False)"
)

_ATTEMPTS = 3  # a broker rarely moves a segment to the tier more often than this

_T = TypeVar("_T")

#: Parts of a remote segment that are files of a partition named by the base offset.
_BY_BASE = (
    RemoteFileKind.LOG,
    RemoteFileKind.OFFSET_INDEX,
    RemoteFileKind.TIME_INDEX,
    RemoteFileKind.TRANSACTION_INDEX,
)


#: Those of them that a new segment has.
_ROLLED = _BY_BASE[:3]
_LIVE_LOG = FileKind.LOG, FileState.LIVE


class _TieredFile(NamedTuple):
    """A file of a partition that lies in the tier."""

    segment: RemoteSegment
    part: RemoteFileKind
    n_bytes: int = -1


def _inode_of(segment: RemoteSegment) -> int:
    """A number that no other segment has: two of them may have a base offset, and so a name."""
    digest = blake2b(segment.segment_id.encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") or 1


class _LearntFacts:
    """Facts that are learnt at the first question, by one of the threads that ask for them."""

    def __init__(self) -> None:
        # Threads share a disk.  A fact is learned under the lock of its key, and the locks of keys
        # are made under `_lock`, so that two facts are learned side by side, and none twice.
        self._facts: dict[object, Any] = {}
        self._locks: dict[object, threading.Lock] = {}
        self._lock = threading.Lock()

    def once(self, key: object, learn: Callable[[], _T]) -> _T:
        """A fact; the others wait for the thread that learns it."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._facts:
                self._facts[key] = learn()
            found: _T = self._facts[key]
            return found

    def __contains__(self, key: object) -> bool:
        return key in self._facts


class _Assembled(NamedTuple):
    """The files of a partition: names of local ones, and remote ones by name."""

    local: frozenset[str]
    remote: Mapping[str, _TieredFile | bytes]


class TieredDisk(SurveyedDisk):
    """See `SurveyedDisk`.  Paths are those of `segmentlog.store.paths`."""

    def __init__(self, location: TieredLocation) -> None:
        self.location = location
        self._root = location.root
        self._known = _LearntFacts()

    def survey(self, path: str) -> None:
        """Take a new look at the log directory and at the tier, to open them."""
        self._known = _LearntFacts()

    forget = survey

    def _forget(self, known: _LearntFacts) -> None:
        """Forget what turned out to be old, unless another thread has done so."""
        if self._known is known:
            self._known = _LearntFacts()

    @property
    def tier(self) -> Layout:

        def learn() -> Layout:
            location = self.location
            if location.layout is RemoteStorageLayout.AIVEN:
                return AivenTier(location.remote, location.key_file)
            if location.key_file:
                layout = str(location.layout)
                accepted = f"the layout {layout!r} is not encrypted: leave the option out"
                raise OptionError("remote_storage_key_file", location.key_file, accepted)
            return LocalTier(location.remote)

        return self._known.once("tier", learn)

    def _local(self, rest: str) -> str:
        return os.path.join(self.location.local, rest) if rest else self.location.local

    def _rest(self, path: str) -> str:
        return path[len(self._root) :].strip("/")

    # --- partitions

    def _remote_logs(self) -> dict[TopicPartition, RemoteLog]:
        """The logs of a tier alone; of several topics of one name, those of the newest topic."""

        def learn() -> dict[TopicPartition, RemoteLog]:
            topics: dict[str, dict[str, list[RemoteLog]]] = {}
            for log in self.stored_logs():
                topics.setdefault(log.topic, {}).setdefault(log.topic_id, []).append(log)
            found: dict[TopicPartition, RemoteLog] = {}
            for topic, by_id in topics.items():
                newest = next(iter(by_id))
                if len(by_id) > 1:  # partitions of two topics do not mix
                    newest = max(by_id, key=lambda each: max(map(self._written_ns, by_id[each])))
                    logger.warning(
                        "the tier has several topics with the name %s; the one that was written "
                        "last is read, with the topic id %s, and not %s",
                        topic,
                        newest,
                        ", ".join(each for each in by_id if each != newest),
                    )
                found |= {TopicPartition(log.topic, log.partition): log for log in by_id[newest]}
            return found

        return self._known.once("logs", learn)

    def stored_logs(self, topics: Collection[str] = ()) -> list[RemoteLog]:
        """The logs that the tier has, of all topics or of some."""
        try:
            return self.tier.logs(topics)
        except (FileNotFoundError, NotADirectoryError) as error:
            accepted = "there is no such directory: give that of the tier, or its URL"
            raise OptionError("remote_storage", self.location.remote, accepted) from error

    def _written_ns(self, log: RemoteLog) -> int:
        segments = self.tier.segments(log)
        if not segments:
            return -1
        file = self.tier.open(
            max(segments, key=lambda each: each.start_offset), RemoteFileKind.LOG
        )
        if file is None:
            return -1
        with file:
            return file.status().modified_ns

    def remote_log(self, topic_partition: TopicPartition) -> RemoteLog | None:
        """The log in the tier that belongs to a partition; None if the partition has no topic id.

        `topic_partition`: of the log directory, or of a tier alone.
        """
        if not self.location.local:
            return self._remote_logs().get(topic_partition)
        topic_id = read_topic_id(self._local(str(topic_partition)))
        topic, partition = topic_partition
        return RemoteLog(topic, topic_id, partition) if topic_id else None

    def bytes_read(self, topic_partition: TopicPartition) -> dict[str, int]:
        """The bytes of each remote segment that are read as parts of the log, by its id.

        Only a segment that is followed by other segments, or by the local log, before its end is
        not read to its end.
        """
        found = self._assembly(str(topic_partition))
        return {
            each.segment.segment_id: each.n_bytes
            for each in (found.remote.values() if found else ())
            if isinstance(each, _TieredFile) and each.part is RemoteFileKind.LOG
        }

    def _assembly(self, directory: str) -> _Assembled | None:
        """The files of a partition directory; None if `directory` is not one that has a tier."""
        parsed = parse_partition_directory(directory)
        if parsed is None or directory != str(parsed[0]):
            return None
        known = self._known
        if directory not in known:
            if self.location.local:
                if not is_directory(self._local(directory)):
                    return None
            elif parsed[0] not in self._remote_logs():
                return None

        def learn() -> _Assembled:
            for _ in range(_ATTEMPTS - 1):
                known = self._known
                try:
                    return self._assemble(parsed[0], directory, is_last=False)
                except _OldTierError:
                    self._forget(known)
            return self._assemble(parsed[0], directory, is_last=True)

        return known.once(directory, learn)

    def _assemble(
        self, topic_partition: TopicPartition, directory: str, *, is_last: bool
    ) -> _Assembled:
        """The files of a partition; an error if the tier was listed before the local log."""
        names: frozenset[str] = frozenset()
        epochs: tuple[tuple[int, int], ...] = ()
        if self.location.local:
            path = self._local(directory)
            names = frozenset(list_names(path))  # before the tier: see the module
            path = os.path.join(path, LEADER_EPOCH_CHECKPOINT)
            epochs = read_leader_epochs(path, takes_newer=True)
        is_old = bool(self.location.local) and not is_last and "announced" in self._known
        log = self.remote_log(topic_partition)
        start = _first_segment(names)
        if log is None:
            if start != 0:
                self._refuse_without_id(topic_partition)
            return _Assembled(names, {})
        try:
            placed = choose(
                self.tier,
                log,
                self._segments(log),
                epochs,
                start,
                log_start=self.log_start(topic_partition),
                skips_gaps=self.location.skips_gaps and not is_old,
            )
        except RemoteSegmentError as error:
            if is_old:  # the segments may have come to the tier since it was listed
                raise _OldTierError from error
            raise
        remote: dict[str, _TieredFile | bytes] = {}
        for each in placed:
            remote.update(_files_of(each))
        if placed and start is None:
            # As after a roll on a broker: nobody appends to a segment of the tier, and no torn
            # tail is at its end.
            end = placed[-1].segment.end_offset + 1
            remote.update({f"{end:020d}.{part}": b"" for part in _ROLLED})
        if placed and not self.location.local:
            remote[PARTITION_METADATA_FILE] = f"version: 0\ntopic_id: {log.topic_id}".encode()
            remote[LEADER_EPOCH_CHECKPOINT] = _TieredFile(
                placed[-1].segment, RemoteFileKind.LEADER_EPOCHS
            )
        for name in names & remote.keys():
            del remote[name]
        return _Assembled(names, remote)

    def _refuse_without_id(self, topic_partition: TopicPartition) -> None:
        """Refuse a partition of which the tier may have the first offsets, under an unknown id."""
        held = self._held_logs()
        ids = sorted(each.topic_id for each in held if (each[0], each[2]) == topic_partition)
        if not ids:
            return
        path = os.path.join(self._local(str(topic_partition)), PARTITION_METADATA_FILE)
        reason = f"has no topic id, and the tier has segments of this partition: {', '.join(ids)}"
        if not self.location.skips_gaps:
            raise RemoteSegmentError(path, reason, _RESTORE_ID)
        logger.warning("%s %s; the log is read without the tier", path, reason)

    def log_start(self, topic_partition: TopicPartition) -> int:
        """First offset of a log by its entry; without one, any offset may be the first.

        While a deletion is decided and unfinished, its commit has the entry.
        """
        if not self.location.local:
            return LARGEST_LONG

        def learn() -> Mapping[TopicPartition, int]:
            with contextlib.suppress(CorruptCheckpointError):  # the directory reports the error
                local = DirectorySnapshot(self.location.local, lists_unbounded=False)
                starts = local.log_starts
                if not isinstance(starts, CorruptCheckpointError):
                    return starts
            return {}

        return self._known.once("log starts", learn).get(topic_partition, LARGEST_LONG)

    def ends(self, topic_partition: TopicPartition) -> tuple[int | None, int]:
        """Offset of the first local segment, None for none; last offset in the tier, or -1."""
        local: int | None = None
        epochs: tuple[tuple[int, int], ...] = ()
        if self.location.local:
            path = self._local(str(topic_partition))
            local = _first_segment(list_names(path))
            epochs = read_leader_epochs(f"{path}/{LEADER_EPOCH_CHECKPOINT}", takes_newer=True)
        log = self.remote_log(topic_partition)
        segments = [] if log is None else self._segments(log)
        if log is None or not segments:
            return local, -1
        found = of_lineage(self.tier, log, segments, epochs).segments
        return local, found[-1].end_offset if found else -1

    def _segments(self, log: RemoteLog) -> list[RemoteSegment]:
        """The segments of a log, by the broker's list if it is in the log directory.

        A broker has some partitions of that topic, so a log without an entry may have segments.
        """
        local = self.location.local
        announced = self._known.once("announced", lambda: remote_segments(local) if local else {})
        if log in announced:
            return announced[log]
        return self.tier.segments(log) if log in self._held_logs() else []

    def _held_logs(self) -> frozenset[RemoteLog]:
        """All logs of the tier, which is listed once."""
        return self._known.once("held", lambda: frozenset(self.stored_logs()))

    def _in_tier(self, path: str) -> ReadableFile:
        """A file that is not in the log directory, opened in the tier.

        Raises `FileNotFoundError` if the tier does not have it, either.
        """
        directory, _, name = self._rest(path).rpartition("/")
        known = self._known
        found = self._assembly(directory) if directory else None
        if found is not None and name in found.local:
            # Retention has removed a local segment, which the tier has had for longer.
            self._forget(known)
            found = self._assembly(directory)
        remote = found.remote.get(name) if found is not None else None
        if isinstance(remote, bytes):
            return MadeFile(path, remote)
        file = self.tier.open(remote.segment, remote.part) if remote is not None else None
        if file is None or remote is None:
            raise gone(path)
        return SectionFile(file, 0, remote.n_bytes, _inode_of(remote.segment))

    # --- the contract

    def open(self, path: str, *, follow: bool = True) -> ReadableFile:
        if self.location.local:
            with contextlib.suppress(FileNotFoundError):
                return open_file(self._local(self._rest(path)), follow=follow)
        return self._in_tier(path)

    def status(self, path: str, *, follow: bool = False) -> FileStatus:
        rest = self._rest(path)
        if not self.location.local and (not rest or self._assembly(rest) is not None):
            return MADE_DIRECTORY
        if self.location.local:
            with contextlib.suppress(FileNotFoundError):
                return status_of(self._local(rest), follow=follow)
        with self._in_tier(path) as file:
            return file.status()

    def measure(self, directory: str, names: Iterable[str]) -> Measured:
        found = self._assembly(self._rest(directory))
        sizes, inodes, types = [], [], {}
        for i, name in enumerate(names):
            remote = found.remote.get(name) if found else None
            if isinstance(remote, _TieredFile) and remote.n_bytes >= 0:
                sizes.append(remote.n_bytes)
                inodes.append(_inode_of(remote.segment))
                continue
            status = self.status(f"{directory}/{name}")
            sizes.append(status.size)
            inodes.append(status.inode)
            if not status.is_file:
                types[i] = status.type
        return Measured(sizes, inodes, types, is_remembered=False)

    def entries(self, path: str) -> list[Entry]:
        rest = self._rest(path)
        if not rest and not self.location.local:
            return [Entry(str(each), FileType.DIRECTORY) for each in self._remote_logs()]
        known = self._known
        found = self._assembly(rest)
        if found is None:
            if not self.location.local:
                raise gone(path)
            return list_entries(self._local(rest))
        listed = list_entries(self._local(rest)) if self.location.local else []
        if not found.local <= {each.name for each in listed}:
            self._forget(known)  # see `_in_tier`
            return self.entries(path)
        local = [each for each in listed if each.name in found.local]
        return local + [Entry(name, FileType.FILE) for name in found.remote]


class _OldTierError(Exception):
    """Offsets are missing in a tier that was listed before the local log was."""


def _first_segment(names: Iterable[str]) -> int | None:
    """The base offset of the first of the segments that have files of these names."""
    parsed = filter(None, map(parse_segment_file, names))
    live = (each.offset for each in parsed if (each.kind, each.state) == _LIVE_LOG)
    return min(live, default=None)


def _files_of(placed: PlacedSegment) -> dict[str, _TieredFile | bytes]:
    """The files of a partition that a remote segment holds, by their names on a broker."""
    segment, n_bytes = placed
    files: dict[str, _TieredFile | bytes] = {
        f"{segment.start_offset:020d}.{part}": _TieredFile(segment, part) for part in _BY_BASE
    }
    files[f"{segment.start_offset:020d}.{RemoteFileKind.LOG}"] = _TieredFile(
        segment, RemoteFileKind.LOG, n_bytes
    )
    # The producers at the end of the segment: on a broker, this file belongs to the next segment.
    files[f"{segment.end_offset + 1:020d}.{RemoteFileKind.SNAPSHOT}"] = _TieredFile(
        segment, RemoteFileKind.SNAPSHOT
    )
    return files


_disks: dict[tuple[int, str], TieredDisk] = {}


def tiered_disk(path: str) -> TieredDisk:
    """The disk that holds a path."""
    location, _ = parse_tiered(path)
    key = os.getpid(), location.root  # clients of stores do not outlive a fork
    if key not in _disks:
        _disks[key] = TieredDisk(location)
    return _disks[key]
