"""Filters of queries, with and without Spark's push-down and our option: the rows are right."""

from collections.abc import Iterator
from operator import attrgetter

import pytest
from new_process import run
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value")
ORDER = attrgetter("topic", "partition", "offset")
CONF = "spark.sql.python.filterPushdown.enabled"

#: Each is pushed whole, in part or not at all.
PREDICATES = [
    "offset >= 40 and offset < 60 and partition = 1",
    "offset = 7 or partition = 2",
    "topic = 'orders' and partition > 0 and offset in (3, 5, 400)",
    "topic in ('payments', 'customers') and partition <> 0",
    "topic like 'pay%' and topic like '%ments' and topic like '%m%'",
    "topic not in ('orders', 'payments')",
    "topic <=> 'orders' and not (offset > 5)",
    "topic collate UTF8_LCASE = 'ORDERS'",
    "upper(topic) = 'ORDERS' and offset > 10.5",
    "topic is null or offset is null",
    "topic is not null and timestamp is not null",
    "timestamp >= timestamp'{late}'",
    "timestamp > timestamp'{late}' and partition = 0",
    "timestamp < timestamp'{late}' and offset > 100",
    "timestamp between timestamp'{early}' and timestamp'{late}'",
    "timestamp = timestamp'{late}'",
    "timestamp in (timestamp'{early}', timestamp'{late}')",
    "cast(timestamp as date) >= date'2999-01-01'",
    "timestampType = 0 and key is null",
    "cast(value as string) like '%1%' and offset < 30",
    "offset < 9223372036854775807 and offset > -9223372036854775808",
    "partition = 1 and partition = 2",
]  # fmt: skip


@pytest.fixture
def conf_on(spark: SparkSession) -> Iterator[None]:
    """Spark's push-down of filters to Python sources, on."""
    spark.conf.set(CONF, "true")
    yield
    spark.conf.unset(CONF)


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    """A `load` of its own, as each query needs that narrows."""
    return spark.read.format("segmentlog").options(**options).load(path)


def n_tasks(frame: DataFrame) -> int:
    """Tasks that read; for a read without slices Spark makes one."""
    return frame.rdd.getNumPartitions()


@pytest.mark.parametrize(
    ("conf", "narrows", "n_predicates"),
    [("true", "true", None), ("true", "false", 3), ("false", "true", 3)],
)
def test_rows_are_those_that_spark_would_filter(
    spark: SparkSession, example_data: str, conf: str, narrows: str, n_predicates: int | None
) -> None:
    """Every predicate; a few of them where nothing is narrowed."""
    every = load(spark, example_data).select(*COLUMNS).collect()
    times = sorted(row.timestamp for row in every)
    bounds = {"early": times[len(times) // 3], "late": times[2 * len(times) // 3]}
    local = spark.createDataFrame(every, load(spark, example_data).select(*COLUMNS).schema)
    spark.conf.set(CONF, conf)
    try:
        for text in PREDICATES[:n_predicates]:
            predicate = text.format(**bounds)
            frame = load(spark, example_data, filterPushdown=narrows).where(predicate)
            found = frame.select(*COLUMNS).collect()
            assert sorted(local.where(predicate).collect(), key=ORDER) == sorted(found, key=ORDER)
    finally:
        spark.conf.unset(CONF)


@pytest.mark.parametrize(
    ("predicate", "n_narrowed"),
    [
        ("topic = 'orders' and partition = 1", 1),
        ("topic like 'ord%'", 3),
        ("offset >= 300 and offset < 310", 2),
        ("offset < 0", 1),
        ("timestamp > timestamp'2999-01-01'", 1),
    ],
)
def test_partitions_that_cannot_match_get_no_task(
    spark: SparkSession, example_data: str, conf_on: None, predicate: str, n_narrowed: int
) -> None:
    """The option and Spark's configuration are both needed."""
    plain = n_tasks(load(spark, example_data))

    assert plain > 3
    assert plain == n_tasks(load(spark, example_data).where(predicate))
    narrowed = load(spark, example_data, filterPushdown="true").where(predicate)
    assert n_narrowed == n_tasks(narrowed)
    spark.conf.unset(CONF)
    assert plain == n_tasks(load(spark, example_data, filterPushdown="true").where(predicate))


def test_spark_leaks_a_narrowed_plan_into_other_queries(
    spark: SparkSession, example_data: str, conf_on: None
) -> None:
    """Once Spark keeps the result of a push-down to its query, narrowing can be the default."""
    plain, narrowing = (
        load(spark, example_data, filterPushdown=each) for each in ("false", "true")
    )
    counts = [
        [frame.where("topic = 'orders'").count(), frame.count()] for frame in (plain, narrowing)
    ]

    assert [[900, 1062], [900, 900]] == counts


def test_a_schema_of_fewer_columns_is_narrowed_too(
    spark: SparkSession, example_data: str, conf_on: None
) -> None:
    """Filters name the columns that are there."""
    frame = (
        spark.read.schema("offset bigint, topic string")
        .format("segmentlog")
        .option("filterPushdown", "true")
        .load(example_data)
    )

    assert 20 == frame.where("topic = 'orders' and offset >= 100 and offset < 110").count() - 10


WITHOUT_DAEMON = """
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.python.use.daemon", "false").getOrCreate()
)
def orders():
    reader = spark.read.format("segmentlog").option("filterPushdown", "true")
    frame = reader.option("assign", '{{"orders":[0,1]}}').load({path!r})
    return frame.where("partition = 0")
found = [orders().count()]
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
print(*found, orders().count(), orders().rdd.getNumPartitions())
spark.stop()
"""


@pytest.mark.thorough
def test_spark_without_its_daemon_narrows_alike(example_data: str) -> None:
    """Each worker is then a process of its own, with another name on its command line."""
    assert "335 335 1" == run(WITHOUT_DAEMON.format(path=example_data)).splitlines()[-1]
