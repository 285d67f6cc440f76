"""The same log directory from plain Python: no Spark, no Java.

Run with ``pip install . && python examples/engine_without_spark.py``.  The scan is an Arrow
stream, so Polars (``polars.from_arrow``) and DuckDB (``duckdb.from_arrow``) take it as it is.
"""

from datetime import UTC, datetime
from pathlib import Path

import segmentlog


def main() -> None:
    """List, look up by time, scan."""
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


if __name__ == "__main__":
    main()
