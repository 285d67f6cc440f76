"""Reads of the connector without Spark, and logs whose timestamps are chosen."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

import segmentlog
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.planner import LateRange, plan_late_ranges, plan_slices
from pyspark_segmentlog.reads.task import read_late_range, read_slice
from segmentlog.format.topic_config import TopicConfig
from segmentlog.model import LogSlice, TopicPartition
from segmentlog.writes.config import ProducerConfig

_COLUMNS = ("topic", "partition", "offset")


def write_times(
    directory: Path,
    times: Mapping[int, Sequence[int]],
    topic: str = "t",
    *,
    segment_bytes: int = 1 << 30,
) -> None:
    """Write one job of records with these timestamps (epoch milliseconds), by partition."""
    rows = [(partition, at) for partition, found in times.items() for at in found]
    table = pa.table(
        {
            "value": pa.array([b"%d" % at for _, at in rows], pa.binary()),
            "partition": pa.array([partition for partition, _ in rows], pa.int32()),
            "timestamp": pa.array([at * 1000 for _, at in rows], pa.timestamp("us", "UTC")),
        }
    )
    config = ProducerConfig(
        topic_config=TopicConfig(segment_bytes=segment_bytes),
        batch_size=1,
        use_timestamps=True,
    )
    n_partitions = max(times) + 1
    with segmentlog.open_writer(
        directory, topic, num_partitions=n_partitions, config=config
    ) as writer:
        writer.append(table)


def plan(path: Path | str, **options: str) -> list[LogSlice] | list[LateRange]:
    """The plan of a query, in the order of its tasks."""
    parsed = ReadOptions.parse({"path": str(path), **options})
    return plan_late_ranges(parsed) if parsed.late_binding else plan_slices(parsed)


def ranges(path: Path | str, **options: str) -> list[tuple[int, int, int]]:
    """Partition, start and end of each task, for a directory of one topic."""
    planned = plan(path, **options)
    return [
        (each.topic_partition.partition, each.start_offset, each.end_offset) for each in planned
    ]


def read(
    planned: Sequence[LogSlice | LateRange], path: Path | str, **options: str
) -> dict[TopicPartition, list[int]]:
    """Offsets of the rows of planned tasks, by partition, in the order of the rows."""
    parsed = ReadOptions.parse({"path": str(path), **options})
    found: dict[TopicPartition, list[int]] = {}
    for each in planned:
        if isinstance(each, LogSlice):
            batches = read_slice(each, _COLUMNS, parsed)
        else:
            batches = read_late_range(each, _COLUMNS, parsed)
        for batch in batches:
            for row in batch.to_pylist():
                of = found.setdefault(TopicPartition(row["topic"], row["partition"]), [])
                of.append(row["offset"])
    return found


def offsets_by_partition(path: Path | str, **options: str) -> dict[int, list[int]]:
    """Offsets of the rows of a query, by partition, for a directory of one topic."""
    found = read(plan(path, **options), path, **options)
    return {each.partition: offsets for each, offsets in found.items()}
