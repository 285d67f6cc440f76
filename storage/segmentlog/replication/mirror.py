"""Copy partitions byte by byte into another log directory, which follows as a replica does.

The destination is always a state in which a follower could be: it has the batches of the log up to
some offset.  So a mirror that was killed leaves a shorter log, and the next run continues there.
The mark of a clean stop is taken away first and put back last, because a broker trusts all files
of a directory with the mark, also a batch that is half copied.

For each partition the steps are these; each is on the disk before the next begins:

1. If the copy at the destination has batches that the log lacks, it is cut where a broker would
   cut it (`segmentlog.replication.epochs`).  The bytes that are cut off are kept in ``.broken``
   files, as a recovery keeps them.
2. Segments that have the records of the log in other bytes are put aside, the last one first: the
   source has compacted them, or has rolled them at other offsets.
3. The leader epochs are replaced.  A leader writes them before its batches, too, and entries
   beyond the log end have no effect.
4. Segments are copied in the order of their offsets, each under another name (``.cleaned``), which
   brokers and recoveries remove.  Its bytes are read again and compared.  Then the indexes get
   their names, and the ``.log`` file last.  The last segment may also grow in place.
5. Producer snapshots are copied, and others are removed.
6. At the end of all partitions, the checkpoints get the log starts, high watermarks and recovery
   points.

The indexes of the active segment are copied only after a clean stop of the source.  A running
broker writes into them, and a destination without them has them built again.
"""

import contextlib
import errno
import hashlib
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from segmentlog.arguments import LARGEST_INT, instance_of, topic_names, whole_number
from segmentlog.commit.held import HeldDirectory, hold, take
from segmentlog.commit.stamp import renew_stamp
from segmentlog.disk.aside import put_file_aside
from segmentlog.disk.copy import (
    copy_range,
    digest_of,
    digest_of_file,
    has_other_names,
    inode_of,
    opened_source,
    size_of,
)
from segmentlog.disk.durable import (
    create_directory,
    create_file,
    make_directory,
    open_to_write,
    replace_file,
    sync_ancestors,
    sync_directory,
    sync_file,
)
from segmentlog.disk.failures import Failures, OnFailure
from segmentlog.disk.paths import local_path
from segmentlog.disk.readable import exists, list_names, open_file, status_of
from segmentlog.disk.system_errors import storage_errors
from segmentlog.layout.checkpoint import read_offsets, write_offsets
from segmentlog.logs.choose import only_in_a_tier, partitions_of
from segmentlog.logs.log import Log
from segmentlog.logs.log_directory import open_log_dir
from segmentlog.model import LOCK_TIMEOUT_SECONDS, TopicPartition
from segmentlog.names import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_CHECKPOINT,
    INDEXES,
    LEADER_EPOCH_CHECKPOINT,
    LOG_AND_ALL_INDEXES,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_CHECKPOINT,
    FileKind,
    FileState,
    parse_segment_file,
    partition_path,
    segment_file_name,
)
from segmentlog.recovery.swaps import finish_swaps, has_swaps
from segmentlog.replication.copies import Copy
from segmentlog.replication.destination import (
    assigned_of,
    refuse_destination,
    refuse_partitions,
)
from segmentlog.replication.replicated import open_replicas
from segmentlog.segments.listing import list_segments, remove_indexes_without_log
from segmentlog.segments.segment import Segment
from segmentlog.topic_config import TopicConfig

__all__ = ["MirroredPartition", "mirror"]

logger = logging.getLogger(__name__)

_MARK_BYTES = 4096  #: more than any mark of a clean stop has

_SNAPSHOT = re.compile(r"[0-9]{20}\.snapshot")


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
    kept : the files with the bytes that were cut off; none in a dry run.
    n_put_aside : number of segments of the destination that are put aside, because the source has
        other bytes in their place, or begins after them.
    sha256 : of the SHA-256 digests of its ``.log`` files in the order of their offsets, in hex;
        empty in a dry run.
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


@storage_errors()
def mirror(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    to: str | os.PathLike[str],
    topics: str | Collection[str] = (),
    partitions: Collection[int] = (),
    assigned: bool = False,
    dry_run: bool = False,
    on_partition: Callable[[MirroredPartition], object] = lambda _: None,
    on_bytes: Callable[[int], object] = lambda _: None,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    on_failure: OnFailure | None = None,
) -> list[MirroredPartition]:
    """Copy partitions byte by byte into another log directory; a killed mirror can be repeated.

    A broker may run on the sources, but not on the destination.

    Parameters
    ----------
    path, more : log directories of brokers of a cluster; `open_replicas` chooses the log.
    to : a log directory; it is made if it does not exist.
    topics, partitions : names and numbers; all by default, brokers' own topics, too.
    assigned : whether only partitions are copied that the cluster's metadata assigns to the broker
        and the log directory that `to` is, by its ``meta.properties``.  So each broker of a dead
        cluster gets its replicas again, all of the same log.
    dry_run : whether nothing is changed, and the result shows the work of a run.
    on_partition : called with each result once the partition is copied.
    on_bytes : called with the number of bytes of each piece of a ``.log`` file that is copied.
    lock_timeout_seconds : how long to wait for a writer at the destination.
    on_failure : called with the name of each partition that cannot be copied, and its error; the
        others are copied, and the mark of a clean stop stays away.  Without it, the first of these
        errors is raised at the end.

    Returns
    -------
    list of MirroredPartition
        Sorted by topic and partition.

    Raises
    ------
    OptionError
        If `partitions` are not numbers.
    LogDirectoryError
        If the destination is one of the sources, lies in one or holds one; if it belongs to
        another cluster; if it has another topic of the same name; if a path is not a log
        directory; if `assigned` is set, and there is no metadata, the destination has no
        ``meta.properties``, or another log directory of its broker may be meant, too.
    UnknownTopicOrPartitionError
        If the sources lack one of `topics`.
    LogLockedError
        If a broker or a writer holds the destination.
    LogChangedError
        If records of a source were overwritten, or its topic was deleted, since it was listed.
    CorruptLogError, MalformedRecordError, CorruptCheckpointError
        If the end of a log, the metadata, or a checkpoint of the destination cannot be read.
    SyncFailedError, StorageError
        If a disk is full or fails; if a segment has been replaced or cut since it was listed; if
        copied bytes read back as other bytes.
    """
    names = topic_names("topics", topics)
    instance_of("partitions", partitions, Collection, "give numbers of partitions")
    numbers = [whole_number("partitions", each, most=LARGEST_INT) for each in partitions]
    failures = Failures(on_failure)
    source = open_replicas(path, *more)
    chosen = partitions_of(source, names, numbers)
    directory = local_path(to)
    refuse_destination(directory, source.paths)
    if assigned:
        chosen = assigned_of(directory, source, chosen, names, numbers)
    in_tiers = only_in_a_tier(source, chosen)
    for each, offsets in in_tiers.items():
        logger.warning(
            "%s: offsets [%d, %d) are only in its tier, and are not copied", each, *offsets
        )
    if dry_run:
        looked = _looks(
            directory, [source.log(*each) for each in chosen], on_partition,
            lock_timeout_seconds, failures,
        )  # fmt: skip
        failures.end()
        return looked
    if not exists(directory):
        make_directory(directory)
        sync_ancestors(directory)
    found = []
    with hold(directory, lock_timeout_seconds, lambda _: TopicConfig()) as held:
        logs = {each: source.log(*each) for each in chosen}
        refuse_partitions(directory, logs.values())
        with _without_mark(held, failures):
            points = {}
            for each, log in logs.items():
                with failures.of(each):
                    follower = _Follower(held, log, on_bytes)
                    found.append(follower.follow())
                    points[each] = follower.segments[-1].base_offset if follower.segments else 0
                    on_partition(found[-1])
            logs = {each: log for each, log in logs.items() if each in points}
            ends = {
                each: min(log.log_end_offset, _known(log.high_watermark, log.log_end_offset))
                for each, log in logs.items()
            }
            starts = {each: log.log_start_offset for each, log in logs.items()}
            # A leader deletes the remote segments below its log start.
            starts |= {
                each: offsets.start_offset for each, offsets in in_tiers.items() if each in points
            }
            _set_offsets(directory, LOG_START_CHECKPOINT, starts)
            _set_offsets(directory, HIGH_WATERMARK_CHECKPOINT, ends)
            _set_offsets(directory, RECOVERY_POINT_CHECKPOINT, points)
        held.forget_checkpoints()
    failures.end()
    return found


@contextlib.contextmanager
def _without_mark(held: HeldDirectory, failures: Failures) -> Iterator[None]:
    """Take the mark of a clean stop away, and put it back unless the block or a partition fails.

    The mark of a newer broker contains its epoch.
    """
    if not held.is_clean:
        yield
        return
    mark = os.path.join(held.directory, CLEAN_SHUTDOWN_FILE)
    with open_file(mark, follow=False) as file:
        data = file.read(0, _MARK_BYTES)
    os.unlink(mark)
    sync_directory(held.directory)
    yield
    if not failures.errors:
        replace_file(mark, data)


def _looks(
    directory: str,
    logs: Sequence[Log],
    on_partition: Callable[[MirroredPartition], object],
    lock_timeout_seconds: float,
    failures: Failures,
) -> list[MirroredPartition]:
    """The results of a mirror, as far as they are known beforehand."""
    found = []
    with contextlib.ExitStack() as stack:
        if exists(directory):
            stack.enter_context(take(directory, lock_timeout_seconds, dry_run=True))
        refuse_partitions(directory, logs)
        for log in logs:
            with failures.of(log.topic_partition):
                found.append(_Follower(HeldDirectory(directory, dry_run=True), log).look())
                on_partition(found[-1])
    return found


def _known(offset: int | None, otherwise: int) -> int:
    return otherwise if offset is None else offset


def _set_offsets(directory: str, name: str, offsets: dict[TopicPartition, int]) -> None:
    before = read_offsets(directory, name)
    after = {**before, **offsets}
    if after != before:
        write_offsets(directory, name, after)


class _Own(NamedTuple):
    """A segment of the destination."""

    base_offset: int
    size: int
    path: str


class _Compared(NamedTuple):
    """The segments of the destination beside those of the log.

    Attributes
    ----------
    same : sizes of segments that begin with bytes of the log, by base offset.
    others : base offsets of segments that have other bytes.
    older : base offsets of segments before the log start.
    """

    same: dict[int, int]
    others: list[int]
    older: list[int]


class _Follower:
    """One partition at the destination, and the log that it follows."""

    def __init__(
        self,
        held: HeldDirectory,
        log: Log,
        on_bytes: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._held, self._log, self._on_bytes = held, log, on_bytes
        self._topic_partition = log.topic_partition
        self._path = partition_path(held.directory, log.topic_partition)
        self._n_copied = 0
        self._digest = hashlib.sha256()
        self._source_is_clean = exists(
            os.path.join(os.path.dirname(log.path), CLEAN_SHUTDOWN_FILE)
        )
        #: Segments of the source; the last one without a torn tail.
        self.segments = list(log.segments)
        self._sizes = [each.size for each in self.segments]
        if self.segments:
            self._sizes[-1] = log.end.position

    def follow(self) -> MirroredPartition:
        """Carry out the steps 1 to 5."""
        self._begin()
        cut_at, kept = self._cut()
        log = self._own()
        compared = self._compare(_segments_of(log) if log else [])
        self._put_others_aside(compared)
        self._replace(LEADER_EPOCH_CHECKPOINT)
        for each, size in zip(self.segments, self._sizes, strict=True):
            self._copy_segment(each, size, is_there=each.base_offset in compared.same)
        self._copy_snapshots()
        return self._result(self._n_copied, cut_at, kept, compared, self._digest.hexdigest())

    def look(self) -> MirroredPartition:
        """The result of `follow`, without any change."""
        own = self._own()
        cut_at, segments = None, _segments_of(own) if own else []
        if own is not None and (cut_at := self._end_in_common(own)) is not None:
            segments = _segments_below(own, cut_at)
        compared = self._compare(segments)
        there = [compared.same.get(each.base_offset, 0) for each in self.segments]
        return self._result(sum(self._sizes) - sum(there), cut_at, (), compared, "")

    def _result(
        self,
        n_copied: int,
        cut_at: int | None,
        kept: Sequence[str],
        compared: _Compared,
        digest: str,
    ) -> MirroredPartition:
        n_put_aside = len(compared.others) + len(compared.older)
        return MirroredPartition(
            *self._topic_partition, self._log.path, self._log.log_start_offset,
            self._log.log_end_offset, sum(self._sizes), n_copied, cut_at, tuple(kept),
            n_put_aside, digest,
        )  # fmt: skip

    def _begin(self) -> None:
        """Make the directory of the partition."""
        if not exists(self._path):
            create_directory(self._path)
            sync_directory(self._held.directory)
        # Left by a crash: of a mirror, or of a compaction of the destination.
        if has_swaps(self._path):
            finish_swaps(self._path)
        remove_indexes_without_log(self._path)
        self._replace(PARTITION_METADATA_FILE)

    def _own(self) -> Log | None:
        """The log at the destination as it is now, or None without a segment."""
        if not exists(self._path) or not list_segments(self._path):
            return None
        return open_log_dir(self._path).log(*self._topic_partition)

    @contextlib.contextmanager
    def _shortening(self, end: int) -> Iterator[None]:
        """Let the log end earlier; its checkpoints go first, or a read would report a loss."""
        directory = self._held.directory
        for name in (HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT):
            known = read_offsets(directory, name).get(self._topic_partition, -1)
            if known > end:
                _set_offsets(directory, name, {self._topic_partition: end})
        renew_stamp(directory)
        yield
        renew_stamp(directory)

    def _cut(self) -> tuple[int | None, list[str]]:
        """Cut batches off that the log lacks."""
        own = self._own()
        if own is None:
            return None, []
        end = self._end_in_common(own)
        if end is None:
            return None, []
        from segmentlog.replication.cut import cut  # the compiled kernels load here

        if below := [each.base_offset for each in own.segments if each.base_offset < end]:
            self._unshare(below[-1])  # the only one that the cut changes in place
        with self._shortening(end):
            return end, cut(own, end)

    def _end_in_common(self, own: Log) -> int | None:
        """The offset at which the destination is cut; None if it has only batches of the log."""
        copy = Copy(own, self._held.directory, {})
        end = copy.common_end(Copy(self._log, "", {}))
        return None if end >= own.log_end_offset else end

    def _compare(self, own: Sequence[_Own]) -> _Compared:
        """Compare the segments of the destination with those of the log, byte by byte."""
        expected = {
            each.base_offset: (each, size)
            for each, size in zip(self.segments, self._sizes, strict=True)
        }
        older = [each for each in own if each.base_offset < min(expected, default=0)]
        same: dict[int, int] = {}
        rest = own[len(older) :]
        for each, base_offset in zip(rest, expected, strict=False):
            segment, size = expected[base_offset]
            is_as_long = each.size == size or (each.size < size and each is rest[-1])
            if each.base_offset != base_offset or not is_as_long:
                break
            if each.size and (
                digest_of_file(each.path, each.size) != digest_of_file(segment.path, each.size)
            ):
                break
            same[base_offset] = each.size
        others = rest[len(same) :]
        return _Compared(
            same, [each.base_offset for each in others], [each.base_offset for each in older]
        )

    def _put_others_aside(self, compared: _Compared) -> None:
        """Step 2."""
        _, others, older = compared
        if older or others:
            end = others[0] if others else self._log.log_end_offset
            with self._shortening(end):
                # A crash leaves a log without a hole.
                for each in (*reversed(others), *older):
                    self._put_segment_aside(each)

    def _put_segment_aside(self, base_offset: int) -> None:
        for name in list_names(self._path):
            parsed = parse_segment_file(name)
            if (
                parsed is not None
                and parsed.offset == base_offset
                and parsed.state is FileState.LIVE
                and parsed.kind is not FileKind.SNAPSHOT
            ):
                put_file_aside(self._path, name)
        sync_directory(self._path)

    def _copy_segment(self, segment: Segment, size: int, *, is_there: bool) -> None:
        """Step 4 for one segment."""
        name = segment_file_name(segment.base_offset, FileKind.LOG)
        is_active = segment is self.segments[-1]
        with opened_source(segment.path) as source:
            if segment.inode not in (0, inode_of(source)):
                reason = "another file has taken its place since it was listed"
                raise OSError(errno.ESTALE, reason, segment.path)
            expected = digest_of(source, size)
            if is_there:
                self._grow(source, segment.base_offset, size, expected)
            renamed = []
            if not is_active or self._source_is_clean:
                renamed = self._stage_indexes(segment, source)
            else:
                self._remove_indexes(segment.base_offset)
            if not is_there:
                renamed.append(self._write_aside(source, name, size, expected, self._on_log))
        for each in renamed:  # the .log file comes last
            os.replace(_temporary(each), each)
        if renamed:
            sync_directory(self._path)
        self._digest.update(expected)

    def _on_log(self, n_bytes: int) -> None:
        self._n_copied += n_bytes
        self._on_bytes(n_bytes)

    def _grow(self, source: int, base_offset: int, size: int, expected: bytes) -> None:
        """Append the bytes that the last segment of the destination lacks."""
        target = os.path.join(self._path, segment_file_name(base_offset, FileKind.LOG))
        start = status_of(target).size
        if start < size:
            self._unshare(base_offset)
            descriptor = open_to_write(target)
            try:
                copy_range(source, descriptor, start, size, self._on_log)
                sync_file(descriptor, target)
            finally:
                os.close(descriptor)
            _check(target, size, expected)

    def _unshare(self, base_offset: int) -> None:
        """Copy the files of a segment that have other names, too.

        A snapshot of hard links would change with the destination, and so would a source.
        """
        for kind in LOG_AND_ALL_INDEXES:
            name = segment_file_name(base_offset, kind)
            path = os.path.join(self._path, name)
            with contextlib.suppress(FileNotFoundError), opened_source(path) as file:
                if has_other_names(file):
                    size = size_of(file)
                    self._write_aside(file, name, size, digest_of(file, size), lambda _: None)
                    os.replace(_temporary(path), path)
                    sync_directory(self._path)

    def _write_aside(
        self, source: int, name: str, size: int, expected: bytes, on_bytes: Callable[[int], object]
    ) -> str:
        """Copy a file under another name, durably, and return its own path."""
        path = os.path.join(self._path, name)
        temporary = _temporary(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # left by a crash
        descriptor = create_file(temporary)
        try:
            copy_range(source, descriptor, 0, size, on_bytes)
            sync_file(descriptor, temporary)
        finally:
            os.close(descriptor)
        _check(temporary, size, expected)
        return path

    def _stage_indexes(self, segment: Segment, log: int) -> list[str]:
        """Copy the indexes of a segment; none if they may be those of another file.

        Compaction renames the log before its indexes.  So the indexes belong to the open log if it
        still has its name afterwards.
        """
        staged = []
        for kind in INDEXES:
            name = segment_file_name(segment.base_offset, kind)
            staged += self._stage(name, segment.index_path(kind))
        with contextlib.suppress(FileNotFoundError):
            if status_of(segment.path, follow=True).inode == inode_of(log):
                return staged
        for each in staged:
            os.unlink(_temporary(each))
        self._remove_indexes(segment.base_offset)
        return []

    def _stage(self, name: str, source_path: str) -> list[str]:
        """Copy a file that is not a log under another name, if the destination has other bytes."""
        path = os.path.join(self._path, name)
        try:
            with opened_source(source_path) as source:
                size = size_of(source)
                expected = digest_of(source, size)
                is_as_long = exists(path) and status_of(path).size == size
                if is_as_long and digest_of_file(path, size) == expected:
                    return []
                return [self._write_aside(source, name, size, expected, lambda _: None)]
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return []

    def _replace(self, name: str) -> None:
        """Make a small file that of the source."""
        for each in self._stage(name, os.path.join(self._log.path, name)):
            os.replace(_temporary(each), each)
            sync_directory(self._path)

    def _remove_indexes(self, base_offset: int) -> None:
        for kind in INDEXES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._path, segment_file_name(base_offset, kind)))

    def _copy_snapshots(self) -> None:
        """Step 5."""
        wanted = {each for each in list_names(self._log.path) if _SNAPSHOT.fullmatch(each)}
        for each in sorted(wanted):
            self._replace(each)
        for each in list_names(self._path):
            if _SNAPSHOT.fullmatch(each) and each not in wanted:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._path, each))
        sync_directory(self._path)


def _segments_of(log: Log) -> list[_Own]:
    return [_Own(each.base_offset, each.size, each.path) for each in log.segments]


def _segments_below(log: Log, end: int) -> list[_Own]:
    """The segments that a cut at an offset would leave."""
    from segmentlog.replication.cut import plan_cut

    plan = plan_cut(log, end)
    if plan.last < 0:
        return [_Own(plan.log_start, 0, "")]  # the log begins again
    kept = _segments_of(log)[: plan.last + 1]
    return [*kept[:-1], kept[-1]._replace(size=plan.end.position)]


def _temporary(path: str) -> str:
    """The path under which a file is copied.

    Brokers and recoveries remove ``.cleaned`` files.  A broker takes their names for offsets, and
    does not start if one is none (``LogFileUtils.offsetFromFileName``).  It leaves ``.tmp`` files
    alone, as those of its own checkpoints.
    """
    is_of_segment = parse_segment_file(os.path.basename(path)) is not None
    return f"{path}.{FileState.CLEANED if is_of_segment else 'tmp'}"


def _check(path: str, size: int, expected: bytes) -> None:
    """Read copied bytes again."""
    if digest_of_file(path, size) != expected:
        raise OSError(errno.EIO, "the copied bytes read back as other bytes", path)
