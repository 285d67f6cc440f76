"""The ceiling of any Python source: rows from a mapped Arrow file, nothing to decode."""

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int"
)


class IpcSource(DataSource):
    """``spark.read.format("bench_ipc").option("files", "a,b")``."""

    @classmethod
    def name(cls):
        return "bench_ipc"

    def schema(self):
        return SCHEMA

    def reader(self, schema):
        return IpcReader(self.options["files"].split(","))


class IpcReader(DataSourceReader):
    """A reader with one partition for each file."""

    def __init__(self, files):
        self.files = files

    def partitions(self):
        return [InputPartition(file) for file in self.files]

    def read(self, partition):
        import pyarrow as pa

        with pa.memory_map(partition.value) as mapped:
            reader = pa.ipc.open_file(mapped)
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)
