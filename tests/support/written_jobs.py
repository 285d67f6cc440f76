"""The writes in the golden archives, which `test_written` repeats and continues.

The code of earlier versions runs them, too.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import segmentlog
from segmentlog.txn.state import StreamBatch
from segmentlog.writes.config import WriteRequest
from segmentlog.writes.job import WriteJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = segmentlog.ProducerConfig(segmentlog.TopicConfig(segment_bytes=300))


def number(directory: Path, version: int) -> None:
    """A numbered write of four records to two partitions."""
    with segmentlog.open_writer(
        directory, "t", num_partitions=2, config=CONFIG, txn_app_id="app", txn_version=version
    ) as writer:
        values = [f"number {version} {i} {'v' * 60}" for i in range(4)]
        writer.append(pa.table({"value": values, "partition": [0, 1, 0, 1]}))


def stream(directory: Path, batch: int, run: str = "run") -> bool:
    """A batch of a streaming query, of two records; whether it was written."""
    job = WriteJob.begin(WriteRequest(str(directory), topic="s", stream="/checkpoints/s"))
    stager = job.stager(0)
    values = pa.array([b"batch %d %d" % (batch, i) for i in range(2)], pa.binary())
    stager.add(pa.record_batch({"value": values}))
    return job.commit([stager.finish()], batch=StreamBatch("query", batch, run)).is_new


def copy_stream(spark: "SparkSession", place: Path) -> None:
    """Copy what is new in the directory ``source`` to the directory ``sink``."""
    rows = spark.readStream.format("segmentlog").option("subscribe", "t")
    query = (
        rows.option("startingOffsets", "earliest")
        .load(str(place / "source"))
        .select("key", "value")
        .writeStream.format("segmentlog")
        .option("topic", "copy")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(place / "sink"))
    )
    query.awaitTermination()
