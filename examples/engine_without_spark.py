"""A log directory from plain Python: no Spark, no Java.

Run with ``pip install . && python examples/engine_without_spark.py``.  The scan is an Arrow
stream, so Polars (``polars.from_arrow``) and DuckDB (``duckdb.from_arrow``) take it as it is.
"""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

import segmentlog


def append(directory: str, rows: pa.Table) -> None:
    """Records to a log of one's own, in two steps; then from another one that comes later."""
    columns = rows.select(["key", "value"])
    with segmentlog.open_writer(directory, "copied-orders", num_partitions=2) as writer:
        writer.append(columns.slice(0, 100))
        writer.flush()  # those are visible from here on, also if the rest fails
        writer.append(columns.slice(100))
    with segmentlog.open_writer(directory, "copied-orders") as writer:
        writer.append(columns)

    opened = segmentlog.open_log_dir(directory)
    ends = [opened.log("copied-orders", partition).end_offset() for partition in (0, 1)]
    print(f"\n{sum(ends)} records were written, {ends[0]} of them to partition 0")


def main() -> None:
    """List, look up by time, scan; then write."""
    directory = segmentlog.open_log_dir(Path(__file__).parent / "data")
    print(f"cluster {directory.cluster_id}, node {directory.node_id}\n")

    print(f"{'partition':<14}{'start':>7}{'end':>7}{'bytes':>9}  topic id")
    for topic, partitions in directory.topics().items():
        for partition in partitions:
            log = directory.log(topic, partition)
            print(
                f"{log.topic_partition!s:<14}{log.log_start_offset:>7}{log.end_offset():>7}"
                f"{log.size_bytes:>9}  {log.topic_id}"
            )

    log = directory.log("orders", 0)
    noon = int(datetime(2025, 10, 10, 12, tzinfo=UTC).timestamp() * 1000)
    found = log.offset_for_timestamp(noon)
    if found is None:
        print("\nno order since 2025-10-10 12:00 UTC")
        return
    print(f"\nthe first order in orders-0 since 2025-10-10 12:00 UTC is at offset {found.offset}")

    reader = log.scan(start_offset=found.offset, columns=["offset", "timestamp", "key", "value"])
    table = reader.read_all()
    print(f"{table.num_rows} records from there; the first three:")
    for row in table.slice(0, 3).to_pylist():
        print(f"  {row['offset']:>4}  {row['timestamp']:%Y-%m-%d %H:%M}  {row['value'].decode()}")

    with tempfile.TemporaryDirectory() as scratch:
        append(scratch, table)


if __name__ == "__main__":
    main()
