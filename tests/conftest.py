"""One Spark session for all tests, on the Python that runs them."""

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

EXAMPLE_DATA = Path(__file__).parents[1] / "examples" / "data"


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
