"""DeleteRecords without a broker: to an offset or a time, within its limits."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.errors import OffsetOutOfRangeError, OptionError, UnknownTopicOrPartitionError
from segmentlog.log.checkpoint import read_offsets, write_offsets
from segmentlog.model import TopicPartition
from segmentlog.reads import snapshot
from segmentlog.times import Time

PARTITION = TopicPartition("t", 0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Nine records in segments of three; record `i` has the timestamp 1000 `i`."""
    config = segmentlog.ProducerConfig(use_timestamps=True, batch_size=1)
    with segmentlog.open_writer(tmp_path, "t", config=config) as writer:
        for first in (0, 3, 6):
            numbers = range(first, first + 3)
            times = pa.array([1000 * i for i in numbers], pa.timestamp("ms", "UTC"))
            writer.append(pa.table({"value": [b"%d" % i for i in numbers], "timestamp": times}))
            writer.roll()
    return tmp_path


def left(directory: Path) -> list[int]:
    """The values that a reader finds."""
    log = segmentlog.open_log_dir(directory).log("t", 0)
    return [int(value) for value in log.scan().read_all()["value"].to_pylist()]


def segments(directory: Path) -> list[int]:
    """Base offsets of live segments."""
    return sorted(int(path.stem) for path in (directory / "t-0").glob("*.log"))


def test_to_an_offset_inside_a_segment(directory: Path) -> None:
    """Records before the offset are hidden, and segments that lie wholly before it are removed."""
    size = (directory / "t-0" / f"{0:020d}.log").stat().st_size
    told = segmentlog.delete_records(directory, "t", 0, offset=4, dry_run=True)
    assert [*range(9)] == left(directory)
    done = segmentlog.delete_records(directory, "t", 0, offset=4)

    assert segmentlog.DeletedRecords("t", 0, 0, 4, 1, size) == done == told
    assert [*range(4, 9)] == left(directory)
    assert [3, 6] == segments(directory)
    assert 4 == read_offsets(str(directory), "log-start-offset-checkpoint")[PARTITION]


def test_to_the_end(directory: Path) -> None:
    """The active segment stays, as with a broker, and the next record gets the next offset."""
    done = segmentlog.delete_records(directory, "t", 0, offset=-1)

    assert (9, 2) == (done.new_start, done.segments)
    assert [] == left(directory)
    assert [6] == segments(directory)
    with segmentlog.open_writer(directory, "t") as writer:
        writer.append(pa.table({"value": [b"9"]}))
    assert [9] == left(directory)


@pytest.mark.parametrize(
    ("before", "expected"),
    [(0, 0), (1, 1), (3000, 3), (3001, 4), (8000, 8), (8001, 9), ("1970-01-01", 0)],
)
def test_before_a_time(directory: Path, before: Time, expected: int) -> None:
    """The first record at or after the time stays, and so do all later records."""
    done = segmentlog.delete_records(directory, "t", 0, before=before)

    assert expected == done.new_start
    assert [*range(expected, 9)] == left(directory)


def test_before_a_time_that_only_deleted_records_of_the_first_segment_reach(
    tmp_path: Path,
) -> None:
    """Only deleted records of the first segment reach the time.

    Newer records of the next segment stay.
    """
    config = segmentlog.ProducerConfig(use_timestamps=True, batch_size=1)
    with segmentlog.open_writer(tmp_path, "t", config=config) as writer:
        for times_ms in ([1000, 9000, 1001], [2000, 3000]):
            times = pa.array([1000 * each for each in times_ms], pa.timestamp("us", "UTC"))
            rows = {"value": [b"%d" % each for each in times_ms], "timestamp": times}
            writer.append(pa.table(rows))
            writer.roll()
    segmentlog.delete_records(tmp_path, "t", 0, offset=2)

    assert 4 == segmentlog.delete_records(tmp_path, "t", 0, before=2500).new_start
    assert [3000] == left(tmp_path)


def test_it_never_goes_back(directory: Path) -> None:
    """A lower offset is not an error, as with a broker, and changes nothing."""
    segmentlog.delete_records(directory, "t", 0, offset=5)
    before = (directory / "segmentlog.state").read_bytes()
    calls: list[dict[str, Any]] = [{"offset": 2}, {"before": 0}, {"offset": 5}]
    for how in calls:
        assert 5 == segmentlog.delete_records(directory, "t", 0, **how).new_start

    assert before == (directory / "segmentlog.state").read_bytes()
    assert [*range(5, 9)] == left(directory)


def test_not_beyond_the_high_watermark(directory: Path) -> None:
    """Records beyond the high watermark may be cut off later."""
    write_offsets(str(directory), "replication-offset-checkpoint", {PARTITION: 5})
    with pytest.raises(OffsetOutOfRangeError):
        segmentlog.delete_records(directory, "t", 0, offset=6)
    assert 5 == segmentlog.delete_records(directory, "t", 0, before=10**8).new_start

    assert 5 == read_offsets(str(directory), "replication-offset-checkpoint")[PARTITION]
    assert [] == left(directory)


def test_refusals(directory: Path) -> None:
    """Nothing is changed."""
    calls: list[dict[str, Any]] = [{}, {"offset": 1, "before": 1}]
    for how in calls:
        with pytest.raises(OptionError, match="give the first offset that stays, or a time"):
            segmentlog.delete_records(directory, "t", 0, **how)
    with pytest.raises(UnknownTopicOrPartitionError):
        segmentlog.delete_records(directory, "t", 1, offset=1)
    for offset in (10, -2):
        with pytest.raises(OffsetOutOfRangeError):
            segmentlog.delete_records(directory, "t", 0, offset=offset)

    assert [*range(9)] == left(directory)


def test_hidden_records_go_with_their_segment(directory: Path) -> None:
    """Retention removes segments below the log start first."""
    segmentlog.delete_records(directory, "t", 0, offset=-1)
    keep = {"retention.ms": "-1"}
    assert [] == segmentlog.retain(directory, settings=keep)
    with segmentlog.open_writer(directory, "t") as writer:
        writer.roll()
        writer.append(pa.table({"value": [b"9"]}))
    (removed,) = segmentlog.retain(directory, settings=keep)

    assert (6, 9, "start") == (removed.base_offset, removed.end_offset, removed.reason)
    assert [9] == segments(directory) == left(directory)


def test_one_partition_after_the_other_lists_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only files show the ends of logs; many partitions took their square."""
    with segmentlog.open_writer(tmp_path, "t", num_partitions=8) as writer:
        writer.append(pa.table({"value": ["a"] * 8, "partition": pa.array(range(8), pa.int32())}))
    (tmp_path / "replication-offset-checkpoint").unlink()
    listed = []
    list_now = snapshot.list_now

    def noted(path: str, **given: Any) -> Any:
        listed.append(Path(path).name)
        return list_now(path, **given)

    monkeypatch.setattr(snapshot, "list_now", noted)
    for number in range(8):
        segmentlog.delete_records(tmp_path, "t", number, offset=0, dry_run=True)

    assert [f"t-{number}" for number in range(8)] == sorted(set(listed))
    assert len(listed) <= 2 * 8
