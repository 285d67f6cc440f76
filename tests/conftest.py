"""Spark sessions on the Python that runs the tests, shared processes, and fast tests."""

import ast
import functools
import gc
import importlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from checklist import has_fast_tests, may_be_fast
from hypothesis import settings
from pyspark.sql import SparkSession
from quick_java import spark_variables
from ready_worker import ready_python

from pyspark_segmentlog import sail_session
from segmentlog.tools import progress

# A finding of Hypothesis belongs to the change that made it: CI draws the same examples each
# time, other runs draw new ones.
settings.register_profile("dev", deadline=None)  # a machine may have other work
settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")

if find_spec("pyspark.jars"):  # Spark itself, and not only its client
    from spark_classes import begin_to_make, reading_flags

    os.environ.update(spark_variables(*reading_flags()))

TESTS = Path(__file__).parent
EXAMPLE_DATA = TESTS.parent / "examples" / "data"


#: Fixtures that are slow to make: the tests of one folder that need one run in one process.
SHARED = ("spark", "any_spark", "cluster", "connect", "explorer", "world")

#: Folders with so few of these tests that they run in the process of another folder: a session of
#: Spark takes longer to start than they take.
BESIDE = {"golden": "connector"}


def pytest_configure(config: pytest.Config) -> None:
    """Compile kernels of a checkout again if their sources have changed."""
    if not find_spec("pyspark.sql.streaming.datasource"):  # Spark before 4.2 closes no socket
        for each in (
            "ignore:unclosed <socket:ResourceWarning",
            r"ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
        ):
            config.addinivalue_line("filterwarnings", each)
    if hasattr(config, "workerinput"):
        return
    storage = Path(importlib.import_module("segmentlog").__file__ or "").parents[1]
    if not (storage / "kernel_compiler").is_dir() or "SEGMENTLOG_PYTHON_KERNELS" in os.environ:
        return
    # In another process: one that has imported the old kernels keeps them.
    fits = "import segmentlog.native; raise SystemExit(segmentlog.native.VARIANT is None)"
    asked = [sys.executable, "-c", fits]
    if subprocess.run(asked, cwd=storage, capture_output=True, check=False).returncode:
        command = [sys.executable, "-m", "kernel_compiler.build"]
        subprocess.run(command, cwd=storage, check=True, timeout=1500)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite in three processes, and a part of it in this one, for a debugger.

    Tests wait for as long as they compute, so two cores have work for three processes.  Files go
    out in their order: the long ones first.
    """
    is_whole = config.args_source is config.ArgsSource.TESTPATHS
    if (
        not is_whole
        or hasattr(config, "workerinput")
        or not config.pluginmanager.has_plugin("xdist")
    ):
        return
    if config.option.numprocesses is None and not config.option.usepdb:
        config.option.numprocesses = 3
    if config.option.dist == "no" and config.option.numprocesses:
        config.option.dist = "loadfile"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the collector of garbage look at no test: it took a third of the time to find them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file without fast tests for ``-m fast``, or it would need the packages of all."""
    if config.option.markexpr != "fast" or not collection_path.name.startswith("test_"):
        return None
    return None if has_fast_tests(collection_path) else True


def pytest_addoption(parser: pytest.Parser) -> None:
    """With ``--engine sail``, the tests that take a session run on Sail, and no others."""
    parser.addoption("--engine", choices=["spark", "sail"], default="spark")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the fast and some thorough tests; on other systems, skip tests that need Linux.

    Tests with a broker are thorough, so that a plain `pytest` downloads and starts none.
    """
    if config.option.engine == "sail":
        names = {"spark", "any_spark"}
        others = [
            each
            for each in items
            if not names & {*getattr(each, "fixturenames", ())}
            and not each.get_closest_marker("only_sail")
        ]
        config.hook.pytest_deselected(items=others)
        items[:] = [each for each in items if each not in others]
    for item in items:
        if item.get_closest_marker("only_sail") and config.option.engine == "spark":
            item.add_marker(pytest.mark.skip(reason="it is about Sail"))
        only = item.get_closest_marker("needs_spark")
        if only and config.option.engine == "sail":
            item.add_marker(pytest.mark.skip(reason=only.args[0]))
        if item.get_closest_marker("interop"):
            item.add_marker("thorough")
        needs_more = any(
            item.get_closest_marker(each) for each in ("slow", "spark", "interop", "thorough")
        )
        is_check = item.get_closest_marker("addition") and has_fast_tests(item.path)
        if (is_check or may_be_fast(item.path)) and not needs_more:
            item.add_marker("fast")
        if item.get_closest_marker("linux") and sys.platform != "linux":
            item.add_marker(pytest.mark.skip(reason="needs Linux"))


#: Tests that the expression of ``-m`` has left out, by the marker that did it.
_left_out: Counter[str] = Counter()


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what is left out, by the marker for it."""
    for item in items:
        markers = {each.name for each in item.iter_markers()}
        _left_out[next((each for each in ("slow", "thorough") if each in markers), "")] += 1


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which markers have left out tests, and how to run these."""
    for marker, number in sorted(_left_out.items()):
        if marker and config.option.markexpr == config.getini("addopts")[-1]:
            line = f"{number} deselected as {marker}: run them with -m {marker}"
            terminalreporter.write_line(line)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Run the tests of a file, and those that share a slow fixture, in one process."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # the long ones come first

    class BySharing(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path, _, test = nodeid.partition("::")
            name, _, case = test.partition("[")
            shared = _shared_by(path).get(name, "")
            if shared == "any_spark":
                shared = "cluster" if "cluster" in case.rstrip("]").split("-") else "spark"
            if not shared or config.option.engine == "sail":  # whose sessions are in this process
                return path
            if shared == "world":  # of a job that runs twice
                shared = "connect" if case.startswith("connect") else "spark"
            folder = path.split("/")[1]
            return f"{shared} of {BESIDE.get(folder, folder)}"

    return BySharing(config, log)


@functools.cache
def _shared_by(path: str) -> dict[str, str]:
    """The shared fixture that each test or fixture of a file needs, also through another one."""
    needs: dict[str, set[str]] = {}
    usual: set[str] = set()  # fixtures that all tests of the file get
    for each in ast.parse((TESTS.parent / path).read_text()).body:
        if isinstance(each, ast.FunctionDef):
            needs[each.name] = {argument.arg for argument in each.args.args}
            if "autouse=True" in "".join(map(ast.unparse, each.decorator_list)):
                usual.add(each.name)

    def shared(name: str) -> str:
        if name in SHARED and name not in needs:
            return name
        wanted = needs.get(name, set()) | (usual - {name} if name.startswith("test_") else set())
        return next(filter(None, map(shared, sorted(wanted - {name}))), "")

    return {name: shared(name) for name in needs}


def pytest_unconfigure() -> None:
    """Let Python free modules that are frozen, or DuckDB reports them as leaks."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def no_lines_of_progress() -> None:
    """Commands in this process compare their whole output, however slow the machine is."""
    progress._QUIET_SECONDS = float("inf")


_sync = os.fsync


@pytest.fixture(scope="session", autouse=True)
def no_waits_for_the_disk() -> None:
    """No test cuts the power of this machine, and a fourth of the time went to syncs."""
    os.fsync = os.fstat  # type: ignore[assignment]  # it raises for a closed descriptor, too


@pytest.fixture
def real_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the disk: the system lets go of no page that is not written."""
    monkeypatch.setattr(os, "fsync", _sync)


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> str:
    """The engine of the session: ``spark`` or ``sail``."""
    return str(request.config.option.engine)


@pytest.fixture(scope="session")
def example_data() -> str:
    """The log directory that a real broker left in ``examples``."""
    return str(EXAMPLE_DATA)


@pytest.fixture(scope="session")
def example_cluster() -> str:
    """The log directory of a real broker in ``examples`` that has its own topics."""
    return str(EXAMPLE_DATA.parent / "cluster")


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A local session, with Spark's own Kafka source, and with Avro, if they are available.

    With ``SPARK_OF_TESTS=plain`` without them, and without an archive of classes: few tests do not
    earn what these cost.
    """
    if request.config.option.engine == "sail":
        session = sail_session()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        yield session
        return
    os.environ["PYSPARK_PYTHON"] = ready_python()
    builder = (
        SparkSession.builder.master("local[2,4]")
        .appName("segmentlog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
    )
    is_plain = os.environ.get("SPARK_OF_TESTS") == "plain"
    jars = [] if is_plain else _jars_of_spark()
    if jars:
        builder = builder.config("spark.jars", ",".join(jars))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    maker = None if is_plain else begin_to_make()
    yield session
    session.stop()
    if maker is not None:
        maker.wait()


def _jars_of_spark() -> list[str]:
    from kafka_here import ArtifactsError, spark_avro_jars, spark_kafka_jars

    jars = []
    for fetch in (spark_kafka_jars, spark_avro_jars):
        with suppress(ArtifactsError):
            jars += fetch()
    return jars


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print although pytest keeps what tests print."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def print_now(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(text)

    return print_now
