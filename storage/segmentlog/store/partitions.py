"""The directories of partitions in a log directory: one listing for all callers."""

import os
from typing import NamedTuple

from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import (
    DirectoryState,
    FileState,
    is_deleted_directory,
    parse_partition_directory,
)
from segmentlog.model import METADATA_TOPIC, TopicPartition
from segmentlog.store.contract import FileType
from segmentlog.store.readable import is_directory, list_entries, list_names


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
    # While its only segment is exchanged, and after a crash there, only the ``.swap`` file is
    # there.
    return [name for name in list_names(path) if name.endswith((".log", f".log.{FileState.SWAP}"))]


def refuse_partition(directory: str) -> None:
    """Refuse the directory of a partition where a log directory is to be named."""
    # A log directory may have a name of that form, such as ``logs-1``, but holds no ``.log`` file.
    has_form = parse_partition_directory(os.path.basename(directory)) is not None
    if has_form and is_directory(directory) and logs_in(directory):
        reason = "is a partition directory; name the log directory that holds it"
        raise LogDirectoryError(directory, reason)
