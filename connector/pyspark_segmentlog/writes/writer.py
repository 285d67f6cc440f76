"""A batch query's writer: tasks stage record batches, the driver commits them together."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_segmentlog.plain_errors import PlainErrors
from pyspark_segmentlog.python_worker import freeze_modules
from segmentlog.errors import LogDirectoryError

if TYPE_CHECKING:
    import pyarrow as pa

    from segmentlog.writes import TaskExtents, WriteJob

__all__ = ["SegmentLogWriter", "StagedMessage"]


class StagedMessage(WriterCommitMessage):
    """The staged extents of one task, on their way to the driver."""

    def __init__(self, task: int, extents: "TaskExtents") -> None:
        self.task = task
        self.extents = extents


class SegmentLogWriter(DataSourceArrowWriter):
    """Writes rows of one job.

    Parameters
    ----------
    job : a job that has begun; it travels to the tasks.
    """

    def __init__(self, job: "WriteJob") -> None:
        self._job = job

    @PlainErrors()
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Stage the rows of one task; a task that fails leaves no file."""
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context else 0
        stager = self._job.stager(task)
        try:
            for batch in iterator:
                stager.add(batch)
            message = StagedMessage(task, stager.finish())
            self._job.check_begun()
            freeze_modules()
            return message
        except BaseException:
            stager.discard()
            raise

    @PlainErrors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible at once, in the order of the tasks.

        Raises
        ------
        LogDirectoryError
            If the message of a task is missing: its rows would be left out.
        """
        staged = [each for each in messages if isinstance(each, StagedMessage)]
        if len(staged) < len(messages):
            n_missing, n_tasks = len(messages) - len(staged), len(messages)
            reason = (
                f"no message has come from {n_missing} of {n_tasks} tasks of the job, and nothing "
                "is written without their rows; run the job again"
            )
            raise LogDirectoryError(self._job.directory, reason)
        # A message that has come twice counts once: no two attempts have files of the same names.
        attempts = {(message.task, message.extents.names): message for message in staged}
        in_order = sorted(attempts.values(), key=lambda message: message.task)
        self._job.commit(message.extents for message in in_order)
        freeze_modules()

    @PlainErrors()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged files of the tasks."""
        self._job.abort()
