"""Jobs from plain Python, and the contents of the log after them."""

from pathlib import Path
from typing import Any

import pyarrow as pa

import segmentlog

ONE = pa.table({"value": [b"v"]})


def write(
    directory: Path | str,
    *tables: pa.Table | pa.RecordBatch,
    topic: str | None = "t",
    **options: Any,
) -> None:
    """Write one job."""
    with segmentlog.open_writer(directory, topic, **options) as writer:
        for table in tables:
            writer.append(table)


def values(directory: Path, topic: str = "t", partition: int = 0) -> list[bytes]:
    """The values of one partition, in the order of their offsets."""
    scan = segmentlog.open_log_dir(directory).log(topic, partition).scan()
    return [value.as_py() for batch in scan for value in batch.column("value")]


def numbered_rows(first: int, n_rows: int, n_partitions: int = 2) -> pa.Table:
    """Numbered values for the partitions in turn; no two are equal."""
    numbers = range(first, first + n_rows)
    return pa.table(
        {
            "key": pa.array([b"k%d" % i if i % 3 else None for i in numbers], pa.binary()),
            "value": pa.array([b"%d" % i for i in numbers], pa.binary()),
            "partition": pa.array([i % n_partitions for i in numbers], pa.int32()),
        }
    )


def numbers(directory: Path, topic: str = "t", **how: Any) -> dict[int, list[int]]:
    """Values that are numbers, as a reader sees them, by partition."""
    opened = segmentlog.open_log_dir(directory)
    return {
        partition: [
            int(value)
            for value in opened.log(topic, partition).scan(**how).read_all()["value"].to_pylist()
        ]
        for partition in opened.topics().get(topic, [])
    }


def dealt(*jobs: tuple[int, int]) -> dict[int, list[int]]:
    """Numbers of the jobs (first, number of rows) in each of two partitions."""
    numbers = [i for first, n in jobs for i in range(first, first + n)]
    return {partition: [i for i in numbers if i % 2 == partition] for partition in (0, 1)}
