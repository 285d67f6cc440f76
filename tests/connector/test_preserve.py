"""Rows that are read and written back: the columns that are kept, and the warnings."""

import logging
import warnings
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import segmentlog
from pyspark_segmentlog import SegmentLogDataSource
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.options.write_options import write_request
from pyspark_segmentlog.reads.schema import row_schema
from segmentlog.errors import OptionError

LOST = "the rows have timestamp, timestampType, offset, which this write does not keep"
NO_HEADERS = "have no column headers"


def warnings_of_write(
    caplog: pytest.LogCaptureFixture, path: Path, *left: str, **options: str
) -> list[str]:
    """The warnings when Spark asks for a writer of all columns except `left`."""
    caplog.clear()
    columns = [field for field in row_schema(include_headers=True) if field.name not in left]
    schema = type(row_schema(include_headers=True))(columns)
    with caplog.at_level(logging.WARNING):
        SegmentLogDataSource({"path": str(path), **options}).writer(schema, False)
    return [record.getMessage() for record in caplog.records]


def test_columns_that_a_write_does_not_keep_are_named(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Each job warns once, and names the option that keeps them.

    Rows without the columns cause no warning.
    """
    (said,) = warnings_of_write(caplog, tmp_path)
    assert LOST in said
    assert "give preserve=true to keep" in said
    (said,) = warnings_of_write(caplog, tmp_path, includeTimestamp="true", includeOffset="true")
    assert "the rows have timestampType, which" in said
    (said,) = warnings_of_write(caplog, tmp_path, "timestamp", "timestampType")
    assert "the rows have offset, which" in said
    assert [] == warnings_of_write(caplog, tmp_path, "timestamp", "timestampType", "offset")
    assert [] == warnings_of_write(caplog, tmp_path, preserve="true")
    (said,) = warnings_of_write(caplog, tmp_path, "headers", preserve="true")
    assert NO_HEADERS in said


def test_preserve_is_the_default_of_what_it_stands_for() -> None:
    """Each option that is given takes precedence over it."""
    config = write_request({"path": "/d", "preserve": "true"}).config
    assert (True, True, True) == (
        config.use_timestamps,
        config.use_timestamp_types,
        config.use_offsets,
    )
    raw = {"path": "/d", "preserve": "true", "includeOffset": "false"}
    config = write_request(raw).config
    assert (True, False) == (config.use_timestamp_types, config.use_offsets)
    assert ReadOptions.parse({"path": "/d", "preserve": "true"}).include_headers
    raw = {"path": "/d", "preserve": "true", "includeHeaders": "false"}
    assert not ReadOptions.parse(raw).include_headers
    for parse in (ReadOptions.parse, write_request):
        with pytest.raises(OptionError, match="give true or false"):
            parse({"path": "/d", "preserve": "yes"})


def test_plain_python_says_and_keeps_the_same(example_data: str, tmp_path: Path) -> None:
    """A writer warns once, for all of its appends."""
    log = segmentlog.open_log_dir(example_data).log("orders", 1)
    table = log.scan(include_headers=True).read_all()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with segmentlog.open_writer(tmp_path / "lost", "orders", num_partitions=3) as writer:
            writer.append(table)
            writer.append(table)
    assert [True] == [LOST in str(each.message) for each in found]
    with segmentlog.open_writer(
        tmp_path / "kept", "orders", num_partitions=3, preserve=True
    ) as writer:
        writer.append(table)

    kept = segmentlog.open_log_dir(tmp_path / "kept").log("orders", 1)
    assert table == kept.scan(include_headers=True).read_all()


@pytest.mark.thorough
@pytest.mark.spark
def test_a_topic_comes_back_as_it_was(
    spark: SparkSession, example_data: str, tmp_path: Path
) -> None:
    """All columns of all rows come back. A first write that fails does not stop the next."""
    reader = spark.read.format("segmentlog").option("preserve", "true")
    rows = reader.option("subscribe", "orders").load(example_data)
    write = rows.write.format("segmentlog").option("preserve", "true").mode("append")
    with pytest.raises(
        Exception, match=r"numPartitions\) is the number of partitions of a new topic"
    ):
        write.option("numPartitions", "2").save(str(tmp_path))
    rows.write.format("segmentlog").option("preserve", "true").mode("append").save(str(tmp_path))
    with pytest.raises(Exception, match="exists and has 3 partitions: give this number"):
        write.option("topic", "orders").option("numPartitions", "4").save(str(tmp_path))

    order = ("partition", "offset")
    found = reader.load(str(tmp_path)).orderBy(*order).collect()
    assert rows.orderBy(*order).collect() == found
    assert 900 == len(found)
