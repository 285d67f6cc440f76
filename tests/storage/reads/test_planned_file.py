"""A planned read finds its files although compaction has put other files under their names."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from descriptors import descriptors_below
from producer_batches import ABORT, COMMIT, batch, marker, plant

import segmentlog
from segmentlog.errors import LogChangedError
from segmentlog.format.records.one_pass import ReadMemory
from segmentlog.log import swaps
from segmentlog.model import IsolationLevel, LogSlice, ScanPolicy
from segmentlog.reads import listed, scan
from segmentlog.reads.scan import scan_slice

COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def write(directory: Path, *keys: bytes) -> None:
    """A segment with a record of each key; the next segment begins after it."""
    with segmentlog.open_writer(directory, "t") as writer:
        writer.append(pa.table({"key": keys, "value": [b"x" * 100] * len(keys)}))
        writer.roll()
        writer.append(pa.table({"key": [b"active"], "value": [b"v"]}))


def overtake(directory: Path, delay_ms: int = 60_000) -> None:
    """A pass that removes `a`, because of a record beyond the ends of the planned reads."""
    write(directory, b"a")
    segmentlog.compact(directory, settings={**COMPACT, "file.delete.delay.ms": str(delay_ms)})


def keys(slices: list[LogSlice]) -> list[bytes]:
    """Keys of the records in some slices."""
    found: list[bytes] = []
    for each in slices:
        for rows in scan_slice(each, columns=["key"]):
            found += rows["key"].to_pylist()
    return found


def planned(directory: Path, end: int | None = None) -> list[LogSlice]:
    """Slices of the log."""
    log = segmentlog.open_log_dir(directory).log("t", 0)
    return log.slices(0, log.end_offset() if end is None else end)


@pytest.mark.parametrize("end", [None, 2])
def test_the_last_record_of_a_key_stays_in_a_read_that_was_planned(
    tmp_path: Path, end: int | None
) -> None:
    write(tmp_path, b"a", b"b", b"c")
    slices = planned(tmp_path, end)
    overtake(tmp_path)
    assert b"a" not in keys(planned(tmp_path, 3))

    assert [b"a", b"b", b"c", b"active"][:end] == keys(slices)


def test_two_passes_leave_the_files_of_a_read_that_was_planned(tmp_path: Path) -> None:
    """The second pass puts aside files with the same names as those of the first pass."""
    write(tmp_path, b"a", b"b", b"c")
    slices = planned(tmp_path)
    for _ in range(3):
        overtake(tmp_path)

    assert [b"a", b"b", b"c", b"active"] == keys(slices)
    overtake(tmp_path, delay_ms=0)
    assert [] == list((tmp_path / "t-0").glob("*.deleted"))


def test_a_pass_that_was_killed_leaves_the_files_of_a_read_that_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next pass finishes the killed pass, and puts the old files aside."""
    write(tmp_path, b"a", b"b", b"c")
    slices = planned(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(swaps, "put_file_aside", None)  # it dies before this step
        with pytest.raises(TypeError):
            overtake(tmp_path)
    segmentlog.compact(tmp_path, settings=COMPACT)
    assert b"a" not in keys(planned(tmp_path, 3))

    assert [b"a", b"b", b"c", b"active"] == keys(slices)


def test_files_that_are_gone_are_looked_up_by_offset(tmp_path: Path) -> None:
    """The read then returns the records that a consumer would find after the compaction."""
    write(tmp_path, b"a", b"b", b"c")
    slices = planned(tmp_path)
    overtake(tmp_path, delay_ms=0)

    assert [b"b", b"c"] == keys(slices)[:2]


def test_a_file_that_was_put_aside_by_an_earlier_pass_is_another_one(tmp_path: Path) -> None:
    """A file that an earlier pass has put aside does not have the bytes that were planned."""
    write(tmp_path, b"a", b"b", b"c")
    slices = planned(tmp_path)
    overtake(tmp_path)
    aside = tmp_path / "t-0" / f"{0:020d}.log.deleted"
    other = aside.with_name("other")
    other.write_bytes(bytes(aside.stat().st_size))
    other.replace(aside)

    assert [b"b", b"c"] == keys(slices)[:2]


def test_cuts_are_not_those_of_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass runs between the listing and a cut.

    The log is listed again, and the change is noticed.
    """
    for _ in range(4):
        write(tmp_path, b"a", *(b"%d" % i for i in range(200)))
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    end, real = log.end_offset(), listed._first_piece
    is_over = False

    def late(*arguments: Any) -> object:
        nonlocal is_over
        if not is_over:
            is_over = True
            overtake(tmp_path)
        return real(*arguments)

    monkeypatch.setattr(listed, "_first_piece", late)
    with pytest.raises(LogChangedError, match="compacted together with records"):
        log.slices(0, end, 500)


def slices_of_one_file(directory: Path) -> tuple[segmentlog.Log, list[LogSlice]]:
    """A log of one segment, and some slices of it."""
    config = segmentlog.ProducerConfig(batch_size=1000)
    with segmentlog.open_writer(directory, "t", config=config) as writer:
        writer.append(pa.table({"value": [b"%0100d" % i for i in range(200)]}))
    log = segmentlog.open_log_dir(directory).log("t", 0)
    slices = log.slices(*log.bounds(), 2_000)
    assert len(slices) > 3
    return log, slices


@pytest.mark.linux
def test_slices_of_a_read_leave_their_file_open_to_the_next_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the planned file, even if another one has taken its name since."""
    log, slices = slices_of_one_file(tmp_path)
    expected = log.scan().read_all()
    opened: list[str] = []
    opens = scan.open_planned
    monkeypatch.setattr(
        scan, "open_planned", lambda file: (opened.append(file.path), opens(file))[1]
    )
    found: list[pa.RecordBatch] = []
    with ReadMemory() as memory:
        for each in slices:
            found += scan_slice(each, memory=memory)
            path = Path(each.files[0].path)
            path.unlink(missing_ok=True)
            path.write_bytes(b"another segment")
        assert 1 == descriptors_below(tmp_path)

    assert expected == pa.Table.from_batches(found)
    assert [str(path)] == opened
    assert 0 == descriptors_below(tmp_path)


@pytest.mark.linux
def test_no_file_stays_open_after_a_read_that_is_given_up(tmp_path: Path) -> None:
    """The slice may be half read, and other slices may have left their files."""
    _, slices = slices_of_one_file(tmp_path)
    with ReadMemory() as memory:
        list(scan_slice(slices[0], memory=memory))
        half = scan_slice(slices[1], memory=memory)
        next(half)
        assert 1 == descriptors_below(tmp_path)
        half.close()
        assert 0 == descriptors_below(tmp_path)

        late = scan_slice(slices[2], memory=memory)
        next(late)
    list(late)  # a thread for which the consumer did not wait

    assert 0 == descriptors_below(tmp_path)


def test_a_marker_of_a_later_transaction_decides_nothing(tmp_path: Path) -> None:
    """An overwrite has put the segments of the planned read aside, with their end markers."""
    first = batch(5, 0, 0, base_offset=0, is_transactional=True)
    plant(tmp_path, first, batch(1, 0, 0, 10, base_offset=1))
    plant(tmp_path, marker(5, 0, base_offset=11, kind=COMMIT), base_offset=11)
    (planned_slice,) = segmentlog.open_log_dir(tmp_path).log("t", 0).slices(0, 11)
    policy = ScanPolicy(isolation_level=IsolationLevel.READ_COMMITTED)
    assert 11 == sum(each.num_rows for each in scan_slice(planned_slice, policy=policy))
    for path in (tmp_path / "t-0").glob("*.log"):
        path.rename(f"{path}.deleted")
    later = batch(5, 0, 1, base_offset=12, is_transactional=True)
    plant(tmp_path, later, marker(5, 0, base_offset=13, kind=ABORT), base_offset=12)

    with pytest.raises(LogChangedError, match="now begins at offset 12"):
        list(scan_slice(planned_slice, policy=policy))
