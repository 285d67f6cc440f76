"""Erase keys: remove every record with one of some keys, and leave all else where it is.

The rule is that of `segmentlog.format.kernels.compaction`; the durable steps are those of a
compaction (`segmentlog.log.swaps`).  An erasure goes through all chosen logs first, and
writes nothing.  So a damaged batch is found before the first segment is replaced.

Then each segment with such records is replaced by itself.  A log whose active segment has such
records begins a new segment first.  Segments are not replaced together: a broker that finishes an
interrupted swap removes all segments between the first and the last new one (``LogLoader``), and
segments without these keys are not written again.

Two replicas with equal batches have equal batches after the same erasure.  It depends on no clock,
no state of producers and no border of a segment: a batch keeps its bytes or loses its records, and
if none is left, its header stays.

An erasure proves nothing as long as a copy of such records stands in the log directory, outside
the log.  So each copy is searched for the keys (`CopySearch`), and those that have them, or that
cannot be searched to their end, are named.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, NamedTuple, Unpack

from segmentlog.arguments import (
    is_frame,
    partition_numbers,
    refused,
    takes,
    topic_names,
)
from segmentlog.bucket.upkeep import place_in_store
from segmentlog.cluster.directory_settings import DirectorySettings, log_directory
from segmentlog.errors import LogDirectoryError, SegmentLogError
from segmentlog.format.names import (
    STAGE_SUFFIX,
    DirectoryState,
    FileKind,
    FileState,
    is_deleted_directory,
    parse_segment_file,
    partition_path,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.indexes import read_transaction_index
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import Segment
from segmentlog.log.swaps import swap_in
from segmentlog.model import INTERNAL_TOPICS, LARGEST_LONG, TopicPartition
from segmentlog.operation_options import (
    ClusterOptions,
    LogOptions,
    PurgeOptions,
    WaitOptions,
    dry_run_of,
)
from segmentlog.reads.choose import partitions_of
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.partitions import NamedPartition, list_partitions, remove_deleted
from segmentlog.store.readable import FileType, list_entries, status_of
from segmentlog.store.system_errors import storage_errors
from segmentlog.tiered.layout import RemoteSegment
from segmentlog.tiered.metadata import SegmentState, announced_segments
from segmentlog.txn.change import HeldDirectory, hold
from segmentlog.txn.topics import check_partition_path

if TYPE_CHECKING:  # the kernels load with the first segment that is read
    from segmentlog.maintain.compaction.clean_segments import Counts, OffsetMap, SegmentCleaner


#: The place of copies that belong to no partition.
NO_PARTITION = TopicPartition("", -1)


class CopyKind(StrEnum):
    """The kind of a copy; values never change, because programs read reports."""

    #: a segment that has left its log; the next `erase`, `compact`, `retain` or `mirror` removes
    #: it after the time that the output shows, and `--purge` at once
    DELETED = "deleted"
    #: a file that an interrupted command was writing or replacing, which only a dry run finds;
    #: `erase` removes it
    UNFINISHED = "unfinished"
    #: bytes that a recovery has cut off; remove them yourself
    BROKEN = "broken"
    #: a `-future` directory, which a starting broker completes and serves as the log, with the
    #: erased records; remove it before, and then move the replica again
    FUTURE_REPLICA = "future-replica"
    #: a `-delete` directory of a deleted topic; a broker that starts removes it
    DELETED_PARTITION = "deleted-partition"
    #: a `-stray` directory, which a broker has put aside; remove it yourself
    STRAY_PARTITION = "stray-partition"
    #: a file with rows of a write job that has not committed them, which is not searched; the job,
    #: or a later one, removes it
    STAGED = "staged"
    #: a symbolic link in the place of a partition or a segment, which a broker follows; it is not
    #: searched: look at its target yourself
    LINK = "link"
    #: segments in tiered storage, by the broker's list of them, which are not searched; the broker
    #: removes them
    TIER = "tier"
    #: objects of a log in an object store in which no record of the log lies: they are counted,
    #: and not searched; `sweep` removes them after a day, and `--purge` at once, but versions and
    #: object locks of the store may keep them
    OBJECTS = "objects"


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


class ErasedPartition(NamedTuple):
    """The records that an erasure has removed from a partition, or would remove, and their copies.

    A copy that belongs to no partition is in a row without a topic, with partition -1.

    Attributes
    ----------
    records : how many; 0 if only copies have such records.
    batches : that lost records.
    emptied_batches : of these, batches that lost all; their headers stay.
    first_offset, last_offset : of the removed records.
    segments : base offsets of the segments that were written again.
    bytes_before, bytes_after : of the logs of these segments; the latter is -1 in a dry run.
    remaining : copies in the log directory, outside the log, that still have records with these
        keys after the call, or may have some.
    """

    topic: str
    partition: int
    records: int
    batches: int
    emptied_batches: int
    first_offset: int
    last_offset: int
    segments: tuple[int, ...]
    bytes_before: int
    bytes_after: int = -1
    remaining: tuple[RemainingCopy, ...] = ()


class EraseOptions(ClusterOptions, PurgeOptions, WaitOptions, LogOptions, total=False):
    """Those of `segmentlog.erase`."""

    dry_run: Annotated[bool, dry_run_of("removed")]


@takes(EraseOptions)
@storage_errors()
def erase(
    path: str | os.PathLike[str],
    keys: bytes | str | Collection[bytes | str],
    topics: str | Collection[str] = (),
    partitions: int | Collection[int] = (),
    **options: Unpack[EraseOptions],
) -> list[ErasedPartition]:
    """Remove every record whose key is one of some keys, from a directory without a broker.

    The records go from all segments, whether they are committed, aborted, below the log start or
    after the high watermark.  All other records keep their offsets, and a batch that loses no
    record keeps its bytes.  A batch that loses all its records stays as an empty batch, for its
    offsets and the sequence of its producer.  End markers of transactions stay.  The same call on
    two replicas of a log leaves the same batches.

    Copies outside the logs stay, and the result names those in this directory that have such
    records: replaced and deleted segments until their delay is over, bytes that a recovery has
    cut off, and directories that a broker has renamed (``-future``, ``-delete``, ``-stray``).  A
    ``-future`` directory would come back as the log when a broker starts.  Staged rows of write
    jobs, and segments in tiered storage by the broker's list, are named without a search.  Other
    replicas, snapshots of volumes and backups are not known here.
    Values and headers are not searched.

    In an object store, writers and readers may be at work, and records that they append meanwhile
    may stay.  The erased records are gone once `sweep` has removed the objects that the result
    names; versions and object locks of the store may keep them even then.

    Parameters
    ----------
    path : the log directory, or the URL of a log in an object store.
    keys : one key or several; a text means its bytes in UTF-8.  Records without a key have
        none of them.
    topics : one name or several; by default all but brokers' own.
    partitions : of these topics; all by default.
    **options : those of `EraseOptions`.

    Returns
    -------
    list of ErasedPartition
        The partitions that had such records, or of which copies still have them, in their order.
        After the last copy is gone, the same call returns an empty list.

    Raises
    ------
    OptionError
        If no key is given, or a key is neither bytes nor text; if `partitions` are not numbers.
    UnknownTopicOrPartitionError
        If the directory does not hold a topic, or none of its partitions.
    LogDirectoryError
        If `path` is not a log directory; if a log is damaged, or may not be written to; if others
        have changed a log in a store again and again.
    LogLockedError
        If a broker or a writer holds the directory.
    LogChangedError
        If another log was made at the place in a store meanwhile.
    CorruptLogError, UnsupportedFormatError, CorruptIndexError, CorruptCheckpointError
        If a batch, a transaction index or a checkpoint is damaged; nothing is removed then.
    CommitInDoubtError, SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.  Segments that were
        replaced before stay replaced: the same call continues.
    """
    from segmentlog.maintain.compaction.clean_segments import OffsetMap  # the kernels load here

    wanted = OffsetMap.of_erased(_bytes_of(keys))
    topics = topic_names("topics", topics)
    numbers = partition_numbers(partitions)
    if (location := place_in_store(path)) is not None:
        from segmentlog.maintain.compaction.erase_in_store import erase_in_store

        return erase_in_store(
            location,
            wanted,
            topics,
            numbers,
            dry_run=options["dry_run"],
            purge=options["purge"],
            on_log=options["on_log"],
        )
    directory = log_directory(path)

    # Called under the lock: another process may change settings while this one waits.
    known = cache(
        partial(
            DirectorySettings.read,
            directory,
            None,
            options["metadata"],
            options["server_properties"],
            is_optional=True,
            topics=topics,
            purge=options["purge"],
            needs=(),
        )
    )

    with hold(
        directory,
        options["lock_timeout_seconds"],
        lambda topic: known().config(topic),
        dry_run=options["dry_run"],
    ) as held:
        opened = open_log_dir(directory)
        left_out = _left_out(directory, topics, numbers)
        chosen = _chosen(opened, topics, numbers, left_out)
        # The compiled kernels load here.
        from segmentlog.writes.prepare import check_ready, ready_to_append

        if not held.may_write:
            for each in chosen:
                check_ready(held, each)
        else:
            for each in chosen:
                check_partition_path(partition_path(directory, each))
            ready_to_append(held, chosen, flush=True)
            held.checkpoints.write()
            opened = open_log_dir(directory)
        # All logs are read before the first is changed.
        found, numbered = [], {}
        for each in chosen:
            options["on_log"](str(each))
            erased, numbered[each] = find_erased(
                opened.log(*each), held.config_of(each.topic), wanted
            )
            found += [erased] if erased.records else []
        if held.may_write:
            for each in chosen:
                remove_deleted(partition_path(directory, each), held.delay_of(each.topic))
            found = _carry_out(held, found, wanted)
        search = CopySearch(directory, wanted)
        copies = {
            each: search.beside(
                each, held.delay_of(each.topic), by_inode, is_unchanged=options["dry_run"]
            )
            for each, by_inode in numbered.items()
        }
        for each, copy in [*search.partitions(left_out), *search.in_tier(chosen)]:
            copies.setdefault(each, []).append(copy)
        copies[NO_PARTITION] = [*copies.get(NO_PARTITION, ()), *search.staged()]
    erased_at = {TopicPartition(*each[:2]): each for each in found}
    for place, remaining in copies.items():
        if remaining:
            none = ErasedPartition(*place, 0, 0, 0, -1, -1, (), 0, -1 if options["dry_run"] else 0)
            found_there = erased_at.get(place, none)
            erased_at[place] = found_there._replace(remaining=tuple(remaining))
    return [erased_at[place] for place in sorted(erased_at)]


def _chosen(
    opened: LogDirectory,
    topics: Collection[str],
    partitions: Collection[int],
    left_out: Collection[NamedPartition],
) -> list[TopicPartition]:
    """The logs to read; none of a topic of which only `left_out` has something."""
    known = opened.topics(internal=True)
    with_logs = [
        name
        for name in topics
        if name in known or not any(_is_of(each, name) for each in left_out)
    ]
    if topics and not with_logs:
        return []
    return [
        each
        for each in partitions_of(opened, with_logs, partitions)
        if topics or each.topic not in INTERNAL_TOPICS
    ]


def _left_out(
    directory: str, topics: Collection[str], partitions: Collection[int]
) -> list[NamedPartition]:
    """The chosen partitions that readers leave out: directories that are not in use, and links."""
    return [
        each
        for each in list_partitions(directory)
        if (each.type is FileType.LINK or not each.is_current)
        and (not partitions or each.topic_partition.partition in partitions)
        and (
            any(_is_of(each, name) for name in topics)
            if topics
            else each.topic_partition.topic not in INTERNAL_TOPICS and not each.is_metadata
        )
    ]


def _is_of(each: NamedPartition, topic: str) -> bool:
    """Whether a partition is one of a topic, whose name may be cut short in the directory's."""
    return each.topic_partition.topic == topic or is_deleted_directory(each.name, topic)


def _bytes_of(keys: bytes | str | Collection[bytes | str]) -> list[bytes]:
    """The different keys as bytes."""
    accepted = "give a key as bytes or text, or several keys"
    given: object = [keys] if isinstance(keys, bytes | str) else keys
    if not isinstance(given, Collection) or is_frame(given) or not len(given):
        raise refused("keys", keys, accepted)
    found: dict[bytes, None] = {}
    for each in given:
        if not isinstance(each, bytes | str):
            raise refused("keys", each, accepted)
        try:
            found[each.encode() if isinstance(each, str) else each] = None
        except UnicodeEncodeError:
            raise refused("keys", each, "give a key that is not valid text as bytes") from None
    return [*found]


def cleaner_of(log: Log, config: TopicConfig, keys: "OffsetMap") -> "SegmentCleaner":
    """What removes the records of an erasure from the segments of a log."""
    from segmentlog.maintain.compaction.clean_segments import SegmentCleaner, keep_headers

    indexed = [
        entry
        for segment in log.segments
        for entry in read_transaction_index(segment.transaction_index_path)
    ]
    return SegmentCleaner(log.path, config, keys, keep_headers(indexed), erases=True)


def find_erased(
    log: Log, config: TopicConfig, keys: "OffsetMap"
) -> tuple[ErasedPartition, dict[int, int]]:
    """Find the records that an erasure would remove from a log; the whole log is read.

    Returns `erased`, as a dry run returns it; `n_records`, the number of such records in each
    segment, by inode.
    """
    segments = log.untorn_segments
    if not segments:  # as when the log is prepared
        raise LogDirectoryError(log.path, "holds no segment; segmentlog recover mends that")
    ends = [*(each.base_offset for each in segments[1:]), log.log_end_offset]
    cleaner = cleaner_of(log, config, keys)
    found: list[Counts] = []
    bases, n_bytes, n_records = [], 0, {}
    for segment, end in zip(segments, ends, strict=True):
        counts = cleaner.count(segment, end)
        n_records[segment.inode] = counts.n_read - counts.n_kept
        if counts.n_cut:
            found.append(counts)
            bases.append(segment.base_offset)
            n_bytes += segment.size
    erased = ErasedPartition(
        *log.topic_partition,
        sum(each.n_read - each.n_kept for each in found),
        sum(each.n_cut for each in found),
        sum(each.n_emptied for each in found),
        min((each.first_replaced for each in found), default=-1),
        max((each.last_replaced for each in found), default=-1),
        tuple(bases),
        n_bytes,
    )
    return erased, n_records


def _carry_out(
    held: HeldDirectory, found: Sequence[ErasedPartition], keys: "OffsetMap"
) -> list[ErasedPartition]:
    """Remove what was found; the results with the bytes after it."""
    from segmentlog.maintain.move_log_starts import LogStartMove

    opened = open_log_dir(held.directory)
    places = [TopicPartition(each.topic, each.partition) for each in found]
    rolls = [
        place
        for place, each in zip(places, found, strict=True)
        if opened.log(*place).segments[-1].base_offset == each.segments[-1]
    ]
    if rolls:
        LogStartMove(held, rolls).commit({}, rolls)
        opened = open_log_dir(held.directory)
    done = []
    for place, each in zip(places, found, strict=True):
        log = opened.log(*place)
        cleaner = cleaner_of(log, held.config_of(place.topic), keys)
        delay_ms = held.delay_of(place.topic)
        n_bytes = 0
        for segment, successor in pairwise(log.segments):
            if segment.base_offset in each.segments:
                cleaned = cleaner.clean([segment], [successor.base_offset])
                swap_in(log.path, {segment.base_offset}, {segment.base_offset})
                n_bytes += cleaned.size
                if not delay_ms:  # the disk need not have space for all segments twice
                    remove_deleted(log.path, delay_ms)
        done.append(each._replace(bytes_after=n_bytes))
    return done


#: Copies of bytes that a recovery has cut off (`segmentlog.log.swaps`).
_BROKEN = re.compile(r"segmentlog\.(?P<offset>[0-9]{20})\.log\..*broken(\.tmp)?")


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


class _CopyFile(NamedTuple):
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
                CopyKind.STAGED,
                os.path.join(self._directory, each.name),
                -1,
                -1,
                "rows that a write job has not committed are not searched",
            )
            for each in sorted(list_entries(self._directory))
            if each.name.startswith("segmentlog.") and each.name.endswith(STAGE_SUFFIX)
        ]

    def in_tier(
        self, chosen: Collection[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, RemainingCopy]]:
        """The logs of which the broker's list has segments in tiered storage."""
        found: dict[TopicPartition, list[RemoteSegment]] = {}
        try:
            announced = announced_segments(self._directory) or {}
        except SegmentLogError as error:
            reason = f"whether tiered storage has segments is unknown: {error}"
            yield NO_PARTITION, RemainingCopy(CopyKind.TIER, "", -1, -1, reason)
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

    def _search(self, file: _CopyFile) -> tuple[int, str]:
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


def _files_in(path: str) -> Iterator[_CopyFile]:
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
        yield _CopyFile(kind, Segment(files, is_sealed=False), file_type)
