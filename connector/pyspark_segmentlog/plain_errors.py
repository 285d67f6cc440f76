"""Show errors of segmentlog as their message, without a traceback, at every entry from Spark."""

import os
from contextlib import ContextDecorator
from types import TracebackType
from typing import Self


class PlainErrors(ContextDecorator):
    """A ``with`` block, or a decorator, that lets errors of segmentlog out without a traceback.

    Their messages name the problem and the remedy.  Spark puts the traceback before the message,
    and shows both twice on a console, four times for a task.  An error of any other type is a bug,
    and keeps its traceback.  All errors keep it if Spark is configured for whole tracebacks
    (``spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled=false``, or
    ``tracebackWithLocals``), or if there is no Spark.

    `asked`: whether Spark sets in this process how errors are shown.  It does not where it polls
    the source of a stream, and tracebacks are then hidden.
    """

    def __init__(self, *, asked: bool = True) -> None:
        self._asked = asked

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            return
        from pyspark_segmentlog.options.reference import READ_OPTIONS, WRITE_OPTIONS
        from segmentlog.arguments import rename
        from segmentlog.errors import OptionError, SegmentLogError

        if isinstance(error, OptionError):
            rename(error, [option.name for option in (*READ_OPTIONS, *WRITE_OPTIONS)])
        if self._asked and not os.environ.get("SPARK_SIMPLIFIED_TRACEBACK"):
            return
        if os.environ.get("SPARK_TRACEBACK_WITH_LOCALS"):
            return
        if isinstance(error, SegmentLogError):
            error.__cause__, error.__suppress_context__ = None, True
            error.__traceback__ = None
            # Pyspark reads it when it formats the error; then the process ends.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
