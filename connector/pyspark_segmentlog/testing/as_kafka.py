"""``format("kafka")`` on log directories: jobs run unmodified, without a broker and without jars.

Spark takes no Python data source of the name ``kafka``.  So methods of pyspark's readers and
writers are replaced: with ``format("kafka")`` they use our source, and the directory that stands
for the bootstrap servers.  Nothing in the JVM is changed.
"""

import importlib.util
import json
import re
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

from pyspark.errors import AnalysisException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.utils import is_remote, to_str

from pyspark_segmentlog import other_clients
from pyspark_segmentlog.source import SegmentLogDataSource
from pyspark_segmentlog.testing import initial_offsets, kafka_clients, query_progress, until_idle
from pyspark_segmentlog.testing.kafka_clients import sent_rows
from pyspark_segmentlog.testing.kafka_options import (
    NO_CHECKPOINT,
    SERVERS,
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
from segmentlog.errors import OptionError

_T = TypeVar("_T")

#: A log directory, or an object with the attribute ``path``, such as the fixture ``kafka_log``.
Directory: TypeAlias = str | PathLike[str] | Any

#: A reader or a writer of pyspark, a session or a catalog.
Builder: TypeAlias = Any

_BEGUN: list["AsKafka"] = []  # the last one has precedence
_ORIGINALS: dict[tuple[type, str], Callable[..., Any]] = {}

#: The names of the servers that are known, for functions of jobs in other processes.
_TOLD = Path(tempfile.gettempdir(), f"segmentlog-servers-{uuid.uuid4().hex}")

#: Strings and comments of SQL, and a statement that makes a table or a view of kafka.  What
#: follows ``AS`` is the query of the table or the view.
_NOT_WORDS = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_USING_KAFKA = re.compile(
    r"^\s*(create|replace)\b((?!\bas\b).)*\busing\s+"
    rf"(kafka|{re.escape(_PROVIDER)})(\s|\(|;|$)",
    re.IGNORECASE | re.DOTALL,
)
_FOR_SQL = (
    "as_kafka cannot cover tables of format kafka: make a view in Python, "
    "spark.read.format('kafka').options(…).load().createOrReplaceTempView('orders')"
)
_FOR_WRITES = (
    "as_kafka cannot cover tables of format kafka: write with "
    "df.write.format('kafka').options(…).save(), or writeStream.format('kafka')….start()"
)


class AsKafka:
    """Directories that stand for Kafka servers, from the call of `as_kafka` until `stop`.

    `servers`: log directories by the value of ``kafka.bootstrap.servers``.
    """

    def __init__(self, servers: Mapping[str, Directory]) -> None:
        self.servers = {
            name: fspath(found.path if hasattr(found, "path") else found)
            for name, found in servers.items()
        }
        _BEGUN.append(self)
        _tell_servers()
        _replace_methods()
        other_clients.guard(lambda servers: _found_directory(servers) is not None)

    def stop(self) -> None:
        """End it: ``format("kafka")`` is Spark's own again.  A second call does nothing."""
        if self in _BEGUN:
            _BEGUN.remove(self)
        _tell_servers()
        if not _BEGUN:
            while _ORIGINALS:
                (owner, name), method = _ORIGINALS.popitem()
                setattr(owner, name, method)
            other_clients.release()
            initial_offsets.remove_links()
            query_progress.forget()
            kafka_clients.NAMED.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def as_kafka(servers: Mapping[str, Directory]) -> AsKafka:
    """Read and write log directories where a job says ``format("kafka")``.

    ::

        with as_kafka({"broker:9092": "/tmp/logs"}):
            run_job(spark)

    It takes effect at once, so it may also be called without ``with``; `AsKafka.stop` ends it.
    An inner call has precedence over an outer one.  It holds for this process, and covers sessions
    that were made before: classic ones, and those of Spark Connect.  Options of Kafka's clients
    are modelled, refused, or named in a warning as having no effect.

    `servers`: log directories by the value of ``kafka.bootstrap.servers``.  In a list of servers,
    one known name is enough.  Raises `segmentlog.OptionError` where the job names unknown servers,
    or uses ``kafka`` in a way that is not covered: ``USING kafka``, ``toTable``,
    ``writeTo(…).using("kafka")``, `createTable`, a trigger without micro-batches, a client of
    Kafka for these servers; `pyspark.errors.IllegalArgumentException` where the job has an option
    that Spark's source refuses.
    """
    return AsKafka(servers)


def _found_directory(servers: str) -> str | None:
    names = other_clients.names_of(servers)
    named = ((begun, name) for begun in reversed(_BEGUN) for name in names)
    return next((begun.servers[name] for begun, name in named if name in begun.servers), None)


def _tell_servers() -> None:
    """Tell the functions of jobs in other processes which servers are known now."""
    names = {name for begun in _BEGUN for name in begun.servers}
    _TOLD.unlink(missing_ok=True)
    if names:
        new = Path(f"{_TOLD}.new")
        new.write_text("\n".join(names), encoding="utf-8")
        new.replace(_TOLD)


def _dumps(self: CloudPickleSerializer, obj: Any) -> bytes:  # noqa: ANN401
    """A function for another process is pickled so that clients meet the error there, too."""
    is_command = callable(obj[0] if isinstance(obj, tuple) and obj else obj)
    given = other_clients.Command(obj, str(_TOLD)) if is_command else obj
    found: bytes = _original(self, "dumps")(self, given)
    return found


def _directory_of(servers: str) -> str:
    """The directory that stands for the servers of a job."""
    found = _found_directory(servers)
    if found is not None:
        return found
    known = sorted({name for begun in _BEGUN for name in begun.servers})
    accepted = f"as_kafka has {', '.join(known)}" if known else "as_kafka has no servers"
    raise OptionError(SERVERS, servers, accepted)


def _original(builder: Builder, name: str) -> Callable[..., Any]:
    """The method of pyspark that was replaced."""
    for each in type(builder).__mro__:
        if (each, name) in _ORIGINALS:
            return _ORIGINALS[each, name]
    raise AttributeError(name)


def _names_kafka(source: object) -> bool:
    """Whether Spark finds its kafka source so: by the short name in any case, or by the class."""
    return isinstance(source, str) and (source.lower() == "kafka" or source == _PROVIDER)


def _is_kafka(builder: Builder) -> bool:
    """Whether the format is kafka: as the job says, or else by the setting of the session."""
    if "_is_kafka" not in builder.__dict__:
        default = _session_of(builder).conf.get("spark.sql.sources.default", None)
        if _names_kafka(default):
            builder.format("kafka")
    return bool(builder.__dict__.get("_is_kafka"))


def _session_of(builder: Builder) -> Any:  # noqa: ANN401
    found = builder.__dict__
    return found.get("_session") or found.get("_client") or found["_spark"]


def _given(builder: Builder) -> dict[str, str]:
    """The options of a builder, by lower-cased names."""
    found: dict[str, str] = builder.__dict__.setdefault("_kafka_options", {})
    return found


def _pass_on(builder: Builder, options: Mapping[str, str]) -> None:
    for name, value in options.items():
        _original(builder, "option")(builder, name, value)


def _use_other_format(builder: Builder) -> None:
    """Pass on the calls that have waited, and let later calls through."""
    builder._is_kafka = False
    for name, args, options in builder.__dict__.pop("_waiting", ()):
        _original(builder, name)(builder, *args, **options)


def _wait_or_pass_on(builder: Builder, name: str, *args: object, **options: object) -> Builder:
    """Keep a call that gives options until the format is known, and if it is kafka, for good.

    Some options of kafka are translated or left out, and no builder forgets an option.
    """
    given = {str(args[0]): args[1]} if args else options
    known = {key.lower(): to_str(value) for key, value in given.items() if value is not None}
    _given(builder).update(known)  # type: ignore[arg-type]
    if builder.__dict__.get("_is_kafka") is False:
        return _original(builder, name)(builder, *args, **options)
    builder.__dict__.setdefault("_waiting", []).append((name, args, options))
    return builder


def _format(self: Builder, source: str) -> Builder:
    self._is_kafka = _names_kafka(source)
    if not self._is_kafka:
        _use_other_format(self)
    return _original(self, "format")(self, "segmentlog" if self._is_kafka else source)


def _option(self: Builder, key: str, value: object) -> Builder:
    return _wait_or_pass_on(self, "option", key, value)


def _options(self: Builder, **options: object) -> Builder:
    return _wait_or_pass_on(self, "options", **options)


def _ending(name: str) -> Callable[..., Any]:
    """A method of other formats, such as ``csv``, which takes the options that have waited."""

    def end(self: Builder, *args: object, **rest: object) -> Any:  # noqa: ANN401
        _use_other_format(self)
        return _original(self, name)(self, *args, **rest)

    return end


def _noted(name: str, attribute: str) -> Callable[..., Builder]:
    """A method of one argument, which is kept as an attribute."""

    def note(self: Builder, *args: object, **rest: object) -> Builder:
        setattr(self, attribute, next(iter((*args, *rest.values())), None))
        return _original(self, name)(self, *args, **rest)

    return note


def _laid_out(name: str) -> Callable[..., Builder]:
    def lay_out(self: Builder, *args: object, **rest: object) -> Builder:
        self.__dict__.setdefault("_kafka_layout", set()).add(name)
        return _original(self, name)(self, *args, **rest)

    return lay_out


def _trigger(self: Builder, **given: Any) -> Builder:  # noqa: ANN401
    self._kafka_trigger = given
    _original(self, "trigger")(self, **given)
    if given.get("processingTime") is not None and until_idle.running() is not None:
        _original(self, "trigger")(self, processingTime="0 seconds")  # a test need not wait
    return self


def _partition_by(self: Builder, *cols: object) -> Builder:
    """Spark's sink ignores it, and a function of micro-batches refuses it."""
    if self.__dict__.get("_is_kafka") is False:
        return _original(self, "partitionBy")(self, *cols)
    self.__dict__.setdefault("_waiting", []).append(("partitionBy", cols, {}))
    return self


def _loads(*, is_stream: bool) -> Callable[..., Any]:
    def load(self: Builder, path: object = None, format: str | None = None,
             schema: object = None, **options: object) -> Any:  # noqa: ANN401 # fmt: skip
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        if _is_kafka(self):
            return _load(self, is_stream=is_stream)
        _use_other_format(self)
        return _original(self, "load")(self, path)

    return load


def _load(self: Builder, *, is_stream: bool) -> Any:  # noqa: ANN401
    check_schema(self.__dict__.get("_kafka_schema"), is_stream=is_stream)
    given = _given(self)
    check_read(given, is_stream=is_stream)
    directory = _directory_of(given[SERVERS])
    passed = options_of_read(given, is_stream=is_stream)
    if is_stream:
        passed[initial_offsets.OPTION] = place = initial_offsets.new_link()
        passed["topicIdsInCheckpoint"] = "false"  # a job may compare the offsets with kafka's
        query_progress.describe_source(place, given)
    _pass_on(self, passed)
    if is_stream and _is_of_connect(self) and _has_sail():
        accepted = "a job of streams needs Spark: Sail runs no stream of a Python data source"
        raise OptionError("readStream", "kafka", accepted)
    with _in_session(self):
        return _original(self, "load")(self, directory)


@contextmanager
def _in_session(builder: Builder) -> Iterator[None]:
    """Give the JVM's thread the session of a builder, where Spark looks for Python's sources.

    The threads that a job begins have none, also those in a function of ``foreachBatch``.
    """
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
        _original(self, "save")(self, path, partitionBy=partitionBy)
        return
    given = _given(self)
    check_layout(self.__dict__.get("_kafka_layout", ()))
    check_mode(self.__dict__.get("_kafka_mode"))
    check_write(given)
    directory = _directory_of(given[SERVERS])
    rows = self._df
    if _is_of_connect(self):  # its writer has a plan alone
        from pyspark.sql.connect.dataframe import DataFrame

        rows = DataFrame(rows, self._spark)
    with _in_session(self):
        _append(rows, directory, given)


def _append(rows: Any, directory: str, given: Mapping[str, str]) -> None:  # noqa: ANN401
    """Append rows to a directory, if Spark's sink takes them."""
    sent = sent_rows(rows, given, check_columns(rows.schema, given))
    if type(sent).__module__.startswith("pyspark.sql.connect") and _has_sail():
        sent = sent.coalesce(1)  # Sail 0.7 counts the tasks of some plans wrongly, and then fails
    writer = sent.write.format("segmentlog").options(**options_of_write(given))
    writer.mode("append").save(directory)  # Spark refuses its default for Python sources


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
        return _original(self, "start")(self, path, partitionBy=partition_by)
    given = _given(self)
    check_write(given)
    # Spark lets a Python sink know its query, and so ours writes no micro-batch twice; Spark's own
    # sink does.  And it refuses the mode update for Python sinks.  A function has neither limit.
    appending = _Appending(_directory_of(given[SERVERS]), given)
    _original(self, "foreachBatch")(self, appending)
    self._kafka_written = appending.written
    return _original(self, "start")(self)  # Spark's sink ignores partitions of files


def _follow(writer: Builder, begin: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Begin a query whose sources keep their start in its checkpoint."""
    links = initial_offsets.links_of(writer)
    checkpoint = _given(writer).get("checkpointlocation")
    if _is_kafka(writer) or any(links):
        check_trigger(writer.__dict__.get("_kafka_trigger", {}))
        if checkpoint is None:
            checkpoint = _checkpoint_of_session(writer)
        if checkpoint is not None:  # not among the given ones: the next start has another name
            _pass_on(writer, {"checkpointLocation": checkpoint})
        elif _is_kafka(writer):
            check_write(_given(writer))
            raise AnalysisException(NO_CHECKPOINT)
    with query_progress.starting() as note:
        initial_offsets.lead_to_checkpoint(links, checkpoint)
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
    return _original(self, "foreachBatch")(self, given)


class _Elsewhere:
    """A function of micro-batches that sees in any process the servers that are known here."""

    def __init__(self, func: Callable[[Any, int], None]) -> None:
        self._func = func
        self._servers = {
            name: path for begun in _BEGUN for name, path in begun.servers.items()
        }  # fmt: skip

    def __call__(self, rows: Any, number: int) -> None:  # noqa: ANN401
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
    if _names_kafka(format) or (format is None and _is_kafka(self)):
        raise OptionError("toTable", "kafka", _FOR_WRITES)
    _use_other_format(self)
    self.options(**options)
    if queryName is not None:
        self.queryName(queryName)
    original = _original(self, "toTable")
    return _follow(self, partial(original, self, tableName, format, outputMode, partitionBy))


def _save_as_table(self: Builder, name: str, format: str | None = None,
                   *args: object, **rest: object) -> None:  # fmt: skip
    if _names_kafka(format) or (format is None and _is_kafka(self)):
        raise OptionError("saveAsTable", "kafka", _FOR_WRITES)
    _use_other_format(self)
    _original(self, "saveAsTable")(self, name, format, *args, **rest)


def _using(self: Builder, provider: str) -> Builder:
    if _names_kafka(provider):
        raise OptionError("using", "kafka", _FOR_WRITES)
    return _original(self, "using")(self, provider)


def _sql(self: Builder, sqlQuery: str, *args: object, **rest: object) -> Any:  # noqa: ANN401, N803
    if _USING_KAFKA.search(_NOT_WORDS.sub(" ", sqlQuery).replace("`", "")):
        raise OptionError("USING", "kafka", _FOR_SQL)
    return _original(self, "sql")(self, sqlQuery, *args, **rest)


def _create_table(self: Builder, tableName: str, path: str | None = None,  # noqa: N803
                  source: str | None = None, *args: object, **rest: object) -> Any:  # noqa: ANN401 # fmt: skip
    if _names_kafka(source):
        raise OptionError("source", "kafka", _FOR_SQL)
    return _original(self, "createTable")(self, tableName, path, source, *args, **rest)


def _waits(name: str) -> Callable[..., Any]:
    def await_end(self: Any, timeout: float | None = None) -> Any:  # noqa: ANN401
        wait, run = partial(_original(self, name), self), until_idle.running()
        return wait(timeout) if run is None else run.wait(wait, timeout)

    return await_end


def _is_active(self: Any) -> bool:  # noqa: ANN401
    active = bool(_original(self, "isActive").fget(self))  # type: ignore[attr-defined]
    run = None if query_progress.is_starting() else until_idle.running()
    return active if run is None else run.look(self, active)


def _stop(self: Builder) -> None:
    run = until_idle.running()
    if run is None or not run.keeps_session:
        _original(self, "stop")(self)


def _progress_of_json(document: dict[str, Any]) -> Any:  # noqa: ANN401
    original = _original_of_progress("fromJson")
    return query_progress.described(original(document), document)


def _progress_of_jobject(jprogress: Any) -> Any:  # noqa: ANN401
    original = _original_of_progress("fromJObject")
    return query_progress.described(original(jprogress), json.loads(jprogress.json()))


def _original_of_progress(name: str) -> Callable[..., Any]:
    """It may be back already: the threads of listeners do not end with `as_kafka`."""
    found: Callable[..., Any] = getattr(StreamingQueryProgress, name)
    return _ORIGINALS.get((StreamingQueryProgress, name), found)


def run_until_idle(job: Callable[[], _T], *, timeout: float = 60.0) -> _T | None:
    """Run a job whose queries never end until they have read all input, and stop them.

    ::

        run_until_idle(main)

    Where the job waits for its queries (``awaitTermination``, ``awaitAnyTermination``, a loop over
    ``isActive``) or returns, they process all input, also what one of them writes for another
    one, and are stopped.  The job goes on as if someone had stopped it.  A job that waits for ever
    in another way (a loop of ``time.sleep``, ``signal.pause``, ``threading.Event().wait``) gets a
    `KeyboardInterrupt`, as by Ctrl-C.  It runs in the calling thread.  A trigger with a processing
    time does not wait, and no sleep of a job with queries does.  A ``spark.stop()`` of the job
    leaves a session that was there before.

    `timeout`: seconds for the input, each time that the job waits.  Returns what the job returns;
    None if it ends with ``sys.exit(0)``.  Raises `TimeoutError` if input remains; `Exception` what
    the job raises, or a query that the job does not wait for.
    """
    from pyspark.sql import SparkSession

    keeps_session = SparkSession._instantiatedSession is not None or is_remote()
    if keeps_session and (session := SparkSession.getActiveSession()) is not None:
        session.streams.resetTerminated()  # failed queries of earlier tests
    with AsKafka({}):
        return until_idle.Run(timeout, keeps_session=keeps_session)(job)


def _makes_session(name: str) -> Callable[[Builder], Any]:
    def make(self: Builder) -> Any:  # noqa: ANN401
        session = _original(self, name)(self)
        _replace_methods()  # the first session of Spark Connect loads classes
        return session

    return make


#: Methods of a class, and its properties.
Methods: TypeAlias = Mapping[str, Any]

_CHAIN: Methods = {"format": _format, "option": _option, "options": _options}
_READER: Methods = {**_CHAIN, "schema": _noted("schema", "_kafka_schema")}
_BATCH_WRITER: Methods = {
    **_CHAIN, "mode": _noted("mode", "_kafka_mode"), "save": _save, "saveAsTable": _save_as_table,
    "bucketBy": _laid_out("bucketBy"), "sortBy": _laid_out("sortBy"),
}  # fmt: skip
_STREAM_WRITER: Methods = {
    **_CHAIN, "outputMode": _noted("outputMode", "_kafka_mode"),
    "queryName": _noted("queryName", "_kafka_query_name"), "start": _start, "toTable": _to_table,
    "foreachBatch": _foreach_batch, "partitionBy": _partition_by, "trigger": _trigger,
}  # fmt: skip

#: Methods of readers and writers that need no options yet; any other public one may end the chain.
_WITHOUT_OPTIONS = {
    *_CHAIN, "schema", "name", "mode", "outputMode", "partitionBy", "bucketBy", "sortBy",
    "clusterBy", "queryName", "trigger", "foreachBatch",
}  # fmt: skip

#: The methods to replace, by module and class.  Those of Spark Connect are classes of their own.
_REPLACED: dict[str, dict[str, Methods]] = {
    "readwriter": {
        "DataFrameReader": {**_READER, "load": _loads(is_stream=False)},
        "DataFrameWriter": _BATCH_WRITER,
        "DataFrameWriterV2": {"using": _using},
    },
    "streaming.readwriter": {
        "DataStreamReader": {**_READER, "load": _loads(is_stream=True)},
        "DataStreamWriter": _STREAM_WRITER,
    },
    "streaming.query": {
        "StreamingQuery": {
            "awaitTermination": _waits("awaitTermination"),
            "isActive": property(_is_active),
        },
        "StreamingQueryManager": {"awaitAnyTermination": _waits("awaitAnyTermination")},
    },
    "session": {"SparkSession": {"sql": _sql, "stop": _stop}},
    "catalog": {"Catalog": {"createTable": _create_table}},
}


def _replace_methods() -> None:
    """Replace the methods of all classes that are loaded; those of Connect load only if used."""
    for package in ("pyspark.sql", "pyspark.sql.connect"):
        is_used = package == "pyspark.sql" or f"{package}.session" in sys.modules or is_remote()
        for name, classes in _REPLACED.items() if is_used else ():
            module = importlib.import_module(f"{package}.{name}")
            for class_name, methods in classes.items():
                owner = getattr(module, class_name)
                endings = set(vars(owner)) - _WITHOUT_OPTIONS if "option" in methods else set()
                others = {each: _ending(each) for each in endings if each[0] != "_"}
                _replace(owner, {**others, **methods})
    from pyspark.sql import SparkSession

    makers = {name: _makes_session(name) for name in ("getOrCreate", "create")}
    _replace(SparkSession.Builder, makers)
    _replace(CloudPickleSerializer, {"dumps": _dumps})
    of_json, of_jobject = _progress_of_json, _progress_of_jobject
    _replace(StreamingQueryProgress, {"fromJson": of_json, "fromJObject": of_jobject})


def _replace(owner: type, methods: Methods) -> None:
    for name, method in methods.items():
        if (owner, name) not in _ORIGINALS:
            _ORIGINALS[owner, name] = getattr(owner, name)
            setattr(owner, name, method)
