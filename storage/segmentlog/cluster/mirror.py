"""Copy partitions byte by byte into another log directory, which follows as a replica does.

A mirror is one change of the destination (`segmentlog.txn.change`): all of its partitions,
their checkpoints, and the numbered writes and batches of streams in `segmentlog.state` are those
of one moment of the sources, or all are as before.  `segmentlog.cluster.follower` has what is done
for one partition: it compares and copies before the change, and appends and renames in its work.
The effect of the change (`segmentlog.txn.effects.Follow`) exchanges segments if others leave, and
writes the checkpoints.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Annotated, Unpack

from segmentlog.arguments import (
    partition_numbers,
    takes,
    topic_names,
)
from segmentlog.cluster.follower import (
    Follower,
    MirroredPartition,
    differences,
    read_known,
    write_known,
)
from segmentlog.cluster.known_losses import missing_offsets
from segmentlog.cluster.placement import TargetCluster
from segmentlog.cluster.replicated import ReplicatedDirectory, open_replicas
from segmentlog.errors import LogDirectoryError, OptionError
from segmentlog.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    SETTINGS_FILE,
    DirectoryState,
    parse_partition_directory,
    partition_path,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import known_topic_id, read_meta_properties, read_offsets
from segmentlog.model import TopicPartition
from segmentlog.operation_options import (
    BytesOptions,
    DeletedTopicsOptions,
    FailureOptions,
    PhaseOptions,
    WaitOptions,
    dry_run_of,
)
from segmentlog.reads.choose import (
    MissingPartition,
    gone,
    missing_of,
    only_in_a_tier,
    partitions_of,
)
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.reads.metadata_log import metadata_path
from segmentlog.store.durable import make_directory, sync_ancestors
from segmentlog.store.partitions import refuse_partition
from segmentlog.store.paths import is_bucket, parse_bucket, refuse_overlap, writable_path
from segmentlog.store.readable import exists, is_directory, is_url, list_names, status_of
from segmentlog.store.system_errors import Failures, storage_errors
from segmentlog.txn.change import Change, HeldDirectory, hold
from segmentlog.txn.effects import Follow, Followed
from segmentlog.txn.guard import list_guards
from segmentlog.txn.state import State
from segmentlog.txn.topics import check_partition_path

logger = logging.getLogger(__name__)

_MOST_NAMED = 20  #: partitions that a warning names


class MirrorOptions(
    DeletedTopicsOptions, WaitOptions, FailureOptions, BytesOptions, PhaseOptions, total=False
):
    """Those of `segmentlog.mirror`.

    Parameters
    ----------
    assigned : whether only partitions are copied that the cluster's metadata assigns to the broker
        of the destination.  `to` is then a log directory of that broker, by its
        ``meta.properties``.  So each broker of a dead cluster gets its replicas again, all of the
        same log.
    on_partition : called with each result, once all partitions are copied.
    on_failure : called with the name of each partition that cannot be copied, because its log is
        damaged or gone, and its error; the others are copied, and it stays as it was.  Without it,
        the first of these errors is raised at the end.
    """

    assigned: bool
    dry_run: Annotated[bool, dry_run_of("copied and cut")]
    on_partition: Callable[[MirroredPartition], object]


@takes(MirrorOptions)
@storage_errors()
def mirror(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    to: str | os.PathLike[str],
    topics: str | Collection[str] = (),
    partitions: int | Collection[int] = (),
    **options: Unpack[MirrorOptions],
) -> list[MirroredPartition]:
    """Copy partitions byte by byte into another log directory; a killed mirror can be repeated.

    All partitions of the destination move to one moment of the sources together, or none does; one
    that cannot be copied stays as it was, alone.  Warnings name what is left out: the metadata of
    the cluster, settings, offsets that are only in a tier, or that the sources have lost.
    The numbered writes and the batches of streams that the sources have committed count at the
    destination, too.  A broker may run on the sources, but not on the destination.

    Parameters
    ----------
    path, more : log directories of brokers of a cluster; `open_replicas` chooses the log.
    to : a log directory; it is made if it does not exist.  Or the URL of a log in an object store,
        which gets the records below the high watermarks (``storage/docs/bucket.md``).
    topics, partitions : names and numbers; all by default, brokers' own topics, too.
    **options : those of `MirrorOptions`.

    Returns
    -------
    list of MirroredPartition
        Sorted by topic and partition.

    Raises
    ------
    OptionError
        If `partitions` are not numbers.
    LogDirectoryError
        If the destination is one of the sources, lies in one or holds one; if it belongs to
        another cluster; if it has another topic of the name of a partition, or, in a store,
        records that its source lacks; if a path is not a log directory; if `assigned` is set, and
        there is no metadata, the destination has no ``meta.properties``, or another log directory
        of its broker may be meant, too.
    UnknownTopicOrPartitionError
        If the sources lack one of `topics`.
    LogLockedError
        If a broker or a writer holds the destination.
    LogChangedError
        If records of a source were overwritten, or its topic was deleted, since it was listed.
    CorruptLogError, MalformedRecordError, CorruptCheckpointError
        If the end of a log, the metadata, a checkpoint, or the state of a directory cannot be
        read.
    CommitInDoubtError, SyncFailedError, StorageError
        If a disk is full or fails; if a segment has been replaced or cut since it was listed; if
        copied bytes read back as other bytes.
    """
    names = topic_names("topics", topics)
    numbers = partition_numbers(partitions)
    failures = Failures(options["on_failure"])
    source = open_replicas(path, *more, include_deleted_topics=options["include_deleted_topics"])
    missing = missing_of(source, names, numbers)
    chosen = partitions_of(source, names, numbers, missing)
    if not names and not numbers:
        _name_left_out(source)
    in_tiers = only_in_a_tier(source, chosen)
    for each, offsets in in_tiers.items():
        logger.warning(
            "%s: offsets [%d, %d) are only in its tier, and are not copied", each, *offsets
        )
    directory = writable_path(to)
    if is_bucket(directory):
        from segmentlog.cluster.mirror_up import mirror_up  # the compiled kernels load here

        if options["assigned"]:
            accepted = "a log in an object store is no log directory of a broker: leave it out"
            raise OptionError("assigned", "True", accepted)
        _add_gone(missing, failures)
        found = mirror_up(
            parse_bucket(directory)[0],
            source,
            chosen,
            dry_run=options["dry_run"],
            on_bytes=options["on_bytes"],
            on_phase=options["on_phase"],
            failures=failures,
        )
        return _told(found, options["on_partition"], failures)
    _refuse_destination(directory, source.paths)
    if options["assigned"]:
        given = [*chosen, *(each.topic_partition for each in missing)]
        assigned = {*_assigned_of(directory, source, given, names, numbers)}
        chosen = [each for each in chosen if each in assigned]
        missing = [each for each in missing if each.topic_partition in assigned]
    _add_gone(missing, failures)
    # A leader deletes the remote segments below its log start.
    starts = {each: in_tiers[each].start_offset for each in chosen if each in in_tiers}
    is_there = exists(directory)
    if not is_there and not options["dry_run"]:
        make_directory(directory)
        sync_ancestors(directory)
    with contextlib.ExitStack() as stack:
        held = HeldDirectory(directory, dry_run=True)
        if is_there or not options["dry_run"]:
            held = stack.enter_context(
                hold(
                    directory,
                    options["lock_timeout_seconds"],
                    lambda _: TopicConfig(),
                    dry_run=options["dry_run"],
                )
            )
        work = _Mirror(held, source, chosen, options["on_bytes"], failures, options["on_phase"])
        if not options["dry_run"]:
            held.remove_due({each.topic for each in chosen})
        found = work.look() if options["dry_run"] else work.follow(starts)
    return _told(found, options["on_partition"], failures)


def _add_gone(missing: Sequence[MissingPartition], failures: Failures) -> None:
    """Note the partitions of which the sources have an entry of a checkpoint alone."""
    for each in missing:
        failures.add(each.topic_partition, gone(each, ", and it is not copied"))


def _told(
    found: Sequence[MirroredPartition],
    on_partition: Callable[[MirroredPartition], object],
    failures: Failures,
) -> list[MirroredPartition]:
    """The results, with what the sources promise and do not have; a warning names it, too."""
    opened, told = cache(open_log_dir), []
    for each in found:
        missing: tuple[str, ...] = ()
        with failures.of(f"{each.topic}-{each.partition}"):
            # The log of several brokers does not show what one of them has lost.
            own = opened(os.path.dirname(each.source)).log(each.topic, each.partition)
            missing = tuple(missing_offsets(own))
        for reason in missing:
            logger.warning("%s-%d: %s", each.topic, each.partition, reason)
        told.append(each._replace(missing=missing))
        on_partition(told[-1])
    failures.end()
    return told


def _name_left_out(source: LogDirectory) -> None:
    """Name the files of whole directories that no mirror copies."""
    for each in source.paths:
        if is_url(each):
            continue
        if path := metadata_path(each):
            logger.warning(
                "%s is not copied: it has the cluster's topics and their settings, and belongs to "
                "its controllers; for a backup of them, copy that directory, too",
                path,
            )
        if exists(path := os.path.join(each, SETTINGS_FILE)):
            logger.warning(
                "%s is not copied: give the copy settings of its own (segmentlog configure)", path
            )


class _Mirror:
    """All partitions of one mirror."""

    def __init__(
        self,
        held: HeldDirectory,
        source: ReplicatedDirectory,
        chosen: Sequence[TopicPartition],
        on_bytes: Callable[[int], object],
        failures: Failures,
        on_phase: Callable[[str], object],
    ) -> None:
        self._held, self._source, self._failures = held, source, failures
        self._on_phase = on_phase
        self._known = read_known(held.directory)
        # Before the segments are listed: a compaction that comes in between makes more clean.
        cleaned = {each: read_offsets(each, CLEANER_OFFSET_CHECKPOINT) for each in source.paths}
        logs, there = {}, _partition_of_each_topic(held.directory)
        for each in chosen:
            with failures.of(each):
                log = source.log(*each)
                _refuse_partition(held.directory, log, there)
                logs[each] = log
        self._opened: dict[str, LogDirectory] = {}
        self._followers = []
        for each, log in logs.items():
            cleaned_to = cleaned.get(os.path.dirname(log.path), {}).get(each, -1)
            with failures.of(each):
                self._followers.append(
                    Follower(
                        held, log, cleaned_to, self._known.get(each), on_bytes, self._open_now
                    )
                )

    def _open_now(self, path: str) -> LogDirectory:
        # To open it for each of 800 partitions took most of the time of a mirror without news.
        before = self._opened.get(path)
        self._opened[path] = before.refresh() if before else open_log_dir(path)
        return self._opened[path]

    def look(self) -> list[MirroredPartition]:
        """The results of `follow`, without any change."""
        self._leave_out_failures({"compares": Follower.plan})
        return [each.result(sum(each.n_missing()), "") for each in self._followers]

    def _leave_out_failures(self, steps: Mapping[str, Callable[[Follower], object]]) -> None:
        """Prepare each partition; those that fail stay at the destination as they were."""
        prepared = []
        for each in self._followers:
            with self._failures.of(each.log.topic_partition):
                for phase, step in steps.items():
                    self._on_phase(f"{each.log.topic_partition}: {phase}")
                    step(each)
                prepared.append(each)
        self._followers = prepared

    def follow(self, starts: Mapping[TopicPartition, int]) -> list[MirroredPartition]:
        """Copy, and make the change."""
        self._leave_out_failures(
            {
                "begins": Follower.begin,
                "compares": Follower.plan,
                "copies": Follower.stage_segments,
            }
        )
        change = Change.begin(self._held)
        moving = self._moving(starts)
        state = self._followed_state(change.before)
        if moving or _writes_of(state) != _writes_of(change.before):
            self._carry_out(change, moving)
        done = {each.log.topic_partition: each.known_now() for each in self._followers}
        if (known := {**self._known, **done}) != self._known:
            write_known(self._held.directory, known)
        return [each.result(each.n_copied, each.digest()) for each in self._followers]

    def _moving(self, starts: Mapping[TopicPartition, int]) -> list[tuple[Follower, Followed]]:
        """The partitions whose files or checkpoints change, and how they will be."""
        checkpoints = [
            read_offsets(self._held.directory, name)
            for name in (
                LOG_START_CHECKPOINT,
                HIGH_WATERMARK_CHECKPOINT,
                RECOVERY_POINT_CHECKPOINT,
                CLEANER_OFFSET_CHECKPOINT,
            )
        ]
        moving, followers = [], []
        for each in self._followers:
            at = each.log.topic_partition
            with self._failures.of(at):
                found = each.followed(starts.get(at))
                bounds = [found.start, found.high_watermark, found.end, found.cleaned_to]
                if each.is_changed(found) or bounds != [
                    known.get(at, -1) for known in checkpoints
                ]:
                    moving.append((each, found))
                followers.append(each)
        self._followers = followers
        return moving

    def _carry_out(self, change: Change, moving: Sequence[tuple[Follower, Followed]]) -> None:
        """Make the one change of all partitions."""
        directory = self._held.directory
        changed = {found.topic_partition for _, found in moving}
        known = {each: found for each, found in self._known.items() if each not in changed}
        if known != self._known:  # a crash leaves nothing in it that is not so
            write_known(directory, known)
        visible = read_offsets(directory, HIGH_WATERMARK_CHECKPOINT)
        only_appends = not any(each.replaces for each, _ in moving)
        self._bound_readers([each for each, _ in moving], visible)
        self._on_phase("the logs become visible")

        def work(_: object) -> None:
            for each, found in moving:
                each.grow()
                each.place_new()
                each.stage_files(found)

        change.carry_out(
            [each.intent(found, visible, only_appends=only_appends) for each, found in moving],
            [Follow([found for _, found in moving])],
            work,
            is_repeatable=False,
            noted=self._followed_state,
        )
        # If files are exchanged, readers see the old ends until all effects are applied.  If that
        # has failed, it is tried once more, and an error says that the next writer has to do it.
        if list_guards(directory):
            self._held.end_changes()

    def _bound_readers(
        self, followers: Sequence[Follower], visible: Mapping[TopicPartition, int]
    ) -> None:
        """Give logs a high watermark that have none: readers would take the end of the file.

        A writer that died while it made a topic has left partitions that only this checkpoint
        names; the next writer makes them.
        """
        ends = {each.log.topic_partition: each.own_end for each in followers if each.own}
        topics = {each.log.topic_partition.topic for each in followers}
        there = {*self._source.topic_partitions()}
        for path in self._source.paths:
            for each, end in read_offsets(path, HIGH_WATERMARK_CHECKPOINT).items():
                if each.topic in topics and not end and each not in there:
                    ends[each] = 0
        unbounded = {each: end for each, end in ends.items() if each not in visible}
        if unbounded:
            checkpoint = self._held.checkpoints.high_watermarks
            checkpoint.put(unbounded)
            checkpoint.write()

    def _followed_state(self, state: State) -> State:
        """The state with the writes that the sources have, and without those that are cut off."""
        cuts = {
            each.log.topic_partition: each.cut_at
            for each in self._followers
            if each.cut_at is not None
        }
        # A write counts without partitions that the directory lacks.  One that comes now, from an
        # older copy, may come without its records.
        for each in self._followers:
            at, spans = each.log.topic_partition, state.spans.values()
            if not each.own and any(span[at][1] > each.end for span in spans if at in span):
                cuts[at] = each.end
        if cuts:
            state = state.cut(cuts)
        copied = {each.log.topic_partition: each.end for each in self._followers}
        known = read_offsets(self._held.directory, HIGH_WATERMARK_CHECKPOINT)
        others = {each: end for each, end in known.items() if each not in copied}
        logs = [each.log for each in self._followers]
        return self._source._writes_of(logs, state, copied, others, self._is_same)

    def _is_same(self, at: TopicPartition, start: int, end: int) -> bool:
        """Whether a partition that does not take part has the records of the source."""
        own = self._open_now(self._held.directory).log(*at)
        return differences(own, self._source.log(*at), start, end, start) == (None, True)


def _writes_of(state: State) -> tuple[object, ...]:
    return state.versions, state.streams, state.spans


def _assigned_of(
    directory: str,
    source: LogDirectory,
    chosen: Collection[TopicPartition],
    topics: Collection[str],
    partitions: Collection[int],
) -> list[TopicPartition]:
    """The chosen partitions that the metadata assigns to a log directory.

    A warning names assigned partitions that no source has.
    """
    cluster = TargetCluster([directory], [directory, *source.paths])
    found = [each for each in chosen if cluster.has_replica(directory, each)]
    absent = [
        each
        for each in cluster.lacks(directory, source.topic_partitions())
        if (not topics or each.topic in topics)
        and (not partitions or each.partition in partitions)
    ]
    if absent:
        logger.warning(
            "%s: the metadata assigns %d partitions to this directory that no source has: add the "
            "log directories of brokers that have them (%s)",
            directory,
            len(absent),
            ", ".join(map(str, absent[:_MOST_NAMED])),
        )
    return found


def _refuse_destination(directory: str, sources: Collection[str]) -> None:
    """Refuse a directory that cannot follow the sources."""
    refuse_overlap(directory, sources)
    if not exists(directory):
        if not is_directory(os.path.dirname(directory)):
            reason = "lies in a directory that does not exist: make that directory first"
            raise LogDirectoryError(directory, reason)
        with contextlib.suppress(FileNotFoundError):
            status_of(directory)  # of the name itself
            reason = "is a link to a directory that does not exist: make that directory first"
            raise LogDirectoryError(directory, reason)
        return
    if not is_directory(directory):
        raise LogDirectoryError(directory, "is a file; give a log directory")
    refuse_partition(directory)
    ids = [read_meta_properties(each).get("cluster.id") for each in (directory, *sources)]
    others = {each for each in ids[1:] if each}
    if ids[0] and others and ids[0] not in others:
        reason = (
            f"belongs to cluster {ids[0]}, and the sources to cluster {others.pop()}: topic ids "
            "of one cluster mean nothing in another one; give an empty directory"
        )
        raise LogDirectoryError(directory, reason)


def _partition_of_each_topic(directory: str) -> dict[str, str]:
    """The path of one partition of each topic in a log directory, which a dry run may lack."""
    found = dict[str, str]()
    for name in list_names(directory) if exists(directory) else ():
        parsed = parse_partition_directory(name)
        if parsed is not None and parsed[1] is DirectoryState.CURRENT:
            found.setdefault(parsed[0].topic, os.path.join(directory, name))
    return found


def _refuse_partition(directory: str, log: Log, there: Mapping[str, str]) -> None:
    """Refuse a partition of the destination that cannot follow a log.

    `there`: paths of partitions that the destination has, by topic.
    """
    path = partition_path(directory, log.topic_partition)
    check_partition_path(path)
    # The other partitions of the topic may be those of another topic of its name.
    beside = there.get(log.topic_partition.topic, path)
    ours, theirs = known_topic_id(path) or known_topic_id(beside), log.known_topic_id
    if ours and theirs and ours != theirs:
        reason = (
            f"belongs to a topic with the id {ours}, and the log to one with the id {theirs}: "
            "the topic was created again; delete it at the destination first "
            "(segmentlog delete-topic)"
        )
        raise LogDirectoryError(path, reason)
