"""Look-ups in one segment: by an index that is right, and by a scan if the index is wrong."""

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import segmentlog
from segmentlog.errors import MalformedBatchError, TruncatedBatchError, UnsupportedFormatError
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import Segment
from segmentlog.model import TimestampAndOffset
from segmentlog.reads.lookup import (
    NewestTimestamps,
    find_offset_by_timestamp,
)
from segmentlog.store.readable import LocalDisk, LocalFile
from segmentlog.testing.reference import Record, encode_batch

BASE = 40
Entries = list[tuple[int, int]]


def make_records(seed: int, n_batches: int) -> list[list[Record]]:
    """Batches of one to four records, with gaps in the offsets and times in any order."""
    draw = random.Random(seed)
    batches, offset = [], BASE
    for _ in range(n_batches):
        batch = []
        for _ in range(draw.randint(1, 4)):
            batch.append(Record(offset, draw.randint(1000, 1400), b"k", b"v" * draw.randint(0, 9)))
            offset += draw.choice([1, 1, 1, 3])
        batches.append(batch)
    return batches


def write_segment(directory: Path, seed: int, n_batches: int, *, every: int = 3) -> Path:
    """A segment as a broker leaves it, with an index entry for each `every` batches."""
    data, offsets, times, newest, newest_offset = b"", b"", b"", -1, BASE
    stem = directory / f"{BASE:020d}"
    for i, batch in enumerate(make_records(seed, n_batches)):
        last = batch[-1].offset
        largest = max(record.timestamp_ms for record in batch)
        grew = largest > newest
        newest, newest_offset = (largest, last) if grew else (newest, newest_offset)
        if i and i % every == 0:
            offsets += struct.pack(">ii", last - BASE, len(data))
            if times[-12:-4] != struct.pack(">q", newest):
                times += struct.pack(">qi", newest, newest_offset - BASE)
        data += encode_batch(batch)
    if times[-12:-4] != struct.pack(">q", newest):
        times += struct.pack(">qi", newest, newest_offset - BASE)
    stem.with_suffix(".log").write_bytes(data)
    stem.with_suffix(".index").write_bytes(offsets)
    stem.with_suffix(".timeindex").write_bytes(times)
    return stem.with_suffix(".log")


def opened(path: Path, *, is_sealed: bool = False) -> Segment:
    """The segment of a file."""
    return Segment(SegmentFiles(BASE, str(path), path.stat().st_size), is_sealed=is_sealed)


def garbage(path: Path, seed: int) -> None:
    """Random bytes of the same length."""
    path.write_bytes(random.Random(seed).randbytes(path.stat().st_size))


def shuffled(path: Path, seed: int) -> None:
    """The entries in another order."""
    width = 8 if path.suffix == ".index" else 12
    data = path.read_bytes()
    entries = [data[i : i + width] for i in range(0, len(data), width)]
    random.Random(seed).shuffle(entries)
    path.write_bytes(b"".join(entries))


def shifted(path: Path, seed: int) -> None:
    """The entries without their first bytes."""
    path.write_bytes(path.read_bytes()[seed % 7 + 1 :])


def halved(path: Path, seed: int) -> None:
    """An index with half of the entries, as of a shorter log or after a loss of its last pages."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + bytes(seed))


def of_another_log(path: Path, seed: int) -> None:
    """The index of another log with the same base offset."""
    other = path.parent / f"other{path.suffix}"
    other.mkdir()
    write_segment(other, 1000 + seed, 60)
    path.write_bytes((other / path.name).read_bytes())


def negative(path: Path, seed: int) -> None:
    """Entries with all bits set."""
    path.write_bytes(b"\xff" * (24 * (seed + 1)))


def deleted(path: Path, seed: int) -> None:
    """No index at all."""
    path.unlink()


def a_directory(path: Path, seed: int) -> None:
    """A path that cannot be read as a file."""
    path.unlink()
    path.mkdir()


def too_early(path: Path, seed: int) -> None:
    """Valid entries that give the start of the segment as the position of later batches."""
    width = 8 if path.suffix == ".index" else 12
    data = path.read_bytes()
    if width == 8:
        positions = [data[i + 4 : i + 8] for i in range(0, len(data), 8)]
        lies = [struct.pack(">i", i + 1) + at for i, at in enumerate(positions)]
    else:
        lies = [struct.pack(">qi", 1001 + i, 20 + 5 * i) for i in range(5)]
    path.write_bytes(b"".join(lies))


DAMAGES = [too_early, garbage, shuffled, shifted, halved, of_another_log, negative, deleted]


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("damage", [None, *DAMAGES])
def test_a_bad_offset_index_never_changes_the_batch_that_is_found(
    tmp_path: Path,
    damage: Callable[[Path, int], None] | None,
    seed: int,
    *,
    is_sealed: bool,
) -> None:
    """The first batch that ends at or after an offset is found, whatever the index contains."""
    path = write_segment(tmp_path, seed, 30)
    batches = make_records(seed, 30)
    if damage:
        damage(path.with_suffix(".index"), seed)
    segment = opened(path, is_sealed=is_sealed)
    last = batches[-1][-1].offset
    for offset in range(BASE, last + 1):
        expected = next(batch[0].offset for batch in batches if batch[-1].offset >= offset)
        found = segment.find(offset)

        assert found is not None
        assert expected == found.header.base_offset
    assert segment.find(last + 1) is None


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kinds", [["timeindex"], ["index"], ["index", "timeindex"]])
@pytest.mark.parametrize("damage", [None, *DAMAGES])
def test_a_bad_index_never_changes_the_record_that_a_time_leads_to(
    tmp_path: Path,
    damage: Callable[[Path, int], None] | None,
    kinds: list[str],
    seed: int,
    *,
    is_sealed: bool,
) -> None:
    """The first record at or after the time is found, whether or not times rise."""
    path = write_segment(tmp_path, seed, 30)
    records = [record for batch in make_records(seed, 30) for record in batch]
    for kind in kinds if damage else []:
        damage(path.with_suffix("." + kind), seed)
    newest = NewestTimestamps([opened(path, is_sealed=is_sealed)])
    for ms in (0, *range(998, 1402, 7), 1400, 1401, 2**62):
        expected = next(
            (
                TimestampAndOffset(r.timestamp_ms, r.offset)
                for r in records
                if r.timestamp_ms >= ms
            ),
            None,
        )

        assert expected == find_offset_by_timestamp(newest, ms, BASE, 10**6), ms


@pytest.mark.parametrize("damage", [None, *DAMAGES])
def test_a_bad_time_index_never_changes_the_largest_timestamp(
    tmp_path: Path, damage: Callable[[Path, int], None] | None
) -> None:
    """The largest timestamp is that of the batches, in closed segments and in an active one."""
    path = write_segment(tmp_path, 5, 30)
    largest = max(record.timestamp_ms for batch in make_records(5, 30) for record in batch)
    if damage:
        damage(path.with_suffix(".timeindex"), 5)

    assert largest == opened(path).largest_timestamp()
    assert largest == opened(path, is_sealed=True).largest_timestamp()


def test_a_directory_in_the_place_of_an_index_is_as_good_as_none(tmp_path: Path) -> None:
    """An index that cannot be read costs a scan, and does not fail the read."""
    path = write_segment(tmp_path, 0, 10)
    largest = max(record.timestamp_ms for batch in make_records(0, 10) for record in batch)
    for kind in (".index", ".timeindex"):
        a_directory(path.with_suffix(kind), 0)
    segment = opened(path)

    assert BASE == segment.find(BASE).header.base_offset
    assert largest == segment.largest_timestamp()


def test_a_good_index_saves_reading_what_is_before_its_entry(tmp_path: Path) -> None:
    """The read begins exactly at the last entry that is not after the offset."""
    path = write_segment(tmp_path, 0, 30)
    segment = opened(path)
    with segment.offset_index() as index:
        entries = [index.entry(slot) for slot in range(index.n_entries)]

    assert 9 == len(entries)
    for found in entries:
        assert found.position == segment.floor_position(found.offset)
    assert 0 == segment.floor_position(entries[0].offset - 1)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[LocalFile]:
    """The files that are opened during the test."""
    found: list[LocalFile] = []
    really = LocalDisk.open

    def opens(self: LocalDisk, path: str, *, follow: bool = True) -> LocalFile:
        found.append(really(self, path, follow=follow))
        return found[-1]

    monkeypatch.setattr(LocalDisk, "open", opens)
    return found


def test_look_ups_open_each_file_once(tmp_path: Path, files: list[LocalFile]) -> None:
    """Opening the files for each look-up took a third of a seek's time."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    write_segment(directory, 0, 30)
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    end = log.end_offset()
    assert log.offset_for_timestamp(1) is not None  # the segments' newest times are known now

    def opens(look_up: Callable[[], object]) -> list[str]:
        files.clear()
        assert look_up()
        return sorted(Path(each.path).suffix for each in files)

    assert [".index", ".log", ".timeindex"] == opens(lambda: log.offset_for_timestamp(1300))
    log.slices(BASE, BASE + 1)  # reads the id of the topic
    assert [".index", ".log"] == opens(lambda: log.slices(end - 15, end - 12))
    assert [".index", ".log"] == opens(lambda: len(log.slices(BASE, end, 200)) > 5)


def test_an_open_segment_opens_what_it_needs_and_closes_it(
    tmp_path: Path, files: list[LocalFile]
) -> None:
    """A look-up after the segment was closed opens the files again."""
    path = write_segment(tmp_path, 0, 30)
    with opened(path).opened() as look_ups:
        assert not files
        first = look_ups.header_at(0, up_to_offset=BASE)
        assert [str(path)] == [each.path for each in files]
        assert 1 == len(files[0].read(0, 1))
    assert first is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        files[0].read(0, 1)
    assert first == look_ups.header_at(0, up_to_offset=BASE)
    assert 2 == len(files)
    look_ups.close()


def test_the_walk_through_of_the_format_notes_is_answered_as_a_broker_does(tmp_path: Path) -> None:
    """Ten batches of 74 bytes begin at offset 40.

    Their times are in disorder, and a broker wrote the indexes.
    """
    times = [100, 105, 103, 104, 110, 90, 90, 90, 120, 120]
    batches = [encode_batch([Record(40 + i, ms, b"k", b"hello")]) for i, ms in enumerate(times)]
    path = tmp_path / f"{BASE:020d}.log"
    path.write_bytes(b"".join(batches))
    path.with_suffix(".index").write_bytes(
        bytes.fromhex("0000000200000094 0000000400000128 00000006000001bc 0000000800000250")
    )
    path.with_suffix(".timeindex").write_bytes(
        bytes.fromhex("0000000000000069 00000001 000000000000006e 00000004")
        + bytes.fromhex("0000000000000078 00000008")
    )
    newest = NewestTimestamps([opened(path)])

    assert {74} == set(map(len, batches))
    assert (105, 41) == find_offset_by_timestamp(newest, 104, 40, 50)
    assert (120, 48) == find_offset_by_timestamp(newest, 111, 40, 50)
    assert find_offset_by_timestamp(newest, 121, 40, 50) is None
    assert (100, 40) == find_offset_by_timestamp(newest, 0, 40, 50)
    assert (90, 45) == find_offset_by_timestamp(newest, 0, 45, 50)
    assert find_offset_by_timestamp(newest, 111, 40, 48) is None


@pytest.mark.parametrize("n_bytes", [0, 1, 60, 61, 100])
def test_headers_end_before_a_batch_that_is_not_whole(tmp_path: Path, n_bytes: int) -> None:
    """A batch that the file does not hold to its end has no header in the result."""
    path = write_segment(tmp_path, 0, 5)
    whole = len(path.read_bytes())
    with path.open("ab") as file:
        file.write(encode_batch([Record(900, 1, None, b"x" * 99)])[:n_bytes])

    assert whole == list(opened(path).headers(0))[-1].end
    assert 5 == len(list(opened(path).headers(0)))


def test_headers_larger_than_the_window_are_all_found(tmp_path: Path) -> None:
    """Batches of more than 64 KiB lie between small ones."""
    values = [b"x", b"y" * 200_000, b"z", b"y" * 65_475, b"z", b"y" * 70_000]
    batches = [encode_batch([Record(40 + i, 1, None, value)]) for i, value in enumerate(values)]
    path = tmp_path / f"{BASE:020d}.log"
    path.write_bytes(b"".join(batches))

    assert [40, 41, 42, 43, 44, 45] == [
        placed.header.base_offset for placed in opened(path).headers(0)
    ]


def test_a_length_below_a_header_is_malformed_and_another_magic_unsupported(
    tmp_path: Path,
) -> None:
    """Both errors name the byte at which the batch begins."""
    path = write_segment(tmp_path, 0, 3)
    position = list(opened(path).headers(0))[1].position
    good = path.read_bytes()
    for at, value, kind in (
        (11, b"\x20", MalformedBatchError),
        (16, b"\7", UnsupportedFormatError),
    ):
        path.write_bytes(good[: position + at] + value + good[position + at + 1 :])
        with pytest.raises(kind) as caught:
            list(opened(path).headers(0))

        assert (str(path), position) == (caught.value.path, caught.value.position)


def test_a_closed_segment_that_ends_in_a_batch_is_damaged(tmp_path: Path) -> None:
    """Only the active segment may end inside a batch. In any other segment, this is an error."""
    path = write_segment(tmp_path, 0, 5)
    size = path.stat().st_size - 7
    path.write_bytes(path.read_bytes()[:-7])
    closed = Segment(SegmentFiles(BASE, str(path), size), is_sealed=True, is_active=False)

    with pytest.raises(TruncatedBatchError, match=r"the file has \d+ left"):
        list(closed.headers(0))
    first = [batch[0].offset for batch in make_records(0, 5)]
    assert first[:-1] == [each.header.base_offset for each in opened(path).headers(0)]
