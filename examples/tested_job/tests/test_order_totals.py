"""The job runs unmodified: its broker is a log directory that each test fills and reads."""

from pathlib import Path
from typing import Any

import pytest
from order_totals import run
from pyspark.sql import SparkSession

from segmentlog.testing.kafka_log import KafkaLog
from segmentlog.testing.topic_rows import assert_rows

SERVERS = "broker:9092"


@pytest.fixture
def orders(kafka_log: KafkaLog, as_kafka: Any) -> KafkaLog:
    """The topics of the job, of which one is filled by the test."""
    as_kafka({SERVERS: kafka_log})
    for topic in ("orders", "order-totals", "orders-rejected"):
        kafka_log.create_topic(topic, 2)
    return kafka_log


def order(customer: str, amount: float) -> dict[str, Any]:
    """A record of the topic ``orders``."""
    return {"key": customer, "value": {"customer": customer, "amount": amount}}


def test_totals_of_customers(spark: SparkSession, orders: KafkaLog, tmp_path: Path) -> None:
    """A second run writes only the totals that have changed."""
    orders.write("orders", [order("ann", 1.5), order("ben", 2), order("ann", 0.5)])
    run(spark, SERVERS, str(tmp_path))
    assert_rows(
        orders.read("order-totals"),
        [
            {"key": "ann", "value": {"total": 2.0, "orders": 2}},
            {"key": "ben", "value": {"total": 2.0, "orders": 1}},
        ],
    )
    orders.write("orders", [order("ben", 1)])
    run(spark, SERVERS, str(tmp_path))

    newest = orders.read("order-totals").rows()[2:]
    assert_rows(newest, [{"key": "ben", "value": {"total": 3.0, "orders": 2}}])


def test_what_is_no_order(spark: SparkSession, orders: KafkaLog, tmp_path: Path) -> None:
    """Broken JSON, a field that is missing and a tombstone are rejected, with their keys."""
    bad = [{"key": "a", "value": "{"}, {"key": "b", "value": {"amount": 1}}, {"key": "c"}]
    orders.write("orders", [*bad, order("ann", 1)])
    run(spark, SERVERS, str(tmp_path))

    assert_rows(orders.read("orders-rejected"), [{"key": key} for key in "abc"])
    assert ["ann"] == orders.read("order-totals").keys()


def test_deleted_orders_are_not_missed_in_silence(
    spark: SparkSession, orders: KafkaLog, tmp_path: Path
) -> None:
    """If retention was quicker than the job, the run fails."""
    orders.write("orders", [order("ann", 1)], partition=0)
    run(spark, SERVERS, str(tmp_path))
    orders.write("orders", [order("ann", 2), order("ann", 3)], partition=0)
    orders.delete_records("orders", 2)
    with pytest.raises(Exception, match="failOnDataLoss"):
        run(spark, SERVERS, str(tmp_path))
