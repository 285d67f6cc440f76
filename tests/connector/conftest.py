"""Spark with executors that are processes, beside the session that all tests share.

Only thorough tests start it.  Each behaviour that is tested with it is tested with the shared
session, too.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from spark_server import SparkServer


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Connect client of ``local-cluster``; no part of the driver is in this process."""
    directory = tmp_path_factory.mktemp("spark")
    with SparkServer("local-cluster[2,1,1024]", directory) as server:
        session = server.session()
        yield session
        session.stop()


@pytest.fixture(params=["local", pytest.param("cluster", marks=pytest.mark.thorough)])
def any_spark(request: pytest.FixtureRequest) -> SparkSession:
    """Tasks are threads of the driver's JVM, or run in separate executors."""
    name = {"local": "spark", "cluster": "cluster"}[request.param]
    return request.getfixturevalue(name)


@pytest.fixture(autouse=True)
def shown_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what an error sets in its process: a JVM that starts later would inherit it."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
