"""`segmentlog.reindex`: its results, and the calls that it refuses."""

import shutil
from pathlib import Path

import pytest
from broker_lock import as_broker

import segmentlog
from segmentlog import IndexedSegment
from segmentlog.errors import (
    CorruptLogError,
    LogDirectoryError,
    LogLockedError,
    MalformedBatchError,
    OptionError,
)
from segmentlog.testing.reference import Record, encode_batch

pytestmark = pytest.mark.linux


@pytest.fixture
def stopped(example_data: str, tmp_path: Path) -> Path:
    """A copy of a broker's directory."""
    directory = tmp_path / "kafka"
    shutil.copytree(example_data, directory)
    return directory


def test_files_that_were_missing_or_wrong_are_named(stopped: Path) -> None:
    """A segment whose indexes were right has none of them."""
    missing = stopped / "payments-0" / f"{60:020d}.index"
    expected = missing.read_bytes()
    missing.unlink()
    seen: list[IndexedSegment] = []
    begun: list[str] = []
    found = segmentlog.reindex(
        stopped / "payments-0",
        stopped / "orders-0" / f"{0:020d}.log",
        on_segment=seen.append,
        on_log=begun.append,
    )

    assert seen == found
    assert ["payments-0", "orders-0"] == begun
    assert [("payments", 0, 0), ("payments", 0, 60), ("orders", 0, 0)] == [
        (each.topic, each.partition, each.base_offset) for each in found
    ]
    assert [(), (str(missing),), ()] == [each.changed for each in found]
    assert {None} == {each.error for each in found}
    assert expected == missing.read_bytes()


def test_damage_is_in_the_result_of_its_segment(stopped: Path) -> None:
    """Later segments of the partition are not indexed, and those of other partitions are."""
    log = stopped / "payments-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[8] = 0xFF
    log.write_bytes(data)
    found = segmentlog.reindex(stopped)

    (damaged,) = [each for each in found if each.error is not None]
    assert (str(log), 0) == (damaged.path, damaged.base_offset)
    assert isinstance(damaged.error, MalformedBatchError)
    assert [0] == [each.base_offset for each in found if each.topic == "payments"]
    assert {0, 1, 2} == {each.partition for each in found if each.topic == "orders"}


def test_the_interval_of_a_topic_can_be_given(stopped: Path) -> None:
    """A smaller interval gives more entries."""
    index = stopped / "orders-0" / f"{0:020d}.index"
    before = index.stat().st_size
    segmentlog.reindex(stopped / "orders-0", index_interval_bytes=1)

    assert before < index.stat().st_size


def test_calls_that_are_refused(stopped: Path, tmp_path: Path) -> None:
    """No file is made, and the lock is waited for as long as the caller says."""
    for path in (tmp_path / "nothing", tmp_path, stopped / "meta.properties"):
        with pytest.raises(LogDirectoryError):
            segmentlog.reindex(path)
    with pytest.raises(OptionError, match="index_interval_bytes"):
        segmentlog.reindex(stopped, index_interval_bytes=2**31)
    with as_broker(stopped), pytest.raises(LogLockedError):
        segmentlog.reindex(stopped, lock_timeout_seconds=0)
    (stopped / "segmentlog.unfinished.x").mkdir()
    with pytest.raises(LogDirectoryError, match="run segmentlog recover first"):
        segmentlog.reindex(stopped)


LENGTH, LARGEST_TIME = (8, b"\x7f"), (35, b"\x7f\x7f")


@pytest.mark.parametrize("damage", [LENGTH, LARGEST_TIME])
@pytest.mark.parametrize("is_recovered", [False, True])
def test_the_indexes_of_a_damaged_closed_segment_stay(
    tmp_path: Path, damage: tuple[int, bytes], *, is_recovered: bool
) -> None:
    """They lead around the damage; half of them would hide the records after it."""
    partition = tmp_path / "t-0"
    partition.mkdir()
    for base in (0, 300):
        batches = [
            encode_batch([Record(o, 1000 + o, b"k", b"v" * 90)]) for o in range(base, base + 300)
        ]
        (partition / f"{base:020d}.log").write_bytes(b"".join(batches))
    segmentlog.reindex(partition, index_interval_bytes=500)
    (tmp_path / ".kafka_cleanshutdown").touch()
    log = partition / f"{0:020d}.log"
    at = 5 * len(batches[0]) + damage[0]
    data = bytearray(log.read_bytes())
    data[at : at + len(damage[1])] = damage[1]
    log.write_bytes(data)
    if is_recovered:
        log.with_suffix(".timeindex").unlink()
    before = {each.name: each.read_bytes() for each in partition.glob("0*")}
    assert 400 < len(before[log.with_suffix(".index").name])
    if is_recovered:
        segmentlog.recover(tmp_path)
    else:
        (found,) = segmentlog.reindex(partition, index_interval_bytes=500)
        assert (str(log), ()) == (found.path, found.changed)
        assert isinstance(found.error, CorruptLogError)
    assert before == {each.name: each.read_bytes() for each in partition.glob("0*")}
