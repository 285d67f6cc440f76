"""Slices: every offset is in exactly one slice, and every cut is between two batches."""

import struct
from itertools import pairwise
from pathlib import Path

import pytest
from flipping import plant
from reads import offsets_of, slice_offsets

import segmentlog
from segmentlog.errors import TruncatedBatchError
from segmentlog.reads.listed import UNCHECKED
from segmentlog.testing.reference import Record, encode_batch

SEGMENTS = {
    0: [[0, 1, 2], [3], [4, 5], [6, 7, 8, 9], [10]],
    11: [[11], [12, 13], [14], [17, 19], [20]],
    30: [[30, 31], [32], [33, 34, 35], [36]],
}
OFFSETS = [offset for batches in SEGMENTS.values() for batch in batches for offset in batch]
END = 37
INDEXES = ["good index", "no index", "garbage index"]


@pytest.fixture(params=INDEXES)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> segmentlog.Log:
    """Three segments with a gap before the last, and batches of one to four records."""
    partition = tmp_path / "t-0"
    partition.mkdir()
    for base, batches in SEGMENTS.items():
        data, entries = b"", b""
        for batch in batches:
            if data:
                entries += struct.pack(">ii", batch[-1] - base, len(data))
            data += encode_batch([Record(offset, 1, None, b"v" * 20) for offset in batch])
        stem = partition / f"{base:020d}"
        stem.with_suffix(".log").write_bytes(data)
        if request.param == "good index":
            stem.with_suffix(".index").write_bytes(entries)
        elif request.param == "garbage index":
            stem.with_suffix(".index").write_bytes(b"\0\0\0\1\0\0\0\1" * 4 + b"\x7f" * 40)
    return segmentlog.open_log_dir(tmp_path).log("t", 0)


@pytest.fixture
def index(request: pytest.FixtureRequest) -> str:
    """The index of the log, one of `INDEXES`."""
    return str(request.node.callspec.params["log"])


def batch_positions(path: str) -> set[int]:
    """Bytes at which a batch begins or the file ends, found without the code under test."""
    data = Path(path).read_bytes()
    positions, at = {0}, 0
    while at < len(data):
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
        positions.add(at)
    return positions


@pytest.mark.parametrize("max_bytes", [0, 1, 100, 150, 200, 400, 10**9])
def test_slices_partition_the_range_exactly(log: segmentlog.Log, max_bytes: int) -> None:
    """Each slice begins where the slice before it ends, and together they cover the range."""
    for start in range(END):
        for end in {start + 1, start + 4, END} - {*range(END + 1, END + 9)}:
            slices = log.slices(start, end, max_bytes)
            bounds = [start, *(each.end_offset for each in slices)]

            if slices:
                assert bounds[:-1] == [each.start_offset for each in slices]
                assert end == bounds[-1]
            assert all(before < after for before, after in pairwise(bounds))
            promised = {o for each in slices for o in range(each.start_offset, each.end_offset)}
            assert {o for o in OFFSETS if start <= o < end} <= promised


@pytest.mark.parametrize("max_bytes", [0, 1, 100, 200, 400])
def test_each_row_comes_once_and_in_order(log: segmentlog.Log, max_bytes: int) -> None:
    """The rows of all slices, one slice after the other, are the rows of the range."""
    for start, end in ((0, 37), (1, 36), (2, 3), (5, 12), (11, 30), (15, 32), (18, 19), (36, 37)):
        found = [
            offset for each in log.slices(start, end, max_bytes) for offset in slice_offsets(each)
        ]

        assert [offset for offset in OFFSETS if start <= offset < end] == found


@pytest.mark.parametrize("max_bytes", [1, 100, 150, 400])
def test_cuts_are_between_two_batches(log: segmentlog.Log, max_bytes: int) -> None:
    """Every part of a file begins and ends between two batches."""
    for start, end in ((0, END), (4, 33), (7, 20)):
        slices = log.slices(start, end, max_bytes)
        for file in (file for each in slices for file in each.files):
            assert {file.start, file.end} <= batch_positions(file.path)
            assert file.start < file.end
            head = Path(file.path).read_bytes()[file.start :]
            assert struct.unpack_from(">q", head)[0] == file.first_offset
            in_file = struct.unpack_from(">I", head, 17)[0]
            assert file.first_crc in ({in_file} if file.start else {in_file, UNCHECKED})


@pytest.mark.parametrize("max_bytes", [1, 100, 400])
def test_no_byte_is_in_two_slices_and_none_between_is_left_out(
    log: segmentlog.Log, max_bytes: int
) -> None:
    """The parts of one file follow each other."""
    parts: dict[str, list[tuple[int, int]]] = {}
    for file in (file for each in log.slices(0, END, max_bytes) for file in each.files):
        parts.setdefault(file.path, []).append((file.start, file.end))

    assert [segment.path for segment in log.segments] == list(parts)
    for segment in log.segments:
        assert 0 == parts[segment.path][0][0]
        assert segment.size == parts[segment.path][-1][1]
        assert all(before[1] == after[0] for before, after in pairwise(parts[segment.path]))


def test_no_limit_is_one_slice_with_all_its_files(log: segmentlog.Log) -> None:
    """With `max_bytes` 0, a partition of any size is one slice."""
    (whole,) = log.slices(0, END, 0)

    assert (0, END, 3) == (whole.start_offset, whole.end_offset, len(whole.files))
    assert log.size_bytes == whole.n_bytes


def test_a_range_reads_no_file_that_it_does_not_need(log: segmentlog.Log, index: str) -> None:
    """Segments before the start and after the end are not opened.

    Within a segment, bytes are left out where an index shows where they end.
    """
    (one,) = log.slices(12, 18, 0)
    (edge,) = log.slices(11, 30, 0)

    assert ["00000000000000000011.log"] == [Path(file.path).name for file in one.files]
    assert ["00000000000000000011.log"] == [Path(file.path).name for file in edge.files]
    assert (index == "good index") == (one.n_bytes < edge.n_bytes)


@pytest.mark.parametrize(("start", "end"), [(5, 5), (9, 3), (37, 37), (0, 0)])
def test_an_empty_range_has_no_slices(log: segmentlog.Log, start: int, end: int) -> None:
    """An empty range gives Spark no tasks."""
    assert [] == log.slices(start, end, 0)


def test_a_gap_between_batches_yields_no_rows(log: segmentlog.Log) -> None:
    """A range may lie among offsets that compaction has removed."""
    assert [] == [offset for each in log.slices(21, 30, 0) for offset in slice_offsets(each)]


@pytest.mark.parametrize("max_bytes", [0, 100])
def test_a_range_that_begins_in_a_cut_batch_is_not_read_as_empty(
    log: segmentlog.Log, max_bytes: int
) -> None:
    """A closed segment has no torn tail.

    A batch that is cut short there is an error, wherever the range begins.
    """
    first = Path(log.segments[0].path)
    first.write_bytes(first.read_bytes()[:-1])
    cut = segmentlog.open_log_dir(first.parent).log("t", 0)
    for start in (8, 10):
        with pytest.raises(TruncatedBatchError, match=r"base offset 10\)"):
            [slice_offsets(each) for each in cut.slices(start, END, max_bytes)]


def test_a_range_that_begins_in_a_promised_torn_tail_is_not_read_as_empty(
    log: segmentlog.Log,
) -> None:
    """The high watermark shows that the log had the offset."""
    last = Path(log.segments[-1].path)
    last.write_bytes(last.read_bytes()[:-1])
    checkpoint = last.parents[1] / "replication-offset-checkpoint"
    checkpoint.write_text(f"0\n1\nt 0 {END}\n")
    torn = segmentlog.open_log_dir(last.parent).log("t", 0)

    with pytest.raises(TruncatedBatchError, match=r"base offset 36\)"):
        torn.scan(36).read_all()


def test_a_good_index_cuts_about_as_often_as_asked(tmp_path: Path) -> None:
    """An index has an entry for each batch, so a hundred equal batches become four slices."""
    partition = tmp_path / "t-0"
    partition.mkdir()
    batches = [encode_batch([Record(i, 1, None, b"v" * 20)]) for i in range(100)]
    size = len(batches[0])
    entries = b"".join(struct.pack(">ii", i, i * size) for i in range(1, 100))
    (partition / f"{0:020d}.log").write_bytes(b"".join(batches))
    (partition / f"{0:020d}.index").write_bytes(entries)
    slices = segmentlog.open_log_dir(tmp_path).log("t", 0).slices(0, 100, 25 * size)

    assert [25, 50, 75, 100] == [each.end_offset for each in slices]
    assert {25 * size} == {each.n_bytes for each in slices}


def test_small_segments_share_a_slice(log: segmentlog.Log) -> None:
    """Adjacent segments share a slice while together they stay below the limit."""
    sizes = [segment.size for segment in log.segments]
    slices = log.slices(0, END, sizes[0] + sizes[1])

    assert [2, 1] == [len(each.files) for each in slices]
    assert [30, END] == [each.end_offset for each in slices]


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("begins_there", [True, False])
def test_a_closed_segment_that_goes_after_planning_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, has_index: bool, begins_there: bool
) -> None:
    """A compaction removes a segment without records, too, so the rest is read, with a warning."""
    log = plant(tmp_path, "v2 zstd", has_indexes=has_index, has_checkpoints=True)
    offsets = {("t", 0): 20 if begins_there else 0}
    dataset = segmentlog.dataset(tmp_path, starting_offsets=offsets)
    batches = dataset.to_batches(["offset"], batch_size=1, use_threads=False)
    if not begins_there:
        next(batches)
    (log.partition / f"{20:020d}.log").unlink()

    assert [*range(40, 60)] == [each for each in offsets_of(batches) if each >= 20]
    assert any("[20, 40) were there when the read was planned" in each for each in caplog.messages)
