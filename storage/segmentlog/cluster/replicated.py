"""Log directories of several brokers as one: each log is the one that the cluster serves."""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, Unpack

import numpy as np

from segmentlog.arguments import class_of_one_dialect, takes
from segmentlog.cluster.copies import Copy, choose, refuse_two_clusters
from segmentlog.errors import CorruptLogError, LogDirectoryError, SegmentLogError
from segmentlog.format.kernels import layout
from segmentlog.format.messages.reader import uuid_text
from segmentlog.log.checkpoint import known_topic_id, read_meta_properties
from segmentlog.model import LARGEST_LONG, OnCorruptBatch, ReadUpTo, ScanPolicy, TopicPartition
from segmentlog.operation_options import DeletedTopicsOptions
from segmentlog.reads.cluster_image import RECORDS, ClusterMetadata
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.reads.metadata_log import metadata_path, read_metadata
from segmentlog.reads.snapshot import without_collector
from segmentlog.store.paths import opened_path
from segmentlog.store.readable import survey
from segmentlog.store.system_errors import storage_errors
from segmentlog.txn.state import State

logger = logging.getLogger(__name__)


class Replica(NamedTuple):
    """A copy of a partition, beside the log.

    Attributes
    ----------
    path : of the partition directory.
    node_id : id of the broker; None without ``meta.properties``.
    is_log : whether this copy is the log.
    leader_epoch : the last one; -1 without records.
    log_start_offset, log_end_offset : of this copy alone.
    high_watermark : by its checkpoint, or None.
    diverges_at : the first offset at which it has other batches than the log, or batches that the
        log lacks; None if it has only batches of the log.  The cluster cuts it there.
    n_diverging : number of records at and after that offset.
    first_timestamp_ms, last_timestamp_ms : their times (epoch milliseconds), or None.  The first
        one is the least time with which a batch begins.
    was_acknowledged : whether the copy's own high watermark lies beyond `diverges_at`: consumers
        may have seen records that an unclean election has lost.
    """

    path: str
    node_id: int | None
    is_log: bool
    leader_epoch: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int | None
    diverges_at: int | None = None
    n_diverging: int = 0
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None
    was_acknowledged: bool = False


class ReplicatedPartition(NamedTuple):
    """A partition, and all copies of it.

    Attributes
    ----------
    topic, partition : its name and number.
    topic_id : as Kafka prints it; None in directories of old brokers.
    reason : why one of the copies is the log.
    warning : a reason for doubt, or None.
    replicas : the copies of this topic id, in the order of the directories.
    others : paths of directories that have the name, and belong to another topic or to a broker
        without this partition.
    """

    topic: str
    partition: int
    topic_id: str | None
    reason: str
    warning: str | None
    replicas: tuple[Replica, ...]
    others: tuple[str, ...] = ()

    @property
    def has_problem(self) -> bool:
        """Whether a copy diverges from the log, or the best copy may not be the log."""
        return bool(self.warning) or any(each.diverges_at is not None for each in self.replicas)


class _Choice(NamedTuple):
    """The copies of a partition, and which of them is the log."""

    copies: list[Copy]
    chosen: Copy
    reason: str
    warning: str | None
    others: list[str]


#: The registrations if the metadata cannot be read.
_UNREADABLE: Mapping[object, Mapping[str, Any]] = MappingProxyType({})


@class_of_one_dialect()
class ReplicatedDirectory(LogDirectory):
    """Log directories of the brokers of a cluster, read as one; `open_replicas` makes it.

    A partition is the copy that the cluster would serve.  Its high watermark is the highest one of
    the copies that agree with the log up to there.  Topics that the cluster has deleted are left
    out, with a warning.

    Parameters
    ----------
    paths : absolute paths of log directories.
    include_deleted_topics : whether they are read instead.
    told : the deleted topics that an earlier look has warned of.
    """

    def __init__(
        self,
        paths: Iterable[str],
        *,
        include_deleted_topics: bool = False,
        told: Collection[str] = (),
    ) -> None:
        super().__init__(paths)
        self.include_deleted_topics = include_deleted_topics
        self._deleted = set[str]()
        self._metadata = ClusterMetadata(self.paths)
        if not include_deleted_topics:
            self._leave_out_deleted(told)

    def _leave_out_deleted(self, told: Collection[str]) -> None:
        """Leave out the partitions of which all copies are of deleted topics.

        A broker that was down when its topic was deleted still has the copies, until it starts.
        """
        metadata = self._metadata.path
        if metadata is None or self._registrations is _UNREADABLE:
            return
        current = {*self._topic_ids.values()}
        known: dict[tuple[str, str], bool] = {}  # by topic and log directory: one file for each
        for each in self.topic_partitions():
            copies = self._copies.get(each) or [self._places[each]]
            for parent, path in copies:
                if (each.topic, parent) not in known:
                    topic_id = known_topic_id(path)
                    is_there = topic_id in current if topic_id else each.topic in self._topic_ids
                    # Other topics that the metadata lacks may have been created later.
                    known[each.topic, parent] = (
                        not is_there and (topic_id or each.topic) in self._topics_ever
                    )
            if not all(known[each.topic, parent] for parent, _ in copies):
                continue
            for held in (self._places, self._copies):
                held.pop(each, None)
            shown = ", ".join(path for _, path in copies)
            self._left_out[each] = (
                f"the cluster has deleted the topic, by {metadata}, and {shown} is left; "
                "include_deleted_topics (in Spark includeDeletedTopics) reads it"
            )
            if each.topic not in {*told, *self._deleted}:
                logger.warning("%s is left out: %s", each.topic, self._left_out[each])
            self._deleted.add(each.topic)

    @cached_property
    def _topics_ever(self) -> Collection[str]:
        """Ids and names of all topics in all copies of the metadata, as far back as they go."""
        paths = [path for each in self.paths if (path := metadata_path(each)) is not None]
        policy = ScanPolicy(on_corrupt_batch=OnCorruptBatch.SKIP)
        found = set[str]()
        for path in paths:
            for record in read_metadata(path, RECORDS["topics"], is_history=True, policy=policy):
                found.add(uuid_text(record.fields["topic_id"]))
                found.update(name for name in [record.fields.get("name")] if name)
        return found

    @cached_property
    def _registrations(self) -> Mapping[object, Mapping[str, Any]]:
        """Partitions by printed topic id and number, in the newest metadata of the cluster."""
        try:
            partitions = self._metadata.tables("partitions")["partitions"]
        except LogDirectoryError as error:
            remedy = "put the copy of another controller or broker in its place"
            if not self._copies:  # nothing has to be chosen
                logger.warning(
                    "%s: %s; the logs are read without the metadata: %s",
                    error.path,
                    error.reason,
                    remedy,
                )
                return _UNREADABLE
            raise LogDirectoryError(error.path, f"{error.reason}; {remedy}") from error
        return {
            (uuid_text(topic_id), partition): {
                **row,
                "topic_id": uuid_text(topic_id),
                "directories": [uuid_text(each) for each in row["directories"] or ()],
            }
            for (topic_id, partition), row in partitions.items()
        }

    @cached_property
    def _topic_ids(self) -> Mapping[str, str]:
        """Ids of the topics that the metadata has, by name."""
        return {each["topic"]: each["topic_id"] for each in self._registrations.values()}

    def _broker(self, directory: str) -> Mapping[str, str]:
        """The properties of the broker that has a log directory, read once."""
        if directory not in self._brokers:
            self._brokers[directory] = read_meta_properties(directory)
        return self._brokers[directory]

    @cached_property
    def _brokers(self) -> dict[str, Mapping[str, str]]:
        return {}

    def _chosen(self, topic_partition: TopicPartition) -> Log:
        choice = self._choice(topic_partition)
        if choice.warning:
            logger.warning("%s: %s", topic_partition, choice.warning)
        chosen = choice.chosen
        agreed = [
            min(found, each.common_end(chosen))
            for each in choice.copies
            if (found := each.log.high_watermark_checkpoint) is not None
        ]
        high_watermark = max(agreed, default=-1)
        return self._open(topic_partition, chosen.directory, chosen.log.path, high_watermark)

    def _choice(self, topic_partition: TopicPartition) -> _Choice:
        places = self._copies.get(topic_partition) or [self._places[topic_partition]]
        found = [
            Copy(self._open(topic_partition, *each), each[0], self._broker(each[0]))
            for each in places
        ]
        copies = self._of_one_topic(topic_partition, found)
        topic_id = copies[0].log.known_topic_id or self._topic_ids.get(topic_partition.topic)
        registration = self._registrations.get((topic_id, topic_partition.partition))
        assigned = copies
        if registration is not None:
            nodes = {
                *registration["replicas"],
                *(registration["adding_replicas"] or ()),
                *(registration["removing_replicas"] or ()),
            }
            # A broker that was down when its copy was moved away still has it.
            assigned = [each for each in copies if each.node_id in nodes] or copies
        chosen, reason, warning = choose(assigned, registration)
        others = [each.log.path for each in found if each not in assigned]
        return _Choice(assigned, chosen, reason, warning, others)

    def _of_one_topic(self, topic_partition: TopicPartition, found: list[Copy]) -> list[Copy]:
        """The copies of the topic that has the name now; a topic may have been made again."""
        ids = {each.log.known_topic_id for each in found}
        if len(ids) == 1:
            return found
        current = self._topic_ids.get(topic_partition.topic)
        copies = [each for each in found if each.log.known_topic_id == current]
        if not copies:
            paths = ", ".join(
                f"{each.log.path} ({each.log.known_topic_id or 'no id'})" for each in found
            )
            reason = (
                f"and others are copies of topics with one name and different ids: {paths}; leave "
                "out those of the former topic, or add a directory with __cluster_metadata-0"
            )
            raise LogDirectoryError(found[0].log.path, reason)
        return copies

    def refresh(self, *, log_ends: bool = False) -> "ReplicatedDirectory":
        """The directories as they are now; all copies are looked at again."""
        return _open(self.paths, self.include_deleted_topics, told=self._deleted)

    def _writes_of(
        self,
        logs: Iterable[Log],
        state: State,
        ends: Mapping[TopicPartition, int],
        others: Mapping[TopicPartition, int],
        is_same: Callable[[TopicPartition, int, int], bool],
    ) -> State:
        """A state with the numbered writes and batches of streams of the directories of logs.

        `ends`: up to which offsets a follower has each of the logs.  `others`: the ends of its
        other partitions, which may have records of their own at the same offsets.  `is_same`:
        whether such a partition has the records of these directories in a range of offsets.
        """

        def is_copied(at: TopicPartition, start: int, end: int) -> bool | None:
            if at in ends:
                return ends[at] >= end
            if at not in others:
                return None
            try:
                return others[at] >= end and is_same(at, start, end)
            except (SegmentLogError, OSError):  # one of them cannot be read
                return False

        topics: dict[str, set[str]] = {}
        for log in logs:
            topics.setdefault(os.path.dirname(log.path), set()).add(log.topic_partition.topic)
        for parent, names in topics.items():
            theirs = self._state_of(parent)
            # Only writes without a span need more than the state: their records may be in all
            # partitions, also in those that only the follower has.
            unknown = {key[1] for key in theirs.versions if key not in theirs.spans} & names
            unknown |= {"" for query in theirs.streams if (query, "") not in theirs.spans}
            behind = [
                each
                for each in {*self.topic_partitions(), *others}
                if (each.topic in unknown or "" in unknown)
                and (each not in ends or ends[each] < self._end_of(each))
            ]
            state = state.with_writes_of(theirs, names, is_copied, behind)
        return state

    def _end_of(self, topic_partition: TopicPartition) -> int:
        """The log end of a partition; beyond all of them if the log cannot be read."""
        try:
            return self.log(*topic_partition).log_end_offset
        except (SegmentLogError, OSError):
            return LARGEST_LONG

    @storage_errors()
    def replicated(self, topic: str, partition: int) -> ReplicatedPartition:
        """The copies of a partition, and where they differ from the log.

        Raises
        ------
        UnknownTopicOrPartitionError
            If no directory has it.
        LogDirectoryError
            If nothing shows which topic has the name now.
        """
        topic_partition = TopicPartition(topic, partition)
        if topic_partition not in self._places:
            raise self._unknown(topic, partition)
        choice = self._choice(topic_partition)
        return ReplicatedPartition(
            topic,
            partition,
            choice.chosen.log.known_topic_id or None,
            choice.reason,
            choice.warning,
            tuple(_replica(each, choice.chosen) for each in choice.copies),
            tuple(choice.others),
        )


def _replica(copy: Copy, chosen: Copy) -> Replica:
    log = copy.log
    found = Replica(
        log.path,
        copy.node_id,
        copy is chosen,
        copy.epochs.last_epoch,
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark_checkpoint,
    )
    # The log   |== epoch 0 ==|==== epoch 1 ====|
    # The copy  |== epoch 0 ==|== epoch 0 ==|      a broker would truncate it
    #                         common        log_end_offset
    common = copy.common_end(chosen)
    if common >= log.log_end_offset:
        return found
    n_diverging, first_ms, last_ms = tail_of(log, common)
    return found._replace(
        diverges_at=common,
        n_diverging=n_diverging,
        first_timestamp_ms=first_ms,
        last_timestamp_ms=last_ms,
        was_acknowledged=(found.high_watermark or 0) > common,
    )


class OpenReplicasOptions(DeletedTopicsOptions, total=False):
    """Those of `segmentlog.open_replicas`.

    Parameters
    ----------
    include_deleted_topics : whether the directory has topics that the cluster has deleted, by its
        newest metadata, and of which a broker still has logs.  By default, they are left out with
        a warning, because the cluster would not serve them.
    """


@takes(OpenReplicasOptions)
def open_replicas(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    **options: Unpack[OpenReplicasOptions],
) -> ReplicatedDirectory:
    """Open the log directories of several brokers of a cluster as one.

    Parameters
    ----------
    path, more : log directories; those of one broker with several disks may be among them.
    **options : those of `OpenReplicasOptions`.

    Raises
    ------
    LogDirectoryError
        If a path is not a log directory, or the directories are of different clusters.
    MalformedRecordError, CorruptLogError
        If the newest copy of the cluster's metadata cannot be read.
    StorageError
        If a directory cannot be read.
    """
    return _open([path, *more], options["include_deleted_topics"])


@storage_errors()
@without_collector()
def _open(
    given: Sequence[str | os.PathLike[str]],
    include_deleted_topics: bool,
    told: Collection[str] = (),
) -> ReplicatedDirectory:
    paths = [opened_path(each) for each in given]
    for each in paths:
        survey(each)
    refuse_two_clusters(
        {each: read_meta_properties(each) for each in paths},
        "copies of partitions can only be compared within a cluster; name directories of one "
        "cluster",
    )
    return ReplicatedDirectory(paths, include_deleted_topics=include_deleted_topics, told=told)


@takes(OpenReplicasOptions)
def replicas(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    **options: Unpack[OpenReplicasOptions],
) -> Iterator[ReplicatedPartition]:
    """Every partition of a cluster: which copy is the log and why, and where the others differ.

    Parameters
    ----------
    path, more : see `open_replicas`.
    **options : those of `OpenReplicasOptions`.

    Yields
    ------
    partition : sorted by topic and number; brokers' own topics, too.

    Raises
    ------
    LogDirectoryError, MalformedRecordError, CorruptLogError, StorageError
        As `open_replicas` does, or if two topics have had a name and nothing shows which has it
        now.
    """
    directory = open_replicas(path, *more, **options)
    for each in directory.topic_partitions():
        yield directory.replicated(*each)


#: Number of records, and their times in epoch milliseconds; None if no record has a time.
_Tail: TypeAlias = tuple[int, int | None, int | None]


def tail_of(log: Log, start_offset: int) -> _Tail:
    """The records at and after an offset, without end markers, by the headers of their batches.

    The first time is the least with which a batch begins.  Headers are enough, unless a message
    has magic 0 or 1, a header is damaged, or the offset lies inside a batch.  Then the records are
    read.  Checksums are not verified otherwise: a tail may be terabytes long.
    """
    from segmentlog.log.batches import walk_batches  # the compiled kernels load here

    n_records, first, last = 0, LARGEST_LONG, -1
    try:
        for walked in walk_batches(log.untorn_segments, start_offset):
            headers = walked.scanned.headers
            is_legacy = headers[:, layout.ATTRIBUTES] & layout.LEGACY_MASK != 0
            if is_legacy.any() or headers[0, layout.BASE_OFFSET] < start_offset:
                return _read(log, start_offset)
            headers = headers[headers[:, layout.ATTRIBUTES] & layout.CONTROL_MASK == 0]
            n_records += int(headers[:, layout.RECORDS_COUNT].sum())
            largest = headers[:, layout.MAX_TIMESTAMP]
            # A batch with the time of its append has this time for all records.  The base
            # timestamp of a compacted batch may be the time at which its tombstones go.
            has_other = layout.TIMESTAMP_TYPE_MASK | layout.DELETE_HORIZON_MASK
            is_other = headers[:, layout.ATTRIBUTES] & has_other != 0
            begins = np.where(is_other, largest, headers[:, layout.BASE_TIMESTAMP])
            first = int(begins[begins >= 0].min(initial=first))
            last = int(largest.max(initial=last))
    except CorruptLogError:
        return _read(log, start_offset)
    return n_records, None if first == LARGEST_LONG else first, None if last < 0 else last


def _read(log: Log, start_offset: int) -> _Tail:
    """The tail by its records; damaged batches are left out."""
    import pyarrow.compute as pc  # takes long, and is seldom needed

    n_records, times = 0, []
    with log.scan(
        start_offset,
        log.log_end_offset,
        columns=["timestamp"],
        read_up_to=ReadUpTo.LOG_END,
        on_corrupt_batch=OnCorruptBatch.SKIP,
    ) as batches:
        for batch in batches:
            n_records += batch.num_rows
            column = batch.column(0).cast("int64")
            bounds = pc.min_max(column.filter(pc.greater_equal(column, 0))).as_py()
            times += [each // 1000 for each in bounds.values() if each is not None]
    return n_records, min(times, default=None), max(times, default=None)
