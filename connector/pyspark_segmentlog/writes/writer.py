"""A batch query's writer: tasks stage record batches, the driver commits them together."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_segmentlog.plain_errors import PlainErrors
from pyspark_segmentlog.python_worker import freeze_modules
from pyspark_segmentlog.writes.messages import StagedMessage, in_task_order, stage_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from segmentlog.writes import WriteJob


class SegmentLogWriter(DataSourceArrowWriter):
    """Writes rows of one job.

    `job`: a job that has begun; it travels to the tasks.
    """

    def __init__(self, job: "WriteJob") -> None:
        self._job = job

    @PlainErrors()
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Stage the rows of one task; a task that fails leaves no file."""
        return StagedMessage(*stage_rows(self._job, iterator))

    @PlainErrors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible at once, in the order of the tasks.

        Raises `LogDirectoryError` if the message of a task is missing: its rows would be left out.
        """
        staged = in_task_order(StagedMessage, messages, self._job.directory)
        self._job.commit(message.extents for message in staged)
        freeze_modules()

    @PlainErrors()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged files of the tasks."""
        self._job.abort()
