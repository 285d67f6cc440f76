"""Check this machine, or a place in an object store.

Of the machine: versions, Java, compiled kernels, and whether Spark finds the data source.

Each check uses the same way as the real work: Java where pyspark starts it, data sources in the
interpreter that Spark starts to look for them.
"""

import importlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer

from segmentlog.tools import arguments
from segmentlog.tools.arguments import OF_THE_MACHINE, PROBLEM, command
from segmentlog.tools.output import write_json
from segmentlog.tools.text import escape

_DISTRIBUTION = "pyspark-segmentlog"
_LEAST_PYTHON, _LEAST_JAVA, _LEAST_SPARK = (3, 11), 17, (4, 2)
_LIBRARIES = ("numpy", "pyarrow", "crc32c", "lz4", "zstandard", "cramjam")
_SECONDS = 60

#: Spark's own search for data sources (``pyspark.sql.worker.lookup_data_sources``), except that it
#: continues after a module that cannot be imported, to name all such modules.
_PROBE = """
import importlib, json, pkgutil, sys
answer, sys.stdout = sys.stdout, sys.stderr
found = {"python": list(sys.version_info[:2]), "broken": {}, "formats": {}}
try:
    from pyspark.sql.datasource import DataSource
except BaseException as error:
    found["broken"]["pyspark"] = f"{type(error).__name__}: {error}"
else:
    for name in [info.name for info in pkgutil.iter_modules()]:
        if name.startswith("pyspark_"):
            try:
                module = importlib.import_module(name)
                source = getattr(module, "DefaultSource", None)
                if source is not None and issubclass(source, DataSource):
                    found["formats"][source.name()] = str(module.__file__)
            except BaseException as error:
                found["broken"][name] = f"{type(error).__name__}: {error}"
answer.write("\\n" + json.dumps(found))
"""


#: The session that jobs of this machine get, and the settings that the connector would change.
_SESSION = """
import json, sys
answer, sys.stdout = sys.stdout, sys.stderr
import pyspark_segmentlog
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
slow = [each._asdict() for each in pyspark_segmentlog.slow_settings(spark)]
found = {"master": spark.conf.get("spark.master", ""), "version": spark.version, "slow": slow}
spark.stop()
answer.write("\\n" + json.dumps(found))
"""


class State(StrEnum):
    """The result of a check."""

    OK = "ok"
    ADVICE = "advice"  #: all works, and could be faster
    PROBLEM = "problem"
    SKIPPED = "skipped"  #: something optional is not installed


class Check(NamedTuple):
    """One check; a problem comes with its remedy."""

    state: State
    name: str
    found: str
    remedy: str = ""
    details: Mapping[str, Any] = MappingProxyType({})  #: of JSON, for programs


@command(
    OF_THE_MACHINE,
    "segmentlog doctor",
    "PYSPARK_PYTHON=/opt/venv/bin/python segmentlog doctor",
    "segmentlog doctor --spark",
    "SPARK_REMOTE=sc://localhost segmentlog doctor --spark",
    "segmentlog doctor s3://bucket/logs",
)
def doctor(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL", help="A place in an object store, to check it and not the machine."
        ),
    ] = None,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Also start a Spark session, and list its slow settings."),
    ] = False,
    as_json: Annotated[bool, arguments.json_option("One JSON object per line.")] = False,
) -> None:
    """Check this machine: versions, Java, compiled kernels, and whether Spark finds the format.

    Each line is ok, a problem with its remedy, advice that makes Spark faster, or skipped if
    something optional is not installed. The exit status is 1 if there is a problem. With --spark,
    the command starts a session with the settings of spark-defaults.conf. If SPARK_REMOTE is set,
    it starts a session of that server.

    With a URL, the command tries whether logs can be read, written and swept there: each right,
    whether the store keeps the condition of a write when several clients meet, an upload in parts,
    and the clocks. It makes a few objects, of 8 MiB together, and removes them.
    """
    is_good = True
    found = checks(of_session=spark)
    if url is not None:
        from segmentlog.tools.doctor_store import store_checks  # which needs the client

        found = store_checks(url)
    for check in found:
        if as_json:
            row = check._asdict()
            write_json(row | row.pop("details"))
        else:
            remedy = f"; {check.remedy}" if check.remedy else ""
            told = escape(f"{check.found}{remedy}")
            sys.stdout.write(f"{check.state:<8} {check.name}: {told}\n")
        is_good &= check.state != State.PROBLEM
    if not is_good:
        raise typer.Exit(PROBLEM)


def checks(*, of_session: bool = False) -> Iterator[Check]:
    """All checks; each runs when the iterator reaches it.

    With `of_session`, the last ones are about the settings of a new session of Spark.
    """
    yield _segmentlog()
    yield _python()
    for library in _LIBRARIES:
        yield _library(library)
    yield _kernels()
    spark = _pyspark()
    yield spark
    if spark.state == State.OK:
        yield _java()
        yield _format()
        if of_session:
            yield from _settings()
    else:
        yield Check(State.SKIPPED, "java", "only Spark needs it")
        yield Check(State.SKIPPED, 'format("segmentlog")', "only Spark needs it")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _segmentlog() -> Check:
    place = Path(__file__).parents[1]
    version = _version(_DISTRIBUTION) or "not installed, but on the path"
    return Check(State.OK, "segmentlog", f"{version}, in {place}")


def _python() -> Check:
    found = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info[:2] < _LEAST_PYTHON:
        return Check(State.PROBLEM, "python", found, "use Python 3.11 or newer")
    return Check(State.OK, "python", found)


def _library(name: str) -> Check:
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a broken library may raise any exception
        return Check(State.PROBLEM, name, _described(error), f"pip install --upgrade {name}")
    return Check(State.OK, name, _version(name) or "version unknown")


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _kernels() -> Check:
    """Whether the kernels run as native code, and for which kind of processor."""
    name = "kernels"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the check itself says it
        try:
            from segmentlog import native
        except Exception as error:  # noqa: BLE001 - a library may fail to load in any way
            return Check(State.PROBLEM, name, str(error))
    if native.VARIANT is None:
        return Check(State.PROBLEM, name, "they run in Python", native.REMEDY)
    found = f"compiled for {native.VARIANT}"
    return Check(State.OK, name, found, details={"variant": native.VARIANT})


def _pyspark() -> Check:
    name = "pyspark"
    try:
        version = str(importlib.import_module("pyspark").__version__)
    except ImportError:
        remedy = "to read with Spark: pip install 'pyspark-segmentlog[spark]'"
        return Check(State.SKIPPED, name, "not installed", remedy)
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < _LEAST_SPARK:
        return Check(State.PROBLEM, name, version, "install pyspark 4.2 or newer")
    return Check(State.OK, name, version)


def _java() -> Check:
    """Java, in the places where pyspark looks for it: ``JAVA_HOME``, or else the path."""
    name, remedy = "java", "install Java 17 or newer, or set JAVA_HOME"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "not found"
        return Check(State.PROBLEM, name, where, remedy)
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(State.PROBLEM, name, f"{java}: {_described(error)}", remedy)
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', done.stderr + done.stdout)
    if match is None:
        return Check(State.PROBLEM, name, f"{java} -version prints no version", remedy)
    found = f"{match[1]}, {java}"
    if int(match[2]) < _LEAST_JAVA:
        return Check(State.PROBLEM, name, found, remedy)
    return Check(State.OK, name, found)


def _format() -> Check:
    """Whether Spark finds the format, by Spark's own search in the Python that Spark starts."""
    name, python = 'format("segmentlog")', _sparks_python()
    export = f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}"
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        found = json.loads(done.stdout.rpartition("\n")[2])
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return Check(State.PROBLEM, name, f"{python}: {_described(error)}", export)
    return _judge(name, python, export, found)


def _sparks_python() -> str:
    """The Python that Spark starts on the driver."""
    variables = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
    return next((os.environ[each] for each in variables if os.environ.get(each)), "python3")


def _settings() -> Iterator[Check]:
    """The settings of a session that make segmentlog slower, each with a better value."""
    name = "spark session"
    try:
        done = subprocess.run(
            [_sparks_python(), "-c", _SESSION],
            capture_output=True, text=True, timeout=5 * _SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check(State.PROBLEM, name, _described(error), "start a session in Python by hand")
        return
    try:
        found = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        yield Check(State.PROBLEM, name, f"does not start: {last}", "see Spark's output")
        return
    yield Check(State.OK, name, f"Spark {found['version']}, {found['master']}")
    for slow in found["slow"]:
        value = slow["found"] or "lacks options"
        remedy = f"start sessions with {slow['better']}: {slow['why']}"
        yield Check(State.ADVICE, slow["setting"], value, remedy, {"better": slow["better"]})


def _judge(name: str, python: str, export: str, found: dict[str, Any]) -> Check:
    broken, formats = found["broken"], found["formats"]
    if "pyspark" in broken:
        where = f"Spark starts {python}, which has no pyspark ({broken['pyspark']})"
        return Check(State.PROBLEM, name, where, export)
    if broken:
        why = ", ".join(f"{module} ({error})" for module, error in broken.items())
        what = f"Spark finds no Python data source at all, because it cannot import {why}"
        return Check(State.PROBLEM, name, what, "repair or uninstall that")
    if "segmentlog" not in formats:
        where = f"pyspark_segmentlog is not on the path of {python}, which Spark starts"
        return Check(State.PROBLEM, name, where, f"install it there, or {export}")
    if tuple(found["python"]) != sys.version_info[:2]:
        version = ".".join(map(str, found["python"]))
        return Check(State.PROBLEM, name, f"Spark starts {python}, which is {version}", export)
    return Check(State.OK, name, formats["segmentlog"])
