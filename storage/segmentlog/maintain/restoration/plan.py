"""The plan of a restoration: its records, where each partition goes, every reason against it.

`propose_placement` proposes the brokers of topics that the other cluster does not have yet.
"""

import json
import logging
import os
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, cast

from segmentlog.arguments import (
    LARGEST_INT,
    instance_of,
    one_dialect,
    refused,
    topic_names,
    whole_number,
)
from segmentlog.cluster.directory_settings import DirectorySettings
from segmentlog.cluster.placement import NextInt, Placement, TargetCluster, place_replicas
from segmentlog.cluster.replicated import open_replicas
from segmentlog.errors import (
    CorruptLogError,
    LogDirectoryError,
    MalformedRecordError,
    SegmentLogError,
)
from segmentlog.format.names import partition_path, topics_command
from segmentlog.log.checkpoint import known_topic_id
from segmentlog.model import (
    INTERNAL_TOPICS,
    LARGEST_LONG,
    LEAST_LONG,
    IsolationLevel,
    OffsetRange,
    OnCorruptBatch,
    ReadUpTo,
    ScanPolicy,
    TopicPartition,
)
from segmentlog.reads.choose import partitions_of
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.reads.metadata_log import metadata_path
from segmentlog.store.paths import local_path
from segmentlog.store.readable import device_of
from segmentlog.store.system_errors import Failures, storage_errors
from segmentlog.tiered.metadata import REMOTE_LOG_METADATA
from segmentlog.times import Time, epoch_milliseconds
from segmentlog.txn.topics import MOST_PARTITIONS, check_partition_path

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

#: Topics that are not restored.  The list of remote segments names segments of the lost cluster;
#: Kafka does not count its topic among the internal topics.
TOPICS_OF_BROKERS = INTERNAL_TOPICS | {REMOTE_LOG_METADATA}

#: Columns with which a row keeps its place.
_COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "key",
    "value",
    "headers",
)


class OpenTransactions(StrEnum):
    """The treatment of transactions that the lost cluster has not ended."""

    REFUSE = "refuse"  #: such a partition is not restored
    END = "end"  #: they are aborted: their records are left out
    LEAVE_OUT = "leave-out"  #: all records from the beginning of the first one are left out


class RestoredRecords:
    """The records of the sources that are restored.

    `source`: the log directories of the lost cluster.  `times`: bounds, as `Log.scan` takes them;
    None for none; `times_ms`: in epoch milliseconds.  `on_corrupt_batch`: of the sources; a log
    without its corrupt batches keeps its offsets.
    """

    def __init__(
        self,
        source: LogDirectory,
        times: tuple[Time | None, Time | None],
        treatment: OpenTransactions,
        on_corrupt_batch: OnCorruptBatch = OnCorruptBatch.FAIL,
    ) -> None:
        self._source, self.treatment = source, treatment
        self.on_corrupt_batch = on_corrupt_batch
        self._since, self._until = times
        self.times_ms = (
            LEAST_LONG if times[0] is None else epoch_milliseconds("since", times[0]),
            LARGEST_LONG if times[1] is None else epoch_milliseconds("until", times[1]),
        )

    def of(
        self,
        topic_partition: TopicPartition,
        offsets: OffsetRange,
        on_records: Callable[[int], object] = lambda _: None,
    ) -> "Iterator[pa.RecordBatch]":
        """The records of a partition, in the order of their offsets; times are milliseconds.

        `offsets`: of the log; a bound by time takes the place of a bound by offset.  `on_records`:
        called with the number of records of each batch.
        """
        log = self._source.log(*topic_partition)
        ended: tuple[tuple[int, int], ...] = ()
        isolation_level = IsolationLevel.READ_COMMITTED
        if self.treatment is OpenTransactions.END:
            ended = tuple(log.open_transactions(ReadUpTo.LOG_END, self.on_corrupt_batch).items())
            isolation_level = IsolationLevel.READ_UNCOMMITTED  # the bounds may lie after them
        bounds = log.bounds(
            offsets.start_offset if self._since is None else None,
            offsets.end_offset if self._until is None else None,
            since=self._since,
            until=self._until,
            read_up_to=ReadUpTo.LOG_END,
            isolation_level=isolation_level,
            on_corrupt_batch=self.on_corrupt_batch,
        )
        policy = ScanPolicy(
            IsolationLevel.READ_COMMITTED,
            self.on_corrupt_batch,
            ended=ended,
            header_names_as_bytes=True,
            in_milliseconds=True,
        )
        with log.scan_offsets(bounds, _COLUMNS, policy) as batches:
            for batch in batches:
                yield batch
                on_records(batch.num_rows)

    def start_of(self, topic_partition: TopicPartition, offsets: OffsetRange) -> int:
        """The offset at which the records of a partition begin; see `of`."""
        if self._since is None:
            return offsets.start_offset
        log = self._source.log(*topic_partition)
        return log.bounds(
            since=self._since,
            read_up_to=ReadUpTo.LOG_END,
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            on_corrupt_batch=self.on_corrupt_batch,
        ).start_offset


class RestoredPartition(NamedTuple):
    """A partition that is restored.

    Attributes
    ----------
    topic, partition : its name and number.
    source : path of the copy that is the log.
    topic_id : that the topic has at the target; None if the target does not have it.
    log_start_offset, log_end_offset : half-open range of the offsets of the source.
    n_ended : number of open transactions that are ended.
    n_left_out : offsets at the end of the log that belong to open transactions, or come after the
        beginning of one.
    n_bytes : bytes of the ``.log`` files of the source.
    n_records : number of records that were restored; 0 in a dry run.
    problems : reasons for which the partition cannot be restored, and what to do.
    directories : log directories of the target that get a replica, the one of the preferred leader
        first.
    restored_before : those of them that have these records already, by an earlier run.
    missing_brokers : brokers that are assigned a replica, and whose directory is not among the
        targets.
    continued_at : for each of `directories` the offset from which on it gets records: where the
        log ends that an earlier restoration of the same log has made; 0 for an empty one.
    """

    topic: str
    partition: int
    source: str
    topic_id: str | None
    log_start_offset: int
    log_end_offset: int
    n_ended: int
    n_left_out: int
    n_bytes: int
    n_records: int
    problems: tuple[str, ...]
    directories: tuple[str, ...] = ()
    restored_before: tuple[str, ...] = ()
    missing_brokers: tuple[int, ...] = ()
    continued_at: tuple[int, ...] = ()

    @property
    def has_problem(self) -> bool:
        """Whether it cannot be restored."""
        return bool(self.problems)

    @property
    def topic_partition(self) -> TopicPartition:
        """Its name and number, as one."""
        return TopicPartition(self.topic, self.partition)

    @property
    def offsets(self) -> OffsetRange:
        """The range of the offsets of the source."""
        return OffsetRange(self.log_start_offset, self.log_end_offset)

    @property
    def begins_at(self) -> dict[str, int]:
        """The directories that get records, and the offset from which on each gets them."""
        starts = self.continued_at or (0,) * len(self.directories)
        found = dict(zip(self.directories, starts, strict=True))
        return {each: at for each, at in found.items() if each not in self.restored_before}


class GroupOffset(NamedTuple):
    """The place of a group in a restored partition: the offset is the one at the target."""

    group: str
    topic: str
    partition: int
    offset: int


class CommittedOffsets(NamedTuple):
    """What groups have committed, and the partitions of which that is not known, or in part."""

    offsets: list[GroupOffset]
    unread: tuple[str, ...]


def committed_offsets(source: LogDirectory, on_corrupt: OnCorruptBatch) -> CommittedOffsets:
    """What groups have committed, if the sources have ``__consumer_offsets``.

    The records of other topics are whole without a partition of it, so one that cannot be read
    is named by a warning.
    """
    topic = "__consumer_offsets"
    if topic not in source.topics(internal=True):
        return CommittedOffsets([], ())
    from segmentlog.kafka_tables.open_table import table

    bad: dict[str, SegmentLogError] = {}
    rows = table(source, "group_offsets", on_failure=bad.__setitem__)
    reasons = {name: str(error) for name, error in bad.items()}
    if bad and on_corrupt is OnCorruptBatch.SKIP:
        rows = table(
            source, "group_offsets", on_failure=lambda *_: None, on_corrupt_batch=on_corrupt
        )
    elif any(isinstance(error, CorruptLogError | MalformedRecordError) for error in bad.values()):
        hint = "on_corrupt_batch='skip' (--on-corrupt-batch skip) takes the rest of it"
        reasons = {name: f"{reason}; {hint}" for name, reason in reasons.items()}
    for lost in source.missing_partitions([topic]):
        reasons[str(lost.topic_partition)] = lost.reason
    for name, reason in reasons.items():
        logger.warning(
            "%s is not read whole, and places of its groups may be missing: %s", name, reason
        )
    found = zip(
        *rows.select(["group", "topic", "partition", "offset"]).to_pydict().values(), strict=True
    )
    return CommittedOffsets(
        [GroupOffset(*each) for each in found if each[3] is not None], tuple(reasons)
    )


class Restoration(NamedTuple):
    """The result of `restore`.

    Attributes
    ----------
    partitions : sorted by topic and partition.
    offsets : places of the groups of the lost cluster, sorted; see `offsets_csv`.
    problems : reasons that apply to a whole directory.
    unread_groups : partitions of ``__consumer_offsets`` that cannot be read, or only in part:
        places of groups that they store may be missing.  The log has the reasons.
    """

    partitions: tuple[RestoredPartition, ...]
    offsets: tuple[GroupOffset, ...]
    problems: tuple[str, ...]
    unread_groups: tuple[str, ...] = ()


class Preflight:
    """The check of sources and targets before a restoration; it changes nothing.

    `source`: the log directories of the lost cluster.  `server_properties`: the file with the
    static settings of the targets' brokers.  `leaves_out_replicas`: whether replicas without a
    directory are left out.  `leaves_out_partitions`: whether the target may have more partitions
    than the sources.  `counts`: partitions of topics, as far as the sources know of more than they
    have.  `registered`: topics of which they know all partitions.
    """

    def __init__(
        self,
        source: LogDirectory,
        cluster: TargetCluster,
        *,
        server_properties: str | os.PathLike[str] | None,
        records: RestoredRecords,
        leaves_out_replicas: bool,
        leaves_out_partitions: bool,
        counts: Mapping[str, int],
        registered: Collection[str] = (),
    ) -> None:
        self._counts, self._registered = counts, registered
        self._source, self._cluster, self._records = source, cluster, records
        self._leaves_out_partitions = leaves_out_partitions
        self._leaves_out_replicas = leaves_out_replicas
        self._opened = {each: open_log_dir(each) for each in cluster.directories}
        # One log directory of a broker has the metadata, and a broker that was stopped before
        # others has an older copy.
        self._settings = {
            each: DirectorySettings.read(
                each, None, cluster.holder, server_properties, kafka_defaults=True
            )
            for each in cluster.directories
        }
        known = [each for each in source.paths if metadata_path(each)]
        self._source_settings = (
            DirectorySettings.read(known[0], is_optional=True, needs=()) if known else None
        )

    def plan(self, chosen: Collection[TopicPartition], failures: Failures) -> Restoration:
        """Each partition, with the reasons against its restoration.

        `failures`: is told of each topic that cannot be read; its partitions are left out.
        """
        n_partitions = dict(self._counts)
        for topic, partition in chosen:
            n_partitions[topic] = max(n_partitions.get(topic, 0), partition + 1)
        found = []
        for each in chosen:
            with failures.of(each.topic):
                found.append(self._partition(self._source.log(*each), n_partitions[each.topic]))
        left = (each for each in found if each.topic not in failures.errors)
        return Restoration(tuple(left), (), ())

    def _partition(self, log: Log, n_partitions: int) -> RestoredPartition:
        topic, partition = topic_partition = log.topic_partition
        opened = log.open_transactions(ReadUpTo.LOG_END, self._records.on_corrupt_batch)
        end, n_ended = log.log_end_offset, 0
        if opened and self._records.treatment is OpenTransactions.END:
            n_ended = len(opened)
        elif opened:
            end = log.last_stable_offset(ReadUpTo.LOG_END, self._records.on_corrupt_batch)
        n_left_out = log.log_end_offset - end
        placement, problems = Placement((), ()), self._lacks(topic, n_partitions)
        if not problems:
            placement = self._cluster.place(topic_partition)
            problems = [*self._lacks_of_replicas(topic_partition, placement)]
        if not problems:
            problems = [*self._losses(log, placement), *self._refusals(topic, placement)]
        if opened and self._records.treatment is OpenTransactions.REFUSE:
            problems.append(
                f"a transaction is open since offset {end}, and {n_left_out} offsets follow; "
                "open_transactions (--open-transactions) 'end' leaves out its records, and "
                "'leave-out' leaves out all records from there on"
            )
        found = RestoredPartition(
            topic, partition, log.path, self._cluster.topic_id(topic_partition),
            log.log_start_offset, end, n_ended, n_left_out, log.size_bytes, 0, tuple(problems),
            placement.directories, (), placement.missing,
        )  # fmt: skip
        return found if problems else self._with_earlier_run(found)

    def _lacks(self, topic: str, n_partitions: int) -> list[str]:
        """A topic that the target lacks, or that has another number of partitions."""
        n_known = self._cluster.n_partitions(topic)
        if n_known == n_partitions or (self._leaves_out_partitions and n_known > n_partitions):
            return []
        if n_known > n_partitions and topic not in self._registered:
            reason = (
                f"the topic has {n_known} partitions at the target, and the last one to restore "
                f"is {n_partitions - 1}: if the others are gone, leave them out "
                "(leave_out_partitions, --leave-out-partitions)"
            )
            return [reason]
        have = f"has {n_known} partitions" if n_known else "does not exist"
        make = topics_command(topic, "--create", "", f"--partitions {n_partitions}")
        reason = (
            f"the topic {have} at the target; make it with {n_partitions} ({make}; segmentlog "
            "placement proposes brokers), and stop the brokers again"
        )
        return [reason]

    def _lacks_of_replicas(
        self, topic_partition: TopicPartition, placement: Placement
    ) -> Iterator[str]:
        """Replicas without a directory or with two, and directories of another topic."""
        if not placement.directories or (placement.missing and not self._leaves_out_replicas):
            replicas = self._cluster.partitions[topic_partition]["replicas"]
            yield (
                f"the metadata assigns it to brokers {_listed(replicas)}, and the targets are "
                f"directories of brokers {_listed(self._cluster.nodes)}: add the log directory "
                f"of broker {_listed(placement.missing)} that is to have it (--to), or leave "
                "these replicas out (leave_out_replicas, --leave-out-replicas)"
            )
        yield from placement.problems
        topic_id = self._cluster.topic_id(topic_partition)
        for each in placement.directories:
            path = partition_path(each, topic_partition)
            try:
                check_partition_path(path)
            except LogDirectoryError as error:
                yield str(error)
                continue
            known = known_topic_id(path)
            if known and known != topic_id:
                yield (
                    f"{path} belongs to a topic with the id {known}, and the metadata has the id "
                    f"{topic_id}: start the broker once, so that it moves the directory aside"
                )

    def _losses(self, log: Log, placement: Placement) -> list[str]:
        """Settings of the topic that would delete records."""
        problems = []
        skips = self._records.on_corrupt_batch == OnCorruptBatch.SKIP
        times = [each.largest_timestamp(skips=skips) for each in log.untorn_segments]
        since, until = self._records.times_ms
        # A segment is as old as its newest record, within the records that are restored.
        ages = [min(each, until) for each in times if each >= max(since, 0)]
        topic = log.topic_partition.topic
        for each in placement.directories:
            config = self._settings[each].config(topic)
            if "compact" in config.cleanup_policy and not self._was_compacted(topic):
                problems.append(
                    "cleanup.policy is compact, and the lost cluster kept all records: the broker "
                    "would remove all but the last record of each key; set cleanup.policy=delete "
                    "for the topic"
                )
            if "delete" not in config.cleanup_policy:
                continue
            if config.retention_ms >= 0 and ages:
                oldest_kept = time.time_ns() // 1_000_000 - config.retention_ms
                n_old = sum(age < oldest_kept for age in ages)
                if n_old:
                    is_all = n_old == len(ages)
                    which = "all records" if is_all else "records of its first segments"
                    problems.append(
                        f"retention.ms is {config.retention_ms}, and {which} are older: the "
                        "broker would delete them within minutes; set retention.ms=-1 for the "
                        "topic, or name the broker's server.properties if it has another default"
                    )
            if 0 <= config.retention_bytes < log.size_bytes:
                problems.append(
                    f"retention.bytes is {config.retention_bytes}, and the log has "
                    f"{log.size_bytes} bytes: the broker would delete its first segments; set "
                    "retention.bytes=-1 for the topic"
                )
        return [*dict.fromkeys(problems)]

    def _refusals(self, topic: str, placement: Placement) -> Iterator[str]:
        """Settings of the topic with which the target takes no such records."""
        accepted = min(
            self._settings[each].config(topic).max_message_bytes for each in placement.directories
        )
        allowed = self._most_message_bytes(topic)
        if allowed > accepted:
            yield (
                f"max.message.bytes is {accepted}, and the lost cluster took records of up to "
                f"{allowed} bytes: set max.message.bytes={allowed} for the topic"
            )
        if self._cluster.setting(topic, "remote.storage.enable") == "true":
            yield (
                "remote.storage.enable is true: the broker would move the restored segments into "
                "its tier; make the topic without it, and set it after the restoration"
            )

    def _was_compacted(self, topic: str) -> bool:
        """Whether the lost cluster compacted the topic, or nothing shows whether it did."""
        known = self._source_settings
        return known is None or "compact" in known.config(topic).cleanup_policy

    def _most_message_bytes(self, topic: str) -> int:
        """``max.message.bytes`` of the lost cluster's topic; 0 if it is not known."""
        known = self._source_settings
        return known.config(topic).max_message_bytes if known else 0

    def _with_earlier_run(self, found: RestoredPartition) -> RestoredPartition:
        """The partition, with what an earlier run has restored of it.

        A run that was killed may have written some of the replicas, and the log of the sources may
        have grown since.
        """
        topic_partition = found.topic_partition
        ends = {
            each: log.log_end_offset
            for each in found.directories
            if topic_partition in self._opened[each].topic_partitions()
            and (log := self._opened[each].log(*topic_partition)).log_end_offset
        }
        if not ends:
            return found
        whole = []
        for each in ends:
            log = self._opened[each].log(*topic_partition)
            problem, has_more = goes_on_from(self._records, found, log)
            if problem:
                return found._replace(problems=(*found.problems, problem))
            if not has_more:
                whole.append(each)
        return found._replace(
            restored_before=tuple(whole),
            continued_at=tuple(ends.get(each, 0) for each in found.directories),
        )


def goes_on_from(records: RestoredRecords, found: RestoredPartition, own: Log) -> tuple[str, bool]:
    """Why a log at the target cannot be continued, or else whether records are to follow.

    Both have the same records where both have offsets: the log of the sources may have lost older
    ones to retention since.
    """
    from segmentlog.maintain.verification.compare import AS_STORED, COMPARED, digest_of

    at, end = found.topic_partition, own.log_end_offset
    has = f"{own.path} has offsets up to {end}"
    first = max(records.start_of(at, found.offsets), own.log_start_offset)
    is_before = is_after = False

    def shared() -> "Iterator[pa.RecordBatch]":
        nonlocal is_before, is_after
        for batch in records.of(at, found.offsets):
            begin, stop = batch["offset"].to_numpy().searchsorted([first, end]).tolist()
            is_before |= begin > 0
            if begin < stop:
                yield batch.select([*COMPARED]).slice(begin, stop - begin)
            if stop < len(batch):
                is_after = True
                return

    wanted = digest_of(shared())
    if is_before:
        problem = (
            f"{has}, and begins at {own.log_start_offset}, after the first record to restore: "
            "give the time from which on records are wanted (since, --since)"
        )
        return problem, False
    if first >= end:
        others, cause = f"no record in common with the log, whose records begin at {first}", ""
    else:
        bounds = own.bounds(first, end, read_up_to=ReadUpTo.LOG_END)
        with own.scan_offsets(bounds, COMPARED, AS_STORED) as batches:
            there = digest_of(batches)
        if there == wanted:
            return "", is_after
        others, cause = "other records", _why_others(there[0], wanted[0])
    problem = (
        f"{has}, and {others}: {cause}only an empty partition, or one of an earlier restoration "
        "of the same log, can take the offsets of another log"
    )
    return problem, False


def _why_others(n_there: int, n_wanted: int) -> str:
    """Why a target may have another number of records than the log, at the same offsets."""
    if n_there == n_wanted:
        return ""
    place = "the log" if n_wanted < n_there else "the target"
    return (
        f"of the same offsets, the target has {n_there} records, and the log {n_wanted}: if the "
        f"target is an earlier restoration, {place} was compacted, or records were erased there, "
        "since then; to restore the log as it is now, delete the topic at the target and make it "
        "again: "
    )


def _n_bytes_from(partition: RestoredPartition, offset: int) -> int:
    """About the bytes of the records from an offset on: records are taken to be of one size."""
    start, end = partition.offsets
    share = (end - max(offset, start)) / max(end - start, 1)
    return int(partition.n_bytes * min(max(share, 0.0), 1.0))


def lacks_of_room(found: Collection[RestoredPartition]) -> Iterator[str]:
    """Disks of the targets without room for their replicas."""
    needed: dict[int, int] = defaultdict(int)
    paths: dict[int, str] = {}
    for partition in found:
        for each, at in partition.begins_at.items():
            if not partition.problems:
                disk = device_of(each)
                paths.setdefault(disk, each)
                needed[disk] += _n_bytes_from(partition, at)
    for disk, path in paths.items():
        free = shutil.disk_usage(path).free
        if needed[disk] > free:
            yield (
                f"the logs have {needed[disk]} bytes, and the disk of {path} has {free} free bytes"
            )


def _listed(nodes: Collection[int]) -> str:
    return ", ".join(map(str, nodes))


@one_dialect()
@storage_errors()
def propose_placement(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    to: str | os.PathLike[str],
    replication_factor: int,
    topics: str | Collection[str] = (),
    next_int: NextInt = random.randrange,
) -> dict[str, list[list[int]]]:
    """Brokers for the partitions of topics that a cluster lacks, as its controller chooses them.

    Racks and fenced brokers count (`segmentlog.cluster.placement`).  If all brokers are
    fenced, the cluster is stopped, and all of them count.

    Parameters
    ----------
    path, more : log directories with the topics.
    to : a log directory with the metadata of the cluster that is to get them.
    replication_factor : number of replicas of each partition.
    topics : one or several; by default all but brokers' own.  Topics that the cluster has are left
        out.
    next_int : returns a random number that is at least 0 and below its argument.

    Returns
    -------
    dict of str to list of list of int
        For each partition of each topic the ids of brokers, the preferred leader first; see
        `creation_commands` and `reassignment_json`.

    Raises
    ------
    LogDirectoryError
        If a path is not a log directory, or if `to` has no metadata; if a directory is named as
        one of more than a million partitions.
    OptionError
        If the cluster has fewer brokers than `replication_factor`.
    UnknownTopicOrPartitionError
        If the sources lack one of `topics`.
    MalformedRecordError, CorruptLogError, StorageError
        If the metadata, or a directory, cannot be read.
    """
    names = topic_names("topics", topics)
    whole_number("replication_factor", replication_factor, 1)
    source = open_replicas(path, *more)
    cluster = TargetCluster([], [local_path(to)])
    n_partitions: dict[str, int] = {}
    for topic, partition in partitions_of(source, names):
        if topic not in TOPICS_OF_BROKERS and not cluster.n_partitions(topic):
            if partition >= MOST_PARTITIONS:
                reason = (
                    "no topic of Kafka has so many partitions: move the directory out of the log "
                    "directory, or name the topics to place"
                )
                raise LogDirectoryError(source.log(topic, partition).path, reason)
            n_partitions[topic] = max(n_partitions.get(topic, 0), partition + 1)
    brokers = cluster.brokers()
    return {
        topic: place_replicas(brokers, number, replication_factor, next_int)
        for topic, number in sorted(n_partitions.items())
    }


def _checked_placement(placement: object) -> Mapping[str, list[list[int]]]:
    """A placement as `propose_placement` returns it; `OptionError` for anything else."""
    accepted = "give what propose_placement returns: by topic, the brokers of each partition"
    found = dict[str, list[list[int]]]()
    instance_of("placement", placement, Mapping, accepted)
    for topic, partitions in cast("Mapping[object, object]", placement).items():
        if not isinstance(topic, str) or not isinstance(partitions, list | tuple):
            raise refused("placement", placement, accepted)
        if not all(isinstance(each, list | tuple) and each for each in partitions):
            raise refused("placement", placement, accepted)
        found[topic] = [
            [
                whole_number("placement", node, most=LARGEST_INT, what="ids of brokers")
                for node in each
            ]
            for each in partitions
        ]
    return found


@one_dialect()
def creation_commands(placement: Mapping[str, Sequence[Sequence[int]]]) -> list[str]:
    """The arguments of ``kafka-topics.sh`` that make each topic so.

    Parameters
    ----------
    placement : as `propose_placement` returns it.

    Returns
    -------
    list of str
        With ``BOOTSTRAP`` to be replaced.
    """
    return [
        topics_command(
            topic,
            "--create",
            "",
            "--replica-assignment",
            ",".join(":".join(map(str, replicas)) for replicas in partitions),
        )
        for topic, partitions in _checked_placement(placement).items()
    ]


@one_dialect()
def reassignment_json(placement: Mapping[str, Sequence[Sequence[int]]]) -> str:
    """The file that ``kafka-reassign-partitions.sh`` takes, for topics that exist.

    Parameters
    ----------
    placement : as `propose_placement` returns it.
    """
    partitions = [
        {"topic": topic, "partition": partition, "replicas": [*replicas]}
        for topic, found in _checked_placement(placement).items()
        for partition, replicas in enumerate(found)
    ]
    return json.dumps({"version": 1, "partitions": partitions})
