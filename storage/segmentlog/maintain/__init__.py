"""Change or check a directory that exists: retention, deletes, compaction, repair, verification.

The names below are the door for a caller that compacts in several processes, such as a connector:
one process begins a `CompactionJob`, and others clean the partition of a `CompactionTask` each.
`keywords_of` gives the caller's function the arguments of `segmentlog.compact`.  For a log in an
object store, `compact_in_store` takes what carries out its `RewriteTask`s.

A clone is made in the same way: one process begins a `CloneJob` with `CloneSettings`, others run
a `CloneTask` each, and the job commits what they have staged.
"""

from typing import TYPE_CHECKING

from segmentlog.exports import exported

if TYPE_CHECKING:
    from segmentlog.arguments import keywords_of
    from segmentlog.bucket.upkeep import place_in_store
    from segmentlog.maintain.cloning.clone import Clone, CloneSettings, open_source
    from segmentlog.maintain.cloning.job import CloneJob
    from segmentlog.maintain.cloning.split_keys import SplitKeys
    from segmentlog.maintain.cloning.task import CloneTask, TaskOutcome, keys_of, run_task
    from segmentlog.maintain.compaction.compact import (
        CompactedPartition,
        CompactionJob,
        CompactionSettings,
        CompactionTask,
        begin_compaction,
        clean_task,
    )
    from segmentlog.maintain.compaction.compact_in_store import (
        RewriteTask,
        Rewritten,
        compact_in_store,
        rewrite_task,
    )
    from segmentlog.maintain.offset_map import MapPieces

__all__ = [
    "Clone",
    "CloneJob",
    "CloneSettings",
    "CloneTask",
    "CompactedPartition",
    "CompactionJob",
    "CompactionSettings",
    "CompactionTask",
    "MapPieces",
    "RewriteTask",
    "Rewritten",
    "SplitKeys",
    "TaskOutcome",
    "begin_compaction",
    "clean_task",
    "compact_in_store",
    "keys_of",
    "keywords_of",
    "open_source",
    "place_in_store",
    "rewrite_task",
    "run_task",
]

__getattr__, __dir__ = exported(
    __name__,
    {
        "arguments": "keywords_of",
        "bucket.upkeep": "place_in_store",
        "maintain.cloning.clone": "Clone CloneSettings open_source",
        "maintain.cloning.job": "CloneJob",
        "maintain.cloning.split_keys": "SplitKeys",
        "maintain.cloning.task": "CloneTask TaskOutcome keys_of run_task",
        "maintain.compaction.compact": (
            "CompactedPartition CompactionJob CompactionSettings CompactionTask begin_compaction "
            "clean_task"
        ),
        "maintain.compaction.compact_in_store": (
            "RewriteTask Rewritten compact_in_store rewrite_task"
        ),
        "maintain.offset_map": "MapPieces",
    },
)
