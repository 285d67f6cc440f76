"""Tiers of Kafka's own ``LocalTieredStorage``, made of the segments of a log."""

import base64
import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

import segmentlog

__all__ = ["TOPIC_ID", "copy_segment", "remove_local", "written"]

TOPIC_ID = "FgX88cFkRWirCb1Q_nEBwA"
_NUMBERS = itertools.count(1)


def written(directory: Path, n_segments: int = 10, n_records: int = 100) -> Path:
    """A partition of several segments; returns its path."""
    with segmentlog.open_writer(directory, "t", num_partitions=1) as writer:
        for number in range(n_segments):
            if number:
                writer.roll()
            values = [b"%d-%d" % (number, i) for i in range(n_records)]
            writer.append(pa.table({"key": values, "value": values}))
            writer.flush()
    partition = directory / "t-0"
    (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    return partition


def copy_segment(
    partition: Path,
    tier: Path,
    base_offset: int,
    next_offset: int,
    epochs: Sequence[tuple[int, int]] = ((0, 0),),
) -> Path:
    """Copy a closed segment as a broker does; returns the path of its log in the tier."""
    directory = tier / f"t-0-{TOPIC_ID}"
    directory.mkdir(parents=True, exist_ok=True)
    number = next(_NUMBERS).to_bytes(16, "big")
    segment_id = base64.urlsafe_b64encode(number).decode().rstrip("=")
    name = f"{base_offset:020d}-{segment_id}"
    for suffix in ("log", "index", "timeindex", "txnindex"):
        source = partition / f"{base_offset:020d}.{suffix}"
        if source.exists():
            shutil.copyfile(source, directory / f"{name}.{suffix}")
    snapshot = partition / f"{next_offset:020d}.snapshot"
    empty = bytes.fromhex("0001 f53a6e88 00000000")
    (directory / f"{name}.snapshot").write_bytes(
        snapshot.read_bytes() if snapshot.exists() else empty
    )
    lines = [f"{epoch} {start}" for epoch, start in epochs]
    text = "\n".join(["0", str(len(lines)), *lines, ""])
    (directory / f"{name}.leader_epoch_checkpoint").write_text(text)
    return directory / f"{name}.log"


def remove_local(partition: Path, *base_offsets: int) -> None:
    """Remove local segments, as retention of a tiered topic does."""
    for base_offset in base_offsets:
        for path in partition.glob(f"{base_offset:020d}.*"):
            path.unlink()
