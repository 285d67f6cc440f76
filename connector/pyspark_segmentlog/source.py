"""The data source that Spark sees: its schema, readers and writers."""

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
except ModuleNotFoundError as error:
    if error.name != "pyspark.sql.datasource":
        raise
    from pyspark import __version__ as found

    message = f"Python data sources came with PySpark 4.0, which segmentlog needs: this is {found}"
    raise ImportError(message, name=__package__) from None

from pyspark_segmentlog.plain_errors import PlainErrors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter
    from pyspark.sql.types import StructType


class SegmentLogDataSource(DataSource):
    """Kafka's log files as rows, with the columns and options of Spark's ``kafka`` source.

    ``spark.read.format("segmentlog").load("/var/lib/kafka")`` reads every topic of a broker's log
    directory.  Options are listed in ``connector/docs/options.md``.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._is_new = True

    def __getstate__(self) -> dict[str, object]:
        """Spark makes a source where it plans a batch, and pickles one for where it commits."""
        return {**self.__dict__, "_is_new": False}

    @classmethod
    def name(cls) -> str:
        """The word after ``format``."""
        return "segmentlog"

    @PlainErrors()
    def schema(self) -> "StructType":
        """Columns of the rows; the options are checked here, as early as Spark asks."""
        from pyspark_segmentlog.catalog_table import schema_of_table
        from pyspark_segmentlog.options.read_options import ReadOptions
        from pyspark_segmentlog.python_worker import freeze_modules
        from pyspark_segmentlog.reads.reader import read_schema
        from pyspark_segmentlog.reads.table import TableOptions, reads_table
        from pyspark_segmentlog.sail import ArrowStructType

        of_table = schema_of_table(self.options)
        if of_table is not None:
            return of_table
        if reads_table(self.options):
            from pyspark_segmentlog.reads.table import table_columns

            return ArrowStructType(table_columns(TableOptions.parse(self.options)).fields)
        options = ReadOptions.parse(self.options)
        columns = read_schema(options)
        freeze_modules()
        return ArrowStructType(columns.fields)

    @PlainErrors()
    def reader(self, schema: "StructType | pa.Schema") -> DataSourceReader:
        """Reader of a batch query; a schema that the user gave selects columns."""
        from pyspark_segmentlog.catalog_table import options_of_query
        from pyspark_segmentlog.options.option import Query
        from pyspark_segmentlog.options.reference import READ_OPTIONS
        from pyspark_segmentlog.python_worker import is_spark_worker
        from pyspark_segmentlog.reads.reader import PushableReader, SegmentLogReader
        from pyspark_segmentlog.reads.table import TableOptions, reads_table
        from pyspark_segmentlog.sail import ArrowReader, refuse_stream, spark_schema
        from pyspark_segmentlog.spark_versions import refuse_no_columns

        columns = spark_schema(schema)
        refuse_no_columns(columns)
        given = options_of_query(self.options, columns)
        reader: DataSourceReader
        if reads_table(given):
            from pyspark_segmentlog.reads.table import TableReader

            reader = TableReader(TableOptions.parse(given), columns)
        else:
            kind = SegmentLogReader if is_spark_worker() else PushableReader
            reader = kind.of_query(given, columns, Query.BATCH)
        if columns is schema:
            return reader
        of_streams = [each.name for each in READ_OPTIONS if each.used_by == (Query.STREAM,)]
        refuse_stream(given, of_streams)
        return ArrowReader(reader, schema)

    @PlainErrors()
    def writer(self, schema: "StructType | pa.Schema", overwrite: bool) -> DataSourceWriter:
        """Writer of a batch query; options and columns are checked here."""
        from pyspark_segmentlog.python_worker import freeze_modules
        from pyspark_segmentlog.sail import refuse_stream, spark_schema
        from pyspark_segmentlog.writes.job import begin_write_job
        from pyspark_segmentlog.writes.writer import SegmentLogWriter

        columns = spark_schema(schema)
        if columns is not schema:
            refuse_stream(self.options, ("checkpointLocation",))
        job = begin_write_job(self.options, columns, overwrite=overwrite)
        freeze_modules()
        return SegmentLogWriter(job)

    @PlainErrors()
    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":
        """Reader of a streaming query; a schema that the user gave selects columns."""
        from pyspark_segmentlog.catalog_table import options_of_query
        from pyspark_segmentlog.options.option import Query
        from pyspark_segmentlog.reads.reader import SegmentLogReader
        from pyspark_segmentlog.reads.stream import RefusedStream, SegmentLogStreamReader
        from pyspark_segmentlog.spark_versions import refuse_no_columns
        from segmentlog.errors import SegmentLogError

        try:
            refuse_no_columns(schema)
            given = options_of_query(self.options, schema)
            return SegmentLogStreamReader(SegmentLogReader.of_query(given, schema, Query.STREAM))
        except SegmentLogError as error:
            return RefusedStream(error)

    @PlainErrors()
    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":
        """Writer of one micro-batch; options and columns are checked here."""
        from pyspark_segmentlog.python_worker import freeze_modules
        from pyspark_segmentlog.writes.stream import stream_writer

        writer = stream_writer(self.options, schema, overwrite=overwrite, plans=self._is_new)
        freeze_modules()
        return writer
