"""Many small appends cost as much each as the first, and leave the indexes of one append."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.segments import segment
from segmentlog.stage.config import ProducerConfig
from segmentlog.topic_config import TopicConfig

INTERVAL = 500


def rows(first: int, n_rows: int) -> pa.Table:
    """Records whose times rise."""
    numbers = range(first, first + n_rows)
    times = pa.array([1000 * number for number in numbers], pa.timestamp("us", "UTC"))
    return pa.table({"value": [b"%060d" % number for number in numbers], "timestamp": times})


def append(directory: Path, n_commits: int, n_rows: int) -> None:
    """Commits of one batch each."""
    config = ProducerConfig(
        topic_config=TopicConfig(index_interval_bytes=INTERVAL), use_timestamps=True, batch_size=1
    )
    with segmentlog.open_writer(directory, "t", config=config) as writer:
        for number in range(n_commits):
            writer.append(rows(number * n_rows, n_rows))
            writer.flush()


def test_index_entries_come_at_their_interval_across_appends(tmp_path: Path) -> None:
    """The offset index is that of a single append of the same batches."""
    append(tmp_path / "many", 60, 1)
    append(tmp_path / "one", 1, 60)
    many, one = (next((tmp_path / name / "t-0").glob("*.index")) for name in ("many", "one"))

    assert many.read_bytes() == one.read_bytes()
    assert many.stat().st_size > 8 * 8


def test_an_append_reads_no_more_of_a_longer_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the batches after the last index entries are read, however many there are before."""
    read = [0]
    parse = segment.parse_header

    def counted(*arguments: Any) -> Any:
        read[0] += 1
        return parse(*arguments)

    monkeypatch.setattr(segment, "parse_header", counted)
    n_read = []
    for _ in range(2):
        append(tmp_path, 40, 1)
        read[0] = 0
        append(tmp_path, 10, 1)
        n_read.append(read[0])

    assert n_read[1] <= 1.2 * n_read[0]
