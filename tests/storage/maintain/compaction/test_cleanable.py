"""The cleanable part of a log, and when compaction is due (``LogCleanerManagerTest``)."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from compaction.batches import COMMIT, TRANSACTIONAL, Batch, encode, lay_out, marker, records_of

import segmentlog
from segmentlog.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
)
from segmentlog.log.checkpoint import read_offsets, write_offsets
from segmentlog.maintain.compaction.compact import LogToClean, find_cleanable
from segmentlog.model import TopicPartition

NOW_MS = 1_000_000
T = TopicPartition("t", 0)
SIZE = len(encode(records_of(0, (b"k", b"v"))))  # of a batch


def segments(*times_ms: int, per_segment: int = 2) -> dict[int, Sequence[Batch]]:
    """Segments with a few batches of one record. The records of each segment have one time."""
    return {
        i * per_segment: [
            records_of(i * per_segment + j, (b"k", b"v"), time_ms=time_ms)
            for j in range(per_segment)
        ]
        for i, time_ms in enumerate(times_ms)
    }


def found(directory: Path, checkpoint: int | None = None, **settings: Any) -> LogToClean:
    """The part that is cleanable now."""
    log = segmentlog.open_log_dir(directory).log(*T)
    config = segmentlog.TopicConfig(**settings)
    return find_cleanable(log, checkpoint, config, NOW_MS)


def test_up_to_the_active_segment(tmp_path: Path) -> None:
    """The bytes of a segment that is partly clean count as clean and as cleanable."""
    lay_out(tmp_path, segments(1, 2, 3, 4))

    assert (0, 6, 0, 6 * SIZE) == found(tmp_path)[1:5]
    assert (2, 6, 2 * SIZE, 4 * SIZE) == found(tmp_path, 2)[1:5]
    assert (3, 6, 4 * SIZE, 4 * SIZE) == found(tmp_path, 3)[1:5]
    assert 0 == found(tmp_path, 6).cleanable_bytes
    assert 0 == found(tmp_path, 7).cleanable_bytes  # in the active segment


def test_no_log_is_cleaned_that_has_one_segment(tmp_path: Path) -> None:
    """The only segment of a log is its active segment."""
    lay_out(tmp_path, segments(1))

    assert not found(tmp_path, min_cleanable_dirty_ratio=0.0).is_due


def test_up_to_the_high_watermark(tmp_path: Path) -> None:
    """The cleanable part ends at the base of the segment of the high watermark."""
    lay_out(tmp_path, segments(1, 2, 3, 4))
    for high_watermark, end in ((5, 4), (4, 4), (3, 2), (1, 0)):
        write_offsets(str(tmp_path), HIGH_WATERMARK_CHECKPOINT, {T: high_watermark})
        assert end == found(tmp_path).end_offset


def test_up_to_an_open_transaction(tmp_path: Path) -> None:
    """The cleanable part ends before an open transaction.

    Once it has ended, all of the log is cleanable.
    """
    opened = records_of(3, (b"k", b"v"))._replace(
        attributes=TRANSACTIONAL, producer_id=7, epoch=0, sequence=0
    )
    log = {
        **segments(1, 1),
        2: [records_of(2, (b"k", b"v")), opened],
        4: [records_of(4, (b"k", b"v"))],
        5: [],
    }
    lay_out(tmp_path / "open", log)
    lay_out(tmp_path / "ended", {**log, 5: [marker(5, COMMIT, 7)], 6: []})

    assert 2 == found(tmp_path / "open").end_offset
    assert 6 == found(tmp_path / "ended").end_offset


def test_up_to_the_first_young_segment(tmp_path: Path) -> None:
    """The newest record of a segment decides.

    A record of exactly the minimum age is old enough.
    """
    lay_out(tmp_path, segments(1000, 5000, 2000, 3000, 1))

    assert 8 == found(tmp_path, min_compaction_lag_ms=NOW_MS - 5000).end_offset
    assert 2 == found(tmp_path, min_compaction_lag_ms=NOW_MS - 4999).end_offset
    assert 0 == found(tmp_path, min_compaction_lag_ms=NOW_MS).end_offset
    later = found(tmp_path, 3, min_compaction_lag_ms=NOW_MS - 1500)
    assert (3, 0) == (later.first_dirty_offset, later.cleanable_bytes)


def test_due_by_the_ratio(tmp_path: Path) -> None:
    """A log is due only when its ratio of dirty bytes is above the limit."""
    lay_out(tmp_path, segments(1, 2, 3, 4, 5))

    assert 0.5 == found(tmp_path, 4).dirty_ratio
    assert not found(tmp_path, 4, min_cleanable_dirty_ratio=0.5).is_due
    assert found(tmp_path, 4, min_cleanable_dirty_ratio=0.49).is_due


def test_due_by_the_greatest_lag(tmp_path: Path) -> None:
    """The first batch of each dirty segment decides; a batch without a timestamp is ignored."""
    lay_out(tmp_path, segments(500, 2000, -1, 3000, 1))
    day: dict[str, Any] = {
        "max_compaction_lag_ms": NOW_MS - 2500,
        "min_cleanable_dirty_ratio": 1.0,
    }

    assert found(tmp_path, **day).is_due
    assert found(tmp_path, 2, **day).is_due
    assert not found(tmp_path, 4, **day).is_due
    assert not found(tmp_path, 8, **{**day, "min_cleanable_dirty_ratio": 0.0}).is_due


@pytest.mark.parametrize("checkpoint", [1, 100])
def test_a_checkpoint_outside_of_the_log(
    tmp_path: Path, checkpoint: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The whole log is dirty then. The checkpoint is corrected even if nothing is cleaned."""
    lay_out(tmp_path, segments(1, 2, 3, 4))
    write_offsets(str(tmp_path), LOG_START_CHECKPOINT, {T: 2})
    write_offsets(str(tmp_path), CLEANER_OFFSET_CHECKPOINT, {T: checkpoint})

    assert 2 == found(tmp_path, checkpoint).first_dirty_offset
    with caplog.at_level(logging.WARNING):
        settings = {"cleanup.policy": "compact", "min.compaction.lag.ms": "1"}
        segmentlog.compact(tmp_path, settings=settings, now_ms=1)
    assert {T: 2} == read_offsets(str(tmp_path), CLEANER_OFFSET_CHECKPOINT)
    assert f"ended at offset {checkpoint}, outside of the log" in caplog.text
