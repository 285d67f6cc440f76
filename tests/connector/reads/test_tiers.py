"""Spark reads logs that begin in tiered storage."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from stores_here import serve, store_of
from tiers import copy_segment, written

import segmentlog
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.reader import SegmentLogReader
from segmentlog.store import readable
from segmentlog.store.remote import object_store

pytestmark = pytest.mark.spark

TIER = Path(__file__).parents[3] / "examples" / "tier"


def load(spark: SparkSession, *paths: Path, topic: str = "visits", **options: str) -> DataFrame:
    reader = spark.read.format("segmentlog").options(subscribe=topic, **options)
    return reader.load([str(each) for each in paths]) if paths else reader.load()


@pytest.mark.needs_spark("a Connect client has no RDDs, whose partitions are counted")
def test_a_log_begins_in_its_tier(spark: SparkSession) -> None:
    """Tasks read their parts of remote segments; without the tier, the log is shorter."""
    tier = {"remoteStorage": str(TIER / "bucket"), "maxBytesPerPartition": "4k"}
    found = load(spark, TIER / "logs", **tier)

    assert 200 == load(spark, TIER / "logs").count()
    assert list(range(600)) == sorted(row.offset for row in found.select("offset").collect())
    assert found.rdd.getNumPartitions() > 4
    assert 50 == load(spark, TIER / "logs", lastRecords="50", **tier).count()


def test_a_tier_alone(spark: SparkSession) -> None:
    """No path is needed."""
    assert 400 == load(spark, remoteStorage=str(TIER / "bucket")).count()


def test_a_wrong_layout_is_refused(spark: SparkSession) -> None:
    """The message names what is accepted."""
    with pytest.raises(PySparkException, match="local or aiven"):
        load(spark, TIER / "logs", remoteStorage="/t", remoteStorageLayout="s3").count()


def test_an_unclean_election_between_two_queries(spark: SparkSession, tmp_path: Path) -> None:
    """Spark uses its workers again, and the second query has the records that have won."""
    lost, won, tier = tmp_path / "lost", tmp_path / "won", tmp_path / "tier"
    partition = written(lost, 3, 100)
    for base in (0, 100, 200):
        copy_segment(partition, tier, base, base + 100, ((0, 0), (1, 100))[: 1 + base // 100])
    options = {"remoteStorage": str(tier), "maxBytesPerPartition": "1k"}

    def values() -> list[str]:
        found = load(spark, topic="t", **options).selectExpr("cast(value as string)").collect()
        return sorted(row.value for row in found)

    assert sorted(f"{n}-{i}" for n in range(3) for i in range(100)) == values()
    partition = written(won, 3, 100, prefix=b"won ")
    for base in (100, 200):
        copy_segment(partition, tier, base, base + 100, ((0, 0), (2, 100)))
    expected = [f"0-{i}" for i in range(100)]
    expected += [f"won {n}-{i}" for n in (1, 2) for i in range(100)]

    assert sorted(expected) == values()


def test_a_worker_reads_a_url_that_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that planned the first query runs a task of the second one."""
    directory = written(tmp_path / "logs", 1, 100).parent
    options = ReadOptions.parse({"path": f"{serve(monkeypatch, store_of(tmp_path), 'b')}/logs"})
    reader = SegmentLogReader(options, ("offset",))
    for n_segments in (1, 2):
        with monkeypatch.context() as driver:
            if n_segments == 2:
                driver.setattr(object_store, "_disks", {})
                driver.setattr(readable, "_plan", "")
            tasks = [pickle.dumps(each) for each in reader.partitions()]
        batches = (batch for each in tasks for batch in reader.read(pickle.loads(each)))
        assert 100 * n_segments == sum(each.num_rows for each in batches)
        with segmentlog.open_writer(directory, "t") as writer:
            writer.roll()
            writer.append(pa.table({"value": [b"more"] * 100}))
