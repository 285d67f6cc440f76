"""``format("kafka")`` on log directories: jobs run unmodified, without a broker and without jars.

Spark takes no Python data source of the name ``kafka``.  So methods of pyspark's readers and
writers are replaced: with ``format("kafka")`` they use our source, and the directory that stands
for the bootstrap servers.  Nothing in the JVM is changed.
"""

import importlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike, fspath
from typing import Any, Self, TypeAlias, TypeVar

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.utils import is_remote

from pyspark_segmentlog import other_clients
from pyspark_segmentlog.testing import initial_offsets, kafka_clients, query_progress, until_idle
from pyspark_segmentlog.testing.builders import (
    METHODS,
    PROVIDER,
    endings,
    names_kafka,
)
from pyspark_segmentlog.testing.replaced import (
    ORIGINALS,
    Builder,
    Methods,
    original,
    put_methods_back,
    replace,
)
from pyspark_segmentlog.testing.servers import BEGUN, TOLD, found_directory, tell_servers
from segmentlog.arguments import instance_of
from segmentlog.errors import OptionError

_T = TypeVar("_T")

#: A log directory, or an object with the attribute ``path``, such as the fixture ``kafka_log``.
Directory: TypeAlias = str | PathLike[str] | Any

#: Strings and comments of SQL, and a statement that makes a table or a view of kafka.  What
#: follows ``AS`` is the query of the table or the view.
_NOT_WORDS = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_USING_KAFKA = re.compile(
    r"^\s*(create|replace)\b((?!\bas\b).)*\busing\s+"
    rf"(kafka|{re.escape(PROVIDER)})(\s|\(|;|$)",
    re.IGNORECASE | re.DOTALL,
)
_FOR_SQL = (
    "as_kafka cannot cover tables of format kafka: make a view in Python, "
    "spark.read.format('kafka').options(…).load().createOrReplaceTempView('orders')"
)


class AsKafka:
    """Directories that stand for Kafka servers, from the call of `as_kafka` until `stop`.

    `servers`: log directories by the value of ``kafka.bootstrap.servers``; a list of servers
    stands for each of them.
    """

    def __init__(self, servers: Mapping[str, Directory]) -> None:
        accepted = "give log directories by servers: as_kafka({'broker:9092': kafka_log})"
        instance_of("servers", servers, Mapping, accepted)
        self.servers: dict[str, str] = {}
        for names, given in servers.items():
            found = getattr(given, "path", given)
            instance_of("servers", names, str, accepted)
            instance_of("servers", found, (str, PathLike), accepted)
            self.servers.update((each.strip(), fspath(found)) for each in names.split(","))
        BEGUN.append(self)
        tell_servers()
        _replace_methods()
        other_clients.guard(lambda servers: found_directory(servers) is not None)

    def stop(self) -> None:
        """End it: ``format("kafka")`` is Spark's own again.  A second call does nothing."""
        if self in BEGUN:
            BEGUN.remove(self)
        tell_servers()
        if not BEGUN:
            put_methods_back()
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


def _dumps(self: CloudPickleSerializer, obj: Any) -> bytes:  # noqa: ANN401
    """A function for another process is pickled so that clients meet the error there, too."""
    is_command = callable(obj[0] if isinstance(obj, tuple) and obj else obj)
    given = other_clients.PickledCommand(obj, str(TOLD)) if is_command else obj
    found: bytes = original(self, "dumps")(self, given)
    return found


def _sql(self: Builder, sqlQuery: str, *args: object, **rest: object) -> Any:  # noqa: ANN401, N803
    if _USING_KAFKA.search(_NOT_WORDS.sub(" ", sqlQuery).replace("`", "")):
        raise OptionError("USING", "kafka", _FOR_SQL)
    return original(self, "sql")(self, sqlQuery, *args, **rest)


def _create_table(
    self: Builder,
    tableName: str,  # noqa: N803
    path: str | None = None,
    source: str | None = None,
    *args: object,
    **rest: object,
) -> Any:  # noqa: ANN401
    if names_kafka(source):
        raise OptionError("source", "kafka", _FOR_SQL)
    return original(self, "createTable")(self, tableName, path, source, *args, **rest)


def _waits(name: str) -> Callable[..., Any]:
    def await_end(self: Any, timeout: float | None = None) -> Any:  # noqa: ANN401
        wait, run = partial(original(self, name), self), until_idle.running()
        return wait(timeout) if run is None else run.wait(wait, timeout)

    return await_end


def _is_active(self: Any) -> bool:  # noqa: ANN401
    active = bool(original(self, "isActive").fget(self))  # type: ignore[attr-defined]
    run = None if query_progress.is_starting() else until_idle.running()
    return active if run is None else run.look(self, active)


def _stop(self: Builder) -> None:
    run = until_idle.running()
    if run is None or not run.keeps_session:
        original(self, "stop")(self)


def _progress_of_json(document: dict[str, Any]) -> Any:  # noqa: ANN401
    made = _original_of_progress("fromJson")(document)
    return query_progress.described(made, document)


def _progress_of_jobject(jprogress: Any) -> Any:  # noqa: ANN401
    made = _original_of_progress("fromJObject")(jprogress)
    return query_progress.described(made, json.loads(jprogress.json()))


def _original_of_progress(name: str) -> Callable[..., Any]:
    """It may be back already: the threads of listeners do not end with `as_kafka`."""
    found: Callable[..., Any] = getattr(StreamingQueryProgress, name)
    return ORIGINALS.get((StreamingQueryProgress, name), found)


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
        session = original(self, name)(self)
        _replace_methods()  # the first session of Spark Connect loads classes
        return session

    return make


#: The methods to replace, by module and class.  Those of Spark Connect are classes of their own.
_REPLACED: dict[str, dict[str, Methods]] = {
    **METHODS,
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
                others = endings(owner) if "option" in methods else {}
                replace(owner, {**others, **methods})
    from pyspark.sql import SparkSession

    makers = {name: _makes_session(name) for name in ("getOrCreate", "create")}
    replace(SparkSession.Builder, makers)
    replace(CloudPickleSerializer, {"dumps": _dumps})
    of_json, of_jobject = _progress_of_json, _progress_of_jobject
    replace(StreamingQueryProgress, {"fromJson": of_json, "fromJObject": of_jobject})
