"""Options of Kafka's clients: each is modelled, refused, or named as having no effect."""

import logging
import re
from collections.abc import Mapping
from typing import Any

import pytest
from client_options import FAILING, STARTING
from pyspark.sql import SparkSession

from pyspark_segmentlog.testing import kafka_clients, kafka_security
from pyspark_segmentlog.testing.kafka_clients import (
    CLIENT_OPTIONS,
    MODELLED,
    REFUSED,
    check_client_options,
)
from segmentlog import OptionError
from segmentlog.testing.kafka_log import KafkaLog

SERVERS = "broker:9092"

LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a";'

#: Refused with Spark's own words.
BY_SPARK = {
    "auto.offset.reset",
    "enable.auto.commit",
    "key.deserializer",
    "value.deserializer",
    "key.serializer",
    "value.serializer",
}


@pytest.fixture(autouse=True)
def unnamed() -> None:
    """No option was named before."""
    kafka_clients.NAMED.clear()


def test_an_option_is_modelled_or_refused() -> None:
    """And each is known; the table of the document is made of these names."""
    refused = set(REFUSED) | BY_SPARK

    assert not MODELLED & refused
    assert MODELLED | refused <= {*CLIENT_OPTIONS}


@pytest.mark.parametrize(
    ("clients", "name", "value"),
    [
        ("producers", "acks", "2"),
        ("producers", "compression.type", "brotli"),
        ("producers", "compression.gzip.level", "0"),
        ("producers", "linger.ms", "5ms"),
        ("producers", "max.request.size", "-1"),
        ("producers", "max.request.size", str(2**31)),
        ("producers", "enable.idempotence", "yes"),
        ("producers", "partitioner.class", "org.example.Own"),
        ("producers", "partitioner.ignore.keys", "TRUE"),
        ("producers", "interceptor.classes", "org.example.Own"),
        ("producers", "transactional.id", "a"),
        ("producers", "delivery.timeout.ms", "1000"),
        ("producers", "security.protocol", "TLS"),
        ("consumers", "isolation.level", "committed"),
        ("consumers", "check.crcs", "false"),
        ("consumers", "config.providers", "file"),
        ("consumers", "group.protocol", "share"),
        ("consumers", "max.poll.records", "0"),
        ("consumers", "sasl.login.refresh.window.factor", "most"),
    ],
)
def test_a_value_that_fails_a_client_is_refused(clients: str, name: str, value: str) -> None:
    """The error names the option as the job does."""
    with pytest.raises(OptionError, match=f"^option 'kafka.{re.escape(name)}' is") as raised:
        check_client_options({f"kafka.{name}": value}, clients)

    assert value == raised.value.value


@pytest.fixture
def no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM has no login of its own."""
    monkeypatch.setattr(kafka_security, "_has_login", lambda: False)


def prefixed(options: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in options.items()}


@pytest.mark.usefixtures("no_login")
@pytest.mark.parametrize("clients", FAILING)
def test_options_with_which_no_client_starts_are_refused(clients: str) -> None:
    """The error names the one at fault, and no login or password."""
    for name, options in FAILING[clients]:
        with pytest.raises(OptionError) as raised:
            check_client_options(prefixed(options), clients)
        assert f"kafka.{name}" == raised.value.option
        assert 'username="a"' not in str(raised.value)


@pytest.mark.usefixtures("no_login")
@pytest.mark.parametrize("clients", STARTING)
def test_options_with_which_a_client_starts_are_accepted(clients: str) -> None:
    """Also files that no client reads, because nothing asks for TLS."""
    for options in STARTING[clients]:
        check_client_options(prefixed(options), clients)


@pytest.mark.usefixtures("no_login")
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"ssl.enabled.protocols": "TLSv1.2,tlsv1.3"}, "ssl.enabled.protocols"),
        ({"ssl.cipher.suites": "ECDHE-RSA-AES256-GCM-SHA384"}, "ssl.cipher.suites"),
        (
            {"ssl.endpoint.identification.algorithm": "none"},
            "ssl.endpoint.identification.algorithm",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.jaas.config": LOGIN,
                "sasl.mechanism": "plain",
            },
            "sasl.mechanism",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.jaas.config": LOGIN,
                "sasl.mechanism": "SCRAM",
            },
            "sasl.mechanism",
        ),
    ],
)
def test_what_fails_each_handshake_is_refused(options: Mapping[str, str], name: str) -> None:
    """A client starts so, and never gets a connection."""
    with pytest.raises(OptionError, match=f"^option 'kafka.{re.escape(name)}' is"):
        check_client_options(prefixed({"security.protocol": "SSL", **options}), "consumers")


@pytest.mark.parametrize(
    "module",
    ["software.amazon.msk.auth.iam.IAMLoginModule", LOGIN.split(maxsplit=1)[0]],
)
def test_a_mechanism_of_a_vendor_is_accepted(module: str) -> None:
    """Its login module or its handler brings it; which classes there are is unknown here."""
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": f"{module} required;",
        "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.Handler",
    }
    check_client_options(prefixed(given), "producers")


@pytest.mark.spark
@pytest.mark.needs_spark("Sail has no JVM")
def test_a_login_may_be_that_of_the_jvm(spark: SparkSession) -> None:
    """A file of JAAS, which a job names when it starts the JVM."""
    given = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}
    system, name = spark._jvm.System, "java.security.auth.login.config"
    with pytest.raises(OptionError, match=r"goes with kafka\.sasl\.jaas\.config"):
        check_client_options(given, "consumers")
    system.setProperty(name, "/etc/jaas.conf")
    try:
        check_client_options(given, "consumers")
    finally:
        system.clearProperty(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("acks", "1"), ("retries", "0"), ("max.in.flight.requests.per.connection", "6")],
)
def test_a_producer_that_is_idempotent_refuses_other_options(name: str, value: str) -> None:
    """Only if the job asks for it; by default, the producer gives it up in silence."""
    given = {f"kafka.{name}": value}
    check_client_options(given, "producers")
    with pytest.raises(OptionError, match=r"with kafka\.enable\.idempotence=true"):
        check_client_options({**given, "kafka.enable.idempotence": "true"}, "producers")


def test_options_without_effect_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Also those of the other client, and unknown ones with the name that was meant; no value."""
    given = {
        "kafka.acks": "anything",
        "kafka.sasl.jaas.config": "secret",
        "kafka.max.pol.records": "7",
        "kafka.bootstrap.servers": SERVERS,
        "kafka.partition.assignment.strategy": " org.example.Own ",
        "subscribe": "t",
    }
    with caplog.at_level(logging.WARNING):
        check_client_options(given, "consumers")
        check_client_options(given, "consumers")

    expected = (
        "as_kafka: options without effect: kafka.acks, kafka.sasl.jaas.config, "
        "kafka.max.pol.records (Kafka has no such option; did you mean "
        "kafka.max.poll.records?), kafka.partition.assignment.strategy"
    )
    assert [expected] == [each.getMessage() for each in caplog.records]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.needs_spark("models Spark's own producers")
def test_a_record_that_a_producer_refuses_fails_the_write(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any
) -> None:
    """A producer counts bytes before compression, of keys and headers, too: no row is written."""
    as_kafka({SERVERS: kafka_log})
    options = {"kafka.bootstrap.servers": SERVERS, "topic": "t", "kafka.compression.type": "gzip"}

    def write(n: int, **more: Any) -> None:
        rows = spark.sql(
            f"SELECT repeat('k', 10) AS key, repeat('v', {n}) AS value, "
            "array(named_struct('key', 'h', 'value', binary('123'))) AS headers, 7 AS other"
        )
        rows.write.format("kafka").options(**options).options(**more).save()

    head = 82 + 1 + 10 + 3 + 1 + 1 + 1 + 1 + 3
    write(1048576 - head)
    of_request, of_memory = "300, which is the value of the max.request.size", "the total memory"
    for n, more, size, limit in (
        (1048577 - head, {}, 1048577, "1048576, which is"),
        (300, {"kafka.max.request.size": 300}, 402, of_request),
        (300, {"kafka.buffer.memory": 300}, 402, of_memory),
    ):
        told = f"{size} bytes when serialized which is larger than {limit} "
        with pytest.raises(Exception, match=f"RecordTooLargeException: The message is {told}"):
            write(n, **more)

    assert 1 == len(kafka_log.read("t"))
