"""A batch query's writer: tasks stage rows and send messages, the driver commits all together."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_segmentlog.plain_errors import PlainErrors
from pyspark_segmentlog.python_worker import freeze_modules
from segmentlog.errors import LogDirectoryError
from segmentlog.native import check_compiled

if TYPE_CHECKING:
    import pyarrow as pa

    from segmentlog.writes import TaskExtents, WriteJob


class StagedMessage(WriterCommitMessage):
    """The staged extents of one task, on their way to the driver."""

    def __init__(self, task: int, extents: "TaskExtents") -> None:
        self.task = task
        self.extents = extents


_Message = TypeVar("_Message", bound=StagedMessage)


def stage_rows(job: "WriteJob", iterator: "Iterator[pa.RecordBatch]") -> tuple[int, "TaskExtents"]:
    """Stage the rows of one task; its number, and its extents.  One that fails leaves no file."""
    from pyspark import TaskContext

    check_compiled()
    context = TaskContext.get()
    task = context.partitionId() if context else 0
    stager = job.stager(task)
    try:
        for batch in iterator:
            stager.add(batch)
        extents = stager.finish()
        job.check_begun()
        freeze_modules()
        return task, extents
    except BaseException:
        stager.discard()
        raise


def in_task_order(
    kind: type[_Message], messages: Sequence[WriterCommitMessage | None], directory: str
) -> list[_Message]:
    """The messages in the order of the tasks, each once.

    `messages`: None for a task that has sent none.  Raises `LogDirectoryError` if the message of a
    task is missing: its rows would be left out.
    """
    staged = [each for each in messages if isinstance(each, kind)]
    if len(staged) < len(messages):
        n_missing, n_tasks = len(messages) - len(staged), len(messages)
        reason = (
            f"{n_missing} of the job's {n_tasks} tasks have sent no message, and nothing is "
            "written without their rows; run the job again"
        )
        raise LogDirectoryError(directory, reason)
    # A message that has come twice counts once: no two attempts have files of the same names.
    attempts = {(message.task, message.extents.files): message for message in staged}
    return sorted(attempts.values(), key=lambda message: message.task)


class SegmentLogWriter(DataSourceArrowWriter):
    """Writes rows of one job."""

    def __init__(self, job: "WriteJob") -> None:
        self._job = job

    @PlainErrors()
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Stage the rows of one task; a task that fails leaves no file."""
        return StagedMessage(*stage_rows(self._job, iterator))

    @PlainErrors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible at once, in the order of the tasks."""
        staged = in_task_order(StagedMessage, messages, self._job.directory)
        self._job.commit(message.extents for message in staged)
        freeze_modules()

    @PlainErrors()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged files of the tasks."""
        self._job.abort()
