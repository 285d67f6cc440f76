"""Show everything between two times, in all topics at once, as one timeline.

Run with ``pip install . && python examples/incident_by_time.py [DIRECTORY [SINCE UNTIL]]``; times
are in ISO 8601, with their zone.  Neither Spark nor Java is needed.
"""

import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import segmentlog

DATA = str(Path(__file__).parent / "data")
MOST_SHOWN = 10


def main(
    directory: str = DATA, since: str = "2025-10-10T08:50:00Z", until: str = "2025-10-10T09:00:00Z"
) -> None:
    """The records of the time, counted by partition, and the first of them."""
    first, end = datetime.fromisoformat(since), datetime.fromisoformat(until)
    # The time indexes determine the offset at which each partition begins.
    logs = segmentlog.dataset(directory, since=first)
    time = pc.field("timestamp")
    records = logs.scan(
        ["timestamp", "topic", "partition", "offset", "key", "value"],
        filter=(time >= first) & (time < end),  # timestamps need not rise: each one is compared
        order="timestamp",
    )

    counts: Counter[str] = Counter()
    for batch in records:
        for row in batch.slice(0, max(0, MOST_SHOWN - counts.total())).to_pylist():
            at = f"{row['timestamp']:%H:%M:%S}"
            place = f"{row['topic']}-{row['partition']}@{row['offset']}"
            print(at, f"{place:<16}", row["key"], row["value"])
        groups = pa.Table.from_batches([batch]).group_by(["topic", "partition"])
        for row in groups.aggregate([([], "count_all")]).to_pylist():
            counts[f"{row['topic']}-{row['partition']}"] += row["count_all"]

    print(f"\n{counts.total()} records from {since} to {until}")
    for name, number in sorted(counts.items()):
        print(f"{name:<12}{number:>6}")


if __name__ == "__main__":
    main(*sys.argv[1:])
