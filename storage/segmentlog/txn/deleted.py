"""Take a deleted topic out: rename its partitions as a broker does, then remove them.

A starting broker removes directories with such names, and no reader takes them for partitions.
Every function here can be repeated: it passes over steps that are already done.
"""

import logging
import os
import shutil

from segmentlog.errors import SyncFailedError
from segmentlog.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    DirectoryState,
    deleted_directory_name,
    is_deleted_directory,
)
from segmentlog.log.checkpoint import read_offsets, write_offsets
from segmentlog.model import TopicPartition
from segmentlog.store.contract import FileType
from segmentlog.store.durable import remove_file, rename, sync_directory
from segmentlog.store.partitions import list_partitions
from segmentlog.store.readable import list_names, status_of
from segmentlog.txn.settings_file import SettingsFile

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


def take_out(directory: str, topic: str, *, keeps_settings: bool = False) -> None:
    """Rename the partitions of a topic, remove its checkpoints' entries, forget its settings.

    The directories are renamed first.  A partition that still has its directory, but no longer its
    high watermark, would be read to the log end.  Without its log start, it would be read from its
    first segment on.  Settings that stayed would be those of the next topic of that name, and
    retention would remove its records.
    """
    for topic_partition, path in partition_directories(directory, topic):
        rename(path, os.path.join(directory, deleted_directory_name(topic_partition)))
    sync_directory(directory)
    for name in CHECKPOINTS:
        offsets = read_offsets(directory, name)
        left = {each: offset for each, offset in offsets.items() if each.topic != topic}
        if left.keys() != offsets.keys():
            write_offsets(directory, name, left)
    if not keeps_settings:
        SettingsFile.forget(directory, topic)


def remove_taken_out(directory: str, topic: str) -> None:
    """Remove the renamed directories with their contents; a failure is only a warning.

    The topic is gone by then.  A starting broker removes them, too, and nothing waits for their
    disk space.
    """
    try:
        paths = taken_out(directory, topic)
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
