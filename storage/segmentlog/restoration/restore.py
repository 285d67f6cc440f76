"""Restore topics of a lost cluster on a broker of another one, after a check of both.

Records keep their offsets, times and headers.  They are written, and not copied as files: a broker
moves a partition aside whose topic id it does not know, and followers cut batches whose leader
epoch lies beyond that of their leader.  So the partitions of the target stay, with their topic ids
and leader epochs, and the records come into them in one atomic commit.  Producer ids of the lost
cluster do not come along: the target gives the same numbers to other producers.  Aborted records
and end markers are left out, so that their offsets are gaps.  So an open transaction can be ended
as a coordinator would abort it: its records are left out, and no marker is needed.

Rules: ``LogManager`` (stray partitions), KIP-101, ``ConsumerGroupCommand`` (``--from-file``).
"""

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from segmentlog.arguments import LARGEST_LONG, LEAST_LONG, one_of, topic_names
from segmentlog.cluster.image import RECORDS, TOPIC, fold
from segmentlog.cluster.metadata_log import metadata_path, read_metadata
from segmentlog.commit.held import take
from segmentlog.disk.paths import local_path
from segmentlog.disk.system_errors import storage_errors
from segmentlog.errors import LogDirectoryError, OptionError
from segmentlog.layout.metadata import read_meta_properties
from segmentlog.layout.partitions import refuse_partition
from segmentlog.logs.choose import missing_of, partitions_of
from segmentlog.logs.log import Log
from segmentlog.logs.log_directory import LogDirectory, open_log_dir
from segmentlog.messages.reader import uuid_text
from segmentlog.model import (
    INTERNAL_TOPICS,
    LOCK_TIMEOUT_SECONDS,
    IsolationLevel,
    ReadUpTo,
    ScanPolicy,
    TopicPartition,
)
from segmentlog.replication.replicated import open_replicas
from segmentlog.settings.directory_settings import DirectorySettings
from segmentlog.times import Time, epoch_milliseconds

if TYPE_CHECKING:
    import pyarrow as pa

    from segmentlog.restoration.offset_map import OffsetMap
    from segmentlog.writes.writer import LogWriter

__all__ = [
    "GroupOffset",
    "OpenTransactions",
    "Restoration",
    "RestoredPartition",
    "offsets_csv",
    "restore",
]

_OFFSETS = "__consumer_offsets"

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


class GroupOffset(NamedTuple):
    """The place of a group in a restored partition: the offset is the one at the target."""

    group: str
    topic: str
    partition: int
    offset: int


class Restoration(NamedTuple):
    """The result of `restore`.

    Attributes
    ----------
    partitions : sorted by topic and partition.
    offsets : places of the groups of the lost cluster, sorted; see `offsets_csv`.
    problems : reasons that apply to the whole directory.
    """

    partitions: tuple[RestoredPartition, ...]
    offsets: tuple[GroupOffset, ...]
    problems: tuple[str, ...]


@storage_errors()
def restore(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    to: str | os.PathLike[str],
    topics: str | Collection[str] = (),
    since: Time | None = None,
    until: Time | None = None,
    target_metadata: str | os.PathLike[str] | None = None,
    server_properties: str | os.PathLike[str] | None = None,
    open_transactions: OpenTransactions | str = OpenTransactions.REFUSE,
    offset_map: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    on_records: Callable[[int], object] = lambda _: None,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
) -> Restoration:
    """Restore topics on a stopped broker of another cluster, all of them or nothing.

    The topics exist at the target, with as many partitions, one replica each, and no records.

    Parameters
    ----------
    path, more : log directories of the lost cluster's brokers; `open_replicas` chooses the logs.
    to : the log directory of the target's broker, which is stopped.
    topics : one or several; all but brokers' own by default.
    since, until : times, as `Log.scan` takes them: only records between them are restored, and
        groups that stood before them stand at the first record.
    target_metadata : the log directory that holds the target's ``__cluster_metadata-0``, if it is
        not `to`.
    server_properties : the file with the static settings of the target's broker, such as
        ``log.retention.ms``.  Without it, Kafka's defaults count.
    open_transactions : by default, an open transaction is a problem.  ``end`` aborts it, as its
        coordinator does after a timeout.  ``leave-out`` leaves out all records at and after its
        beginning, also those of other producers.
    offset_map : a Parquet file that shows where each record is
        (`segmentlog.restoration.offset_map`); it is complete before the records become visible.
    dry_run : whether nothing is changed, and the result has the problems.
    on_records : called with the number of records that were read, as they are.
    lock_timeout_seconds : how long to wait for a writer at the target.

    Returns
    -------
    Restoration
        With the places of groups, if the sources have ``__consumer_offsets``.

    Raises
    ------
    LogDirectoryError
        If there is a problem, and this is not a dry run; if the target has no metadata, or a path
        is not a log directory.
    OptionError
        If one of `topics` is a topic of brokers; if `since` or `until` is not a time; if
        `open_transactions` is not one of the three words.
    UnknownTopicOrPartitionError
        If the sources lack one of `topics`.
    LogLockedError
        If a broker or a writer holds the target.
    CorruptLogError, CorruptCheckpointError, UnsupportedFormatError
        If a log cannot be read.
    CommitInDoubtError, SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    names = topic_names("topics", topics)
    treatment = one_of("open_transactions", open_transactions, OpenTransactions)
    for each in names:
        if each in INTERNAL_TOPICS:
            accepted = "give topics of applications: brokers write their own topics by themselves"
            raise OptionError("topics", each, accepted)
    times_ms = (
        LEAST_LONG if since is None else epoch_milliseconds("since", since),
        LARGEST_LONG if until is None else epoch_milliseconds("until", until),
    )
    source = open_replicas(path, *more)
    directory = local_path(to)
    refuse_partition(directory)
    if os.path.realpath(directory) in {os.path.realpath(each) for each in source.paths}:
        reason = "is a source, too; give the log directory of another cluster's broker"
        raise LogDirectoryError(directory, reason)
    chosen = [each for each in partitions_of(source, names) if each.topic not in INTERNAL_TOPICS]
    with take(directory, lock_timeout_seconds, dry_run=True):
        plan = _Target(directory, target_metadata, server_properties).plan(
            source, chosen, times_ms=times_ms, treatment=treatment
        )
    absent = tuple(_absent(source, chosen))
    plan = plan._replace(
        offsets=_group_offsets(source, plan.partitions), problems=(*plan.problems, *absent)
    )
    if dry_run:
        return plan
    problems = [*plan.problems]
    for partition in plan.partitions:
        name = TopicPartition(partition.topic, partition.partition)
        problems += [f"{name}: {each}" for each in partition.problems]
    if problems:
        reason = f"cannot take the records: {'; '.join(problems)}"
        raise LogDirectoryError(directory, reason)
    rows = _Rows(source, (since, until), treatment, on_records)
    restored = _write(rows, directory, plan, offset_map, lock_timeout_seconds)
    return _placed(restored, open_log_dir(directory))


def _absent(source: LogDirectory, chosen: Collection[TopicPartition]) -> Iterator[str]:
    """Partitions of the chosen topics that the sources lack, in words."""
    topics = {each.topic for each in chosen}
    absent = {each.topic_partition for each in missing_of(source, topics)}
    for topic in topics:
        held = {each.partition for each in chosen if each.topic == topic}
        absent |= {TopicPartition(topic, each) for each in {*range(max(held))} - held}
    for each in sorted(absent):
        yield f"{each} is not in the sources: add the directory of a broker that has it"


class _Rows:
    """The records of the sources that are restored."""

    def __init__(
        self,
        source: LogDirectory,
        times: tuple[Time | None, Time | None],
        treatment: OpenTransactions,
        on_records: Callable[[int], object],
    ) -> None:
        self._source, self._treatment, self._on_records = source, treatment, on_records
        self._since, self._until = times

    def of(self, partition: RestoredPartition) -> "Iterator[pa.RecordBatch]":
        """The records of a partition, in the order of their offsets."""
        from segmentlog.records.schema import record_schema

        log = self._source.log(partition.topic, partition.partition)
        ended: tuple[tuple[int, int], ...] = ()
        isolation_level = IsolationLevel.READ_COMMITTED
        if self._treatment is OpenTransactions.END:
            ended = tuple(log.open_transactions(ReadUpTo.LOG_END).items())
            isolation_level = IsolationLevel.READ_UNCOMMITTED  # the bounds may lie after them
        # A bound by time takes the place of a bound by offset.
        offsets = log.bounds(
            partition.log_start_offset if self._since is None else None,
            partition.log_end_offset if self._until is None else None,
            since=self._since, until=self._until,
            read_up_to=ReadUpTo.LOG_END, isolation_level=isolation_level,
        )  # fmt: skip
        policy = ScanPolicy(IsolationLevel.READ_COMMITTED, ended=ended)
        schema = record_schema(_COLUMNS, include_headers=True)
        with log.scan_offsets(offsets, schema, policy, use_threads=True) as batches:
            for batch in batches:
                yield batch
                self._on_records(batch.num_rows)


def _write(
    rows: _Rows,
    directory: str,
    plan: Restoration,
    offset_map: str | os.PathLike[str] | None,
    lock_timeout_seconds: float,
) -> Restoration:
    from segmentlog.restoration.offset_map import OffsetMap
    from segmentlog.writes.writer import open_writer  # the compiled kernels load here

    found = None if offset_map is None else OffsetMap(offset_map)
    try:
        # The map is complete before the writer commits.
        with (
            open_writer(
                directory, preserve=True, auto_create_topics=False,
                lock_timeout_seconds=lock_timeout_seconds,
            ) as writer,
            found or nullcontext(),
        ):  # fmt: skip
            restored = [_append(rows, each, writer, found) for each in plan.partitions]
    except BaseException:
        if found is not None:
            found.discard()
        raise
    return plan._replace(partitions=tuple(restored))


def _append(
    rows: _Rows, partition: RestoredPartition, writer: "LogWriter", offset_map: "OffsetMap | None"
) -> RestoredPartition:
    """Append the records of a partition, and note their offsets."""
    topic_partition = TopicPartition(partition.topic, partition.partition)
    n_records, end = 0, 0
    for batch in rows.of(partition):
        writer.append(batch)
        n_records += batch.num_rows
        if batch.num_rows:
            end = batch["offset"][-1].as_py() + 1
        if offset_map is not None:
            offset_map.add(topic_partition, batch["offset"].to_numpy())
    if offset_map is not None:
        offset_map.end(topic_partition, partition.log_end_offset, end)
    return partition._replace(n_records=n_records)


def _placed(plan: Restoration, target: LogDirectory) -> Restoration:
    """The restoration, with the places of groups within the logs of the target."""
    logs = {each[:2]: target.log(each.topic, each.partition) for each in plan.partitions}
    offsets = []
    for place in plan.offsets:
        log = logs[place.topic, place.partition]
        offset = min(max(place.offset, log.log_start_offset), log.log_end_offset)
        offsets.append(place._replace(offset=offset))
    return plan._replace(offsets=tuple(offsets))


class _Target:
    """The log directory of a broker, and what its cluster knows about it."""

    def __init__(
        self,
        directory: str,
        metadata: str | os.PathLike[str] | None,
        server_properties: str | os.PathLike[str] | None,
    ) -> None:
        self._directory = directory
        holder = directory if metadata is None else local_path(metadata)
        path = metadata_path(holder)
        if path is None:
            reason = (
                "has no metadata of a cluster (__cluster_metadata-0): name the log directory of "
                "the target that has it as target_metadata"
            )
            raise LogDirectoryError(holder, reason)
        tables = fold(read_metadata(path, {*RECORDS["partitions"], *RECORDS["configs"]})).tables
        self._known: dict[TopicPartition, Mapping[str, Any]] = {
            TopicPartition(each["topic"], each["partition"]): each
            for each in tables["partitions"].values()
        }
        self._has_tier = {
            resource
            for (kind, resource, name), row in tables["configs"].items()
            if kind == TOPIC and name == "remote.storage.enable" and row["value"] == "true"
        }
        node = read_meta_properties(directory).get("node.id")
        self._node_id = int(node) if node and node.isdecimal() else None
        self._settings = DirectorySettings.read(
            directory, None, metadata, server_properties, kafka_defaults=True
        )
        self._opened = open_log_dir(directory)

    def plan(
        self,
        source: LogDirectory,
        chosen: Collection[TopicPartition],
        *,
        times_ms: tuple[int, int],
        treatment: OpenTransactions,
    ) -> Restoration:
        """Each partition, with the reasons against its restoration."""
        n_partitions: dict[str, int] = {}
        for topic, partition in chosen:
            n_partitions[topic] = max(n_partitions.get(topic, 0), partition + 1)
        known = _SourceSettings(source)
        found = tuple(
            self._partition(
                source.log(*each), n_partitions[each.topic], known, times_ms, treatment
            )
            for each in chosen
        )
        needed, free = sum(each.n_bytes for each in found), shutil.disk_usage(self._directory).free
        lacks_room = f"the logs have {needed} bytes, and the disk has {free} free bytes"
        return Restoration(found, (), (lacks_room,) if needed > free else ())

    def _partition(
        self,
        log: Log,
        n_partitions: int,
        source_settings: "_SourceSettings",
        times_ms: tuple[int, int],
        treatment: OpenTransactions,
    ) -> RestoredPartition:
        topic, partition = log.topic_partition
        opened = log.open_transactions(ReadUpTo.LOG_END)
        known = self._known.get(log.topic_partition)
        problems = [*self._assignment(log.topic_partition, known, n_partitions)]
        if not problems:
            problems += self._losses(log, times_ms)
            problems += self._refusals(topic, source_settings)
        end, n_ended = log.log_end_offset, 0
        if opened and treatment is OpenTransactions.END:
            n_ended = len(opened)
        elif opened:
            end = log.last_stable_offset(ReadUpTo.LOG_END)
        n_left_out = log.log_end_offset - end
        if opened and treatment is OpenTransactions.REFUSE:
            problems.append(
                f"a transaction is open since offset {end}, and {n_left_out} offsets follow; "
                "open_transactions (--open-transactions) 'end' leaves out its records, and "
                "'leave-out' leaves out all records from there on"
            )
        return RestoredPartition(
            topic, partition, log.path, uuid_text(known["topic_id"]) if known else None,
            log.log_start_offset, end, n_ended, n_left_out, log.size_bytes, 0, tuple(problems),
        )  # fmt: skip

    def _assignment(
        self, topic_partition: TopicPartition, known: Mapping[str, Any] | None, n_partitions: int
    ) -> list[str]:
        """Reasons in the metadata."""
        topic = topic_partition.topic
        n_known = sum(each.topic == topic for each in self._known)
        if n_known != n_partitions:
            have = f"has {n_known} partitions" if n_known else "does not exist"
            make = f"kafka-topics.sh --create --topic {topic} --partitions {n_partitions}"
            reason = (
                f"the topic {have} at the target; make it with {n_partitions} ({make} "
                "--replication-factor 1), and stop the broker again"
            )
            return [reason]
        if known is not None and known["replicas"] != [self._node_id]:
            brokers = ", ".join(map(str, known["replicas"]))
            reason = (
                f"the metadata assigns it to brokers {brokers}, and this is broker "
                f"{self._node_id}; a restored partition needs one replica, here: add replicas "
                "afterwards (kafka-reassign-partitions.sh)"
            )
            return [reason]
        if topic_partition not in self._opened.topic_partitions():
            return ["it is not in this log directory: start the broker once, so that it is made"]
        return []

    def _losses(self, log: Log, times_ms: tuple[int, int]) -> list[str]:
        """Reasons in the directory and in the settings of the topic."""
        problems = []
        there = self._opened.log(*log.topic_partition)
        if there.log_end_offset:
            problems.append(
                f"the target has offsets up to {there.log_end_offset}: only an empty partition "
                "can take the offsets of another log"
            )
        config = self._settings.config(log.topic_partition.topic)
        times = [each.largest_timestamp() for each in log.untorn_segments]
        since, until = times_ms
        # A segment is as old as its newest record, within the records that are restored.
        ages = [min(each, until) for each in times if each >= max(since, 0)]
        if "delete" in config.cleanup_policy and config.retention_ms >= 0 and ages:
            oldest_kept = time.time_ns() // 1_000_000 - config.retention_ms
            n_old = sum(each < oldest_kept for each in ages)
            if n_old:
                which = "all records" if n_old == len(ages) else "records of its first segments"
                problems.append(
                    f"retention.ms is {config.retention_ms}, and {which} are older: the "
                    "broker would delete them within minutes; set retention.ms=-1 for the topic, "
                    "or name the broker's server.properties if it has another default"
                )
        if "delete" in config.cleanup_policy and 0 <= config.retention_bytes < log.size_bytes:
            problems.append(
                f"retention.bytes is {config.retention_bytes}, and the log has {log.size_bytes} "
                "bytes: the broker would delete its first segments; set retention.bytes=-1 for "
                "the topic"
            )
        return problems

    def _refusals(self, topic: str, source: "_SourceSettings") -> list[str]:
        """Settings of the topic with which the target takes no such records."""
        problems = []
        accepted = self._settings.config(topic).max_message_bytes
        allowed = source.max_message_bytes(topic)
        if allowed > accepted:
            problems.append(
                f"max.message.bytes is {accepted}, and the lost cluster took records of up to "
                f"{allowed} bytes: set max.message.bytes={allowed} for the topic"
            )
        if topic in self._has_tier:
            problems.append(
                "remote.storage.enable is true: the broker would move the restored segments into "
                "its tier; make the topic without it, and set it after the restoration"
            )
        return problems


class _SourceSettings:
    """The settings of the lost cluster, as far as one of its directories has metadata."""

    def __init__(self, source: LogDirectory) -> None:
        found = [each for each in source.paths if metadata_path(each)]
        self._settings = (
            DirectorySettings.read(found[0], None, is_optional=True) if found else None
        )

    def max_message_bytes(self, topic: str) -> int:
        """The setting of a topic; 0 if it is not known."""
        return self._settings.config(topic).max_message_bytes if self._settings else 0


def _group_offsets(
    source: LogDirectory, partitions: Collection[RestoredPartition]
) -> tuple[GroupOffset, ...]:
    """The places of groups in these partitions, within the offsets that are restored."""
    if _OFFSETS not in source.topics(internal=True):
        return ()
    from segmentlog.kafka_tables.open_table import table

    ranges = {
        TopicPartition(each.topic, each.partition): (each.log_start_offset, each.log_end_offset)
        for each in partitions
    }
    rows = table(source, "group_offsets").select(["group", "topic", "partition", "offset"])
    found = [
        GroupOffset(group, topic, partition, min(max(offset, start), end))
        for group, topic, partition, offset in zip(*rows.to_pydict().values(), strict=True)
        if (topic, partition) in ranges and offset is not None
        for start, end in [ranges[TopicPartition(topic, partition)]]
    ]
    return tuple(sorted(found))


def offsets_csv(offsets: Collection[GroupOffset]) -> tuple[str, str]:
    """The places of groups as a file for ``kafka-consumer-groups.sh``, and its command line.

    Parameters
    ----------
    offsets : as in a `Restoration`.

    Returns
    -------
    text : the lines of the file: group, topic, partition and offset.
    command : the arguments that apply the file, with ``FILE`` and ``BOOTSTRAP`` to be replaced.
    """
    import csv
    import io
    import shlex

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(offsets)
    groups = sorted({each.group for each in offsets})
    named = " ".join(f"--group {shlex.quote(each)}" for each in groups)
    command = (
        "kafka-consumer-groups.sh --bootstrap-server BOOTSTRAP --reset-offsets --from-file FILE "
        f"{named} --execute"
    )
    return text.getvalue(), command
