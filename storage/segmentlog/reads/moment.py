"""One moment of a log directory: its committed bounds, and the partitions of a running commit.

Files at the top of a directory are read one after the other, while writers commit.  They are read
again until no commit has come in between, so a job is seen in all of its partitions or in none.
Partitions are listed later, one by one, on request.  Each listing is compared with the moment at
which the directory was opened (`DirectorySnapshot.list_partition`).
"""

import contextlib
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
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
    FileKind,
    FileState,
    parse_segment_file,
)
from segmentlog.log.checkpoint import OffsetsAsRead, moved_entries, read_again, read_offsets
from segmentlog.log.listing import ListedFiles
from segmentlog.model import TopicPartition
from segmentlog.reads.log_look import LogLook, look_at_log
from segmentlog.reads.partition import Partition
from segmentlog.store.fingerprint import fingerprint
from segmentlog.store.readable import exists, list_names, status_of
from segmentlog.store.remote.location import is_url
from segmentlog.txn.guard import PartitionIntent, list_guards
from segmentlog.txn.stamp import Stamp, read_stamp
from segmentlog.txn.state import LazyState, State

_PUT_ASIDE = FileKind.LOG, FileState.DELETED
_CLOCKS_NS = 10**8  # a file system's clock may lag a little


class Bounds(NamedTuple):
    """Start and end of a log, according to the files beside it.

    `log_start` is 0 without an entry, and `high_watermark` None.
    """

    log_start: int
    high_watermark: int | None


class Listing(NamedTuple):
    """The segments of a partition that are part of its log.

    `is_clean` is true if only a commit can write to them: the directory was cleanly stopped.
    `end_offset` is the log end at the moment with which the listing is compared, if a commit has
    written to the log since.  It is None if the files show the end.  `look` is None at a URL.
    """

    files: ListedFiles
    is_clean: bool = False
    end_offset: int | None = None
    look: LogLook | None = None

    def following(self, before: "Listing") -> "Listing":
        """The listing with the knowledge that an earlier one found the same files."""
        if self.look is None or before.look is None:
            return self
        return self._replace(look=self.look.following(before.look))


class TopFiles(NamedTuple):
    """The files at the top of a log directory, and in its guards, at one moment.

    `log_starts` and `high_watermarks` are the bounds for readers: while a commit is unfinished,
    its intent has them.  Either is an error if its checkpoint cannot be read.  `undecided` has the
    partitions of an undecided commit.  `state` has the last deletion of each topic, and `gone` the
    topics whose deletion is decided and whose directories may still stand.  `starts_read` and
    `ends_read` are the checkpoints without the intents.  `unfinished` has the partitions of all
    guards: the files of these partitions may still change.  `is_complete` is false if a guard had
    no intent yet: the intent will appear without any change at the top of the directory.
    """

    stamp: Stamp | None
    is_clean: bool
    log_starts: "Mapping[TopicPartition, int] | CorruptCheckpointError"
    high_watermarks: "Mapping[TopicPartition, int] | CorruptCheckpointError"
    undecided: Mapping[TopicPartition, PartitionIntent]
    state: LazyState
    gone: frozenset[str]
    starts_read: OffsetsAsRead
    ends_read: OffsetsAsRead
    unfinished: frozenset[TopicPartition]
    is_complete: bool

    def bounds(self, topic_partition: TopicPartition) -> Bounds:
        """Bounds of one log; without a high watermark if its checkpoint cannot be read.

        Raises `CorruptCheckpointError` if the checkpoint of log starts cannot be read.
        """
        if isinstance(self.log_starts, CorruptCheckpointError):
            raise self.log_starts
        ends = self.high_watermarks
        end = None if isinstance(ends, CorruptCheckpointError) else ends.get(topic_partition)
        return Bounds(self.log_starts.get(topic_partition, 0), end)

    def moved_since(self, before: "TopFiles") -> set[TopicPartition] | None:
        """Partitions whose bounds have changed; None if that is not known."""
        starts = moved_entries(before.log_starts, self.log_starts)
        ends = moved_entries(before.high_watermarks, self.high_watermarks)
        return None if starts is None or ends is None else starts | ends

    def deleted_since(self, before: "TopFiles") -> set[str]:
        """Topics that were deleted in between; another topic may have such a name by now."""
        if self.stamp == before.stamp:
            return set()
        now, then = self.state.deletions, before.state.deletions
        return {topic for topic in now if now[topic] != then.get(topic)} | (then.keys() - now)


class _ChangedError(Exception):
    """A commit has come in between."""


def take_moment(directory: str, before: TopFiles | None = None) -> TopFiles:
    """The moment of a log directory as it is now.

    `before`: an earlier moment of it: checkpoints with the same bytes are not parsed again.
    Raises `CorruptCheckpointError` if a file of an unfinished commit cannot be read;
    `LogDirectoryError` if the directory cannot be listed.
    """
    while True:
        with contextlib.suppress(_ChangedError):
            return _take(directory, before)


def _take(directory: str, before: TopFiles | None) -> TopFiles:
    stamp = read_stamp(directory)
    try:
        guards = list_guards(directory)
    except OSError as error:
        raise LogDirectoryError(directory, f"cannot be listed: {error.strerror}") from error
    is_clean = exists(os.path.join(directory, CLEAN_SHUTDOWN_FILE))
    decided: list[PartitionIntent] = []
    undecided: dict[TopicPartition, PartitionIntent] = {}
    gone: set[str] = set()
    is_complete = True
    for guard in guards:
        intent, token = guard.intent(), State.read(directory).token
        if intent is None:
            if not exists(guard.path):  # taken over under another name, or done
                raise _ChangedError
            is_complete = False
        elif token == guard.token:
            decided += intent.partitions
            gone |= intent.taken_out
        elif token == intent.after:
            undecided.update((each.topic_partition, each) for each in intent.partitions)
        # With any other state the intent is void: its writer had lost the lock.
    state = LazyState(directory)
    starts_before, ends_before = (before.starts_read, before.ends_read) if before else (None, None)
    starts_read = read_again(directory, LOG_START_CHECKPOINT, starts_before)
    ends_read = read_again(directory, HIGH_WATERMARK_CHECKPOINT, ends_before)
    # Read after the intents: a guard that was removed meanwhile has left complete checkpoints.

    # A writer that takes a guard over renames it.  A listing made meanwhile may hold neither name,
    # and undecided records were then read as if they were decided.
    if [each.path for each in guards] != [each.path for each in list_guards(directory)]:
        raise _ChangedError
    if stamp != read_stamp(directory):
        raise _ChangedError
    starts = _with(
        starts_read.offsets,
        ((each.topic_partition, each.new_start) for each in decided if each.new_start >= 0),
    )
    ends = _with(ends_read.offsets, ((each.topic_partition, each.new_end) for each in decided))
    ends = _with(ends, ((each, intent.visible_end) for each, intent in undecided.items()))
    unfinished = undecided.keys() | {each.topic_partition for each in decided}
    return TopFiles(
        stamp, is_clean, starts, ends, undecided, state, frozenset(gone), starts_read, ends_read,
        frozenset(unfinished), is_complete,
    )  # fmt: skip


_Offsets: TypeAlias = "Mapping[TopicPartition, int] | CorruptCheckpointError"


def _with(offsets: _Offsets, others: Iterable[tuple[TopicPartition, int]]) -> _Offsets:
    """Entries of a checkpoint, or its error, with those of intents in their place."""
    entries = dict(others)
    if isinstance(offsets, CorruptCheckpointError) or not entries:
        return offsets
    return {**offsets, **entries}


class DirectorySnapshot:
    """The partitions of a log directory and their bounds, both of one moment.

    It compares each later listing of a partition with that moment.  `DirectoryView` finds the
    partitions, and whether it still holds.

    A job makes the partitions of a new topic, and is decided later.  A reader that lists
    partitions before the former and reads high watermarks after the latter would see a part of the
    job.  So the reader repeats both until they are of one moment.  Partitions are listed first,
    because the high watermark of a new partition is written before its directory is made.

    `list_partitions`: returns the paths of its partitions.  `before`: the same directory at an
    earlier moment; what is proven to be unchanged is taken from there.  `partitions`: their paths
    at that moment.
    """

    def __init__(
        self,
        directory: str,
        list_partitions: Callable[[], Mapping[TopicPartition, str]],
        before: "DirectorySnapshot | None" = None,
    ) -> None:
        self.path = directory
        self.opened: TopFiles
        earlier = before.opened if before else None
        self._opened_ns = time.time_ns()
        stamp = read_stamp(directory)
        while True:
            self.partitions = list_partitions()
            self.opened = self._newest = take_moment(directory, earlier)
            if gone := self.opened.gone:
                found = self.partitions.items()
                self.partitions = {each: path for each, path in found if each.topic not in gone}
            self._listed = self._list_unbounded(before)
            self._first_use = set(self._listed)
            if stamp == self.opened.stamp == read_stamp(directory):
                return
            stamp = self.opened.stamp

    def _list_unbounded(self, before: "DirectorySnapshot | None") -> dict[TopicPartition, Listing]:
        """Listings of logs whose ends only their files show.

        Such logs exist in copies without checkpoints, and where no broker has run yet.  A later
        writer gives them a high watermark first.
        """
        ends = self.opened.high_watermarks
        if isinstance(ends, CorruptCheckpointError):
            return {}
        unbounded = {each: path for each, path in self.partitions.items() if each not in ends}
        listed = {}
        for each, path in unbounded.items():
            known = before._listed.get(each) if before else None
            if known is not None and _still_holds(known, path):
                listed[each] = known._replace(is_clean=self.opened.is_clean)
                continue
            # Reported when the partition is asked for: a fault of one log must not stop reads of
            # others.
            with contextlib.suppress(LogDirectoryError, RemoteSegmentError):
                listed[each] = _list(path, is_clean=self.opened.is_clean)
        return listed

    def unbounded_are_unchanged(self) -> bool:
        """Whether the logs whose ends only their files show are as they were listed."""
        for each, known in [*self._listed.items()]:
            path = self.partitions[each]
            if not _still_holds(known, path):
                try:
                    again = _list(path, is_clean=known.is_clean)
                except (LogDirectoryError, RemoteSegmentError):
                    return False
                if again.files != known.files:
                    return False
                self._listed[each] = again.following(known)
        return True

    def note_listed(self, topic_partition: TopicPartition) -> None:
        """Note that the caller has a listing from an earlier moment.

        So its next request gets a new one.  Without this note, the first request gets the listing
        of the opening.
        """
        self._first_use.discard(topic_partition)

    def list_partition(self, topic_partition: TopicPartition, path: str) -> Listing:
        """The segments of a partition, without undecided records.

        If an undecided commit fails, it cuts its bytes off again, in place.  A reader that had
        read, mapped or measured these bytes would have seen records that never existed.

        Raises `LogChangedError` if records that the directory promised when it was opened are
        gone, or cannot be distinguished from later records; `LogDirectoryError` if the partition
        cannot be listed.
        """
        if topic_partition in self._first_use:
            self._first_use.discard(topic_partition)
            return self._listed[topic_partition]  # a second request means that it has changed
        directory = None if is_url(path) else fingerprint(path)
        files, moment = self._list(topic_partition, path)
        seen = directory and look_at_log(directory, files)
        if self._was_deleted(topic_partition.topic, moment):
            raise self._changed(topic_partition, path, "its topic was deleted")
        intent = moment.undecided.get(topic_partition)
        if intent is not None:
            files = _before(intent, files)
        if moment is self.opened:
            return Listing(files, moment.is_clean, look=seen)
        now, then = moment.bounds(topic_partition), self.opened.bounds(topic_partition)
        if now == then:
            return Listing(files, moment.is_clean, look=seen)
        if then.high_watermark is None:
            as_opened = self._as_opened(topic_partition, then.log_start)
            if as_opened is not None:
                return as_opened
            reason = (
                "a writer has started to write to it, and no checkpoint contained its end before"
            )
            raise self._changed(topic_partition, path, reason)
        # Segments below a new log start are put aside one by one, from the first.  The remaining
        # ones look like a log without its beginning.
        is_replaced = then.log_start < min(now.log_start, then.high_watermark)
        if is_replaced and (not files or files[0].base_offset > then.log_start):
            raise self._changed(topic_partition, path, "its records were deleted or replaced")
        if self._is_compacted_beyond(topic_partition, path, files, then.high_watermark):
            reason = "it was compacted together with records that were written later"
            raise self._changed(topic_partition, path, reason)
        # Our commits end at the high watermark that they leave.  After the high watermark of a
        # crashed broker there may have been more records, which look like later ones.
        return Listing(files, moment.is_clean, then.high_watermark)

    def _is_compacted_beyond(
        self,
        topic_partition: TopicPartition,
        path: str,
        files: ListedFiles,
        end_offset: int,
    ) -> bool:
        """Whether compaction may have removed records because of others at or after an offset.

        A reader that ends there would find neither the former nor the latter, and a key would
        seem to have no value.  The checkpoint of the cleaner shows it, and before that is
        written, the segments that were put aside since the opening.
        """
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

    def _list(self, topic_partition: TopicPartition, path: str) -> tuple[ListedFiles, TopFiles]:
        """The segments of a partition, and their moment: the newest, taken again if need be.

        A stamp never repeats.  So if, after the listing, the stamp equals that of the newest
        moment, it equalled it before the listing, too.
        """
        partition = Partition(path)
        while True:
            moment = self._newest  # and other threads take later ones
            try:
                files = partition.files()
            except LogDirectoryError as error:
                if partition.is_there():
                    raise
                raise self._changed(topic_partition, path, "the partition is gone") from error
            if read_stamp(self.path) == moment.stamp:
                return files, moment
            self._newest = take_moment(self.path)

    def _as_opened(self, topic_partition: TopicPartition, log_start: int) -> Listing | None:
        """The listing of the opening, if its files are still there; None if they are not.

        Files wholly below the log start are left out: an overwrite had removed their records from
        the log before the directory was opened, and the files are put aside.
        """
        listing = self._listed.get(topic_partition)
        if listing is None:
            return None
        files = listing.files.part(listing.files.index_of(log_start), len(listing.files))
        if not all(each.is_still_there() for each in files):
            return None
        return listing._replace(files=files)

    def _was_deleted(self, topic: str, moment: TopFiles) -> bool:
        """Whether a topic has been deleted since the directory was opened, or is being deleted."""
        if topic in moment.gone:
            return True
        if moment is self.opened:
            return False
        before, after = self.opened.state.deletions, moment.state.deletions
        return before.get(topic) != after.get(topic)

    def _changed(self, topic_partition: TopicPartition, path: str, reason: str) -> LogChangedError:
        start, end = self.opened.bounds(topic_partition)
        return LogChangedError(path, start, -1 if end is None else end, reason)


def _list(path: str, *, is_clean: bool) -> Listing:
    """The segments of a partition as they are now."""
    directory = None if is_url(path) else fingerprint(path)
    files = Partition(path).files()
    return Listing(files, is_clean, look=directory and look_at_log(directory, files))


def _still_holds(listing: Listing, path: str) -> bool:
    return listing.look is not None and listing.look.still_holds(path, listing.files)


def _before(intent: PartitionIntent, files: ListedFiles) -> ListedFiles:
    """The segments as they were before an undecided commit."""
    sizes = intent.sizes
    kept = files.part(0, bisect_right(files.paths.base_offsets, sizes.base_offset))
    if kept and kept[-1].base_offset == sizes.base_offset:
        kept.sizes[-1] = min(kept.sizes[-1], sizes.log)
    return kept
