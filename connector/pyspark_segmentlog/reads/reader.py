"""A batch query's reader: slices on the driver, Arrow batches in the tasks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_segmentlog.options.option import Query
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.plain_errors import PlainErrors
from pyspark_segmentlog.python_worker import freeze_modules
from segmentlog.model import LogSlice
from segmentlog.reads import keep_for, readable_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_segmentlog.reads.planner import LateRange


class TaskPartition(InputPartition):
    """Slices, or ranges with edges to look up, on their way to the task that reads them.

    `plan`: id of the plan that has made them.
    """

    def __init__(self, parts: "tuple[LogSlice | LateRange, ...]", plan: str) -> None:
        super().__init__(parts)
        self.parts = parts
        self.plan = plan


class SegmentLogReader(DataSourceReader):
    """Reads the records that `options` select; it is pickled into every task, so it holds no more.

    `columns`: the columns wanted, in order.  `text`: the columns among them that are wanted as
    text.
    """

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], text: tuple[str, ...] = ()
    ) -> None:
        self.options = options
        self._columns = columns
        self._text = text

    @classmethod
    def of_query(cls, raw: Mapping[str, str], schema: "StructType", query: Query) -> Self:
        """The reader of a query; a schema that the user gave selects columns.

        Raises `OptionError` if an option is not accepted, or a column does not exist.
        """
        from pyspark_segmentlog.options.names import warn_of_unused
        from pyspark_segmentlog.reads.schema import selected_columns, text_columns

        options = ReadOptions.parse(raw, query)
        columns = selected_columns(schema)
        text = text_columns(schema, strings=options.strings)
        warn_of_unused(raw, query)
        return cls(options, columns, text)

    @PlainErrors()
    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each task; for an empty list, Spark makes one that is None."""
        from pyspark_segmentlog.reads.planner import plan_tasks

        plan = uuid4().hex
        keep_for(plan, ())  # Spark may run tasks of this plan in this process
        planned = [TaskPartition(parts, plan) for parts in plan_tasks(self.options)]
        freeze_modules()
        return planned

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Arrow batches of one task."""
        if not isinstance(partition, TaskPartition):
            return
        with PlainErrors():
            keep_for(partition.plan, map(readable_path, self.options.paths))
            for part in partition.parts:
                yield from self._read(part)
        freeze_modules()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the credentials in URLs in a task: paths in slices do not hold them."""
        self.__dict__.update(state)
        for path in self.options.paths:
            readable_path(path)

    def _read(self, part: "LogSlice | LateRange") -> "Iterator[pa.RecordBatch]":
        from pyspark_segmentlog.reads.task import read_part
        from segmentlog.reads import TextColumns

        if not self._text:
            yield from read_part(part, self._columns, self.options)
            return
        text = TextColumns(self._columns, self._text, self.options.on_invalid_utf8)
        for batch in read_part(part, text.scanned, self.options):
            yield text.convert(batch, part.topic_partition)
