"""Restore topics of a lost cluster on the brokers of another one, after a check of both.

Records keep their offsets, times and headers.  They are written, and not copied as files: a broker
moves a partition aside whose topic id it does not know, and followers cut batches whose leader
epoch lies beyond that of their leader.  So the partitions of the target have the topic ids and
leader epochs of the target, and the records come into them in one atomic commit for each log
directory.  Producer ids of the lost cluster do not come along: the target gives the same numbers
to other producers.  Aborted records and end markers are left out, so that their offsets are gaps.
So an open transaction can be ended as a coordinator would abort it: its records are left out, and
no marker is needed.

The replicas of a partition are written side by side, from the same rows and with the same leader
epoch, and are identical byte by byte.  A run that was killed between the commits of two
directories is repeated: a replica that has exactly the records stays, and the others are written.
If the log of the sources has grown since, a replica goes on where it ends: then the same records
may be in other batches than in a replica that is written in one run.

Each topic is restored by itself: one that cannot be restored stops no other.

All targets are held from the check until the last commit.  So no other writer, and no broker, can
change what the check has found.

Rules: ``LogManager`` (stray partitions), KIP-101, ``ConsumerGroupCommand`` (``--from-file``).
"""

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Unpack

import numpy as np

from segmentlog.arguments import (
    instance_of,
    is_frame,
    one_dialect,
    one_of,
    path_text,
    path_texts,
    refused,
    takes,
    topic_names,
)
from segmentlog.cluster.directory_settings import read_partition_counts
from segmentlog.cluster.placement import TargetCluster, node_of
from segmentlog.cluster.replicated import open_replicas
from segmentlog.declared import Declared
from segmentlog.errors import LogDirectoryError, OptionError, SegmentLogError
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT, partition_path
from segmentlog.log.checkpoint import read_leader_epochs, write_leader_epochs
from segmentlog.maintain.restoration.plan import (
    TOPICS_OF_BROKERS,
    GroupOffset,
    OpenTransactions,
    Preflight,
    Restoration,
    RestoredPartition,
    RestoredRecords,
    committed_offsets,
    lacks_of_room,
)
from segmentlog.model import (
    OnCorruptBatch,
    TopicPartition,
)
from segmentlog.operation_options import DeletedTopicsOptions, FailureOptions, ReplicaOptions
from segmentlog.reads.choose import missing_of, only_in_a_tier, partitions_of
from segmentlog.reads.cluster_image import ClusterMetadata
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.durable import OutputFile
from segmentlog.store.paths import identity_of, local_path, refuse_overlap
from segmentlog.store.system_errors import Failures, in_words, storage_errors
from segmentlog.times import Time
from segmentlog.txn.change import HeldDirectory, hold, take
from segmentlog.txn.topics import create_replicas

if TYPE_CHECKING:
    from segmentlog.maintain.offset_map import OffsetMapWriter
    from segmentlog.writes.writer import LogWriter

logger = logging.getLogger(__name__)

_MOST_NAMED = 100  #: partitions of a topic that an error names


class RestoreOptions(ReplicaOptions, DeletedTopicsOptions, FailureOptions, total=False):
    """Those of `segmentlog.restore`.

    Parameters
    ----------
    since, until : times, as `Log.scan` takes them: only records between them are restored, and
        groups that stood before them stand at the first record.
    server_properties : the file with the static settings of the target's brokers, such as
        ``log.retention.ms``.  Without it, Kafka's defaults count.
    open_transactions : the treatment of open transactions: ``refuse`` makes them a problem,
        ``end`` aborts them, as their coordinator does after a timeout, and ``leave-out`` leaves
        out all records from the beginning of the first one on, also those of other producers.
    offset_map : a Parquet file that gets the old and the new offset of each record.  It gets its
        name, and replaces the file of an earlier run, after the last commit; a run that fails
        leaves the earlier file.  `segmentlog.maintain.offset_map` describes it.
    on_failure : called with the name of each topic that cannot be restored, and its error; the
        others are restored.  Without it, the first of these errors is raised at the end.
    """

    since: Annotated[Time | None, Declared(help="Only records at or after this time.")]
    until: Annotated[Time | None, Declared(help="Only records before this time.")]
    open_transactions: Annotated[OpenTransactions | str, Declared(default=OpenTransactions.REFUSE)]
    offset_map: str | os.PathLike[str] | None


@takes(RestoreOptions)
@storage_errors()
def restore(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    to: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    topics: str | Collection[str] = (),
    **options: Unpack[RestoreOptions],
) -> Restoration:
    """Restore topics on the stopped brokers of another cluster.

    The topics must exist at the target, with the same number of partitions and without records, or
    with those of an earlier restoration of the same logs: then the later records follow.  In one
    log directory, all partitions of a topic are restored or none is, and a topic that cannot be
    restored stops no other.  After a kill, the restoration has to be repeated before a broker
    starts.

    Parameters
    ----------
    path, more : log directories of the lost cluster's brokers; `open_replicas` chooses the logs.
    to : log directories of the target's brokers, which are stopped.  Each replica is written into
        the directory that the target's metadata assigns to it.
    topics : one or several; all but brokers' own by default.
    **options : those of `RestoreOptions`.

    Returns
    -------
    Restoration
        Of the topics that are restored, or of all topics in a dry run; with the places of groups,
        if the sources have ``__consumer_offsets``.

    Raises
    ------
    LogDirectoryError
        If there is a problem, and this is not a dry run; if the target has no metadata, or a path
        is not a log directory.
    OptionError
        If one of `topics` is a topic of brokers; if `since` or `until` is not a time; if
        `open_transactions` is not one of the three words; if `to` is empty, or names a directory
        twice; if `offset_map` is a directory, or its directory does not exist.
    UnknownTopicOrPartitionError
        If the sources lack one of `topics`.
    LogLockedError
        If a broker or a writer holds one of the targets.
    CorruptLogError, MalformedRecordError, CorruptCheckpointError, UnsupportedFormatError
        If a log, or the metadata of the target, cannot be read.
    CommitInDoubtError, SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    names = topic_names("topics", topics)
    on_corrupt = one_of("on_corrupt_batch", options["on_corrupt_batch"], OnCorruptBatch)
    treatment = one_of("open_transactions", options["open_transactions"], OpenTransactions)
    for name in names:
        if name in TOPICS_OF_BROKERS:
            accepted = "give topics of applications: brokers write their own topics by themselves"
            raise OptionError("topics", name, accepted)
    failures = Failures(options["on_failure"])
    source = open_replicas(path, *more, include_deleted_topics=options["include_deleted_topics"])
    records = RestoredRecords(source, (options["since"], options["until"]), treatment, on_corrupt)
    directories = _targets(to, source)
    chosen = [each for each in partitions_of(source, names) if each.topic not in TOPICS_OF_BROKERS]
    for partition, offsets in only_in_a_tier(source, chosen).items():
        logger.warning(
            "%s: offsets [%d, %d) are only in its tier, and are not restored", partition, *offsets
        )
    counts, registered = _counts(source, chosen)
    return restore_chosen(
        source,
        chosen,
        directories,
        records,
        options,
        counts=counts,
        registered=registered,
        offset_map=options["offset_map"],
        failures=failures,
    )


def _counts(
    source: LogDirectory, chosen: Sequence[TopicPartition]
) -> tuple[dict[str, int], Collection[str]]:
    """The partitions of topics, by all that the sources know: directories, checkpoints, metadata.

    And the topics that the metadata has.  A topic with fewer partitions would put keys elsewhere
    than the lost one.
    """
    topics, counts = {each.topic for each in chosen}, dict[str, int]()
    known = [each.topic_partition for each in missing_of(source, topics)]
    for topic, partition in (*chosen, *known):
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    try:
        registered = read_partition_counts(ClusterMetadata(source.paths))
    except (SegmentLogError, OSError) as error:
        logger.warning("partitions that no source has are not known: %s", in_words(error))
        registered = {}
    counts = {topic: max(n, registered.get(topic, 0)) for topic, n in counts.items()}
    return counts, registered.keys()


def restore_chosen(
    source: LogDirectory,
    chosen: Sequence[TopicPartition],
    directories: Sequence[str],
    records: RestoredRecords,
    options: ReplicaOptions,
    *,
    counts: Mapping[str, int],
    failures: Failures,
    registered: Collection[str] = (),
    offset_map: str | os.PathLike[str] | None = None,
) -> Restoration:
    """Restore partitions of a view of logs; the arguments are those of `restore`.

    `directories`: of the targets, which are checked.  `counts`, `registered`: as of
    `Preflight`.
    """
    with ExitStack() as stack:
        map_file = None
        if offset_map is not None and not options["dry_run"]:
            map_file = stack.enter_context(OutputFile("offset_map", offset_map))
        # All processes take the locks in one order, so two restorations never wait for each other.
        held = {
            directory: stack.enter_context(
                take(directory, options["lock_timeout_seconds"], dry_run=True)
                if options["dry_run"]
                else hold(directory, options["lock_timeout_seconds"])
            )
            for directory in sorted(directories, key=os.path.realpath)
        }
        holder = options["target_metadata"]
        holders = directories if holder is None else [local_path(holder)]
        cluster = TargetCluster(directories, holders)
        plan = Preflight(
            source,
            cluster,
            server_properties=options["server_properties"],
            records=records,
            leaves_out_replicas=options["leave_out_replicas"],
            leaves_out_partitions=options["leave_out_partitions"],
            counts=counts,
            registered=registered,
        ).plan(chosen, failures)
        absent = (
            {} if options["leave_out_partitions"] else absent_partitions(source, chosen, counts)
        )
        committed = committed_offsets(source, records.on_corrupt_batch)
        plan = plan._replace(
            offsets=_group_offsets(committed.offsets, plan.partitions),
            problems=tuple(problem for found in absent.values() for problem in found),
            unread_groups=committed.unread,
        )
        if options["dry_run"]:
            failures.end()
            room = lacks_of_room(plan.partitions)
            return plan._replace(problems=(*room, *plan.problems))
        by_topic: dict[str, list[RestoredPartition]] = {}
        for each in plan.partitions:
            by_topic.setdefault(each.topic, []).append(each)
        where, fitting = ", ".join(directories), list[RestoredPartition]()
        for topic, partitions in [*by_topic.items()]:
            problems = [*absent.get(topic, ())]
            for each in partitions:
                problems += [f"{each.topic_partition}: {problem}" for problem in each.problems]
            # The topics share the disks: one that does not fit beside those before it is left out.
            problems = problems or [*lacks_of_room([*fitting, *partitions])]
            if problems:
                reason = f"cannot take the records: {'; '.join(problems)}"
                failures.add(topic, LogDirectoryError(where, reason))
                del by_topic[topic]
            else:
                fitting += partitions
        # The order on the disk is: the rows of the map under a temporary name, the records, the
        # name of the map.  So a full disk is noticed before a record is visible, and a run that
        # fails leaves the map of an earlier run.  After a kill before the last step, the
        # restoration is repeated, and the map is written again.
        work = _Work(records, cluster, held, options["on_records"], options["on_phase"])
        restored = work.restore(by_topic, map_file, failures)
        plan = plan._replace(partitions=tuple(restored), problems=())
        placed = _placed(plan)
        if failures.errors and restored:
            done = ", ".join(dict.fromkeys(each.topic for each in restored))
            logger.warning("%s: restored, although other topics have failed", done)
        failures.end()
        return placed


def _targets(
    to: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], source: LogDirectory
) -> list[str]:
    """The log directories of the target: different ones, and apart from the sources."""
    given = path_texts("to", to)
    directories = [local_path(each) for each in given]
    if not directories:
        raise OptionError("to", "", "give the log directory of at least one broker")
    seen = set()
    for each in directories:
        refuse_overlap(each, source.paths)
        if identity_of(each) in seen:
            raise OptionError("to", each, "give each log directory once")
        seen.add(identity_of(each))
        node_of(each)  # before a lock file is made in a directory that is not a broker's
    return directories


def absent_partitions(
    source: LogDirectory, chosen: Collection[TopicPartition], counts: Mapping[str, int]
) -> dict[str, list[str]]:
    """Partitions of the chosen topics that the sources lack, in words, by topic.

    `counts`: the partitions of each topic, as far as more are known than the sources have.
    """
    topics = {each.topic for each in chosen}
    lost = {each.topic_partition for each in missing_of(source, topics)}
    found: dict[str, list[str]] = {}
    for topic in sorted(topics):
        held = {each.partition for each in chosen if each.topic == topic}
        n_partitions = max(max(held) + 1, counts.get(topic, 0))
        # The name of one directory may stand for two thousand million partitions.
        gaps = (each for each in range(n_partitions) if each not in held)
        absent = {TopicPartition(topic, each) for each in islice(gaps, _MOST_NAMED)}
        absent |= {each for each in lost if each.topic == topic}
        hint = "leave out what is gone (leave_out_partitions, --leave-out-partitions)"
        words = [
            f"{each} is not in the sources: add the directory of a broker that has it, or {hint}"
            for each in sorted(absent)
        ]
        more = n_partitions - len(held) - _MOST_NAMED
        if more > 0:
            words.append(f"{more} more partitions of {topic} are not in the sources")
        if words:
            found[topic] = words
    return found


class _Work:
    """What a restoration writes, topic by topic, into directories that are held."""

    def __init__(
        self,
        records: RestoredRecords,
        cluster: TargetCluster,
        held: Mapping[str, HeldDirectory],
        on_records: Callable[[int], object],
        on_phase: Callable[[str], object],
    ) -> None:
        self._records, self._cluster, self._held = records, cluster, held
        self._on_records, self._on_phase = on_records, on_phase
        self._uncommitted = ""  # a topic whose rows are in the map already

    def restore(
        self,
        by_topic: Mapping[str, Sequence[RestoredPartition]],
        map_file: OutputFile | None,
        failures: Failures,
    ) -> list[RestoredPartition]:
        """Restore each topic; the partitions of those that have not failed.

        The map is published, unless it has rows of a topic whose commit has failed.
        """
        from segmentlog.maintain.offset_map import OffsetMapWriter

        restored, spoiled = [], list[str]()
        with nullcontext() if map_file is None else OffsetMapWriter(map_file.file) as offset_map:
            for topic, partitions in by_topic.items():
                self._uncommitted = ""
                with failures.of(topic):
                    restored += self._topic(partitions, map_file, offset_map)
                if self._uncommitted:
                    spoiled.append(topic)
        if map_file is None or not restored:
            return restored
        if spoiled:
            logger.warning(
                "no offset map is written, because the commit of %s has failed: restore again",
                ", ".join(spoiled),
            )
            return restored
        try:
            map_file.finish()
            map_file.publish()
        except BaseException:
            logger.warning("the records are restored, without the offset map: restore again")
            raise
        return restored

    def _topic(
        self,
        partitions: Sequence[RestoredPartition],
        map_file: OutputFile | None,
        offset_map: "OffsetMapWriter | None",
    ) -> list[RestoredPartition]:
        """Make the partitions, write all replicas, and commit one directory after the other."""
        from segmentlog.maintain.offset_map import map_part

        self._make_replicas(partitions)
        directories = dict.fromkeys(each for found in partitions for each in found.directories)
        restored = []
        with ExitStack() as stack:
            writers = {
                each: stack.enter_context(writer_into(self._held[each])) for each in directories
            }
            # A topic that fails leaves no rows in the map.
            part = None if offset_map is None else stack.enter_context(map_part())
            for each in partitions:
                begins = [(writers[name], at) for name, at in each.begins_at.items()]
                self._on_phase(f"{each.topic_partition}: copies")
                places = None if part is None else part.places
                restored.append(append_to(begins, self._records, each, places, self._on_records))
            if offset_map is not None and part is not None and map_file is not None:
                self._uncommitted = partitions[0].topic
                part.join(self._uncommitted, offset_map)
                map_file.finish()
            self._on_phase("the logs become visible")
            _commit(writers)
            self._uncommitted = ""
        return restored

    def _make_replicas(self, partitions: Sequence[RestoredPartition]) -> None:
        """Make the partitions that brokers have not made yet, and give all replicas one epoch.

        It is that of an earlier run, or the current one.  A leader writes its epoch before it
        appends.  Followers that were never in touch with a leader have none, and their batches
        would differ.
        """
        made: dict[str, dict[TopicPartition, str]] = {}
        for each in partitions:
            for directory, at in each.begins_at.items():
                if not at:
                    made.setdefault(directory, {})[each.topic_partition] = each.topic_id or ""
        for directory, topic_ids in made.items():
            create_replicas(directory, topic_ids)
        changed = set()
        for each in partitions:
            ends = dict(zip(each.directories, each.continued_at, strict=False))
            known = {
                directory: read_leader_epochs(_epochs_path(directory, each))
                for directory, end in ends.items()
                if end
            }
            current = int(self._cluster.partitions[each.topic_partition]["leader_epoch"])
            epoch = max((found[-1][0] for found in known.values() if found), default=current)
            for directory in each.begins_at:
                if directory not in known:
                    write_leader_epochs(_epochs_path(directory, each), [(epoch, 0)])
                elif not known[directory] or known[directory][-1][0] < epoch:
                    after = [*known[directory], (epoch, ends[directory])]
                    write_leader_epochs(_epochs_path(directory, each), after)
                changed.add(directory)
        for directory in changed:
            self._held[directory].forget_checkpoints()


def _epochs_path(directory: str, partition: RestoredPartition) -> str:
    path = partition_path(directory, partition.topic_partition)
    return os.path.join(path, LEADER_EPOCH_CHECKPOINT)


def writer_into(
    held: HeldDirectory, topic: str | None = None, n_partitions: int | None = None
) -> "LogWriter":
    """A writer of rows that keep their places, for a directory that stays held.

    `topic`: of all rows; by default each row names its own.  `n_partitions`: of a topic that does
    not exist; without it, none is created.
    """
    from segmentlog.writes.config import ProducerConfig, WriteRequest
    from segmentlog.writes.job import WriteJob  # the compiled kernels load here
    from segmentlog.writes.writer import LogWriter

    request = WriteRequest(
        held.directory,
        ProducerConfig().preserving(),
        topic=topic,
        num_partitions=n_partitions,
        auto_create_topics=n_partitions is not None,
    )
    return LogWriter(lambda _: WriteJob.begin(request, held), held=held)


def _commit(writers: "dict[str, LogWriter]") -> None:
    committed: list[str] = []
    for directory, writer in writers.items():
        try:
            writer.close()
        except BaseException:
            if committed:
                logger.warning(
                    "%s may lack the records, and %s has them: restore again before a broker "
                    "starts, and the other directories get them",
                    directory,
                    ", ".join(committed),
                )
            raise
        committed.append(directory)


def append_to(
    writers: "Sequence[tuple[LogWriter, int]]",
    records: RestoredRecords,
    partition: RestoredPartition,
    offset_map: "OffsetMapWriter | None",
    on_records: Callable[[int], object],
) -> RestoredPartition:
    """Append the records of a partition to its replicas, and note their offsets.

    `writers`: each with the offset from which on its replica gets records.
    """
    from segmentlog.format.records.columns import with_times  # the compiled kernels load here

    topic, number = partition.topic_partition
    least = min((at for _, at in writers), default=0)
    n_records, end = 0, 0
    for batch in records.of(partition.topic_partition, partition.offsets, on_records):
        timed, offsets = with_times(batch), batch["offset"].to_numpy()
        for writer, at in writers:
            first = int(np.searchsorted(offsets, at))
            if first < len(offsets):
                writer.append(timed.slice(first))
        n_records += int((offsets >= least).sum())
        if len(offsets):
            end = int(offsets[-1]) + 1
        if offset_map is not None:
            places = np.full(len(offsets), number, np.int32)
            offset_map.add(topic, places, offsets, places, offsets)  # each keeps its offset
    if offset_map is not None:
        offset_map.end(topic, {number: partition.log_end_offset}, {number: end})
    return partition._replace(n_records=n_records)


def _placed(plan: Restoration) -> Restoration:
    """The restoration, with the places of groups within the logs of the target."""
    opened = {
        each: open_log_dir(each) for each in {found.directories[0] for found in plan.partitions}
    }
    logs = {
        each.topic_partition: opened[each.directories[0]].log(*each.topic_partition)
        for each in plan.partitions
    }
    offsets = []
    for place in plan.offsets:
        log = logs.get(TopicPartition(place.topic, place.partition))
        if log is None:  # of a topic that has failed
            continue
        offset = min(max(place.offset, log.log_start_offset), log.log_end_offset)
        offsets.append(place._replace(offset=offset))
    return plan._replace(offsets=tuple(offsets))


def _group_offsets(
    committed: Collection[GroupOffset], partitions: Collection[RestoredPartition]
) -> tuple[GroupOffset, ...]:
    """The places of groups in these partitions, within the offsets that are restored."""
    ranges = {each.topic_partition: each.offsets for each in partitions}
    found = []
    for each in committed:
        if bounds := ranges.get(TopicPartition(each.topic, each.partition)):
            offset = min(max(each.offset, bounds.start_offset), bounds.end_offset)
            found.append(each._replace(offset=offset))
    return tuple(sorted(found))


@one_dialect()
def offsets_csv(
    offsets: Collection[GroupOffset], path: str | os.PathLike[str] | None = None
) -> tuple[str, str]:
    """The places of groups as a file for ``kafka-consumer-groups.sh``, and its command line.

    Parameters
    ----------
    offsets : as in a `Restoration`.
    path : where the file is to be; without it, the command line has the word ``FILE`` there.

    Returns
    -------
    text : the lines of the file: group, topic, partition and offset.
    command : the line for a shell that applies the file, with ``BOOTSTRAP`` to be replaced.
    """
    import csv
    import io
    import shlex

    accepted = "give the offsets of a Restoration"
    instance_of("offsets", offsets, Collection, accepted)
    if is_frame(offsets) or not all(isinstance(each, GroupOffset) for each in offsets):
        raise refused("offsets", offsets, accepted)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(offsets)
    file = "FILE" if path is None else path_text("path", path)
    words = ["--bootstrap-server", "BOOTSTRAP", "--reset-offsets", "--from-file", file]
    for group in sorted({each.group for each in offsets}):
        # A name may begin with a dash, which would be an option.
        words += [f"--group={group}"] if group.startswith("-") else ["--group", group]
    return text.getvalue(), f"kafka-consumer-groups.sh {shlex.join([*words, '--execute'])}"
