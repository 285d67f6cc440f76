"""An audit as a Spark job finds what plain Python finds."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import pyspark_segmentlog
import segmentlog
from segmentlog.audits import parts
from segmentlog.errors import ColumnError, OptionError
from segmentlog.testing.kafka_log import KafkaLog

pytestmark = pytest.mark.thorough

BY_OFFSET = ["topic", "partition", "finding", "start_offset"]


def write(path: Path) -> KafkaLog:
    """Two topics with aborted and deleted records, gaps, and an open transaction."""
    log = KafkaLog(path)
    log.create_topic("t", 3)
    for partition in range(2):
        log.write("t", [b"%d" % i for i in range(40)], partition=partition)
        with log.transaction() as transaction:
            transaction.write("t", [b"a"] * 5, partition=partition)
            transaction.abort()
        log.gap("t", 7, partition=partition)
        log.write("t", [b"%d" % i for i in range(40)], partition=partition)
    log.delete_records("t", 5, partition=1)
    log.write("u", [b"v"] * 9)
    log.transaction().__enter__().write("u", [b"o"])
    return log


def table() -> pa.Table:
    """Rows of each kind, in no order."""
    draw = np.random.default_rng(5)
    n = 300
    rows: dict[str, Any] = {
        "topic": draw.choice(["t", "t", "t", "u", "x"], n),
        "partition": draw.integers(0, 4, n).astype(np.int32),
        "offset": [None if each == 99 else int(each) for each in draw.integers(-2, 110, n)],
        "value": [b"%d" % each for each in draw.integers(0, 9, n)],
    }
    return pa.table(rows)


def sorted_rows(found: DataFrame | pa.RecordBatchReader, *by: str) -> list[Any]:
    rows = found.toArrow() if isinstance(found, DataFrame) else found.read_all()
    return rows.sort_by([(each, "ascending") for each in by]).to_pylist()


@pytest.mark.parametrize("n_offsets", [50, 1000], ids=["many parts", "a part a partition"])
def test_as_in_plain_python(
    any_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_offsets: int
) -> None:
    """Each result, each range and each missing record is the same."""
    monkeypatch.setattr(parts, "_PART_OFFSETS", n_offsets)
    write(tmp_path)
    rows = table()
    frame = any_spark.createDataFrame(rows).repartition(3)

    options: dict[str, Any] = {"most_ranges": 3, "columns": ["timestamp", "value"]}
    expected = segmentlog.audit(tmp_path, ["t", "u"], rows, **options)
    found = pyspark_segmentlog.audit(any_spark, tmp_path, ["t", "u"], frame, **options)

    assert ("partition", "offset", "value") == expected.compared == found.compared
    assert 9 < expected.count("different")
    assert expected.partitions == found.partitions
    assert vars(expected).keys() - {"_bounds", "_ranges"} <= vars(found).keys()
    assert expected.unknown_partitions == found.unknown_partitions
    assert (expected.n_rows, expected.n_rows_without_offset, expected.n_rows_of_other_topics) == (
        found.n_rows,
        found.n_rows_without_offset,
        found.n_rows_of_other_topics,
    )
    ranges = sorted_rows(expected.ranges(), *BY_OFFSET)
    assert 20 < len(ranges)
    assert ranges == sorted_rows(found.ranges(), *BY_OFFSET)
    place = ("topic", "partition", "offset")
    every: list[dict[str, Any]] = [{}, {"include_headers": True, "strings": True}]
    for chosen in every:
        records = sorted_rows(expected.missing(**chosen), *place)
        assert records == sorted_rows(found.missing(**chosen), *place)
    assert found.missing(["offset"]).columns == ["offset"]
    found.unpersist()


def test_a_complete_table_and_bounds(spark: SparkSession, tmp_path: Path) -> None:
    """The rows of a read are complete; a bound leaves the others out."""
    write(tmp_path)
    options: dict[str, Any] = {"kafka.isolation.level": "read_committed"}
    rows = pyspark_segmentlog.read(spark, tmp_path, subscribe="t", **options)

    assert pyspark_segmentlog.audit(spark, tmp_path, "t", rows).is_complete
    ends = {("t", 0): 10, ("t", 1): 10, ("t", 2): 0}
    found = pyspark_segmentlog.audit(
        spark, tmp_path, "t", rows.where("offset != 8"), ending_offsets=ends
    )
    assert 2 == found.count("missing")


def test_nested_columns_and_a_topic_of_another_meaning(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As in plain Python."""
    KafkaLog(tmp_path).write("t", [b"v"] * 3)
    flat = spark.sql("select 0 `k.partition`, id `k.offset`, 'v' `the.value` from range(3)")
    frame = spark.sql("select 'sports' topic, struct(0 partition, id offset) k from range(2)")
    names: Any = {"partition_column": "k.partition", "offset_column": "k.offset"}

    with pytest.raises(OptionError, match="empty name"):
        pyspark_segmentlog.audit(spark, tmp_path, "t", frame, **names)
    dotted = pyspark_segmentlog.audit(
        spark, tmp_path, "t", flat, columns=["value=the.value"], **names
    )
    assert dotted.is_complete
    found = pyspark_segmentlog.audit(spark, tmp_path, "t", frame, topic_column="", **names)
    assert (1, 2) == (found.count("missing"), found.n_rows)


def test_a_table_of_sparks_file_sink(spark: SparkSession, tmp_path: Path) -> None:
    """A file that a micro-batch has left which never ended is not part of it."""
    log = KafkaLog(tmp_path / "logs")
    log.write("t", [b"v"] * 20)
    read = spark.readStream.format("segmentlog").option("subscribe", "t")
    read = read.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 10)
    rows = read.load(str(log.path)).select("partition", "offset")
    table = tmp_path / "a table"
    query = rows.writeStream.format("parquet").partitionBy("partition")
    query = query.option("checkpointLocation", str(tmp_path / "query"))
    query.trigger(availableNow=True).start(str(table)).awaitTermination()

    assert segmentlog.audit(log, "t", table).is_complete
    (table / "_spark_metadata" / "1").unlink()
    assert 10 == segmentlog.audit(log, "t", table).count("missing")
    assert 10 == spark.read.parquet(str(table)).count()


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Before a job, or by the error of a task, which is that of plain Python."""
    write(tmp_path)
    frame = spark.sql("select 0 partition, '0.5' offset, 'x' topic, map(1, 2) other")

    with pytest.raises(ColumnError, match="whole numbers of 64 bits"):
        pyspark_segmentlog.audit(spark, tmp_path, "t", frame)
    with pytest.raises(ColumnError, match="'part' is missing"):
        pyspark_segmentlog.audit(spark, tmp_path, "t", frame, partition_column="part")
    with pytest.raises(OptionError, match="a DataFrame of Spark"):
        pyspark_segmentlog.audit(spark, tmp_path, "t", "/lake/t")  # type: ignore[arg-type]
    found = pyspark_segmentlog.audit(spark, tmp_path, "u", frame.where("false"))
    with pytest.raises(OptionError, match="columns are"):
        found.missing(["nothing"])
    with pytest.raises(OptionError, match="findings"):
        found.ranges("vanished")
