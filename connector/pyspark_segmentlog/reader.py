"""A batch query's reader: slices on the driver, Arrow batches in the tasks."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_segmentlog.options import ReadOptions
from pyspark_segmentlog.plain_errors import PlainErrors
from pyspark_segmentlog.python_worker import freeze_modules
from segmentlog.files.paths import readable_path
from segmentlog.model import LogSlice

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SegmentLogReader", "SlicePartition"]


class SlicePartition(InputPartition):
    """A slice on its way to the task that reads it."""

    def __init__(self, log_slice: LogSlice) -> None:
        super().__init__(log_slice)
        self.log_slice = log_slice


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
        """One partition for each slice; for an empty list, Spark makes one without a slice."""
        from pyspark_segmentlog.planner import plan_slices

        return [SlicePartition(log_slice) for log_slice in plan_slices(self._options)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Arrow batches of one slice."""
        if not isinstance(partition, SlicePartition):
            return
        from segmentlog.read.scan import scan_slice  # the compiled kernels load in the task

        with PlainErrors():
            yield from scan_slice(
                partition.log_slice, columns=self._columns, policy=self._options.policy
            )
        freeze_modules()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In a task: take the credentials in URLs, which paths in slices do not hold."""
        self.__dict__.update(state)
        for path in self._options.paths:
            readable_path(path)
