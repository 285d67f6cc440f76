"""One log directory at one moment: its partitions, its checkpoints, and what has changed since.

A later view takes over what is proven to be unchanged.  Four things at the top of a directory show
every change that a reader may see without opening a partition:

- the names and inodes of its subdirectories: partitions, and guards of unfinished commits;
- the state, which each of our commits replaces (`segmentlog.txn.stamp`);
- the checkpoints of high watermarks, log starts, cleaned parts and recovery points;
- the mark of a clean stop, and the name of ``meta.properties``.

`segmentlog.store.fingerprint` shows with one ``stat`` for each file that none of them has changed.
A broker replaces its checkpoints every few seconds, mostly with the same bytes, and a replacement
changes the time of the directory, too.  So names and bytes are then read and compared.
"""

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from operator import is_
from typing import NamedTuple

from segmentlog.errors import CorruptCheckpointError, LogDirectoryError
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_CHECKPOINT,
    parse_partition_directory,
    partition_path,
)
from segmentlog.log.checkpoint import OffsetsAsRead, read_again
from segmentlog.model import TopicPartition
from segmentlog.reads.moment import DirectorySnapshot
from segmentlog.store.contract import FileType
from segmentlog.store.fingerprint import Fingerprint, fingerprint
from segmentlog.store.partitions import NamedPartition, named_partition
from segmentlog.store.readable import exists, list_entries, list_inodes, status_of
from segmentlog.store.remote.location import is_url
from segmentlog.txn.guard import GUARD_PREFIX
from segmentlog.txn.stamp import read_stamp
from segmentlog.txn.state import STATE_FILE

logger = logging.getLogger(__name__)

_CHECKPOINTS = (
    HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT, CLEANER_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)  # fmt: skip
#: The directory itself comes first: a network client that opens it asks for its names again.
_LOOKED_AT = ("", STATE_FILE, *_CHECKPOINTS)
_LATER_COMPARED = (CLEANER_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT)
_MARKS = frozenset({CLEAN_SHUTDOWN_FILE, META_PROPERTIES_FILE})
_MOST_NAMES = 1_000  #: of a wrong path that are looked at for a message
_OF_A_BROKER = (
    META_PROPERTIES_FILE, HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT, CLEAN_SHUTDOWN_FILE,
    STATE_FILE,
)  # fmt: skip


class DirectoryView:
    """A `DirectorySnapshot`, and what shows whether the directory has changed since.

    `path`: absolute path, or a URL.  `before`: an earlier view of it.
    """

    def __init__(self, path: str, before: "DirectoryView | None" = None) -> None:
        self.path = path
        self._looks = () if is_url(path) else self._look(before)  # before anything is read
        self._names: _Names
        snapshot = before.snapshot if before else None
        self.snapshot: DirectorySnapshot = DirectorySnapshot(
            path, partial(self._list, before), snapshot
        )
        # A view of a store is not refreshed, and each file takes a request.
        self._read: dict[str, OffsetsAsRead] = {
            name: read_again(path, name, before._read[name] if before else None)
            for name in (() if is_url(path) else _LATER_COMPARED)
        }

    def partitions(self) -> Mapping[TopicPartition, str]:
        """Paths of the partition directories that are in use.

        Raises `LogDirectoryError` if the path is not a log directory.
        """
        found = self.snapshot.partitions
        is_known = found or self.renamed()
        if not is_known and not any(exists(f"{self.path}/{name}") for name in _OF_A_BROKER):
            reason = (
                "holds neither a directory named <topic>-<partition> nor a broker's files; "
                "name a directory of Kafka's log.dirs, a partition directory or a .log file"
                f"{self._log_directories_in_it()}"
            )
            raise LogDirectoryError(self.path, reason)
        for path in self._names.links:
            logger.warning("%s is a symbolic link and is left out", path)
        return found

    def _log_directories_in_it(self) -> str:
        """End of an error about a wrong path: brokers often keep their logs one level down."""
        if is_url(self.path):
            return ""
        named = []
        for name in sorted(entry.name for entry in list_entries(self.path))[:_MOST_NAMES]:
            with contextlib.suppress(OSError):  # lost+found is root's
                if any(exists(os.path.join(self.path, name, each)) for each in _OF_A_BROKER):
                    named.append(name)
        return f"; in it, these are log directories: {', '.join(named)}" if named else ""

    def missing(self) -> dict[TopicPartition, int]:
        """High watermarks of promised partitions that do not exist under any name.

        A high watermark of 0 promises nothing: a writer sets it before it makes the partition.  A
        broker leaves the high watermarks of a directory as they are when its last partition goes
        (``ReplicaManager.checkpointHighWatermarks``), but writes recovery points at each deletion
        and each move (``LogManager.asyncDelete``).  So a broker promises the partitions that both
        checkpoints name.
        """
        absent = self._absent
        if absent and exists(os.path.join(self.path, META_PROPERTIES_FILE)):
            points = self._recovery_points
            if not isinstance(points, CorruptCheckpointError):
                absent = {each: end for each, end in absent.items() if each in points}
        return {
            each: end
            for each, end in absent.items()
            if each.topic not in self.snapshot.opened.gone
            and not any(one.is_deleted_of(each) for one in self._names.named.values())
            and not exists(partition_path(self.path, each))  # a broker may have just made it
        }

    def renamed(self) -> list[NamedPartition]:
        """Directories of partitions that are not in use: deleted, stray, or being moved here."""
        named = self._names.named.values()
        return [each for each in named if not each.is_current and each.type is FileType.DIRECTORY]

    def _offsets_in(self, name: str) -> Mapping[TopicPartition, int] | CorruptCheckpointError:
        """The entries of a checkpoint that opening a log does not read."""
        return (self._read.get(name) or read_again(self.path, name)).offsets

    @property
    def _recovery_points(self) -> Mapping[TopicPartition, int] | CorruptCheckpointError:
        return self._offsets_in(RECOVERY_POINT_CHECKPOINT)

    def synced_to(self, topic_partition: TopicPartition) -> int:
        """The recovery point of a log, or -1 if the checkpoint has none."""
        return self._entry(RECOVERY_POINT_CHECKPOINT, topic_partition)

    def cleaned_to(self, topic_partition: TopicPartition) -> int:
        """The offset up to which a log was compacted, or -1 if the checkpoint has none."""
        return self._entry(CLEANER_OFFSET_CHECKPOINT, topic_partition)

    def _entry(self, name: str, topic_partition: TopicPartition) -> int:
        found = self._offsets_in(name)
        return -1 if isinstance(found, CorruptCheckpointError) else found.get(topic_partition, -1)

    @property
    def corrupt_checkpoints(self) -> list[CorruptCheckpointError]:
        """The errors of the checkpoints that cannot be read."""
        opened = self.snapshot.opened
        found = (
            opened.high_watermarks,
            opened.log_starts,
            *map(self._offsets_in, _LATER_COMPARED),
        )
        return [each for each in found if isinstance(each, CorruptCheckpointError)]

    @cached_property
    def _absent(self) -> dict[TopicPartition, int]:
        ends = self.snapshot.opened.high_watermarks
        if isinstance(ends, CorruptCheckpointError):
            return {}  # a read that needs them reports that
        named = {each.topic_partition for each in self._names.named.values()}
        return {each: end for each, end in ends.items() if end > 0 and each not in named}

    def refresh(self) -> "DirectoryView":
        """A view of the directory as it is now; this one, if nothing has changed.

        Raises `OSError` or `LogDirectoryError` or `CorruptCheckpointError` if the directory cannot
        be read.
        """
        looks = self._look(self)
        opened = self.snapshot.opened
        is_same = all(map(is_, looks, self._looks)) or self._reads_the_same(looks)
        if is_same and opened.is_complete and self.snapshot.unbounded_are_unchanged():
            self._looks = looks
            return self
        return DirectoryView(self.path, self)

    def moved_since(self, before: "DirectoryView") -> set[TopicPartition] | None:
        """Partitions whose logs may not be as they were; None if that may be any of them."""
        if before is self:
            return set()
        now, then = self.snapshot.opened, before.snapshot.opened
        cleaned = self._read[CLEANER_OFFSET_CHECKPOINT].moved_since(
            before._read[CLEANER_OFFSET_CHECKPOINT]
        )
        moved = now.moved_since(then)
        if moved is None or cleaned is None:
            return None
        moved |= cleaned
        if self._names is not before._names:
            inodes, named = self._names.inodes, before._names.named
            moved |= {
                each.topic_partition
                for name, each in named.items()
                if inodes.get(name) != before._names.inodes[name]
            }
        if deleted := now.deleted_since(then):
            moved |= {each for each in before.snapshot.partitions if each.topic in deleted}
        return moved

    def _look(self, before: "DirectoryView | None") -> tuple[Fingerprint, ...]:
        known: Sequence[Fingerprint | None] = before._looks if before else [None] * len(_LOOKED_AT)
        return tuple(map(fingerprint, self._paths, known))

    @cached_property
    def _paths(self) -> list[str]:
        return [os.path.join(self.path, name) if name else self.path for name in _LOOKED_AT]

    def _reads_the_same(self, looks: Sequence[Fingerprint]) -> bool:
        """Whether the names and the bytes that have perhaps changed are those of this view."""
        opened = self.snapshot.opened
        was = {
            HIGH_WATERMARK_CHECKPOINT: opened.ends_read,
            LOG_START_CHECKPOINT: opened.starts_read,
            **self._read,
        }
        for name, now, then in zip(_LOOKED_AT, looks, self._looks, strict=True):
            if now is then or name == STATE_FILE:
                continue
            if not name:
                if self._names_after(self._names) is not self._names:
                    return False
            elif (again := read_again(self.path, name, was[name])) is not was[name]:
                if name != RECOVERY_POINT_CHECKPOINT or self._absent:
                    return False
                self._read[name] = again  # it matters only where partitions are missing
        return read_stamp(self.path) == opened.stamp

    def _list(self, before: "DirectoryView | None") -> Mapping[TopicPartition, str]:
        self._names = self._names_after(before._names if before else None)
        return self._names.partitions

    def _names_after(self, before: "_Names | None") -> "_Names":
        """The names that readers look at; `before` if they are the same, with the same inodes."""
        # Inodes first: a name that comes, goes or is replaced between the two listings has another
        # inode at the next look.
        inodes = list_inodes(self.path)
        # Other files come and go with every job, and with every checkpoint.
        others = inodes.keys() if before is None else inodes.keys() - before.inodes.keys()
        for name in [name for name in others if not _is_watched(name)]:
            del inodes[name]
        if before is None:
            return _names(self.path, inodes, dict(list_entries(self.path)), {})
        if inodes == before.inodes:
            return before
        was = before.inodes
        known = {
            name: each for name, each in before.named.items() if was[name] == inodes.get(name)
        }
        return _names(self.path, inodes, self._types(inodes.keys() - known.keys()), known)

    def _types(self, names: Iterable[str]) -> dict[str, FileType]:
        """Types of the files with these names."""
        types = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # the next look finds that
                types[name] = status_of(os.path.join(self.path, name)).type
        return types


class _Names(NamedTuple):
    """The names at the top of a log directory that readers look at."""

    inodes: Mapping[str, int]  # of partitions, guards and marks, by name
    #: entries with the name of a partition's directory, by name, in this order
    named: Mapping[str, NamedPartition]
    partitions: Mapping[TopicPartition, str]  # paths of the partitions in use
    links: Sequence[str]  # paths of links, which are left out


def _names(
    path: str,
    inodes: Mapping[str, int],
    types: Mapping[str, FileType],
    known: Mapping[str, NamedPartition],
) -> _Names:
    """Names with their meaning; the types of those that are not known yet are given."""
    named: dict[str, NamedPartition] = {}
    for name in sorted(inodes):
        each = known.get(name)
        if each is None and name in types:
            each = named_partition(path, name, types[name])
        if each is not None:
            named[name] = each
    partitions, links = {}, []
    for each in named.values():
        if not each.is_current:
            continue
        if each.type is FileType.LINK:
            links.append(each.path)
        elif each.type is FileType.DIRECTORY and not each.is_metadata:
            partitions[each.topic_partition] = each.path
    return _Names(inodes, named, partitions, links)


def _is_watched(name: str) -> bool:
    """Whether a reader looks at a file with this name: a partition, a guard or a mark."""
    is_known = name in _MARKS or name.startswith(GUARD_PREFIX)
    return is_known or parse_partition_directory(name) is not None
