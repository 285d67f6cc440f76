"""Copies of a partition in log directories of brokers, with the epochs of their leaders."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

import segmentlog
from segmentlog.format.names import HIGH_WATERMARK_CHECKPOINT
from segmentlog.log.checkpoint import write_leader_epochs, write_offsets
from segmentlog.model import TopicPartition

IDS = ("AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg")
T0 = TopicPartition("t", 0)


def broker(
    directory: Path,
    node: int,
    terms: Sequence[tuple[int, Sequence[str]]],
    *,
    high_watermark: int | None = None,
    topic_id: str = IDS[0],
    cluster: str = "c1",
    segment_bytes: int = 1 << 30,
) -> Path:
    """A log directory with one partition, to which the leaders of these epochs appended values."""
    config = segmentlog.ProducerConfig(
        segmentlog.TopicConfig(segment_bytes=segment_bytes), use_timestamps=True
    )
    path = directory / f"b{node}"
    partition, starts, end = path / "t-0", [], 0
    with segmentlog.open_writer(path, "t", num_partitions=1):
        pass
    for epoch, values in terms:
        starts.append((epoch, end))
        write_leader_epochs(str(partition / "leader-epoch-checkpoint"), starts)
        if values:
            with segmentlog.open_writer(path, "t", config=config) as writer:
                # Leaders of one epoch append the same records.
                times = pa.array([epoch * 1000 + end + i for i in range(len(values))])
                writer.append(
                    pa.table({"value": [*values], "timestamp": times.cast(pa.timestamp("ms"))})
                )
        end += len(values)
    (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    (path / "meta.properties").write_text(f"version=1\nnode.id={node}\ncluster.id={cluster}\n")
    if high_watermark is not None:
        write_offsets(str(path), HIGH_WATERMARK_CHECKPOINT, {T0: high_watermark})
    return path


def killed_in_sequence(directory: Path) -> list[Path]:
    """Broker 1 was isolated and still appended; broker 2 led, and then broker 3 led."""
    return [
        broker(directory, 1, [(0, "abcdef")], high_watermark=5),
        broker(directory, 2, [(0, "abc"), (1, "xy")], high_watermark=4),
        broker(directory, 3, [(0, "abc"), (1, "x"), (2, "z")], high_watermark=5),
    ]
