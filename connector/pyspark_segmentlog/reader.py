"""A batch query's reader: slices on the driver, Arrow batches in the tasks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_segmentlog.options import ReadOptions
from pyspark_segmentlog.plain_errors import PlainErrors
from pyspark_segmentlog.python_worker import freeze_modules, plans_without_filters
from segmentlog.model import LogSlice

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from pyspark_segmentlog.filters import Bounds

__all__ = ["NarrowingReader", "SegmentLogReader", "SlicePartition", "make_reader"]


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
    text : the columns among them that are wanted as text.
    """

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], text: tuple[str, ...] = ()
    ) -> None:
        self._options = options
        self._columns = columns
        self._text = text

    @PlainErrors()
    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each slice; for an empty list, Spark makes one without a slice."""
        from pyspark_segmentlog.planner import plan_slices

        return [SlicePartition(each) for each in plan_slices(self._options)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Arrow batches of one slice."""
        if not isinstance(partition, SlicePartition):
            return
        with PlainErrors():
            yield from self._scan(partition.log_slice)
        freeze_modules()

    def _scan(self, log_slice: LogSlice) -> "Iterator[pa.RecordBatch]":
        from segmentlog.read.scan import scan_slice  # the compiled kernels load in the task
        from segmentlog.records.text import TextColumns

        columns, policy = self._columns, self._options.policy
        if not self._text:
            yield from scan_slice(log_slice, columns=columns, policy=policy)
            return
        text = TextColumns(columns, self._text, self._options.on_invalid_utf8)
        for batch in scan_slice(log_slice, columns=text.scanned, policy=policy):
            yield text.convert(batch, log_slice.topic_partition)


class NarrowingReader(SegmentLogReader):
    """A reader that leaves out rows which the filters of the query would leave out."""

    _bounds: "Bounds | None" = None

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Remember the bounds that `filters` put on the read; Spark applies all of them, too."""
        from pyspark_segmentlog.filters import bounds_of

        self._bounds = bounds_of(filters)
        policy = self._options.policy._replace(timestamps=self._bounds.timestamps)
        self._options = replace(self._options, policy=policy)
        return filters

    @PlainErrors()
    def partitions(self) -> Sequence[InputPartition]:
        """The partitions of the base class, within the bounds."""
        from pyspark_segmentlog.filters import EVERYTHING
        from pyspark_segmentlog.planner import plan_slices

        slices = plan_slices(self._options, self._bounds or EVERYTHING)
        return [SlicePartition(each) for each in slices]


def make_reader(options: ReadOptions, schema: "StructType") -> SegmentLogReader:
    """The reader of a query, which narrows the read if that is asked for.

    Spark refuses a reader that overrides ``pushFilters`` while
    ``spark.sql.python.filterPushdown.enabled`` is off.  So the override is hidden in the process
    in which Spark would refuse it, where ``pushFilters`` is never called.

    Raises
    ------
    ColumnError
        If `schema` has a column that cannot be read so.
    """
    from pyspark_segmentlog.schema import selected_columns, text_columns

    narrows = options.filter_pushdown and not plans_without_filters()
    kind = NarrowingReader if narrows else SegmentLogReader
    return kind(options, selected_columns(schema), text_columns(schema))
