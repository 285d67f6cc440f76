"""The offset map: runs of records, and the end of each log."""

import bisect
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from segmentlog.format.kernels.memory import Int64s
from segmentlog.maintain import offset_map as module
from segmentlog.maintain.offset_map import OFFSET_MAP_SCHEMA, OffsetMapWriter
from segmentlog.model import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def read(path: Path) -> list[tuple[object, ...]]:
    """The rows of a file."""
    table = pq.read_table(path)
    assert table.schema == OFFSET_MAP_SCHEMA
    return [tuple(each.values()) for each in table.to_pylist()]


def add(written: OffsetMapWriter, place: TopicPartition, offsets: Int64s) -> None:
    """Add records of a partition that keep their places."""
    partitions = np.full(len(offsets), place.partition, np.int32)
    written.add(place.topic, partitions, offsets, partitions, offsets)


def test_runs_continue_from_batch_to_batch(tmp_path: Path) -> None:
    """A run ends where an offset is missing, or the partition ends."""
    with (tmp_path / "m").open("wb") as file, OffsetMapWriter(file) as written:
        for batch in ([3, 4], [5, 8], [], [9], [20]):
            add(written, T0, np.array(batch, np.int64))
        written.end("t", {0: 30}, {0: 21})
        add(written, T1, np.array([21, 22]))
        written.end("t", {1: 23}, {1: 23})
        written.end("empty", {0: 5}, {0: 0})
    assert [
        ("t", 0, 3, 3, 3),
        ("t", 0, 8, 2, 8),
        ("t", 0, 20, 1, 20),
        ("t", 0, 30, 0, 21),
        ("t", 1, 21, 2, 21),
        ("t", 1, 23, 0, 23),
        ("empty", 0, 5, 0, 0),
    ] == read(tmp_path / "m")


@pytest.mark.parametrize("most_rows", [1, 5, 1 << 18])
def test_each_offset_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_rows: int
) -> None:
    """The rule of the module gives the next record at the target, for any gaps and row groups."""
    monkeypatch.setattr(module, "_MOST_ROWS", most_rows)
    offsets = np.flatnonzero(np.random.default_rng(5).random(500) < 0.6) + 100
    with (tmp_path / "m").open("wb") as file, OffsetMapWriter(file) as written:
        for batch in np.array_split(offsets, 17):
            add(written, T0, batch)
        written.end("t", {0: 610}, {0: int(offsets[-1]) + 1})
    rows = read(tmp_path / "m")
    assert len(offsets) == sum(each[3] for each in rows)  # type: ignore[misc]
    for offset in range(90, 620):
        row = next((each for each in rows if each[2] + each[3] > offset), rows[-1])  # type: ignore[operator]
        found = row[4] + (max(offset - row[2], 0) if row[3] else 0)  # type: ignore[operator]
        at = bisect.bisect_left(offsets, offset)
        assert found == (offsets[at] if at < len(offsets) else offsets[-1] + 1)
