"""Limits of an append: the files that it has open, and the last offset of a log."""

from pathlib import Path

import pyarrow as pa
import pytest
from descriptors import descriptors_below
from plain_writes import ONE, values, write
from soundness import assert_tidy

import segmentlog
from segmentlog.errors import (
    OffsetsOutOfOrderError,
)
from segmentlog.store.durable import MOST_OPEN
from segmentlog.writes import append
from segmentlog.writes.config import ProducerConfig

pytestmark = pytest.mark.linux


@pytest.mark.parametrize("flush", [True, False])
def test_a_job_that_rolls_often_has_few_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, flush: bool
) -> None:
    """An append has the three files of a segment open, and the files that wait for a sync.

    It closes them all when it cannot create the next segment.
    """

    def rows(first: int) -> pa.Table:
        weeks = [number * 8 * 24 * 3600 * 1000 for number in range(first, first + 50)]
        return pa.table(
            {"value": [b"v"] * 50, "timestamp": pa.array(weeks, pa.timestamp("ms", "UTC"))}
        )

    config = ProducerConfig(use_timestamps=True, flush=flush, batch_size=0)
    most, create = [0], append.create_file

    def counted(path: str) -> int:
        most[0] = max(most[0], descriptors_below(tmp_path))
        return create(path)

    monkeypatch.setattr(append, "create_file", counted)
    write(tmp_path, rows(0), config=config)
    assert len(segmentlog.open_log_dir(tmp_path).log("t", 0).segments) > 20
    assert most[0] <= 6 + (MOST_OPEN if flush else 0)

    def fails(path: str) -> int:
        if path.endswith(".timeindex"):
            raise OSError(24, "Too many open files", path)
        return create(path)

    monkeypatch.setattr(append, "create_file", fails)
    with pytest.raises(OSError, match="Too many open files"):
        write(tmp_path, rows(50), config=config)
    assert 0 == descriptors_below(tmp_path)
    assert [b"v"] * 50 == values(tmp_path)
    assert_tidy(tmp_path)


def test_a_log_has_no_offset_beyond_javas_largest_long(tmp_path: Path) -> None:
    """An append after offset 2**63 - 2 is refused: no checkpoint can contain the next log end."""
    last = pa.table({"value": [b"v"], "offset": [2**63 - 2], "partition": [0]})
    write(tmp_path, last, config=ProducerConfig(use_offsets=True))
    with pytest.raises(OffsetsOutOfOrderError):
        write(tmp_path, ONE)
    assert [b"v"] == values(tmp_path)
    assert_tidy(tmp_path)
