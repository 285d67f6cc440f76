"""Restore a topic from a dead broker's disk: offsets, times, keys, values and headers stay.

Run with ``pip install . && python examples/restore_topic.py [SOURCE TARGET TOPIC [skip]]``.
TARGET is a log directory of your own, or that of a stopped broker that has the topic.  With
``skip``, damaged batches are left out.  Neither Spark nor Java is needed.
"""

import sys
import tempfile
from pathlib import Path

import segmentlog

DATA = str(Path(__file__).parent / "data")


def main(
    source: str, target: str, topic: str = "payments", on_corrupt_batch: str = "fail"
) -> None:
    """Copy the committed records of one topic, partition by partition."""
    logs = segmentlog.open_log_dir(source)
    partitions = logs.topics()[topic]
    with segmentlog.open_writer(
        target, topic, num_partitions=len(partitions), preserve=True
    ) as writer:
        for partition in partitions:
            log = logs.log(topic, partition)
            writer.append(
                log.scan(
                    isolation_level="read_committed",
                    include_headers=True,
                    on_corrupt_batch=on_corrupt_batch,
                )
            )
    # All partitions became visible at the end of the block, in one step.
    restored = segmentlog.open_log_dir(target)
    for partition in partitions:
        log = restored.log(topic, partition)
        print(f"{topic}-{partition}: offsets {log.log_start_offset} to {log.log_end_offset - 1}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        try:
            main(*sys.argv[1:])
        except segmentlog.errors.SegmentLogError as error:
            sys.exit(f"{error}\nnothing is restored; a last argument, skip, leaves damage out")
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(DATA, scratch)
