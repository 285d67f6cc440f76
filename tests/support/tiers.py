"""Tiers of Kafka's own ``LocalTieredStorage``, made of the segments of a log."""

import base64
import itertools
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from made_once import made_once

import segmentlog

TOPIC_ID = "FgX88cFkRWirCb1Q_nEBwA"
_NUMBERS = itertools.count(1)


def written(
    directory: Path, n_segments: int = 10, n_records: int = 100, prefix: bytes = b""
) -> Path:
    """A partition of several segments; returns its path."""
    _write(directory, n_segments, n_records, prefix)
    return directory / "t-0"


@made_once
def _write(directory: Path, n_segments: int, n_records: int, prefix: bytes) -> None:
    with segmentlog.open_writer(directory, "t", num_partitions=1) as writer:
        for number in range(n_segments):
            if number:
                writer.roll()
            values = [prefix + b"%d-%d" % (number, i) for i in range(n_records)]
            writer.append(pa.table({"key": values, "value": values}))
            writer.flush()
    metadata = directory / "t-0" / "partition.metadata"
    metadata.write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")


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
    empty = bytes.fromhex("0001 48674bc7 00000000")
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


class Listed(NamedTuple):
    """A remote segment in the broker's list, and the last state of its copy."""

    segment_id: str
    start_offset: int
    end_offset: int
    n_bytes: int
    state: int = 1
    max_timestamp_ms: int = -1
    epochs: Sequence[tuple[int, int]] = ((0, 0),)


def announce(directory: Path, segments: Sequence[Listed], topic_id: str = TOPIC_ID) -> None:
    """Write ``__remote_log_metadata`` of partition ``t-0`` into a log directory, as a broker does.

    Each segment has a record for the begin of its copy, and updates up to its state.
    """

    def compact(data: bytes) -> bytes:
        return bytes([len(data) + 1]) + data

    def named(each: Listed) -> bytes:
        place = compact(b"t") + _raw(topic_id) + struct.pack(">i", 0) + b"\0"
        return place + _raw(each.segment_id) + b"\0"

    values = []
    for each in segments:
        numbers = each.start_offset, each.end_offset, 1, each.max_timestamp_ms, 7
        begun = [b"\1\0\0", named(each), struct.pack(">qqiqq", *numbers)]
        begun.append(bytes([len(each.epochs) + 1]))
        begun += [struct.pack(">iq", *epoch) + b"\0" for epoch in each.epochs]
        begun.append(struct.pack(">i", each.n_bytes) + b"\0\0\0")
        values.append(b"".join(begun))
        values += [
            b"\1\1\0" + named(each) + struct.pack(">iq", 1, 8) + bytes([0, state, 0])
            for state in range(1, each.state + 1)
        ]
    with segmentlog.open_writer(directory, "__remote_log_metadata", num_partitions=1) as writer:
        writer.append(pa.table({"value": values}))


def _raw(text: str) -> bytes:
    """The 16 bytes of an id as Kafka prints it."""
    return base64.urlsafe_b64decode(text + "==")
