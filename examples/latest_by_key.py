"""A compacted topic as a table: updates go in, the latest value of each key comes out.

Run with ``pip install . && python examples/latest_by_key.py``; a directory may be given, which is
written to.  By default it is a temporary one.  Neither Spark nor Java is needed.
"""

import sys
import tempfile

import pyarrow as pa

import segmentlog

TOPIC = "prices"

#: Kept in the directory: the policy, the size of segments, and how soon compaction is due and
#: forgets a deleted key.
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "65536",
    "min.cleanable.dirty.ratio": "0.2",
    "delete.retention.ms": "0",
}


def main(directory: str) -> None:
    """Write updates, compact, and read the table before and afterwards."""
    segmentlog.alter_settings(directory, TOPIC, SETTINGS)
    with segmentlog.open_writer(directory, TOPIC, num_partitions=1) as writer:
        for number in range(100):
            writer.append(updates(number))
            writer.flush()  # a commit: readers see these updates
        writer.append(pa.table({"key": ["item-7"], "value": pa.nulls(1, pa.string())}))  # deleted
    show(directory, "before")
    for done in segmentlog.compact(directory):
        kept = f"{done.records_after:,} of {done.records_before:,} records"
        print(
            f"compacted {done.topic}-{done.partition}: kept {kept} below offset {done.clean_to:,}"
        )
    show(directory, "afterwards")


def updates(number: int) -> pa.Table:
    """New prices of some of a hundred items."""
    items = [f"item-{(number * 37 + i) % 100}" for i in range(60)]
    return pa.table({"key": items, "value": [f"{number + i / 100:.2f}" for i in range(60)]})


def latest(directory: str) -> pa.Table:
    """The last value of each key; a null value deletes its key.

    Compaction keeps the last record of each key, but never touches the active segment.  So a
    reader still takes the last one: there are only fewer to go through.
    """
    return segmentlog.latest(directory, TOPIC, columns=["key", "value"]).sort_by("key")


def show(directory: str, when: str) -> None:
    """The size of the topic, and of its table."""
    log = segmentlog.open_log_dir(directory).log(TOPIC, 0)
    n_bytes = sum(segment.size for segment in log.segments)
    table = latest(directory)
    first = table.slice(0, 1).to_pylist()[0]
    print(f"{when}: {n_bytes:,} bytes, {table.num_rows} keys, the first {first}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(*sys.argv[1:] or [temporary])
