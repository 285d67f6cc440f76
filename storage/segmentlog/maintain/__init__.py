"""Change or check a directory that exists: retention, deletes, compaction, repair, verification.

The names below are the door for a caller that compacts in several processes, such as a connector:
one process begins a `CompactionJob`, and others clean the partition of a `CompactionTask` each.
`keywords_of` gives the caller's function the arguments of `segmentlog.compact`.
"""

from segmentlog.arguments import keywords_of
from segmentlog.maintain.compaction.cleanable import CompactedPartition
from segmentlog.maintain.compaction.compact import (
    CompactionJob,
    CompactionSettings,
    CompactionTask,
    begin_compaction,
    clean_task,
)

__all__ = [
    "CompactedPartition",
    "CompactionJob",
    "CompactionSettings",
    "CompactionTask",
    "begin_compaction",
    "clean_task",
    "keywords_of",
]
