"""Segments below the log start on their way out: renamed as a broker does it (``….deleted``).

A starting broker removes files with such names.  No reader takes them for part of the log, but a
reader that has planned to read one finds it under its new name.  The files are removed once the
``file.delete.delay.ms`` of their topic has passed since the rename: by the next job, retention or
compaction.  With a delay of 0 they go with the change itself.
"""

from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias

from segmentlog.format.names import FileKind, FileState, parse_segment_file
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.model import TopicPartition
from segmentlog.store.aside import put_file_aside, remove_deleted
from segmentlog.store.contract import FileType
from segmentlog.store.durable import sync_directory
from segmentlog.store.partitions import list_partitions
from segmentlog.store.readable import list_names
from segmentlog.txn.state import State

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
