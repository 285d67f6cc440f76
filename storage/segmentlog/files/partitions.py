"""The directories of partitions in a log directory: one listing for all callers."""

import os
from typing import NamedTuple

from segmentlog.files.names import DirectoryState, parse_partition_directory
from segmentlog.files.readable import FileType, list_entries
from segmentlog.model import METADATA_TOPIC, TopicPartition

__all__ = ["NamedPartition", "list_partitions"]


class NamedPartition(NamedTuple):
    """An entry with the name of a partition's directory.

    Attributes
    ----------
    path : of the entry.
    state : by its name: in use, being deleted, of a future replica, or stray.
    type : readers and writers leave out links and files, and say so.
    """

    topic_partition: TopicPartition
    path: str
    state: DirectoryState
    type: FileType

    @property
    def name(self) -> str:
        """Name of the directory."""
        return os.path.basename(self.path)

    @property
    def is_current(self) -> bool:
        """Whether the name is that of a partition in use."""
        return self.state == DirectoryState.CURRENT

    @property
    def is_metadata(self) -> bool:
        """Whether it is the log of the cluster's metadata, for which other rules hold."""
        return self.topic_partition.topic == METADATA_TOPIC


def list_partitions(directory: str) -> list[NamedPartition]:
    """All such entries, of any state and type, sorted by name.

    Raises
    ------
    OSError
        If the directory cannot be listed.
    """
    found = []
    for name, kind in list_entries(directory):
        parsed = parse_partition_directory(name)
        if parsed is not None:
            found.append(NamedPartition(parsed[0], os.path.join(directory, name), parsed[1], kind))
    return sorted(found, key=lambda each: each.path)
