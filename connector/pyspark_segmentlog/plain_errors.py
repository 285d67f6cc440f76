"""At every door that Spark comes in by: an error of ours is its sentence, without our frames."""

import os
from contextlib import ContextDecorator
from types import TracebackType
from typing import Self

__all__ = ["PlainErrors"]


class PlainErrors(ContextDecorator):
    """A ``with`` block, or a decorator, that lets errors of segmentlog out without a traceback.

    They say what is wrong and what to do.  Spark puts the traceback in front of the sentence,
    and shows both twice on a console, four times for a task.  An error of any other type is a
    bug, and keeps its frames.  So does everything where Spark is asked for whole tracebacks
    (``spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled=false``, or
    ``tracebackWithLocals``), and where no Spark is around.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or not os.environ.get("SPARK_SIMPLIFIED_TRACEBACK"):
            return
        if os.environ.get("SPARK_TRACEBACK_WITH_LOCALS"):
            return
        from segmentlog.errors import SegmentLogError

        if isinstance(error, SegmentLogError):
            error.__cause__, error.__suppress_context__ = None, True
            error.__traceback__ = None
            # Read by pyspark where it formats the error, after which the process ends.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
