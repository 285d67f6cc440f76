"""Many small appends cost as much each as the first, and leave the indexes of one append."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log import segment
from segmentlog.store import durable
from segmentlog.writes import prepare
from segmentlog.writes.config import ProducerConfig

INTERVAL = 500
UNFLUSHED = ProducerConfig(TopicConfig(segment_bytes=2000), flush=False, batch_size=1)


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


@contextmanager
def another_boot(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine, started again."""
    path = directory / "boot_id"
    path.write_text("another\n")
    with monkeypatch.context() as patch:
        patch.setattr(durable, "_BOOT_ID", str(path))
        durable.boot_id.cache_clear()
        yield
    durable.boot_id.cache_clear()


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Partitions whose active segments have been checked from their first byte."""
    paths: list[str] = []
    plan = prepare.plan_recovery

    def noted(path: str, *rest: Any) -> Any:
        paths.append(path)
        return plan(path, *rest)

    monkeypatch.setattr(prepare, "plan_recovery", noted)
    return paths


def append_unflushed(directory: Path, n_rows: int) -> None:
    """A commit with ``flush=none``."""
    with segmentlog.open_writer(directory, "t", config=UNFLUSHED) as writer:
        writer.append(rows(0, n_rows).select(["value"]))


def test_an_unflushed_append_checks_the_end_alone_until_the_next_boot(
    tmp_path: Path, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte is lost while the machine runs; after that, the whole segment may be."""
    for _ in range(4):
        append_unflushed(tmp_path, 1)
    assert checked == []
    with another_boot(tmp_path, monkeypatch):
        append_unflushed(tmp_path, 1)
        # The directory has not had the mark in this boot, so another log may have lost bytes.
        append_unflushed(tmp_path, 1)
    append_unflushed(tmp_path, 1)
    assert len(checked) == 3


def test_an_unflushed_append_without_an_id_of_the_boot_checks_the_segment(
    tmp_path: Path, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some systems have no id of the boot."""
    monkeypatch.setattr(durable, "_BOOT_ID", str(tmp_path / "none"))
    durable.boot_id.cache_clear()
    append_unflushed(tmp_path, 1)
    append_unflushed(tmp_path, 1)
    durable.boot_id.cache_clear()
    assert len(checked) == 1


def test_a_closed_segment_is_checked_and_synced_once(tmp_path: Path, checked: list[str]) -> None:
    """The recovery point moves past a segment only when it is on the disk."""
    append_unflushed(tmp_path, 40)
    for _ in range(3):
        append_unflushed(tmp_path, 1)
    assert len(checked) == 1


def test_damage_at_the_end_in_the_same_boot_is_cut_off(tmp_path: Path, checked: list[str]) -> None:
    """A writer that was killed in the middle of an append leaves a torn batch."""
    append_unflushed(tmp_path, 1)
    append_unflushed(tmp_path, 1)
    (log,) = (tmp_path / "t-0").glob("*.log")
    os.truncate(log, log.stat().st_size - 3)
    append_unflushed(tmp_path, 1)
    assert len(checked) == 1
    assert segmentlog.open_log_dir(tmp_path).log("t", 0).log_end_offset == 2


def test_a_flushed_append_checks_and_syncs_what_was_not_synced(
    tmp_path: Path, checked: list[str]
) -> None:
    """Its recovery point covers the records of earlier commits."""
    append_unflushed(tmp_path, 1)
    append(tmp_path, 1, 1)
    assert len(checked) == 1


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
