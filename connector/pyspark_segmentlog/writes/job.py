"""Begin the job of a write that Spark has planned, or refuse it before any task runs."""

from collections.abc import Mapping

from pyspark.sql.types import StructType

from pyspark_segmentlog.options.write_options import write_request
from pyspark_segmentlog.writes.schema import check_sink_schema
from segmentlog.errors import OptionError
from segmentlog.writes import WriteJob, warn_of_columns_left_out

__all__ = ["begin_write_job"]


def begin_write_job(raw: Mapping[str, str], schema: StructType, *, overwrite: bool) -> WriteJob:
    """Check the options and columns of a write, and begin its job.

    Parameters
    ----------
    raw : Spark's option strings.
    schema : of the rows.
    overwrite : whether the write was asked for with ``mode("overwrite")``.

    Raises
    ------
    OptionError
        If an option or a column is wrong, or does not go with the mode.
    LogDirectoryError, LogLockedError, UnknownTopicOrPartitionError, StorageError
        See `WriteJob.begin`.
    """
    try:
        request = write_request(raw)
        check_sink_schema(schema, request.topic, request.config)
        _check_mode(overwrite=overwrite, deletes_records=request.overwrite)
        job = WriteJob.begin(request)
    except OptionError as error:
        if error.option == "num_partitions":
            raise OptionError("numPartitions", error.value, error.accepted) from None
        raise
    warn_of_columns_left_out(
        job.directory, schema.names, job.config, keeps="preserve=true", reads="preserve=true"
    )
    return job


def _check_mode(*, overwrite: bool, deletes_records: bool) -> None:
    """Refuse a mode that contradicts the option ``deleteRecords``."""
    if overwrite == deletes_records:
        return
    if overwrite:
        accepted = (
            'a log only grows: use mode("append"); or give deleteRecords=true to have the '
            "topic's earlier records deleted in the same step"
        )
        raise OptionError("mode", "overwrite", accepted)
    raise OptionError("mode", "append", 'deleteRecords=true is for mode("overwrite")')
