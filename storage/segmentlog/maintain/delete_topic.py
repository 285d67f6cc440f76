"""Delete a topic from a log directory: after a crash, either all or none of its partitions remain.

The steps are those of every change (`segmentlog.txn.change`), without any work: nothing of the
topic is touched before the decision.  The next state lacks the entries of the topic.  From then
on, readers that open the directory leave the topic out, and readers that have opened it fail with
`LogChangedError` when they list a partition again.  The effect renames the partitions as a broker
renames them, and removes their entries from the checkpoints, and the settings of the topic.

The renamed directories are removed last, without the guard.  If a crash or a failure leaves some,
a starting broker or the same command removes them.
"""

import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from segmentlog.bucket.upkeep import remove_topic
from segmentlog.cluster.directory_settings import DirectorySettings
from segmentlog.dialects import one_dialect
from segmentlog.errors import CorruptLogError, LogDirectoryError
from segmentlog.format.names import check_topic_name
from segmentlog.log.checkpoint import read_offsets
from segmentlog.log.listing import list_segments
from segmentlog.maintain.places import log_directory, place_in_store
from segmentlog.model import LOCK_TIMEOUT_SECONDS
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.system_errors import storage_errors
from segmentlog.txn.change import Change
from segmentlog.txn.effects import TakeOut
from segmentlog.txn.held import HeldDirectory, hold
from segmentlog.txn.settings_file import SettingsFile
from segmentlog.txn.topics import (
    CHECKPOINTS,
    check_partition_path,
    is_known,
    partition_directories,
    remove_taken_out,
    taken_out,
)


class DeletedTopic(NamedTuple):
    """A deleted topic: its numbers of partitions and segments, and bytes of ``.log`` files."""

    topic: str
    partitions: int
    segments: int
    n_bytes: int


@one_dialect()
@storage_errors()
def delete_topic(
    path: str | os.PathLike[str],
    topic: str,
    *,
    dry_run: bool = False,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
) -> DeletedTopic:
    """Delete a topic from a log directory on which no broker is running.

    Operations that a crash has interrupted are finished or undone first.  The cluster of a broker
    may still know the topic: the broker then creates the topic again, empty, when it starts.

    Parameters
    ----------
    path : the log directory.
    topic : its name.  If somebody has removed its directories by hand, its entries in checkpoints
        and settings are removed.
    dry_run : whether nothing is changed, and the result is what would be deleted.
    lock_timeout_seconds : how long to wait for a writer.

    Raises
    ------
    OptionError
        If Kafka does not allow the name, or the topic is reserved for brokers.
    UnknownTopicOrPartitionError
        If the directory does not hold the topic.
    LogDirectoryError
        If `path` is not a log directory, or a partition cannot be renamed.
    LogLockedError
        If a broker or a writer holds the directory.
    CorruptCheckpointError
        If the checkpoints, the state or the settings cannot be read.
    CommitInDoubtError, SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    check_topic_name(topic)
    location = place_in_store(path)
    if location is not None:
        log_dir = open_log_dir(path)
        partitions = [each for each in log_dir.topic_partitions() if each.topic == topic]
        if not partitions:
            log_dir.log(topic, -1)  # raises, and names the nearest topic
        found = _counted(topic, [log_dir.log(*each).path for each in partitions])
        if not dry_run:
            remove_topic(location, topic, log_dir.log(*partitions[0]).known_topic_id)
        return found
    directory = log_directory(path)

    def make_room(held: HeldDirectory) -> None:
        with contextlib.suppress(LogDirectoryError, CorruptLogError):  # metadata of a cluster
            held.config_of = DirectorySettings.read(directory, is_optional=True).config
            held.remove_due([topic])

    with hold(
        directory, lock_timeout_seconds, dry_run=dry_run, make_room=make_room,
        effects=lambda: [TakeOut(topic)],
    ) as held:  # fmt: skip
        found = _found(directory, topic)
        if held.may_write and is_known(directory, topic):
            Change.begin(held).carry_out((), [TakeOut(topic)])
        elif held.may_write:
            remove_taken_out(directory, topic)
    return found


def _found(directory: str, topic: str) -> DeletedTopic:
    """Count what would be deleted; raise if the topic cannot be deleted."""
    known = partition_directories(directory, topic)
    paths = [path for _, path in known]
    for path in paths:
        check_partition_path(path)
        if os.path.ismount(path):
            reason = "is a mount point and cannot be renamed: first empty and unmount it"
            raise LogDirectoryError(path, reason)
    paths += taken_out(directory, topic)  # by a deletion that was cut off
    if not paths and not is_known(directory, topic):
        open_log_dir(directory).log(topic, -1)  # raises, and names the nearest topic
    for name in CHECKPOINTS:
        read_offsets(directory, name)
    SettingsFile.read(directory)
    return _counted(topic, paths)


def _counted(topic: str, paths: Sequence[str]) -> DeletedTopic:
    sizes = [list_segments(path).sizes for path in paths]
    return DeletedTopic(topic, len(paths), sum(map(len, sizes)), sum(map(sum, sizes)))
