"""Topics whose names or columns look like something else."""

from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import ONE, values

import segmentlog
from segmentlog.txn.guard import list_guards

pytestmark = pytest.mark.linux


def test_a_topic_with_the_name_of_a_guard(tmp_path: Path) -> None:
    """Its partitions are not guards, which the next writer would remove."""
    topic = "segmentlog.unfinished.0123456789abcdef"
    for _ in range(2):
        with segmentlog.open_writer(tmp_path, topic) as writer:
            writer.append(ONE)
    assert [] == list_guards(str(tmp_path))
    assert [b"v", b"v"] == values(tmp_path, topic)


def test_many_topics_in_one_column(tmp_path: Path) -> None:
    """Rows of each topic keep their order, without a search among all rows."""
    names = [f"t{n % 7}" for n in range(100)]
    table = pa.table({"value": [b"%d" % n for n in range(100)], "topic": names})
    with segmentlog.open_writer(tmp_path) as writer:
        writer.append(table)
    for number in range(7):
        expected = [b"%d" % n for n in range(number, 100, 7)]
        assert expected == values(tmp_path, f"t{number}")
