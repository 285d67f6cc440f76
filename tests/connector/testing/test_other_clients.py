"""Kafka clients for Python in a job under `as_kafka`: an error, and not the network."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from segmentlog import OptionError
from segmentlog.testing.kafka_log import KafkaLog

SERVERS = "broker:9092"
LOCAL = "localhost:9092"

#: A stand-in for `kafka-python`, whose clients look up their servers when they are made.
KAFKA = """
class KafkaClient:
    def __init__(self, **configs):
        self.configs = configs

class KafkaProducer(object):
    def __init__(self, **configs):
        super(KafkaProducer, self).__init__()
        self.client = KafkaClient(**configs)
        self.configs = configs

class KafkaConsumer(KafkaProducer):
    def __init__(self, *topics, **configs):
        super(KafkaConsumer, self).__init__(**configs)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of modules, among them the stand-in; they are forgotten after the test."""
    place = tmp_path / "modules"
    (place / "kafka").mkdir(parents=True)
    (place / "kafka" / "__init__.py").write_text("from kafka.clients import *")
    (place / "kafka" / "clients.py").write_text(KAFKA)
    (place / "job.py").write_text("from kafka import KafkaProducer")
    monkeypatch.syspath_prepend(place)
    importlib.invalidate_caches()
    yield place
    for name in ("kafka", "kafka.clients", "job", "confluent_job"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("is_imported_before", [True, False])
def test_a_client_of_kafka_python_is_refused(
    kafka_log: KafkaLog, as_kafka: Any, place: Path, is_imported_before: bool
) -> None:
    """Before the network, whether the job is imported before or after; others work as ever."""
    del place
    job = importlib.import_module("job") if is_imported_before else None
    begun = as_kafka({SERVERS: kafka_log, LOCAL: kafka_log})
    job = job or importlib.import_module("job")
    for servers in (SERVERS, f"other:1,{SERVERS}", ["other:1", SERVERS]):
        with pytest.raises(OptionError, match=r"kafka\.KafkaProducer .* kafka_log\.write"):
            job.KafkaProducer(bootstrap_servers=servers)
    kafka = importlib.import_module("kafka")
    with pytest.raises(OptionError, match=r"kafka\.KafkaConsumer"):
        kafka.KafkaConsumer("topic")  # on this machine, by default
    made = kafka.KafkaConsumer("topic", bootstrap_servers="other:1")
    assert {"bootstrap_servers": "other:1"} == made.configs
    begun.stop()

    assert SERVERS == job.KafkaProducer(bootstrap_servers=SERVERS).configs["bootstrap_servers"]
    assert job.KafkaProducer is kafka.KafkaProducer


def test_a_client_in_c_is_refused(kafka_log: KafkaLog, as_kafka: Any, place: Path) -> None:
    """The names in the modules of the job, too, and the classes that are made of it."""
    clients = pytest.importorskip("confluent_kafka")
    admin = importlib.import_module("confluent_kafka.admin")
    (place / "confluent_job.py").write_text("from confluent_kafka import Producer as Other")
    job = importlib.import_module("confluent_job")
    original = clients.Producer
    begun = as_kafka({SERVERS: kafka_log})
    for kind in (job.Other, clients.Consumer, clients.SerializingProducer, admin.AdminClient):
        for name in ("bootstrap.servers", "metadata.broker.list"):
            with pytest.raises(OptionError, match=r"kafka_log\.read") as raised:
                kind({name: SERVERS, "group.id": "g"})
            assert SERVERS == raised.value.value
    with pytest.raises(OptionError, match=r"kafka_log\.read"):
        job.Other(**{"bootstrap.servers": SERVERS})
    made = job.Other({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    assert isinstance(made, original)
    begun.stop()

    assert original is clients.Producer is job.Other


def test_a_client_of_aiokafka_is_refused(kafka_log: KafkaLog, as_kafka: Any) -> None:
    """It is refused where it is made, before an event loop runs."""
    clients = pytest.importorskip("aiokafka")
    as_kafka({SERVERS: kafka_log})
    for kind in (clients.AIOKafkaProducer, clients.AIOKafkaConsumer):
        with pytest.raises(OptionError, match=r"kafka_log\.read"):
            kind(bootstrap_servers=SERVERS)


REFUSED = r"confluent_kafka\.Producer could reach"


def sender() -> Callable[..., Any]:
    """A function of a job, which is pickled whole because no worker can import this module."""

    def send(rows: Any = ()) -> Any:
        from confluent_kafka import Producer

        list(rows)
        Producer({"bootstrap.servers": "broker:9092", "log_level": 0})
        return []

    return send


def ways(send: Callable[..., Any]) -> dict[str, Callable[[DataFrame], Any]]:
    """Ways in which a job runs a function in other processes, for batches."""

    def registered(rows: DataFrame) -> Any:
        rows.sparkSession.udf.register("sent", lambda n: str(send([n])))
        return rows.selectExpr("sent(id)").collect()

    return {
        "foreach": lambda rows: rows.foreach(lambda row: send([row])),
        "foreachPartition": lambda rows: rows.foreachPartition(send),
        "udf": registered,
        "pandas": lambda rows: rows.mapInPandas(lambda a: iter(send(a)), "id long").collect(),
        "arrow": lambda rows: rows.mapInArrow(lambda a: iter(send(a)), "id long").collect(),
        "rdd": lambda rows: rows.rdd.map(lambda row: send([row])).count(),
        "partitions": lambda rows: rows.rdd.mapPartitions(send).count(),
    }


@pytest.mark.spark
@pytest.mark.slow
def test_a_client_in_a_task_is_refused(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any
) -> None:
    """Whichever way the function gets there; the processes are as before afterwards."""
    pytest.importorskip("confluent_kafka")
    frame = spark.range(1, numPartitions=1)
    begun = as_kafka({SERVERS: kafka_log})
    for run in ways(sender()).values():
        with pytest.raises(Exception, match=REFUSED):
            run(frame)
    begun.stop()
    for run in ways(sender()).values():
        run(frame)


@pytest.mark.spark
@pytest.mark.slow
def test_a_client_in_a_stream_is_refused(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any
) -> None:
    """A function of `foreach` runs in tasks, and one of `foreachBatch` here."""
    pytest.importorskip("confluent_kafka")
    send = sender()
    kafka_log.write("in", ["a"])
    as_kafka({SERVERS: kafka_log})
    options = {"kafka.bootstrap.servers": SERVERS, "startingOffsets": "earliest"}
    rows = spark.readStream.format("kafka").options(**options, subscribe="in").load()
    for writer in (
        rows.writeStream.foreach(lambda row: send([row])),
        rows.writeStream.foreachBatch(lambda batch, _: send(batch.collect())),
    ):
        with pytest.raises(Exception, match=REFUSED):
            writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.parametrize(
    "way",
    [
        "udf",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("foreachPartition", "pandas", "arrow")
        ),
    ],
)
def test_a_client_in_a_task_of_connect_is_refused(
    cluster: SparkSession, kafka_log: KafkaLog, as_kafka: Any, way: str
) -> None:
    """The executors are processes of another JVM."""
    pytest.importorskip("confluent_kafka")
    as_kafka({SERVERS: kafka_log})
    with pytest.raises(Exception, match=REFUSED):
        ways(sender())[way](cluster.range(1, numPartitions=1))
