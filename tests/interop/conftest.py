"""A real broker, shared by the tests of this directory."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_here import ArtifactsError, Broker, JavaClient, kafka_jars, shapes

pytestmark = pytest.mark.interop


def _have(version: str) -> None:
    """Skip where the broker cannot be had; in CI that is a failure."""
    try:
        kafka_jars(version)
    except ArtifactsError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"Kafka {version} cannot be had: {error}")


@pytest.fixture(scope="session", params=["4.3.1", "3.9.2"])
def version(request: pytest.FixtureRequest) -> str:
    """Versions of Kafka that directories are read from."""
    _have(request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def new_version() -> str:
    """The newest version that is tested."""
    _have("4.3.1")
    return "4.3.1"


@pytest.fixture(scope="session")
def old_version() -> str:
    """The newest version that still writes messages of magic 0 and 1."""
    _have("2.8.2")
    return "2.8.2"


@pytest.fixture(scope="session")
def filled(version: str, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """A broker of each version, stopped cleanly, and what it holds of every shape."""
    broker = Broker(tmp_path_factory.mktemp("kafka"), version)
    with broker, JavaClient(broker) as client:
        made = shapes.make(broker, client)
    return broker, made


@pytest.fixture
def broker(new_version: str, tmp_path: Path) -> Iterator[Broker]:
    """A running broker for one test alone."""
    running = Broker(tmp_path / "kafka", new_version).start()
    yield running
    running.stop()


@pytest.fixture
def client(broker: Broker) -> Iterator[JavaClient]:
    """Kafka's Java clients, connected to `broker`."""
    with JavaClient(broker) as connected:
        yield connected
