"""Topics and segments on their way out: renamed as a broker does it, and removed later.

A starting broker removes files and directories with such names.  No reader takes them for part of
a log, but a reader that has planned to read a segment finds it under its new name.  Segments below
the log start are removed once the ``file.delete.delay.ms`` of their topic has passed since the
rename: by the next job, retention or compaction.  With a delay of 0 they go with the change.

Every function here can be repeated: it passes over steps that are already done.
"""

import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias

from segmentlog.errors import SyncFailedError
from segmentlog.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    DirectoryState,
    FileKind,
    FileState,
    deleted_directory_name,
    is_deleted_directory,
    parse_segment_file,
)
from segmentlog.log.checkpoint import read_offsets, write_offsets
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.model import TopicPartition
from segmentlog.store.aside import put_file_aside, remove_deleted
from segmentlog.store.contract import FileType
from segmentlog.store.durable import remove_file, rename, sync_directory
from segmentlog.store.partitions import list_partitions
from segmentlog.store.readable import list_names, status_of
from segmentlog.txn.settings_file import SettingsFile
from segmentlog.txn.state import State

logger = logging.getLogger(__name__)

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
    """Whether a topic has a partition, or an entry in a checkpoint although somebody removed them.

    Without the partition, a writer refuses to make the topic again.
    """
    return bool(partition_directories(directory, topic)) or any(
        each.topic == topic for name in CHECKPOINTS for each in read_offsets(directory, name)
    )


def taken_out(directory: str, topic: str) -> list[str]:
    """Paths of directories that were renamed, and are not removed yet."""
    names = sorted(list_names(directory))
    return [os.path.join(directory, name) for name in names if is_deleted_directory(name, topic)]


def take_out(directory: str, topic: str, *, keeps_settings: bool = False) -> list[str]:
    """Rename the partitions of a topic, remove its checkpoints' entries, forget its settings.

    Returns the new paths.

    The directories are renamed first.  A partition that still has its directory, but no longer its
    high watermark, would be read to the log end.  Without its log start, it would be read from its
    first segment on.  Settings that stayed would be those of the next topic of that name, and
    retention would remove its records.
    """
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
    """Remove the renamed directories with their contents; a failure is only a warning.

    The topic is gone by then.  A starting broker removes them, too, and nothing waits for their
    disk space.

    `renamed`: only these paths; all of the topic by default, also those of its earlier deletions.
    """
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

    `path`: of the partition's directory.  `below`: base offset of the first segment that stays.
    `log_start`: the log start, which is on the disk as such.
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
