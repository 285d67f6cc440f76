"""The pytest plugin of segmentlog: tests of jobs that use Kafka, without Kafka.

pytest imports this module in every environment that has segmentlog installed.  So it imports
nothing but pytest: neither pyspark nor pyarrow nor the engine, until a test asks for a fixture.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark_segmentlog.testing import AsKafka
    from pyspark_segmentlog.testing.as_kafka import Directory
    from segmentlog.testing.kafka_log import KafkaCluster, KafkaLog

__all__ = ["as_kafka", "kafka_cluster", "kafka_log", "run_until_idle"]


@pytest.fixture
def kafka_log(tmp_path: Path) -> "Iterator[KafkaLog]":
    """A new log directory for the test, which stands for one Kafka cluster."""
    from segmentlog.testing.kafka_log import KafkaLog

    log = KafkaLog(tmp_path / "kafka-log")
    yield log
    log.close()


@pytest.fixture
def kafka_cluster(tmp_path: Path) -> "Iterator[KafkaCluster]":
    """Log directories by the names of servers: ``kafka_cluster.server("broker:9092")``."""
    from segmentlog.testing.kafka_log import KafkaCluster

    cluster = KafkaCluster(tmp_path / "kafka-servers")
    yield cluster
    for each in cluster.values():
        each.close()


@pytest.fixture
def as_kafka() -> "Iterator[Callable[..., AsKafka]]":
    """`pyspark_segmentlog.testing.as_kafka`, which ends with the test."""
    from pyspark_segmentlog.testing import as_kafka as begin

    begun: list[AsKafka] = []

    def begin_until_the_end(servers: "Mapping[str, Directory]") -> "AsKafka":
        begun.append(begin(servers))
        return begun[-1]

    yield begin_until_the_end
    for each in reversed(begun):
        each.stop()


@pytest.fixture
def run_until_idle() -> "Callable[..., Any]":
    """`pyspark_segmentlog.testing.run_until_idle`: runs a job that waits for ever."""
    from pyspark_segmentlog.testing import run_until_idle as run

    return run
