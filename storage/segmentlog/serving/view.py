"""What is served: topics, their partitions, and the bounds of their logs, at one moment."""

import contextlib
import fnmatch
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from segmentlog.cluster.directory_settings import (
    DirectorySettings,
    Setting,
    read_partition_counts,
)
from segmentlog.cluster.replicated import open_replicas
from segmentlog.errors import (
    CorruptCheckpointError,
    CorruptLogError,
    LogChangedError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    OptionError,
    SegmentLogError,
    TornTransactionError,
    UnknownTopicOrPartitionError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.names import (
    LEADER_EPOCH_CHECKPOINT,
    DirectoryState,
    parse_partition_directory,
)
from segmentlog.log.checkpoint import read_leader_epochs
from segmentlog.log.segment import Segment, from_offset
from segmentlog.model import (
    INTERNAL_TOPICS,
    IsolationLevel,
    OffsetRange,
    OnCorruptBatch,
    ReadUpTo,
    TopicPartition,
)
from segmentlog.reads.cluster_image import ClusterMetadata
from segmentlog.reads.log import Log, find_offset
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.serving.stored import StoredBatches
from segmentlog.serving.wire import uuid_of
from segmentlog.store.medium import may_hang
from segmentlog.store.paths import is_tiered, tiered_paths
from segmentlog.store.readable import is_url

logger = logging.getLogger(__name__)


class Scope(NamedTuple):
    """What of the directories is served, and how far.

    `topics`: patterns with ``*`` and ``?``; none for all.  `internal`: whether brokers' own topics
    are served if no pattern names them.  `renamed`: whether renamed partitions are, under another
    name.  `on_corrupt_batch`: whether batches are checked before they are sent, and what becomes
    of a damaged one; by default clients check.
    """

    topics: Sequence[str] = ()
    internal: bool = False
    renamed: bool = False
    read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK
    on_corrupt_batch: OnCorruptBatch | None = None

    def has(self, topic: str) -> bool:
        """Whether a topic is served."""
        if self.topics:
            return any(fnmatch.fnmatchcase(topic, each) for each in self.topics)
        return self.internal or topic not in INTERNAL_TOPICS


def open_served(
    paths: Sequence[str],
    remote_storage: str | os.PathLike[str] | None = None,
    remote_storage_layout: str | None = None,
    remote_storage_key_file: str | os.PathLike[str] | None = None,
) -> LogDirectory:
    """The directories as one; copies of a partition in several of them are those of a cluster."""
    if len(paths) > 1 and remote_storage is None:
        return open_replicas(paths[0], *paths[1:])
    given = tiered_paths(paths, remote_storage, remote_storage_layout, remote_storage_key_file)
    return open_log_dir(*given)


class ServedLog:
    """One partition that is served; its calls may come from several threads."""

    def __init__(self, log: Log, scope: Scope) -> None:
        self.log = log
        self._scope = scope
        #: The directory of its files if calls for them may hang; empty on a disk of this machine.
        self.place = os.path.dirname(log.path) if may_hang(log.path) else ""
        self.batches = StoredBatches(log, scope.on_corrupt_batch, self.place)
        # Whoever reads batches or looks up times holds it: `batches` and the log's own tables are
        # for one thread at a time.
        self.held = threading.RLock()
        # Threads replace and fill it without a lock: two that find an end find the same one.
        self._ends: tuple[Sequence[Segment], dict[str, int]] = (), {}

    def has_changed(self) -> bool:
        """Whether files were renamed, replaced or cut since they were listed."""
        return self.log._listed.has_changed()

    def check_topic(self, offset: int, next_offset: int) -> None:
        """Refuse batches that may be those of another topic of this name."""
        if not is_url(self.log.path):  # a request for each answer
            self.log.check_topic(OffsetRange(offset, next_offset))

    def _end(self, name: str, find: Callable[[], int]) -> int:
        """What follows from the listed files alone, found once: each fetch needs three."""
        segments = self.log.untorn_segments
        if self._ends[0] is not segments:  # they were listed again
            self._ends = segments, {}
        ends = self._ends[1]
        if name not in ends:
            ends[name] = find()
        return ends[name]

    @property
    def _on_corrupt_batch(self) -> OnCorruptBatch:
        return self._scope.on_corrupt_batch or OnCorruptBatch.FAIL

    @property
    def start_offset(self) -> int:
        """The first offset."""
        return self._end("start", lambda: self.log.log_start_offset)

    @property
    def local_start_offset(self) -> int:
        """The first offset that is not only in a tier."""
        local, _ = self._tiered()
        return max(self.start_offset, self.log.log_end_offset if local is None else local)

    @property
    def latest_tiered_offset(self) -> int:
        """The last offset that is in a tier, or -1."""
        return self._tiered()[1]

    def _tiered(self) -> tuple[int | None, int]:
        if not is_tiered(self.log.path):
            return 0, -1
        from segmentlog.tiered.disk import tiered_disk  # most logs have no tier

        return tiered_disk(self.log.path).ends(self.log.topic_partition)

    @property
    def high_watermark(self) -> int:
        """The end for all clients; it may lie beyond damage, which a fetch reports."""
        skips = self._scope.on_corrupt_batch is OnCorruptBatch.SKIP
        return self._end(
            "end",
            lambda: self.log.end_offset(
                self._scope.read_up_to, fail_on_data_loss=not skips, warns=False
            ),
        )

    def last_stable_offset(self) -> int:
        """The end for clients that read committed records."""
        return self._end(
            "stable",
            lambda: self.log.last_stable_offset(
                self._scope.read_up_to,
                self._on_corrupt_batch,
                fail_on_data_loss=self._scope.on_corrupt_batch is not OnCorruptBatch.SKIP,
            ),
        )

    def missing(self, offset: int) -> SegmentLogError:
        """The error of a fetch between the end of the log and its high watermark."""
        lost = self.log.lost_offsets
        reason = str(lost or f"offsets [{offset}, {self.high_watermark}) are damaged or missing")
        return LogDirectoryError(self.log.path, reason)

    def end_offset(self, level: int) -> int:
        """The end for clients of an isolation level, as they number it."""
        return self.last_stable_offset() if level else self.high_watermark

    def leader_epoch_at(self, offset: int) -> int:
        """The epoch of the leader that wrote an offset; -1 if it is not known."""
        return max((epoch for epoch, start in self.leader_epochs if start <= offset), default=-1)

    def batch_epoch_at(self, offset: int) -> int:
        """The epoch that the batch of an offset has, as a broker says it; -1 of magic 0 and 1."""
        with self.held:
            for segment in from_offset(self.log.untorn_segments, offset):
                with segment.opened() as opened:
                    found = opened.find(offset)
                if found is not None:
                    is_legacy = found.header.magic < layout.FIRST_BATCH_MAGIC
                    return -1 if is_legacy else found.header.leader_epoch
        return -1

    @cached_property
    def leader_epochs(self) -> Sequence[tuple[int, int]]:
        """Epochs and the first offset of each, in their order."""
        try:
            path = f"{self.log.partition.path}/{LEADER_EPOCH_CHECKPOINT}"
            return sorted(read_leader_epochs(path, takes_newer=True))
        except (SegmentLogError, OSError):
            return ()

    def offset_for_time(self, timestamp_ms: int, level: int) -> tuple[int, int] | None:
        """Timestamp and offset of the first record at or after a time."""
        isolation = IsolationLevel.READ_COMMITTED if level else IsolationLevel.READ_UNCOMMITTED
        with self.held:
            found = find_offset(
                self.log, timestamp_ms, self._scope.read_up_to, isolation, self._on_corrupt_batch
            )
        return None if found is None else (found.timestamp_ms, found.offset)

    def newest(self, level: int) -> tuple[int, int] | None:
        """Timestamp and offset of the first record with the largest timestamp.

        None, as of a broker, if it lies in or after an open transaction and `level` hides it.
        """
        with self.held:
            largest = max(
                (each.largest_timestamp() for each in self.log.untorn_segments), default=-1
            )
        found = self.offset_for_time(largest, 0) if largest >= 0 else None
        return found if found is not None and found[1] < self.end_offset(level) else None


class View:
    """What is served at one moment; `refreshed` is a later one."""

    def __init__(
        self,
        directory: LogDirectory,
        scope: Scope,
        before: "View | None" = None,
    ) -> None:
        self.directory, self.scope = directory, scope
        self.cluster_id: str | None = before.cluster_id if before else directory.cluster_id
        self._earlier = before._served if before else {}
        # The threads that answer share a view.  A table is read, and partitions of a directory are
        # opened, by one of them at a time; who finds one takes it without the lock.
        self._served: dict[TopicPartition, ServedLog] = {}
        self._opening: dict[str, threading.Lock] = {}  # by `place_of`
        self._tables: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._reading_tables: dict[str, threading.Lock] = {}
        #: Answers that name all topics, by what was asked.
        self.answers: dict[Any, bytes] = {}
        #: Partitions of each topic that are here, by the name that clients see.
        self.topics: dict[str, Mapping[int, TopicPartition | str]] = {
            topic: {each: TopicPartition(topic, each) for each in partitions}
            for topic, partitions in directory.topics(internal=True).items()
            if scope.has(topic)
        }
        if scope.renamed:
            self._add_renamed()
        # What each answer needs is known before a directory hangs.
        for each in directory._snapshots:
            may_hang(each)
        if before is None:
            _ = self.counts

    def _add_renamed(self) -> None:
        """Add renamed partitions as topics whose names say what became of them."""
        for paths in self.directory.partitions_not_in_use().values():
            for path in sorted(paths):
                named = parse_partition_directory(path.rpartition("/")[2])
                if named is None or named[1] is DirectoryState.CURRENT:
                    continue
                (topic, partition), state = named
                word = {DirectoryState.DELETE: "deleted"}.get(state, str(state).strip("-"))
                for i in range(1, len(paths) + 1):
                    alias = f"{topic}.{word}" + (f".{i}" if i > 1 else "")
                    known = self.topics.get(alias, {})
                    if partition not in known:
                        self.topics[alias] = {**known, partition: path}
                        break

    def refreshed(self) -> "View":
        """What is there now; this object if nothing has changed."""
        newer = self.directory.refresh(log_ends=True)
        if newer is self.directory:
            return self
        return View(newer, self.scope, self)

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """The numbers of partitions of topics, if the metadata of the cluster is here."""
        try:
            local = [each for each in self.directory.paths if not is_url(each)]
            return read_partition_counts(ClusterMetadata(local))
        except (SegmentLogError, OSError) as error:
            logger.warning("%s; numbers of partitions are those that are here", error)
            return {}

    def n_partitions(self, topic: str) -> int:
        """The number of partitions of a topic; some of them may not be here."""
        return max(self.counts.get(topic, 0), *(each + 1 for each in self.topics[topic]))

    def log(self, topic: str, partition: int) -> ServedLog:
        """A partition; raises `UnknownTopicOrPartitionError` and errors of its directory."""
        key = TopicPartition(topic, partition)
        found = self._served.get(key)
        if found is None:
            place = self.topics.get(topic, {}).get(partition)
            if place is None:
                where = ", ".join(self.directory.paths)
                raise UnknownTopicOrPartitionError(topic, partition, where, "it is not served")
            with self._opening.setdefault(self.place_of(topic, partition), threading.Lock()):
                if isinstance(place, str):
                    renamed = open_log_dir(place)
                    log = renamed.log(*renamed.topic_partitions()[0])
                else:
                    log = self.directory.log(*place)
                found = self._earlier.get(key)
                if found is None or found.log is not log:
                    found = ServedLog(log, self.scope)
                self._served[key] = found
        return found

    def opened(self, topic: str, partition: int) -> ServedLog | None:
        """A partition that was asked for before."""
        return self._served.get(TopicPartition(topic, partition))

    def place_of(self, topic: str, partition: int) -> str:
        """The directories that may hang and hold a partition; empty for none."""
        if (log := self.opened(topic, partition)) is not None:
            return log.place
        place = self.topics.get(topic, {}).get(partition)
        if not isinstance(place, TopicPartition):
            return os.path.dirname(place or "")
        return ", ".join(filter(may_hang, self.directory._directories_of(place)))

    def table(self, name: str) -> Sequence[Mapping[str, Any]]:
        """The rows of one of Kafka's own tables; none if its topic is not here."""
        with self._reading_tables.setdefault(name, threading.Lock()):
            if name not in self._tables:
                self._tables[name] = self._read_table(name)
            return self._tables[name]

    def _read_table(self, name: str) -> Sequence[Mapping[str, Any]]:
        from segmentlog.kafka_tables.open_table import table  # most clients ask for none

        def warn(place: str, error: Exception) -> None:
            logger.warning("%s of table %s is left out: %s", place, name, error)

        try:
            return table(self.directory, name, on_failure=warn).to_pylist()  # type: ignore[no-any-return]
        except LogDirectoryError:
            return ()

    @cached_property
    def _settings(self) -> DirectorySettings | None:
        for path in self.directory.log_directories:
            try:
                return DirectorySettings.read(path)
            except (SegmentLogError, OSError) as error:
                logger.warning("%s", error)
        return None

    def settings_of(self, topic: str) -> Mapping[str, Setting]:
        """The settings of a topic; none if they are not known."""
        return {} if self._settings is None else self._settings.of(topic)

    def topic_id(self, topic: str) -> str:
        """The id of a topic as Kafka prints it, or empty.

        Renamed partitions have none: their topic may be there, too.
        """
        for partition, place in self.topics.get(topic, {}).items():
            with contextlib.suppress(SegmentLogError, OSError):
                is_renamed = isinstance(place, str)
                return "" if is_renamed else self.log(topic, partition).log.known_topic_id
        return ""

    def read_ids(self, topics: Iterable[str]) -> None:
        """Let the ids of topics be known."""
        for each in topics:
            self.topic_id(each)

    @cached_property
    def ids(self) -> Mapping[uuid.UUID | None, str]:
        """Topics by their ids."""
        found = ((uuid_of(self.topic_id(topic)), topic) for topic in self.topics)
        return {each: topic for each, topic in found if each is not None}

    @property
    def knows_ids(self) -> bool:
        """Whether the ids of all topics have been read."""
        return "ids" in self.__dict__


def kafka_error(error: Exception) -> int:
    """The code by which clients know an error; damage is one that they do not retry in silence."""
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return 56  # KAFKA_STORAGE_ERROR: clients ask again


_CODES: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((UnknownTopicOrPartitionError,), 3),
    ((OffsetOutOfRangeError,), 1),
    ((UnsupportedFormatError,), 43),
    ((CorruptLogError, CorruptCheckpointError, LogDirectoryError, TornTransactionError), 2),
    ((LogChangedError, OSError), 56),
    ((OptionError,), 42),
)
