"""``format("kafka")`` on log directories: jobs run unmodified, without a broker and without jars.

Spark takes no Python data source of the name ``kafka``.  So methods of pyspark's readers and
writers are replaced: with ``format("kafka")`` they use our source, and the directory that stands
for the bootstrap servers.  Nothing in the JVM is changed.
"""

import importlib
import re
import sys
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self, TypeAlias

from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote, to_str

from pyspark_segmentlog.testing import initial_offsets
from pyspark_segmentlog.testing.kafka_options import (
    SERVERS,
    check_columns,
    check_mode,
    check_read,
    check_schema,
    check_write,
    options_of_read,
    options_of_write,
)
from segmentlog.errors import OptionError

__all__ = ["AsKafka", "as_kafka"]

#: A log directory, or an object with the attribute ``path``, such as the fixture ``kafka_log``.
Directory: TypeAlias = str | PathLike[str] | Any

#: A reader or a writer of pyspark, a session or a catalog.
Builder: TypeAlias = Any

_BEGUN: list["AsKafka"] = []  # the last one has precedence
_ORIGINALS: dict[tuple[type, str], Callable[..., Any]] = {}

#: Strings and comments of SQL, and a statement that makes a table or a view of kafka.  What
#: follows ``AS`` is the query of the table or the view.
_NOT_WORDS = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_USING_KAFKA = re.compile(
    r"^\s*(create|replace)\b((?!\bas\b).)*\busing\s+`?kafka`?(\s|\(|;|$)",
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

    Attributes
    ----------
    servers : log directories by the value of ``kafka.bootstrap.servers``.
    """

    def __init__(self, servers: Mapping[str, Directory]) -> None:
        self.servers = {
            name: fspath(found.path if hasattr(found, "path") else found)
            for name, found in servers.items()
        }
        _BEGUN.append(self)
        _replace_methods()

    def stop(self) -> None:
        """End it: ``format("kafka")`` is Spark's own again.  A second call does nothing."""
        if self in _BEGUN:
            _BEGUN.remove(self)
        if not _BEGUN:
            _put_methods_back()
            initial_offsets.remove_links()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def as_kafka(servers: Mapping[str, Directory]) -> AsKafka:
    """Read and write log directories where a job says ``format("kafka")``.

    ::

        with as_kafka({"broker:9092": "/tmp/logs"}):
            run_job(spark)

    It takes effect at once, so it may also be called without ``with``; `AsKafka.stop` ends it.
    An inner call has precedence over an outer one.  It holds for this process, and covers sessions
    that were made before: classic ones, and those of Spark Connect.  Options of Kafka's clients
    are accepted and have no effect.

    Parameters
    ----------
    servers : log directories by the value of ``kafka.bootstrap.servers``.  In a list of servers,
        one known name is enough.

    Raises
    ------
    segmentlog.OptionError
        Where the job names unknown servers, or uses ``kafka`` in a way that is not covered:
        ``USING kafka``, ``toTable``, ``writeTo(…).using("kafka")``, `createTable`.
    pyspark.errors.IllegalArgumentException
        Where the job has an option that Spark's source refuses.
    """
    return AsKafka(servers)


def _directory_of(servers: str) -> str:
    """The directory that stands for the servers of a job."""
    names = [servers.strip(), *(each.strip() for each in servers.split(","))]
    for begun in reversed(_BEGUN):
        for name in names:
            if name in begun.servers:
                return begun.servers[name]
    known = sorted({name for begun in _BEGUN for name in begun.servers})
    accepted = f"as_kafka has {', '.join(known)}" if known else "as_kafka has no servers"
    raise OptionError(SERVERS, servers, accepted)


def _original(builder: Builder, name: str) -> Callable[..., Any]:
    """The method of pyspark that was replaced."""
    for each in type(builder).__mro__:
        if (each, name) in _ORIGINALS:
            return _ORIGINALS[each, name]
    raise AttributeError(name)


def _is_kafka(builder: Builder) -> bool:
    return bool(builder.__dict__.get("_is_kafka"))


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
    self._is_kafka = source.lower() == "kafka"
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


def _schema(self: Builder, schema: object) -> Builder:
    self._kafka_schema = schema
    return _original(self, "schema")(self, schema)


def _mode(self: Builder, saveMode: str | None) -> Builder:  # noqa: N803 - pyspark's name
    self._kafka_mode = saveMode
    return _original(self, "mode")(self, saveMode)


def _output_mode(self: Builder, outputMode: str) -> Builder:  # noqa: N803
    self._kafka_mode = outputMode
    return _original(self, "outputMode")(self, outputMode)


def _query_name(self: Builder, queryName: str) -> Builder:  # noqa: N803
    self._kafka_query_name = queryName
    return _original(self, "queryName")(self, queryName)


def _load_batch(self: Builder, path: object = None, format: str | None = None,
                schema: object = None, **options: object) -> Any:  # noqa: ANN401 # fmt: skip
    return _load(self, path, format, schema, options, is_stream=False)


def _load_stream(self: Builder, path: object = None, format: str | None = None,
                 schema: object = None, **options: object) -> Any:  # noqa: ANN401 # fmt: skip
    return _load(self, path, format, schema, options, is_stream=True)


def _load(
    self: Builder,
    path: object,
    source: str | None,
    schema: object,
    options: Mapping[str, object],
    *,
    is_stream: bool,
) -> Any:  # noqa: ANN401
    if source is not None:
        self.format(source)
    if schema is not None:
        self.schema(schema)
    self.options(**options)
    if not _is_kafka(self):
        _use_other_format(self)
        return _original(self, "load")(self, path)
    check_schema(self.__dict__.get("_kafka_schema"), is_stream=is_stream)
    given = _given(self)
    check_read(given, is_stream=is_stream)
    directory = _directory_of(given[SERVERS])
    passed = options_of_read(given, is_stream=is_stream)
    if is_stream:
        passed[initial_offsets.OPTION] = initial_offsets.new_link()
        passed["topicIdsInCheckpoint"] = "false"  # a job may compare the offsets with kafka's
    _pass_on(self, passed)
    return _original(self, "load")(self, directory)


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
    check_mode(self.__dict__.get("_kafka_mode"))
    check_write(given)
    directory = _directory_of(given[SERVERS])
    check_columns(_columns_of(self), given)
    _pass_on(self, options_of_write(given))
    _original(self, "mode")(self, "append")  # Spark refuses its default for Python sources
    _original(self, "save")(self, directory)


def _columns_of(writer: Builder) -> StructType:
    """The columns of the rows of a batch."""
    rows = writer._df
    if _is_of_connect(writer):  # its writer has a plan alone
        from pyspark.sql.connect.dataframe import DataFrame

        rows = DataFrame(rows, writer._spark)
    columns: StructType = rows.schema
    return columns


def _is_of_connect(builder: Builder) -> bool:
    return type(builder).__module__.startswith("pyspark.sql.connect")


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
    directory = _directory_of(given[SERVERS])
    passed = options_of_write(given)
    if str(self.__dict__.get("_kafka_mode")).lower() == "update":
        # Spark refuses this mode for Python sinks; a function takes the rows of any mode.
        place = {name: passed.pop(name) for name in [*passed] if name == "checkpointlocation"}
        _pass_on(self, place)
        _original(self, "foreachBatch")(self, _Appending(directory, passed))
        return _original(self, "start")(self, partitionBy=partition_by)
    _pass_on(self, passed)
    return _original(self, "start")(self, directory, partitionBy=partition_by)


def _follow(writer: Builder, begin: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Begin a query whose sources keep their start in its checkpoint."""
    links = initial_offsets.links_of(writer)
    checkpoint = _given(writer).get("checkpointlocation")
    if checkpoint is None and (_is_kafka(writer) or any(links)):
        checkpoint = _checkpoint_of_session(writer)
        if checkpoint is not None:  # not among the given ones: the next start has another name
            _pass_on(writer, {"checkpointLocation": checkpoint})
    initial_offsets.lead_to_checkpoint(links, checkpoint)
    query = begin()
    initial_offsets.remember(links, query)
    return query


def _checkpoint_of_session(writer: Builder) -> str | None:
    """The checkpoint that a setting of the session gives a query, by Spark's own rule."""
    session = writer._session if _is_of_connect(writer) else writer._spark
    location = session.conf.get("spark.sql.streaming.checkpointLocation", None)
    name = writer.__dict__.get("_kafka_query_name") or uuid.uuid4()
    return f"{location.rstrip('/')}/{name}" if location else None


class _Appending:
    """Appends the rows of each micro-batch."""

    def __init__(self, directory: str, options: Mapping[str, str]) -> None:
        self._directory, self._options = directory, dict(options)

    def __call__(self, rows: Any, _: int) -> None:  # noqa: ANN401
        writer = rows.write.format("segmentlog").options(**self._options)
        writer.mode("append").save(self._directory)


def _foreach_batch(self: Builder, func: Callable[[Any, int], None]) -> Builder:
    """With Spark Connect, another process calls the function: servers travel with it."""
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
    if _is_kafka(self) or (format or "").lower() == "kafka":
        raise OptionError("toTable", "kafka", _FOR_WRITES)
    _use_other_format(self)
    self.options(**options)
    if queryName is not None:
        self.queryName(queryName)
    original = _original(self, "toTable")
    return _follow(self, partial(original, self, tableName, format, outputMode, partitionBy))


def _save_as_table(self: Builder, name: str, format: str | None = None,
                   *args: object, **rest: object) -> None:  # fmt: skip
    if _is_kafka(self) or (format or "").lower() == "kafka":
        raise OptionError("saveAsTable", "kafka", _FOR_WRITES)
    _use_other_format(self)
    _original(self, "saveAsTable")(self, name, format, *args, **rest)


def _using(self: Builder, provider: str) -> Builder:
    if provider.lower() == "kafka":
        raise OptionError("using", "kafka", _FOR_WRITES)
    return _original(self, "using")(self, provider)


def _sql(self: Builder, sqlQuery: str, *args: object, **rest: object) -> Any:  # noqa: ANN401, N803
    if _USING_KAFKA.search(_NOT_WORDS.sub(" ", sqlQuery)):
        raise OptionError("USING", "kafka", _FOR_SQL)
    return _original(self, "sql")(self, sqlQuery, *args, **rest)


def _create_table(self: Builder, tableName: str, path: str | None = None,  # noqa: N803
                  source: str | None = None, *args: object, **rest: object) -> Any:  # noqa: ANN401 # fmt: skip
    if (source or "").lower() == "kafka":
        raise OptionError("source", "kafka", _FOR_SQL)
    return _original(self, "createTable")(self, tableName, path, source, *args, **rest)


def _get_or_create(self: Builder) -> Any:  # noqa: ANN401
    """The first session of Spark Connect loads classes that are yet to be changed."""
    session = _original(self, "getOrCreate")(self)
    _replace_methods()
    return session


def _create(self: Builder) -> Any:  # noqa: ANN401
    session = _original(self, "create")(self)
    _replace_methods()
    return session


Methods: TypeAlias = Mapping[str, Callable[..., Any]]

_CHAIN: Methods = {"format": _format, "option": _option, "options": _options}
_BATCH_READER: Methods = {**_CHAIN, "schema": _schema, "load": _load_batch}
_STREAM_READER: Methods = {**_CHAIN, "schema": _schema, "load": _load_stream}
_BATCH_WRITER: Methods = {**_CHAIN, "mode": _mode, "save": _save, "saveAsTable": _save_as_table}
_STREAM_WRITER: Methods = {
    **_CHAIN, "outputMode": _output_mode, "queryName": _query_name, "start": _start,
    "toTable": _to_table, "foreachBatch": _foreach_batch,
}  # fmt: skip

#: Methods of readers and writers that need no options yet; any other method may end the chain.
_WITHOUT_OPTIONS = {
    *_CHAIN, "schema", "name", "mode", "outputMode", "partitionBy", "bucketBy", "sortBy",
    "clusterBy", "queryName", "trigger", "foreach", "foreachBatch",
}  # fmt: skip

#: The methods to replace, by module and class.  Those of Spark Connect are classes of their own.
_REPLACED: dict[str, dict[str, Methods]] = {
    "readwriter": {
        "DataFrameReader": _BATCH_READER,
        "DataFrameWriter": _BATCH_WRITER,
        "DataFrameWriterV2": {"using": _using},
    },
    "streaming.readwriter": {
        "DataStreamReader": _STREAM_READER,
        "DataStreamWriter": _STREAM_WRITER,
    },
    "session": {"SparkSession": {"sql": _sql}},
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
                others = _endings(owner) if "option" in methods else {}
                _replace(owner, {**others, **methods})
    from pyspark.sql import SparkSession

    _replace(SparkSession.Builder, {"getOrCreate": _get_or_create, "create": _create})


def _endings(owner: type) -> Methods:
    """Methods of a reader or a writer that may end its chain."""
    names = {name for name in vars(owner) if not name.startswith("_")} - _WITHOUT_OPTIONS
    return {name: _ending(name) for name in names}


def _replace(owner: type, methods: Methods) -> None:
    for name, method in methods.items():
        if (owner, name) not in _ORIGINALS:
            _ORIGINALS[owner, name] = getattr(owner, name)
            setattr(owner, name, method)


def _put_methods_back() -> None:
    while _ORIGINALS:
        (owner, name), method = _ORIGINALS.popitem()
        setattr(owner, name, method)
