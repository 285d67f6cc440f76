"""The job of a write that Spark has planned begins only if options and columns agree."""

import logging
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import ONE, write
from pyspark.sql.types import BinaryType, DoubleType, LongType, StructType

from pyspark_segmentlog.source import SegmentLogDataSource
from pyspark_segmentlog.writes.job import begin_write_job
from segmentlog.errors import ColumnError, OptionError

VALUE = StructType().add("value", BinaryType())


def test_a_job_has_what_the_options_say(tmp_path: Path) -> None:
    """Each option reaches the job."""
    raw = {
        "path": str(tmp_path),
        "topic": "t",
        "numPartitions": "3",
        "lockTimeout": "7",
        "txnAppId": "app",
        "txnVersion": "4",
        "kafka.batch.size": "100",
    }
    job = begin_write_job(raw, VALUE, overwrite=False)

    assert job.files.mark.exists()
    assert str(tmp_path) == job.directory
    assert ("t", 3) == (job.topics.topic, job.topics.n_partitions("t"))
    request = job.request
    assert (7, ("app", 4)) == (request.lock_timeout_seconds, request.numbered)
    assert not request.overwrite
    assert 100 == job.config.batch_size


def test_the_option_replaces_the_column_of_topics(tmp_path: Path) -> None:
    """The type of the column matters only without the option, as in `kafka`."""
    columns = StructType().add("value", BinaryType()).add("topic", LongType())
    raw = {"path": str(tmp_path)}

    assert "t" == begin_write_job({**raw, "topic": "t"}, columns, overwrite=False).topics.topic
    with pytest.raises(ColumnError, match="column 'topic' is bigint; it has to be string"):
        begin_write_job(raw, columns, overwrite=False)


def test_the_mode_and_the_option_say_the_same(tmp_path: Path) -> None:
    """Neither the mode alone nor the option alone overwrites a log."""
    raw = {"path": str(tmp_path / "logs"), "topic": "t"}
    deletes = {**raw, "deleteRecords": "true"}
    with pytest.raises(OptionError, match=r'is \'overwrite\'; a log only grows: use mode\("app'):
        begin_write_job(raw, VALUE, overwrite=True)
    with pytest.raises(OptionError, match=r"is 'append'; deleteRecords=true is for mode"):
        begin_write_job(deletes, VALUE, overwrite=False)
    assert not (tmp_path / "logs").exists()

    assert begin_write_job(deletes, VALUE, overwrite=True).request.overwrite


def test_columns_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match="value"):
        begin_write_job(
            {"path": str(tmp_path / "logs"), "topic": "t"},
            StructType().add("value", DoubleType()),
            overwrite=False,
        )

    assert not (tmp_path / "logs").exists()


def test_columns_that_are_lost_cause_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver warns once, and names the option that keeps them."""
    write(tmp_path, ONE, pa.table({"value": [b"w"]}))
    with caplog.at_level(logging.WARNING):
        begin_write_job(
            {"path": str(tmp_path), "topic": "t"},
            StructType().add("value", BinaryType()).add("offset", LongType()),
            overwrite=False,
        )

    assert "the rows have offset, which this write does not keep" in caplog.text
    assert "give preserve=true to keep" in caplog.text


@pytest.mark.parametrize("number", ["3", "1000001"])
def test_a_wrong_number_of_partitions_has_the_name_of_sparks_option(
    tmp_path: Path, number: str
) -> None:
    """The engine calls the argument ``num_partitions``, which is not an option in Spark."""
    write(tmp_path, ONE)
    with pytest.raises(OptionError, match=f"option 'numPartitions' is '{number}'"):
        SegmentLogDataSource(
            {"path": str(tmp_path), "topic": "t", "numPartitions": number}
        ).writer(VALUE, overwrite=False)
