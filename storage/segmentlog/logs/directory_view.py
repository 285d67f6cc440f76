"""One log directory at one moment: its partitions, its checkpoints, and what has changed since.

A later view takes over what is proven to be unchanged.  Four things at the top of a directory show
every change that a reader may see without opening a partition:

- the names and inodes of its subdirectories: partitions, and guards of unfinished commits;
- the state, which every commit of our own replaces (`segmentlog.commit.stamp`);
- the checkpoints of high watermarks, log starts, cleaned parts and recovery points;
- the mark of a clean stop, and the name of ``meta.properties``.

`segmentlog.disk.look` finds that none of these files has changed with a call of ``stat`` for each.
A broker replaces its checkpoints every few seconds, mostly with the same bytes, and a replacement
changes the time of the directory, too.  So names and bytes are then read and compared.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from operator import attrgetter, is_

from segmentlog.commit.stamp import read_stamp
from segmentlog.commit.state import STATE_FILE
from segmentlog.disk.contract import Entry, FileType
from segmentlog.disk.look import Look, look
from segmentlog.disk.readable import exists, list_entries
from segmentlog.disk.remote.location import is_url
from segmentlog.errors import CorruptCheckpointError, LogDirectoryError
from segmentlog.layout.checkpoint import OffsetsAsRead, read_again
from segmentlog.layout.partitions import NamedPartition, named_partition
from segmentlog.model import TopicPartition
from segmentlog.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_CHECKPOINT,
    parse_partition_directory,
    partition_path,
)
from segmentlog.reads.moment import Census

__all__ = ["DirectoryView"]

logger = logging.getLogger(__name__)

_CHECKPOINTS = (
    HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT, CLEANER_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)  # fmt: skip
#: The directory itself comes first: a network client that opens it asks for its names again.
_LOOKED_AT = ("", STATE_FILE, *_CHECKPOINTS)
_MARKS = frozenset({CLEAN_SHUTDOWN_FILE, META_PROPERTIES_FILE})
_OF_A_BROKER = (
    META_PROPERTIES_FILE, HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT, CLEAN_SHUTDOWN_FILE,
    STATE_FILE,
)  # fmt: skip


class DirectoryView:
    """One log directory, as it was at the moment when it was opened.

    Parameters
    ----------
    path : absolute path, or a URL.
    before : an earlier view of it.
    """

    def __init__(self, path: str, before: "DirectoryView | None" = None) -> None:
        self.path = path
        self._looks = () if is_url(path) else self._look(before)  # before anything is read
        self._names: dict[str, int] = {}
        self._by_name: dict[str, NamedPartition] = {}
        known = before._by_name if before else {}
        census = before.census if before else None
        self.census: Census = Census(path, partial(self._list, known), census)
        self._read: dict[str, OffsetsAsRead] = {
            name: read_again(path, name, before._read[name] if before else None)
            for name in (CLEANER_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT)
        }

    def partitions(self) -> Mapping[TopicPartition, str]:
        """Paths of the partition directories that are in use.

        Raises
        ------
        LogDirectoryError
            If the path is not a log directory.
        """
        found = self.census.partitions
        if not found and not any(exists(os.path.join(self.path, name)) for name in _OF_A_BROKER):
            reason = (
                "holds neither a directory named <topic>-<partition> nor a broker's files; "
                "name a directory of Kafka's log.dirs, a partition directory or a .log file"
            )
            raise LogDirectoryError(self.path, reason)
        for path in self._links:
            logger.warning("%s is a symbolic link and is left out", path)
        return found

    def missing(self) -> dict[TopicPartition, int]:
        """High watermarks of partitions that are promised, and not there under any name.

        A high watermark of 0 promises nothing: a writer sets it before it makes the partition.  A
        broker leaves the high watermarks of a directory as they are when its last partition goes
        (``ReplicaManager.checkpointHighWatermarks``), but writes recovery points at each deletion
        and each move (``LogManager.asyncDelete``).  So a broker promises the partitions that both
        checkpoints name.
        """
        absent = self._absent
        if absent and exists(os.path.join(self.path, META_PROPERTIES_FILE)):
            points = self._read[RECOVERY_POINT_CHECKPOINT].offsets
            if not isinstance(points, CorruptCheckpointError):
                absent = {each: end for each, end in absent.items() if each in points}
        return {
            each: end
            for each, end in absent.items()
            if each.topic not in self.census.opened.gone
            and not any(one.is_deleted_of(each) for one in self._named)
            and not exists(partition_path(self.path, each))  # a broker may have just made it
        }

    @cached_property
    def _absent(self) -> dict[TopicPartition, int]:
        ends = self.census.opened.high_watermarks
        if isinstance(ends, CorruptCheckpointError):
            return {}  # a read that needs them reports that
        named = {each.topic_partition for each in self._named}
        return {each: end for each, end in ends.items() if end > 0 and each not in named}

    def renewed(self) -> "DirectoryView":
        """A view of the directory as it is now; this one, if nothing has changed.

        Raises
        ------
        OSError, LogDirectoryError, CorruptCheckpointError
            If the directory cannot be read.
        """
        looks = self._look(self)
        opened = self.census.opened
        is_same = all(map(is_, looks, self._looks)) or self._reads_the_same(looks)
        if is_same and opened.is_complete and self.census.unbounded_are_unchanged():
            self._looks = looks
            return self
        return DirectoryView(self.path, self)

    def moved_since(self, before: "DirectoryView") -> set[TopicPartition] | None:
        """Partitions whose logs may not be as they were; None if that may be any of them."""
        if before is self:
            return set()
        now, then = self.census.opened, before.census.opened
        cleaned = self._read[CLEANER_OFFSET_CHECKPOINT].moved_since(
            before._read[CLEANER_OFFSET_CHECKPOINT]
        )
        moved = now.moved_since(then)
        if moved is None or cleaned is None:
            return None
        deleted = now.deleted_since(then)
        replaced = {
            name for name, inode in before._names.items() if self._names.get(name) != inode
        }
        return moved | cleaned | {
            each.topic_partition
            for each in before._named
            if each.name in replaced or each.topic_partition.topic in deleted
        }  # fmt: skip

    def _look(self, before: "DirectoryView | None") -> tuple[Look, ...]:
        known: Sequence[Look | None] = before._looks if before else [None] * len(_LOOKED_AT)
        return tuple(map(look, self._paths, known))

    @cached_property
    def _paths(self) -> list[str]:
        return [os.path.join(self.path, name) if name else self.path for name in _LOOKED_AT]

    def _reads_the_same(self, looks: Sequence[Look]) -> bool:
        """Whether the names and the bytes that have perhaps changed are those of this view."""
        opened = self.census.opened
        was = {
            HIGH_WATERMARK_CHECKPOINT: opened.ends_read,
            LOG_START_CHECKPOINT: opened.starts_read,
            **self._read,
        }
        for name, now, then in zip(_LOOKED_AT, looks, self._looks, strict=True):
            if now is then or name == STATE_FILE:
                continue
            if not name:
                if _names(list_entries(self.path)) != self._names:
                    return False
            elif (again := read_again(self.path, name, was[name])) is not was[name]:
                if name != RECOVERY_POINT_CHECKPOINT or self._absent:
                    return False
                self._read[name] = again  # it matters only where partitions are missing
        return read_stamp(self.path) == opened.stamp

    def _list(self, known: Mapping[str, NamedPartition]) -> dict[TopicPartition, str]:
        entries = list_entries(self.path)
        self._names = _names(entries)
        named = []
        for entry in entries:
            each = known.get(entry.name)
            if each is None or (each.inode, each.type) != (entry.inode, entry.type):
                each = named_partition(self.path, entry)
            if each is not None:
                named.append(each)
        named.sort(key=attrgetter("path"))
        self._named = named
        self._by_name = {each.name: each for each in named}
        found, self._links = {}, []
        for each in named:
            if not each.is_current:
                continue
            if each.type is FileType.LINK:
                self._links.append(each.path)
            elif each.type is FileType.DIRECTORY and not each.is_metadata:
                found[each.topic_partition] = each.path
        return found


def _names(entries: Iterable[Entry]) -> dict[str, int]:
    """Names that a reader looks at, with their inodes; other files come and go with every job."""
    return {
        name: inode if kind is not FileType.FILE else 0
        for name, kind, inode in entries
        if kind is not FileType.FILE or name in _MARKS or parse_partition_directory(name)
    }
