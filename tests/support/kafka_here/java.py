"""Kafka's own Java clients, driven from Python through py4j: no compiler, no glue in Java."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from waiting import wait_for

from kafka_here.broker import Broker
from kafka_here.gateway import gateway
from kafka_here.records import KafkaRecord, parse_records

__all__ = ["JavaClient", "KafkaRecord", "Outgoing"]

_BYTES = "org.apache.kafka.common.serialization.ByteArraySerializer"
_AS_TEXT = "org.apache.kafka.common.serialization.StringDeserializer"
_SECONDS = 60


class Outgoing(NamedTuple):
    """A record to produce; None for `timestamp_ms` is the time of the call."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


class TransactionalProducer:
    """A Java producer with a transactional id; it ends no transaction by itself."""

    def __init__(self, client: "JavaClient", producer: JavaObject) -> None:
        self._client = client
        self._producer = producer
        self.is_open = False

    def begin(self) -> None:
        """Begin a transaction."""
        self._producer.beginTransaction()
        self.is_open = True

    def send(self, topic: str, records: Sequence[Outgoing]) -> None:
        """Send records, and wait until the broker has them."""
        self._client.send(self._producer, topic, records)

    def end(self, how: str) -> None:
        """End the transaction: ``"commit"`` or ``"abort"``."""
        if how == "commit":
            self._producer.commitTransaction()
        else:
            self._producer.abortTransaction()
        self.is_open = False

    def abandon(self) -> None:
        """Close the producer without ending its transaction."""
        self._producer.close(self._client.jvm.java.time.Duration.ofMillis(0))


class JavaClient:
    """The clients of the broker's version."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        shared = gateway(broker.jars)
        self._gateway, self.jvm = shared.java, shared.jvm
        self._producers: list[JavaObject] = []
        self._admin = self.jvm.org.apache.kafka.clients.admin.Admin.create(
            self._properties({"bootstrap.servers": broker.bootstrap_servers})
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all clients, without waiting for a broker that may have ended."""
        at_once = self.jvm.java.time.Duration.ofMillis(0)
        self._admin.close(at_once)
        for producer in self._producers:
            producer.close(at_once)  # a second close is not an error

    def _properties(self, settings: Mapping[str, object]) -> JavaObject:
        properties = self.jvm.java.util.Properties()
        for key, value in settings.items():
            properties.put(key, str(value))
        return properties

    def _partition(self, topic: str, partition: int) -> JavaObject:
        return self.jvm.org.apache.kafka.common.TopicPartition(topic, partition)

    def _map(self, items: Mapping[Any, Any]) -> JavaObject:
        found = self.jvm.java.util.HashMap()
        for key, value in items.items():
            found.put(key, value)
        return found

    def _static(self, name: str, method: str, kind: str, argument: int) -> JavaObject:
        """Call a static method of a class of the admin client, by reflection.

        py4j does not see one that shares its name with another method.
        """
        java = self.jvm.java.lang
        types = self._gateway.new_array(java.Class, 1)
        types[0] = getattr(java, kind).TYPE
        arguments = self._gateway.new_array(java.Object, 1)
        arguments[0] = argument
        found = java.Class.forName(f"org.apache.kafka.clients.admin.{name}")
        return found.getMethod(method, types).invoke(None, arguments)

    def _wait(self, future: JavaObject) -> Any:
        return future.get(_SECONDS, self.jvm.java.util.concurrent.TimeUnit.SECONDS)

    def create_topic(self, topic: str, partitions: int = 1, **settings: object) -> None:
        """Create a topic that takes records; settings with underscores for Kafka's dots."""
        new = self.jvm.org.apache.kafka.clients.admin.NewTopic(
            topic, partitions, self.jvm.Short.parseShort("1")
        )
        new = new.configs({key.replace("_", "."): str(value) for key, value in settings.items()})
        self._wait(self._admin.createTopics([new]).all())
        self._wait_for_partitions(topic, partitions)

    def _wait_for_partitions(self, topic: str, partitions: int) -> None:
        """Wait until a broker takes records for the partitions of a topic."""
        # A broker announces a partition shortly before it accepts records for it. It then refuses
        # a producer's first batch, and takes the next batch for the first.
        latest = self.jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
        asked = self._map({self._partition(topic, each): latest for each in range(partitions)})

        def takes_records() -> bool:
            try:
                self._wait(self._admin.listOffsets(asked).all())
            except Py4JJavaError as error:
                # A broker that is busy may not know the topic yet: a client takes that as final.
                if "UnknownTopicOrPartition" not in str(error):
                    raise
                return False
            return True

        wait_for(takes_records, lambda: f"{topic} takes no records", _SECONDS)

    def alter_topic(self, topic: str, **settings: object) -> None:
        """Change settings of a topic; underscores for Kafka's dots.

        The broker learns of it later, and does not report when.
        """
        self.alter("TOPIC", topic, {key.replace("_", "."): each for key, each in settings.items()})

    def alter(self, kind: str, name: str, settings: Mapping[str, object]) -> None:
        """Change settings of a ``TOPIC`` or a ``BROKER``, or delete those whose value is None.

        The broker named ``""`` stands for all brokers.
        """
        types = self.jvm.org.apache.kafka.common.config.ConfigResource
        admin = self.jvm.org.apache.kafka.clients.admin
        does = admin.AlterConfigOp.OpType
        operations = [
            admin.AlterConfigOp(
                admin.ConfigEntry(key, None if value is None else str(value)),
                does.DELETE if value is None else does.SET,
            )
            for key, value in settings.items()
        ]
        asked = self._map({types(getattr(types.Type, kind), name): operations})
        self._wait(self._admin.incrementalAlterConfigs(asked).all())

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions, `partitions` in all; they take records."""
        wanted = self._static("NewPartitions", "increaseTo", "Integer", partitions)
        self._wait(self._admin.createPartitions(self._map({topic: wanted})).all())
        self._wait_for_partitions(topic, partitions)

    def move(self, topic: str, partition: int, log_dir: Path) -> None:
        """Begin to move the only replica of a partition to another log directory."""
        replica = self.jvm.org.apache.kafka.common.TopicPartitionReplica(topic, partition, 1)
        self._wait(self._admin.alterReplicaLogDirs(self._map({replica: str(log_dir)})).all())

    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Begin to move a partition to other brokers, which need not answer."""
        wanted = self.jvm.org.apache.kafka.clients.admin.NewPartitionReassignment([*replicas])
        some = self.jvm.java.util.Optional.of(wanted)
        asked = self._map({self._partition(topic, partition): some})
        self._wait(self._admin.alterPartitionReassignments(asked).all())

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """Move the log start up to `before_offset`."""
        below = self._static("RecordsToDelete", "beforeOffset", "Long", before_offset)
        asked = self._map({self._partition(topic, partition): below})
        self._wait(self._admin.deleteRecords(asked).all())

    def active_producers(self, topic: str, partition: int) -> list[tuple[int, int, int, int]]:
        """Id, epoch, last sequence and begin of the transaction of each producer, or -1."""
        asked = self.jvm.java.util.ArrayList()
        asked.add(self._partition(topic, partition))
        found = self._wait(
            self._admin.describeProducers(asked).partitionResult(asked[0])
        ).activeProducers()
        return sorted(
            (
                each.producerId(),
                each.producerEpoch(),
                each.lastSequence(),
                each.currentTransactionStartOffset().orElse(-1),
            )
            for each in found
        )

    def producer(self, **settings: object) -> JavaObject:
        """A producer of bytes for `send`, to be closed by the caller; underscores for dots."""
        given = {key.replace("_", "."): value for key, value in settings.items()}
        defaults = {
            "bootstrap.servers": self._broker.bootstrap_servers,
            "key.serializer": _BYTES,
            "value.serializer": _BYTES,
            "linger.ms": 100,
        }
        made = self.jvm.org.apache.kafka.clients.producer.KafkaProducer(
            self._properties(defaults | given)
        )
        self._producers.append(made)
        return made

    def produce(
        self,
        topic: str,
        records: Iterable[Outgoing],
        *,
        transactions: Sequence[str] = (),
        one_by_one: bool = False,
        **settings: object,
    ) -> None:
        """Send `records` with the Java producer, in one batch where the settings allow it.

        `topic`: where to. `records`: what. `transactions`: send everything once in each of these:
        ``"commit"`` or ``"abort"``. `one_by_one`: wait for each record before the next one is
        sent. `settings`: of the producer; underscores for dots.
        """
        if transactions:
            settings = {"transactional_id": f"{topic}-{time.monotonic_ns()}"} | settings
        records = list(records)
        producer = self.producer(**settings)
        try:
            if not transactions:
                for part in [[record] for record in records] if one_by_one else [records]:
                    self.send(producer, topic, part)
            else:
                producer.initTransactions()
                for end in transactions:
                    producer.beginTransaction()
                    self.send(producer, topic, records)
                    if end == "commit":
                        producer.commitTransaction()
                    else:
                        producer.abortTransaction()
        finally:
            producer.close()

    def send(self, producer: JavaObject, topic: str, records: Sequence[Outgoing]) -> None:
        """Send records with a producer, and wait until the broker has every one of them."""
        header = self.jvm.org.apache.kafka.common.header.internals.RecordHeader
        record_class = self.jvm.org.apache.kafka.clients.producer.ProducerRecord
        sent = []
        for record in records:
            headers = [header(key, value) for key, value in record.headers]
            made = record_class(
                topic, record.partition, record.timestamp_ms, record.key, record.value, headers
            )
            sent.append(producer.send(made))
        producer.flush()
        for each in sent:
            each.get()  # flush does not report a refused record

    def forget(self, producer: JavaObject) -> None:
        """Close a producer whose broker has ended, without waiting for it."""
        producer.close(self.jvm.java.time.Duration.ofMillis(0))

    def transactional_producer(self, name: str, **settings: object) -> "TransactionalProducer":
        """A producer whose transactions the caller begins, fills and ends."""
        producer = self.producer(**{"transactional_id": name, "linger_ms": 0, **settings})
        producer.initTransactions()
        return TransactionalProducer(self, producer)

    def consume(self, topic: str, *, isolation: str = "read_uncommitted") -> list[KafkaRecord]:
        """Every record of a topic, partition by partition, as the Java consumer returns them."""
        return self.consume_each([topic], isolation=isolation)[topic]

    def consume_each(
        self, topics: Iterable[str], *, isolation: str = "read_uncommitted"
    ) -> dict[str, list[KafkaRecord]]:
        """Every record of some topics, with one consumer."""
        found: dict[str, list[KafkaRecord]] = {topic: [] for topic in topics}
        with self._consumer(found, isolation) as (consumer, partitions):
            consumer.assign(partitions)
            consumer.seekToBeginning(partitions)
            ends = consumer.endOffsets(partitions)
            for record in self._poll(consumer, partitions, ends):
                found[record.topic].append(record)
        return {topic: sorted(records, key=lambda r: r[:3]) for topic, records in found.items()}

    def offsets(
        self, topic: str, *, isolation: str = "read_uncommitted"
    ) -> dict[int, tuple[int, int]]:
        """Log start and log end, or last stable offset, of each partition."""
        with self._consumer([topic], isolation) as (consumer, partitions):
            starts = consumer.beginningOffsets(partitions)
            ends = consumer.endOffsets(partitions)
            return {each.partition(): (starts[each], ends[each]) for each in partitions}

    @contextlib.contextmanager
    def _consumer(
        self, topics: Iterable[str], isolation: str
    ) -> Iterator[tuple[JavaObject, list[JavaObject]]]:
        consumer = self.jvm.org.apache.kafka.clients.consumer.KafkaConsumer(
            self._properties(
                {
                    "bootstrap.servers": self._broker.bootstrap_servers,
                    "key.deserializer": _AS_TEXT,
                    "value.deserializer": _AS_TEXT,
                    "deserializer.encoding": "ISO-8859-1",  # a character for every byte
                    "isolation.level": isolation,
                    "max.poll.records": 1000,
                    "enable.auto.commit": "false",
                }
            )
        )
        try:
            yield (
                consumer,
                [
                    self._partition(topic, info.partition())
                    for topic in topics
                    for info in consumer.partitionsFor(topic)
                ],
            )
        finally:
            consumer.close()

    def _poll(
        self, consumer: JavaObject, partitions: Sequence[JavaObject], ends: Mapping[Any, int]
    ) -> list[KafkaRecord]:
        found: list[KafkaRecord] = []
        timeout = self.jvm.java.time.Duration.ofMillis(200)
        deadline = time.monotonic() + _SECONDS
        while any(consumer.position(each) < ends[each] for each in partitions):
            if time.monotonic() > deadline:
                message = f"the consumer did not reach the end in {_SECONDS} s"
                raise RuntimeError(message)
            polled = consumer.poll(timeout)
            for each in polled.partitions():
                found += parse_records(polled.records(each).toString())
        return found

    def wait_until_compacted(self, partition_path: Path, *, fewer_than: int) -> None:
        """Wait until the broker's cleaner has left fewer records than that.

        The active segment is never cleaned, so records without meaning are produced, which roll
        it (the topic wants a short ``segment.ms``).
        """
        topic, _, partition = partition_path.name.rpartition("-")

        def is_compacted() -> bool:
            if len(self.consume(topic)) < fewer_than:
                return True
            time.sleep(1)
            self.produce(topic, [Outgoing(b"roll", b"", (), None, int(partition))])
            return False

        wait_for(is_compacted, lambda: f"{topic} was not compacted", _SECONDS)

    def wait_until_settled(self, topic: str) -> None:
        """Wait until the broker has nothing to clean or delete any more.

        That is so when two looks, a while apart, see the same.
        """
        before = None
        while before != (now := (self.consume(topic), self.offsets(topic))):
            before = now
            time.sleep(1.5)

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The broker's answer when asked for the first record at or after a time."""
        spec = self.jvm.org.apache.kafka.clients.admin.OffsetSpec.forTimestamp(timestamp_ms)
        asked = self._map({self._partition(topic, partition): spec})
        result = self._admin.listOffsets(asked).partitionResult(self._partition(topic, partition))
        offset = int(self._wait(result).offset())
        return None if offset < 0 else offset
