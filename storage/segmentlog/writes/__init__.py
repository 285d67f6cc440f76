"""Rows become batches, staged files, and one atomic change: writers, write jobs, appends.

The names below are the door for a caller whose tasks run in other processes, such as a connector:
it begins a `WriteJob` with a `WriteRequest`, each task stages rows and sends its `TaskExtents`,
and the job commits those of all tasks.
"""

from typing import TYPE_CHECKING

from segmentlog.txn.state import NumberedWrite, StreamBatch
from segmentlog.writes.config import WriteRequest, check_level, columns_left_out
from segmentlog.writes.job import WriteJob

if TYPE_CHECKING:
    from segmentlog.writes.staged_files import TaskExtents

__all__ = [
    "NumberedWrite",
    "StreamBatch",
    "TaskExtents",
    "WriteJob",
    "WriteRequest",
    "check_level",
    "columns_left_out",
]


def __getattr__(name: str) -> object:
    """The name that loads the kernels, when first asked for."""
    if name != "TaskExtents":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from segmentlog.writes.staged_files import TaskExtents

    return TaskExtents
