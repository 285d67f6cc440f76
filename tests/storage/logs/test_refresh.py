"""A directory that is looked at again: what is found, what is kept, and what that takes."""

from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import ONE, write

import segmentlog

#: One record for each of two partitions.
ROWS = pa.table({"value": [b"0", b"1"], "partition": pa.array([0, 1], pa.int32())})


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two topics of two partitions each, with one record in each partition."""
    for topic in ("a", "b"):
        write(tmp_path, ROWS, topic=topic, num_partitions=2)
    return tmp_path


def test_nothing_new_is_the_same_object(log_dir: Path) -> None:
    """Nothing has changed, however often it is asked."""
    directory = segmentlog.open_log_dir(log_dir)
    directory.end_offsets(directory.topic_partitions())

    assert all(directory.refresh() is directory for _ in range(3))
    assert all(directory.refresh(log_ends=True) is directory for _ in range(3))


def test_a_commit_is_found_and_other_logs_are_kept(log_dir: Path) -> None:
    """The earlier object shows the earlier moment."""
    directory = segmentlog.open_log_dir(log_dir)
    segments = {each: directory.log(*each).segments for each in directory.topic_partitions()}
    write(log_dir, ONE, topic="a", num_partitions=2)
    newer = directory.refresh()

    assert newer is not directory
    assert [3, 2] == [
        sum(log.end_offset() for log in newer if log.topic_partition.topic == topic)
        for topic in ("a", "b")
    ]
    assert newer.log("b", 0).segments is segments["b", 0]
    assert [1, 1] == [directory.log("a", partition).end_offset() for partition in (0, 1)]
