"""What Spark sees: the data source, its schema, and who reads."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["SegmentLogDataSource"]


class SegmentLogDataSource(DataSource):
    """Kafka's log files as rows, with the columns and options of Spark's ``kafka`` source.

    ``spark.read.format("segmentlog").load("/var/lib/kafka")`` reads every topic of a broker's log
    directory.  Options are listed in ``connector/README.md``.
    """

    @classmethod
    def name(cls) -> str:
        """The word after ``format``."""
        return "segmentlog"

    def schema(self) -> "StructType":
        """Columns of the rows; the options are checked here, as early as Spark asks."""
        from pyspark_segmentlog.options import ReadOptions
        from pyspark_segmentlog.schema import row_schema

        options = ReadOptions.parse(dict(self.options))
        return row_schema(include_headers=options.include_headers)

    def reader(self, schema: "StructType") -> DataSourceReader:
        """Reader of a batch query; a schema that the user gave selects columns."""
        from pyspark_segmentlog.options import ReadOptions
        from pyspark_segmentlog.reader import SegmentLogReader
        from pyspark_segmentlog.schema import selected_columns

        options = ReadOptions.parse(dict(self.options))
        return SegmentLogReader(options, selected_columns(schema))
