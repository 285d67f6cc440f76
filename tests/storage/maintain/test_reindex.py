"""`segmentlog.reindex`: its results, and the calls that it refuses."""

import shutil
from pathlib import Path

import pytest
from broker_lock import as_broker

import segmentlog
from segmentlog import IndexedSegment
from segmentlog.errors import LogDirectoryError, LogLockedError, MalformedBatchError, OptionError

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
        stopped / "payments-0", stopped / "orders-0" / f"{0:020d}.log",
        on_segment=seen.append, on_log=begun.append,
    )  # fmt: skip

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
