"""Spark sessions, on the Python that runs the tests; which tests share a process, and are fast."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

# A finding of Hypothesis belongs to the change that made it: CI draws the same examples each
# time, other runs draw new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI") == "true":
    settings.load_profile("ci")

TESTS = Path(__file__).parent
EXAMPLE_DATA = TESTS.parent / "examples" / "data"


#: Fixtures that take long to make, and that one process makes for all tests that ask for them.
SHARED = ("filled", "legacy", "cluster")

#: Rooms without Spark and brokers, and what takes long there: it starts processes or compiles.
FAST = ("storage", "properties", "architecture/test_house", "architecture/test_door",
        "architecture/test_documents")  # fmt: skip
NOT_FAST = (
    "storage/test_kernel_cache", "storage/kernels/test_hostile", "storage/tools/test_cli",
    "storage/tools/test_warmup", "storage/producer/test_shared_values",
    "storage/producer/test_large", "storage/segments/test_resync", "storage/test_damage",
    "storage/cleanup/test_delete_topic", "storage/tools/test_progress",
    "storage/tools/test_verify", "storage/producer/test_overwrite",
    "storage/producer/test_stager",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file, and those that share what takes long, in one process."""
    for item in items:
        name = str(item.path.relative_to(TESTS))
        fixtures = getattr(item, "fixturenames", ())
        shared = next((each for each in SHARED if each in fixtures), name)
        item.add_marker(pytest.mark.xdist_group(shared))
        needs_more = any(item.get_closest_marker(each) for each in ("slow", "spark", "interop"))
        if name.startswith(FAST) and not name.startswith(NOT_FAST) and not needs_more:
            item.add_marker("fast")
        if item.get_closest_marker("linux") and sys.platform != "linux":
            item.add_marker(pytest.mark.skip(reason="needs Linux"))


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Kernels that are compiled before the first test: none meets the line that says so."""
    from segmentlog.kernel_cache import store_of
    from segmentlog.tools.warmup import compile_kernels

    if not store_of("segmentlog.kernels").is_warmed():
        list(compile_kernels())


@pytest.fixture(scope="session")
def example_data() -> str:
    """The log directory that a real broker left in ``examples``."""
    return str(EXAMPLE_DATA)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session; with Spark's own Kafka source beside ours where it can be had."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2,4]")
        .appName("segmentlog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
    )
    jars = _kafka_source()
    if jars:
        builder = builder.config("spark.jars", ",".join(jars))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def _kafka_source() -> list[str]:
    from kafka_here import ArtifactsError, spark_kafka_jars

    try:
        return spark_kafka_jars()
    except ArtifactsError:
        return []
