"""Each body runs with the pytest plugin and with a real broker, and shows the same."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kafka_here import Broker, JavaClient, spark_kafka_jars
from kafka_here.gateway import Gateway
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from spark_server import SparkServer
from twins import BODIES, BROKER, BrokerWorld, PluginWorld, reads, refusals, streams, writes
from twins.client_options import FAILING, STARTING

from pyspark_segmentlog.testing.kafka_clients import CLIENT_OPTIONS

pytestmark = [pytest.mark.interop, pytest.mark.spark]

MODULES = (reads, refusals, streams, writes)  # that have filled `BODIES`


@pytest.fixture(scope="module")
def running(
    new_version: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Broker, JavaClient]]:
    """A broker for all bodies."""
    with (
        Broker(tmp_path_factory.mktemp("kafka"), new_version, settings=BROKER) as broker,
        JavaClient(broker) as client,
    ):
        yield broker, client


def both(
    spark: SparkSession, name: str, place: Path, running: Any, topic: str = ""
) -> tuple[Any, Any]:
    """The outcomes of a body with the plugin, and with the broker."""
    body, topic = BODIES[name], topic or name
    plugin = PluginWorld(spark, topic, place / "plugin")
    with plugin.begin():
        ours = body.run(plugin)
    theirs = body.run(BrokerWorld(spark, topic, place / "broker", *running))
    return ours, theirs


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if body.is_slow else name
        for name, body in BODIES.items()
    ],
)
def test_the_plugin_shows_what_a_broker_shows(
    spark: SparkSession, tmp_path: Path, running: Any, name: str
) -> None:
    """Rows, offsets, partitions, errors, progress and checkpoints are equal."""
    ours, theirs = both(spark, name, tmp_path, running)

    assert theirs == ours


def test_the_options_of_clients_are_those_of_kafka(java: Gateway) -> None:
    """Each name of the producer and of the consumer is known, and no other one."""
    jvm = java.jvm.org.apache.kafka.clients
    for clients, kind in (
        ("producers", jvm.producer.ProducerConfig),
        ("consumers", jvm.consumer.ConsumerConfig),
    ):
        names = {each for each in kind.configNames() if not each.startswith("internal.")}
        known = {
            name for name, each in CLIENT_OPTIONS.items() if each.clients in ("both", clients)
        }
        assert set() == names - known


@pytest.mark.parametrize("clients", FAILING)
def test_a_client_starts_with_the_options_that_the_plugin_accepts(
    java: Gateway, clients: str
) -> None:
    """And with no others, of those that need no broker."""
    jvm = java.jvm
    package, codec = jvm.org.apache.kafka.clients, jvm.org.apache.kafka.common.serialization
    given = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}

    def starts(options: Mapping[str, str]) -> bool:
        settings = jvm.java.util.Properties()
        for name, value in {**given, **options}.items():
            settings.put(name, value)
        try:
            if clients == "producers":
                make = codec.ByteArraySerializer
                client = package.producer.KafkaProducer(settings, make(), make())
            else:
                make = codec.ByteArrayDeserializer
                client = package.consumer.KafkaConsumer(settings, make(), make())
        except Py4JError:
            return False
        client.close(jvm.java.time.Duration.ofMillis(0))
        return True

    assert [] == [options for _, options in FAILING[clients] if starts(options)]
    assert [] == [options for options in STARTING[clients] if not starts(options)]


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of Spark Connect, whose server has Spark's own source."""
    jars = {"spark.jars": ",".join(spark_kafka_jars())}
    with SparkServer("local[2]", tmp_path_factory.mktemp("spark"), jars) as server:
        session = server.session()
        yield session
        session.stop()


#: Bodies whose columns are expressions of the classic session, in a process that has one.
CLASSIC = {
    "number-of-tasks", "a-query-of-the-guide", "filters-limits-and-joins",
    "strings-bytes-and-nulls", "times-of-written-records", "json-of-all-columns",
}  # fmt: skip

#: Bodies for Connect: those of batches.  Its `load` is lazy, so options are refused later there.
IN_CONNECT = [
    name
    for name, body in BODIES.items()
    if body.run.__module__ in {reads.__name__, writes.__name__} and name not in CLASSIC
]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*IN_CONNECT, "refused-columns", "refused-modes"])
def test_the_plugin_shows_in_connect_what_a_broker_shows(
    connect: SparkSession, tmp_path: Path, running: Any, name: str
) -> None:
    """Another process plans and writes."""
    topic = f"{name}-connect"
    ours, theirs = both(connect, name, tmp_path, running, topic)

    assert theirs == ours
