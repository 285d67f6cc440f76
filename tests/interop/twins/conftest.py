"""The two worlds of each job, with a session of Spark."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_here import Broker, JavaClient, spark_kafka_jars
from pyspark.sql import SparkSession
from spark_server import SparkServer

pytest.register_assert_rewrite("twins")  # a failure shows where the two worlds differ
from twins import BROKER, BrokerWorld, PluginWorld, World  # noqa: E402


@pytest.fixture(scope="session")
def running(
    new_version: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Broker, JavaClient]]:
    """A broker for all jobs."""
    with (
        Broker(tmp_path_factory.mktemp("kafka"), new_version, settings=BROKER) as broker,
        JavaClient(broker) as client,
    ):
        yield broker, client


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of Spark Connect, whose server has Spark's own source."""
    jars = {"spark.jars": ",".join(spark_kafka_jars())}
    with SparkServer("local[2]", tmp_path_factory.mktemp("spark"), jars) as server:
        session = server.session()
        yield session
        session.stop()


@pytest.fixture
def both(
    request: pytest.FixtureRequest, tmp_path: Path, running: tuple[Broker, JavaClient]
) -> Callable[[Callable[[World], Any]], tuple[Any, Any]]:
    """What a job shows with the plugin, and with the broker; its topic has the test's name."""
    session = request.getfixturevalue(getattr(request, "param", "spark"))
    name = request.node.name.removeprefix("test_")
    topic = re.sub(r"[^a-z0-9]+", "-", name).strip("-")

    def run(job: Callable[[World], Any]) -> tuple[Any, Any]:
        plugin = PluginWorld(session, topic, tmp_path / "plugin")
        with plugin.begin():
            ours = job(plugin)
        return ours, job(BrokerWorld(session, topic, tmp_path / "broker", *running))

    return run
