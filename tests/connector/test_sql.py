"""SQL tables and views: reads, writes, and refusals with a remedy."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import segmentlog
from pyspark_segmentlog.spark_versions import IS_41

pytestmark = pytest.mark.spark

#: Of an INSERT that leaves out columns.
from_41 = pytest.mark.skipif(not IS_41, reason="Spark 4.0 wants a value for each column")

N_ORDERS = 900  # of the example's topic "orders"
N_ROWS = 1062  # of all its topics


@pytest.fixture
def sql(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """The session, with a database for this test."""
    spark.sql(f"CREATE DATABASE of_test LOCATION '{tmp_path / 'warehouse'}'")
    spark.sql("USE DATABASE of_test")
    yield spark
    spark.sql("USE DATABASE default")
    spark.sql("DROP DATABASE of_test CASCADE")
    for view in spark.catalog.listTables():
        spark.catalog.dropTempView(view.name)


def count(spark: SparkSession, query: str) -> int:
    """The number that a query counts."""
    return spark.sql(query).collect()[0][0]


@pytest.fixture
def logs(example_data: str, tmp_path: Path) -> str:
    """A copy of the example, under a name that a URI has to escape."""
    path = tmp_path / "lo%20gs #1?"
    shutil.copytree(example_data, path)
    return str(path)


@pytest.mark.parametrize(
    "clauses",
    [
        "OPTIONS (path '{}', subscribe 'orders')",
        pytest.param("OPTIONS (subscribe 'orders') LOCATION '{}'", marks=pytest.mark.slow),
        pytest.param(
            "OPTIONS (subscribe 'orders') LOCATION 'file://{}'",
            marks=pytest.mark.needs_spark("Sail takes the escaped characters of such a path out"),
        ),
        "LOCATION '{}' TBLPROPERTIES ('Subscribe' = 'orders', 'team' = 'b') COMMENT 'c'",
        pytest.param(
            "OPTIONS (paths '[\"{}\"]', subscribe 'orders')",
            marks=pytest.mark.needs_spark("Sail adds a path of its own to a table without one"),
        ),
    ],
)
def test_a_table_reads_with_its_options(sql: SparkSession, logs: str, clauses: str) -> None:
    """Any columns are selected, also through a view.

    Dropping the table does not delete the logs.
    """
    sql.sql("CREATE TABLE t USING segmentlog " + clauses.format(logs))
    sql.sql("CREATE VIEW v AS SELECT offset, value FROM t")

    assert N_ORDERS == count(sql, "SELECT count(*) FROM t")
    assert N_ORDERS == count(sql, "SELECT count(value) FROM v")
    sql.sql("DROP TABLE t PURGE")
    assert N_ROWS == sql.read.format("segmentlog").load(logs).count()


@pytest.mark.needs_spark("Sail's catalog makes no table without a schema")
def test_a_table_of_the_catalogs_own_api_reads(sql: SparkSession, logs: str) -> None:
    """The table is like a table made by SQL."""
    made = sql.catalog.createTable("t", path=logs, source="segmentlog", subscribe="orders")

    assert N_ORDERS == made.count() == sql.table("t").count()


@pytest.mark.needs_spark("Sail alters no column")
def test_a_table_has_the_column_that_its_options_add(sql: SparkSession, logs: str) -> None:
    """A comment on the column that holds the options does not remove them."""
    options = f"OPTIONS (path '{logs}', includeHeaders true, subscribe 'orders')"
    sql.sql(f"CREATE TABLE t USING segmentlog {options}")
    sql.sql("ALTER TABLE t ALTER COLUMN key COMMENT 'the customer'")

    assert "headers" in sql.table("t").columns
    assert N_ORDERS == count(sql, "SELECT count(*) FROM t")


@pytest.mark.needs_spark("Sail's SQL has no options in a query or an INSERT")
def test_options_of_a_query_come_before_those_of_the_table(sql: SparkSession, logs: str) -> None:
    """Another way to name topics or a start replaces the table's way."""
    sql.sql(f"CREATE TABLE t USING segmentlog OPTIONS (path '{logs}', subscribe 'orders')")
    sql.sql(f"CREATE TABLE plain USING segmentlog OPTIONS (path '{logs}')")
    times = "startingTimestamp '2100-01-01', startingOffsetsByTimestampStrategy 'latest'"
    sql.sql(f"CREATE TABLE late USING segmentlog OPTIONS (path '{logs}', {times})")

    assert 0 == count(sql, "SELECT count(*) FROM late")
    assert N_ROWS == count(sql, "SELECT count(*) FROM late WITH (startingOffsets = 'earliest')")
    assert 120 == count(sql, "SELECT count(*) FROM t WITH (Subscribe = 'payments')")
    assert 335 == count(sql, """SELECT count(*) FROM t WITH (assign = '{"orders": [0]}')""")
    assert 120 == sql.read.option("subscribePattern", "pay").table("t").count()
    assert 335 == sql.read.option("assign", '{"orders":[0]}').table("plain").count()
    with pytest.raises(PySparkException, match="give this option in CREATE TABLE"):
        sql.read.option("includeHeaders", "true").table("t").count()
    with pytest.raises(PySparkException, match="did you mean 'subscribe'"):
        count(sql, "SELECT count(*) FROM t WITH (subscrib = 'payments')")


def test_options_of_a_table_do_not_follow_its_schema(sql: SparkSession, logs: str) -> None:
    """A read that has a path reads all topics there."""
    sql.sql(f"CREATE TABLE t USING segmentlog OPTIONS (path '{logs}', subscribe 'orders')")
    schema = sql.table("t").schema

    assert N_ROWS == sql.read.schema(schema).format("segmentlog").load(logs).count()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clauses", "says"),
    [
        ("OPTIONS (path '{}', subscirbe 'orders')", "did you mean 'subscribe'"),
        ("OPTIONS (path '{}', topic 'orders')", "an option of writes; .* subscribe"),
        ("OPTIONS (subscribe 'orders')", "CREATE TABLE t USING segmentlog OPTIONS"),
        ("LOCATION 'kafka/logs'", "a table needs an absolute path"),
    ],
)
@pytest.mark.needs_spark("Sail asks a data source at a table's first query, not when it is made")
def test_a_table_that_could_not_be_read_is_not_created(
    sql: SparkSession, logs: str, clauses: str, says: str
) -> None:
    """The options are checked when the table is made."""
    with pytest.raises(PySparkException, match=says):
        sql.sql("CREATE TABLE t USING segmentlog " + clauses.format(logs))
    assert not sql.catalog.tableExists("t")


@pytest.mark.needs_spark("Sail keeps the options of such tables")
def test_a_table_without_options_says_how_to_make_one(sql: SparkSession, logs: str) -> None:
    """The table has columns of the user's, or `saveAsTable` made it.

    Spark keeps no options of such tables.
    """
    sql.sql(f"CREATE TABLE own (value BINARY) USING segmentlog OPTIONS (path '{logs}')")
    Path(f"{logs}-of-own").mkdir()  # a write makes no directory whose name could be a pattern
    frame = sql.sql("SELECT 'v' value").write.format("segmentlog").mode("append")
    frame.option("topic", "new").option("path", f"{logs}-of-own").saveAsTable("saved")
    for table in ("own", "saved"):
        with pytest.raises(PySparkException, match=r"without a list of columns.* saveAsTable"):
            sql.table(table).count()

    assert 1 == sql.read.format("segmentlog").load(f"{logs}-of-own").count()


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("INSERT INTO t (value) VALUES (X'00')", marks=from_41),
        pytest.param("INSERT OVERWRITE t (value) VALUES (X'00')", marks=from_41),
        pytest.param(
            "INSERT INTO t WITH (topic = 'orders') (value) VALUES (X'00')", marks=from_41
        ),
        "CREATE TABLE u USING segmentlog OPTIONS (path '{}', topic 'n') AS SELECT 'v' value",
    ],
)
@pytest.mark.needs_spark("Sail passes the path of a table to a write")
def test_a_write_needs_a_path_of_its_own(sql: SparkSession, logs: str, statement: str) -> None:
    """Spark does not pass the table's path to a write. No file is made."""
    sql.sql(f"CREATE TABLE t USING segmentlog OPTIONS (path '{logs}')")
    before = sorted(Path(logs).iterdir())
    with pytest.raises(PySparkException, match=r"INSERT INTO t WITH \(path '/data/logs'"):
        sql.sql(statement.format(logs))

    assert before == sorted(Path(logs).iterdir())
    assert not sql.catalog.tableExists("u")


@pytest.mark.needs_spark("Sail gives such a table a path in its warehouse")
def test_save_as_table_needs_a_path(sql: SparkSession, tmp_path: Path) -> None:
    """No table is left that cannot be read."""
    frame = sql.sql("SELECT 'v' value").write.format("segmentlog").option("topic", "t")
    with pytest.raises(PySparkException, match=r'\.save\("/data/logs"\)'):
        frame.mode("append").saveAsTable("saved")

    assert not sql.catalog.tableExists("saved")


@from_41
@pytest.mark.needs_spark("Sail's SQL has no options in a query or an INSERT")
def test_rows_are_inserted_with_options_in_the_statement(
    sql: SparkSession, tmp_path: Path
) -> None:
    """Columns that the statement does not name stay empty."""
    logs = str(tmp_path / "logs")
    segmentlog.open_writer(logs, "orders", num_partitions=3).close()
    sql.sql(f"CREATE TABLE t USING segmentlog OPTIONS (path '{logs}')")
    into = f"INSERT INTO t WITH (path '{logs}', topic 'orders')"
    sql.sql(f"{into} (key, value) VALUES (X'01', X'02'), (X'03', NULL)")
    sql.sql(f"{into} BY NAME SELECT X'04' AS value")

    found = sql.sql("SELECT hex(key), hex(value) FROM t ORDER BY value").collect()
    assert [("03", None), ("01", "02"), (None, "04")] == [tuple(row) for row in found]


def test_a_view_that_is_made_for_it_takes_rows(sql: SparkSession, tmp_path: Path) -> None:
    """The view has the columns of the rows and the options of a write."""
    logs = str(tmp_path / "logs")
    sql.sql(
        "CREATE TEMPORARY VIEW sink (key STRING, value STRING) USING segmentlog "
        f"OPTIONS (path '{logs}', topic 'orders', numPartitions 3)"
    )
    sql.sql("INSERT INTO sink VALUES ('k', 'v'), ('l', NULL)")

    assert 2 == sql.read.format("segmentlog").load(logs).count()
    with pytest.raises(PySparkException, match="an option of writes"):
        sql.table("sink").count()


@from_41
@pytest.mark.needs_spark("Sail compares the number of columns first")
def test_a_view_that_reads_says_how_to_write(sql: SparkSession, logs: str) -> None:
    """The view has the options of a read."""
    sql.sql(
        "CREATE TEMPORARY VIEW source USING segmentlog "
        f"OPTIONS (path '{logs}', subscribe 'orders')"
    )

    assert N_ORDERS == count(sql, "SELECT count(*) FROM source")
    with pytest.raises(PySparkException, match=r"'subscribe'.*an option of reads.*VIEW sink"):
        sql.sql("INSERT INTO source (value) VALUES (X'00')")
