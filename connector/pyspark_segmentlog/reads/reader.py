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
    from pyspark_segmentlog.reads.pushed import PushedBounds
    from segmentlog.decoding import Decoding, Skipped


def read_schema(options: ReadOptions) -> "StructType":
    """The columns of a read, if the user gives no schema."""
    from pyspark_segmentlog.reads.schema import row_schema

    columns = row_schema(include_headers=options.include_headers, strings=options.strings)
    if not options.asks_for_decoding:
        return columns
    from pyspark_segmentlog.reads.decoded import decoding_of, with_decoded

    return with_decoded(columns, decoding_of(options))


class TaskPartition(InputPartition):
    """Slices, or ranges with edges to look up, on their way to the task that reads them."""

    def __init__(self, parts: "tuple[Part, ...]", plan: str) -> None:
        super().__init__(parts)
        self.parts = parts
        self.plan = plan


class SegmentLogReader(DataSourceReader):
    """Reads the records that `options` select; it is pickled into every task, so it holds no more.

    `text`: the columns among them that are wanted as text.  `decoding`: of those that become the
    columns of their schemas.
    """

    def __init__(
        self,
        options: ReadOptions,
        columns: tuple[str, ...],
        text: tuple[str, ...] = (),
        decoding: "Decoding | None" = None,
    ) -> None:
        self.options = options
        self._columns = columns
        self._text = text
        self._decoding = decoding
        self._bounds: PushedBounds | None = None

    @classmethod
    def of_query(cls, raw: Mapping[str, str], schema: "StructType", query: Query) -> Self:
        """The reader of a query; a schema that the user gave selects columns."""
        from pyspark_segmentlog.options.names import warn_of_unused
        from pyspark_segmentlog.reads.schema import row_schema, selected_columns, text_columns

        options, decoding = ReadOptions.parse(raw, query), None
        if options.asks_for_decoding:
            from pyspark_segmentlog.reads.decoded import decoding_of, with_decoded

            decoding = decoding_of(options, schema)
        if decoding is None:
            columns = selected_columns(schema)
            text = text_columns(schema, strings=options.strings)
        else:
            every = with_decoded(row_schema(include_headers=True), decoding)
            columns = selected_columns(schema, every, decoding.columns)
            text = text_columns(schema, strings=options.strings, decoded=decoding.columns)
        warn_of_unused(raw, query)
        return cls(options, columns, text, decoding)

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
            skipped = None if self._decoding is None else self._decoding.new_count()
            for part in parts_of_task(partition.parts, self.options):
                yield from self._read(part, skipped)
            if skipped is not None:
                skipped.warn()
        freeze_modules()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the credentials in URLs in a task: paths in slices do not hold them."""
        self.__dict__.update(state)
        for path in self.options.paths:
            readable_path(path)

    def _read(
        self, part: "LogSlice | LateRange", skipped: "Skipped | None"
    ) -> "Iterator[pa.RecordBatch]":
        from pyspark_segmentlog.reads.task import read_part
        from segmentlog.reads import TextColumns

        decoding, wanted = self._decoding, self._columns
        if not self._text and decoding is None:
            yield from read_part(part, wanted, self.options)
            return
        columns = wanted if decoding is None else decoding.scanned(wanted)
        text = TextColumns(columns, self._text, self.options.on_invalid_utf8)
        for batch in read_part(part, text.scanned, self.options):
            rows = text.convert(batch, part.topic_partition)
            if decoding is not None:
                rows = decoding.decoded(rows, wanted, skipped, part.topic_partition)
            yield rows


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
