"""Snapshots of a log's producers as a broker leaves them when it rolls segments and stops."""

from segmentlog.producers.producer_state import ProducerStates
from segmentlog.producers.snapshot import list_snapshots, remove_snapshots
from segmentlog.segments.listing import list_segments
from segmentlog.segments.segment import Segment

__all__ = ["keep_producers"]


def keep_producers(path: str, end: int) -> None:
    """Write snapshots at the log end, and at segments that begin after the newest snapshot.

    A broker that starts on a log without any snapshot, cleanly stopped, does not read its batches
    and forgets its producers (``UnifiedLog.rebuildProducerState``).  Other snapshots go, as a
    starting broker removes them (``ProducerStateManager.removeStraySnapshots``).  All of it can be
    repeated.

    Parameters
    ----------
    path : of the partition's directory.
    end : the log end.

    Raises
    ------
    CorruptLogError, UnsupportedFormatError
        If a header that has to be read cannot be true.
    SyncFailedError, OSError
        If the disk is full or fails.
    """
    segments = [Segment(each, is_sealed=False) for each in list_segments(path)]
    bases = [each.base_offset for each in segments]
    producers = ProducerStates.load(path, end)
    producers.follow_to(segments, end, bases[1:])
    producers.take_snapshot()
    remove_snapshots(path, {*list_snapshots(path)} - {*bases, end})
