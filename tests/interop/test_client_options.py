"""Options of clients: what Kafka's clients know, and what they start with."""

from collections.abc import Mapping

import pytest
from client_options import FAILING, STARTING
from kafka_here.gateway import Gateway
from py4j.protocol import Py4JError

from pyspark_segmentlog.testing.kafka_clients import CLIENT_OPTIONS

pytestmark = pytest.mark.interop


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
