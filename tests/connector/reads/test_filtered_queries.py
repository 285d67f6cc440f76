"""Queries with filters, with and without Spark's push-down, use only their own filters."""

from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

pytestmark = pytest.mark.spark

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value")
CONF = "spark.sql.python.filterPushdown.enabled"

#: Spark offers each of them to a data source whole, in part or not at all.
PREDICATES = [
    "offset >= 40 and offset < 60 and partition = 1",
    "topic in ('payments', 'customers') and partition <> 0",
    "topic collate UTF8_LCASE = 'ORDERS'",
    "timestamp between timestamp'{early}' and timestamp'{late}'",
    "partition = 1 and partition = 2",
]


@pytest.fixture(params=["true", "false"])
def conf(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark's push-down of filters to Python data sources, on or off."""
    spark.conf.set(CONF, request.param)
    yield
    spark.conf.unset(CONF)


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    """A DataFrame of all rows."""
    return spark.read.format("segmentlog").options(**options).load(path)


def test_rows_are_those_that_spark_would_filter(
    spark: SparkSession, example_data: str, conf: None, engine: str
) -> None:
    """A filter returns the rows that it returns for the same data in memory."""
    every = load(spark, example_data).select(*COLUMNS).collect()
    times = sorted(row.timestamp for row in every)
    bounds = {"early": times[len(times) // 3], "late": times[2 * len(times) // 3]}
    predicates = [
        text.format(**bounds)
        for text in PREDICATES
        if engine == "spark" or "collate" not in text  # Sail does not know the word
    ]
    local = spark.createDataFrame(every, load(spark, example_data).select(*COLUMNS).schema)
    judged = local.select(*COLUMNS, *map(expr, predicates)).collect()
    for i, predicate in enumerate(predicates, len(COLUMNS)):
        found = load(spark, example_data).where(predicate).select(*COLUMNS).collect()
        expected = [row[: len(COLUMNS)] for row in judged if row[i]]
        assert sorted(expected) == sorted(map(tuple, found)), predicate


def test_queries_of_one_data_frame_do_not_share_a_filter(
    spark: SparkSession, example_data: str, conf: None
) -> None:
    """A filter reaches neither a later query nor the other side of a union."""
    log = load(spark, example_data)
    orders, others = log.where("topic = 'orders'"), log.where("topic <> 'orders'")

    assert [900, 1062, 162] == [orders.count(), log.count(), others.count()]
    assert 1062 == orders.union(others).count() == log.count()
    assert 900 == orders.join(orders, ["topic", "partition", "offset"]).count()


@pytest.mark.needs_spark("the message is AnalysisException's; Sail has another class")
def test_an_option_that_mixes_up_the_filters_of_queries_is_refused(
    spark: SparkSession, example_data: str, conf: None
) -> None:
    """The message names the options that bound a read safely."""
    with pytest.raises(AnalysisException, match="startingTimestamp") as caught:
        load(spark, example_data, filterPushdown="true").count()

    assert "filterPushdown" in str(caught.value)
