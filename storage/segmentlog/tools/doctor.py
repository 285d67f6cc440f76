"""Check this machine, or a place in an object store.

Of the machine: versions, Java, compiled kernels, and whether Spark finds the data source.

Each check uses the same way as the real work: Java where pyspark starts it, data sources in the
interpreter that Spark starts to look for them.

Of a place: whether logs can be read, written and swept there.  Rights are tried and not asked for:
only the store knows what its policies add up to.  All objects that are made for it have one
beginning, and are removed.
"""

import contextlib
import errno
import importlib
import importlib.metadata
import json
import os
import platform
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer

from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.marker import NEWEST_LAYOUT
from segmentlog.bucket.objects import (
    CLOCK,
    MARKER,
    PART_BYTES,
    REFUSALS,
    Objects,
    is_clock_key,
)
from segmentlog.bucket.places import log_above
from segmentlog.bucket.sequence import Sequence
from segmentlog.bucket.upkeep import sweep_objects
from segmentlog.errors import LogDirectoryError, SegmentLogError, StorageError
from segmentlog.store.other_systems import refuse_other_systems
from segmentlog.store.paths import BucketLocation, bucket_at, local_path
from segmentlog.store.readable import exists
from segmentlog.store.remote.location import without_options
from segmentlog.store.remote.requests import side_by_side
from segmentlog.tools import arguments
from segmentlog.tools.arguments import PROBLEM, command
from segmentlog.tools.output import counted, escape, write_json

_DISTRIBUTION = "pyspark-segmentlog"
_LEAST_PYTHON, _LEAST_JAVA, _LEAST_SPARK = (3, 11), 17, (4, 0)
#: What the engine needs, and the lowest version of it.
_LIBRARIES = {
    "numpy": (2, 0),
    "pyarrow": (19,),
    "crc32c": (2, 7),
    "lz4": (4, 3),
    "zstandard": (0, 23),
    "cramjam": (2, 10),
    "xxhash": (3, 4),
}
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


class CheckState(StrEnum):
    """The result of a check."""

    OK = "ok"
    ADVICE = "advice"  #: all works, and could be faster
    PROBLEM = "problem"
    SKIPPED = "skipped"  #: something optional is not installed


class Check(NamedTuple):
    """One check; a problem comes with its remedy."""

    state: CheckState
    name: str
    found: str
    remedy: str = ""
    details: Mapping[str, Any] = MappingProxyType({})  #: of JSON, for programs


@command(
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
        bool, typer.Option(help="Also start a Spark session, and list its slow settings.")
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
        found = store_checks(url)
    for check in found:
        if as_json:
            row = check._asdict()
            write_json(row | row.pop("details"))
        else:
            remedy = f"; {check.remedy}" if check.remedy else ""
            told = escape(f"{check.found}{remedy}")
            sys.stdout.write(f"{check.state:<8} {check.name}: {told}\n")
        is_good &= check.state != CheckState.PROBLEM
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
    if spark.state == CheckState.OK:
        yield _java()
        yield _format()
        if of_session:
            yield from _settings()
    else:
        yield Check(CheckState.SKIPPED, "java", "only Spark needs it")
        yield Check(CheckState.SKIPPED, 'format("segmentlog")', "only Spark needs it")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _segmentlog() -> Check:
    place = Path(__file__).parents[1]
    version = _version(_DISTRIBUTION) or "not installed, but on the path"
    return Check(CheckState.OK, "segmentlog", f"{version}, in {place}")


def _python() -> Check:
    found = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info[:2] < _LEAST_PYTHON:
        return Check(CheckState.PROBLEM, "python", found, "use Python 3.11 or newer")
    return Check(CheckState.OK, "python", found)


def _library(name: str) -> Check:
    lowest = ".".join(map(str, _LIBRARIES[name]))
    wanted = f"pip install {shlex.quote(f'{name}>={lowest}')}"
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a broken library may raise any exception
        return Check(CheckState.PROBLEM, name, _described(error), wanted)
    version = _version(name)
    if version is not None and _numbers(version) < _LIBRARIES[name]:
        remedy = f"{wanted}, or a newer runtime where the platform brings it"
        return Check(CheckState.PROBLEM, name, f"{version}, older than {lowest}", remedy)
    return Check(CheckState.OK, name, version or "version unknown")


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


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
            return Check(CheckState.PROBLEM, name, str(error))
    if native.VARIANT is None:
        there = ", ".join(native.platforms()) or "no platform"
        found = f"they run in Python: this is {native.PLATFORM}, and they are compiled for {there}"
        if os.environ.get("SEGMENTLOG_PYTHON_KERNELS") == "1":
            found = "they run in Python, as SEGMENTLOG_PYTHON_KERNELS=1 asks for"
        return Check(CheckState.PROBLEM, name, found, native.REMEDY)
    found = f"compiled for {native.VARIANT}, on {native.PLATFORM}"
    return Check(CheckState.OK, name, found, details={"variant": native.VARIANT})


def _pyspark() -> Check:
    name = "pyspark"
    try:
        version = str(importlib.import_module("pyspark").__version__)
    except ImportError:
        remedy = "to read with Spark: pip install 'pyspark-segmentlog[spark]'"
        return Check(CheckState.SKIPPED, name, "not installed", remedy)
    if _numbers(version) < _LEAST_SPARK:
        return Check(CheckState.PROBLEM, name, version, "install pyspark 4.0 or newer")
    return Check(CheckState.OK, name, version)


def _java() -> Check:
    """Java, in the places where pyspark looks for it: ``JAVA_HOME``, or else the path."""
    name, remedy = "java", "install Java 17 or newer, or set JAVA_HOME"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "not found"
        return Check(CheckState.PROBLEM, name, where, remedy)
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(CheckState.PROBLEM, name, f"{java}: {_described(error)}", remedy)
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', done.stderr + done.stdout)
    if match is None:
        return Check(CheckState.PROBLEM, name, f"{java} -version prints no version", remedy)
    found = f"{match[1]}, {java}"
    if int(match[2]) < _LEAST_JAVA:
        return Check(CheckState.PROBLEM, name, found, remedy)
    return Check(CheckState.OK, name, found)


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
        return Check(CheckState.PROBLEM, name, f"{python}: {_described(error)}", export)
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
            capture_output=True,
            text=True,
            timeout=5 * _SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check(
            CheckState.PROBLEM, name, _described(error), "start a session in Python by hand"
        )
        return
    try:
        found = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        yield Check(CheckState.PROBLEM, name, f"does not start: {last}", "see Spark's output")
        return
    yield Check(CheckState.OK, name, f"Spark {found['version']}, {found['master']}")
    for slow in found["slow"]:
        value = slow["found"] or "lacks options"
        remedy = f"start sessions with {slow['better']}: {slow['why']}"
        yield Check(CheckState.ADVICE, slow["setting"], value, remedy, {"better": slow["better"]})


def _judge(name: str, python: str, export: str, found: dict[str, Any]) -> Check:
    broken, formats = found["broken"], found["formats"]
    if "pyspark" in broken:
        where = f"Spark starts {python}, which has no pyspark ({broken['pyspark']})"
        return Check(CheckState.PROBLEM, name, where, export)
    if broken:
        why = ", ".join(f"{module} ({error})" for module, error in broken.items())
        what = f"Spark finds no Python data source at all, because it cannot import {why}"
        return Check(CheckState.PROBLEM, name, what, "repair or uninstall that")
    if "segmentlog" not in formats:
        where = f"pyspark_segmentlog is not on the path of {python}, which Spark starts"
        return Check(CheckState.PROBLEM, name, where, f"install it there, or {export}")
    if tuple(found["python"]) != sys.version_info[:2]:
        version = ".".join(map(str, found["python"]))
        return Check(
            CheckState.PROBLEM, name, f"Spark starts {python}, which is {version}", export
        )
    return Check(CheckState.OK, name, formats["segmentlog"])


_DAY_MS = 24 * 3600 * 1000
_N_CLIENTS = 8  #: that create one object at once
_N_RACES = 4
_MOST_SKEW_MS = 60_000

_READ = "give this user the rights to read objects and to list the place: without the latter, S3 "
_READ += "answers 403 and not 404 for an object that is missing"
_DELETE = "only sweep, and doctor's own objects, need it: s3:DeleteObject, storage.objects.delete"
_WRITE = "writers need the right to create objects: s3:PutObject, storage.objects.create"
_CONDITION = "two writers would lose commits of each other: use another store, or another version "
_CONDITION += "of it; a proxy in front of it may drop the header If-None-Match"


def store_checks(url: str) -> Iterator[Check]:
    """All checks of a place, each once the iterator reaches it.

    Raises `LogDirectoryError` if the URL names no store with conditional writes.
    """
    location = bucket_at(url) if "://" in url else None
    if location is None or url[:5].lower() == "file:":
        if "://" not in url:
            refuse_other_systems(local_path(url))
        reason = (
            "is no URL of a store with conditional writes (s3://, gs://, abfss://, az://): "
            "segmentlog verify and preflight look at directories"
        )
        raise LogDirectoryError(without_options(url), reason)
    objects = objects_at(location)
    yield Check(CheckState.OK, "client", f"obstore {version('obstore')}, {location}")
    reading = _tried("reading", _READ, lambda: _log(objects, location))
    yield reading
    if reading.state != CheckState.OK:
        return
    is_there = "commits" in reading.details
    if is_there:
        yield _tried("layout", _READ, lambda: _layout(objects, location))
    listing = _tried("listing", _READ, lambda: _list(objects, is_there=is_there))
    yield listing
    if listing.state != CheckState.OK and not is_there:
        return  # no place to write to
    removing = _tried("removing", _DELETE, lambda: _remove(objects), CheckState.ADVICE)
    yield removing
    if CheckState.OK == removing.state == listing.state:
        yield from _with_objects(objects, location)
    elif is_there:
        yield _tried("condition", _WRITE, lambda: _try_marker(objects))
    else:
        why = "not tried: nothing is written where it could not be removed"
        yield Check(CheckState.SKIPPED, "condition", why, "check again once there is a log")
    if is_there and listing.state == CheckState.OK:
        yield _tried("leftovers", _READ, lambda: _leftovers(location))


def _tried(
    name: str, remedy: str, work: Callable[[], Check], state: CheckState = CheckState.PROBLEM
) -> Check:
    """The check that `work` makes, or the one that says why it failed."""
    try:
        return work()
    except OSError as error:
        # Not all of its text, which has the advice about rights in directories.
        if error.errno != errno.EACCES:
            state, remedy = CheckState.PROBLEM, "check the URL, the endpoint and the network"
        return Check(state, name, error.strerror or str(error), remedy)
    except SegmentLogError as error:
        return Check(state, name, str(error), remedy)


def _log(objects: Objects, location: BucketLocation) -> Check:
    sequence = Sequence(objects, location)
    try:
        if not sequence.is_made():
            if above := log_above(location):
                found = f"no log here, and none can be made: the place lies in the log {above}"
                return Check(CheckState.PROBLEM, "reading", found, "give a place beside that log")
            return Check(CheckState.OK, "reading", "no log yet: the first write makes it")
    except LogDirectoryError as error:
        found, _, remedy = error.reason.partition("; ")
        return Check(CheckState.PROBLEM, "reading", found, remedy)
    state = sequence.refresh()
    found = counted(topics=len(state.topics), partitions=len(state.logs), commits=state.number)
    return Check(CheckState.OK, "reading", found, details={"commits": state.number})


def _layout(objects: Objects, location: BucketLocation) -> Check:
    marker = Sequence(objects, location).marker()
    if marker is None or marker.layout >= NEWEST_LAYOUT:
        return Check(CheckState.OK, "layout", f"{NEWEST_LAYOUT}, the newest")
    found = f"{marker.layout}: the log cannot be told from one that is made in its place"
    return Check(
        CheckState.ADVICE, "layout", found, "segmentlog upgrade moves it, beside its users"
    )


def _list(objects: Objects, *, is_there: bool) -> Check:
    left = list[str]()
    for each in objects.list(""):
        if is_there:
            break
        if not is_clock_key(each.key):  # the first one is enough: there may be millions
            found = f"holds other objects, such as {each.key}, and no log that can be appended to"
            remedy = "give an empty place for a log; a copy of a log directory can only be read"
            return Check(CheckState.PROBLEM, "listing", found, remedy)
        left.append(each.key)
    if left:
        found = f"allowed; {counted(objects=len(left))} of a doctor that was killed ({left[0]})"
        return Check(CheckState.OK, "listing", found, "segmentlog sweep removes them from a log")
    return Check(CheckState.OK, "listing", "allowed")


def _remove(objects: Objects) -> Check:
    """Whether objects may be removed; a store says so of one that is not there, too."""
    objects.delete([f"{CLOCK}doctor-{secrets.token_hex(8)}"])
    return Check(CheckState.OK, "removing", "allowed")


def _try_marker(objects: Objects) -> Check:
    """Whether the marker is replaced by the same bytes: a try that leaves nothing behind."""
    if objects.create(MARKER, objects.get(MARKER) or b""):
        return Check(CheckState.PROBLEM, "condition", "the store replaced an object", _CONDITION)
    return Check(CheckState.OK, "condition", "an object that is there is not replaced")


def _with_objects(objects: Objects, location: BucketLocation) -> Iterator[Check]:
    """The checks that make objects, which are removed at the end."""
    begin = f"{CLOCK}doctor-{secrets.token_hex(8)}-"
    keys = [f"{begin}{number}" for number in range(_N_RACES + 1)]
    # In a local directory, those that were made, too.
    made = [f"{location.prefix}{each}" for each in ("/segmentlog/clock", "/segmentlog", "")]
    made = [each for each in made if location.scheme == "file" and not exists(each)]
    try:
        condition = _tried("condition", _WRITE, lambda: _condition(objects, keys[:_N_RACES]))
        yield condition
        if condition.state == CheckState.OK:
            remedy = "writers also need s3:AbortMultipartUpload"
            yield _tried("uploading in parts", remedy, lambda: _parts(objects, keys[-1]))
            yield _tried("clock", _READ, lambda: _clock(objects, keys[0]))
    finally:
        by_hand = f"remove {begin}… by hand"
        removing = _tried("removing", by_hand, lambda: _removed(objects, keys, by_hand))
        for directory in made:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
    if removing.state != CheckState.OK:
        yield removing


def _removed(objects: Objects, keys: list[str], by_hand: str) -> Check:
    objects.delete(keys)
    if left := [each.key for each in objects.list(CLOCK) if each.key in keys]:
        return Check(CheckState.PROBLEM, "removing", f"still there: {', '.join(left)}", by_hand)
    return Check(CheckState.OK, "removing", "allowed")


def _condition(objects: Objects, keys: list[str]) -> Check:
    """Whether exactly one of several clients creates an object, and no later one."""
    for key in keys:
        clients = [b"%d" % each for each in range(_N_CLIENTS)]
        done = side_by_side(partial(_created, objects, key), clients)
        winners = [each for each, is_winner in zip(clients, done, strict=True) if is_winner]
        # Nobody may have won: a store may refuse all writes that meet, or lose the answer.
        if len(winners) > 1:
            found = f"{len(winners)} of {_N_CLIENTS} clients have created the same object"
            return Check(CheckState.PROBLEM, "condition", found, _CONDITION)
        is_kept = not winners or objects.get(key) == winners[0]
        if not is_kept or (winners and _created(objects, key, b"later")):
            found = "an object that was there was replaced"
            return Check(CheckState.PROBLEM, "condition", found, _CONDITION)
    found = f"at the most one winner of {_N_CLIENTS} clients, {len(keys)} times"
    return Check(CheckState.OK, "condition", found)


def _created(objects: Objects, key: str, data: bytes) -> bool:
    """Whether a client knows that it has created an object; its answer may be lost."""
    try:
        return objects.create(key, data) is not None
    except StorageError as error:
        if error.errno in REFUSALS:
            raise
        return False


def _parts(objects: Objects, key: str) -> Check:
    """Whether a large object can be uploaded in parts, and a range of it read."""
    name, last = "uploading in parts", secrets.token_bytes(16)
    objects.put(key, [bytes(PART_BYTES), last])
    if objects.read(key, PART_BYTES, len(last)) != last:
        return Check(CheckState.PROBLEM, name, "a range has other bytes", "use another store")
    return Check(CheckState.OK, name, f"{PART_BYTES + len(last):,} bytes, and a range of them")


def _clock(objects: Objects, key: str) -> Check:
    """How far this machine's clock is from that of the store."""
    objects.delete([key])
    began_ms = time.time() * 1000
    objects.put(key, [b"now"])
    ended_ms = time.time() * 1000
    times = [each.modified_ms for each in objects.list(CLOCK) if each.key == key]
    if not times:
        return Check(
            CheckState.PROBLEM, "clock", "a new object is not listed", "use another store"
        )
    # Many stores know whole seconds only.
    behind_ms, ahead_ms = times[0] - ended_ms, began_ms - 1000 - times[0]
    skew_ms = int(max(behind_ms, ahead_ms, 0))
    details = {"skewMs": -skew_ms if behind_ms > 0 else skew_ms}
    if skew_ms > _MOST_SKEW_MS:
        word = "behind" if behind_ms > 0 else "ahead of"
        found = f"this machine is {skew_ms / 1000:,.0f} s {word} the store"
        remedy = "set the clock: commits have its times, and jobs are forgotten by them"
        return Check(CheckState.ADVICE, "clock", found, remedy, details)
    return Check(CheckState.OK, "clock", "that of the store, to a second or two", details=details)


def _leftovers(location: BucketLocation) -> Check:
    swept = sweep_objects(location, 7 * _DAY_MS, _DAY_MS, dry_run=True)
    found, details = (
        counted(objects=len(swept.keys), bytes=swept.n_bytes),
        {"bytes": swept.n_bytes},
    )
    if swept.keys:
        return Check(
            CheckState.ADVICE, "leftovers", found, "segmentlog sweep removes them", details
        )
    return Check(CheckState.OK, "leftovers", found, details=details)
