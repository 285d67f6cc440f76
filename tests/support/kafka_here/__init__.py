"""Real Apache Kafka on this machine, for tests and benchmarks: fetched, run on loopback, stopped.

Nothing but Java and pyspark is needed: pyspark ships Apache Ivy, which fetches the brokers.
"""

from kafka_here.artifacts import (
    ArtifactsError,
    apicurio_jars,
    glue_jars,
    kafka_jars,
    spark_avro_jars,
    spark_kafka_jars,
    spark_protobuf_jars,
)
from kafka_here.broker import Broker, OldBroker, assert_dump_is_sound, objections
from kafka_here.java import JavaClient, KafkaRecord

__all__ = [
    "ArtifactsError",
    "Broker",
    "JavaClient",
    "KafkaRecord",
    "OldBroker",
    "apicurio_jars",
    "assert_dump_is_sound",
    "glue_jars",
    "kafka_jars",
    "objections",
    "spark_avro_jars",
    "spark_kafka_jars",
    "spark_protobuf_jars",
]
