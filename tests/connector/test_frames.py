"""DataFrames of chosen columns: `pyspark_segmentlog.read`."""

from pathlib import Path

import pytest
from plain_writes import ONE, write
from pyspark.sql import SparkSession

import pyspark_segmentlog
from segmentlog.errors import ColumnError

pytestmark = pytest.mark.spark


def test_columns_are_chosen_by_name(spark: SparkSession, example_data: str) -> None:
    """One column is chosen, or several. The options are those of any read."""
    counted = pyspark_segmentlog.read(spark, Path(example_data), "partition", subscribe="orders")
    rows = pyspark_segmentlog.read(
        spark, example_data, ["offset", "topic"], assign='{"orders":[0]}', lastRecords=2
    )

    assert ["partition"] == counted.columns
    assert (900, [(333, "orders"), (334, "orders")]) == (
        counted.count(), sorted(map(tuple, rows.collect())),
    )  # fmt: skip


def test_keys_and_values_are_strings_if_asked_for(spark: SparkSession, example_data: str) -> None:
    """All columns are returned, in the order of a read without a schema."""
    rows = pyspark_segmentlog.read(
        spark, example_data, strings=True, subscribe="orders", lastRecords=1, includeHeaders=True
    )
    plain = spark.read.format("segmentlog").option("includeHeaders", "true").load(example_data)

    assert plain.columns == rows.columns
    assert ["string", "string"] == [kind for _, kind in rows.dtypes[:2]]
    assert rows.first().key.startswith("customer-")
    assert plain.schema == pyspark_segmentlog.read(spark, example_data, includeHeaders=True).schema


def test_several_directories_of_one_broker_are_read(
    spark: SparkSession, example_data: str, tmp_path: Path
) -> None:
    """The rows are those of `load([...])`."""
    write(tmp_path, ONE, topic="more")
    rows = pyspark_segmentlog.read(
        spark, [example_data, tmp_path], "topic", subscribe="orders,more"
    )

    assert 901 == rows.count()


def test_a_wrong_column_is_refused_before_spark_is_asked(
    spark: SparkSession, example_data: str
) -> None:
    """The message has the name that was probably meant."""
    with pytest.raises(ColumnError, match="did you mean 'offset'"):
        pyspark_segmentlog.read(spark, example_data, "ofset")
    with pytest.raises(ColumnError, match="leave out all but one"):
        pyspark_segmentlog.read(spark, example_data, ["key", "key"])
