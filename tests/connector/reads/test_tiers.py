"""Spark reads logs that begin in tiered storage."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TIER = Path(__file__).parents[3] / "examples" / "tier"


def load(spark: SparkSession, *paths: Path, **options: str) -> DataFrame:
    reader = spark.read.format("segmentlog").options(subscribe="visits", **options)
    return reader.load([str(each) for each in paths]) if paths else reader.load()


def test_a_log_begins_in_its_tier(spark: SparkSession) -> None:
    """Tasks read their parts of remote segments; without the tier, the log is shorter."""
    tier = {"remoteStorage": str(TIER / "bucket"), "maxBytesPerPartition": "4k"}
    found = load(spark, TIER / "logs", **tier)

    assert 200 == load(spark, TIER / "logs").count()
    assert list(range(600)) == sorted(row.offset for row in found.select("offset").collect())
    assert found.rdd.getNumPartitions() > 4
    assert 50 == load(spark, TIER / "logs", lastRecords="50", **tier).count()


def test_a_tier_alone(spark: SparkSession) -> None:
    """No path is needed."""
    assert 400 == load(spark, remoteStorage=str(TIER / "bucket")).count()


def test_a_wrong_layout_is_refused(spark: SparkSession) -> None:
    """The message names what is accepted."""
    with pytest.raises(PySparkException, match="local or aiven"):
        load(spark, TIER / "logs", remoteStorage="/t", remoteStorageLayout="s3").count()
