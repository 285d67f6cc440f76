"""The files of one log: the segments of a listing, and what they show.

A log that has changed since is listed again (`retry_if_relisted`).

Readers of records ask a partition for its segments.  Writers, upkeep and recovery list the
directory themselves: they need a mounted file system.

All files of a log are in one directory of a `Disk` (`segmentlog.store.readable`), and
`Partition.of_slice` finds the directory from the first file of a slice.  A log that lies in two
places has a disk that shows both as one directory, as `segmentlog.tiered.disk` does for a local
log and its tier.
"""

import copy
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar

from segmentlog.errors import (
    CorruptLogError,
    LogChangedError,
    SegmentLogError,
    UnsupportedFormatError,
)
from segmentlog.file_columns import SliceFile
from segmentlog.format.kernels import layout
from segmentlog.log.checkpoint import known_topic_id
from segmentlog.log.listing import ListedFiles, indexes_without_log, list_segments, lone_segment
from segmentlog.log.segment import LogEnd, Segment, find_log_end
from segmentlog.model import LARGEST_LONG, LogSlice, OffsetRange, TopicPartition
from segmentlog.reads.lookup import NewestTimestamps
from segmentlog.store.fingerprint import Evidence, Fingerprint, fingerprint, still_proven
from segmentlog.store.partitions import names_aside
from segmentlog.store.readable import ReadableFile, is_url, open_file
from segmentlog.store.system_errors import is_gone, storage_error

if TYPE_CHECKING:
    from segmentlog.reads.log import Log
    from segmentlog.reads.snapshot import DirectorySnapshot


class Listing(NamedTuple):
    """The segments of a partition that are part of its log."""

    files: ListedFiles
    is_clean: bool = False  # only a commit can write to them: the directory was cleanly stopped
    #: the log end at the moment with which the listing was compared, if a commit has written to
    #: the log since; None if the files show the end
    end_offset: int | None = None
    evidence: Evidence = ()  # of the directory and of the active segment; none at a URL

    def still_holds(self) -> bool:
        """Whether the log is proven to be as it was listed; without proof, it may still be so."""
        # Segments are rolled, put aside and compacted by making and renaming files, which changes
        # the time of the directory. Records are appended to the active segment, which changes the
        # time of that file. Nothing else changes the end of a log.
        return still_proven(self.evidence)


def list_now(path: str, *, is_clean: bool = False, before: Listing | None = None) -> Listing:
    """The segments at `path` as they are now, with continued evidence; or `LogDirectoryError`."""
    known = dict(before.evidence) if before else {}
    seen = [] if is_url(path) else [(path, fingerprint(path, known.get(path)))]
    files = list_segments(path)
    return Listing(files, is_clean, evidence=_with_active(seen, files, known))


def list_one_file(path: str, listing: Listing) -> Listing:
    """One ``.log`` file as a log, from the listing of its directory, which may leave it out."""
    found = [file for file in listing.files if file.path == path]
    files = ListedFiles(os.path.dirname(path), found or [lone_segment(path)])
    return Listing(files, evidence=_with_active(listing.evidence[:1], files, {}))


def _with_active(
    evidence: Evidence, files: ListedFiles, known: Mapping[str, Fingerprint]
) -> Evidence:
    """Evidence of a directory and its active segment; none if that was written to meanwhile."""
    if not evidence or not files:
        return evidence
    listed = files[-1]
    active = fingerprint(listed.path, known.get(listed.path))
    if active.stamp is None or active.stamp[:2] != (listed.inode, listed.size):
        return ()
    return [*evidence, (listed.path, active)]


class LostOffsets(NamedTuple):
    """Offsets of a log whose segments are gone, from its log end up to its high watermark.

    `why` shows that they are gone, in words.
    """

    start_offset: int
    end_offset: int
    why: str

    def __str__(self) -> str:
        return (
            f"offsets [{self.start_offset}, {self.end_offset}) are missing: its high watermark "
            f"is {self.end_offset}, and its log ends at {self.start_offset}, although {self.why}"
        )


class LostSegments(LostOffsets):
    """Offsets between two segments of a log whose segments are gone.

    They begin where the segment before them ends, and end where the segment after them begins.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return (
            f"offsets [{self.start_offset}, {self.end_offset}) between two segments are missing: "
            f"{self.why}"
        )


class LostStart(LostOffsets):
    """Offsets before the first segment that an index names, although its segment is gone."""

    __slots__ = ()

    def __str__(self) -> str:
        return (
            f"offsets [{self.start_offset}, {self.end_offset}) before the first segment are "
            f"missing: {self.why}"
        )


class ListedSegments:
    """The segments of one listing; a log that has changed is listed again.

    `log_start`: by its checkpoint, or 0.  `committed_to`: the high watermark, or -1 if there is
    none.  `path`: of the partition's directory; empty for one segment alone, which need not reach
    to the end.  `snapshot`: of the log directory, if its checkpoints may show that segments are
    lost.
    """

    def __init__(
        self,
        listing: Listing,
        log_start: int = 0,
        committed_to: int = -1,
        path: str = "",
        topic_partition: TopicPartition | None = None,
        snapshot: "DirectorySnapshot | None" = None,
    ) -> None:
        #: In the order of their base offsets; the last one is the active segment's.
        self.files = listing.files
        self.listing = listing
        self._known_end = listing.end_offset
        self._log_start = log_start
        # A commit that fails cuts the index of the segment that it has rolled, in place.  A broker
        # does so when it truncates its log.  A process that has the index mapped dies of SIGBUS.
        # Neither of them touches a segment that a committed record follows.
        self._committed_to = committed_to
        self._path = path
        self._topic_partition, self.snapshot = topic_partition, snapshot
        self._newest_timestamps: dict[bool, NewestTimestamps] = {}
        self._is_clean = listing.is_clean
        self._sealed_below = committed_to if listing.is_clean else -1

    def segment(self, i: int) -> Segment:
        """Segment `i` of the log, from 0."""
        if i + 1 == len(self.files):
            return Segment(self.files[i], is_sealed=False, offset_limit=self.offset_limit(i))
        is_sealed = self.files.paths.base_offsets[i + 1] < self._sealed_below
        return Segment(
            self.files[i], is_sealed=is_sealed, is_active=False, offset_limit=self.offset_limit(i)
        )

    def offset_limit(self, i: int) -> int:
        """An offset that no batch of segment `i` reaches, unless the segment was merged."""
        # The next segment begins there. After the last segment, its indexes cannot hold more, but
        # the high watermark may show that the log does.
        base_offsets = self.files.paths.base_offsets
        if i + 1 < len(base_offsets):
            return base_offsets[i + 1]
        return max(base_offsets[i] + layout.SEGMENT_OFFSETS, self._committed_to)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """All of them, in the order of their base offsets; the last one is the active segment."""
        return tuple(map(self.segment, range(len(self.files))))

    @cached_property
    def end(self) -> LogEnd:
        """End of the last segment."""
        if not self.files:
            return LogEnd(self._log_start, 0)
        return find_log_end(self.segment(len(self.files) - 1), self._committed_to)

    @cached_property
    def log_start_offset(self) -> int:
        """First offset that a reader may see."""
        first = self.files.paths.base_offsets[0] if self.files else 0
        return max(self._log_start, first)

    @cached_property
    def log_end_offset(self) -> int:
        """The log end when the directory was opened."""
        end, known = self.end.offset, self._known_end
        return max(end if known is None else min(end, known), self.log_start_offset)

    @cached_property
    def lost(self) -> LostOffsets | None:
        """The offsets whose segments are gone from the end of the log, if there are any."""
        # A clean stop writes all of a log, and then its high watermark. Without a clean stop, a
        # crash or a copy beside a broker may have left a newer high watermark than records: then
        # the index of a segment that is gone shows the loss, or a recovery point after the log
        # end.
        end, promised = self.log_end_offset, self._committed_to
        if end >= promised or (self.files and self.segments[-1].size > self.end.position):
            return None  # nothing is missing, or a torn tail is
        damaged = self.end.damaged_from
        if damaged is not None and self.end.offset <= damaged + 1:
            return None  # no sound batch follows the damage, which may hold these offsets
        if self._is_clean:
            return LostOffsets(end, promised, "it was cleanly stopped")
        for base_offset, path in self._orphans:
            if end <= base_offset < promised:
                name = os.path.basename(path)
                return LostOffsets(end, promised, f"{name} is the index of a later segment")
        if self.snapshot is not None and self._topic_partition is not None:
            synced_to = self.snapshot.synced_to(self._topic_partition)
            if synced_to > end:
                return LostOffsets(end, promised, f"it was synced up to offset {synced_to}")
        return None

    @cached_property
    def _orphans(self) -> list[tuple[int, str]]:
        """Base offset and path of each index whose segment is gone."""
        try:
            return indexes_without_log(self._path) if self._path else []
        except (FileNotFoundError, NotADirectoryError):
            return []

    @cached_property
    def lost_segments(self) -> tuple[LostSegments, ...]:
        """The segments that are gone from the middle of the log."""
        # An index between two segments shows one: its segment was there, and the segment before it
        # ends below it. Compaction leaves such an index if a crash comes between two removals, so
        # a log that was ever compacted shows nothing.
        bases, found = self.files.paths.base_offsets, dict[int, LostSegments]()
        for base_offset, path in self._orphans:
            i = self.files.index_of(base_offset)
            is_between = bases and bases[0] < base_offset < bases[-1]
            if not is_between or i in found or base_offset < self._log_start:
                continue
            end = self.end_of(i)
            if end is not None and end <= base_offset and self.cleaned_to < 0:
                name = os.path.basename(path)
                found[i] = LostSegments(end, bases[i + 1], f"the segment of {name} is gone")
        return tuple(found.values())

    @cached_property
    def lost_start(self) -> LostOffsets | None:
        """Offsets before the first segment that are gone by an index that is there."""
        bases = self.files.paths.base_offsets
        for base_offset, path in self._orphans if bases else ():
            if self._log_start <= base_offset < bases[0] and self.cleaned_to < 0:
                name = os.path.basename(path)
                why = f"{name} is there: its segment is gone, or retention was interrupted"
                return LostStart(base_offset, bases[0], why)
        return None

    @property
    def cleaned_to(self) -> int:
        """How far the log was compacted, or -1."""
        if self.snapshot is None or self._topic_partition is None:
            return -1
        return self.snapshot.cleaned_to(self._topic_partition)

    @cached_property
    def gaps(self) -> tuple[OffsetRange, ...]:
        """Offsets between the ends of segments and the next ones: compacted away, or lost."""
        bases = self.files.paths.base_offsets
        found = []
        for i, after in enumerate(bases[1:]):
            end = self.end_of(i) if after > self._log_start else None
            if end is not None and end < after:
                found.append(OffsetRange(end, after))
        return tuple(found)

    def end_of(self, i: int) -> int | None:
        """The offset after the last batch of segment `i`; None if damage hides it."""
        end = self.files.paths.base_offsets[i]
        try:
            with self.segment(i).opened() as opened:
                for placed in opened.headers(opened.floor_position(LARGEST_LONG)):
                    header = placed.header
                    is_batch = header.magic >= layout.FIRST_BATCH_MAGIC
                    end = (header.last_offset if is_batch else header.base_offset) + 1
        except (CorruptLogError, UnsupportedFormatError):
            return None
        return end

    def newest_timestamps(self, *, skips: bool = False) -> NewestTimestamps:
        """Largest timestamps of the segments; look-ups by time begin at the log start."""
        if skips not in self._newest_timestamps:
            self._newest_timestamps[skips] = NewestTimestamps(
                self.untorn, self.log_start_offset, skips=skips
            )
        return self._newest_timestamps[skips]

    @cached_property
    def untorn(self) -> tuple[Segment, ...]:
        """The segments, without a torn tail of the last one that no high watermark promises."""
        # Zeros, with which a file system fills a file up after a crash, are not a batch header.
        if not self.files or self.segments[-1].size <= self.end.position:
            return self.segments
        active = copy.copy(self.segments[-1])
        if self.end.offset < self._committed_to:
            active.may_be_torn = False  # it is damage, which a look-up reports
        else:
            active.size = self.end.position
        return (*self.segments[:-1], active)

    def reads_as(self, again: "ListedSegments") -> bool:
        """Whether a new listing has the same segments, and the same end if it is known."""
        if self.files != again.files or self.listing.end_offset != again.listing.end_offset:
            return False
        return not self.knows_its_end or self.end == again.end

    @property
    def knows_its_end(self) -> bool:
        """Whether the end of the last segment was looked up."""
        return "end" in self.__dict__

    def beside(self, snapshot: "DirectorySnapshot") -> "ListedSegments":
        """The listing in a directory that was, or was not, cleanly stopped; the end is kept."""
        listing = self.listing._replace(is_clean=snapshot.is_clean)
        found = ListedSegments(
            listing, self._log_start, self._committed_to, self._path, self._topic_partition,
            snapshot,
        )  # fmt: skip
        if self.knows_its_end:
            found.end = self.end
        return found

    def has_changed(self) -> bool:
        """Whether files were renamed, replaced or cut since the listing."""
        return not all(each.is_still_there() for each in self.files)


_ATTEMPTS = 5  # a broker rarely overtakes a look-up more often than this

_L = TypeVar("_L", bound="Log")
_P = ParamSpec("_P")
_R = TypeVar("_R")


def retry_if_relisted(
    method: Callable[Concatenate[_L, _P], _R],
) -> Callable[Concatenate[_L, _P], _R]:
    """Call a method of a log again if a file was renamed, replaced or cut since the listing."""
    # Retention and compaction do that to a healthy log. An error in a file that is still the
    # listed one is a true error, and is raised.

    @functools.wraps(method)
    def looking_again(self: _L, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        for _ in range(_ATTEMPTS):
            try:
                return method(self, *args, **kwargs)
            except SegmentLogError as error:
                listed = self._newest_listing
                is_corrupt = isinstance(error, CorruptLogError)
                if not is_corrupt or (listed is not None and not listed.has_changed()):
                    raise
                change: Exception = error
            except OSError as error:
                if not is_gone(error):
                    raise storage_error(error, self.path) from error
                change = error
            self._newest_listing = None  # listed again on the next request
        raise LogChangedError(self.path, -1, -1, str(change)) from change

    return looking_again


class FileChangedError(Exception):
    """A file has changed since planning."""


class Partition(NamedTuple):
    """The files of one log."""

    path: str  # of the directory of its files; errors name it

    @classmethod
    def of_file(cls, path: str) -> "Partition":
        """The partition that holds a ``.log`` file."""
        return cls(os.path.dirname(path))

    @classmethod
    def of_slice(cls, log_slice: LogSlice) -> "Partition":
        """The partition that a slice with files was cut from."""
        return cls.of_file(log_slice.files[0].path)

    def files(self) -> ListedFiles:
        """`list_segments` of it."""
        return list_segments(self.path)

    def segments(self) -> tuple[Segment, ...]:
        """Its segments now, beside a writer: no index is mapped, and the last one is active."""
        files = self.files()
        limits: Sequence[int | None] = [*(each.base_offset for each in files[1:]), None]
        return tuple(
            Segment(each, is_sealed=False, is_active=limit is None, offset_limit=limit)
            for each, limit in zip(files, limits, strict=False)
        )

    def check_topic(self, topic_id: str, offsets: OffsetRange) -> None:
        """Raise `LogChangedError` if what was just read may be of another topic than the known."""
        # The topic was then deleted, and created again. Inodes do not show it: they are reused.
        now = known_topic_id(self.path) if topic_id else ""
        if now and now != topic_id:
            reason = f"its topic was deleted, and another was created (id {now}, not {topic_id})"
            raise LogChangedError(self.path, *offsets, reason)


def open_planned(file: SliceFile) -> ReadableFile:
    """A file of a slice, opened, also if it was just put aside; or `FileChangedError`."""
    # Compaction puts another file under the name, which cannot replace the planned one. A record
    # that was the last of its key when the read was planned may be missing, because of a record
    # after the end of the read. And if the planned range ends between two batches of the new file,
    # records after that end would be lost without an error.
    missing: dict[str, FileNotFoundError] = {}
    for path in (file.path, *names_aside(file.path, file.inode)):
        try:
            opened = open_file(path)
        except FileNotFoundError as error:
            missing[path] = error
            continue
        opened.expect(file.start, file.end)
        # From here on, `status` describes an object as it is opened now.
        if file.inode in (0, opened.status().inode):
            return opened
        opened.close()
    if file.path in missing:
        raise missing[file.path]  # users know this name, not the renamed file's
    message = f"{file.path} is not the file that was planned"
    raise FileChangedError(message)
