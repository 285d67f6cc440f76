"""A batch query's reader: slices on the driver, Arrow batches in the tasks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_segmentlog.options.option import Query
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.plain_errors import PlainErrors
from pyspark_segmentlog.python_worker import freeze_modules
from segmentlog.model import LogSlice
from segmentlog.reads import keep_for, opened_path, readable_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from pyspark_segmentlog.reads.planner import LateRange, Part
    from pyspark_segmentlog.reads.pushed import Bounds


class TaskPartition(InputPartition):
    """Slices, or ranges with edges to look up, on their way to the task that reads them."""

    def __init__(self, parts: "tuple[Part, ...]", plan: str) -> None:
        super().__init__(parts)
        self.parts = parts
        self.plan = plan


class SegmentLogReader(DataSourceReader):
    """Reads the records that `options` select; it is pickled into every task, so it holds no more.

    `text`: the columns among them that are wanted as text.
    """

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], text: tuple[str, ...] = ()
    ) -> None:
        self.options = options
        self._columns = columns
        self._text = text
        self._bounds: Bounds | None = None

    @classmethod
    def of_query(cls, raw: Mapping[str, str], schema: "StructType", query: Query) -> Self:
        """The reader of a query; a schema that the user gave selects columns."""
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
        planned = [TaskPartition(parts, plan) for parts in plan_tasks(self.options, self._bounds)]
        freeze_modules()
        return planned

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Arrow batches of one task."""
        if not isinstance(partition, TaskPartition):
            return
        from pyspark_segmentlog.reads.task import parts_of_task

        with PlainErrors():
            keep_for(partition.plan, map(opened_path, self.options.paths))
            for part in parts_of_task(partition.parts, self.options):
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


class PushableReader(SegmentLogReader):
    """A reader for engines that push, except Spark.

    Spark's planner refuses a reader that has these methods, unless a setting is on; and with the
    setting on, Spark up to 4.3 uses a narrowed reader for other queries of the data frame, too.
    """

    _limit: int | None = None
    _filters: Sequence["Filter"] = ()

    def pushFilters(self, filters: list["Filter"]) -> "Iterable[Filter]":
        """Note what the filters keep; return all of them."""
        from pyspark_segmentlog.reads.pushed import bounds_of

        given = list(filters)
        self._bounds = bounds_of(given)
        policy = self.options.policy._replace(timestamps=self._bounds.timestamps)
        self.options = replace(self.options, policy=policy)
        if given:
            self._limit = None  # it is one of rows that the filters keep
        self._filters = given
        return given

    def pruneColumns(self, schema: "StructType | pa.Schema") -> "StructType | pa.Schema":
        """Read only the columns of a schema; return what is read."""
        if not schema.names:
            return schema  # a batch without columns would not tell the number of its rows
        self._columns = tuple(schema.names)
        self._text = tuple(name for name in self._text if name in self._columns)
        return schema

    def pushLimit(self, limit: int) -> bool:
        """Read at most so many rows in each task, if no filter was pushed before."""
        self._limit = None if self._filters else limit
        return self._limit is not None

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Arrow batches of one task."""
        left = self._limit
        for batch in super().read(partition):
            yield batch if left is None else batch.slice(0, left)
            if left is not None and (left := left - batch.num_rows) <= 0:
                return
