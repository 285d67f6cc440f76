"""An analysis as a Spark job gives what plain Python gives."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import pyspark_segmentlog
import segmentlog
from segmentlog.errors import UnknownTopicOrPartitionError

pytestmark = pytest.mark.thorough


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two topics, one of which has a damaged partition."""
    n = 2_000
    rows = pa.table(
        {
            "key": pa.array([b"k%d" % (i % 97) for i in range(n)], pa.binary()),
            "value": pa.array([b'{"n": %d}' % i for i in range(n)], pa.binary()),
        }
    )
    for topic, partitions in (("orders", 5), ("payments", 2)):
        with segmentlog.open_writer(tmp_path, topic, num_partitions=partitions) as writer:
            writer.append(rows)
    (log,) = (tmp_path / "orders-3").glob("*.log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    return tmp_path


def test_as_in_plain_python(spark: SparkSession, logs: Path) -> None:
    """Each figure, each finding and each problem is the same."""
    settings = {"retention.ms": "86400000"}
    found = pyspark_segmentlog.analyze(spark, logs, settings=settings, show_keys=True)
    expected = segmentlog.analyze(logs, settings=settings, show_keys=True)
    shown, plain = (each.to_json() | {"analyzedMs": 0} for each in (found, expected))

    assert plain == shown
    assert not found.is_sound
    assert 2_000 == found.topics[1].figures.n_records


def test_a_missing_topic_is_refused_before_a_job(spark: SparkSession, logs: Path) -> None:
    """With the error of plain Python."""
    with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        pyspark_segmentlog.analyze(spark, logs, topics="nowhere")
