"""Names that a broker gives to directories and files, and their meaning for a reader.

A log directory holds one directory for each topic-partition, named ``<topic>-<partition>``.  A
directory that is being moved or deleted, or that the cluster does not assign to the broker, has a
suffix:
``<topic>-<partition>.<unique id>-future``, ``-delete``, ``-stray``.  Files inside are named by
the base offset of their segment in 20 digits and their kind.  A state may follow, which shows that
the file is not part of the log: ``00000000000000000042.log.deleted``.  If
the name is taken, the inode is added to it (`segmentlog.store.partitions`).

Rules: ``LocalLog.parseTopicPartitionName``, ``UnifiedLog.DELETE_DIR_PATTERN``, ``LogFileUtils``,
``Topic.validate``.
"""

import os
import re
import uuid
from enum import StrEnum
from typing import NamedTuple

from segmentlog.arguments import instance_of
from segmentlog.errors import OptionError
from segmentlog.model import INTERNAL_TOPICS, LARGEST_LONG, METADATA_TOPIC, TopicPartition

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
LOCK_FILE = ".lock"
META_PROPERTIES_FILE = "meta.properties"
BOOTSTRAP_FILE = "bootstrap.checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
SETTINGS_FILE = "segmentlog.settings"  #: ours: settings of topics in a directory without a broker
STAGE_SUFFIX = ".stage"  #: ours: of files with batches that are not committed yet

_OF_LOGS = ("segmentlog.", META_PROPERTIES_FILE, CLEAN_SHUTDOWN_FILE)
_LARGEST_PARTITION = 2**31 - 1
_LONGEST_NAME = 255  #: of a file, in bytes, on every file system that brokers run on

_TOPIC = r"[a-zA-Z0-9._-]{1,249}"
_LEGAL_TOPIC = re.compile(_TOPIC)
_DIRECTORY = re.compile(
    rf"(?P<topic>{_TOPIC})-"
    # A broker writes 32 hexadecimal digits, and takes any word without a dot.
    r"(?P<partition>[0-9]{1,10})(\.[^\s./]+-(?P<state>future|delete|stray))?",
    re.ASCII,
)
_FILE = re.compile(
    r"(?P<offset>[0-9]{20})\.(?P<kind>log|index|timeindex|txnindex|snapshot)"
    r"((\.[0-9]{1,20})?\.(?P<deleted>deleted)|\.(?P<state>cleaned|swap))?"
)


class DirectoryState(StrEnum):
    """State of a partition directory."""

    CURRENT = "current"
    FUTURE = "future"  #: a replica that is being moved here from another log directory
    DELETE = "delete"  #: waiting for its deletion
    STRAY = "stray"  #: a partition that the cluster does not assign to this broker


class FileKind(StrEnum):
    """Kind of a file in a partition directory."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    SNAPSHOT = "snapshot"


#: Indexes that each segment has.
SPARSE_INDEXES = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
#: All indexes of a segment; the last one is there only if a transaction was aborted.
INDEXES = (*SPARSE_INDEXES, FileKind.TRANSACTION_INDEX)
#: Files that each segment has.
LOG_AND_SPARSE_INDEXES = (FileKind.LOG, *SPARSE_INDEXES)
#: All files of a segment.
LOG_AND_ALL_INDEXES = (FileKind.LOG, *INDEXES)


class FileState(StrEnum):
    """State of a file that enters or leaves the log."""

    LIVE = "live"
    DELETED = "deleted"  #: out of the log, its removal scheduled
    CLEANED = "cleaned"  #: compaction is still writing it
    SWAP = "swap"  #: compaction has finished it, and is moving it into the log


#: A look-up takes a tenth of the time of a call of the class, once for each file of a log.
_KINDS = {str(each): each for each in FileKind}
_STATES = {str(each): each for each in FileState}


class SegmentFileName(NamedTuple):
    """A parsed file name; `offset` is the segment's base offset, or a snapshot's end."""

    offset: int
    kind: FileKind
    state: FileState


def topics_command(topic: str, *words: str) -> str:
    """The line for a shell that gives a topic to Kafka's command, with ``BOOTSTRAP`` to replace.

    `words`: its arguments, in which an empty one is the place of the topic.
    """
    # A name may begin with a dash, which would be an option.
    given = f"--topic={topic}" if topic.startswith("-") else f"--topic {topic}"
    return " ".join(
        ["kafka-topics.sh --bootstrap-server BOOTSTRAP", *(each or given for each in words)]
    )


def check_topic_name(topic: str) -> None:
    """Refuse names that Kafka refuses (``Topic.validate``), and those of brokers' own topics."""
    accepted = "a topic is 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'"
    instance_of("topic", topic, str, accepted)
    if topic in {".", ".."} or _LEGAL_TOPIC.fullmatch(topic) is None:
        raise OptionError("topic", topic, accepted)
    if topic in INTERNAL_TOPICS or topic == METADATA_TOPIC:
        raise OptionError("topic", topic, "this topic is reserved for brokers")


def parse_partition_directory(name: str) -> tuple[TopicPartition, DirectoryState] | None:
    """Topic, partition and state of a directory, or None if it is not a partition's."""
    # The last dash separates them: ``a-b-3`` is partition 3 of ``a-b``.
    match = _DIRECTORY.fullmatch(name)
    if match is None:
        return None
    topic, partition = match["topic"], int(match["partition"])
    if topic in {".", ".."} or partition > _LARGEST_PARTITION:
        return None
    state = DirectoryState(match["state"]) if match["state"] else DirectoryState.CURRENT
    return TopicPartition(topic, partition), state


def deleted_directory_name(topic_partition: TopicPartition) -> str:
    """A new name for a partition that is being deleted (``LocalLog.logDeleteDirName``)."""
    # A long topic is cut to its beginning: the file system bounds the length of names.
    suffix = f"-{topic_partition.partition}.{uuid.uuid4().hex}-{DirectoryState.DELETE}"
    return topic_partition.topic[: _LONGEST_NAME - len(suffix)] + suffix


def is_deleted_directory(name: str, topic: str) -> bool:
    """Whether a directory has such a name, of a partition of the topic."""
    parsed = parse_partition_directory(name)
    is_deleted = parsed is not None and parsed[1] == DirectoryState.DELETE
    return is_deleted and is_renamed_directory(name, topic)


def is_renamed_directory(name: str, topic: str) -> bool:
    """Whether a directory is that of a partition of the topic, and is renamed in any way."""
    parsed = parse_partition_directory(name)
    if parsed is None or parsed[1] == DirectoryState.CURRENT:
        return False
    is_cut = len(name) == _LONGEST_NAME and topic.startswith(parsed[0].topic)
    return is_cut or parsed[0].topic == topic


def parse_segment_file(name: str) -> SegmentFileName | None:
    """Offset, kind and state of a file, or None if it does not belong to a segment."""
    match = _FILE.fullmatch(name)
    if match is None or int(match["offset"]) > LARGEST_LONG:
        return None
    state = _STATES[match["state"] or match["deleted"] or FileState.LIVE]
    return SegmentFileName(int(match["offset"]), _KINDS[match["kind"]], state)


def is_of_logs(name: str) -> bool:
    """Whether a broker or a writer has made this entry of a log directory; False for the lock."""
    # A directory without such entries is new, even if it has other entries, such as
    # ``lost+found``, or the settings of topics that are not written yet.
    return name != SETTINGS_FILE and bool(
        parse_partition_directory(name)
        or parse_segment_file(name)
        or name.startswith(_OF_LOGS)
        or "checkpoint" in name  # also its temporary file
    )


def segment_file_name(base_offset: int, kind: FileKind) -> str:
    """Name of a live file: ``00000000000000000042.log``."""
    return f"{base_offset:020d}.{kind}"


def partition_path(directory: str, topic_partition: TopicPartition) -> str:
    """Path of a partition's directory in a log directory."""
    return os.path.join(directory, str(topic_partition))
