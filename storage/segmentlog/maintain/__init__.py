"""Change or check a directory that exists: retention, deletes, compaction, repair, verification.

The names below are the door for a caller that compacts in several processes, such as a connector:
one process begins a `CompactionJob`, and others clean the partition of a `CompactionTask` each.
`keywords_of` gives the caller's function the arguments of `segmentlog.compact`.

A clone is made in the same way: one process begins a `CloneJob` with `CloneSettings`, others run
a `CloneTask` each, and the job commits what they have staged.
"""

from typing import TYPE_CHECKING

from segmentlog.arguments import keywords_of
from segmentlog.maintain.cloning.clone import open_source
from segmentlog.maintain.cloning.settings import Clone, CloneSettings
from segmentlog.maintain.compaction.compact import (
    CompactedPartition,
    CompactionJob,
    CompactionSettings,
    CompactionTask,
    begin_compaction,
    clean_task,
)

if TYPE_CHECKING:
    from segmentlog.maintain.cloning.cloned_offsets import MapPieces
    from segmentlog.maintain.cloning.job import (
        CloneJob,
        CloneTask,
        TaskOutcome,
        keys_of,
        run_task,
    )
    from segmentlog.maintain.cloning.split_keys import SplitKeys

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
    "SplitKeys",
    "TaskOutcome",
    "begin_compaction",
    "clean_task",
    "keys_of",
    "keywords_of",
    "open_source",
    "run_task",
]


def __getattr__(name: str) -> object:
    """The names that load the kernels, when first asked for."""
    if name == "SplitKeys":
        from segmentlog.maintain.cloning.split_keys import SplitKeys

        return SplitKeys
    if name == "MapPieces":
        from segmentlog.maintain.cloning.cloned_offsets import MapPieces

        return MapPieces
    if name not in ("CloneJob", "CloneTask", "TaskOutcome", "keys_of", "run_task"):
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from segmentlog.maintain.cloning import job

    return getattr(job, name)
