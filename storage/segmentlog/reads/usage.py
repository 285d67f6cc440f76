"""An account of log directories: every byte, by the kind of its file, and what removes the file.

Names decide the kind, so that the account needs no log to be sound.  Only the active segment of a
partition is looked into: it and its indexes may end in zeros that were allocated in advance.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

from segmentlog.arguments import one_dialect
from segmentlog.errors import SegmentLogError
from segmentlog.format.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOCK_FILE,
    PARTITION_METADATA_FILE,
    FileKind,
    FileState,
    SegmentFileName,
    is_of_logs,
    parse_segment_file,
)
from segmentlog.log.indexes import OffsetIndex, TimeIndex
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import Segment, find_log_end
from segmentlog.model import INTERNAL_TOPICS, TopicPartition
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.partitions import NamedPartition, named_partition
from segmentlog.store.paths import opened_path
from segmentlog.store.readable import (
    FileStatus,
    FileType,
    list_entries,
    list_names,
    open_file,
    status_of,
    survey,
)
from segmentlog.store.system_errors import is_gone, storage_errors
from segmentlog.txn.guard import GUARD_PREFIX

_BROKEN = ".broken"
_INDEX_CACHE = "remote-log-index-cache"  #: ``RemoteIndexCache``: indexes of a tier's segments
_OF_A_PARTITION = (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA_FILE)
_LEFT = tuple(f".{each}" for each in FileState if each is not FileState.LIVE)
_BLOCK_BYTES = 4096
_MEBIBYTE = 1 << 20

#: Leftovers are large from this size on, or from this share of the directory's other bytes on.
_LARGE_BYTES = 1 << 30
_LARGE_SHARE, _LEAST_BYTES = 0.1, 64 << 10


class UsageKind(StrEnum):
    """The kind of the files in a log directory; values never change."""

    LOGS = "logs"  #: segments of topics
    INTERNAL = "internal topics"  #: segments of brokers' own topics, and the cluster's metadata
    INDEXES = "indexes"  #: indexes and producer snapshots
    CHECKPOINTS = "checkpoints"  #: checkpoints, and other small files of brokers and writers
    DELETE = "-delete"  #: directories of deleted partitions
    STRAY = "-stray"  #: directories of partitions that the cluster does not assign to the broker
    FUTURE = "-future"  #: directories of partitions that are being moved to another log directory
    DELETED = ".deleted"  #: files that have left a log
    CLEANED = ".cleaned"  #: files that a compaction or a mirror is writing
    SWAP = ".swap"  #: files that a compaction has finished, and is moving into a log
    PREALLOCATED = "preallocated"  #: zeros at the end of an active segment and of its indexes
    STAGED = "staged"  #: files of jobs and of changes that have not ended
    BROKEN = ".broken"  #: bytes that a recovery has cut off a log, and kept beside it
    UNKNOWN = "unknown"  #: other files and directories

    @property
    def removal(self) -> str:
        """The answer to what removes such files, and when."""
        return _REMOVAL[self]


_REMOVAL: Mapping[UsageKind, str] = {
    UsageKind.LOGS: "retention and compaction, by the settings of each topic: a broker, or "
    "segmentlog retain and compact; segmentlog delete-topic",
    UsageKind.INTERNAL: "a broker, by the settings of these topics",
    UsageKind.INDEXES: "they go with their segments",
    UsageKind.CHECKPOINTS: "nothing: brokers and writers need them",
    UsageKind.DELETE: "a broker, log.segment.delete.delay.ms (a minute by default) after the "
    "deletion, or after its start; segmentlog delete-topic at once",
    UsageKind.STRAY: "nothing: a broker leaves them; remove a directory by hand once nobody needs "
    "its records",
    UsageKind.FUTURE: "a broker, when it has moved the partition, or when the move is cancelled",
    UsageKind.DELETED: "a broker, file.delete.delay.ms after they left the log, or when it "
    "starts; segmentlog retain after that delay, or at once with --purge",
    UsageKind.CLEANED: "the compaction or the mirror that writes them; after a crash a starting "
    "broker, segmentlog compact or segmentlog recover",
    UsageKind.SWAP: "they become part of the log: by the compaction at work; after a crash by a "
    "starting broker, segmentlog compact or segmentlog recover",
    UsageKind.PREALLOCATED: "a broker, when it closes the segment, or stops",
    UsageKind.STAGED: "their job, when it ends; after a crash a later write, within two weeks, or "
    "segmentlog recover for an unfinished change",
    UsageKind.BROKEN: "nothing: segmentlog recover keeps them; remove a file by hand once nobody "
    "needs its records",
    UsageKind.UNKNOWN: "nothing: neither a broker nor segmentlog has made them",
}

#: Kinds of files that are part of no log, and that a broker or a job has left.
LEFTOVERS = frozenset(
    {
        UsageKind.DELETE,
        UsageKind.STRAY,
        UsageKind.FUTURE,
        UsageKind.DELETED,
        UsageKind.CLEANED,
        UsageKind.SWAP,
        UsageKind.STAGED,
        UsageKind.BROKEN,
    }
)


_OF_LOGS = frozenset({UsageKind.LOGS, UsageKind.INTERNAL})
_OF_LIVE = _OF_LOGS | {UsageKind.INDEXES, UsageKind.PREALLOCATED}  #: files of segments in use


class UsedSpace(NamedTuple):
    """The files of one kind in one place: in the directory of a partition, or at the top.

    Attributes
    ----------
    kind : of the files.
    path : of the partition's directory; of the file or directory at the top otherwise.
    topic, partition : empty and -1 outside of partitions.
    n_files : the number of files, without directories.
    n_bytes : the apparent size: the sum of the lengths of the files.
    n_allocated : the real size on the disk, directories included.
    changed_ms : when one of the files was last changed or renamed (epoch); -1 without files.
    problem : the reason why files of this place are not counted, or empty.
    """

    kind: UsageKind
    path: str
    topic: str
    partition: int
    n_files: int
    n_bytes: int
    n_allocated: int
    changed_ms: int
    problem: str = ""

    @property
    def removal(self) -> str:
        """The answer to what removes the files, and when."""
        return self.kind.removal

    @property
    def has_problem(self) -> bool:
        """Whether a file of this place could not be counted."""
        return bool(self.problem)


@one_dialect()
@storage_errors()
def usage(path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> list[UsedSpace]:
    """Account for every byte of log directories: its kind, its place, and what removes it.

    Nothing is changed, and a broker may be running.  The bytes allocated add up to those that
    ``du`` shows for the directories, unless files have several names.

    Parameters
    ----------
    path, more : log directories, partition directories, or URLs of copies.

    Returns
    -------
    list of UsedSpace
        The largest first, by allocated bytes.

    Raises
    ------
    LogDirectoryError
        If a path is not a log directory.
    StorageError
        If a directory cannot be listed; below it, `UsedSpace.problem` says so.
    """
    return account_for((path, *more))


def account_for(
    paths: Iterable[str | os.PathLike[str]], begin: Callable[[str], object] = lambda _: None
) -> list[UsedSpace]:
    """`usage`; `begin` takes the name of each partition before its files are counted."""
    found = [used for each in paths for used in _account(_checked(each), set(UsageKind), begin)]
    return sorted(found, key=lambda used: (-used.n_allocated, -used.n_bytes, used.path))


def _checked(path: str | os.PathLike[str]) -> str:
    """The path of a directory that is a log directory, or was one; or of a partition's."""
    directory = opened_path(path)
    survey(directory)
    try:
        is_known = any(map(is_of_logs, list_names(directory)))
    except OSError:
        is_known = False
    if not is_known:
        open_log_dir(directory)  # raises, and names log directories nearby
    return directory


def large_leftovers(paths: Iterable[str]) -> list[UsedSpace]:
    """The leftovers of log directories, the largest first; none if they are small."""
    # They are found by their names, and only they are measured; the segments, too, if there are
    # enough of them.
    paths = [*paths]
    left = [used for path in paths for used in _account(path, LEFTOVERS) if used.n_files]
    n_left = sum(max(used.n_bytes, used.n_allocated) for used in left)
    if n_left < _LEAST_BYTES:
        return []
    logs = (used for path in paths for used in _account(path, _OF_LOGS))
    n_others = sum(min(used.n_bytes, used.n_allocated) for used in logs)
    if n_left < min(max(_LARGE_SHARE * n_others, _LEAST_BYTES), _LARGE_BYTES):
        return []
    return sorted(left, key=lambda used: -used.n_bytes)


class _Sums:
    """Counts files by their kind in one place; files of kinds that are not wanted are left out."""

    def __init__(self, wanted: Collection[UsageKind], path: str, where: TopicPartition) -> None:
        self._wanted = wanted
        self._path = path
        self._where = where
        self._sums: dict[UsageKind, list[int]] = {}
        self._problem: dict[UsageKind, str] = {}

    def add(
        self, kind: UsageKind, path: str, split: Callable[[FileStatus], int] | None = None
    ) -> None:
        """Count a file or a directory; the bytes after `split` of its status are preallocated."""
        if kind not in self._wanted:
            return
        try:
            found = status_of(path)
        except OSError as error:
            if not is_gone(error):
                self.fail(kind, error)
            return
        is_directory = found.type is FileType.DIRECTORY
        n_bytes, n_allocated = 0 if is_directory else found.size, found.n_allocated
        if split is not None and (end := split(found)) < n_bytes:
            in_use = min(n_allocated, -(-end // _BLOCK_BYTES) * _BLOCK_BYTES)
            self._count(
                UsageKind.PREALLOCATED, 0, n_bytes - end, n_allocated - in_use, found.changed_ns
            )
            n_bytes, n_allocated = end, in_use
        self._count(kind, int(not is_directory), n_bytes, n_allocated, found.changed_ns)

    def _count(
        self, kind: UsageKind, n_files: int, n_bytes: int, n_allocated: int, changed_ns: int
    ) -> None:
        sums = self._sums.setdefault(kind, [0, 0, 0, -1])
        sums[0] += n_files
        sums[1] += n_bytes
        sums[2] += n_allocated
        sums[3] = max(sums[3], changed_ns // 10**6)

    def fail(self, kind: UsageKind, error: Exception) -> None:
        self._sums.setdefault(kind, [0, 0, 0, -1])
        self._problem.setdefault(kind, getattr(error, "strerror", None) or str(error))

    def below(self, kind: UsageKind, path: str) -> None:
        """Count a directory and everything below it as of one kind."""
        if kind not in self._wanted:
            return
        self.add(kind, path)
        try:
            entries = list_entries(path)
        except OSError as error:
            if not is_gone(error):
                self.fail(kind, error)
            return
        for name, file_type in entries:
            each = os.path.join(path, name)
            (self.below if file_type is FileType.DIRECTORY else self.add)(kind, each)

    def result(self) -> Iterator[UsedSpace]:
        for kind, (n_files, n_bytes, n_allocated, changed_ms) in self._sums.items():
            yield UsedSpace(
                kind,
                self._path,
                *self._where,
                n_files,
                n_bytes,
                n_allocated,
                changed_ms,
                self._problem.get(kind, ""),
            )


def _account(
    directory: str, wanted: Collection[UsageKind], begin: Callable[[str], object] = lambda _: None
) -> Iterator[UsedSpace]:
    """The files of a log directory, or of a partition's directory, of the wanted kinds."""
    nowhere = TopicPartition("", -1)
    alone = named_partition(*os.path.split(directory), FileType.DIRECTORY)
    if alone is not None and any(map(parse_segment_file, list_names(directory))):
        yield from _of_partition(alone, wanted)
        return
    own = _Sums(wanted, directory, nowhere)
    own.add(UsageKind.CHECKPOINTS, directory)
    for name, file_type in sorted(list_entries(directory)):
        path = os.path.join(directory, name)
        is_directory = file_type is FileType.DIRECTORY
        partition = named_partition(directory, name, file_type)
        if partition is not None and is_directory:
            begin(name)
            yield from _of_partition(partition, wanted)
            continue
        kind = _kind_at_the_top(name, is_directory=is_directory)
        if kind is UsageKind.CHECKPOINTS:
            own.add(kind, path)
            continue
        sums = _Sums(wanted, path, nowhere)
        (sums.below if is_directory else sums.add)(kind, path)
        yield from sums.result()
    yield from own.result()


def _kind_at_the_top(name: str, *, is_directory: bool) -> UsageKind:
    """The kind of an entry of a log directory that is not the directory of a partition."""
    if is_directory:
        if name == _INDEX_CACHE:
            return UsageKind.INDEXES
        return UsageKind.STAGED if name.startswith(GUARD_PREFIX) else UsageKind.UNKNOWN
    if name.startswith("segmentlog.") and name.endswith((".stage", ".job")):
        return UsageKind.STAGED
    if name == LOCK_FILE or (is_of_logs(name) and parse_segment_file(name) is None):
        return UsageKind.CHECKPOINTS
    return UsageKind.CHECKPOINTS if name.startswith("segmentlog.settings") else UsageKind.UNKNOWN


def _may_be_left(name: str) -> bool:
    """Whether a file in a partition's directory may be of `LEFTOVERS`, by its name alone."""
    return name.endswith(_LEFT) or name.startswith("segmentlog.")


def _of_partition(partition: NamedPartition, wanted: Collection[UsageKind]) -> Iterator[UsedSpace]:
    sums = _Sums(wanted, partition.path, partition.topic_partition)
    if not partition.is_current:
        sums.below(UsageKind(f"-{partition.state}"), partition.path)
        yield from sums.result()
        return
    is_metadata = partition.is_metadata
    counts_live = not _OF_LIVE.isdisjoint(wanted)
    is_internal = is_metadata or partition.topic_partition.topic in INTERNAL_TOPICS
    of_log = UsageKind.INTERNAL if is_internal else UsageKind.LOGS
    sums.add(of_log, partition.path)
    try:
        is_left = any(map(_may_be_left, list_names(partition.path))) if not counts_live else True
        entries = list_entries(partition.path) if is_left else []
    except OSError as error:
        sums.fail(of_log, error)
        entries = []
    parsed = {name: parse_segment_file(name) for name, _ in entries}
    live = [each for each in parsed.values() if each and each.state is FileState.LIVE]
    active = max((each.offset for each in live if each.kind is FileKind.LOG), default=-1)
    for name, file_type in entries:
        file = parsed[name]
        if file is not None and file.state is FileState.LIVE and not counts_live:
            continue
        path = f"{partition.path}/{name}"
        split = None
        if file is not None:
            of_file = of_log if file.kind is FileKind.LOG else UsageKind.INDEXES
            is_live = file.state is FileState.LIVE
            kind = of_file if is_live else UsageKind(f".{file.state}")
            is_active = is_live and file.offset == active
            if is_active and UsageKind.PREALLOCATED in wanted:
                split = _end_of(path, file)
        elif name.startswith("segmentlog.") and _BROKEN in name:
            kind = UsageKind.BROKEN
        elif name.endswith((".checkpoint.deleted", ".cleaned", ".swap", ".deleted")):
            kind = UsageKind(name[name.rindex(".") :])
        elif name.startswith(_OF_A_PARTITION):
            kind = UsageKind.CHECKPOINTS
        else:
            is_known = is_metadata and (".checkpoint" in name or name.startswith("quorum-state"))
            kind = UsageKind.INTERNAL if is_known else UsageKind.UNKNOWN
        if file_type is FileType.DIRECTORY:
            sums.below(UsageKind.UNKNOWN, path)
        else:
            sums.add(kind, path, split)
    yield from sums.result()


def _end_of(path: str, file: SegmentFileName) -> Callable[[FileStatus], int] | None:
    """Measures how much of a file of the active segment is in use; None if all of it always is."""
    if file.kind is FileKind.LOG:
        return lambda found: _end_of_log(path, file.offset, found)
    index = {FileKind.OFFSET_INDEX: OffsetIndex, FileKind.TIME_INDEX: TimeIndex}.get(file.kind)
    if index is None:
        return None

    def end_of_index(found: FileStatus) -> int:
        # As of a log: an index whose last entry is not zero is in use to its end.
        last = max(found.size - index.entry_bytes, 0)
        if found.size % index.entry_bytes == 0:
            with suppress(OSError), open_file(path, follow=False) as bytes_of:
                if not found.size or bytes_of.read(last, index.entry_bytes).strip(b"\0"):
                    return found.size
        with index(path, file.offset, mapped=False) as opened:
            return int(opened.n_entries * opened.entry_bytes)

    return end_of_index


def _end_of_log(path: str, base_offset: int, found: FileStatus) -> int:
    """The byte after the last batch, if only zeros follow; the size of the file otherwise."""
    try:
        with open_file(path, follow=False) as file:
            # A batch has a header that is not zero.  So a log whose last block is not zero is in
            # use to its end, and is not looked into.
            last = max(found.size - _BLOCK_BYTES, 0)
            if file.read(last, _BLOCK_BYTES).strip(b"\0"):
                return found.size
            files = SegmentFiles(base_offset, path, found.size)
            end = find_log_end(Segment(files, is_sealed=False), warns=False).position
            n_bytes = min(found.size - end, _MEBIBYTE)
            return found.size if file.read(end, n_bytes).strip(b"\0") else end
    except (OSError, SegmentLogError):  # then nothing shows what is in use
        return found.size
