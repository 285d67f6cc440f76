"""Copies of erased records that are in a log directory, and not part of a log.

An erasure proves nothing as long as such a copy stands.  So each copy is searched for the keys,
and those that have them, or that cannot be searched to their end, are named.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from segmentlog.errors import SegmentLogError
from segmentlog.format.names import (
    DirectoryState,
    FileKind,
    FileState,
    parse_segment_file,
    partition_path,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import Segment
from segmentlog.model import LARGEST_LONG, TopicPartition
from segmentlog.store.partitions import NamedPartition
from segmentlog.store.readable import FileType, list_entries, status_of
from segmentlog.tiered.layout import RemoteSegment
from segmentlog.tiered.metadata import SegmentState, announced_segments
from segmentlog.writes.extents import STAGE_SUFFIX

if TYPE_CHECKING:  # the kernels load with the first copy that is read
    from segmentlog.maintain.compaction.clean_segments import SegmentCleaner
    from segmentlog.maintain.compaction.key_map import OffsetMap

#: Copies of bytes that a recovery has cut off (`segmentlog.log.swaps`).
_BROKEN = re.compile(r"segmentlog\.(?P<offset>[0-9]{20})\.log\..*broken(\.tmp)?")


class CopyKind(StrEnum):
    """The kind of a copy; values never change, because programs read reports."""

    DELETED = "deleted"  #: a segment that has left its log, and waits for its removal
    UNFINISHED = "unfinished"  #: a segment of a compaction or a copy that was interrupted
    BROKEN = "broken"  #: bytes that a recovery has cut off
    FUTURE_REPLICA = "future-replica"  #: a replica that a broker moves here: it becomes the log
    DELETED_PARTITION = "deleted-partition"  #: a partition of a deleted topic
    STRAY_PARTITION = "stray-partition"  #: a partition that a broker has moved aside
    STAGED = "staged"  #: rows of a write job that has not committed them
    LINK = "link"  #: a link in the place of a partition or a segment; readers leave it out
    TIER = "tier"  #: segments in tiered storage, by the broker's list of them


class RemainingCopy(NamedTuple):
    """A copy that has erased records, or may have some.

    Attributes
    ----------
    kind : what it is.
    path : of the file, or of the directory of a partition; empty for tiered storage.
    records : how many records with these keys were found; -1 if the copy was not searched.
    removed_after_ms : time (epoch) after which the next erasure, compaction or retention removes
        a segment that has left its log; -1 if no such command removes the copy.
    reason : why the copy may have more of these records; empty if it was searched to its end.
    """

    kind: CopyKind
    path: str
    records: int
    removed_after_ms: int = -1
    reason: str = ""


_NOT_SEARCHED = "it is a link, or another entry of a wrong type, and is not searched"

_DIRECTORIES = {
    DirectoryState.FUTURE: CopyKind.FUTURE_REPLICA,
    DirectoryState.DELETE: CopyKind.DELETED_PARTITION,
    DirectoryState.STRAY: CopyKind.STRAY_PARTITION,
}
_FILES = {
    FileState.DELETED: CopyKind.DELETED,
    FileState.CLEANED: CopyKind.UNFINISHED,
    FileState.SWAP: CopyKind.UNFINISHED,
}


class _File(NamedTuple):
    """A file with batches; `kind` is None if its name is that of a segment of the log."""

    kind: CopyKind | None
    segment: Segment
    type: FileType


class CopySearch:
    """Searches the copies of records with some keys.

    `directory`: the log directory; the caller holds its lock.
    """

    def __init__(self, directory: str, keys: "OffsetMap") -> None:
        self._directory, self._keys = directory, keys
        self._cleaner: SegmentCleaner | None = None

    def beside(
        self,
        topic_partition: TopicPartition,
        delay_ms: int,
        known: Mapping[int, int],
        *,
        is_unchanged: bool,
    ) -> list[RemainingCopy]:
        """The copies in the directory of a partition, sorted by their paths.

        `delay_ms`: ``file.delete.delay.ms`` of the topic.  `known`: numbers of such records in the
        segments of the log, by inode, as they were read.  `is_unchanged`: whether these segments
        are still the log.
        """
        found = []
        for file in _files_in(partition_path(self._directory, topic_partition)):
            kind, is_known = file.kind, file.segment.inode in known
            if is_unchanged and is_known:  # also a .swap file, which is part of the log
                continue
            if kind is None and file.type is FileType.LINK:
                kind = CopyKind.LINK
            elif kind is None and is_unchanged:  # a .swap file has replaced it
                kind = CopyKind.UNFINISHED
            if kind is None:
                continue
            records, reason = known[file.segment.inode] if is_known else -1, ""
            if not is_known:
                records, reason = self._search(file)
            if records or reason:
                due = -1
                if kind is CopyKind.DELETED:
                    due = status_of(file.segment.path).changed_ns // 10**6 + delay_ms
                found.append(RemainingCopy(kind, file.segment.path, records, due, reason))
        return found

    def partitions(
        self, chosen: Collection[NamedPartition]
    ) -> Iterator[tuple[TopicPartition, RemainingCopy]]:
        """The partitions that readers leave out, and that have such records, or may have some.

        `chosen`: directories of partitions that are not in use, and links.
        """
        for each in chosen:
            n_records, reasons = 0, list[str]()
            kind = CopyKind.LINK if each.type is FileType.LINK else _DIRECTORIES[each.state]
            if each.type is not FileType.DIRECTORY:
                n_records, reasons = -1, [_NOT_SEARCHED]
            else:
                try:
                    files = [*_files_in(each.path)]
                except OSError as error:  # the erasure is done by now, and has to be reported
                    files, n_records = [], -1
                    reasons = [f"it cannot be listed: {error.strerror or error}"]
                for file in files:
                    records, reason = self._search(file)
                    n_records += max(records, 0)
                    name = os.path.basename(file.segment.path)
                    reasons += [f"{name}: {reason}"] if reason else []
            if n_records or reasons:
                reason = "".join(reasons[:1])
                yield each.topic_partition, RemainingCopy(kind, each.path, n_records, -1, reason)

    def staged(self) -> list[RemainingCopy]:
        """The files of write jobs that have not committed their rows."""
        return [
            RemainingCopy(
                CopyKind.STAGED, os.path.join(self._directory, each.name), -1, -1,
                "rows that a write job has not committed are not searched",
            )
            for each in sorted(list_entries(self._directory))
            if each.name.startswith("segmentlog.") and each.name.endswith(STAGE_SUFFIX)
        ]  # fmt: skip

    def in_tier(
        self, chosen: Collection[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, RemainingCopy]]:
        """The logs of which the broker's list has segments in tiered storage."""
        found: dict[TopicPartition, list[RemoteSegment]] = {}
        try:
            announced = announced_segments(self._directory) or {}
        except SegmentLogError as error:
            reason = f"whether tiered storage has segments is unknown: {error}"
            yield TopicPartition("", -1), RemainingCopy(CopyKind.TIER, "", -1, -1, reason)
            return
        for log, segments in announced.items():
            place = TopicPartition(log.topic, log.partition)
            if place in chosen:
                found.setdefault(place, []).extend(
                    each.segment
                    for each in segments
                    if each.state is not SegmentState.DELETE_FINISHED
                )
        for place, stored in found.items():
            if stored:
                first = min(each.start_offset for each in stored)
                last = max(each.end_offset for each in stored)
                reason = f"{len(stored)} segments with offsets from {first} to {last}"
                yield (
                    place,
                    RemainingCopy(
                        CopyKind.TIER, "", -1, -1, f"{reason} in tiered storage are not searched"
                    ),
                )

    def _search(self, file: _File) -> tuple[int, str]:
        """The number of such records, and the reason for which there may be more."""
        if file.type is not FileType.FILE:
            return -1, _NOT_SEARCHED
        from segmentlog.maintain.compaction.clean_segments import SegmentCleaner, keep_headers

        if self._cleaner is None:
            fates = keep_headers([])
            self._cleaner = SegmentCleaner("", TopicConfig(), self._keys, fates, erases=True)
        cleaner = self._cleaner
        try:
            counts, reason = cleaner.count(file.segment, LARGEST_LONG), ""
        except SegmentLogError as error:
            counts, reason = cleaner.counts, f"it is searched up to its first bad batch: {error}"
        except OSError as error:
            return -1, f"it cannot be read: {error.strerror or error}"
        return counts.n_read - counts.n_kept, reason


def _files_in(path: str) -> Iterator[_File]:
    """Each file of a partition directory that has batches, sorted by their names."""
    for name, file_type in sorted(list_entries(path), key=lambda each: each.name):
        parsed, broken = parse_segment_file(name), _BROKEN.fullmatch(name)
        kind: CopyKind | None
        if broken is not None:
            kind, base_offset = CopyKind.BROKEN, int(broken["offset"])
        elif parsed is not None and parsed.kind is FileKind.LOG:
            kind, base_offset = _FILES.get(parsed.state), parsed.offset
        else:
            continue
        file = os.path.join(path, name)
        status = status_of(file)
        files = SegmentFiles(base_offset, file, status.size, inode=status.inode)
        yield _File(kind, Segment(files, is_sealed=False), file_type)
