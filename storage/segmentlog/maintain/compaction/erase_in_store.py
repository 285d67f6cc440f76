"""Erase keys from a log in an object store: extents with such records are written again.

The rule is that of directories (`segmentlog.maintain.compaction.erase`).  All logs are read first;
then one commit exchanges the extents that have such records.  An object is removed as a whole, so
what else lies in the objects of these extents is written again with the same commit.  The same is
done with objects that have bytes of no extent: they may hold such records, which have left the log
before.

The records are gone once a sweep has removed the old objects.  Until then the result names these
objects, and all others that no extent lies in, as copies that are not searched.
"""

from collections.abc import Callable, Collection, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING

from segmentlog.bucket.data_objects import Upload
from segmentlog.bucket.disk import inode_of
from segmentlog.bucket.extents import PartitionLog, PlacedExtent
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.objects import DATA, is_data_key
from segmentlog.bucket.rewriting import Exchange, ExtentWriter, Replacement, move_out
from segmentlog.bucket.sequence import Sequence as Commits
from segmentlog.bucket.sequence import opened_at
from segmentlog.bucket.upkeep import sweep_objects
from segmentlog.errors import (
    CommitInDoubtError,
    LogDirectoryError,
    SegmentLogError,
    StorageError,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.indexes import AbortedTransaction
from segmentlog.log.segment import Segment
from segmentlog.maintain.compaction.erase import (
    NO_PARTITION,
    CopyKind,
    ErasedPartition,
    RemainingCopy,
    cleaner_of,
    find_erased,
)
from segmentlog.model import INTERNAL_TOPICS, TopicPartition
from segmentlog.reads.choose import partitions_of
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.paths import BucketLocation

if TYPE_CHECKING:
    from segmentlog.maintain.compaction.clean_segments import OffsetMap

_ATTEMPTS = 5  #: others may change the extents meanwhile: another compaction, a retention

_WEEK_MS = 7 * 24 * 3600 * 1000


def erase_in_store(
    location: BucketLocation,
    keys: "OffsetMap",
    topics: Collection[str],
    partitions: Collection[int],
    *,
    dry_run: bool,
    purge: bool,
    on_log: Callable[[str], object],
) -> list[ErasedPartition]:
    """Erase keys from a log in an object store; see `segmentlog.erase`.

    `purge`: whether a sweep follows that takes no account of readers.
    """
    commits = opened_at(location)
    for _ in range(_ATTEMPTS):
        erasure = _Erasure(location, commits, keys)
        try:
            erasure.find(_chosen(location, topics, partitions), on_log)
            state = commits.refresh(lists=True)
            if dry_run or (erasure.is_in(state) and erasure.carry_out(state)):
                break
        except CommitInDoubtError:
            raise  # a further attempt would count no records if the commit is there
        except (SegmentLogError, OSError):
            if erasure.is_in(commits.refresh()):
                raise  # it is not because of extents that others have exchanged meanwhile
    else:
        reason = (
            "its extents were changed by others whenever they were about to be exchanged: nothing "
            "is erased; run the command again"
        )
        raise LogDirectoryError(str(location), reason)
    try:
        if purge and not dry_run:
            sweep_objects(location, _WEEK_MS, 0, dry_run=False)
        remaining = erasure.remaining(commits.refresh())
    except StorageError as error:
        if dry_run:
            raise
        # The records have left the log: an error would say that they have not.
        remaining = erasure.not_searched(f"objects that have left the log may remain: {error}")
    found = [each for each in erasure.found.values() if each.records]
    if remaining:
        none = ErasedPartition(*NO_PARTITION, 0, 0, 0, -1, -1, (), 0, -1 if dry_run else 0)
        found.insert(0, none._replace(remaining=(remaining,)))
    return found


def _chosen(
    location: BucketLocation, topics: Collection[str], partitions: Collection[int]
) -> list[TopicPartition]:
    return [
        each
        for each in partitions_of(open_log_dir(location.root), topics, partitions)
        if topics or each.topic not in INTERNAL_TOPICS
    ]


class _Erasure:
    """One attempt.

    `found`: the records of each log that has such records.
    """

    def __init__(self, location: BucketLocation, commits: Commits, keys: "OffsetMap") -> None:
        self._location, self._commits, self._keys = location, commits, keys
        self.found: dict[TopicPartition, ErasedPartition] = {}
        self._listed: dict[TopicPartition, list[Segment]] = {}  # all segments that were read
        self._segments: dict[TopicPartition, list[Segment]] = {}  # with such records

    def find(self, chosen: Sequence[TopicPartition], on_log: Callable[[str], object]) -> None:
        """Read all logs."""
        opened = open_log_dir(self._location.root)
        for at in chosen:
            on_log(str(at))
            log = opened.log(*at)
            self._listed[at] = [each for each in log.segments if each.size]
            erased, _ = find_erased(log, TopicConfig(), self._keys)
            if erased.records:
                self.found[at] = erased
                bases = {*erased.segments}
                self._segments[at] = [each for each in log.segments if each.base_offset in bases]

    def is_in(self, state: LogState) -> bool:
        """Whether all segments that were read are extents of a state."""
        return all(
            {each.inode for each in segments} <= _by_inode(state, at).keys()
            for at, segments in self._listed.items()
        )

    def _leaving(self, state: LogState, erased: Collection[PlacedExtent]) -> set[str]:
        """The objects that have such records, or bytes of no extent, which may be some."""
        sizes = {each.key: each.size for each in self._commits.objects.list(DATA)}
        used = dict[str, int]()
        for at, log in state.logs.items():
            for each in log.placed(at):
                used[each.object] = used.get(each.object, 0) + each.end - each.start
            if log.snapshot:
                _, key, _, size = log.snapshot
                used[key] = used.get(key, 0) + size
        dead = {key for key, n_bytes in used.items() if sizes.get(key, 0) > n_bytes}
        return dead | {each.object for each in erased}

    def carry_out(self, state: LogState) -> bool:
        """Exchange the extents by one commit; whether no other commit was in the way."""
        extents = dict[TopicPartition, list[PlacedExtent]]()
        for at, segments in self._segments.items():
            by_inode = _by_inode(state, at)
            extents[at] = [by_inode[each.inode] for each in segments]
        erased = [each for old in extents.values() for each in old]
        if not (leaving := self._leaving(state, erased)):
            return True
        job, objects = token_hex(8), self._commits.objects
        exchanges: dict[TopicPartition, dict[int, Exchange]] = {}
        for number, (at, segments) in enumerate(self._segments.items()):
            log = open_log_dir(self._location.root).log(*at)
            cleaner, n_bytes = cleaner_of(log, TopicConfig(), self._keys), 0
            writer = ExtentWriter(objects, job, number, at)
            try:
                for segment, old in zip(segments, extents[at], strict=True):
                    writer.begin(old.base_offset)
                    aborted: list[AbortedTransaction] = []
                    for data, lines in cleaner.kept_of(segment, old.end_offset, aborted):
                        writer.append(data, lines)
                    new = writer.end(old.end_offset, aborted)
                    n_bytes += new.size if new else 0
                    exchange = Exchange((old,), (new,) if new else ())
                    exchanges.setdefault(at, {})[old.base_offset] = exchange
                writer.flush()
            finally:
                writer.close()
            self.found[at] = self.found[at]._replace(bytes_after=n_bytes)
        upload = Upload(objects, job)
        moved = move_out(upload, state, leaving, {(each.object, each.start) for each in erased})
        upload.finish()
        for old in moved:
            at, new = TopicPartition(*old[:2]), upload.moved[old.object, old.start]
            exchanges.setdefault(at, {})[old.base_offset] = Exchange((old,), (new,))
        in_order = {
            at: [each for _, each in sorted(of_log.items())] for at, of_log in exchanges.items()
        }
        snapshots = {
            at: (log.snapshot, upload.snapshots[at])
            for at, log in state.logs.items()
            if log.snapshot and at in upload.snapshots
        }
        replacement = Replacement(self._location, job, in_order, {}, snapshots, is_whole=True)
        replacement.commit()
        return not replacement.has_changed

    def remaining(self, state: LogState) -> RemainingCopy | None:
        """The objects outside of the log, which are not searched; None if there are none."""
        used = state.objects()
        keys = [
            each.key
            for each in self._commits.objects.list(DATA)
            if is_data_key(each.key) and each.key not in used
        ]
        if not keys:
            return None
        reason = (
            f"{len(keys)} objects that no record of the log lies in are not searched, such as "
            f"{keys[0]}"
        )
        return self.not_searched(reason)

    def not_searched(self, reason: str) -> RemainingCopy:
        """The objects outside of the log, and why they were not searched."""
        return RemainingCopy(CopyKind.OBJECTS, f"{self._location}/{DATA}", -1, -1, reason)


def _by_inode(state: LogState, at: TopicPartition) -> dict[int, PlacedExtent]:
    """The extents of a partition, by the inodes of their segments."""
    log = state.logs.get(at) or PartitionLog()
    return {inode_of(each): each for each in log.placed(at)}
