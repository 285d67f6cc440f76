"""The clients of other people: what they read, and how they tell that they may not write."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import segmentlog
from segmentlog.serving.open_server import Server
from segmentlog.testing.kafka_log import KafkaLog

confluent_kafka = pytest.importorskip("confluent_kafka")

N_RECORDS = 120


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> KafkaLog:
    """A topic of three partitions, with an aborted transaction in the first."""
    made = KafkaLog(tmp_path_factory.mktemp("kafka"))
    rows = [
        {"key": f"k{i}", "value": f"v{i}", "headers": {"n": b"%d" % i}, "timestamp": 5000 + i}
        for i in range(N_RECORDS)
    ]
    made.write("t", rows, num_partitions=3)
    with made.transaction() as transaction:
        transaction.write("t", ["never"], partition=0)
        transaction.abort()
    return made


@pytest.fixture(scope="module")
def server(log: KafkaLog) -> Iterator[Server]:
    with segmentlog.serve(log.path) as found:
        yield found


@pytest.fixture(scope="module")
def expected(log: KafkaLog) -> list[tuple[Any, ...]]:
    directory = segmentlog.open_log_dir(log.path)
    return sorted(
        (
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
        )
        for number in range(3)
        for row in directory.log("t", number)
        .scan(isolation_level="read_committed")
        .read_all()
        .to_pylist()
    )


def test_librdkafka_subscribes_and_commits(
    server: Server, expected: list[tuple[Any, ...]]
) -> None:
    settings = {
        "bootstrap.servers": server.bootstrap_servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 20,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(["t"])
    found = []
    while len(found) < len(expected):
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        found.append(
            (
                message.partition(),
                message.offset(),
                message.timestamp()[1],
                message.key(),
                message.value(),
            )
        )
    consumer.commit(asynchronous=False)
    places = [confluent_kafka.TopicPartition("t", each) for each in range(3)]
    committed = {each.partition: each.offset for each in consumer.committed(places)}
    consumer.close()

    assert expected == sorted(found)
    assert committed == {
        each: 1 + max(o for p, o, *_ in expected if p == each) for each in committed
    }


def test_librdkafka_may_not_write(server: Server) -> None:
    """At once, and not after `message.timeout.ms`."""
    told: list[int] = []
    settings = {"bootstrap.servers": server.bootstrap_servers, "linger.ms": 0}
    producer = confluent_kafka.Producer(settings)
    producer.produce("t", b"x", on_delivery=lambda error, _: told.append(error.code()))

    assert 0 == producer.flush(20)
    assert [confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED] == told


def test_librdkafka_gets_no_producer_id(server: Server) -> None:
    """It would wait for one: the error is fatal to it."""
    settings = {"bootstrap.servers": server.bootstrap_servers, "enable.idempotence": True}
    producer = confluent_kafka.Producer(settings)
    producer.produce("t", b"x")

    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.flush(20)
    assert confluent_kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED == refused.value.args[0].code()
    producer.purge()


def test_kafka_python_reads(server: Server, expected: list[tuple[Any, ...]]) -> None:
    kafka = pytest.importorskip("kafka")
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=server.bootstrap_servers,
        isolation_level="read_committed",
        consumer_timeout_ms=5_000,
        fetch_max_wait_ms=20,
    )
    places = [kafka.TopicPartition("t", each) for each in range(3)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    found = []
    for each in consumer:
        found.append((each.partition, each.offset, each.timestamp, each.key, each.value))
        if len(found) == len(expected):
            break
    consumer.close()

    assert expected == sorted(found)


def test_aiokafka_reads_in_a_group_and_may_not_write(
    server: Server, expected: list[tuple[Any, ...]]
) -> None:
    import aiokafka

    async def read() -> list[tuple[Any, ...]]:
        consumer = aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=server.bootstrap_servers,
            group_id="aio",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_wait_ms=20,
            enable_auto_commit=False,
        )
        await consumer.start()
        found = []
        while len(found) < len(expected):
            each = await asyncio.wait_for(consumer.getone(), 20)
            found.append((each.partition, each.offset, each.timestamp, each.key, each.value))
        await consumer.stop()
        return sorted(found)

    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=server.bootstrap_servers)
        await producer.start()
        try:
            await asyncio.wait_for(producer.send_and_wait("t", b"x"), 20)
        finally:
            await producer.stop()

    assert expected == asyncio.run(read())
    with pytest.raises(aiokafka.errors.TopicAuthorizationFailedError):
        asyncio.run(write())
