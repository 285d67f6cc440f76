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

__all__ = ["LatePartition", "SegmentLogReader", "SlicePartition"]


class SlicePartition(InputPartition):
    """A slice on its way to the task that reads it."""

    def __init__(self, log_slice: LogSlice) -> None:
        super().__init__(log_slice)
        self.log_slice = log_slice


class LatePartition(InputPartition):
    """A range on its way to the task that looks its edges up."""

    def __init__(self, late_range: "LateRange") -> None:
        super().__init__(late_range)
        self.late_range = late_range


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
        from pyspark_segmentlog.planner import plan_late_ranges, plan_slices

        if self._options.late_binding:
            return [LatePartition(late_range) for late_range in plan_late_ranges(self._options)]
        return [SlicePartition(log_slice) for log_slice in plan_slices(self._options)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Arrow batches of one task."""
        from pyspark_segmentlog.task import read_late_range, read_slice

        with PlainErrors():
            if isinstance(partition, SlicePartition):
                yield from read_slice(partition.log_slice, self._columns, self._options)
            elif isinstance(partition, LatePartition):
                yield from read_late_range(partition.late_range, self._columns, self._options)
            else:
                return
        freeze_modules()
