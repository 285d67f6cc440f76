"""Damage to headers does not move the last stable offset without an error."""

from pathlib import Path
from typing import Any

import pytest
from producer_batches import COMMIT, batch, marker, plant

import segmentlog
from segmentlog.errors import ChecksumMismatchError, CorruptLogError
from segmentlog.log.listing import list_segments
from segmentlog.model import IsolationLevel, ScanPolicy
from segmentlog.reads.scan import scan_slice
from segmentlog.testing.damage import Damage, flip_bit, set_field

PLAIN = -1


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    """Two records without a transaction, four of a committed one, and two more; no checkpoint."""
    plant(
        tmp_path,
        batch(PLAIN, -1, -1, 2),
        batch(7, 0, 0, 2, base_offset=2, is_transactional=True),
        batch(7, 0, 2, 2, base_offset=4, is_transactional=True),
        batch(PLAIN, -1, -1, 1, base_offset=6),
        marker(7, 0, base_offset=7, kind=COMMIT),
        batch(PLAIN, -1, -1, 2, base_offset=8),
    )
    return tmp_path / "t-0" / f"{0:020d}.log"


def committed(log_file: Path, **how: Any) -> list[int]:
    log = segmentlog.open_log_dir(log_file.parents[1]).log("t", 0)
    scan = log.scan(isolation_level="read_committed", **how)
    return scan.read_all()["offset"].to_pylist()


@pytest.mark.parametrize(
    ("number", "bit"),
    [(0, 4), (3, 4), (4, 5)],
    ids=["a first batch looks transactional", "a later one does", "a marker looks like data"],
)
def test_a_header_that_looks_like_an_open_transaction_is_an_error(
    log_file: Path, number: int, bit: int
) -> None:
    flip_bit(number, "attributes", bit)(log_file)

    with pytest.raises(ChecksumMismatchError):
        committed(log_file)


def test_damage_beyond_the_end_of_the_read_does_no_harm(log_file: Path) -> None:
    data = log_file.read_bytes()
    log_file.write_bytes(data + batch(9, 0, 0, 1, base_offset=10, is_transactional=True))
    flip_bit(6, "crc")(log_file)
    log_file.write_bytes(log_file.read_bytes() + batch(PLAIN, -1, -1, 1, base_offset=11))
    checkpoint = log_file.parents[1] / "replication-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 6\n")

    assert [0, 1] == committed(log_file)


@pytest.mark.parametrize(
    ("number", "left"),
    [
        (0, [2, 3, 4, 5, 6, 8, 9]),
        (1, [0, 1, 4, 5, 6, 8, 9]),
        (3, [0, 1, 2, 3, 4, 5, 8, 9]),
        (4, [0, 1, 6, 8, 9]),  # without its marker, nothing of the transaction is committed
    ],
)
@pytest.mark.parametrize("field", ["batch_length", "crc"])
def test_skipping_leaves_out_the_damaged_batch_alone(
    log_file: Path, number: int, left: list[int], field: str
) -> None:
    set_field(number, field, 3)(log_file)

    with pytest.raises(CorruptLogError):
        committed(log_file)
    assert left == committed(log_file, on_corrupt_batch="skip")
    dataset = segmentlog.dataset(
        log_file.parents[1], isolation_level="read_committed", on_corrupt_batch="skip"
    )
    assert left == dataset.to_table(columns=["offset"])["offset"].to_pylist()


@pytest.mark.parametrize(
    "spoil",
    [
        flip_bit(4, "base_offset", 33),
        flip_bit(4, "attributes", 5),
        set_field(4, "batch_length", 3),
    ],
)
def test_a_damaged_marker_after_a_range_is_an_error(log_file: Path, spoil: Damage) -> None:
    """The records of the range are neither lost nor decided by a later marker: the read fails."""
    log = segmentlog.open_log_dir(log_file.parents[1]).log("t", 0)
    slices = log.slices(0, 6)
    spoil(log_file)
    plant(log_file.parents[1], marker(7, 0, base_offset=10, kind=COMMIT), base_offset=10)

    with pytest.raises(CorruptLogError):
        list(scan_slice(slices[0], policy=ScanPolicy(IsolationLevel.READ_COMMITTED)))


def test_a_file_that_compaction_replaces_while_markers_are_sought_is_listed_again(
    log_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file is smaller than the listed one, and holds the marker at another byte."""
    later = batch(PLAIN, -1, -1, 1, base_offset=8), marker(9, 0, base_offset=9, kind=COMMIT)
    plant(log_file.parents[1], *later, base_offset=8)
    cut = log_file.read_bytes()
    end = len(cut) - len(batch(PLAIN, -1, -1, 2)) - len(marker(7, 0))
    log_file.write_bytes(cut[:end])
    place = log_file.with_name(f"{7:020d}.log")
    place.write_bytes(marker(7, 0, base_offset=7, kind=COMMIT))
    log = segmentlog.open_log_dir(log_file.parents[1]).log("t", 0)
    slices = log.slices(0, 6)
    stale = tuple(
        each._replace(size=each.size + 50, inode=1) if each.path == str(place) else each
        for each in list_segments(str(log_file.parent))
    )
    answers = [stale]
    monkeypatch.setattr(
        "segmentlog.reads.listed.list_segments",
        lambda path: answers.pop() if answers else list_segments(path),
    )

    scan = scan_slice(slices[0], policy=ScanPolicy(IsolationLevel.READ_COMMITTED))
    assert 6 == sum(each.num_rows for each in scan)


def test_a_marker_that_the_high_watermark_promises_is_an_error(log_file: Path) -> None:
    """A wrong offset makes the last batch look like damage after the log end."""
    data = log_file.read_bytes()
    log_file.write_bytes(data[: -len(batch(PLAIN, -1, -1, 2))])
    checkpoint = log_file.parents[1] / "replication-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 8\n")
    flip_bit(4, "base_offset", 20)(log_file)

    with pytest.raises(CorruptLogError):
        committed(log_file)


def test_a_wrong_offset_at_the_end_of_a_segment_hides_no_later_marker(tmp_path: Path) -> None:
    """The marker of a transaction stands in a later segment than a marker with a wrong offset."""
    plant(
        tmp_path,
        batch(7, 0, 0, 1, is_transactional=True),
        batch(8, 0, 0, 1, base_offset=1, is_transactional=True),
        marker(7, 0, base_offset=2, kind=COMMIT),
    )
    plant(tmp_path, marker(8, 0, base_offset=3, kind=COMMIT), base_offset=3)
    plant(tmp_path, batch(PLAIN, -1, -1, 1, base_offset=4), base_offset=4)
    first = tmp_path / "t-0" / f"{0:020d}.log"
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    slices = log.slices(0, 2)
    flip_bit(2, "base_offset", 13)(first)

    with pytest.raises(CorruptLogError):
        list(scan_slice(slices[0], policy=ScanPolicy(IsolationLevel.READ_COMMITTED)))
    assert [1, 4] == committed(first, on_corrupt_batch="skip")


def test_skipping_a_length_that_hides_a_marker_keeps_the_transaction(log_file: Path) -> None:
    """The length of the batch before the marker reaches beyond the end of the file."""
    set_field(3, "batch_length", 1 << 20)(log_file)

    assert [0, 1, 2, 3, 4, 5, 8, 9] == committed(log_file, on_corrupt_batch="skip")


def _spoilt(data: bytes, how: str) -> bytes:
    """A batch with a wrong checksum, with a length beyond the file, or of zeros."""
    if how == "length":
        return data[:8] + (1 << 30).to_bytes(4, "big") + data[12:]
    return bytes(len(data)) if how == "zeros" else data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("how", ["checksum", "length", "zeros"])
@pytest.mark.parametrize("rolled", [False, True])
def test_damage_below_the_log_start_is_no_error(tmp_path: Path, how: str, rolled: bool) -> None:
    """DeleteRecords has moved the log start into an aborted transaction, or after its end."""
    batches = [batch(7, 0, i, base_offset=i, is_transactional=True) for i in range(4)]
    batches += [marker(7, 0, base_offset=4)]
    batches += [batch(PLAIN, -1, -1, base_offset=5), batch(PLAIN, -1, -1, base_offset=6)]
    for log_start in range(1, 6):
        for damaged in range(log_start):
            directory = tmp_path / f"{log_start} {damaged}"
            spoilt = [
                _spoilt(each, how) if i == damaged else each for i, each in enumerate(batches)
            ]
            if rolled:
                plant(directory, *spoilt[3:], base_offset=3)
            plant(directory, *spoilt[: 3 if rolled else None])
            checkpoint = directory / "log-start-offset-checkpoint"
            checkpoint.write_text(f"0\n1\nt 0 {log_start}\n")
            log = segmentlog.open_log_dir(directory).log("t", 0)

            assert 7 == log.last_stable_offset()
            rows = segmentlog.read(directory, "t", isolation_level="read_committed")
            assert [5, 6] == rows["offset"].to_pylist()


@pytest.mark.parametrize("how", ["checksum", "length", "zeros"])
def test_damage_at_the_log_start_is_an_error(tmp_path: Path, how: str) -> None:
    """It may have hidden the records of a transaction, or its end."""
    batches = [batch(7, 0, i, base_offset=i, is_transactional=True) for i in range(4)]
    for damaged in (2, 3):
        spoilt = [_spoilt(each, how) if i == damaged else each for i, each in enumerate(batches)]
        directory = tmp_path / f"{damaged}"
        plant(directory, *spoilt, marker(7, 0, base_offset=4), batch(PLAIN, -1, -1, base_offset=5))
        (directory / "log-start-offset-checkpoint").write_text("0\n1\nt 0 2\n")

        with pytest.raises(CorruptLogError):
            segmentlog.read(directory, "t", isolation_level="read_committed")
