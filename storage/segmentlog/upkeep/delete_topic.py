"""Delete a topic from a log directory: at any crash, all of its partitions remain, or none.

The order of the durable steps gives this property; each is on the disk before the next begins.

1. The guard is made, with an intent that names the topic: no broker starts from here on.  Nothing
   of the topic is touched yet, so a crash up to the decision is undone by removing the guard.
2. The next state, without the entries of the topic, is renamed from the guard to
   `segmentlog.state`: **the decision**.  Readers that open the directory leave the topic out,
   and readers that have opened it fail with `LogChangedError` when they list a partition again.
   The state has a new stamp, so no listing of the topic spans the decision.
3. The partitions are renamed as a broker renames them; their entries leave the checkpoints, and
   the settings of the topic are forgotten.
4. The mark of a clean stop comes back, and the guard goes: a broker may start.
5. The renamed directories are removed.  If a crash or a failure leaves some, a starting broker or
   the same command removes them.

A crash after the decision is finished by the next writer, or by recovery
(`segmentlog.commit.unfinished`).
"""

import contextlib
import os
import secrets
import time
from collections.abc import Iterable
from typing import NamedTuple

from segmentlog.commit.decision import decide, finish_decided, stand
from segmentlog.commit.deleted import (
    CHECKPOINTS,
    is_known,
    partition_directories,
    remove_taken_out,
    taken_out,
)
from segmentlog.commit.guard import Guard, Intent
from segmentlog.commit.room import drop_indexes, with_room
from segmentlog.commit.settings_file import SettingsFile
from segmentlog.commit.state import State
from segmentlog.commit.topics import check_partition_path
from segmentlog.commit.unfinished import give_up
from segmentlog.disk.readable import exists
from segmentlog.disk.system_errors import storage_errors
from segmentlog.errors import CorruptLogError, LogDirectoryError, LogLockedError, SyncFailedError
from segmentlog.layout.checkpoint import read_offsets
from segmentlog.logs.log_directory import open_log_dir
from segmentlog.names import CLEAN_SHUTDOWN_FILE, check_topic_name
from segmentlog.segments.listing import list_segments
from segmentlog.settings.directory_settings import DirectorySettings
from segmentlog.upkeep.places import locked, log_directory, remove_due

__all__ = ["DeletedTopic", "delete_topic"]


class DeletedTopic(NamedTuple):
    """A deleted topic: its numbers of partitions and segments, and bytes of ``.log`` files."""

    topic: str
    partitions: int
    segments: int
    n_bytes: int


@storage_errors()
def delete_topic(
    path: str | os.PathLike[str],
    topic: str,
    *,
    dry_run: bool = False,
    lock_timeout_seconds: float = 0.0,
) -> DeletedTopic:
    """Delete a topic from a log directory on which no broker is running.

    Operations that a crash has interrupted are finished or undone first.  The cluster of a broker
    may still know the topic: the broker then makes it again, empty, when it starts.

    Parameters
    ----------
    path : the log directory.
    topic : its name.  If somebody has removed its directories by hand, its entries in checkpoints
        and settings go.
    dry_run : whether nothing is changed, and the result is what would be deleted.
    lock_timeout_seconds : how long to wait for a writer.

    Raises
    ------
    OptionError
        If Kafka does not allow the name, or brokers keep the topic for themselves.
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
    directory = log_directory(path)

    def make_room() -> None:
        with contextlib.suppress(LogDirectoryError, CorruptLogError):  # metadata of a cluster
            remove_due(directory, topic, DirectorySettings.read(directory, is_optional=True))

    with locked(
        directory, lock_timeout_seconds, dry_run=dry_run, make_room=make_room
    ) as may_write:
        found = _found(directory, topic)
        is_gone = may_write and (
            not is_known(directory, topic)
            or with_room(lambda: _delete(directory, topic), lambda: _make_room(directory, topic))
        )
        if is_gone:
            # The guard is gone, too: a removal may take long, and a crash in it must not keep a
            # broker from starting.  The broker removes the rest.
            remove_taken_out(directory, topic)
    return found


def _found(directory: str, topic: str) -> DeletedTopic:
    """Count what would be deleted; raise if the topic cannot be deleted."""
    known = partition_directories(directory, topic)
    paths = [path for _, path in known]
    for path in paths:
        check_partition_path(path)
        if os.path.ismount(path):
            reason = "is a mount of its own and cannot be renamed: empty and unmount it first"
            raise LogDirectoryError(path, reason)
    paths += taken_out(directory, topic)  # by a deletion that was cut off
    if not paths and not is_known(directory, topic):
        open_log_dir(directory).log(topic, -1)  # raises, and names the nearest topic
    for name in CHECKPOINTS:
        read_offsets(directory, name)
    SettingsFile.read(directory)
    return _counted(topic, paths)


def _counted(topic: str, paths: Iterable[str]) -> DeletedTopic:
    n_partitions = n_segments = n_bytes = 0
    for path in paths:
        segments = list_segments(path)
        n_partitions += 1
        n_segments += len(segments)
        n_bytes += sum(each.size for each in segments)
    return DeletedTopic(topic, n_partitions, n_segments, n_bytes)


def _make_room(directory: str, topic: str) -> bool:
    """Drop the indexes of all segments of the topic."""
    is_freed = False
    for _, path in partition_directories(directory, topic):
        segments = [each.base_offset for each in list_segments(path)]
        is_freed = drop_indexes(path, segments) or is_freed
    return is_freed


def _delete(directory: str, topic: str) -> bool:
    """Steps 1 to 4; False if the next writer has to finish them."""
    state, token = State.read(directory), secrets.token_hex(8)
    was_clean = exists(os.path.join(directory, CLEAN_SHUTDOWN_FILE))
    guard = Guard.of_job(directory, token)
    intent = Intent(token, state.token, was_clean, is_flushed=True, partitions=(), deletes=topic)
    try:
        stand(directory, guard, intent)
        decide(directory, guard, state.without(topic, token, int(time.time() * 1000)))
    except (SyncFailedError, LogLockedError):
        raise
    except BaseException:
        if State.read(directory).token != token:  # an interrupt may follow the decision
            give_up(directory, guard, intent)
        raise
    return finish_decided(directory, guard, intent)
