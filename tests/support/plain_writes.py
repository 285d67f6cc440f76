"""Jobs from plain Python, and what stands in the log behind them."""

from pathlib import Path

import pyarrow as pa

import segmentlog

__all__ = ["ONE", "values", "write"]

ONE = pa.table({"value": [b"v"]})


def values(directory: Path, topic: str = "t", partition: int = 0) -> list[bytes]:
    """Of one partition, in the order of their offsets."""
    scan = segmentlog.open_log_dir(directory).log(topic, partition).scan()
    return [value.as_py() for batch in scan for value in batch.column("value")]


def write(directory: Path, *tables: pa.Table, topic: str | None = "t", **options: object) -> None:
    """One job."""
    with segmentlog.open_writer(directory, topic, **options) as writer:
        for table in tables:
            writer.append(table)
