"""A Python source without rows: the time that Spark takes for any query of a Python source."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

__all__ = ["FloorSource"]

_N_TASKS = 4


class FloorReader(DataSourceReader):
    """A reader with an empty task for each partition of the log."""

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(_N_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from ()


class FloorSource(DataSource):
    """``format("bench_floor")``."""

    @classmethod
    def name(cls) -> str:
        return "bench_floor"

    def schema(self) -> str:
        return "offset bigint"

    def reader(self, schema: StructType) -> DataSourceReader:
        return FloorReader()
