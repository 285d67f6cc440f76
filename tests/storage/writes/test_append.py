"""Appends to a log whose indexes are not as its last writer left them."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from plain_writes import write

import segmentlog
from segmentlog.format.topic_config import TopicConfig
from segmentlog.maintain.verification.findings import Severity
from segmentlog.writes.config import ProducerConfig

pytestmark = pytest.mark.linux

CONFIG = ProducerConfig(
    topic_config=TopicConfig(index_interval_bytes=1), batch_size=1, use_timestamps=True
)
ENTRY = 12  # bytes


def timed(times_ms: Sequence[int]) -> pa.Table:
    """Records with these timestamps."""
    times = pa.array([1000 * each for each in times_ms], pa.timestamp("us", "UTC"))
    return pa.table({"value": [b"v"] * len(times), "timestamp": times})


def found_from(directory: Path, timestamp_ms: int) -> dict[str, int]:
    """The number of records at or after a time, and the first of them, as a reader finds them."""
    dataset = segmentlog.dataset(directory, topics="t")
    time = pa.scalar(1000 * timestamp_ms, pa.timestamp("us", "UTC"))
    log = segmentlog.open_log_dir(directory).log("t", 0)
    at = log.offset_for_timestamp(timestamp_ms)
    return {
        "filter": dataset.count_rows(pc.field("timestamp") >= time),
        "first": -1 if at is None else at.offset,
    }


def errors(directory: Path) -> list[str]:
    """The errors that `verify` finds."""
    found = segmentlog.verify(directory)
    return [each.message for each in found if each.severity == Severity.ERROR]


@pytest.mark.parametrize("n_entries", [0, 1, 12, 15])
@pytest.mark.parametrize("later", [[1010] * 20, [900] * 20, [*range(2000, 2020)]])
def test_an_append_after_a_time_index_was_cut_short_keeps_times_right(
    tmp_path: Path, n_entries: int, later: list[int]
) -> None:
    """The log contains the largest time before the append, and the time index has lost it.

    Queries by time are right anyway.
    """
    write(tmp_path, timed(range(1000, 1050)), config=CONFIG)
    (index,) = (tmp_path / "t-0").glob("*.timeindex")
    with index.open("r+b") as file:
        file.truncate(n_entries * ENTRY)
    write(tmp_path, timed(later), config=CONFIG)
    write(tmp_path, timed([500]), config=CONFIG)

    n_newer = sum(each >= 1040 for each in later)
    assert {"filter": 10 + n_newer, "first": 40} == found_from(tmp_path, 1040)
    assert [] == errors(tmp_path)


def test_a_time_index_that_belongs_to_another_log_is_built_again(tmp_path: Path) -> None:
    """The last entry of the index has a time that its batch does not have.

    The next append rebuilds the index.
    """
    write(tmp_path, timed(range(1000, 1050)), config=CONFIG)
    (index,) = (tmp_path / "t-0").glob("*.timeindex")
    data = bytearray(index.read_bytes())
    data[-ENTRY:-4] = (5000).to_bytes(8, "big")
    index.write_bytes(data)
    write(tmp_path, timed(range(1050, 1060)), config=CONFIG)

    assert {"filter": 20, "first": 40} == found_from(tmp_path, 1040)
    assert [] == errors(tmp_path)


def test_verify_finds_a_time_index_that_denies_earlier_times_and_reindex_mends_it(
    tmp_path: Path,
) -> None:
    """A broker that appends to a time index that was cut short trusts its last entry."""
    write(tmp_path, timed([*range(1000, 1050), *[1010] * 20]), config=CONFIG)
    (index,) = (tmp_path / "t-0").glob("*.timeindex")
    entries = index.read_bytes()[:ENTRY]
    index.write_bytes(entries + (1010).to_bytes(8, "big") + (69).to_bytes(4, "big"))

    (error,) = errors(tmp_path)
    assert "1010 is not the largest timestamp up to offset 69" in error
    assert all(each.error is None for each in segmentlog.reindex(tmp_path))
    assert {"filter": 10, "first": 40} == found_from(tmp_path, 1040)
    assert [] == errors(tmp_path)
