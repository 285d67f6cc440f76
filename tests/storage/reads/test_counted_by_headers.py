"""Rows that are counted by the headers of batches are those that a read of all bytes counts."""

import os
import random
import struct
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from dirty_logs import Kind, dirty_log, write_segments
from producer_batches import marker

import segmentlog
from segmentlog.format.checksum import crc32c
from segmentlog.format.kernels import layout
from segmentlog.format.records.decoder import BatchScanner
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log import batches as walks
from segmentlog.store.readable import open_file
from segmentlog.testing.legacy import encode_message
from segmentlog.testing.reference import Record, encode_batch

NOW_MS = 1_700_000_000_000
COLUMNS: list[list[str]] = [[], ["partition"], ["topic", "timestampType"]]
KINDS = {
    "plain": Kind(),
    "compressed": Kind(codecs=(0, 1, 2, 3, 4)),
    "transactions": Kind(producers=3),
    "append time": Kind(is_append_time=True),
    "old formats": Kind(magics=(0, 1, 2), codecs=(0, 1)),
}


def result(path: Path, columns: list[str], **options: Any) -> tuple[Any, Any]:
    """The rows of a read, or its error."""
    try:
        found = segmentlog.dataset(path, **options).to_table(columns)
    except segmentlog.SegmentLogError as error:
        return type(error), str(error)
    return found.num_rows, found.to_pydict()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_counts_are_those_of_a_read_that_checks(tmp_path: Path, kind: Kind, seed: int) -> None:
    """Of all rows and of a range, with each isolation level."""
    segments = dirty_log(seed, kind, NOW_MS)
    partition = tmp_path / "t-0"
    write_segments(partition, segments, NOW_MS)
    rng = random.Random(seed)
    end = segmentlog.open_log_dir(tmp_path).log("t", 0).log_end_offset
    for _ in range(6):
        bounds = sorted(rng.choices(range(end + 1), k=2))
        some: Mapping[str, Any] = {
            "starting_offsets": {("t", 0): bounds[0]},
            "ending_offsets": {("t", 0): bounds[1]},
        }
        level = rng.choice(["read_committed", "read_uncommitted"])
        columns = rng.choice(COLUMNS)
        for bound in ({}, some):
            options = {"isolation_level": level, **bound}
            expected = result(tmp_path, columns, **options)
            assert expected == result(tmp_path, columns, check_crcs=False, **options)


@pytest.mark.parametrize("seed", range(int(os.environ.get("COUNT_SEEDS", "40"))))
def test_a_changed_byte_of_a_header_is_an_error_of_both_reads(tmp_path: Path, seed: int) -> None:
    """What a header cannot be is found as it is with checksums; a wrong count may be believed."""
    rng = random.Random(seed)
    segments = dirty_log(seed % 5, KINDS[rng.choice([*KINDS])], NOW_MS)
    write_segments(tmp_path / "t-0", segments, NOW_MS)
    path = rng.choice(sorted((tmp_path / "t-0").glob("*.log"))[:-1])
    data = bytearray(path.read_bytes())
    starts = [0]
    for batch in segments[sorted((tmp_path / "t-0").glob("*.log")).index(path)]:
        starts.append(starts[-1] + len(batch))
    at = rng.choice(starts[:-1]) + rng.randrange(layout.RECORDS_COUNT_AT + 4)
    data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)

    unchecked = result(tmp_path, [], check_crcs=False)
    checked = result(tmp_path, [])
    if isinstance(unchecked[0], type):
        assert isinstance(checked[0], type)
    elif not isinstance(checked[0], type):
        assert checked == unchecked


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (layout.BASE_OFFSET_AT, struct.pack(">q", 3)),  # the batch before ends at 6
        (layout.BATCH_LENGTH_AT, struct.pack(">i", 5_000)),  # beyond the end of the file
        (layout.RECORDS_COUNT_AT, struct.pack(">i", 0)),  # but there are bytes of records
        (layout.RECORDS_COUNT_AT, struct.pack(">i", 4)),  # of three offsets
        (layout.LAST_OFFSET_DELTA_AT, struct.pack(">i", 9)),  # the next segment begins at 9
    ],
)
def test_a_header_that_cannot_be_true_is_read_with_its_batch(
    tmp_path: Path, at: int, data: bytes
) -> None:
    """The last batch of a segment that another one follows."""
    every = [encode_batch([Record(3 * i + j, i, None, b"v") for j in range(3)]) for i in range(4)]
    every[2] = every[2][:at] + data + every[2][at + len(data) :]
    write_segments(tmp_path / "t-0", [every[:3], every[3:]], NOW_MS)

    checked = result(tmp_path, [])
    assert isinstance(checked[0], type)
    assert checked == result(tmp_path, [], check_crcs=False)


def test_a_batch_below_offset_0_is_not_left_out(tmp_path: Path) -> None:
    """No checksum covers a base offset."""
    every = [encode_batch([Record(i, i, None, b"v")]) for i in range(4)]
    write_segments(tmp_path / "t-0", [every[:1], every[1:3], every[3:]], NOW_MS)
    path = tmp_path / f"t-0/{1:020d}.log"
    path.write_bytes(struct.pack(">q", -9) + path.read_bytes()[8:])

    checked = result(tmp_path, [])
    assert isinstance(checked[0], type)
    assert checked == result(tmp_path, [], check_crcs=False)


@pytest.mark.parametrize(
    ("attributes", "count", "error"),
    [
        (5, 3, segmentlog.UnsupportedFormatError),  # a codec that Kafka does not have
        (1, 1 << 30, segmentlog.MalformedBatchError),  # of 7 GB at least
    ],
)
def test_a_count_that_no_read_could_have_is_an_error_with_a_right_checksum(
    tmp_path: Path, attributes: int, count: int, error: type[Exception]
) -> None:
    """Of a compressed batch: the header alone does not show how many bytes it inflates to."""
    batch = bytearray(encode_batch([Record(i, i, None, b"v") for i in range(3)], codec=1))
    struct.pack_into(">h", batch, layout.ATTRIBUTES_AT, attributes)
    struct.pack_into(">i", batch, layout.LAST_OFFSET_DELTA_AT, count - 1)
    struct.pack_into(">i", batch, layout.RECORDS_COUNT_AT, count)
    found = crc32c(bytes(batch[layout.ATTRIBUTES_AT :]))
    struct.pack_into(">I", batch, layout.CRC_AT, found)
    after = encode_batch([Record(count, 0, None, b"v")])
    write_segments(tmp_path / "t-0", [[bytes(batch)], [after]], NOW_MS)

    checked = result(tmp_path, [])
    assert error is checked[0]
    assert checked == result(tmp_path, [], check_crcs=False)


@pytest.mark.parametrize("bounds", [(0, 14), (4, 14), (7, 10), (5, 8), (8, 14)])
def test_segments_that_were_merged_are_counted_once(
    tmp_path: Path, bounds: tuple[int, int]
) -> None:
    """A copy that was taken during compaction has the merged segment and one of those in it."""
    every = [encode_batch([Record(2 * i + j, i, None, b"v") for j in range(2)]) for i in range(7)]
    write_segments(tmp_path / "t-0", [every[:5], every[3:5], every[5:]], NOW_MS)
    options: Any = {
        "starting_offsets": {("t", 0): bounds[0]},
        "ending_offsets": {("t", 0): bounds[1]},
    }

    assert bounds[1] - bounds[0] == result(tmp_path, [], **options)[0]
    assert bounds[1] - bounds[0] == result(tmp_path, [], check_crcs=False, **options)[0]


def test_an_end_marker_that_claims_a_gigabyte_takes_no_memory(tmp_path: Path) -> None:
    """Its length reaches beyond the segment, so the rest of it is not read into memory."""
    first = encode_batch([Record(0, 0, None, b"v")])
    end = bytearray(marker(7, 0, base_offset=1))
    struct.pack_into(">i", end, layout.BATCH_LENGTH_AT, 1 << 30)
    second, after = (encode_batch([Record(i, 0, None, b"v")]) for i in (2, 3))
    write_segments(tmp_path / "t-0", [[first, bytes(end), second], [after]], NOW_MS)
    os.truncate(tmp_path / f"t-0/{0:020d}.log", 300 << 20)
    logs = segmentlog.dataset(tmp_path, check_crcs=False)

    tracemalloc.start()
    try:
        with pytest.raises(segmentlog.CorruptLogError):
            logs.count_rows()
        assert 100e6 > tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_bodies_are_neither_checked_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged record is counted; whoever reads its value gets the error, also without checks."""
    good = encode_batch([Record(i, i, None, b"v" * 5_000) for i in range(3)])
    after = encode_batch([Record(i, i, None, b"v") for i in range(3, 5)])
    (tmp_path / "t-0").mkdir()
    data = good[:100] + b"?" + good[101:] + after
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(data)
    log = segmentlog.dataset(tmp_path, check_crcs=False)

    with pytest.raises(segmentlog.ChecksumMismatchError):
        segmentlog.dataset(tmp_path).count_rows()
    with pytest.raises(segmentlog.ChecksumMismatchError):
        log.to_table(["value"])
    with pytest.raises(segmentlog.ChecksumMismatchError):
        log.to_table(["offset"])
    monkeypatch.delattr(BatchScanner, "scan")
    assert 5 == log.count_rows()


def test_only_the_batches_that_a_range_cuts_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And old formats, from the first such batch of a file on."""
    every = [encode_batch([Record(3 * i + j, i, None, b"v") for j in range(3)]) for i in range(20)]
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(every))
    read: list[int] = []
    scans = BatchScanner.scan

    def noted(self: BatchScanner, *given: Any, **named: Any) -> ScannedBatches:
        found = scans(self, *given, **named)
        read.append(len(found.headers))
        return found

    monkeypatch.setattr(BatchScanner, "scan", noted)
    bounds: Any = {"starting_offsets": {("t", 0): 4}, "ending_offsets": {("t", 0): 41}}
    assert 37 == segmentlog.dataset(tmp_path, check_crcs=False, **bounds).count_rows()
    assert [1, 1] == read

    old = [encode_message(Record(60 + i, i, None, b"v")) for i in range(3)]
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"".join([*every, *old]))
    read.clear()
    assert 63 == segmentlog.dataset(tmp_path, check_crcs=False).count_rows()
    assert [3] == read


@pytest.mark.parametrize("n_bytes", [0, 50, 3_000, 3_100, 40_000, 200_000])
@pytest.mark.parametrize("sparse_bytes", [1 << 10, 64 << 10, 8 << 20])
def test_headers_in_memory_are_those_of_a_read(
    tmp_path: Path, n_bytes: int, sparse_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small batches and large ones, and end markers among them, in windows of every size."""
    rng = random.Random(n_bytes)
    segments = dirty_log(3, Kind(producers=3, n_batches=40), NOW_MS)
    parts = [batch for segment in segments for batch in segment]
    offset = 1_000_000
    for _ in range(30):
        value = rng.randbytes(rng.randrange(n_bytes + 1))
        parts.append(encode_batch([Record(offset, offset, None, value)]))
        offset += rng.randint(1, 3)
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(b"".join(parts))
    monkeypatch.setattr(walks, "_SPARSE_BYTES", sparse_bytes)

    def walked() -> tuple[list[list[int]], list[list[int]]]:
        headers, markers = [], []
        with open_file(str(path)) as file:
            for each in walks.walk_file(str(path), file, 0, path.stat().st_size):
                rows = each.scanned.headers.copy()
                rows[:, layout.POSITION] += each.scanned.file_position
                headers += rows[:, : layout.RECORDS_START].tolist()
                markers += each.markers.tolist()
        return headers, markers

    found = walked()
    monkeypatch.setattr(walks, "_address_of_preadv2", lambda: 0)
    assert found == walked()
    assert len(parts) == len(found[0])
