"""A log directory at one moment: its partitions and checkpoints, beside commits that are running.

Files at the top of a directory are read one after the other, while writers commit.  They are read
again until no commit has come in between, so a job is seen in all of its partitions or in none.
A log is listed later, on request: an opening that listed ten thousand logs would take seconds.  So
a `Listing` is a value of its own, and `DirectorySnapshot.list_log` compares it with the moment.

One rule says that nothing has changed, for a snapshot and for a listing: the fingerprints of what
was read prove it, or all that they do not prove reads the same.  The top of a directory is

- the names and inodes of partitions, of guards of unfinished commits, and of marks;
- the state, which each of our commits replaces: its stamp (`segmentlog.txn.state`);
- the bytes of the checkpoints of high watermarks, log starts, cleaned parts and recovery points.

A broker replaces its checkpoints every few seconds, mostly with the same bytes, and a replacement
changes the time of the directory, too.  So names and bytes are often read, and seldom new.
"""

import contextlib
import gc
import os
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from segmentlog.errors import (
    CorruptCheckpointError,
    LogChangedError,
    LogDirectoryError,
    RemoteSegmentError,
)
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_CHECKPOINT,
    FileKind,
    FileState,
    parse_partition_directory,
    parse_segment_file,
    partition_path,
)
from segmentlog.log.checkpoint import OffsetsAsRead, moved_entries, read_again, read_offsets
from segmentlog.log.listing import COMPACTED_BEYOND, ListedFiles, Listing, list_now
from segmentlog.model import TopicPartition
from segmentlog.store.fingerprint import Fingerprint, fingerprint, still_proven
from segmentlog.store.partitions import NamedPartition, named_partition
from segmentlog.store.readable import (
    FileType,
    exists,
    is_directory,
    is_url,
    list_entries,
    list_inodes,
    list_names,
    status_of,
)
from segmentlog.txn.guard import GUARD_PREFIX, PartitionIntent, list_guards
from segmentlog.txn.state import STATE_FILE, LazyState, State, read_stamp

_CHECKPOINTS = (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
_MARKS = frozenset({CLEAN_SHUTDOWN_FILE, META_PROPERTIES_FILE})
_PUT_ASIDE = FileKind.LOG, FileState.DELETED
_CLOCKS_NS = 10**8  # a file system's clock may lag a little

_Offsets: TypeAlias = "Mapping[TopicPartition, int] | CorruptCheckpointError"


class Bounds(NamedTuple):
    """Start and end of a log, according to the files beside it."""

    log_start: int  # 0 without an entry
    high_watermark: int | None


class DirectorySnapshot:
    """The top of one log directory at one moment; `refresh` returns that of a later one.

    A job makes the partitions of a new topic, and is decided later.  A reader that lists
    partitions before the former and reads high watermarks after the latter would see a part of the
    job.  So both are of one moment.

    `path`: absolute path, or a URL.  `before`: an earlier snapshot; parts that are proven to be
    unchanged, or that read the same, are taken from it, and are the same objects.
    `lists_unbounded`: whether the logs are listed whose ends only their files show.  Raises
    `OSError` if the directory cannot be listed; `CorruptCheckpointError` if a file of an
    unfinished commit cannot be read.
    """

    #: paths of the partitions in use, but for those of a topic whose deletion is decided
    partitions: Mapping[TopicPartition, str]
    #: the bounds for readers: while a commit is unfinished, its intent has them.  An error if the
    #: checkpoint cannot be read
    log_starts: _Offsets
    high_watermarks: _Offsets
    is_clean: bool  # the directory was cleanly stopped, so that no broker writes to it
    state: LazyState
    _names: "_Names"
    _commits: "_UnfinishedCommits"
    _unbounded: dict[TopicPartition, Listing]
    _evidence: list[tuple[str, Fingerprint]]
    _checkpoints: dict[str, OffsetsAsRead]

    def __init__(
        self, path: str, before: "DirectorySnapshot | None" = None, *, lists_unbounded: bool = True
    ) -> None:
        self.path = path
        self._opened_ns = time.time_ns()
        while not self._read(before, lists_unbounded=lists_unbounded):
            pass
        self._first_use = set(self._unbounded)
        #: what is known of later moments, for `list_log`; None until a commit has come
        self._newest: DirectorySnapshot | None = None

    def _read(self, before: "DirectorySnapshot | None", *, lists_unbounded: bool) -> bool:
        """Read everything once; whether no commit has come in between."""
        seen = dict(before._evidence) if before else {}
        self._evidence = []
        self._checkpoints = {}

        def look(path: str) -> bool:
            """Whether the file has perhaps changed; a look comes before the read."""
            if is_url(path):
                return True
            found = fingerprint(path, seen.get(path))
            self._evidence.append((path, found))
            return found is not seen.get(path)

        self.stamp = read_stamp(self.path)
        # Partitions before high watermarks: that of a new partition is written before its
        # directory is made.
        is_perhaps_new = look(self.path)
        if before is None or is_perhaps_new:
            self._names = _names_now(self.path, before._names if before else None)
        else:
            self._names = before._names
        self.is_clean = CLEAN_SHUTDOWN_FILE in self._names.inodes
        look(os.path.join(self.path, STATE_FILE))
        same = None  # `before`, as long as all that was read is the same
        if before is not None and self._names is before._names and self.stamp == before.stamp:
            same = before if before._commits.is_complete else None
        if same is not None:
            self._commits, self.state = same._commits, same.state
        else:
            found = _commits_now(self.path, self._names.inodes)
            if found is None:
                return False
            self._commits, self.state = found, LazyState(self.path)
        # Checkpoints after intents: a guard that was removed meanwhile has left complete ones.
        # Each takes a request to a store, and an opening needs two.
        for name in _CHECKPOINTS[:2] if is_url(self.path) else _CHECKPOINTS:
            known = before._checkpoints.get(name) if before else None
            if look(os.path.join(self.path, name)) or known is None:
                known = read_again(self.path, name, known)
            self._checkpoints[name] = known
        # A writer that takes a guard over renames it.  A listing made meanwhile may hold neither
        # name, and undecided records were then read as if they were decided.
        is_new = same is None or self._checkpoints != same._checkpoints
        if is_new and self._commits.guards != [each.path for each in list_guards(self.path)]:
            return False
        # Bounds and partitions, with those of unfinished commits in their place.
        decided, undecided = self._commits.decided, self._commits.undecided
        self.log_starts = _with(
            self._checkpoints[LOG_START_CHECKPOINT].offsets,
            {each.topic_partition: each.new_start for each in decided if each.new_start >= 0},
        )
        self.high_watermarks = _with(
            self._checkpoints[HIGH_WATERMARK_CHECKPOINT].offsets,
            {each.topic_partition: each.new_end for each in decided}
            | {each: intent.visible_end for each, intent in undecided.items()},
        )
        self.partitions, gone = self._names.partitions, self._commits.gone
        if gone:
            left = self.partitions.items()
            self.partitions = {each: path for each, path in left if each.topic not in gone}
        self._unbounded = self._list_unbounded(before) if lists_unbounded else {}
        return self.stamp == read_stamp(self.path)

    def _list_unbounded(self, before: "DirectorySnapshot | None") -> dict[TopicPartition, Listing]:
        """Listings of logs whose ends only their files show."""
        # Such logs exist in copies without checkpoints, and where no broker has run yet. A later
        # writer gives them a high watermark first.
        ends, listed = self.high_watermarks, dict[TopicPartition, Listing]()
        if isinstance(ends, CorruptCheckpointError):
            return listed
        for each, path in self.partitions.items():
            if each in ends:
                continue
            known = before._unbounded.get(each) if before else None
            if known is not None and known.still_holds():
                listed[each] = known._replace(is_clean=self.is_clean)
                continue
            # Reported when the partition is asked for: a fault of one log must not stop reads of
            # others.
            with contextlib.suppress(LogDirectoryError, RemoteSegmentError):
                listed[each] = list_now(path, is_clean=self.is_clean, before=known)
        return listed

    def refresh(self) -> "DirectorySnapshot":
        """The directory as it is now, perhaps this object; raises the errors of an opening."""
        if (
            self._commits.is_complete
            and still_proven(self._evidence)
            and all(each.still_holds() for each in self._unbounded.values())
        ):
            return self
        newer = DirectorySnapshot(self.path, self)
        if (
            newer._commits is not self._commits
            or newer._names is not self._names
            or newer.stamp != self.stamp
            or newer._checkpoints != self._checkpoints
            or newer._unbounded.keys() != self._unbounded.keys()
            or any(each.files != self._unbounded[k].files for k, each in newer._unbounded.items())
        ):
            return newer
        # Evidence for the same values, which has grown older, or is of another inode.
        self._evidence, self._unbounded = newer._evidence, newer._unbounded
        return self

    def moved_since(self, before: "DirectorySnapshot") -> set[TopicPartition] | None:
        """Partitions whose logs may not be as they were; None if that may be any of them."""
        moved = set[TopicPartition]()
        for was, now in (
            (before.log_starts, self.log_starts),
            (before.high_watermarks, self.high_watermarks),
            # A recovery point shows that segments are lost, and a kept log would not look again.
            *(
                (before._offsets_in(name), self._offsets_in(name))
                for name in (CLEANER_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT)
            ),
        ):
            found = moved_entries(was, now)
            if found is None:
                return None
            moved |= found
        # Another thread may have just taken the earlier listing of a log into use.
        moved |= {
            each
            for each, listing in before._unbounded.items()
            if (again := self._unbounded.get(each)) is None or again.files != listing.files
        }
        if self._names is not before._names:
            inodes, known = self._names.inodes, before._names
            moved |= {
                each.topic_partition
                for name, each in known.named.items()
                if inodes.get(name) != known.inodes[name]
            }
        if self.stamp != before.stamp:  # another topic may have the name of a deleted one by now
            deletions, known_deletions = self.state.deletions, before.state.deletions
            topics = {each for each, _ in deletions.items() ^ known_deletions.items()}
            moved |= {each for each in before.partitions if each.topic in topics}
        return moved

    @property
    def unfinished(self) -> frozenset[TopicPartition]:
        """The partitions of unfinished commits: their files may still change."""
        return self._commits.unfinished

    @property
    def links(self) -> Sequence[str]:
        """Paths of links with the names of partitions, which are left out."""
        return self._names.links

    def bounds(self, topic_partition: TopicPartition) -> Bounds:
        """Bounds of one log; without a high watermark if its checkpoint cannot be read.

        Raises `CorruptCheckpointError` if the checkpoint of log starts cannot be read.
        """
        if isinstance(self.log_starts, CorruptCheckpointError):
            raise self.log_starts
        ends = self.high_watermarks
        end = None if isinstance(ends, CorruptCheckpointError) else ends.get(topic_partition)
        return Bounds(self.log_starts.get(topic_partition, 0), end)

    def missing(self) -> dict[TopicPartition, int]:
        """High watermarks of promised partitions that have no directory under any name."""
        # A high watermark of 0 promises nothing: a writer sets it before it makes the partition. A
        # broker leaves the high watermarks of a directory as they are when its last partition goes
        # (``ReplicaManager.checkpointHighWatermarks``), but writes recovery points at each
        # deletion and each move (``LogManager.asyncDelete``). So a broker promises the partitions
        # that both checkpoints name.
        ends = self.high_watermarks
        if isinstance(ends, CorruptCheckpointError):
            return {}  # a read that needs them reports that
        entries = [*self._names.named.values()]
        named = {each.topic_partition for each in entries if each.type is FileType.DIRECTORY}
        absent = {each: end for each, end in ends.items() if end > 0 and each not in named}
        if absent and exists(os.path.join(self.path, META_PROPERTIES_FILE)):
            points = self._offsets_in(RECOVERY_POINT_CHECKPOINT)
            if not isinstance(points, CorruptCheckpointError):
                absent = {each: end for each, end in absent.items() if each in points}
        return {
            each: end
            for each, end in absent.items()
            if each.topic not in self._commits.gone
            and not any(entry.is_deleted_of(each) for entry in entries)
            and (
                self.in_place_of(each)  # a broker may have just made it
                or not exists(partition_path(self.path, each))
            )
        }

    def in_place_of(self, topic_partition: TopicPartition) -> str:
        """The entry with the name of a partition that is no directory, in words; or empty."""
        found = self._names.named.get(str(topic_partition))
        if found is None or found.type is FileType.DIRECTORY:
            return ""
        what = "a symbolic link" if found.type is FileType.LINK else "not a directory"
        return f"{found.path} is {what}"

    def renamed(self) -> list[NamedPartition]:
        """Directories of partitions that are not in use: deleted, stray, or being moved here."""
        named = self._names.named.values()
        return [each for each in named if not each.is_current and each.type is FileType.DIRECTORY]

    def synced_to(self, topic_partition: TopicPartition) -> int:
        """The recovery point of a log, or -1 if the checkpoint has none."""
        return self._entry(RECOVERY_POINT_CHECKPOINT, topic_partition)

    def cleaned_to(self, topic_partition: TopicPartition) -> int:
        """The offset up to which a log was compacted, or -1 if the checkpoint has none."""
        return self._entry(CLEANER_OFFSET_CHECKPOINT, topic_partition)

    def _entry(self, name: str, topic_partition: TopicPartition) -> int:
        found = self._offsets_in(name)
        return -1 if isinstance(found, CorruptCheckpointError) else found.get(topic_partition, -1)

    def _offsets_in(self, name: str) -> _Offsets:
        """The entries of a checkpoint, without those of intents."""
        if name not in self._checkpoints:  # at a URL
            self._checkpoints[name] = read_again(self.path, name)
        return self._checkpoints[name].offsets

    @property
    def corrupt_checkpoints(self) -> list[CorruptCheckpointError]:
        """The errors of the checkpoints that cannot be read."""
        found = (self._offsets_in(name) for name in _CHECKPOINTS)
        return [each for each in found if isinstance(each, CorruptCheckpointError)]

    def list_log(
        self, topic_partition: TopicPartition, path: str, before: Listing | None = None
    ) -> Listing:
        """The segments of a partition, without undecided records.

        If an undecided commit fails, it cuts its bytes off again, in place.  A reader that had
        read, mapped or measured these bytes would have seen records that never existed.

        `before`: an earlier result; the opening's listing is then too old.  Raises
        `LogChangedError` if records that the directory promised at its moment are gone, or cannot
        be distinguished from later records; `LogDirectoryError` if the partition cannot be listed.
        """
        if topic_partition in self._first_use:
            self._first_use.discard(topic_partition)
            if before is None:  # a second request means that the log has changed
                return self._unbounded[topic_partition]
        listing, newest = self._list_at_a_moment(topic_partition, path, before)
        topic = topic_partition.topic
        is_another = newest is not self and (
            newest.state.deletions.get(topic) != self.state.deletions.get(topic)
        )
        if is_another or topic in newest._commits.gone:
            raise self._changed(topic_partition, path, "its topic was deleted")
        intent = newest._commits.undecided.get(topic_partition)
        if intent is not None:
            listing = listing._replace(files=_before(intent, listing.files))
        if topic_partition in newest._commits.exchanged:
            exchange = newest._commits.exchanged[topic_partition]
            listing = listing._replace(files=_exchanged(path, listing.files, *exchange))
        if newest is self:
            return listing
        now, then = newest.bounds(topic_partition), self.bounds(topic_partition)
        if now == then:
            return listing
        if then.high_watermark is None:
            opened = self._unbounded.get(topic_partition)
            if opened is not None:
                # Without files wholly below the log start: an overwrite had removed their records
                # from the log before the directory was opened, and the files are put aside.
                first = opened.files.index_of(then.log_start)
                files = opened.files.part(first, len(opened.files))
                if all(each.is_still_there() for each in files):
                    return opened._replace(files=files)
            reason = (
                "a writer has started to write to it, and no checkpoint contained its end before"
            )
            raise self._changed(topic_partition, path, reason)
        # Segments below a new log start are put aside one by one, from the first.  The remaining
        # ones look like a log without its beginning.
        files = listing.files
        is_replaced = then.log_start < min(now.log_start, then.high_watermark)
        if is_replaced and (not files or files[0].base_offset > then.log_start):
            raise self._changed(topic_partition, path, "its records were deleted or replaced")
        if self._is_compacted_beyond(topic_partition, path, files, then.high_watermark):
            raise self._changed(topic_partition, path, COMPACTED_BEYOND)
        # Our commits end at the high watermark that they leave.  After the high watermark of a
        # crashed broker there may have been more records, which look like later ones.
        return Listing(files, newest.is_clean, then.high_watermark)

    def _list_at_a_moment(
        self, topic_partition: TopicPartition, path: str, before: Listing | None
    ) -> "tuple[Listing, DirectorySnapshot]":
        """The segments of a partition, and the top of the directory at that moment."""
        # A stamp never repeats. So if, after the listing, the stamp equals that of the newest
        # moment, it equalled it before the listing, too.
        while True:
            newest = self._newest or self  # and other threads take later ones
            try:
                listing = list_now(path, is_clean=newest.is_clean, before=before)
            except LogDirectoryError as error:
                if is_directory(path):
                    raise
                raise self._changed(topic_partition, path, "the partition is gone") from error
            if read_stamp(self.path) == newest.stamp:
                return listing, newest
            self._newest = DirectorySnapshot(self.path, newest, lists_unbounded=False)

    def _is_compacted_beyond(
        self, topic_partition: TopicPartition, path: str, files: ListedFiles, end_offset: int
    ) -> bool:
        """Whether compaction may have removed records because of others at or after an offset."""
        # A reader that ends there would find neither the former nor the latter, and a key would
        # seem to have no value. The checkpoint of the cleaner shows it, and before that is
        # written, the segments that were put aside since the opening.
        if not files or files[-1].base_offset <= end_offset:
            return False  # only closed segments are compacted
        cleaned = read_offsets(self.path, CLEANER_OFFSET_CHECKPOINT)
        if cleaned.get(topic_partition, 0) > end_offset:
            return True
        for name in list_names(path):
            parsed = parse_segment_file(name)
            if parsed is None or (parsed.kind, parsed.state) != _PUT_ASIDE:
                continue
            # Retention has put those aside that are below the log.
            if files[0].base_offset <= parsed.offset < end_offset:
                with contextlib.suppress(FileNotFoundError):
                    changed_ns = status_of(os.path.join(path, name)).changed_ns
                    if changed_ns > self._opened_ns - _CLOCKS_NS:
                        return True
        return False

    def _changed(self, topic_partition: TopicPartition, path: str, reason: str) -> LogChangedError:
        start, end = self.bounds(topic_partition)
        return LogChangedError(path, start, -1 if end is None else end, reason)


class _UnfinishedCommits(NamedTuple):
    """The intents of unfinished commits, without those of writers that had lost the lock."""

    guards: list[str]  # paths
    decided: list[PartitionIntent]
    undecided: Mapping[TopicPartition, PartitionIntent]
    exchanged: Mapping[TopicPartition, tuple[int, str]]  # by decided ones: see `Intent.exchanged`
    gone: frozenset[str]  # topics whose deletion is decided, and whose directories may still stand
    #: false if a guard had no intent yet, which appears without a change at the top
    is_complete: bool
    unfinished: frozenset[TopicPartition]  # the partitions of both: their files may still change


def _commits_now(directory: str, names: Iterable[str]) -> _UnfinishedCommits | None:
    """The unfinished commits whose guards are among `names`; None if a guard has just gone."""
    guards = list_guards(directory, names)
    decided: list[PartitionIntent] = []
    undecided: dict[TopicPartition, PartitionIntent] = {}
    exchanged: dict[TopicPartition, tuple[int, str]] = {}
    gone: set[str] = set()
    is_complete = True
    for guard in guards:
        intent, token = guard.intent(), State.read(directory).token
        if intent is None:
            if not exists(guard.path):  # taken over under another name, or done
                return None
            is_complete = False
        elif token == guard.token:
            decided += intent.partitions
            exchanged |= intent.exchanged
            gone |= intent.taken_out
        elif token == intent.after:
            undecided.update((each.topic_partition, each) for each in intent.partitions)
        # With any other state the intent is void: its writer had lost the lock.
    paths = [each.path for each in guards]
    unfinished = frozenset(undecided.keys() | {each.topic_partition for each in decided})
    return _UnfinishedCommits(
        paths, decided, undecided, exchanged, frozenset(gone), is_complete, unfinished
    )


def _with(offsets: _Offsets, others: Mapping[TopicPartition, int]) -> _Offsets:
    """Entries of a checkpoint, or its error, with others in their place."""
    if isinstance(offsets, CorruptCheckpointError) or not others:
        return offsets
    return {**offsets, **others}


def _before(intent: PartitionIntent, files: ListedFiles) -> ListedFiles:
    """The segments as they were before an undecided commit."""
    sizes = intent.sizes
    kept = files.part(0, bisect_right(files.paths.base_offsets, sizes.base_offset))
    if kept and kept[-1].base_offset == sizes.base_offset:
        kept.sizes[-1] = min(kept.sizes[-1], sizes.log)
    return kept


def _exchanged(path: str, files: ListedFiles, first: int, oldest_log: str) -> ListedFiles:
    """The segments while those from offset `first` on are exchanged for others."""
    # Until the oldest of the others has taken its place, the live segments are old ones.  If they
    # have other records at the offsets of the others, a listing takes them for what follows.
    swap = os.path.join(path, f"{oldest_log}.{FileState.SWAP}")
    if swap not in files.paths:
        return files
    return ListedFiles(path, [each for each in files if each.is_swap or each.base_offset < first])


class _Names(NamedTuple):
    """The names at the top of a log directory that readers look at."""

    inodes: Mapping[str, int]  # of partitions, guards and marks, by name
    #: entries with the name of a partition's directory, by name, in this order
    named: Mapping[str, NamedPartition]
    partitions: Mapping[TopicPartition, str]  # paths of the partitions in use
    links: Sequence[str]  # paths of links, which are left out


def _names_now(path: str, before: _Names | None) -> _Names:
    """The names as they are now; `before` if they are the same, with the same inodes."""
    # Inodes first: a name that comes, goes or is replaced between the two listings has another
    # inode at the next look.
    inodes = list_inodes(path)
    # Other files come and go with every job, and with every checkpoint.
    for name in [*(inodes.keys() if before is None else inodes.keys() - before.inodes.keys())]:
        is_known = name in _MARKS or name.startswith(GUARD_PREFIX)
        if not is_known and parse_partition_directory(name) is None:
            del inodes[name]
    if before is not None and inodes == before.inodes:
        return before
    known: dict[str, NamedPartition] = {}
    types: dict[str, FileType] = {}
    if before is None:
        types.update(list_entries(path))
    else:
        known = {
            name: each
            for name, each in before.named.items()
            if before.inodes[name] == inodes.get(name)
        }
        for name in inodes.keys() - known.keys():
            with contextlib.suppress(FileNotFoundError):  # the next look finds that
                types[name] = status_of(os.path.join(path, name)).type
    # A name that was away for a moment, and came back with its inode: the next look is to find it.
    for name in inodes.keys() - known.keys() - types.keys():
        del inodes[name]
    named: dict[str, NamedPartition] = {}
    for name in sorted(inodes):
        found = known.get(name)
        if found is None and name in types:
            found = named_partition(path, name, types[name])
        if found is not None:
            named[name] = found
    current = [each for each in named.values() if each.is_current]
    partitions = {
        each.topic_partition: each.path
        for each in current
        if each.type is FileType.DIRECTORY and not each.is_metadata
    }
    links = [each.path for each in current if each.type is FileType.LINK]
    return _Names(inodes, named, partitions, links)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Keep the collector off; a context, or a decorator of functions."""
    # The collector is a process's. If two threads plan at a time, the first one to end turns it on
    # again, which costs the other one some time. A collector that was off stays off.
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
