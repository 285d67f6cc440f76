"""Begin the job of a write that Spark has planned, or refuse it before any task runs.

The columns that a write uses are those of Spark's ``kafka`` sink, and those of a restore.
"""

import logging
from collections.abc import Mapping

from pyspark.sql.types import StructType

from pyspark_segmentlog.options.write_options import write_request
from segmentlog import ProducerConfig
from segmentlog.errors import ColumnError, OptionError
from segmentlog.native import check_compiled
from segmentlog.writes import WriteJob, WriteRequest, columns_left_out

logger = logging.getLogger(__name__)

#: Streams whose lost columns were named in a warning: each micro-batch is a separate job.
_warned = set[str | None]()


_TEXT = ("string", "binary")
_HEADERS = "array<struct<key:string,value:binary>>"
_ACCEPTED = {
    "topic": ("string",),
    "key": _TEXT,
    "value": _TEXT,
    "headers": (_HEADERS,),
    "partition": ("int",),
}
_RESTORED = {"timestamp": ("timestamp",), "timestampType": ("int",), "offset": ("bigint",)}


def check_sink_schema(schema: StructType, topic: str | None, config: ProducerConfig) -> None:
    """Refuse columns that cannot be records, before any task starts; other columns are ignored.

    `topic`: value of the option, which replaces the column.  `config`: decides which other columns
    are used.
    """
    needed = ["value"]
    needed += ["timestamp"] * config.use_timestamps
    needed += ["timestampType"] * config.use_timestamp_types
    needed += ["partition", "offset"] * config.use_offsets
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name in needed:
        if name not in types:
            raise ColumnError(name, "missing", f"the rows have: {', '.join(types)}")
    if "topic" not in types and topic is None:
        raise OptionError("topic", "", "give the option topic, or rows with a column 'topic'")
    accepted = _ACCEPTED | {name: _RESTORED[name] for name in needed if name in _RESTORED}
    if topic is not None:
        del accepted["topic"]
    for name, found in types.items():
        if name in accepted and found not in accepted[name]:
            wanted = accepted[name]
            remedy = f"it has to be {' or '.join(wanted)}"
            if name != "headers":
                remedy += f': selectExpr("cast({name} as {wanted[0]}) as {name}", …)'
            raise ColumnError(name, found, remedy)


def begin_write_job(raw: Mapping[str, str], schema: StructType, *, overwrite: bool) -> WriteJob:
    """Check the options and columns of a write, and begin its job."""
    check_compiled()
    request = write_request(raw)
    check_sink_schema(schema, request.topic, request.config)
    _check_mode(overwrite=overwrite, deletes_records=request.overwrite)
    job = WriteJob.begin(request)
    _warn_of_columns_left_out(job, schema)
    return job


def stream_request(raw: Mapping[str, str], schema: StructType, *, overwrite: bool) -> WriteRequest:
    """Check the options and columns of a stream; `overwrite` in the output mode complete."""
    request = write_request(raw, is_stream=True)
    check_sink_schema(schema, request.topic, request.config)
    if request.overwrite and not overwrite:
        accepted = (
            'deleteRecords=true is for outputMode("complete"), in which each result replaces the '
            "previous one"
        )
        raise OptionError("outputMode", "append", accepted)
    return request


def begin_stream_job(request: WriteRequest, schema: StructType) -> WriteJob:
    """Begin the job of a stream's next micro-batch, which ends the stream's earlier jobs."""
    check_compiled()
    job = WriteJob.begin(request)
    if request.stream not in _warned:
        _warned.add(request.stream)
        _warn_of_columns_left_out(job, schema)
    return job


def _warn_of_columns_left_out(job: WriteJob, schema: StructType) -> None:
    names, keeps = schema.names, "preserve=true"
    for message in columns_left_out(job.directory, names, job.config, keeps=keeps, reads=keeps):
        logger.warning(message)


def _check_mode(*, overwrite: bool, deletes_records: bool) -> None:
    if overwrite == deletes_records:
        return
    if overwrite:
        accepted = (
            'a log only grows: use mode("append"); or give deleteRecords=true to have the '
            "topic's earlier records deleted in the same step"
        )
        raise OptionError("mode", "overwrite", accepted)
    raise OptionError("mode", "append", 'deleteRecords=true is for mode("overwrite")')
