"""Tables of Kafka's own topics in Spark."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
from coordinator_logs import Coordinator
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StringType

import pyspark_segmentlog
import segmentlog
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.table import TableOptions, TableReader, table_columns
from segmentlog.errors import ColumnError, OptionError
from segmentlog.kafka_tables.open_table import TABLES

TOP = Path(__file__).parents[3]
COMMITS = {
    bytes.fromhex("000100016700017400000003"): bytes.fromhex(
        "000300000000000000050000000200016d00000000000003e8"
    ),
    bytes.fromhex("000100016800017400000003"): bytes.fromhex(
        "0004000000000000000600000002026d00000000000003e800"
    ),
}


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with two committed offsets."""
    directory = tmp_path_factory.mktemp("logs")
    with segmentlog.open_writer(directory, "c") as writer:
        writer.append(pa.table({"key": [*COMMITS], "value": [*COMMITS.values()]}))
    (directory / "c-0").rename(directory / "__consumer_offsets-0")
    return str(directory)


@pytest.mark.spark
def test_a_table_is_an_option_of_a_read(spark: SparkSession, groups: str) -> None:
    """DataFrames, temporary views and tables of the catalog have its rows and its columns."""
    frame = spark.read.format("segmentlog").option("table", "group_offsets").load(groups)
    expected = segmentlog.table(groups, "group_offsets")

    assert expected.column_names == frame.columns
    assert expected.sort_by("group").equals(frame.toArrow().sort_by("group").cast(expected.schema))
    made = pyspark_segmentlog.read(spark, groups, table="group_offsets")
    assert expected.column_names == made.columns
    chosen = pyspark_segmentlog.read(spark, groups, ["offset", "group"], TABLE="group_offsets")
    assert [(5, "g"), (6, "h")] == sorted(map(tuple, chosen.collect()))
    with pytest.raises(ColumnError, match="the columns of group_offsets are group,"):
        pyspark_segmentlog.read(spark, groups, "key", table="group_offsets")
    with pytest.raises(OptionError, match=r"'strings' .* an option of records"):
        pyspark_segmentlog.read(spark, groups, "group", table="group_offsets", strings=True)


@pytest.mark.spark
def test_the_topic_of_a_table_may_have_another_name(spark: SparkSession, tmp_path: Path) -> None:
    """The option is that of Python's parameter. Tables whose topic is fixed refuse it."""
    pair = (b'["files",{"filename":"f"}]', b'{"position":7}')
    Coordinator().add(pair).write(tmp_path, 0, "places")
    expected = segmentlog.table(tmp_path, "connect_offsets", topic="places")
    read = spark.read.format("segmentlog").option("table", "connect_offsets")
    frame = read.option("Topic", " places ").load(str(tmp_path))

    assert expected.num_rows == 1
    assert expected.equals(frame.toArrow().cast(expected.schema))
    with pytest.raises(PySparkException, match="Kafka fixes the topic of group_offsets"):
        _ = (
            read.option("table", "group_offsets")
            .option("topic", "places")
            .load(str(tmp_path))
            .schema
        )


@pytest.mark.spark
def test_views_and_tables_of_sql(spark: SparkSession, groups: str) -> None:
    """A view keeps the options, and a table of the catalog keeps them with its columns."""
    options = f"OPTIONS (path '{groups}', table 'group_offsets', history true)"
    spark.sql(f"CREATE TEMPORARY VIEW changes USING segmentlog {options}")
    spark.sql(f"CREATE TABLE kept_changes USING segmentlog {options}")
    try:
        for name in ("changes", "kept_changes"):
            rows = spark.sql(f"SELECT change, offset FROM {name} ORDER BY offset").collect()
            assert [("set", 5), ("set", 6)] == [tuple(row) for row in rows]
    finally:
        spark.sql("DROP VIEW changes")
        spark.sql("DROP TABLE kept_changes")


@pytest.mark.spark
def test_the_reads_of_the_document_run(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of `storage/docs/tables.md` that use Spark run on the example."""
    monkeypatch.chdir(TOP)
    text = (TOP / "storage" / "docs" / "tables.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    of_spark = [block for block in blocks if "spark." in block]
    assert of_spark
    try:
        for block in of_spark:
            exec(compile(block, "tables.md", "exec"), {"spark": spark})
        assert spark.table("changes").count()
    finally:
        spark.sql("DROP VIEW IF EXISTS changes")


@pytest.mark.spark
def test_a_wrong_table_is_an_error_of_load(spark: SparkSession, groups: str) -> None:
    """The message lists the tables."""
    with pytest.raises(PySparkException, match="give one of group_offsets"):
        _ = spark.read.format("segmentlog").option("table", "offsets").load(groups).schema


@pytest.mark.parametrize(
    ("raw", "option", "reason"),
    [
        ({"subscribe": "a"}, "subscribe", "it is an option of records; a table takes path"),
        ({"startingOffsets": "earliest"}, "startingOffsets", "it is an option of records"),
        ({"includeHeaders": "true"}, "includeHeaders", "it is an option of records"),
        ({"history": "yes"}, "history", "give true or false"),
        ({"topic": " "}, "topic", "give a topic"),
        ({"path": None}, "path", "name a Kafka log directory"),
    ],
)
def test_options_that_do_not_go_with_a_table(
    raw: dict[str, str | None], option: str, reason: str
) -> None:
    """The error names the option, and lists those that a table takes."""
    given = {"path": "/d", "table": "group_offsets"} | raw
    with pytest.raises(OptionError, match=reason) as caught:
        TableOptions.parse({name: value for name, value in given.items() if value is not None})
    assert option == caught.value.option


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"table": "group_offsets"}, "read a table with spark.read"),
        ({"history": "true"}, "give the option table, too"),
    ],
)
def test_a_read_of_records_refuses_options_of_tables(raw: dict[str, str], reason: str) -> None:
    """A stream has no tables, and records have no history."""
    with pytest.raises(OptionError, match=reason):
        ReadOptions.parse({"path": "/d"} | raw)


def test_a_schema_selects_columns(groups: str) -> None:
    """A column that does not exist, or has another type, is an error."""
    options = TableOptions.parse({"path": groups, "table": "group_offsets"})
    whole = table_columns(options)
    chosen = type(whole)([whole["offset"], whole["group"]])
    reader = TableReader(options, chosen)
    batch = next(reader.read(reader.partitions()[0]))

    assert ["offset", "group"] == batch.schema.names
    wrong = type(whole)().add("offset", StringType())
    for schema, reason in (
        (wrong, "read it as bigint"),
        (wrong.add("x", IntegerType()), "read it as"),
    ):
        with pytest.raises(ColumnError, match=reason):
            TableReader(options, schema)
    with pytest.raises(ColumnError, match="the columns of group_offsets are group"):
        TableReader(options, type(whole)().add("x", IntegerType()))


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_types_of_spark(name: str) -> None:
    """Each column of each table, with and without its history, has a type of Spark."""
    for history in ("false", "true") if TABLES[name].history else ("false",):
        options = TableOptions.parse({"path": "/d", "table": name, "history": history})
        assert table_columns(options).names
