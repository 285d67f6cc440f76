"""Indexes that are built again from a log equal the indexes of its writer."""

from pathlib import Path

import pyarrow as pa

import segmentlog
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.index_builder import rebuild_indexes
from segmentlog.log.listing import list_segments
from segmentlog.log.segment import Segment
from segmentlog.writes.config import ProducerConfig


def test_rebuilt_indexes_are_byte_for_byte_the_writers(tmp_path: Path) -> None:
    """The offset and time indexes of every segment are compared.

    Timestamps differ from offsets, so a mix-up shows.
    """
    config = ProducerConfig(
        TopicConfig(segment_bytes=8_000, index_interval_bytes=500),
        batch_size=300,
        use_timestamps=True,
    )
    times = [1_600_000_000_000 + 7 * i - 50 * (i % 5) for i in range(2000)]
    rows = {
        "value": pa.array([b"%d" % i for i in range(2000)], pa.binary()),
        "timestamp": pa.array([ms * 1000 for ms in times], pa.timestamp("us", "UTC")),
    }
    with segmentlog.open_writer(tmp_path, "t", config=config) as writer:
        writer.append(pa.table(rows))

    files = list_segments(str(tmp_path / "t-0"))
    assert len(files) > 3

    for each in files:
        segment = Segment(each, is_sealed=False)
        indexes = [Path(segment.offset_index_path), Path(segment.time_index_path)]
        written = [path.read_bytes() for path in indexes]
        assert all(written)
        for path in indexes:
            path.unlink()
        assert [str(path) for path in indexes] == rebuild_indexes(segment, 500)
        assert written == [path.read_bytes() for path in indexes]
