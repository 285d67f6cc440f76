"""The directories of partitions in a log directory, and the files in them that left their logs.

There is one listing for all callers.  A file leaves its log as on a broker: it is renamed, and
removed after a while.  A read that was planned before needs the bytes that it has planned.
Compaction puts another file under the name, which may lack records, because newer records after
the end of the read have replaced them.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import (
    DirectoryState,
    FileKind,
    FileState,
    is_deleted_directory,
    is_of_logs,
    parse_partition_directory,
    parse_segment_file,
)
from segmentlog.model import METADATA_TOPIC, TopicPartition
from segmentlog.store.durable import parent_of, remove_file, rename
from segmentlog.store.other_systems import refuse_other_systems
from segmentlog.store.readable import FileType, is_directory, list_entries, list_names, status_of


class NamedPartition(NamedTuple):
    """An entry with the name of a partition's directory."""

    topic_partition: TopicPartition
    path: str  # of the entry
    state: DirectoryState  # by its name: in use, being deleted, of a future replica, or stray
    type: FileType  # readers and writers leave out links and files, and say so

    @property
    def name(self) -> str:
        """Name of the directory."""
        return os.path.basename(self.path)

    @property
    def is_current(self) -> bool:
        """Whether the name is that of a partition in use."""
        return self.state == DirectoryState.CURRENT

    def is_deleted_of(self, topic_partition: TopicPartition) -> bool:
        """Whether the name is that of a deleted partition, whose topic may be cut short in it."""
        is_same = self.topic_partition.partition == topic_partition.partition
        return is_same and is_deleted_directory(self.name, topic_partition.topic)

    @property
    def is_metadata(self) -> bool:
        """Whether it is the log of the cluster's metadata, for which other rules hold."""
        return self.topic_partition.topic == METADATA_TOPIC


def list_partitions(directory: str) -> list[NamedPartition]:
    """All such entries, of any state and type, sorted by name."""
    found = [named_partition(directory, *each) for each in list_entries(directory)]
    return sorted(filter(None, found), key=lambda each: each.path)


def current_partitions(directory: str) -> list[NamedPartition]:
    """The entries of partitions in use, for writers.

    Raises `LogDirectoryError` if the name of a directory has zeros before the number of its
    partition.
    """
    found = [each for each in list_partitions(directory) if each.is_current]
    for each in found:
        fault = misnamed(each.path, each.topic_partition)
        if fault is not None and each.type is FileType.DIRECTORY:
            raise fault
    return found


def named_partition(directory: str, name: str, kind: FileType) -> NamedPartition | None:
    """An entry of a log directory, if it has the name of a partition's directory."""
    parsed = parse_partition_directory(name)
    if parsed is None:
        return None
    return NamedPartition(parsed[0], os.path.join(directory, name), parsed[1], kind)


def misnamed(path: str, topic_partition: TopicPartition) -> LogDirectoryError | None:
    """The fault of a partition's directory whose number has zeros before it, such as ``t-00``."""
    # A broker takes ``t-00`` for partition 0, and does not start if ``t-0`` exists, too. A writer
    # would make ``t-0`` beside it.
    if os.path.basename(path) == str(topic_partition):
        return None
    reason = (
        f"has zeros in its name, and a broker takes it for partition {topic_partition}: "
        f"rename it to {topic_partition}, or move it out of the log directory if both exist"
    )
    return LogDirectoryError(path, reason)


def logs_in(path: str) -> list[str]:
    """Names of the ``.log`` files of a partition."""
    return logs_among(list_names(path))


def logs_among(names: Iterable[str]) -> list[str]:
    """Those of ``.log`` files among the names of a partition's files."""
    # While its only segment is exchanged, and after a crash there, only the ``.swap`` file is
    # there.
    return [name for name in names if name.endswith((".log", f".log.{FileState.SWAP}"))]


def refuse_partition(directory: str) -> None:
    """Refuse the directory of a partition, or of another system, as a log directory."""
    # A log directory may have a name of that form, such as ``logs-1``, but holds no ``.log`` file.
    has_form = parse_partition_directory(os.path.basename(directory)) is not None
    if has_form and is_directory(directory) and logs_in(directory):
        reason = "is a partition directory; name the log directory that holds it"
        raise LogDirectoryError(directory, reason)
    if is_directory(directory) and not any(map(is_of_logs, list_names(directory))):
        refuse_other_systems(directory)


logger = logging.getLogger(__name__)

_LOG = f".{FileKind.LOG}"
_MINUTE_NS = 60 * 10**9


def put_file_aside(directory: str, name: str) -> None:
    """Rename a file of a segment to ``.deleted``; the caller syncs the directory."""
    # Two compactions within ``file.delete.delay.ms`` put aside two files of one name. The earlier
    # log gets a name with its inode, and stays as long as the later one. Brokers remove both when
    # they start (``LogLoader`` looks at the ending).
    aside = os.path.join(directory, f"{name}.{FileState.DELETED}")
    if name.endswith(_LOG):
        with contextlib.suppress(FileNotFoundError):
            _, by_inode = names_aside(os.path.join(directory, name), os.stat(aside).st_ino)
            rename(aside, by_inode)
    rename(os.path.join(directory, name), aside)


def names_aside(path: str, inode: int) -> tuple[str, str]:
    """The two possible paths of a file that has left the log."""
    return f"{path}.{FileState.DELETED}", f"{path}.{inode}.{FileState.DELETED}"


def remove_deleted(
    path: str, delay_ms: int, before: Callable[[], None] | None = None, *, below: int | None = None
) -> bool:
    """Remove files that left the log `delay_ms` ago or longer; a failure is only a warning.

    A rename changes the time at which a file's entry was last changed, and nothing else does.  The
    log no longer needs these files, so their removal only frees disk space.

    Accepted: a clock that has jumped forward by the delay or more removes files that readers still
    need.  Such a reader fails with `LogChangedError`, and reads nothing wrong.  A time that is
    ahead of the clock by more than a minute, and by more than the delay, comes from a clock that
    was ahead.  It is set to now: otherwise the files would keep their disk space for as long as
    that clock was ahead.

    `path`: of the partition's directory; the caller holds the lock of its log directory.
    `delay_ms`: ``file.delete.delay.ms`` of the topic.  `before`: is called before a file is
    removed.  `below`: only files of segments whose base offset is below this one; all by default.
    Returns whether none of these files is left.
    """
    now_ns, delay_ns = int(time.time() * 10**9), delay_ms * 10**6
    try:
        names = sorted(list_names(path))
    except FileNotFoundError:  # its topic is gone
        return True
    except OSError as error:
        logger.warning("%s: its deleted files are not removed: %s", path, error.strerror)
        return False
    is_done = True
    for name in names:
        parsed = parse_segment_file(name)
        if parsed is None or parsed.state is not FileState.DELETED:
            continue
        if below is not None and parsed.offset >= below:
            continue
        file = os.path.join(path, name)
        try:
            changed_ns = status_of(file).changed_ns
            is_due = changed_ns <= now_ns - delay_ns
            if changed_ns > now_ns + max(delay_ns, _MINUTE_NS):
                with parent_of(file) as (parent, own_name):
                    os.utime(own_name, dir_fd=parent, follow_symlinks=False)
            if is_due and before is not None:
                before()
            if is_due:
                remove_file(file)
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("%s is not removed: %s", file, error)
            is_due = False
        is_done = is_done and is_due
    return is_done
