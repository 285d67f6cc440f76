"""Rows that fill whole segments, so that a commit moves their staged files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from segmentlog.format.topic_config import TopicConfig
from segmentlog.writes.append import Extent
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob

#: A segment takes four of the pieces that a task stages at a time.
LARGE = ProducerConfig(TopicConfig(segment_bytes=400_000), batch_size=9_000, buffer_memory=80_000)


def wide_rows(first: int, n_rows: int, partition: int = 0) -> pa.RecordBatch:
    """Numbered values of a hundred bytes."""
    values = pa.array([b"%0100d" % i for i in range(first, first + n_rows)], pa.binary())
    numbers = pa.array([partition] * n_rows, pa.int32())
    return pa.record_batch({"value": values, "partition": numbers})


def pieces(first: int, n_rows: int, partition: int = 0) -> Iterator[pa.RecordBatch]:
    """Numbered values, in Arrow batches of a buffer's size."""
    for at in range(first, first + n_rows, 700):
        yield wide_rows(at, min(700, first + n_rows - at), partition)


def staged(
    directory: Path,
    *tasks: Sequence[pa.RecordBatch],
    config: ProducerConfig = LARGE,
    deletes_records: bool = False,
) -> tuple[WriteJob, list[Extent]]:
    """A job of some tasks before its commit."""
    job = WriteJob.begin(
        WriteRequest(str(directory), config, topic="t", overwrite=deletes_records)
    )
    extents: list[Extent] = []
    for number, batches in enumerate(tasks):
        stager = job.stager(number)
        for batch in batches:
            stager.add(batch)
        extents += stager.finish()
    return job, extents
