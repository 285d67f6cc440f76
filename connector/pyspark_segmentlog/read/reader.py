"""A batch query's reader: slices on the driver, Arrow batches in the tasks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_segmentlog.plain_errors import PlainErrors
from pyspark_segmentlog.python_worker import freeze_modules, plans_without_filters
from pyspark_segmentlog.read.options import ReadOptions
from segmentlog.files.paths import readable_path
from segmentlog.model import LogSlice

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from pyspark_segmentlog.read.filters import Bounds
    from pyspark_segmentlog.read.planner import LateRange

__all__ = ["NarrowingReader", "SegmentLogReader", "TaskPartition", "make_reader"]


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
    text : the columns among them that are wanted as text.
    """

    _bounds: "Bounds | None" = None

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], text: tuple[str, ...] = ()
    ) -> None:
        self._options = options
        self._columns = columns
        self._text = text

    @PlainErrors()
    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each task; for an empty list, Spark makes one that is None."""
        from pyspark_segmentlog.read.planner import plan_tasks

        planned = [TaskPartition(parts) for parts in plan_tasks(self._options, self._bounds)]
        freeze_modules()
        return planned

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Arrow batches of one task."""
        if not isinstance(partition, TaskPartition):
            return
        with PlainErrors():
            for part in partition.parts:
                yield from self._read(part)
        freeze_modules()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the credentials in URLs in a task: paths in slices do not hold them."""
        self.__dict__.update(state)
        for path in self._options.paths:
            readable_path(path)

    def _read(self, part: "LogSlice | LateRange") -> "Iterator[pa.RecordBatch]":
        from pyspark_segmentlog.read.task import read_part
        from segmentlog.records.text import TextColumns

        if not self._text:
            yield from read_part(part, self._columns, self._options)
            return
        text = TextColumns(self._columns, self._text, self._options.on_invalid_utf8)
        for batch in read_part(part, text.scanned, self._options):
            yield text.convert(batch, part.topic_partition)


class NarrowingReader(SegmentLogReader):
    """A reader that leaves out rows which the filters of the query would leave out."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Remember the bounds that `filters` put on the read; Spark applies all of them, too."""
        from pyspark_segmentlog.read.filters import bounds_of

        self._bounds = bounds_of(filters)
        policy = self._options.policy._replace(timestamps=self._bounds.timestamps)
        self._options = replace(self._options, policy=policy)
        return filters


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
    from pyspark_segmentlog.read.schema import selected_columns, text_columns

    narrows = options.filter_pushdown and not plans_without_filters()
    kind = NarrowingReader if narrows else SegmentLogReader
    return kind(options, selected_columns(schema), text_columns(schema))
