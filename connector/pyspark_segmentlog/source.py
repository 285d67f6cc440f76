"""The data source that Spark sees: its schema, readers and writers."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter

from pyspark_segmentlog.plain_errors import PlainErrors

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceStreamReader,
        DataSourceStreamWriter,
        SimpleDataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    from segmentlog.errors import OptionError

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

    @PlainErrors()
    def schema(self) -> "StructType":
        """Columns of the rows; the options are checked here, as early as Spark asks."""
        from pyspark_segmentlog.catalog_table import schema_of_table
        from pyspark_segmentlog.options import ReadOptions
        from pyspark_segmentlog.schema import row_schema

        of_table = schema_of_table(self.options)
        if of_table is not None:
            return of_table
        options = ReadOptions.parse(self.options)
        return row_schema(include_headers=options.include_headers)

    @PlainErrors()
    def reader(self, schema: "StructType") -> DataSourceReader:
        """Reader of a batch query; a schema that the user gave selects columns."""
        from pyspark_segmentlog.catalog_table import options_of_query
        from pyspark_segmentlog.options import ReadOptions
        from pyspark_segmentlog.reader import make_reader

        options = ReadOptions.parse(options_of_query(self.options, schema))
        return make_reader(options, schema)

    @PlainErrors()
    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:
        """Writer of a batch query; options and columns are checked here."""
        from pyspark_segmentlog.python_worker import freeze_modules
        from pyspark_segmentlog.sink_schema import check_sink_schema
        from pyspark_segmentlog.write_options import WriteOptions
        from pyspark_segmentlog.writer import SegmentLogWriter
        from segmentlog.errors import OptionError
        from segmentlog.producer.job import WriteJob
        from segmentlog.producer.left_out import warn_of_columns_left_out

        options = WriteOptions.parse(dict(self.options))
        check_sink_schema(schema, options.topic, options.config)
        if overwrite != options.deletes_records:
            mode = "overwrite" if overwrite else "append"
            accepted = (
                'a log only grows: use mode("append"); or give deleteRecords=true to have the '
                "topic's earlier records deleted in the same step"
                if overwrite
                else 'deleteRecords=true is for mode("overwrite")'
            )
            raise OptionError("mode", mode, accepted)
        job = WriteJob.begin(
            options.directory,
            options.config,
            topic=options.topic,
            num_partitions=options.num_partitions,
            creates_topics=options.auto_create_topics,
            lock_timeout_seconds=options.lock_timeout_seconds,
            sink=options.sink,
            deletes_records=options.deletes_records,
        )
        warn_of_columns_left_out(
            job.directory, schema.names, job.config, keeps="preserve=true", reads="preserve=true"
        )
        freeze_modules()
        return SegmentLogWriter(job)

    # Without these methods, a stream fails with Spark's own error, behind two pages of the JVM.

    @PlainErrors()
    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":
        """Refuse a stream, which is not supported yet, in one sentence."""
        from pyspark_segmentlog.no_streams import NoStreamReader

        error = _no_streams("readStream", 'spark.read.format("segmentlog").load(path)')
        return NoStreamReader(error)

    @PlainErrors()
    def simpleStreamReader(self, schema: "StructType") -> "SimpleDataSourceStreamReader":
        """Refuse a stream, as `streamReader` does."""
        raise _no_streams("readStream", 'spark.read.format("segmentlog").load(path)')

    @PlainErrors()
    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":
        """Refuse a stream, which is not supported yet, in one sentence."""
        instead = "writeStream.foreachBatch, and in it df.write with txnAppId and txnVersion"
        raise _no_streams("writeStream", instead)


def _no_streams(method: str, instead: str) -> "OptionError":
    from segmentlog.errors import OptionError

    accepted = f"this version reads and writes in batch queries only: use {instead}"
    return OptionError(method, "segmentlog", accepted)
