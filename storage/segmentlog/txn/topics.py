"""Make the partitions of a topic in a log directory, as a broker does for its controller.

A broker in KRaft mode knows its topics from the cluster's metadata, not from directories.  It
moves an unknown topic aside as stray.  So topics for a broker are created with the broker.
"""

import base64
import contextlib
import os
import uuid
from functools import partial

from segmentlog.errors import LogDirectoryError, UnknownTopicOrPartitionError
from segmentlog.format.names import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_AND_SPARSE_INDEXES,
    PARTITION_METADATA_FILE,
    FileKind,
    FileState,
    parse_segment_file,
    partition_path,
    segment_file_name,
)
from segmentlog.log.checkpoint import read_offsets, write_leader_epochs, write_offsets
from segmentlog.log.metadata import known_topic_id, read_topic_id
from segmentlog.model import TopicPartition
from segmentlog.store.contract import FileType
from segmentlog.store.durable import create_directory, create_file, replace_file, sync_directory
from segmentlog.store.partitions import current_partitions, logs_in
from segmentlog.store.readable import exists, list_names, status_of
from segmentlog.store.sync_together import do_together
from segmentlog.store.system_errors import MAY_WRITE, may_write, why_not_written

MOST_PARTITIONS = 1_000_000  #: of a topic that is created: far more than a broker can serve


def check_partition_path(path: str) -> None:
    """Refuse to write to a partition whose path is not a directory, or not writable for this user.

    Readers leave out links and files: rows in their target would never be seen.

    Raises `LogDirectoryError` if the path is a symbolic link or another file; if the directory or
    its active segment may not be written to.
    """
    found = _type_of(path)
    if found is FileType.LINK:
        reason = (
            "is a symbolic link, which readers leave out: replace the link by its target, moved "
            "or mounted there"
        )
        raise LogDirectoryError(path, reason)
    if found not in (FileType.DIRECTORY, None):
        reason = "is not a directory, but has the name of a partition: move it out of the way"
        raise LogDirectoryError(path, reason)
    with contextlib.suppress(FileNotFoundError):
        if not may_write(path, MAY_WRITE | os.X_OK):
            raise LogDirectoryError(path, why_not_written(path))
        parsed = filter(None, map(parse_segment_file, list_names(path)))
        live_log = FileKind.LOG, FileState.LIVE
        bases = [each.offset for each in parsed if (each.kind, each.state) == live_log]
        for kind in LOG_AND_SPARSE_INDEXES if bases else ():
            file = os.path.join(path, segment_file_name(max(bases), kind))
            if exists(file) and not may_write(file):
                raise LogDirectoryError(file, why_not_written(file))


def _type_of(path: str) -> FileType | None:
    """Type of the file with this name, without following a link; None if there is none."""
    try:
        return status_of(path).type
    except FileNotFoundError:
        return None


def create_partitions(directory: str, topic: str, n_partitions: int) -> None:
    """Make the partitions of a new topic, or the partitions that a crash has left out.

    The caller holds the lock.  The high watermarks are written first: no reader ever takes the log
    end for the end of the committed records, and after a crash they show which partitions were to
    be made.  The last partition is made next, because it shows how many partitions there are.

    `n_partitions`: number of partitions, for a topic that does not exist yet.  Raises
    `LogDirectoryError` if a link or a file has the name of a partition, or the partition may not
    be written to; `UnknownTopicOrPartitionError` if a partition that had records is missing.
    """
    offsets = dict(read_offsets(directory, HIGH_WATERMARK_CHECKPOINT))
    known = {each for each in offsets if each.topic == topic}
    # With those that have a directory, also an empty one.
    there = [each.topic_partition for each in current_partitions(directory)]
    known |= {each for each in there if each.topic == topic}
    wanted = known or {TopicPartition(topic, number) for number in range(n_partitions)}
    for each in wanted:
        check_partition_path(partition_path(directory, each))
    missing = [each for each in sorted(wanted, reverse=True) if not _is_there(directory, each)]
    if not missing:
        return
    for each in missing:
        if offsets.get(each, 0):
            hint = (
                f"its high watermark is {offsets[each]}, and its log is gone: put the log back, "
                "or delete the whole topic (segmentlog delete-topic)"
            )
            raise UnknownTopicOrPartitionError(*each, directory, hint)
    offsets.update((each, 0) for each in missing)
    write_offsets(directory, HIGH_WATERMARK_CHECKPOINT, offsets)
    topic_id = _topic_id(directory, sorted(wanted))
    last, *others = [partition_path(directory, each) for each in missing]
    for paths in ([last], others):
        do_together(partial(_create, topic_id=topic_id), paths)
        if paths:
            sync_directory(directory)


def create_replica(directory: str, topic_partition: TopicPartition, topic_id: str) -> None:
    """Make one partition of a broker's topic, as the broker makes it at its next start.

    The caller holds the lock.  A partition that is there stays; one that a crash has left without
    a segment or a topic id is completed.  A broker writes the id after the segment, and moves a
    partition without an id aside.

    `topic_id`: by the metadata of the cluster, as Kafka prints it.  Raises `LogDirectoryError` if
    a link or a file has the name of the partition, or it may not be written to.
    """
    path = partition_path(directory, topic_partition)
    check_partition_path(path)
    if _is_there(directory, topic_partition):
        if not known_topic_id(path):
            write_topic_id(path, topic_id)
            sync_directory(path)
        return
    offsets = dict(read_offsets(directory, HIGH_WATERMARK_CHECKPOINT))
    write_offsets(directory, HIGH_WATERMARK_CHECKPOINT, offsets | {topic_partition: 0})
    _create(path, topic_id)
    sync_directory(directory)


def _is_there(directory: str, topic_partition: TopicPartition) -> bool:
    path = partition_path(directory, topic_partition)
    try:
        return bool(logs_in(path))
    except FileNotFoundError:
        return False


def _topic_id(directory: str, partitions: list[TopicPartition]) -> str:
    """The topic's id, or a new one."""
    for each in partitions:
        known = read_topic_id(partition_path(directory, each))
        if known:
            return known
    while True:  # Kafka's command line would take a leading dash for an option
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


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


def write_topic_id(path: str, topic_id: str) -> None:
    """Write ``partition.metadata``; the caller syncs its name."""
    metadata = f"version: 0\ntopic_id: {topic_id}"
    replace_file(os.path.join(path, PARTITION_METADATA_FILE), metadata.encode(), sync_name=False)
