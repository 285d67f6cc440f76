"""Snapshots of a log's producers, at the ends of changes that append or remove their batches."""

from segmentlog.log.listing import list_segments
from segmentlog.log.producer_snapshot import list_snapshots, remove_snapshots
from segmentlog.log.producer_state import ProducerStates
from segmentlog.log.segment import Segment


def keep_producers(path: str, end: int) -> None:
    """Write snapshots at the log end, and at segments that begin after the newest snapshot.

    A broker that rolls segments and stops leaves the same.  A broker that starts on a cleanly
    stopped log without any snapshot does not read its batches, and forgets its producers
    (``UnifiedLog.rebuildProducerState``).  Other snapshots go, as a starting broker removes them
    (``ProducerStateManager.removeStraySnapshots``).  All of it can be repeated.

    `path`: of the partition's directory.  Raises `CorruptLogError` or `UnsupportedFormatError` if
    a header that has to be read cannot be true; `SyncFailedError` or `OSError` if the disk is full
    or fails.
    """
    segments = [Segment(each, is_sealed=False) for each in list_segments(path)]
    bases = [each.base_offset for each in segments]
    producers = ProducerStates.load(path, end)
    producers.follow_to(segments, end, bases[1:])
    producers.take_snapshot()
    remove_snapshots(path, {*list_snapshots(path)} - {*bases, end})


def save_producers(path: str, start: int, end: int) -> None:
    """Write a snapshot at the log end before a change removes the batches below a new log start.

    Nothing is written if a snapshot stands after the new log start.  Snapshots below the new start
    go with their segments.  A broker that starts ignores one at the log start, too
    (``ProducerStateManager.truncateAndReload``), and so it forgets the producers of a log that is
    empty; writers here do not.  A log without snapshots has no state to keep: a broker that starts
    on it looks at its batches only after an unclean stop.

    `path`: of the partition's directory.
    """
    snapshots = list_snapshots(path)
    if not snapshots or snapshots[0] > start:
        return
    segments = [Segment(each, is_sealed=False) for each in list_segments(path)]
    producers = ProducerStates.load(path, end)
    producers.follow_to(segments, end)
    producers.take_snapshot()
