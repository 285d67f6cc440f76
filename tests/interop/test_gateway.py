"""Kafka's classes beside Spark's session: two JVMs in one process."""

import pytest
from kafka_here.gateway import Gateway
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.thorough]


def test_exceptions_of_kafkas_jvm_are_not_sparks(java: Gateway, spark: SparkSession) -> None:
    """A JVM numbers its objects, so Kafka's exceptions get numbers that errors of Spark have."""
    with pytest.raises(AnalysisException) as held:
        spark.table("nowhere")
    assert held.value._origin is not None
    last = int(held.value._origin._target_id[1:])
    number = 0
    while number <= last:
        with pytest.raises(Py4JJavaError, match="NumberFormatException") as raised:
            java.jvm.Integer.parseInt("")
        number = int(raised.value.java_exception._target_id[1:])
