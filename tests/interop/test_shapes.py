"""Every shape of record that real clients and brokers write, against the broker's consumer."""

from pathlib import Path

import pytest
from kafka_here import Broker, JavaClient, shapes
from kafka_here.records import rows_of
from pyspark.sql import SparkSession

import segmentlog

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def stopped(filled: tuple) -> tuple:
    """The directories of a stopped broker of each version, and the dumps of Kafka's tool."""
    broker, made = filled
    seen = shapes.batches(broker.dump(sorted(made.log_dir.glob("*/*.log"))))
    return made, seen


@pytest.mark.parametrize("topic", shapes.SHAPES)
def test_rows_equal_the_consumers(stopped: tuple, topic: str) -> None:
    """Every field of every record equals what the broker's own consumer returned."""
    made, seen = stopped
    directory = segmentlog.open_log_dir(made.log_dir)
    expected = made.rows[topic]

    assert shapes.SHAPES[topic].check(seen[topic], expected), "the shape is not in the data"
    found = []
    for partition in directory.topics()[topic]:
        found += rows_of(directory.log(topic, partition).scan(include_headers=True).read_all())
    assert expected == found


def test_an_empty_partition_has_no_rows(stopped: tuple) -> None:
    """A partition without any write has no rows."""
    made, _ = stopped
    log = segmentlog.open_log_dir(made.log_dir).log("segments", 2)

    assert (log.log_start_offset, log.log_end_offset, log.scan().read_all().num_rows) == (0, 0, 0)


def test_many_slices_hold_the_same_rows_as_one(stopped: tuple) -> None:
    """Slices are cut at index entries. No record is missing, and none comes twice."""
    from segmentlog.reads.scan import scan_slice

    made, _ = stopped
    log = segmentlog.open_log_dir(made.log_dir).log("segments", 1)
    slices = log.slices(100, log.log_end_offset - 50, 50_000)
    offsets = [
        offset
        for log_slice in slices
        for batch in scan_slice(log_slice, columns=["offset"])
        for offset in batch.column(0).to_pylist()
    ]

    assert len(log.segments) > 1
    assert len(slices) > 10
    assert list(range(100, log.log_end_offset - 50)) == offsets


def test_spark_reads_the_same_rows(stopped: tuple, spark: SparkSession) -> None:
    """Spark reads the whole directory, and each topic has the rows that the consumers counted."""
    made, _ = stopped
    counts = (
        spark.read.format("segmentlog")
        .option("maxBytesPerPartition", "100k")
        .load(str(made.log_dir))
        .groupBy("topic")
        .count()
        .collect()
    )

    assert {topic: len(rows) for topic, rows in made.rows.items()} == dict(counts)


def test_look_ups_by_time_answer_as_the_broker_did(version: str, tmp_path: Path) -> None:
    """The log has several segments, and times out of order."""
    broker = Broker(tmp_path / "kafka", version)
    with broker, JavaClient(broker) as client:
        for topic in ("segments", "months", "append-time", "java-zstd"):
            shapes.SHAPES[topic].make(broker, client, topic)
        times = [0, 1_700_000_000_000 - 86_400_000, 1_700_000_000_000, 1_700_000_000_001]
        times += [1_700_000_001_499, 1_700_000_002_998, 1_700_000_002_999, 1_700_000_003_000]
        times += [1_700_000_000_000 + 90 * 86_400_000, 4_000_000_000_000]
        asked = [
            (topic, partition, time)
            for topic, partition in (
                ("segments", 0),
                ("segments", 1),
                ("segments", 2),
                ("months", 0),
                ("append-time", 0),
                ("java-zstd", 0),
            )
            for time in times
        ]
        answers = [client.offset_for_timestamp(*each) for each in asked]
    directory = segmentlog.open_log_dir(broker.log_dir)
    found = [directory.log(topic, p).offset_for_timestamp(time) for topic, p, time in asked]

    assert any(answer is not None for answer in answers)
    assert answers == [None if each is None else each.offset for each in found]
