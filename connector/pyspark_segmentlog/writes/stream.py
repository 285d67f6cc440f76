"""A streaming query's writer: tasks stage the rows of a micro-batch, the driver commits them.

Spark calls `DataSource.streamWriter` in two processes for each micro-batch: where it plans the
tasks, and where it commits or aborts.  The job begins in the first.  The second gets the job in
the messages of the tasks, and with it the ids of the query and of its run, which Spark gives to
tasks alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_segmentlog.plain_errors import PlainErrors
from pyspark_segmentlog.python_worker import freeze_modules
from pyspark_segmentlog.spark_versions import StreamWriter
from pyspark_segmentlog.writes.job import begin_stream_job, stream_request
from pyspark_segmentlog.writes.writer import StagedMessage, in_task_order, stage_rows
from segmentlog.writes import StreamBatch, WriteJob, WriteRequest

if TYPE_CHECKING:
    import pyarrow as pa

    from segmentlog.writes import TaskExtents


def stream_writer(
    raw: Mapping[str, str], schema: StructType, *, overwrite: bool, plans: bool
) -> "SegmentLogStreamWriter":
    """Check the options and columns of a stream, and begin the job of its next batch.

    `overwrite`: whether the query's output mode is complete.  `plans`: whether Spark plans tasks
    in this process, so that a job has to begin.
    """
    request = stream_request(raw, schema, overwrite=overwrite)
    return SegmentLogStreamWriter(request, begin_stream_job(request, schema) if plans else None)


#: Of the query and of its run.
QueryIds = tuple[str, str]


class StreamedMessage(StagedMessage):
    """The staged extents of one task, with all that the driver has to know to commit them."""

    def __init__(self, task: int, extents: "TaskExtents", job: WriteJob, ids: QueryIds) -> None:
        super().__init__(task, extents)
        self.job = job
        self.ids = ids


class SegmentLogStreamWriter(StreamWriter):
    """Writes one micro-batch; its job travels to the tasks, and the driver commits without it."""

    def __init__(self, request: WriteRequest, job: WriteJob | None) -> None:
        self._request = request
        self._job = job

    @PlainErrors()
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Stage the rows of one task; a task that fails leaves no file."""
        if self._job is None:
            message = (
                "this writer belongs to the driver, which commits, and cannot stage the rows of "
                "a task"
            )
            raise RuntimeError(message)
        task, extents = stage_rows(self._job, iterator)
        return StreamedMessage(task, extents, self._job, _query_ids())

    @PlainErrors()
    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Make the rows of the micro-batch visible at once, unless they are already.

        Raises `LogDirectoryError` if a later run of the query has begun; if the message of a task
        is missing.  Raises `StreamBatchError` if the log knows a later micro-batch of the query,
        or this one with other records.
        """
        staged = in_task_order(StreamedMessage, messages, self._request.directory)
        query, run = staged[0].ids
        batch = StreamBatch(query, batch_id, run)
        staged[0].job.commit((message.extents for message in staged), batch=batch)
        freeze_modules()

    @PlainErrors()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Remove the staged files of the tasks."""
        # If all tasks have failed, no message names the job. The job is then found as one of the
        # stream.
        jobs = [each.job for each in messages if isinstance(each, StreamedMessage)]
        if jobs:
            jobs[0].abort()
        else:
            WriteJob.abort_stream(self._request)


def _query_ids() -> QueryIds:
    """The ids of the query and of its run, as Spark gives them to the tasks of a micro-batch."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query, run = (
        context.getLocalProperty(name) if context else None
        for name in ("sql.streaming.queryId", "spark.jobGroup.id")
    )
    if not query or not run:
        message = "Spark has not given this task the ids of its streaming query and run"
        raise RuntimeError(message)
    return query, run
