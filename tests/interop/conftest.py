"""Real brokers: directories that a broker has filled, and brokers that run."""

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
from kafka_here.artifacts import kept
from kafka_here.gateway import Gateway, gateway

pytestmark = pytest.mark.interop


def _have(version: str) -> None:
    """Skip the test if the broker cannot be fetched; in CI this is a failure."""
    try:
        kafka_jars(version)
    except ArtifactsError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"Kafka {version} cannot be had: {error}")


_OTHERS = [pytest.param(each, marks=pytest.mark.slow) for each in ("3.9.2", "4.4.0")]


@pytest.fixture(scope="session", params=["4.3.1", *_OTHERS])
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


def _kept_broker(
    broker: Broker, name: str, fill: Callable[[Broker, JavaClient], object]
) -> tuple[Broker, Any]:
    """A stopped broker whose log directory `fill` has filled, and the value that `fill` returned.

    The directory is filled once for each state of ``support/kafka_here`` and of this file, and is
    kept beside the jars of the brokers. Tests get a copy.
    """

    def make(into: Path) -> None:
        with broker, JavaClient(broker) as client:
            found = fill(broker, client)
        shutil.move(broker.log_dir, into / "logs")
        (into / "found").write_bytes(pickle.dumps(found))

    digest = hashlib.sha256()
    for path in [Path(__file__), *sorted(Path(shapes.__file__).parent.glob("*.py"))]:
        digest.update(path.read_bytes())
    place = kept(f"{name}-{broker.version}-{digest.hexdigest()[:16]}", make)
    broker.log_dir.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(place / "logs", broker.log_dir)
    return broker, pickle.loads((place / "found").read_bytes())


@pytest.fixture(scope="session")
def filled(version: str, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """A broker of each version, stopped cleanly, and its rows of every shape."""
    broker = Broker(tmp_path_factory.mktemp("kafka"), version)
    _, made = _kept_broker(broker, "filled", shapes.make)
    return broker, made._replace(log_dir=broker.log_dir)


@pytest.fixture(scope="session")
def legacy(old_version: str, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """The log directory of a stopped broker with every legacy shape, and the broker's answers.

    These are the records of each topic, the dump of all files, and answers to look-ups by time.
    """

    def fill(broker: Broker, client: JavaClient) -> tuple:
        for topic, shape in legacy_shapes.LEGACY_SHAPES.items():
            shape.make(broker, client, topic)
        records = client.consume_each(legacy_shapes.LEGACY_SHAPES)
        # Asked for a time in a topic of magic 0, this broker refuses.
        topics = [topic for topic in records if topic.startswith(("magic-1", "mixed", "segments"))]
        times = [(topic, 1_700_000_000_000 + t) for topic in topics for t in (-6000, 0, 150, 9000)]
        answers = [client.offset_for_timestamp(topic, 0, time) for topic, time in times]
        looked_up = [(*asked, answer) for asked, answer in zip(times, answers, strict=True)]
        return records, looked_up

    broker = OldBroker(tmp_path_factory.mktemp("kafka"), old_version)
    _, (records, looked_up) = _kept_broker(broker, "legacy", fill)
    dump = broker.dump(sorted(broker.log_dir.glob("*/*.log")))
    return broker.log_dir, records, dump, looked_up


@pytest.fixture(scope="session")
def java(new_version: str) -> Gateway:
    """Kafka's classes, without a broker."""
    return gateway(kafka_jars(new_version))


@pytest.fixture(scope="module")
def shared(
    new_version: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Broker, JavaClient]]:
    """A running broker for all tests of a file, each of which uses separate topics."""
    running = Broker(tmp_path_factory.mktemp("kafka"), new_version)
    with running, JavaClient(running) as client:
        yield running, client


@pytest.fixture
def broker(new_version: str, tmp_path: Path) -> Iterator[Broker]:
    """A running broker for one test."""
    running = Broker(tmp_path / "kafka", new_version).start()
    yield running
    running.stop()


@pytest.fixture
def client(broker: Broker) -> Iterator[JavaClient]:
    """Kafka's Java clients, connected to `broker`."""
    with JavaClient(broker) as connected:
        yield connected
