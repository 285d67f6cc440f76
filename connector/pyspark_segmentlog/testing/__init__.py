"""Tests of jobs without a broker: ``format("kafka")`` reads and writes log directories."""

from pyspark_segmentlog.testing.as_kafka import AsKafka, as_kafka, run_until_idle

__all__ = ["AsKafka", "as_kafka", "run_until_idle"]
