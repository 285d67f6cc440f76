"""A Python source without rows: what Spark takes for any query of one."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

__all__ = ["FloorSource"]

_N_TASKS = 4


class FloorReader(DataSourceReader):
    """As many tasks as the log has partitions, each of them empty."""

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
