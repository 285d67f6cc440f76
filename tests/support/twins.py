"""Tests of jobs that run twice: with the pytest plugin, and with a real broker.

A job takes a `World` and returns what it has shown.  The worlds have one face: a job cannot know
in which of the two it runs.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing, TransactionalProducer
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_segmentlog.testing import AsKafka, as_kafka
from segmentlog.errors import SegmentLogError
from segmentlog.testing.kafka_log import KafkaLog, Transaction
from segmentlog.testing.new_records import NewRow, fields_of, record_of

#: Settings of the broker: topics are made when they are missing, as by default, and are compacted
#: soon after they can be.
BROKER = {
    "auto.create.topics.enable": "true",
    "log.cleaner.backoff.ms": 100,
    "log.flush.start.offset.checkpoint.interval.ms": 100,
    "group.initial.rebalance.delay.ms": 0,
}

#: Answers that do not come are not waited for longer than a loaded machine needs.
_QUICK = {
    "fetchOffset.numRetries": "1",
    "fetchOffset.retryIntervalMs": "10",
    "kafkaConsumer.pollTimeoutMs": "5000",
    "kafka.default.api.timeout.ms": "5000",
    "kafka.request.timeout.ms": "4000",
}

_COMPACTED = {"cleanup_policy": "compact", "segment_ms": 500, "min_cleanable_dirty_ratio": 0.01}


class Ending(Protocol):
    """A transaction of either world."""

    def write(self, topic: str, records: Iterable[NewRow]) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...


class World:
    """Topics, and Spark's own ways to read and write them."""

    def __init__(self, spark: SparkSession, topic: str, servers: str, place: Path) -> None:
        self.spark, self.topic, self.servers, self.place = spark, topic, servers, place

    def create(self, n_partitions: int = 1, topic: str = "", *, compacted: bool = False) -> None:
        """Make a topic."""
        raise NotImplementedError

    def write(self, *records: NewRow, topic: str = "", **fields: Any) -> None:
        """Produce records; a topic is made before, or has one partition."""
        raise NotImplementedError

    def transaction(self) -> Ending:
        """Begin a transaction."""
        raise NotImplementedError

    def delete_records(self, before_offset: int, partition: int = 0) -> None:
        """Move the log start."""
        raise NotImplementedError

    def add_partitions(self, n_partitions: int) -> None:
        """Give the topic more partitions."""
        raise NotImplementedError

    def compact(self) -> None:
        """Compact all records that were written so far; further ones may follow."""
        raise NotImplementedError

    def options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a read: with servers, and with the topic if no other is chosen."""
        chosen = {"subscribe", "subscribepattern", "assign"}
        if not chosen & {name.lower() for name in options}:
            options = {"subscribe": self.topic, **options}
        return {**_QUICK, "kafka.bootstrap.servers": self.servers, **options}

    def read(self, **options: Any) -> DataFrame:
        """A batch."""
        return self.spark.read.format("kafka").options(**self.options(options)).load()

    def stream(self, **options: Any) -> DataFrame:
        """A stream, from its first record by default."""
        given = self.options({"startingOffsets": "earliest", **options})
        return self.spark.readStream.format("kafka").options(**given).load()

    def save(self, frame: DataFrame, **options: Any) -> None:
        """Write a batch to the topic."""
        given = {"kafka.bootstrap.servers": self.servers, "topic": self.topic, **options}
        frame.write.format("kafka").options(**given).save()


class PluginWorld(World):
    """Log directories."""

    def __init__(self, spark: SparkSession, topic: str, place: Path) -> None:
        super().__init__(spark, topic, "broker:9092", place)
        self._log = KafkaLog(place / "log")

    def begin(self) -> AsKafka:
        """Let ``format("kafka")`` be the log directory."""
        return as_kafka({self.servers: self._log})

    def create(self, n_partitions: int = 1, topic: str = "", *, compacted: bool = False) -> None:
        self._log.create_topic(topic or self.topic, n_partitions)

    def write(self, *records: NewRow, topic: str = "", **fields: Any) -> None:
        self._log.write(topic or self.topic, records, **fields)

    def transaction(self) -> Transaction:
        return self._log.transaction()

    def delete_records(self, before_offset: int, partition: int = 0) -> None:
        self._log.delete_records(self.topic, before_offset, partition)

    def add_partitions(self, n_partitions: int) -> None:
        self._log.add_partitions(self.topic, n_partitions)

    def compact(self) -> None:
        self._log.compact(self.topic)


class BrokerWorld(World):
    """A running broker."""

    def __init__(
        self, spark: SparkSession, topic: str, place: Path, broker: Broker, client: JavaClient
    ) -> None:
        super().__init__(spark, topic, broker.bootstrap_servers, place)
        self._broker, self._client = broker, client
        self._known: set[str] = set()

    def create(self, n_partitions: int = 1, topic: str = "", *, compacted: bool = False) -> None:
        settings = _COMPACTED if compacted else {}
        name = topic or self.topic
        self._client.create_topic(name, n_partitions, retention_ms=-1, **settings)
        self._known.add(name)

    def write(self, *records: NewRow, topic: str = "", **fields: Any) -> None:
        name = topic or self.topic
        if name not in self._known:
            self.create(topic=name)
        self._client.produce(name, outgoing(records, fields), linger_ms=0)

    def transaction(self) -> "_OfBroker":
        return _OfBroker(self, self._client)

    def delete_records(self, before_offset: int, partition: int = 0) -> None:
        self._client.delete_records(self.topic, partition, before_offset)

    def add_partitions(self, n_partitions: int) -> None:
        self._client.add_partitions(self.topic, n_partitions)

    def compact(self) -> None:
        n_records = len(self._client.consume(self.topic))
        path = self._broker.log_dir / f"{self.topic}-0"
        self._client.wait_until_compacted(path, fewer_than=n_records)
        self._client.wait_until_settled(self.topic)


class _OfBroker:
    """A transaction of the Java producer."""

    def __init__(self, world: BrokerWorld, client: JavaClient) -> None:
        self._world, self._client = world, client
        self._producer: TransactionalProducer | None = None

    def write(self, topic: str, records: Iterable[NewRow]) -> None:
        if topic not in self._world._known:
            self._world.create(topic=topic)
        if self._producer is None:
            self._producer = self._client.transactional_producer(f"{topic}-{id(self)}")
            self._producer.begin()
        self._producer.send(topic, outgoing(records, {}))

    def commit(self) -> None:
        self._end("commit")

    def abort(self) -> None:
        self._end("abort")

    def _end(self, how: str) -> None:
        assert self._producer is not None
        self._producer.end(how)
        self._producer.abandon()


def outgoing(records: Iterable[NewRow], fields: Mapping[str, Any]) -> list[Outgoing]:
    """Records as the Java producer takes them."""
    own = {"timestamp": None, "headers": None, "partition": None} | dict(fields)
    found = []
    for each in records:
        given = {**own, **fields_of(each)}
        partition, record = record_of(given, 0)
        stamp = None if given["timestamp"] is None else record.timestamp_ms
        headers = [(name.decode(), value) for name, value in record.headers]
        found.append(Outgoing(record.key, record.value, headers, stamp, partition))
    return found


def twin(job: Callable[..., Any]) -> Callable[..., None]:
    """A test that runs a job in both worlds, and compares what both have shown.

    The fixture `both` runs it; further arguments of the job are the test's.
    """

    @functools.wraps(job)
    def test(both: Callable[[Callable[[World], Any]], tuple[Any, Any]], **given: Any) -> None:
        ours, theirs = both(functools.partial(job, **given))
        assert theirs == ours

    _, *given = inspect.signature(job).parameters.values()
    both = inspect.Parameter("both", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    test.__signature__ = inspect.Signature([both, *given])  # type: ignore[attr-defined]
    return test


#: Also with a session of Spark Connect, where another process plans and writes.  Its `load` is
#: lazy, so options are refused later there.  Columns that are expressions of the classic session
#: cannot be used in a process that has one.
in_connect = pytest.mark.parametrize(
    "both", ["spark", pytest.param("connect", marks=pytest.mark.slow)], indirect=True
)


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Sorted rows, with bytes as text; by default without the time."""
    chosen = columns or tuple(each for each in frame.columns if each != "timestamp")
    found = [tuple(_text(each) for each in row) for row in frame.select(*chosen).collect()]
    return sorted(found, key=repr)


def texts(frame: DataFrame) -> list[Any]:
    """The sorted values of the rows."""
    return [value for (value,) in rows(frame, "value")]


def _text(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("latin-1")
    if isinstance(value, list | tuple):
        return [_text(each) for each in value]
    return value


def refused(act: Callable[[], Any]) -> tuple[str, str]:
    """The class of an error, and the first line of its message."""
    try:
        act()
    except PySparkException as error:
        lines = [each for each in str(error).splitlines() if each.strip()]
        return type(error).__name__, lines[0].strip()
    except SegmentLogError as error:  # of the plugin alone
        return type(error).__name__, str(error)
    except Py4JJavaError as error:  # an exception of the JVM that pyspark does not know
        return type(error).__name__, str(error.java_exception.getClass().getName())
    return "", "nothing was refused"
