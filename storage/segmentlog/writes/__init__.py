"""Rows become batches, staged files, and one atomic change: writers, write jobs, appends.

The names below are the door for a caller whose tasks run in other processes, such as a connector:
it begins a `WriteJob` with a `WriteRequest`, each task stages rows and sends its `TaskExtents`,
and the job commits those of all tasks.
"""

from typing import TYPE_CHECKING

from segmentlog.exports import exported

if TYPE_CHECKING:
    from segmentlog.txn.state import NumberedWrite, StreamBatch
    from segmentlog.writes.config import WriteRequest, check_level, columns_left_out
    from segmentlog.writes.job import WriteJob
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

__getattr__, __dir__ = exported(
    __name__,
    {
        "txn.state": "NumberedWrite StreamBatch",
        "writes.config": "WriteRequest check_level columns_left_out",
        "writes.job": "WriteJob",
        "writes.staged_files": "TaskExtents",
    },
)
