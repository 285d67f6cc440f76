"""Topics, partitions and segments come and go as a broker makes, renames and removes them.

A broker in KRaft mode knows its topics from the cluster's metadata, not from directories.  It
moves an unknown topic aside as stray.  So topics for a broker are created with the broker.  In a
directory without a broker, ``segmentlog.settings`` has the settings of topics
(`segmentlog.txn.settings_file`).

Deleted topics and segments are renamed, and removed later.  A starting broker removes files and
directories with such names.  No reader takes them for part of a log, but a reader that has planned
to read a segment finds it under its new name.  Segments below the log start are removed once the
``file.delete.delay.ms`` of their topic has passed since the rename: by the next job, retention or
compaction.  With a delay of 0 they go with the change.

Each of these steps can be repeated: what is done already is passed over.
"""

import base64
import contextlib
import errno
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias

from segmentlog.errors import LogDirectoryError, SyncFailedError, UnknownTopicOrPartitionError
from segmentlog.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_AND_SPARSE_INDEXES,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_CHECKPOINT,
    DirectoryState,
    FileKind,
    FileState,
    deleted_directory_name,
    is_deleted_directory,
    parse_segment_file,
    partition_path,
    segment_file_name,
)
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
    logs_among,
    logs_in,
    put_file_aside,
    remove_deleted,
)
from segmentlog.store.readable import FileType, exists, is_directory, list_names, status_of
from segmentlog.store.system_errors import MAY_WRITE, may_write, why_not_written
from segmentlog.txn.settings_file import SettingsFile
from segmentlog.txn.state import State

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
        logs = [each for each in list_names(path) if each.endswith(".log")]
        bases = [each.offset for each in filter(None, map(parse_segment_file, logs))]
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
    known |= {each for each in partitions_there(directory, offsets) if each.topic == topic}
    wanted = sorted(known or {TopicPartition(topic, number) for number in range(n_partitions)})
    missing, without_id = list[TopicPartition](), list[str]()
    for each in wanted:
        path = partition_path(directory, each)
        check_partition_path(path)
        names = _names_in(path)
        if not _has_log(names):
            missing.append(each)
        elif PARTITION_METADATA_FILE not in names:
            without_id.append(path)
    # Kafka gives topics an id since 2.8.
    is_old = any(not _is_unused(path) for path in without_id)
    for each in missing:
        if offsets.get(each, 0):
            hint = (
                f"its high watermark is {offsets[each]}, and its log is gone: put the log back, "
                "or delete the whole topic (segmentlog delete-topic)"
            )
            raise UnknownTopicOrPartitionError(*each, directory, hint)
    if not missing and (is_old or not without_id):
        return
    known_ids = (read_topic_id(partition_path(directory, each)) for each in wanted)
    topic_id = next(filter(None, known_ids), "") or new_topic_id()
    # A recovery may have made the log of a partition that a writer had only begun to make.
    for path in () if is_old else without_id:
        _identify(path, topic_id)
    _make(directory, dict.fromkeys(missing, topic_id))


def create_replicas(directory: str, topic_ids: Mapping[TopicPartition, str]) -> None:
    """Make partitions of a broker's topics, as the broker makes them at its next start.

    The caller holds the lock.  A partition that is there stays; one that a crash has left without
    a segment or a topic id is completed.  A broker writes the id after the segment, and moves a
    partition without an id aside.  After a crash, the high watermarks show which were to be made.
    Raises `LogDirectoryError` as `check_partition_path` does.
    """
    missing = {}
    for each, topic_id in topic_ids.items():
        path = partition_path(directory, each)
        check_partition_path(path)
        if not _has_log(_names_in(path)):
            missing[each] = topic_id
        elif not known_topic_id(path):
            _identify(path, topic_id)
    _make(directory, missing)


def _make(directory: str, topic_ids: Mapping[TopicPartition, str]) -> None:
    """Make partitions in the order that `create_partitions` tells."""
    if not topic_ids:
        return
    offsets = dict(read_offsets(directory, HIGH_WATERMARK_CHECKPOINT))
    write_offsets(directory, HIGH_WATERMARK_CHECKPOINT, offsets | dict.fromkeys(topic_ids, 0))

    def create(each: TopicPartition) -> None:
        _create(partition_path(directory, each), topic_ids[each])

    wanted = sorted(topic_ids)
    last = {*{each.topic: each for each in wanted}.values()}
    others = [each for each in reversed(wanted) if each not in last]
    for partitions in (last, others):
        do_together(create, partitions)
        if partitions:
            sync_directory(directory)


def partitions_there(
    directory: str, high_watermarks: Collection[TopicPartition]
) -> list[TopicPartition]:
    """The partitions that have a directory, also an empty one, of topics that are there.

    A mirror that was killed before it made a topic leaves copies in the directories of some of its
    partitions: how many the topic is to have, they do not show.
    """
    found = current_partitions(directory)
    bounded = {each.topic for each in high_watermarks}
    made = {
        each.topic_partition.topic
        for each in found
        if each.topic_partition.topic not in bounded and not _has_only_copies(each.path)
    }
    return [each.topic_partition for each in found if each.topic_partition.topic in bounded | made]


def _has_only_copies(path: str) -> bool:
    ending = f".{FileState.CLEANED}"
    return is_directory(path) and all(name.endswith(ending) for name in list_names(path))


def _names_in(path: str) -> list[str]:
    try:
        return list_names(path)
    except FileNotFoundError:
        return []


def _has_log(names: Collection[str]) -> bool:
    return bool(logs_among(names))


def _is_unused(path: str) -> bool:
    """Whether a partition that is there has never had a record."""
    first = segment_file_name(0, FileKind.LOG)
    return logs_in(path) == [first] and not status_of(os.path.join(path, first)).size


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


def _identify(path: str, topic_id: str) -> None:
    write_topic_id(path, topic_id)
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
        to = os.path.join(directory, deleted_directory_name(topic_partition))
        try:
            rename(path, to)
        except OSError as error:
            # An overlay cannot rename a directory of a lower layer, such as one of an image, and
            # would copy each file that moves. The deletion is decided: the directory goes at once.
            if error.errno != errno.EXDEV:
                raise
            shutil.rmtree(path)
        else:
            renamed.append(to)
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
    # Also if nothing is left to rename: an earlier attempt may have failed before it was synced.
    if not is_synced:
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
