"""Topics, partitions and segments come and go as a broker makes, renames and removes them.

A broker in KRaft mode knows its topics from the cluster's metadata, not from directories.  It
moves an unknown topic aside as stray.  So topics for a broker are created with the broker.  In a
directory without a broker, ``segmentlog.settings`` has the settings of topics (`SettingsFile`).

Deleted topics and segments are renamed, and removed later.  A starting broker removes files and
directories with such names.  No reader takes them for part of a log, but a reader that has planned
to read a segment finds it under its new name.  Segments below the log start are removed once the
``file.delete.delay.ms`` of their topic has passed since the rename: by the next job, retention or
compaction.  With a delay of 0 they go with the change.

Each of these steps can be repeated: what is done already is passed over.
"""

import base64
import contextlib
import itertools
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from segmentlog.errors import (
    CorruptCheckpointError,
    LogDirectoryError,
    OptionError,
    SyncFailedError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_AND_SPARSE_INDEXES,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_CHECKPOINT,
    SETTINGS_FILE,
    DirectoryState,
    FileKind,
    FileState,
    check_topic_name,
    deleted_directory_name,
    is_deleted_directory,
    parse_segment_file,
    partition_path,
    segment_file_name,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import (
    known_topic_id,
    read_offsets,
    read_topic_id,
    write_leader_epochs,
    write_offsets,
)
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.model import TopicPartition
from segmentlog.store.durable import (
    create_directory,
    create_file,
    do_together,
    remove_file,
    rename,
    replace_file,
    sync_directory,
)
from segmentlog.store.partitions import (
    current_partitions,
    list_partitions,
    logs_in,
    put_file_aside,
    remove_deleted,
)
from segmentlog.store.readable import FileType, exists, is_url, list_names, status_of
from segmentlog.store.system_errors import MAY_WRITE, may_write, why_not_written
from segmentlog.txn.state import REMEDY, LazyState, State, check_types, read_json, to_json

logger = logging.getLogger(__name__)

MOST_PARTITIONS = 1_000_000  #: of a topic that is created: far more than a broker can serve


def check_partition_path(path: str) -> None:
    """Refuse a partition whose path is not a directory, or is not writable for this user."""
    # Readers leave out links and files: rows in their target would never be seen.
    try:
        found = status_of(path).type
    except FileNotFoundError:
        return
    if found is FileType.LINK:
        reason = (
            "is a symbolic link, which readers leave out: replace the link by its target, moved "
            "or mounted there"
        )
        raise LogDirectoryError(path, reason)
    if found is not FileType.DIRECTORY:
        reason = "is not a directory, but has the name of a partition: move it out of the way"
        raise LogDirectoryError(path, reason)
    with contextlib.suppress(FileNotFoundError):
        if not may_write(path, MAY_WRITE | os.X_OK):
            raise LogDirectoryError(path, why_not_written(path))
        parsed = filter(None, map(parse_segment_file, list_names(path)))
        live_log = FileKind.LOG, FileState.LIVE
        bases = [each.offset for each in parsed if (each.kind, each.state) == live_log]
        for kind in LOG_AND_SPARSE_INDEXES if bases else ():
            file = os.path.join(path, segment_file_name(max(bases), kind))
            if exists(file) and not may_write(file):
                raise LogDirectoryError(file, why_not_written(file))


def create_partitions(directory: str, topic: str, n_partitions: int) -> None:
    """Make the partitions of a new topic, or the partitions that a crash has left out.

    The caller holds the lock.  The high watermarks are written first: no reader ever takes the log
    end for the end of the committed records, and after a crash they show which partitions were to
    be made.  The last partition is made next, because it shows how many partitions there are.
    Raises `LogDirectoryError` if a link or a file has the name of a partition, or it may not be
    written to; `UnknownTopicOrPartitionError` if a partition that had records is missing.
    """
    offsets = dict(read_offsets(directory, HIGH_WATERMARK_CHECKPOINT))
    known = {each for each in offsets if each.topic == topic}
    # With those that have a directory, also an empty one.
    there = [each.topic_partition for each in current_partitions(directory)]
    known |= {each for each in there if each.topic == topic}
    wanted = known or {TopicPartition(topic, number) for number in range(n_partitions)}
    for each in wanted:
        check_partition_path(partition_path(directory, each))
    missing = [each for each in sorted(wanted, reverse=True) if not _is_there(directory, each)]
    if not missing:
        return
    for each in missing:
        if offsets.get(each, 0):
            hint = (
                f"its high watermark is {offsets[each]}, and its log is gone: put the log back, "
                "or delete the whole topic (segmentlog delete-topic)"
            )
            raise UnknownTopicOrPartitionError(*each, directory, hint)
    offsets.update((each, 0) for each in missing)
    write_offsets(directory, HIGH_WATERMARK_CHECKPOINT, offsets)
    known_ids = (read_topic_id(partition_path(directory, each)) for each in sorted(wanted))
    topic_id = next(filter(None, known_ids), "") or new_topic_id()
    last, *others = [partition_path(directory, each) for each in missing]
    for paths in ([last], others):
        do_together(partial(_create, topic_id=topic_id), paths)
        if paths:
            sync_directory(directory)


def create_replica(directory: str, topic_partition: TopicPartition, topic_id: str) -> None:
    """Make one partition of a broker's topic, as the broker makes it at its next start.

    The caller holds the lock.  A partition that is there stays; one that a crash has left without
    a segment or a topic id is completed.  A broker writes the id after the segment, and moves a
    partition without an id aside.  Raises `LogDirectoryError` as `check_partition_path` does.
    """
    path = partition_path(directory, topic_partition)
    check_partition_path(path)
    if _is_there(directory, topic_partition):
        if not known_topic_id(path):
            write_topic_id(path, topic_id)
            sync_directory(path)
        return
    offsets = dict(read_offsets(directory, HIGH_WATERMARK_CHECKPOINT))
    write_offsets(directory, HIGH_WATERMARK_CHECKPOINT, offsets | {topic_partition: 0})
    _create(path, topic_id)
    sync_directory(directory)


def _is_there(directory: str, topic_partition: TopicPartition) -> bool:
    path = partition_path(directory, topic_partition)
    try:
        return bool(logs_in(path))
    except FileNotFoundError:
        return False


def new_topic_id() -> str:
    """A random id as Kafka prints it; not one that begins like an option of a command."""
    while True:
        found = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not found.startswith("-"):
            return found


def _create(path: str, topic_id: str) -> None:
    with contextlib.suppress(FileExistsError):
        create_directory(path)
    write_topic_id(path, topic_id)
    write_leader_epochs(os.path.join(path, LEADER_EPOCH_CHECKPOINT), [(0, 0)])
    # All of it stands before the ``.log``: a partition with a ``.log`` counts as made, and what it
    # lacked then would never be added.
    for kind in reversed(LOG_AND_SPARSE_INDEXES):
        with contextlib.suppress(FileExistsError):
            os.close(create_file(os.path.join(path, segment_file_name(0, kind))))
    sync_directory(path)


def write_topic_id(path: str, topic_id: str) -> None:
    """Write ``partition.metadata``; the caller syncs its name."""
    metadata = f"version: 0\ntopic_id: {topic_id}"
    replace_file(os.path.join(path, PARTITION_METADATA_FILE), metadata.encode(), sync_name=False)


#: The checkpoints at the top of a log directory; all have entries of partitions.
CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
)

_OF_A_TOPIC = {DirectoryState.CURRENT, DirectoryState.FUTURE}


def partition_directories(directory: str, topic: str) -> list[tuple[TopicPartition, str]]:
    """Paths of the partitions of a topic, including those that are being moved here."""
    return [
        (each.topic_partition, each.path)
        for each in list_partitions(directory)
        if each.topic_partition.topic == topic and each.state in _OF_A_TOPIC
    ]


def is_known(directory: str, topic: str) -> bool:
    """Whether a topic has a partition, or an entry in a checkpoint without a partition."""
    # Without the partition, a writer refuses to make the topic again.
    return bool(partition_directories(directory, topic)) or any(
        each.topic == topic for name in CHECKPOINTS for each in read_offsets(directory, name)
    )


def taken_out(directory: str, topic: str) -> list[str]:
    """Paths of directories that were renamed, and are not removed yet."""
    names = sorted(list_names(directory))
    return [os.path.join(directory, name) for name in names if is_deleted_directory(name, topic)]


def take_out(directory: str, topic: str, *, keeps_settings: bool = False) -> list[str]:
    """Rename the partitions of a topic, remove its checkpoints' entries, forget its settings."""
    # The directories are renamed first. A partition that still has its directory, but no longer
    # its high watermark, would be read to the log end. Without its log start, it would be read
    # from its first segment on. Settings that stayed would be those of the next topic of that
    # name, and retention would remove its records.
    renamed = []
    for topic_partition, path in partition_directories(directory, topic):
        renamed.append(os.path.join(directory, deleted_directory_name(topic_partition)))
        rename(path, renamed[-1])
    sync_directory(directory)
    for name in CHECKPOINTS:
        offsets = read_offsets(directory, name)
        left = {each: offset for each, offset in offsets.items() if each.topic != topic}
        if left.keys() != offsets.keys():
            write_offsets(directory, name, left)
    if not keeps_settings:
        SettingsFile.forget(directory, topic)
    return renamed


def remove_taken_out(directory: str, topic: str, renamed: Collection[str] | None = None) -> None:
    """Remove the renamed directories with their contents; a failure is only a warning."""
    # The topic is gone by then. A starting broker removes them, too, and nothing waits for their
    # disk space. Without `renamed`, those of its earlier deletions go, too.
    try:
        paths = taken_out(directory, topic) if renamed is None else renamed
        for path in paths:
            # Follows no link, even one that takes the place of a directory meanwhile.
            if status_of(path).type is FileType.LINK:
                remove_file(path)
            else:
                shutil.rmtree(path)
        if paths:
            sync_directory(directory)
    except (OSError, SyncFailedError) as error:
        logger.warning("files of the deleted topic %s could not be removed: %s", topic, error)


#: Partitions of a new topic that rows may name by themselves: one wrong row makes no more.
_MOST_NAMED = 10_000


@dataclass(frozen=True, slots=True)
class JobTopics:
    """Topics as a job has found them, and as it may create them."""

    place: str  # the log directory, or the place of a log in a store
    topic: str | None  # of all rows, or None to take the column ``topic``
    partitions: Mapping[str, int]  # number of partitions of each topic when the job began
    num_partitions: int  # of topics that the job creates; 0 to create none
    #: whether rows name the partitions of topics that the job creates, and no number was given:
    #: each of these topics gets those that its own rows name
    is_named: bool
    #: by topic, when the job began: what shows that it is not a later topic of the same name (the
    #: token of the last deletion; in a store, the topic id)
    versions: Mapping[str, str]
    in_cluster: Mapping[str, int] = field(default_factory=dict)  # `partitions`, of incomplete ones
    #: the first missing partition of each incomplete topic
    missing: Mapping[str, int] = field(default_factory=dict)
    #: whether rows keep their partitions: an incomplete topic may be written to
    keeps_partitions: bool = False
    #: number of partitions of these topics, once all rows are staged
    named: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def found(
        cls,
        directory: str,
        topic: str | None,
        *,
        asked: int | None,
        auto_create_topics: bool,
        keeps_partitions: bool,
        in_cluster: Mapping[str, int],
        is_named: bool = False,
    ) -> "JobTopics":
        """The topics that a log directory has now; raises as `check` does.

        `in_cluster` has the numbers of the cluster's metadata, if it is known.
        """
        partitions, missing = _count_partitions(directory, in_cluster)
        # The job travels to every task, so it keeps only the numbers that directories do not show.
        in_cluster = {each: partitions[each] for each in missing}
        topics = cls(
            directory, topic, partitions, (asked or 1) if auto_create_topics else 0,
            is_named and asked is None, LazyState(directory).deletions, in_cluster, missing,
            keeps_partitions,
        )  # fmt: skip
        topics.check(asked)
        return topics

    def check(self, asked: int | None) -> None:
        """Refuse to begin a job.

        Raises `OptionError` if `topic` has another number of partitions than `asked` (one by
        default for missing topics); as `n_partitions` does if it is not to be written to.
        """
        if self.topic is None:
            return
        if asked not in {None, self.partitions.get(self.topic, asked)}:
            accepted = (
                f"topic {self.topic!r} exists and has {self.partitions[self.topic]} partitions: "
                "leave the option out to write to these, choose another topic, or delete this one "
                "and its records: segmentlog delete-topic"
            )
            raise OptionError("num_partitions", str(asked), accepted)
        self.n_partitions(self.topic)

    def n_partitions(self, topic: str) -> int:
        """Number of partitions of a topic, or the number that it will get.

        Raises `UnknownTopicOrPartitionError` if it is missing and not to be created, or
        incomplete.
        """
        if topic in self.missing and not self.keeps_partitions:
            hint = (
                "write a topic only where all its partitions are: the number of partitions "
                "decides which partition a key gets"
            )
            raise UnknownTopicOrPartitionError(topic, self.missing[topic], self.place, hint)
        if topic in self.partitions:
            return self.partitions[topic]
        check_topic_name(topic)
        if not self.num_partitions:
            hint = "allow its creation: auto_create_topics=True (in Spark autoCreateTopics=true)"
            if not is_url(self.place):
                hint = f"create the topic with the broker, or {hint}"
            raise UnknownTopicOrPartitionError(topic, -1, self.place, hint)
        return self.named.get(topic, _MOST_NAMED) if self.is_named else self.num_partitions

    def named_by(self, staged: Collection[TopicPartition]) -> "JobTopics":
        """The topics, with the partitions that all rows of the job name."""
        named = {} if self.topic is None else {self.topic: 1}
        for topic, partition in staged:
            named[topic] = max(named.get(topic, 1), partition + 1)
        return replace(self, named=named)

    def new_among(self, topics: Collection[str]) -> list[str]:
        """The topics that `make` would create, and of which nothing is there yet."""
        return [
            each
            for each in topics
            if each not in self.partitions and not is_known(self.place, each)
        ]

    def make(self, topics: Collection[str]) -> None:
        """Create the topics that are missing when the job commits; the caller holds the lock.

        It is an error if rows were spread over another number of partitions than a topic has:
        another job may have created the topic meanwhile, or again.  Partitions that were added to
        a topic are none: a producer does not know of new partitions at once, either.
        """
        if self.num_partitions:
            for topic in topics:
                create_partitions(self.place, topic, self.n_partitions(topic))
        found, missing = _count_partitions(self.place, self.in_cluster)
        deletions = LazyState(self.place).deletions
        for topic in topics:
            wanted, n_found = self.n_partitions(topic), found.get(topic, 0)
            is_same = deletions.get(topic) == self.versions.get(topic)
            may_grow = topic in self.partitions and is_same
            is_other = n_found < wanted or (n_found > wanted and not may_grow)
            if is_other or missing.get(topic) != self.missing.get(topic):
                raise self.not_as_found(topic, wanted)

    def not_as_found(self, topic: str, n_wanted: int) -> LogDirectoryError:
        """The error for a topic that another job has created meanwhile, or again."""
        reason = (
            f"topic {topic!r} no longer has the {n_wanted} partitions over which the job has "
            "spread its rows; run the job again"
        )
        return LogDirectoryError(self.place, reason)

    def all_partitions(self) -> list[TopicPartition]:
        """The partitions that `topic` has now."""
        if self.topic is None:
            return []
        counts, _ = _count_partitions(self.place, self.in_cluster)
        n_partitions = counts.get(self.topic, 0)
        return [TopicPartition(self.topic, number) for number in range(n_partitions)]


def complete_topics(directory: str, topic: str | None) -> None:
    """Make the partitions that a crash has left out, of `topic` or of all topics."""
    if topic is not None:
        create_partitions(directory, topic, 0)
        return
    partitions, missing = _count_partitions(directory, {})
    for each in missing:
        # The partition had records, or a link is in its place: an error only if rows come for it.
        with contextlib.suppress(UnknownTopicOrPartitionError, LogDirectoryError):
            create_partitions(directory, each, partitions[each])


def _count_partitions(
    directory: str, in_cluster: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """`JobTopics.partitions` and `JobTopics.missing`.

    The directories alone do not show that the highest partitions are missing.
    """
    found: dict[str, set[int]] = {}
    for each in current_partitions(directory):
        topic, partition = each.topic_partition
        found.setdefault(topic, set()).add(partition)
    counts = {
        topic: max(max(numbers) + 1, in_cluster.get(topic, 0)) for topic, numbers in found.items()
    }
    missing = {
        topic: next(number for number in itertools.count() if number not in numbers)
        for topic, numbers in found.items()
        if len(numbers) < counts[topic]
    }
    return counts, missing


#: ``file.delete.delay.ms`` of a topic.
DelayOf: TypeAlias = Callable[[str], int]


def put_segments_aside(path: str, below: int, log_start: int) -> None:
    """Rename the files of segments that lie wholly below the log start, and cut leader epochs.

    The files of one segment are renamed together, and the segments from the oldest one on: a
    reader of the old log start that lists the segments meanwhile notices that the first one is
    gone.  Producer snapshots below the first segment that stays go as well, but for the newest:
    only that one may know a producer whose batches have gone.  All of it can be repeated.
    """
    found = {name: parse_segment_file(name) for name in list_names(path)}
    live = [(each, name) for name, each in found.items() if each and each.state is FileState.LIVE]
    snapshots = [each.offset for each, _ in live if each.kind is FileKind.SNAPSHOT]
    newest = max(snapshots, default=-1)
    going = sorted(
        (each.offset, name)
        for each, name in live
        if each.offset < below and (each.kind, each.offset) != (FileKind.SNAPSHOT, newest)
    )
    for _, name in going:
        put_file_aside(path, name)
    epochs = EpochStarts(path)
    epochs.truncate_from_start(log_start)
    is_synced = epochs.write()  # it syncs the directory, and with it these renames
    if going and not is_synced:
        sync_directory(path)


def remove_due(directory: str, delay_of: DelayOf, topics: Collection[str] | None = ()) -> None:
    """Remove files that left their logs ``file.delete.delay.ms`` ago or longer.

    The caller holds the lock.  A change may be unfinished: what is due left its log long before.

    `topics`: whose partitions are looked at, besides those that have lost segments by a change;
    all topics if None.  Compaction puts files aside without a change.
    """
    wanted = None if topics is None else {*topics, *State.read(directory).aside}
    for topic_partition, path in _partitions(directory, wanted):
        remove_deleted(path, delay_of(topic_partition.topic))


def topics_aside(directory: str, topics: Collection[str]) -> list[str]:
    """The topics among `topics` that have files which have left their logs."""
    return sorted(
        {
            topic_partition.topic
            for topic_partition, path in _partitions(directory, topics)
            if any(name.endswith(f".{FileState.DELETED}") for name in list_names(path))
        }
    )


def _partitions(
    directory: str, topics: Collection[str] | None
) -> Iterator[tuple[TopicPartition, str]]:
    if topics is not None and not topics:  # the common case: skip the listing
        return
    for each in list_partitions(directory):
        is_served = each.is_current and each.type is FileType.DIRECTORY and not each.is_metadata
        if is_served and (topics is None or each.topic_partition.topic in topics):
            yield each.topic_partition, each.path


SETTINGS_FORMAT = 1

_Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """``segmentlog.settings``: names and values are Kafka's, as text; a missing file has none.

    ::

        {"format": 1,
         "defaults": {"segment.bytes": "67108864"},
         "topics": {"orders": {"retention.ms": "86400000"}}}

    The file is replaced as a whole, under the lock of its directory.
    """

    defaults: _Settings = field(default_factory=dict)  # settings of all topics
    #: settings of single topics, which come before `defaults`
    topics: Mapping[str, _Settings] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: str) -> "SettingsFile":
        """The file of a log directory; no settings without one."""
        path = os.path.join(directory, SETTINGS_FILE)
        try:
            found = read_json(path, (SETTINGS_FORMAT,))
        except FileNotFoundError:
            return cls()
        try:
            check_types((found["defaults"], found["topics"]), (dict, dict))
            for settings in (found["defaults"], *found["topics"].values()):
                check_types(tuple(settings.values()), (str,) * len(settings))
                TopicConfig.parse(settings)
            return cls(found["defaults"], found["topics"])
        except (KeyError, TypeError, AttributeError, OptionError) as error:
            what = str(error) if isinstance(error, OptionError) else repr(error)
            raise CorruptCheckpointError(path, 1, f"cannot be read: {what}", REMEDY) from None

    def of(self, topic: str | None) -> _Settings:
        """The settings of one topic, or the defaults."""
        return self.defaults if topic is None else self.topics.get(topic, {})

    def altered(
        self, topic: str | None, settings: _Settings, removed: Collection[str] = ()
    ) -> "SettingsFile":
        """The contents with other settings of a topic, or with other defaults."""
        TopicConfig.parse(settings)
        kept = {name: text for name, text in self.of(topic).items() if name not in removed}
        kept |= {name: text.strip() for name, text in settings.items()}
        if topic is None:
            return SettingsFile(kept, self.topics)
        others = {name: each for name, each in self.topics.items() if name != topic}
        return SettingsFile(self.defaults, others | ({topic: kept} if kept else {}))

    def without(self, topics: Collection[str]) -> "SettingsFile":
        """The contents without the settings of these topics."""
        kept = {name: each for name, each in self.topics.items() if name not in topics}
        return SettingsFile(self.defaults, kept)

    @classmethod
    def forget(cls, directory: str, topic: str) -> None:
        """Forget the settings of a deleted topic; it can be repeated."""
        known = cls.read(directory)
        if topic in known.topics:
            known.without((topic,)).write(directory)

    def write(self, directory: str) -> None:
        """Replace the file, durably; the caller holds the lock."""
        contents = to_json(
            SETTINGS_FORMAT, {"defaults": dict(self.defaults), "topics": dict(self.topics)}
        )
        replace_file(os.path.join(directory, SETTINGS_FILE), contents)
