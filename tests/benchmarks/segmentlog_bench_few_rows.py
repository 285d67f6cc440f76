"""A Python source of few rows, and a sink that forgets them: Spark's part of a small job."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

__all__ = ["FewRowsSource"]

_N_TASKS, _N_ROWS = 8, 130  # as the quickstart's logs have them
_T0 = 1_760_300_000_000_000  # in October 2025, in microseconds
_SECOND = 1_000_000


class FewRowsReader(DataSourceReader):
    """A reader with the same few rows for each task."""

    def __init__(self, n_tasks: int) -> None:
        self._n_tasks = n_tasks

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._n_tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = range(_N_ROWS)
        yield pa.RecordBatch.from_pydict(
            {
                "key": pa.array([b"%d" % row for row in rows]),
                "value": pa.array([b'{"order":%d,"cents":%d}' % (row, 500 * row) for row in rows]),
                "topic": pa.array(["orders"] * _N_ROWS),
                "partition": pa.array([partition.value] * _N_ROWS, pa.int32()),
                "offset": pa.array(rows, pa.int64()),
                "timestamp": pa.array(
                    [_T0 + _SECOND * row for row in rows], pa.timestamp("us", "UTC")
                ),
            }
        )


class ForgettingWriter(DataSourceArrowWriter):
    """A writer that accepts all rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class FewRowsSource(DataSource):
    """``format("bench_few_rows").option("tasks", 8)``."""

    @classmethod
    def name(cls) -> str:
        return "bench_few_rows"

    def schema(self) -> str:
        return (
            "key binary, value binary, topic string, partition int, offset bigint, "
            "timestamp timestamp"
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return FewRowsReader(int(self.options.get("tasks", _N_TASKS)))

    def writer(self, schema: StructType, overwrite: bool) -> ForgettingWriter:
        return ForgettingWriter()
