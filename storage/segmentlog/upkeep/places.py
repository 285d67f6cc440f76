"""The directory that upkeep works on: found, locked, and without unfinished commits."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator

from segmentlog.arguments import topic_names
from segmentlog.commit.guard import list_guards
from segmentlog.commit.unfinished import recover_commits
from segmentlog.disk.lock import DirectoryLock
from segmentlog.disk.paths import local_path
from segmentlog.disk.readable import exists
from segmentlog.errors import LogDirectoryError
from segmentlog.layout.partitions import refuse_partition
from segmentlog.logs.log_directory import open_log_dir
from segmentlog.model import INTERNAL_TOPICS, TopicPartition
from segmentlog.names import LOCK_FILE

__all__ = ["locked", "log_directory", "partitions_of"]


def log_directory(path: str | os.PathLike[str]) -> str:
    """The absolute path of a log directory.

    Raises
    ------
    LogDirectoryError
        If `path` is something else.
    """
    directory = local_path(path)
    refuse_partition(directory)
    open_log_dir(directory).topic_partitions()  # otherwise the lock would leave a file anywhere
    return directory


@contextlib.contextmanager
def locked(
    directory: str,
    timeout_seconds: float,
    *,
    dry_run: bool,
    make_room: Callable[[], object] | None = None,
) -> Iterator[DirectoryLock | None]:
    """Hold the lock of a directory whose unfinished commits are finished or undone.

    Yields the lock, or None in a dry run: no file may be changed then, and no lock file is left.

    Parameters
    ----------
    directory : the log directory.
    timeout_seconds : how long to wait for a writer.
    dry_run : whether nothing may be changed.
    make_room : is called first if files may be changed.  A full disk would otherwise keep out the
        very command that frees space, because a guard and a state need some.

    Raises
    ------
    LogLockedError
        If a broker or a writer holds the directory.
    LogDirectoryError
        If this is a dry run, and a commit is unfinished.
    """
    if dry_run and not exists(os.path.join(directory, LOCK_FILE)):  # no other process holds it
        _refuse_guards(directory)
        yield None
        return
    with DirectoryLock(directory, timeout_seconds) as lock:
        if dry_run:
            _refuse_guards(directory)
        else:
            if make_room is not None:
                make_room()
            recover_commits(directory)
        yield None if dry_run else lock


def partitions_of(
    directory: str, topics: str | Collection[str], *, has_settings: bool
) -> list[TopicPartition]:
    """The partitions to look at; raises for a topic that the directory does not hold.

    Settings that are given for all topics are not meant for those of brokers: a policy of
    ``delete`` would take away committed offsets.

    Parameters
    ----------
    topics : one name or several; all topics if empty, but none of brokers' own if `has_settings`.

    Raises
    ------
    UnknownTopicOrPartitionError
        If the directory does not hold a topic.
    """
    opened = open_log_dir(directory)
    held = opened.topics(internal=True)
    topics = topic_names("topics", topics)
    for topic in topics:
        if topic not in held:
            opened.log(topic, -1)  # raises, and names the nearest topic
    wanted = topics or (held.keys() - INTERNAL_TOPICS if has_settings else held.keys())
    return [each for each in opened.topic_partitions() if each.topic in wanted]


def _refuse_guards(directory: str) -> None:
    if list_guards(directory):
        reason = "has an unfinished commit; run segmentlog recover first"
        raise LogDirectoryError(directory, reason)
