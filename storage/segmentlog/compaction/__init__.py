"""Keep the last record of each key, as a broker's log cleaner does.

The names below are the door for a caller that compacts in several processes, such as a connector:
one process begins a `CompactionJob`, and others clean the partition of a `CompactionTask` each.
"""

from typing import TYPE_CHECKING

from segmentlog.compaction.job import CompactionJob, begin_compaction
from segmentlog.compaction.plan import CompactedPartition
from segmentlog.compaction.shared import CompactionTask, clean_task

if TYPE_CHECKING:
    from segmentlog.compaction.offset_map import MapBounds

__all__ = [
    "CompactedPartition",
    "CompactionJob",
    "CompactionTask",
    "MapBounds",
    "begin_compaction",
    "clean_task",
]


def __getattr__(name: str) -> object:
    """`MapBounds`, which loads the compiler, when it is first asked for."""
    if name != "MapBounds":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from segmentlog.compaction.offset_map import MapBounds

    return MapBounds
