"""Build the index files of segments again from their batches."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

from segmentlog.arguments import LARGEST_INT, one_dialect, whole_number
from segmentlog.errors import LogDirectoryError, SegmentLogError
from segmentlog.format.names import parse_partition_directory
from segmentlog.log.listing import list_segments
from segmentlog.log.segment import Segment, find_log_end
from segmentlog.log.swaps import has_swaps
from segmentlog.model import INDEX_INTERVAL_BYTES, LOCK_TIMEOUT_SECONDS, TopicPartition
from segmentlog.store.partitions import list_partitions
from segmentlog.store.paths import local_path, why_not_there
from segmentlog.store.readable import exists, is_directory, is_file
from segmentlog.store.system_errors import storage_errors
from segmentlog.txn.change import take


class IndexedSegment(NamedTuple):
    """A segment whose indexes were built again, or the damage that has prevented it.

    Attributes
    ----------
    path : of the ``.log`` file; of the partition's directory if its log cannot be read at all.
    base_offset : of the segment, or -1.
    changed : paths of the index files that were missing, or had other bytes.
    error : the damage; the segment and the later segments of the partition keep their indexes.
    """

    topic: str
    partition: int
    path: str
    base_offset: int
    changed: tuple[str, ...] = ()
    error: SegmentLogError | None = None


class _Wanted(NamedTuple):
    """A partition to index."""

    topic_partition: TopicPartition
    path: str
    segment: str | None  # path of the only segment to index, or None for all

    @property
    def log_directory(self) -> str:
        """The directory whose lock covers the partition."""
        is_partition = parse_partition_directory(os.path.basename(self.path)) is not None
        return os.path.dirname(self.path) if is_partition else self.path


@one_dialect()
@storage_errors()
def reindex(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    on_segment: Callable[[IndexedSegment], object] = lambda _: None,
    on_log: Callable[[str], object] = lambda _: None,
) -> list[IndexedSegment]:
    """Build the index files of segments again, as a broker's recovery would.

    These are ``.index``, ``.timeindex`` and ``.txnindex``.  Batch headers and end markers are
    read, but no records and no checksums.  A file that is missing or differs is replaced in one
    step, and files that were right stay.

    Parameters
    ----------
    path, more : log directories on which no broker is running, partition directories or ``.log``
        files.
    index_interval_bytes : bytes of log between two index entries (``index.interval.bytes``), which
        the log does not contain.
    lock_timeout_seconds : how long to wait for a writer.
    on_segment : called with each result once its files are on the disk.
    on_log : called with the name of each partition's directory before its log is read.

    Returns
    -------
    list of IndexedSegment
        In the order of the paths and of the segments.

    Raises
    ------
    OptionError
        If an argument is not accepted.
    LogDirectoryError
        If a path is none of these, or a commit or a compaction was interrupted there.
    LogLockedError
        If a broker or a writer holds the log directory.
    SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    whole_number("index_interval_bytes", index_interval_bytes, most=LARGEST_INT)
    wanted = [found for each in (path, *more) for found in _wanted(local_path(each))]
    done = []
    with ExitStack() as locks:
        for directory in sorted({each.log_directory for each in wanted}):
            locks.enter_context(take(directory, lock_timeout_seconds)).refuse_unfinished()
        for each in wanted:
            on_log(os.path.basename(each.path))
            for result in _reindex(each, index_interval_bytes):
                done.append(result)
                on_segment(result)
    return done


def _wanted(path: str) -> list[_Wanted]:
    """The partitions to index at a path."""
    parsed = parse_partition_directory(os.path.basename(path))
    if is_file(path) and path.endswith(".log"):
        directory = os.path.dirname(path)
        name = os.path.basename(directory)
        named = parse_partition_directory(name)
        return [_Wanted(named[0] if named else TopicPartition(name, 0), directory, path)]
    if parsed and is_directory(path):
        return [_Wanted(parsed[0], path, None)]
    if not exists(path):
        raise LogDirectoryError(path, why_not_there(path))
    found = [
        _Wanted(each.topic_partition, each.path, None)
        for each in (list_partitions(path) if is_directory(path) else ())
        if each.is_current
    ]
    if not found:
        reason = "is not a log directory, a partition directory or a .log file"
        raise LogDirectoryError(path, reason)
    return found


def _reindex(wanted: _Wanted, interval_bytes: int) -> Iterator[IndexedSegment]:
    """The result of each segment of a partition, up to the first that is damaged."""
    from segmentlog.log.index_builder import rebuild_indexes
    from segmentlog.log.producers import ProducerStates  # the kernels load here

    at = IndexedSegment(*wanted.topic_partition, wanted.path, -1)
    try:
        if has_swaps(wanted.path):
            reason = "has an unfinished compaction; run segmentlog recover first"
            raise LogDirectoryError(wanted.path, reason)
        segments = [Segment(each, is_sealed=False) for each in list_segments(wanted.path)]
        if segments:
            segments[-1].size = find_log_end(segments[-1]).position
        meant = [each for each in segments if wanted.segment in {None, each.path}]
        if segments and not meant:
            reason = "is not a segment of the log in its directory"
            raise LogDirectoryError(wanted.segment or wanted.path, reason)
        begin = meant[0].base_offset if meant else 0
        producers = ProducerStates.load(wanted.path, begin)
        producers.follow_to(segments, begin)
        for segment in meant:
            at = at._replace(path=segment.path, base_offset=segment.base_offset)
            producers.advance(segment.base_offset)
            yield at._replace(changed=tuple(rebuild_indexes(segment, interval_bytes, producers)))
    except SegmentLogError as error:
        yield at._replace(error=error)
