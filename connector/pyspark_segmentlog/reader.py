"""A batch query's reader: slices on the driver, Arrow batches in the tasks."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_segmentlog.options import ReadOptions
from pyspark_segmentlog.plain_errors import PlainErrors
from pyspark_segmentlog.python_worker import freeze_modules
from segmentlog.model import LogSlice

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_segmentlog.planner import LateRange

__all__ = ["SegmentLogReader", "TaskPartition"]


class TaskPartition(InputPartition):
    """Slices, or ranges with edges to look up, on their way to the task that reads them."""

    def __init__(self, parts: "tuple[LogSlice | LateRange, ...]") -> None:
        super().__init__(parts)
        self.parts = parts


class SegmentLogReader(DataSourceReader):
    """Reads the records that `options` select; it is pickled into every task, so it holds no more.

    Parameters
    ----------
    options : checked options.
    columns : the columns wanted, in order.
    """

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    @PlainErrors()
    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each task; for an empty list, Spark makes one that is None."""
        from pyspark_segmentlog.planner import plan_tasks

        return [TaskPartition(parts) for parts in plan_tasks(self._options)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Arrow batches of one task."""
        from pyspark_segmentlog.task import read_part

        if not isinstance(partition, TaskPartition):
            return
        with PlainErrors():
            for part in partition.parts:
                yield from read_part(part, self._columns, self._options)
        freeze_modules()
