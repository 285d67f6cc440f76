"""Make the active segment of a log ready to be appended to, as a starting broker would.

Torn bytes behind the last whole batch are cut off and kept aside; indexes that are missing, or not
trimmed to their entries, are built again from the log.
"""

import logging
import os

from segmentlog.errors import LogDirectoryError
from segmentlog.files.durable import replace_file, sync_file
from segmentlog.log.config import TopicConfig
from segmentlog.log.journal import SegmentSizes
from segmentlog.log.listing import list_segments
from segmentlog.log.reindex import rebuild_indexes
from segmentlog.log.segment import Segment
from segmentlog.log.tail import LogEnd, find_log_end

__all__ = ["ready_to_append"]

logger = logging.getLogger(__name__)


def ready_to_append(
    directory: str, config: TopicConfig, *, is_clean: bool
) -> tuple[SegmentSizes, int]:
    """Sizes of the active segment, and the log end; the caller holds the lock.

    Parameters
    ----------
    directory : the partition's.
    config : of the topic.
    is_clean : whether whoever wrote last has stopped cleanly, so that indexes can be believed.

    Raises
    ------
    LogDirectoryError
        If there is no segment, or bad bytes stand before good ones: cutting there would lose
        records.
    """
    segments = list_segments(directory)
    if not segments or any(each.is_swap for each in segments):
        reason = "holds no segment" if not segments else "holds a compaction's .swap files"
        raise LogDirectoryError(directory, f"{reason}; start its broker once, and stop it")
    active = Segment(segments[-1], is_sealed=False)
    end = find_log_end(active)
    if end.damaged_from is not None:
        reason = f"is damaged from offset {end.damaged_from} on; nothing can be appended to it"
        raise LogDirectoryError(active.path, f"{reason}; segmentlog verify says where")
    if active.size > end.position:
        _cut_tail(active, end)
    if not is_clean or not _are_trimmed(active):
        rebuild_indexes(active, end.position, config.index_interval_bytes)
    sizes = [os.path.getsize(path) for path in (active.offset_index_path, active.time_index_path)]
    return SegmentSizes(active.base_offset, end.position, *sizes), end.offset


def _cut_tail(segment: Segment, end: LogEnd) -> None:
    """Cut off what a crash has torn, once a copy of it is on the disk."""
    descriptor = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        rest = os.pread(descriptor, segment.size - end.position, end.position)
        if rest.strip(b"\0"):  # zeros are preallocation
            kept = f"{segment.path}.{end.position}.broken"
            replace_file(kept, rest)
            logger.warning(
                "%s: %d bytes behind offset %d were half written; they are in %s now",
                segment.path, len(rest), end.offset, kept,
            )  # fmt: skip
        os.ftruncate(descriptor, end.position)
        sync_file(descriptor, segment.path)
    finally:
        os.close(descriptor)


def _are_trimmed(segment: Segment) -> bool:
    """Whether both indexes are there, hold whole entries and no zeros, and fit the log."""
    for path, n_bytes in ((segment.offset_index_path, 8), (segment.time_index_path, 12)):
        if not os.path.exists(path) or os.path.getsize(path) % n_bytes:
            return False
    with segment.offset_index() as index, segment.time_index() as times:
        if index.n_entries * 8 != os.path.getsize(index.path):
            return False
        if times.n_entries * 12 != os.path.getsize(times.path):
            return False
        if not index.n_entries:
            return True
        entry = index.entry(index.n_entries - 1)
    return segment.header_at(entry.position, up_to_offset=entry.offset) is not None
