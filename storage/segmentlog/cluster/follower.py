"""One partition at the destination of a mirror, and the log that it follows.

1. Each segment of the destination is compared with that of the log.  Segments from the first
   difference on leave; so do those before the log start.  Records that the log does not have are
   kept in ``.broken`` files, as a recovery keeps what it cuts off.
2. Segments that the destination lacks are copied in the order of their offsets, as ``.cleaned``
   files.  Neither readers nor brokers take these for the log.  Their bytes are read again and
   compared.  A mirror that was killed finds what it has copied, and continues there.
3. In the work of the change, the last segment of the destination grows in place, new segments get
   their names, and small files are copied (leader epochs, producer snapshots, indexes of a segment
   that has grown).

The indexes of the active segment are copied only if they are proven to be those of the bytes that
are copied: the source was cleanly stopped, and still is once they are copied.  A destination
without them has them built again.

`segmentlog.mirrored` has the digests of the segments on both sides.  Files that have not changed
since are not read again.
"""

import errno
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from segmentlog.cluster.copies import Copy
from segmentlog.errors import (
    CorruptCheckpointError,
    CorruptLogError,
    LogDirectoryError,
    StorageError,
    UnsupportedFormatError,
)
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    INDEXES,
    LEADER_EPOCH_CHECKPOINT,
    LOG_AND_ALL_INDEXES,
    PARTITION_METADATA_FILE,
    FileKind,
    FileState,
    parse_segment_file,
    partition_path,
    segment_file_name,
)
from segmentlog.log.listing import list_segments, remove_indexes_without_log
from segmentlog.log.segment import Segment
from segmentlog.log.swaps import finish_swaps
from segmentlog.model import ReadUpTo, ScanPolicy, TopicPartition
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.store.copy import (
    copy_range,
    digest_of,
    digest_of_file,
    digest_up_to,
    has_other_names,
    inode_of,
    opened_source,
    size_of,
)
from segmentlog.store.durable import (
    create_directory,
    create_file,
    remove_file,
    rename,
    replace_file,
    sync_directory,
    sync_file,
    writable,
)
from segmentlog.store.fingerprint import fingerprint
from segmentlog.store.paths import is_bucket
from segmentlog.store.readable import exists, is_directory, is_url, list_names, status_of
from segmentlog.txn.change import HeldDirectory
from segmentlog.txn.effects import Followed
from segmentlog.txn.guard import PartitionIntent, SegmentSizes
from segmentlog.txn.state import check_types, read_json, to_json

logger = logging.getLogger(__name__)

_SNAPSHOT = re.compile(r"[0-9]{20}\.snapshot")
_MIRRORED_FILE = "segmentlog.mirrored"
_MIRRORED_FORMAT = 1
_AS_STORED = ScanPolicy(header_names_as_bytes=True)
_COMPARED = ["offset", "timestamp", "key", "value", "headers"]
_COMPARED_OFFSETS = 4096  #: offsets whose records are compared at once


class MirroredPartition(NamedTuple):
    """A partition that was copied.

    Attributes
    ----------
    topic, partition : its name and number.
    source : path of the copy that is the log.
    log_start_offset, log_end_offset : half-open range of its offsets.
    n_bytes : bytes of its ``.log`` files.
    n_copied : bytes of them that the destination lacked.
    cut_at : the offset at which the copy at the destination was cut; None if it did not diverge.
        The destination had other records there than the log: those of another leader, or of a
        writer since the last mirror.
    kept : the files with the bytes that were cut off; none in a dry run.
    n_put_aside : number of segments of the destination that are put aside, because the source has
        the same records in other bytes, has compacted them, or begins after them.
    sha256 : of the SHA-256 digests of its ``.log`` files in the order of their offsets, in hex;
        empty in a dry run.
    missing : what the source promises and does not have, in words: the copy lacks it, too.
    """

    topic: str
    partition: int
    source: str
    log_start_offset: int
    log_end_offset: int
    n_bytes: int
    n_copied: int
    cut_at: int | None
    kept: tuple[str, ...]
    n_put_aside: int
    sha256: str
    missing: tuple[str, ...] = ()

    @property
    def has_problem(self) -> bool:
        """Whether the source promises what it does not have."""
        return bool(self.missing)


class _KnownSegment(NamedTuple):
    """A segment that a mirror has found, or made, equal on both sides."""

    size: int  # bytes of the ``.log`` file at the destination
    sha256: str  # the digest of these bytes, in hex
    #: inode, size and times of each of the segment's files on both sides; None for a file that is
    #: not there
    source: Sequence[Sequence[int] | None]
    own: Sequence[Sequence[int] | None]


class KnownLog(NamedTuple):
    """A partition as the last mirror has left it; `source` is the path of the log."""

    source: str
    end: int
    segments: Mapping[int, _KnownSegment]


def read_known(directory: str) -> dict[TopicPartition, KnownLog]:
    """What the last mirror has left; nothing if the file is missing, or cannot be understood.

    Without it, all bytes are compared.
    """
    path = os.path.join(directory, _MIRRORED_FILE)
    known = {}
    try:
        for topic, partition, source, end, segments in read_json(path, (_MIRRORED_FORMAT,))[
            "partitions"
        ]:
            check_types((topic, partition, source, end), (str, int, str, int))
            found = {base: _KnownSegment(*each) for base, *each in segments}
            known[TopicPartition(topic, partition)] = KnownLog(source, end, found)
    except FileNotFoundError:
        return {}
    except (CorruptCheckpointError, KeyError, TypeError, ValueError) as error:
        logger.warning("%s: cannot be read, so all bytes are compared: %s", path, error)
        return {}
    return known


def write_known(directory: str, known: Mapping[TopicPartition, KnownLog]) -> None:
    """Keep what a mirror has found, or made, equal."""
    rows = [
        [*each, log.source, log.end, [[base, *found] for base, found in log.segments.items()]]
        for each, log in known.items()
    ]
    data = to_json(_MIRRORED_FORMAT, {"partitions": rows})
    replace_file(os.path.join(directory, _MIRRORED_FILE), data)


class Follower:
    """One partition at the destination, and the log that it follows.

    `open_now`: opens a log directory as it is now.  `end`: the log end at
    the moment that is copied; a commit may have appended since.  `own`:
    segments of the destination before the mirror.  `own_end`: the log end of the destination
    before the mirror.  `cut_at`: the offset from which on the destination has records that the log
    lacks, or None.
    """

    def __init__(
        self,
        held: HeldDirectory,
        log: Log,
        cleaned_to: int,
        known: KnownLog | None,
        on_bytes: Callable[[int], object],
        open_now: Callable[[str], LogDirectory],
    ) -> None:
        self._held, self.log, self._on_bytes, self._open_now = held, log, on_bytes, open_now
        self._path = partition_path(held.directory, log.topic_partition)
        self._known = known if known is not None and known.source == log.path else None
        self._mark = os.path.join(os.path.dirname(log.path), CLEAN_SHUTDOWN_FILE)
        self._source_was_clean = exists(self._mark)
        self.end = log.log_end_offset
        self._cleaned_to = min(cleaned_to, self.end)
        #: Segments of the source, and their sizes; a torn tail and later commits are left out.
        self._segments = _up_to_the_end(log)
        #: By base offset: the stamps of the source's files, and whether a change would show.
        self._looks: dict[int, tuple[list[Sequence[int] | None], bool]] = {}
        self._digests: dict[int, bytes] = {}
        self._staged: set[int] = set()
        self.n_copied = 0
        self.own: Sequence[Segment] = ()
        self.own_end = 0
        self.cut_at: int | None = None
        self._cut: tuple[int, int, int] | None = None
        self._same: dict[int, int] = {}
        self._others: list[int] = []
        self._older: list[int] = []
        self._kept_before: set[str] = set()
        self._segment_files: list[str] = []
        self._index_files: list[str] = []

    def begin(self) -> None:
        """Make the directory of the partition, and finish a compaction that was interrupted."""
        if not exists(self._path):
            create_directory(self._path)
            sync_directory(self._held.directory)
        names = list_names(self._path)
        parsed = {name: each for name in names if (each := parse_segment_file(name)) is not None}
        states = {each.state for each in parsed.values()}
        for name in parsed:  # found before the guard: a rename over a directory fails after it
            path = os.path.join(self._path, name)
            if is_directory(path):
                raise StorageError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if FileState.SWAP in states:
            finish_swaps(self._path)
        remove_indexes_without_log(self._path)

    def plan(self) -> None:
        """Compare both sides: what stays, what leaves, and what comes."""
        own = None
        if exists(self._path) and list_segments(self._path):
            own = self._open_now(self._held.directory).log(*self.log.topic_partition)
            self.own = own.segments
            self.own_end = own.log_end_offset
        expected = {each.base_offset: (each, size) for each, size in self._segments}
        first = min(expected, default=0)
        self._older = [each.base_offset for each in self.own if each.base_offset < first]
        rest = self.own[len(self._older) :]
        for each, base_offset in zip(rest, expected, strict=False):
            segment, size = expected[base_offset]
            is_as_long = each.size == size or (each.size < size and each is rest[-1])
            if each.base_offset != base_offset or not is_as_long:
                break
            if not self._is_beginning(each, segment, size):
                break
            self._same[base_offset] = each.size
        self._others = [each.base_offset for each in rest[len(self._same) :]]
        if self._older or self._others:
            self._refuse_loss()
        if own is not None:
            self._find_cut(own)
        for segment, size in self._new():  # which a mirror may have copied before it was killed
            path = _cleaned(os.path.join(self._path, _log_name(segment)))
            if exists(path) and status_of(path).size == size:
                self._look(segment)
                with _opened(segment) as file:
                    digest = digest_of(file, size)
                if digest_of_file(path, size) == digest:
                    self._digests[segment.base_offset] = digest
                    self._staged.add(segment.base_offset)

    def _refuse_loss(self) -> None:
        """Refuse a log that has lost records which are at the destination, perhaps nowhere else.

        Raises `LogDirectoryError` if such segments would leave the destination.
        """
        if is_url(self.log.path):
            return
        # Of several brokers, the log has the high watermark that its copies agree on.
        log = self._open_now(os.path.dirname(self.log.path)).log(*self.log.topic_partition)
        leaving = [*self._older, *self._others]
        for lost in filter(None, (*log.lost_segments, log.lost_offsets)):
            is_there = any(lost.start_offset <= each < lost.end_offset for each in leaving)
            if is_there or (lost is log.lost_offsets and self.own_end > lost.start_offset):
                reason = (
                    f"{lost}; {self._path} has them, and stays as it is: put the files back from "
                    "there, or remove that directory to copy what is left"
                )
                raise LogDirectoryError(self.log.path, reason)

    def _is_beginning(self, own: Segment, segment: Segment, size: int) -> bool:
        """Whether a segment of the destination has the first bytes of that of the source."""
        base = own.base_offset
        source = self._look(segment)
        known = self._known.segments.get(base) if self._known else None
        is_own_known = (
            known is not None and known.own == self._own_stamps(base) and known.size == own.size
        )
        if is_own_known and known is not None:
            own_digest = bytes.fromhex(known.sha256)
            if known.source == source and own.size == size:
                self._digests[base] = own_digest
                return True
        else:
            own_digest = digest_of_file(own.path, own.size)
            if self._held.may_write and not self._held.is_clean:
                # A run that was killed may have written it, and nobody has synced it since.
                with writable(own.path) as descriptor:
                    sync_file(descriptor, own.path)
        with _opened(segment) as file:  # read once
            digest = digest_up_to(file, own.size)
            first = digest.digest()
            self._digests[base] = digest_up_to(file, size, own.size, digest).digest()
        return own_digest == first

    def _find_cut(self, own: Log) -> None:
        """Find the records of the destination that the log does not have."""
        if not self._others:
            return
        copy = Copy(own, self._held.directory, {})
        end = min(copy.common_end(Copy(self.log, "", {})), self.own_end, self.end)
        first = self._others[0]
        start = max(first, own.log_start_offset, self.log.log_start_offset)
        last_end = self._known.end if self._known else end
        found, _ = differences(own, self.log, start, end, last_end)
        if found is not None:
            end = found
        if end >= self.own_end:
            return
        self.cut_at = max(end, first)
        below = [each for each in own.segments if first <= each.base_offset < self.cut_at]
        self._cut = self.cut_at, -1, 0
        if below:
            placed = below[-1].find(self.cut_at)
            position = below[-1].size if placed is None else placed.position
            self._cut = self.cut_at, below[-1].base_offset, position

    def _new(self) -> list[tuple[Segment, int]]:
        return [each for each in self._segments if each[0].base_offset not in self._same]

    def n_missing(self) -> Iterator[int]:
        """Bytes of each segment that are to be copied."""
        for segment, size in self._segments:
            if segment.base_offset not in self._staged:
                yield size - self._same.get(segment.base_offset, 0)

    def _look(self, segment: Segment) -> list[Sequence[int] | None]:
        """The stamps of the files of a segment of the source, looked at before they are read."""
        base = segment.base_offset
        if base not in self._looks:
            found = [
                fingerprint(segment.path),
                *(fingerprint(segment.index_path(kind)) for kind in INDEXES),
            ]
            stamps: list[Sequence[int] | None] = [each.stamp and [*each.stamp] for each in found]
            self._looks[base] = stamps, all(each.is_settled for each in found)
        return self._looks[base][0]

    def _own_stamps(self, base_offset: int) -> list[Sequence[int] | None]:
        paths = [
            os.path.join(self._path, segment_file_name(base_offset, kind))
            for kind in LOG_AND_ALL_INDEXES
        ]
        return [found and [*found] for found in (fingerprint(each).stamp for each in paths)]

    def stage_segments(self) -> None:
        """Step 2."""
        self._kept_before = self._kept()
        wanted = {_log_name(each) for each, _ in self._new() if each.base_offset in self._staged}
        for name in list_names(self._path):
            parsed = parse_segment_file(name)
            is_left = parsed is not None and parsed.state is FileState.CLEANED
            if (is_left and name.removesuffix(f".{FileState.CLEANED}") not in wanted) or (
                name.endswith(".tmp")
            ):
                remove_file(os.path.join(self._path, name))
        for segment, size in self._new():
            base, name = segment.base_offset, _log_name(segment)
            path = os.path.join(self._path, name)
            with _opened(segment) as file:
                if base in self._staged:
                    with writable(_cleaned(path)) as descriptor:
                        sync_file(descriptor, path)
                else:
                    self._look(segment)
                    self._digests[base] = digest_of(file, size)
                    self._copy(file, _cleaned(path), size, self._digests[base], self._on_log)
                indexes = self._copy_indexes(segment, size, file)
            self._segment_files += [*indexes, name]
        for segment, size in self._segments:
            if segment.base_offset in self._same and self._lacks_indexes(segment, size):
                with _opened(segment) as file:
                    self._index_files += self._copy_indexes(segment, size, file)

    def _lacks_indexes(self, segment: Segment, size: int) -> bool:
        """Whether indexes of a segment that the destination has are to be copied."""
        base = segment.base_offset
        if self._same[base] < size:
            return True
        known = self._known.segments.get(base) if self._known else None
        own, source = self._own_stamps(base), self._look(segment)
        are_known = known is not None and (known.own, known.source) == (own, source)
        if are_known and [each is None for each in own] == [each is None for each in source]:
            return False
        return any(self._differs(segment_file_name(base, kind)) for kind in INDEXES)

    def _on_log(self, n_bytes: int) -> None:
        self.n_copied += n_bytes
        self._on_bytes(n_bytes)

    def _copy(
        self,
        source: int,
        target: str,
        size: int | None = None,
        expected: bytes | None = None,
        on_bytes: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Copy the first bytes of an open file to a new one, durably, and read them again."""
        if size is None:
            size = size_of(source)
        if expected is None:
            expected = digest_of(source, size)
        descriptor = create_file(target)
        try:
            copy_range(source, descriptor, target, 0, size, on_bytes)
            sync_file(descriptor, target)
        finally:
            os.close(descriptor)
        if digest_of_file(target, size) != expected:
            raise _other_bytes(target)

    def _copy_indexes(self, segment: Segment, size: int, log: int) -> list[str]:
        """Copy the indexes of a segment; none if they may be those of other bytes.

        Compaction renames the log before its indexes.  So the indexes belong to the open log if it
        still has its name afterwards.  A writer removes the mark of a clean stop before it
        appends, and puts it back afterwards.  So the indexes of the active segment belong to the
        copied bytes if the mark is there, and the log has not grown.
        """
        is_active = segment is self._segments[-1][0]
        if is_active and not self._source_was_clean:
            return []
        names = []
        for kind in INDEXES:
            path = segment.index_path(kind)
            name = segment_file_name(segment.base_offset, kind)
            try:
                with opened_source(path) as source:
                    self._copy(source, _cleaned(os.path.join(self._path, name)))
            except FileNotFoundError:
                continue
            names.append(name)
        try:
            now = status_of(segment.path, follow=True)
            # Of a store, the copy comes from an extent that has the number of the segment.
            mine = segment.inode if is_bucket(segment.path) else inode_of(log)
            is_same = now.inode == mine
        except FileNotFoundError:
            is_same = False
        if is_same and is_active:
            is_same = exists(self._mark) and size_of(log) == size
        if is_same:
            return names
        for name in names:
            remove_file(_cleaned(os.path.join(self._path, name)))
        return []

    def _growing(self) -> tuple[Segment, int] | None:
        """The segment that grows in place, and its size afterwards."""
        for segment, size in self._segments:
            if self._same.get(segment.base_offset, size) < size:
                return segment, size
        return None

    def followed(self, start: int | None) -> Followed:
        """The partition as it will be."""
        known = self.log.high_watermark
        own = {*list_names(self._path)}
        snapshots = [each for each in list_names(self.log.path) if _SNAPSHOT.fullmatch(each)]
        snapshots = sorted(each for each in snapshots if int(each[:20]) <= self.end)
        removed = [each for each in own if _SNAPSHOT.fullmatch(each) and each not in snapshots]
        files = [
            each
            for each in (PARTITION_METADATA_FILE, LEADER_EPOCH_CHECKPOINT, *snapshots)
            if self._differs(each)
        ]
        grown = self._growing()
        if grown is not None:
            names = [segment_file_name(grown[0].base_offset, kind) for kind in INDEXES]
            removed += [each for each in names if each not in self._index_files]
        new = [each.base_offset for each, _ in self._new()]
        first = min([*new, *self._others]) if self.replaces else -1
        return Followed(
            *self.log.topic_partition,
            self.log.log_start_offset if start is None else start,
            self.end,
            self.end if known is None else min(known, self.end),
            self._cleaned_to,
            self._segments[0][0].base_offset if self._segments else 0,
            first,
            self._segment_files if self.replaces else [],
            files + self._index_files,
            sorted(each for each in removed if each in own),
            list(self._cut or ()),
        )

    def _differs(self, name: str) -> bool:
        """Whether a small file of the source is not that of the destination."""
        path = os.path.join(self._path, name)
        try:
            with opened_source(os.path.join(self.log.path, name)) as source:
                size = size_of(source)
                expected = digest_of(source, size)
        except FileNotFoundError:
            return False
        is_as_long = exists(path) and status_of(path).size == size
        return not is_as_long or digest_of_file(path, size) != expected

    def is_changed(self, found: Followed) -> bool:
        return bool(
            self.replaces
            or self._new()
            or found.files
            or found.removed
            or self._older
            or self._growing() is not None
        )

    @property
    def _older_end(self) -> int:
        """Offset after the segments that leave the beginning of the log."""
        rest = self.own[len(self._older) :]
        return rest[0].base_offset if rest else self.own_end

    @property
    def replaces(self) -> bool:
        """Whether segments of the destination leave for others, so that it does not only grow."""
        return bool(self._others)

    def intent(
        self, found: Followed, visible: Mapping[TopicPartition, int], *, only_appends: bool
    ) -> PartitionIntent:
        """The partition before and after the change, for readers and for an undo.

        The new records are visible with the decision.  If segments are exchanged after it, in any
        of the partitions, readers end where the old and the new files have the same records until
        the guard is gone.
        """
        visible_end = min(visible.get(self.log.topic_partition, self.own_end), self.own_end)
        start = found.start if found.start > 0 else -1
        end = found.high_watermark
        if not only_appends:
            end = min([visible_end, end, *found.cut[:1]])
            if self._older and self._older_end > found.below:
                # A segment that leaves has records, perhaps others, where the log begins then.
                end = min(end, found.below)
        sizes = SegmentSizes.of(self.own[-1]) if self.own else SegmentSizes(-1, 0, 0, 0)
        return PartitionIntent(
            *self.log.topic_partition, sizes, self.own_end, visible_end, max(end, start), start
        )

    def grow(self) -> None:
        """Append the bytes that the last segment of the destination lacks."""
        growing = self._growing()
        if growing is None:
            return
        segment, size = growing
        target = os.path.join(self._path, _log_name(segment))
        start = self._same[segment.base_offset]
        with opened_source(target) as file:
            # A snapshot of hard links would change with the destination, and so would a source.
            if has_other_names(file):
                self._copy(file, _tmp(target))
                rename(_tmp(target), target)
        with _opened(segment) as source, writable(target) as descriptor:
            copy_range(source, descriptor, target, start, size, self._on_log)
            sync_file(descriptor, target)
            expected = digest_of(source, size, start)
        with opened_source(target) as file:
            if digest_of(file, size, start) != expected:
                raise _other_bytes(target)

    def place_new(self) -> None:
        """Give new segments their names, if no other segment has to leave first.

        `stage_files` syncs the directory.
        """
        if not self.replaces:
            for name in self._segment_files:  # the log of a segment comes after its indexes
                path = os.path.join(self._path, name)
                rename(_cleaned(path), path)

    def stage_files(self, found: Followed) -> None:
        """Copy small files beside those that they replace; indexes stand there already."""
        for name in found.files:
            path = os.path.join(self._path, name)
            target = _tmp(path)
            if name in self._index_files:
                rename(_cleaned(path), target)
                continue
            try:
                with opened_source(os.path.join(self.log.path, name)) as source:
                    self._copy(source, target)
            except FileNotFoundError:  # a broker has removed an old snapshot
                continue
        sync_directory(self._path)

    def _kept(self) -> set[str]:
        names = list_names(self._path)
        return {os.path.join(self._path, each) for each in names if each.endswith(".broken")}

    def known_now(self) -> KnownLog:
        """What this mirror has found, or made, equal; a change that may not show is left out."""
        segments = {}
        for segment, size in self._segments:
            base = segment.base_offset
            source, is_settled = self._looks[base]
            if is_settled:
                segments[base] = _KnownSegment(
                    size, self._digests[base].hex(), source, self._own_stamps(base)
                )
        return KnownLog(self.log.path, self.end, segments)

    def digest(self) -> str:
        """The digest of the digests of all segments."""
        digest = hashlib.sha256()
        for segment, _ in self._segments:
            digest.update(self._digests[segment.base_offset])
        return digest.hexdigest()

    def result(self, n_copied: int, sha256: str) -> MirroredPartition:
        """The result; without a digest it is that of a dry run."""
        kept = tuple(sorted(self._kept() - self._kept_before)) if sha256 else ()
        if self.cut_at is not None and sha256:
            logger.warning(
                "%s: the records from offset %d on were not those of the log, and were cut off; "
                "kept in %s",
                self._path,
                self.cut_at,
                ", ".join(kept) or "no file",
            )
        others = self._others
        if self._cut is not None:
            offset, base, _ = self._cut
            others = [each for each in others if each < offset and each != base]
        return MirroredPartition(
            *self.log.topic_partition,
            self.log.path,
            self.log.log_start_offset,
            self.end,
            sum(size for _, size in self._segments),
            n_copied,
            self.cut_at,
            kept,
            len(self._older) + len(others),
            sha256,
        )


def differences(
    own: Log, log: Log, start: int, end: int, last_end: int
) -> tuple[int | None, bool]:
    """The first offset at which a record of a copy is not that of its log, and if both are equal.

    A compaction of either side leaves records out, and changes none.  Records that only the copy
    has may be such that the log has compacted, unless they lie at or after `last_end`, where the
    last mirror ended.
    """
    is_equal = True
    try:
        for begin in range(start, end, _COMPARED_OFFSETS):
            after = min(begin + _COMPARED_OFFSETS, end)
            ours, theirs = (
                each.scan_offsets(
                    each.bounds(begin, after, read_up_to=ReadUpTo.LOG_END), _COMPARED, _AS_STORED
                )
                for each in (own, log)
            )
            with ours, theirs:
                tables = ours.read_all(), theirs.read_all()
            if tables[0].equals(tables[1]):
                continue
            is_equal = False
            offsets = [each["offset"].to_numpy() for each in tables]
            common, *rows = np.intersect1d(*offsets, return_indices=True)
            same = [each.take(at) for each, at in zip(tables, rows, strict=True)]
            found = [int(each) for each in np.setdiff1d(*offsets) if each >= last_end]
            if not same[0].equals(same[1]):
                pairs = zip(*(each.to_pylist() for each in same), strict=True)
                others = (at for at, (one, other) in enumerate(pairs) if one != other)
                found.append(int(common[next(others)]))
            if found:
                return min(found), False
    except (CorruptLogError, UnsupportedFormatError) as error:
        logger.warning("%s: is replaced, and was not compared further: %s", own.path, error)
        return None, False
    return None, is_equal


def _up_to_the_end(log: Log) -> list[tuple[Segment, int]]:
    """The segments of a log, and their bytes up to the log end when the directory was opened."""
    segments = [(each, each.size) for each in log.segments]
    end, position = log.log_end_offset, log.end.position
    if log.end.offset > end:  # a commit has written since
        while len(segments) > 1 and segments[-1][0].base_offset >= end:
            segments.pop()
        placed = segments[-1][0].find(end)
        position = segments[-1][0].size if placed is None else placed.position
    if segments:
        segments[-1] = segments[-1][0], position
    return segments


def _opened(segment: Segment) -> AbstractContextManager[int]:
    """A descriptor of a segment's log, if the file is that which was listed."""
    return opened_source(segment.path, segment.inode)


def _log_name(segment: Segment) -> str:
    return segment_file_name(segment.base_offset, FileKind.LOG)


def _cleaned(path: str) -> str:
    """The path under which a file of a new segment is copied.

    Brokers and recoveries remove ``.cleaned`` files.
    """
    return f"{path}.{FileState.CLEANED}"


def _tmp(path: str) -> str:
    """The path under which another file is copied; brokers leave such files alone.

    A broker takes the name of a ``.cleaned`` file for an offset, and does not start if it is none
    (``LogFileUtils.offsetFromFileName``).
    """
    return f"{path}.tmp"


def _other_bytes(path: str) -> OSError:
    return OSError(errno.EIO, "the copied bytes read back as other bytes", path)
