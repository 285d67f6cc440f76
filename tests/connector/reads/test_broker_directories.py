"""Reads of real brokers' directories: transactions, compaction, retention and deleted records."""

import json
from pathlib import Path

import pytest
from planned_reads import offsets_by_partition, plan, ranges

import segmentlog
from segmentlog.errors import OffsetOutOfRangeError, OptionError

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.1"

COMMITTED = {"kafka.isolation.level": "read_committed"}
#: Of `transactions`: a time that only an end marker reaches, and the marker's offset.
OF_LAST_MARKER, LAST_MARKER = 1_795_234_745_000, 46
LAST_STABLE, END = 42, 49


def offset_map(topic: str, offset: int) -> str:
    """A JSON map for partition 0."""
    return json.dumps({topic: {"0": offset}})


def test_a_time_is_looked_up_below_the_end_of_the_isolation_level() -> None:
    """The answer is a broker's for ``ListOffsets``.

    Markers count, and records beyond the stable offset do not.
    """
    at = {"subscribe": "transactions", "startingTimestamp": str(OF_LAST_MARKER)}

    assert [(0, LAST_MARKER, END)] == ranges(GOLDEN, **at)
    with pytest.raises(OptionError, match=f"-0 has none at or after {OF_LAST_MARKER} ms"):
        plan(GOLDEN, **at, **COMMITTED)
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert [] == ranges(GOLDEN, **at, **COMMITTED, **latest)
    end = {"subscribe": "transactions", "endingTimestamp": str(OF_LAST_MARKER)}
    assert [(0, 0, LAST_MARKER)] == ranges(GOLDEN, **end)
    assert [(0, 0, LAST_STABLE)] == ranges(GOLDEN, **end, **COMMITTED)


@pytest.mark.parametrize("level", [{}, COMMITTED])
@pytest.mark.parametrize("late", ["true", "false"])
@pytest.mark.parametrize("n_tasks", ["1", "7"])
def test_end_markers_and_aborted_records_are_no_data_loss(
    level: dict[str, str], late: str, n_tasks: str
) -> None:
    """They have offsets and no rows. Pieces that begin among them lose no other rows."""
    options = {"subscribe": "transactions", "lateBinding": late, "minPartitions": n_tasks, **level}
    log = segmentlog.open_log_dir(GOLDEN).log("transactions", 0)
    isolation = level.get("kafka.isolation.level", "read_uncommitted")
    rows = log.scan(columns=["offset"], isolation_level=isolation).read_all()
    expected = rows["offset"].to_pylist()

    assert len(expected) < END
    assert {0: expected} == offsets_by_partition(GOLDEN, **options)


@pytest.mark.parametrize("topic", ["compacted", "compacted-transactions"])
def test_records_that_compaction_removed_are_no_data_loss(topic: str) -> None:
    """Offsets are missing at the bounds of the range and inside it. Each row comes once."""
    log = segmentlog.open_log_dir(GOLDEN).log(topic, 0)
    there = log.scan(columns=["offset"]).read_all()["offset"].to_pylist()
    gaps = sorted(set(range(log.log_start_offset, log.log_end_offset)) - set(there))
    assert gaps

    for first in gaps:
        options = {"subscribe": topic, "startingOffsets": offset_map(topic, first)}
        found = offsets_by_partition(GOLDEN, **options, maxRecordsPerPartition="5")
        assert found.get(0, []) == [at for at in there if at >= first]


@pytest.mark.parametrize("topic", ["deleted-records", "retention-by-size", "retention-by-time"])
@pytest.mark.parametrize("late", ["true", "false"])
def test_a_start_below_the_log_start_is_data_loss(
    topic: str, late: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If allowed, the rest is read once, and the missing offsets are named.

    Earliest is never data loss.
    """
    log = segmentlog.open_log_dir(GOLDEN).log(topic, 0)
    there = log.scan(columns=["offset"]).read_all()["offset"].to_pylist()
    options = {"subscribe": topic, "lateBinding": late}
    from_zero = options | {"startingOffsets": offset_map(topic, 0)}
    assert log.log_start_offset > 0

    assert {0: there} == offsets_by_partition(GOLDEN, **options)
    with pytest.raises(OffsetOutOfRangeError, match=f"{topic}-0: offset 0 is outside the log"):
        plan(GOLDEN, **from_zero)
    assert [] == caplog.messages
    assert {0: there} == offsets_by_partition(GOLDEN, **from_zero, failOnDataLoss="false")
    assert f"{topic}-0: offsets [0, {log.log_start_offset}) do not exist" in caplog.text
