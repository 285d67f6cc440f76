"""``segmentlog reindex``: build the index files of segments again from their batches."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from segmentlog.commit.guard import list_guards
from segmentlog.disk.lock import DirectoryLock
from segmentlog.disk.paths import local_path, why_not_there
from segmentlog.disk.readable import exists, is_directory, is_file, list_names
from segmentlog.disk.system_errors import storage_errors
from segmentlog.errors import LogDirectoryError, SegmentLogError
from segmentlog.names import DirectoryState, parse_partition_directory
from segmentlog.producers.producer_state import ProducerStates
from segmentlog.recovery.rebuild_indexes import rebuild_indexes
from segmentlog.recovery.swaps import has_swaps
from segmentlog.segments.listing import list_segments
from segmentlog.segments.log_end import find_log_end
from segmentlog.segments.segment import Segment
from segmentlog.tools.paths import as_given
from segmentlog.tools.progress import progress
from segmentlog.tools.text import escape

__all__ = ["reindex_paths"]


@storage_errors()
def reindex_paths(
    paths: Sequence[str], write: Callable[[str], object], interval_bytes: int
) -> bool:
    """Build index files again and write which changed; return whether every segment was readable.

    Parameters
    ----------
    paths : log directories, partition directories or ``.log`` files.
    write : takes each line.
    interval_bytes : bytes of log from index entry to index entry.

    Raises
    ------
    LogDirectoryError
        If a path is none of these, or a commit or a compaction was cut short there.
    LogLockedError
        If a broker or a writer holds the log directory.
    """
    wanted = [each for path in paths for each in _wanted(local_path(path))]
    n_segments = n_changed = n_failed = 0
    with ExitStack() as locks:
        for directory in sorted({_log_directory(partition) for partition, _ in wanted}):
            locks.enter_context(DirectoryLock(directory))
            if list_guards(directory):
                reason = "has an unfinished commit; run segmentlog recover first"
                raise LogDirectoryError(directory, reason)
        bar = locks.enter_context(progress("reindex", len(wanted), is_bytes=False, write=write))
        for partition, path in wanted:
            bar.name(escape(os.path.basename(partition)))
            bar.advance(1)
            try:
                for changed in _reindex(partition, path, interval_bytes):
                    n_segments += 1
                    n_changed += len(changed)
                    for file in changed:
                        bar.write(f"built {escape(as_given(file, paths))} again")
            except SegmentLogError as error:
                n_failed += 1
                bar.write(f"not indexed: {escape(str(error))}")
    write(f"{n_segments:,} segments indexed, {n_changed:,} files were not there or not right\n")
    return not n_failed


def _wanted(path: str) -> list[tuple[str, str | None]]:
    """Partition directories, each with the one segment file to index, or None for all."""
    if is_file(path) and path.endswith(".log"):
        return [(os.path.dirname(path), path)]
    if parse_partition_directory(os.path.basename(path)) and is_directory(path):
        return [(path, None)]
    found: list[tuple[str, str | None]] = []
    if is_directory(path):
        for name in sorted(list_names(path)):
            parsed = parse_partition_directory(name)
            if parsed and parsed[1] == DirectoryState.CURRENT:
                found.append((os.path.join(path, name), None))
    if not exists(path):
        raise LogDirectoryError(path, why_not_there(path))
    if not found:
        reason = "is not a log directory, a partition directory or a .log file"
        raise LogDirectoryError(path, reason)
    return found


def _log_directory(partition: str) -> str:
    """The directory whose lock covers a partition."""
    is_partition = parse_partition_directory(os.path.basename(partition)) is not None
    return os.path.dirname(partition) if is_partition else partition


def _reindex(partition: str, path: str | None, interval_bytes: int) -> Iterator[list[str]]:
    """The changed files of each segment of a partition, or of the one at `path`."""
    if has_swaps(partition):
        reason = "was left in the middle of a compaction; run segmentlog recover first"
        raise LogDirectoryError(partition, reason)
    segments = [Segment(each, is_sealed=False) for each in list_segments(partition)]
    if not segments:
        return
    segments[-1].size = find_log_end(segments[-1]).position
    meant = [each for each in segments if path in {None, each.path}]
    if not meant:
        raise LogDirectoryError(path or partition, "is not a segment of the log in its directory")
    begin = meant[0].base_offset
    producers = ProducerStates.load(partition, begin)
    producers.follow_to(segments, begin)
    for segment in meant:
        producers.advance(segment.base_offset)
        yield rebuild_indexes(segment, interval_bytes, producers)
