"""A real broker, shared by the tests of this directory."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_here import (
    ArtifactsError,
    Broker,
    JavaClient,
    OldBroker,
    kafka_jars,
    legacy_shapes,
    shapes,
)
from kafka_here.gateway import Gateway, gateway

pytestmark = pytest.mark.interop


def _have(version: str) -> None:
    """Skip where the broker cannot be had; in CI that is a failure."""
    try:
        kafka_jars(version)
    except ArtifactsError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"Kafka {version} cannot be had: {error}")


@pytest.fixture(
    scope="session", params=["4.3.1", pytest.param("3.9.2", marks=pytest.mark.thorough)]
)
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


@pytest.fixture(scope="session")
def legacy(old_version: str, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """Log directory of a stopped broker with every legacy shape, and what it said of them.

    That is the records of each topic, the dump of all files, and answers to look-ups by time.
    """
    broker = OldBroker(tmp_path_factory.mktemp("kafka"), old_version)
    with broker, JavaClient(broker) as client:
        for topic, shape in legacy_shapes.LEGACY_SHAPES.items():
            shape.make(broker, client, topic)
        records = client.consume_each(legacy_shapes.LEGACY_SHAPES)
        # Asked for a time in a topic of magic 0, this broker refuses.
        topics = [topic for topic in records if topic.startswith(("magic-1", "mixed", "segments"))]
        times = [(topic, 1_700_000_000_000 + t) for topic in topics for t in (-6000, 0, 150, 9000)]
        answers = [client.offset_for_timestamp(topic, 0, time) for topic, time in times]
    dump = broker.dump(sorted(broker.log_dir.glob("*/*.log")))
    looked_up = [(*asked, answer) for asked, answer in zip(times, answers, strict=True)]
    return broker.log_dir, records, dump, looked_up


@pytest.fixture(scope="session")
def java(new_version: str) -> Gateway:
    """Kafka's classes, without a broker."""
    return gateway(kafka_jars(new_version))


@pytest.fixture(scope="module")
def shared(
    new_version: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Broker, JavaClient]]:
    """A running broker for all tests of a file, which have topics of their own."""
    running = Broker(tmp_path_factory.mktemp("kafka"), new_version)
    with running, JavaClient(running) as client:
        yield running, client


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
