"""Directories of partitions that a broker has renamed: what they hold, and how they come back.

A broker that deletes a topic renames the directories of its partitions to ``-delete``, and removes
them later.  At its start, it renames those to ``-stray`` that its cluster does not assign to it.
Each directory gets a random id of its own.  What belongs together shows only in
``partition.metadata``: a topic that was deleted and created again has another topic id.

A name alone does not bring a topic back: the metadata of the cluster has forgotten its id, so a
broker would rename the directories again, to ``-stray``.  So the records are written anew, in one
commit for each log directory, and keep their offsets, times and headers: into a directory of its
own, or into a topic that was created again.  The latter is a restoration
(`segmentlog.maintain.restoration.restore`), whose source is a view of the renamed directories.
They stay as they are.

The checkpoints of a log directory do not name them any more.  So a log begins with its first
segment, also if records had been deleted from its start, and ends with its files.

Rules: ``LogManager.asyncDelete``, ``LogManager.deleteLogs``, ``LogManager.loadLog``.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple, Unpack

from segmentlog.arguments import instance_of, one_of, path_texts, takes, texts
from segmentlog.cluster.directory_settings import (
    DirectorySettings,
    Source,
    log_directory,
)
from segmentlog.declared import Declared
from segmentlog.errors import (
    CorruptCheckpointError,
    LogDirectoryError,
    OptionError,
    SegmentLogError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.names import (
    HIGH_WATERMARK_CHECKPOINT,
    DirectoryState,
    check_topic_name,
    is_renamed_directory,
)
from segmentlog.log.checkpoint import read_offsets, read_topic_id
from segmentlog.maintain.restoration.plan import (
    OpenTransactions,
    Restoration,
    RestoredPartition,
    RestoredRecords,
    goes_on_from,
    lacks_of_room,
)
from segmentlog.maintain.restoration.restore import (
    absent_partitions,
    append_to,
    restore_chosen,
    writer_into,
)
from segmentlog.model import (
    OnCorruptBatch,
    ReadUpTo,
    TopicPartition,
)
from segmentlog.operation_options import ReplicaOptions, StaticOptions
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.reads.metadata_log import is_of_a_broker
from segmentlog.reads.usage import UsageKind
from segmentlog.store.lock import is_locked
from segmentlog.store.partitions import NamedPartition, list_partitions, refuse_partition
from segmentlog.store.paths import local_path, refuse_overlap
from segmentlog.store.readable import FileType, exists, status_of
from segmentlog.store.system_errors import Failures, is_gone, storage_errors
from segmentlog.times import Time, epoch_milliseconds, iso_time
from segmentlog.txn.change import hold
from segmentlog.txn.guard import topics_taken_out

_KINDS = {
    DirectoryState.DELETE: UsageKind.DELETE,
    DirectoryState.STRAY: UsageKind.STRAY,
    DirectoryState.FUTURE: UsageKind.FUTURE,
}
_DELAY = "file.delete.delay.ms"
_INITIAL_DELAY_MS = 30_000  #: ``log.initial.task.delay.ms``, Kafka's default
_MOST_NAMED = 10  #: directories in a message


class RenamedPartition(NamedTuple):
    """The directory of a partition that a broker, or a deletion, has renamed.

    Attributes
    ----------
    topic, partition : by its name; the name of a long topic may be cut short in it.
    kind : ``-delete``, ``-stray`` or ``-future``.
    path : of the directory.
    topic_id : of the topic, by its ``partition.metadata``; None if the file is missing or damaged.
    renamed_ms : the time of the rename (epoch): the last change of the directory's inode.  In a
        copy, it is the time of the copy.
    removed_ms : the time from which on a broker removes it (epoch); None if no broker is running,
        or if none removes it.
    removal : what removes it, and when, in words.
    log_start_offset, log_end_offset : half-open range of its offsets; None if they cannot be read.
    n_bytes : bytes of its ``.log`` files.
    problem : the reason why it cannot be read, or empty.
    """

    topic: str
    partition: int
    kind: UsageKind
    path: str
    topic_id: str | None
    renamed_ms: int
    removed_ms: int | None
    removal: str
    log_start_offset: int | None
    log_end_offset: int | None
    n_bytes: int
    problem: str = ""

    @property
    def unique_id(self) -> str:
        """The random id in the name of the directory."""
        return os.path.basename(self.path).rpartition(".")[2].rpartition("-")[0]


class RenamedOptions(StaticOptions, total=False):
    """Those of `segmentlog.renamed_partitions`.

    Parameters
    ----------
    server_properties : the file with the static settings of the brokers, for
        ``log.segment.delete.delay.ms``.  Without it, Kafka's default counts, unless the metadata
        of the cluster has another value.
    """


@takes(RenamedOptions)
@storage_errors()
def renamed_partitions(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    **options: Unpack[RenamedOptions],
) -> list[RenamedPartition]:
    """List the directories of partitions that are deleted, stray or being moved.

    Nothing is changed, no lock is taken, and a broker may be running.  Each directory can be
    opened and read by its path; `undelete` restores a topic from them.

    Parameters
    ----------
    path, more : log directories.
    **options : those of `RenamedOptions`.

    Returns
    -------
    list of RenamedPartition
        By directory, sorted by name.

    Raises
    ------
    LogDirectoryError
        If a path is not a log directory.
    StorageError
        If a directory cannot be listed.
    """
    return [
        found
        for each in (path, *more)
        for found in renamed_in(log_directory(each), options["server_properties"])
    ]


def renamed_in(
    directory: str, server_properties: str | os.PathLike[str] | None = None
) -> Iterator[RenamedPartition]:
    """The renamed directories of partitions in one log directory; see `renamed_partitions`."""
    entries = [
        each
        for each in list_partitions(directory)
        if not each.is_current and each.type is FileType.DIRECTORY
    ]
    if not entries:
        return
    delay_ms, source = 60_000, str(Source.UNSEEN)
    try:
        settings = DirectorySettings.read(
            directory, None, server_properties=server_properties, is_optional=True
        )
        value, known = settings.of(None)[_DELAY]
        delay_ms, source = int(value), str(known)
    except (SegmentLogError, ValueError) as error:  # of the metadata, which this list can lack
        source = f"Kafka's default; the settings cannot be read: {error}"
    is_running = is_locked(directory)
    for each in entries:
        try:
            yield _look(each, delay_ms, source, is_running=is_running)
        except OSError as error:
            if not is_gone(error):  # a broker has just removed it
                raise


def _look(
    entry: NamedPartition, delay_ms: int, source: str, *, is_running: bool | None
) -> RenamedPartition:
    renamed_ms = status_of(entry.path).changed_ns // 10**6
    removed_ms = None
    removal = _KINDS[entry.state].removal
    if entry.state is DirectoryState.DELETE:
        delay = f"log.segment.delete.delay.ms={delay_ms} ({source})"
        if is_running:
            removed_ms = renamed_ms + delay_ms
            removal = (
                f"the running broker, at {iso_time(removed_ms)} or a little later, by {delay}; if "
                "it has started since the rename, as long after its start"
            )
        else:
            removal = (
                f"a broker, {(delay_ms + _INITIAL_DELAY_MS) / 1000:g} s after its next start, by "
                f"{delay}; segmentlog delete-topic at once"
            )
    topic_id, problem = None, ""
    try:
        topic_id = read_topic_id(entry.path)
    except CorruptCheckpointError as error:
        problem = str(error)
    log = Log(entry.topic_partition, entry.path, is_file=False)
    start = end = None
    n_bytes = 0
    try:
        n_bytes = log.size_bytes
        if log.segments:
            start, end = log.log_start_offset, log.log_end_offset
        else:
            problem = "its segments are removed already"
    except SegmentLogError as error:
        problem = str(error)
    return RenamedPartition(
        *entry.topic_partition,
        _KINDS[entry.state],
        entry.path,
        topic_id,
        renamed_ms,
        removed_ms,
        removal,
        start,
        end,
        n_bytes,
        problem,
    )


class _Renamed(LogDirectory):
    """A view of renamed directories as the partitions of one topic."""

    def __init__(self, topic: str, directories: Mapping[int, str]) -> None:
        super().__init__(())
        self.paths = tuple(directories.values())
        self._places = {
            TopicPartition(topic, partition): (os.path.dirname(path), path)
            for partition, path in sorted(directories.items())
        }

    def _open(
        self, topic_partition: TopicPartition, parent: str, path: str, high_watermark: int = -1
    ) -> Log:
        """The log of one directory, without checkpoints: these do not name it."""
        del parent, high_watermark
        return Log(topic_partition, path, is_file=False)


class UndeleteOptions(ReplicaOptions, total=False):
    """Those of `segmentlog.undelete`.

    Parameters
    ----------
    to : the log directories to restore into; by default, those of `path`.  In a broker's
        directory, the topic must exist, be empty and have the same number of partitions: create it
        with the broker, and stop the broker.  Elsewhere, the topic is created, in one directory,
        which is made if it does not exist.
    as_topic : another name for the topic.
    ids : which of several topics of that name: ids of topics, or ids in the names of directories,
        of which each partition may have one.  They also choose directories that are ``-future``.
    deleted_before : only the last deletion before this time, in place of `ids`.
    """

    to: Annotated[
        str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
        Declared(
            metavar="DIR",
            help="The log directory to restore into; by default DIR. May be repeated for "
            "directories of brokers.",
        ),
    ]
    as_topic: Annotated[str | None, Declared(flags="--as", metavar="NAME")]
    ids: Annotated[
        str | Collection[str],
        Declared(
            default=(),
            flags="--id",
            metavar="ID",
            help="Only the topic with this id, or the directory with this id in its name; may be "
            "repeated.",
        ),
    ]
    deleted_before: Annotated[
        Time | None, Declared(help="Only the last deletion before this time.")
    ]


@takes(UndeleteOptions)
@storage_errors()
def undelete(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    topic: str,
    **options: Unpack[UndeleteOptions],
) -> Restoration:
    """Restore a deleted or stray topic from the directories that a broker has renamed.

    Records keep their partitions, offsets, times and headers.  Those of aborted and of open
    transactions are left out.  The renamed directories stay as they are.  In one log directory,
    all partitions are restored or none is; a run that was killed is repeated.

    Parameters
    ----------
    path : a log directory with renamed directories of the topic (`renamed_partitions`), or
        several: the log directories of one broker, or of brokers that each have some partitions.
    topic : the name of the topic, as it was.
    **options : those of `UndeleteOptions`.

    Returns
    -------
    Restoration
        `RestoredPartition.source` is the renamed directory.

    Raises
    ------
    UnknownTopicOrPartitionError
        If there is no renamed directory of the topic.
    LogDirectoryError
        If the directories belong to several topics of that name, and neither `ids` nor
        `deleted_before` chooses one; the error lists them.  If there is a problem, such as a
        partition that is gone or a target with records, and this is not a dry run.
    OptionError
        If an argument is not accepted; if one of `ids` is not there; if `to` is needed.
    LogLockedError
        If a broker or a writer holds a target.
    CorruptLogError, MalformedRecordError, CorruptCheckpointError, UnsupportedFormatError
        If a log, or the metadata of the target, cannot be read.
    CommitInDoubtError, SyncFailedError, StorageError
        If the disk is full or fails; if a broker has removed a directory meanwhile.
    """
    instance_of("topic", topic, str, "give the name of a topic")
    name = topic
    if options["as_topic"] is not None:
        instance_of("as_topic", options["as_topic"], str, "give the name of a topic")
        name = options["as_topic"]
    check_topic_name(name)
    wanted = texts("ids", options["ids"], "give ids of topics, or ids in the names of directories")
    before_ms = None
    if options["deleted_before"] is not None:
        before_ms = epoch_milliseconds("deleted_before", options["deleted_before"])
        if wanted:
            raise OptionError(
                "deleted_before", str(options["deleted_before"]), "give it, or ids, but not both"
            )
    on_corrupt = one_of("on_corrupt_batch", options["on_corrupt_batch"], OnCorruptBatch)
    given = path_texts("path", path)
    if not given:
        raise OptionError("path", "", "give a log directory")
    sources = [log_directory(each) for each in given]
    found = [each for one in sources for each in renamed_in(one, options["server_properties"])]
    chosen = _chosen(found, topic, wanted, before_ms, sources)
    if options["to"] is None:
        targets = sources
    else:
        targets = [*map(local_path, path_texts("to", options["to"]))]
        for target in targets:
            refuse_partition(target)
            if target not in sources:
                refuse_overlap(target, sources)
    source = _Renamed(name, {each.partition: each.path for each in chosen})
    for each in {os.path.dirname(one.path) for one in chosen} & {*targets}:
        if topic in topics_taken_out(each):
            reason = (
                f"the deletion of {topic} is not finished, and the next writer finishes it and "
                "removes its directories: restore the topic into another directory (to, --to)"
            )
            raise LogDirectoryError(each, reason)
    records = RestoredRecords(source, (None, None), OpenTransactions.END, on_corrupt)
    if any(exists(each) and is_of_a_broker(each) for each in targets):
        return restore_chosen(
            source,
            source.topic_partitions(),
            targets,
            records,
            options,
            counts={},
            failures=Failures(),
        )
    if len(targets) != 1:
        accepted = "give one directory that belongs to no broker, or directories of brokers"
        raise OptionError("to", ", ".join(targets), accepted)
    return _into_own(
        source,
        name,
        targets[0],
        records,
        leave_out_partitions=options["leave_out_partitions"],
        dry_run=options["dry_run"],
        on_records=options["on_records"],
        on_phase=options["on_phase"],
        lock_timeout_seconds=options["lock_timeout_seconds"],
    )


def _chosen(
    found: Sequence[RenamedPartition],
    topic: str,
    ids: Collection[str],
    before_ms: int | None,
    sources: Sequence[str],
) -> list[RenamedPartition]:
    """The directories of one topic: one for each partition."""
    named = [each for each in found if is_renamed_directory(os.path.basename(each.path), topic)]
    if not named:
        hint = "no directory of a deleted or stray partition has its name"
        if names := sorted({each.topic for each in found}):
            hint += f"; there are directories of {', '.join(names[:_MOST_NAMED])}"
        raise UnknownTopicOrPartitionError(topic, -1, ", ".join(sources), hint)
    for wanted in ids:
        if wanted not in {known for one in named for known in (one.topic_id, one.unique_id)}:
            accepted = f"no directory has this id; there are {_listed(named)}"
            raise OptionError("ids", wanted, accepted)
    if ids:
        named = [each for each in named if each.topic_id in ids or each.unique_id in ids]
    else:
        named = [each for each in named if each.kind is not UsageKind.FUTURE]
        # A broker that is killed while it removes a directory leaves it without segments.
        named = [each for each in named if each.log_end_offset is not None or each.n_bytes]
    # A topic without any record, such as one that clients created for a moment, is no candidate
    # beside one with records.
    groups: dict[str | None, list[RenamedPartition]] = {}
    for each in named:
        groups.setdefault(each.topic_id, []).append(each)
    filled = {
        key: group
        for key, group in groups.items()
        if any(each.problem or each.log_start_offset != each.log_end_offset for each in group)
    }
    groups = filled or groups
    if before_ms is not None:
        times = {key: max(one.renamed_ms for one in group) for key, group in groups.items()}
        earlier = [key for key, at in times.items() if at < before_ms]
        if not earlier:
            accepted = f"nothing was deleted before it; there are {_listed(named)}"
            raise OptionError("deleted_before", iso_time(before_ms), accepted)
        last = max(earlier, key=lambda key: times[key])
        groups = {last: groups[last]}
    directories = ", ".join(sources)
    if len(groups) > 1:
        reason = (
            f"has directories of {len(groups)} topics that had the name {topic}: choose one by "
            f"its id (ids, --id), or by time (deleted_before, --deleted-before): {_listed(named)}"
        )
        raise LogDirectoryError(directories, reason)
    chosen = [each for group in groups.values() for each in group]
    if not chosen:
        accepted = "the directories of the topic are -future or empty: name them by their ids"
        raise OptionError("ids", "", accepted)
    for partition in {each.partition for each in chosen}:
        same = [each for each in chosen if each.partition == partition]
        if len(same) > 1:
            reason = (
                f"have partition {partition} of {topic} more than once: choose one directory for "
                f"each partition by the id in its name (ids, --id): {_listed(same)}"
            )
            raise LogDirectoryError(directories, reason)
    return sorted(chosen, key=lambda each: each.partition)


def _listed(found: Sequence[RenamedPartition]) -> str:
    """Directories in a message, with what distinguishes them."""
    shown = [
        f"{each.path} (topic id {each.topic_id or 'not known'}, renamed at "
        f"{iso_time(each.renamed_ms)}, offsets {each.log_start_offset} to {each.log_end_offset})"
        for each in found[:_MOST_NAMED]
    ]
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"{', '.join(shown)}{more}"


def _into_own(
    source: LogDirectory,
    topic: str,
    directory: str,
    records: RestoredRecords,
    *,
    leave_out_partitions: bool,
    dry_run: bool,
    on_records: Callable[[int], object],
    on_phase: Callable[[str], object],
    lock_timeout_seconds: float,
) -> Restoration:
    """Restore into a directory that belongs to no broker, in one commit."""
    from segmentlog.writes.job_files import new_token, prepare_directory

    chosen = source.topic_partitions()
    n_partitions = chosen[-1].partition + 1
    if leave_out_partitions and exists(directory):
        with contextlib.suppress(LogDirectoryError):  # a new one
            there = open_log_dir(directory).topics().get(topic, [0])
            n_partitions = max(n_partitions, there[-1] + 1)
    plan = []
    for log in (source.log(*each) for each in chosen):
        opened = log.open_transactions(ReadUpTo.LOG_END, records.on_corrupt_batch)
        plan.append(RestoredPartition(
            *log.topic_partition, log.path, None, log.log_start_offset, log.log_end_offset,
            len(opened), 0, log.size_bytes, 0, (), (directory,),
        ))  # fmt: skip
    absent = {} if leave_out_partitions else absent_partitions(source, chosen, {})
    problems = [problem for found in absent.values() for problem in found]

    def checked() -> Restoration:
        if not problems and _is_restored(directory, plan, records):
            before = [each._replace(restored_before=each.directories) for each in plan]
            return Restoration(tuple(before), (), ())
        if exists(directory):
            problems.extend(lacks_of_room(plan))
            problems.extend(_lacks_of(directory, topic, n_partitions))
        return Restoration(tuple(plan), (), tuple(problems))

    if dry_run:
        return checked()
    if not problems:
        prepare_directory(directory, new_token())
    elif not exists(directory):  # nothing is made of it
        raise _refused(directory, problems)
    with hold(directory, lock_timeout_seconds) as held:
        plan = [*checked().partitions]
        if problems:
            raise _refused(directory, problems)
        if any(each.restored_before for each in plan):
            done = [append_to([], records, each, None, on_records) for each in plan]
            return Restoration(tuple(done), (), ())
        with writer_into(held, topic, n_partitions) as writer:
            done = []
            for each in plan:
                on_phase(f"{each.topic_partition}: copies")
                done.append(append_to([(writer, 0)], records, each, None, on_records))
            on_phase("the logs become visible")
    return Restoration(tuple(done), (), ())


def _is_restored(
    directory: str, plan: Sequence[RestoredPartition], records: RestoredRecords
) -> bool:
    """Whether a directory has all records, by an earlier run that was killed after its commit."""
    try:
        opened = open_log_dir(directory)
    except LogDirectoryError:  # a new one
        return False
    there = {*opened.topic_partitions()}
    if any(each.topic_partition not in there for each in plan):
        return False
    has_records = False
    for each in plan:
        log = opened.log(*each.topic_partition)
        if log.log_end_offset:
            if goes_on_from(records, each, log) != ("", False):
                return False
            has_records = True
        elif any(batch.num_rows for batch in records.of(each.topic_partition, each.offsets)):
            return False
    return has_records


def _refused(directory: str, problems: Sequence[str]) -> LogDirectoryError:
    return LogDirectoryError(directory, f"cannot take the records: {'; '.join(problems)}")


def _lacks_of(directory: str, topic: str, n_partitions: int) -> Iterator[str]:
    """The reasons why a directory that belongs to no broker cannot take the topic."""
    try:
        opened = open_log_dir(directory)
    except LogDirectoryError:  # a new one
        return
    there = opened.topics().get(topic, [])
    offsets = dict(read_offsets(directory, HIGH_WATERMARK_CHECKPOINT))
    marks = {each.partition: at for each, at in sorted(offsets.items()) if each.topic == topic}
    # A run that was killed while it made the partitions has left the high watermarks of all, and
    # some directories: the next run makes the others.
    made = {*there, *(partition for partition, at in marks.items() if not at)}
    if there and len(made) != n_partitions:
        yield (
            f"topic {topic} exists there with {len(made)} partitions, and not with "
            f"{n_partitions}: give another name (as_topic, --as), or another directory (to, --to)"
        )
    for partition in there:
        log = opened.log(topic, partition)
        if log.log_end_offset:
            yield (
                f"{log.path} has offsets up to {log.log_end_offset}, and only an empty partition "
                "can take the offsets of another log: give another name (as_topic, --as), or "
                "another directory (to, --to)"
            )
    # A broker that is killed soon after it has renamed directories leaves their high watermarks.
    for partition, at in marks.items():
        if at and partition not in there:
            yield (
                f"{HIGH_WATERMARK_CHECKPOINT} still has {topic}-{partition} at {at}, "
                "and a new log would not have these records: give another name (as_topic, --as), "
                "or another directory (to, --to)"
            )
