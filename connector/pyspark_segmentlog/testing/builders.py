"""Readers and writers of pyspark that take the format ``kafka``: their methods, replaced.

Options wait until the format is known; those of kafka are checked as Spark's source and sink check
them, and translated.
"""

import importlib.util
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql.utils import to_str

from pyspark_segmentlog.source import SegmentLogDataSource
from pyspark_segmentlog.testing import (
    initial_offsets,
    query_progress,
    runs_to_the_end,
    until_idle,
)
from pyspark_segmentlog.testing.kafka_clients import sent_rows
from pyspark_segmentlog.testing.kafka_options import (
    NO_CHECKPOINT,
    SERVERS,
    check_async_progress,
    check_columns,
    check_layout,
    check_mode,
    check_read,
    check_schema,
    check_trigger,
    check_write,
    options_of_read,
    options_of_write,
)
from pyspark_segmentlog.testing.replaced import Builder, Methods, original
from pyspark_segmentlog.testing.runs_to_the_end import RunToTheEnd
from pyspark_segmentlog.testing.servers import BEGUN, directory_of
from segmentlog.errors import OptionError

PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_FOR_WRITES = (
    "as_kafka cannot cover tables of format kafka: write with "
    "df.write.format('kafka').options(…).save(), or writeStream.format('kafka')….start()"
)


def names_kafka(source: object) -> bool:
    """Whether Spark finds its kafka source so: by the short name in any case, or by the class."""
    return isinstance(source, str) and (source.lower() == "kafka" or source == PROVIDER)


def _is_kafka(builder: Builder) -> bool:
    """Whether the format is kafka: as the job says, or else by the setting of the session."""
    if "_is_kafka" not in builder.__dict__:
        default = _session_of(builder).conf.get("spark.sql.sources.default", None)
        if names_kafka(default):
            builder.format("kafka")
    return bool(builder.__dict__.get("_is_kafka"))


def _session_of(builder: Builder) -> Any:  # noqa: ANN401
    found = builder.__dict__
    return found.get("_session") or found.get("_client") or found["_spark"]


def _given(builder: Builder) -> dict[str, str]:
    found: dict[str, str] = builder.__dict__.setdefault("_kafka_options", {})
    return found


def _pass_on(builder: Builder, options: Mapping[str, str]) -> None:
    for name, value in options.items():
        original(builder, "option")(builder, name, value)


def _use_other_format(builder: Builder) -> None:
    """Pass on the calls that have waited, and let later calls through."""
    builder._is_kafka = False
    for name, args, options in builder.__dict__.pop("_waiting", ()):
        original(builder, name)(builder, *args, **options)


def _wait_or_pass_on(builder: Builder, name: str, *args: object, **options: object) -> Builder:
    """Keep a call that gives options until the format is known, and if it is kafka, for good."""
    # Some options of kafka are translated or left out, and no builder forgets an option.
    given = {str(args[0]): args[1]} if args else options
    known = {key.lower(): to_str(value) for key, value in given.items() if value is not None}
    _given(builder).update(known)  # type: ignore[arg-type]
    if builder.__dict__.get("_is_kafka") is False:
        return original(builder, name)(builder, *args, **options)
    builder.__dict__.setdefault("_waiting", []).append((name, args, options))
    return builder


def _format(self: Builder, source: str) -> Builder:
    self._is_kafka = names_kafka(source)
    if not self._is_kafka:
        _use_other_format(self)
    return original(self, "format")(self, "segmentlog" if self._is_kafka else source)


def _option(self: Builder, key: str, value: object) -> Builder:
    return _wait_or_pass_on(self, "option", key, value)


def _options(self: Builder, **options: object) -> Builder:
    return _wait_or_pass_on(self, "options", **options)


def _ending(name: str) -> Callable[..., Any]:
    """A method of other formats, such as ``csv``, which takes the options that have waited."""

    def end(self: Builder, *args: object, **rest: object) -> Any:  # noqa: ANN401
        _use_other_format(self)
        return original(self, name)(self, *args, **rest)

    return end


def _noted(name: str, attribute: str) -> Callable[..., Builder]:
    """A method of one argument, which is kept as an attribute."""

    def note(self: Builder, *args: object, **rest: object) -> Builder:
        setattr(self, attribute, next(iter((*args, *rest.values())), None))
        return original(self, name)(self, *args, **rest)

    return note


def _laid_out(name: str) -> Callable[..., Builder]:
    def lay_out(self: Builder, *args: object, **rest: object) -> Builder:
        self.__dict__.setdefault("_kafka_layout", set()).add(name)
        return original(self, name)(self, *args, **rest)

    return lay_out


def _trigger(self: Builder, **given: Any) -> Builder:  # noqa: ANN401
    self._kafka_trigger = given
    original(self, "trigger")(self, **given)
    if given.get("processingTime") is not None and until_idle.running() is not None:
        original(self, "trigger")(self, processingTime="0 seconds")  # a test need not wait
    return self


def _partition_by(self: Builder, *cols: object) -> Builder:
    """Spark's sink ignores it, and a function of micro-batches refuses it."""
    if self.__dict__.get("_is_kafka") is False:
        return original(self, "partitionBy")(self, *cols)
    self.__dict__.setdefault("_waiting", []).append(("partitionBy", cols, {}))
    return self


def _loads(*, is_stream: bool) -> Callable[..., Any]:
    def load(
        self: Builder,
        path: object = None,
        format: str | None = None,
        schema: object = None,
        **options: object,
    ) -> Any:  # noqa: ANN401
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        if _is_kafka(self):
            return _load(self, is_stream=is_stream)
        _use_other_format(self)
        return original(self, "load")(self, path)

    return load


def _load(self: Builder, *, is_stream: bool) -> Any:  # noqa: ANN401
    check_schema(self.__dict__.get("_kafka_schema"), is_stream=is_stream)
    given = _given(self)
    check_read(given, is_stream=is_stream)
    directory = directory_of(given[SERVERS])
    passed = options_of_read(given, is_stream=is_stream)
    if is_stream:
        passed[initial_offsets.OPTION] = place = initial_offsets.new_link()
        passed["topicIdsInCheckpoint"] = "false"  # a job may compare the offsets with kafka's
        query_progress.describe_source(place, given, directory)
    _pass_on(self, passed)
    if is_stream and runs_to_the_end.is_needed(passed):
        _session_of(self).dataSource.register(RunToTheEnd)
        original(self, "format")(self, RunToTheEnd.name())
    if is_stream and _is_of_connect(self) and _has_sail():
        accepted = "a job of streams needs Spark: Sail runs no stream of a Python data source"
        raise OptionError("readStream", "kafka", accepted)
    with _in_session(self):
        return original(self, "load")(self, directory)


@contextmanager
def _in_session(builder: Builder) -> Iterator[None]:
    """Give the JVM's thread the session of a builder, where Spark looks for Python's sources."""
    # The threads that a job begins have none, also those in a function of ``foreachBatch``.
    if _is_of_connect(builder):
        if _has_sail():  # which looks for no data source by itself
            session = builder.__dict__.get("_client") or builder._spark
            session.dataSource.register(SegmentLogDataSource)
        yield
        return
    sessions = getattr(builder._spark._jvm, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(builder._spark._jsparkSession)
    try:
        yield
    finally:  # the job may ask whether its thread has one
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _save(
    self: Builder,
    path: str | None = None,
    format: str | None = None,
    mode: str | None = None,
    partitionBy: object = None,  # noqa: N803
    **options: object,
) -> None:
    if format is not None:
        self.format(format)
    if mode is not None:
        self.mode(mode)
    self.options(**options)
    if not _is_kafka(self):
        _use_other_format(self)
        original(self, "save")(self, path, partitionBy=partitionBy)
        return
    given = _given(self)
    check_layout(self.__dict__.get("_kafka_layout", ()))
    check_mode(self.__dict__.get("_kafka_mode"))
    check_write(given)
    directory = directory_of(given[SERVERS])
    rows = self._df
    if _is_of_connect(self):  # its writer has a plan alone
        from pyspark.sql.connect.dataframe import DataFrame

        rows = DataFrame(rows, self._spark)
    with _in_session(self):
        _append(rows, directory, given)


def _append(rows: Any, directory: str, given: Mapping[str, str]) -> None:  # noqa: ANN401
    columns = check_columns(rows.schema, given)
    sent = sent_rows(_found_by_name(rows, columns), given, columns)
    if type(sent).__module__.startswith("pyspark.sql.connect") and _has_sail():
        sent = sent.coalesce(1)  # Sail 0.7 counts the tasks of some plans wrongly, and then fails
    writer = sent.write.format("segmentlog").options(**options_of_write(given))
    writer.mode("append").save(directory)  # Spark refuses its default for Python sources


def _found_by_name(rows: Any, columns: Sequence[str]) -> Any:  # noqa: ANN401
    """Rows in which SQL finds these columns, as the sink does: it takes the first of its name."""
    # SQL finds none of two with one name, or with names that differ in their case.
    names = rows.columns
    if len({each.lower() for each in names}) == len(names):
        return rows
    kept = {names.index(each): each for each in columns}
    return rows.toDF(*(kept.get(i, f"_{i}") for i in range(len(names))))


def _is_of_connect(builder: Builder) -> bool:
    return type(builder).__module__.startswith("pyspark.sql.connect")


def _has_sail() -> bool:
    """Whether sessions of Connect are Sail's: its server is here, or there is only a client."""
    return "pysail" in sys.modules or not importlib.util.find_spec("pyspark.sql.classic")


def _start(
    self: Builder,
    path: str | None = None,
    format: str | None = None,
    outputMode: str | None = None,  # noqa: N803
    partitionBy: object = None,  # noqa: N803
    queryName: str | None = None,  # noqa: N803
    **options: object,
) -> Any:  # noqa: ANN401
    if format is not None:
        self.format(format)
    if outputMode is not None:
        self.outputMode(outputMode)
    self.options(**options)
    if queryName is not None:
        self.queryName(queryName)
    return _follow(self, partial(_begin, self, path, partitionBy))


def _begin(self: Builder, path: str | None, partition_by: object) -> Any:  # noqa: ANN401
    if not _is_kafka(self):
        _use_other_format(self)
        return original(self, "start")(self, path, partitionBy=partition_by)
    given = _given(self)
    check_write(given)
    check_async_progress(given, self.__dict__.get("_kafka_trigger", {}))
    # Spark lets a Python sink know its query, and so ours writes no micro-batch twice; Spark's own
    # sink does.  And it refuses the mode update for Python sinks.  A function has neither limit.
    appending = _Appending(directory_of(given[SERVERS]), given)
    original(self, "foreachBatch")(self, appending)
    self._kafka_written = appending.written
    return original(self, "start")(self)  # Spark's sink ignores partitions of files


def _follow(writer: Builder, begin: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Begin a query whose sources keep their start in its checkpoint."""
    links = initial_offsets.links_of(writer)
    checkpoint = _given(writer).get("checkpointlocation")
    if _is_kafka(writer) or any(links):
        check_trigger(writer.__dict__.get("_kafka_trigger", {}))
        if checkpoint is None:
            checkpoint = _checkpoint_of_session(writer)
        known = (each for begun in BEGUN for each in begun.servers.values())
        initial_offsets.warn_of_older_checkpoint(checkpoint, known)
        if checkpoint is not None:  # not among the given ones: the next start has another name
            _pass_on(writer, {"checkpointLocation": checkpoint})
        elif _is_kafka(writer):
            check_write(_given(writer))
            raise AnalysisException(NO_CHECKPOINT)
    with query_progress.starting() as note:
        initial_offsets.lead_to_checkpoint(links, checkpoint)
        runs_to_the_end.tell_trigger(links, writer.__dict__.get("_kafka_trigger", {}))
        with _in_session(writer):
            query = begin()
        note(query, links, writer.__dict__.get("_kafka_written") if _is_kafka(writer) else None)
    initial_offsets.remember(links, query)
    run = until_idle.running()
    if run is not None:
        run.note(query)
    return query


def _checkpoint_of_session(writer: Builder) -> str | None:
    """The checkpoint that a setting of the session gives a query, by Spark's own rule."""
    location = _session_of(writer).conf.get("spark.sql.streaming.checkpointLocation", None)
    name = writer.__dict__.get("_kafka_query_name") or uuid.uuid4()
    return f"{location.rstrip('/')}/{name}" if location else None


class _Appending:
    """Appends the rows of each micro-batch; that of a repeated one come again."""

    def __init__(self, directory: str, given: Mapping[str, str]) -> None:
        self._directory, self._given = directory, dict(given)
        self.written: dict[int, int] = {}

    def __call__(self, rows: Any, number: int) -> None:  # noqa: ANN401
        from pyspark.sql import Observation
        from pyspark.sql.functions import expr

        if hasattr(rows, "_jdf"):
            counted = Observation()
            _append(rows.observe(counted, expr("count(1) AS n")), self._directory, self._given)
            self.written[number] = counted.get["n"]
        else:  # with Spark Connect, another process calls this, and the count would not return
            _append(rows, self._directory, self._given)


def _foreach_batch(self: Builder, func: Callable[[Any, int], None]) -> Builder:
    """With Spark Connect, another process calls the function: servers travel with it."""
    _use_other_format(self)  # Spark's sink is what the last of these calls names
    given = _Elsewhere(func) if _is_of_connect(self) else func
    return original(self, "foreachBatch")(self, given)


class _Elsewhere:
    """A function of micro-batches that sees in any process the servers that are known here."""

    def __init__(self, func: Callable[[Any, int], None]) -> None:
        self._func = func
        self._servers = {name: path for begun in BEGUN for name, path in begun.servers.items()}

    def __call__(self, rows: Any, number: int) -> None:  # noqa: ANN401
        from pyspark_segmentlog.testing.as_kafka import as_kafka  # which replaces these methods

        with as_kafka(self._servers):
            self._func(rows, number)


def _to_table(
    self: Builder,
    tableName: str,  # noqa: N803
    format: str | None = None,
    outputMode: str | None = None,  # noqa: N803
    partitionBy: object = None,  # noqa: N803
    queryName: str | None = None,  # noqa: N803
    **options: object,
) -> Any:  # noqa: ANN401
    if names_kafka(format) or (format is None and _is_kafka(self)):
        raise OptionError("toTable", "kafka", _FOR_WRITES)
    _use_other_format(self)
    self.options(**options)
    if queryName is not None:
        self.queryName(queryName)
    to_table = original(self, "toTable")
    return _follow(self, partial(to_table, self, tableName, format, outputMode, partitionBy))


def _save_as_table(
    self: Builder, name: str, format: str | None = None, *args: object, **rest: object
) -> None:
    if names_kafka(format) or (format is None and _is_kafka(self)):
        raise OptionError("saveAsTable", "kafka", _FOR_WRITES)
    _use_other_format(self)
    original(self, "saveAsTable")(self, name, format, *args, **rest)


def _using(self: Builder, provider: str) -> Builder:
    if names_kafka(provider):
        raise OptionError("using", "kafka", _FOR_WRITES)
    return original(self, "using")(self, provider)


_CHAIN: Methods = {"format": _format, "option": _option, "options": _options}
_READER: Methods = {**_CHAIN, "schema": _noted("schema", "_kafka_schema")}
_BATCH_WRITER: Methods = {
    **_CHAIN,
    "mode": _noted("mode", "_kafka_mode"),
    "save": _save,
    "saveAsTable": _save_as_table,
    "bucketBy": _laid_out("bucketBy"),
    "sortBy": _laid_out("sortBy"),
}
_STREAM_WRITER: Methods = {
    **_CHAIN,
    "outputMode": _noted("outputMode", "_kafka_mode"),
    "queryName": _noted("queryName", "_kafka_query_name"),
    "start": _start,
    "toTable": _to_table,
    "foreachBatch": _foreach_batch,
    "partitionBy": _partition_by,
    "trigger": _trigger,
}

#: Methods of readers and writers that need no options yet; any other public one may end the chain.
_WITHOUT_OPTIONS = {
    *_CHAIN,
    "schema",
    "name",
    "mode",
    "outputMode",
    "partitionBy",
    "bucketBy",
    "sortBy",
    "clusterBy",
    "queryName",
    "trigger",
    "foreachBatch",
}

#: The methods to replace, by module and class.
METHODS: dict[str, dict[str, Methods]] = {
    "readwriter": {
        "DataFrameReader": {**_READER, "load": _loads(is_stream=False)},
        "DataFrameWriter": _BATCH_WRITER,
        "DataFrameWriterV2": {"using": _using},
    },
    "streaming.readwriter": {
        "DataStreamReader": {**_READER, "load": _loads(is_stream=True)},
        "DataStreamWriter": _STREAM_WRITER,
    },
}


def endings(owner: type) -> Methods:
    """The methods of a reader or a writer that may end its chain."""
    names = {name for name in vars(owner) if not name.startswith("_")} - _WITHOUT_OPTIONS
    return {name: _ending(name) for name in names}
