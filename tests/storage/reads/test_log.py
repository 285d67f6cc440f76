"""One log: its start, its end, and reads while a broker changes its files."""

import copy
import logging
import pickle
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import psutil
import pyarrow as pa
import pytest
from plain_writes import write
from reads import offsets_of

import segmentlog
from segmentlog.errors import (
    LogChangedError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    OptionError,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.listing import Listing, list_now
from segmentlog.maintain.verification.findings import FindingKind, Severity
from segmentlog.maintain.verification.verify_log import LogCheck
from segmentlog.model import LogSlice, ReadUpTo, TopicPartition
from segmentlog.reads import log as log_module
from segmentlog.reads import ordered_reads
from segmentlog.reads.scan import scan_slice
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.writes.config import ProducerConfig

NAMES = [f"{base:020d}.log" for base in (0, 10, 20)]


def batches(*groups: range | list[int], value: bytes = b"v") -> bytes:
    """One batch for each group of offsets. The timestamp of a record is its offset in seconds."""
    return b"".join(
        encode_batch([Record(offset, 1000 * offset, None, value) for offset in group])
        for group in groups
    )


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Offsets 0 to 29 in three segments of two batches with five records."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    for base, name in zip((0, 10, 20), NAMES, strict=True):
        data = batches(range(base, base + 5), range(base + 5, base + 10))
        (directory / name).write_bytes(data)
    return directory


def opened(
    partition: Path, *, log_start: int = 0, high_watermark: int | None = None
) -> segmentlog.Log:
    """The log with these checkpoint entries."""
    return segmentlog.Log(
        TopicPartition("t", 0),
        str(partition),
        log_start_checkpoint=log_start,
        high_watermark_checkpoint=high_watermark,
    )


def test_a_log_is_described_by_its_files(partition: Path) -> None:
    """Without checkpoints, a log starts at its first base offset and ends after its last batch."""
    log = opened(partition)

    assert (0, 30, None, 30) == (
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark,
        log.end_offset(),
    )
    assert sum(file.stat().st_size for file in partition.iterdir()) == log.size_bytes
    assert [0, 10, 20] == [segment.base_offset for segment in log.segments]
    assert list(range(30)) == offsets_of(log.scan())
    assert [7, 8, 9, 10, 11] == offsets_of(log.scan(7, 12))


@pytest.mark.parametrize("log_start", [10, 12, 15, 17, 19, 20, 29, 30])
def test_the_log_start_checkpoint_hides_what_is_below_it(partition: Path, log_start: int) -> None:
    """The log start may lie inside a segment or a batch. Offsets below it are out of range."""
    log = opened(partition, log_start=log_start)

    assert log_start == log.log_start_offset
    assert list(range(log_start, 30)) == offsets_of(log.scan())
    found = log.offset_for_timestamp(0)
    assert (None if log_start == 30 else (1000 * log_start, log_start)) == found
    with pytest.raises(
        OffsetOutOfRangeError, match=rf"{log_start - 1} is outside .* \[{log_start}"
    ):
        log.scan(log_start - 1)


def test_slices_below_the_log_start_hold_nothing(partition: Path) -> None:
    """Planning moves a start below the log start up to the log start."""
    (log_slice,) = opened(partition, log_start=13).slices(0, 15)

    assert (13, 15) == (log_slice.start_offset, log_slice.end_offset)
    assert [13, 14] == offsets_of(scan_slice(log_slice))


def test_a_log_start_beyond_the_log_is_an_empty_log(partition: Path) -> None:
    """The checkpoint may be newer than the files that were copied."""
    log = opened(partition, log_start=99, high_watermark=99)

    assert (99, 99, 99) == (log.log_start_offset, log.log_end_offset, log.end_offset())
    assert [] == offsets_of(log.scan())


@pytest.mark.parametrize(
    ("log_start", "checkpoint", "expected"),
    [(0, 0, 0), (0, 17, 17), (0, 30, 30), (12, 5, 12), (12, -1, 12), (0, 31, 30)],
)
def test_the_high_watermark_stays_inside_the_log(
    partition: Path, log_start: int, checkpoint: int, expected: int
) -> None:
    """A checkpoint below the log start counts as the log start.

    One beyond the log end counts as the log end.
    """
    log = opened(partition, log_start=log_start, high_watermark=checkpoint)

    assert expected == log.high_watermark
    assert expected == log.end_offset()
    assert 30 == log.end_offset(ReadUpTo.LOG_END)
    assert list(range(log_start, expected)) == offsets_of(log.scan())
    assert list(range(log_start, 30)) == offsets_of(log.scan(read_up_to=ReadUpTo.LOG_END))


def test_a_high_watermark_beyond_the_log_end_is_a_warning(
    partition: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is not torn, so it is read to its end with a warning."""
    with caplog.at_level(logging.WARNING, logger="segmentlog"):
        end = opened(partition, high_watermark=99).end_offset()

    assert 30 == end
    assert "high watermark is 99, but the log ends at 30" in caplog.text


@pytest.mark.parametrize("n_left", [2, 0])
def test_a_cleanly_stopped_log_without_its_last_segments_is_an_error(
    tmp_path: Path, n_left: int
) -> None:
    """A truncated copy or listing must not leave out rows without an error."""
    config = ProducerConfig(TopicConfig(segment_bytes=300), batch_size=200)
    write(tmp_path, pa.table({"value": [b"%d" % i * 20 for i in range(40)]}), config=config)
    segments = sorted((tmp_path / "t-0").glob("*.log"))
    for path in segments[n_left:]:
        path.unlink()
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    end = int(segments[n_left].stem)

    for read in (log.scan, lambda: log.scan(isolation_level="read_committed")):
        with pytest.raises(LogDirectoryError, match=f"is 40, and its log ends at {end},"):
            read().read_all()
    with pytest.raises(LogDirectoryError, match="put the missing segments back"):
        segmentlog.dataset(tmp_path).count_rows()
    with pytest.raises(LogDirectoryError, match="put the missing segments back"):
        log.scan(since=2**62).read_all()
    assert list(range(end)) == offsets_of(log.scan(end_offset=end))
    assert list(range(end)) == offsets_of(log.scan(read_up_to=ReadUpTo.LOG_END))
    (finding,) = [
        each for each in LogCheck(log).findings() if each.kind == FindingKind.HIGH_WATERMARK
    ]
    assert Severity.ERROR == finding.severity


@pytest.mark.parametrize(
    ("read_up_to", "expected"), [(ReadUpTo.HIGH_WATERMARK, None), (ReadUpTo.LOG_END, (27000, 27))]
)
def test_a_time_beyond_the_high_watermark_is_found_only_up_to_the_log_end(
    partition: Path, read_up_to: ReadUpTo, expected: tuple[int, int] | None
) -> None:
    """A look-up by time ends where a scan ends."""
    log = opened(partition, high_watermark=27)

    assert expected == log.offset_for_timestamp(26_500, read_up_to)
    assert (26_000, 26) == log.offset_for_timestamp(25_500, read_up_to)


def test_an_empty_directory_is_an_empty_log(tmp_path: Path) -> None:
    """The log has no segments and no rows.

    The checkpoint contains the offset of its next record.
    """
    log = opened(tmp_path, log_start=7)

    assert (7, 7, 7) == (log.log_start_offset, log.log_end_offset, log.end_offset())
    assert [] == offsets_of(log.scan())
    assert log.offset_for_timestamp(0) is None


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (0, 31), (31, None), (5, 99)])
def test_offsets_outside_the_log_are_out_of_range(
    partition: Path, start: int, end: int | None
) -> None:
    """The message contains the range of the log."""
    with pytest.raises(OffsetOutOfRangeError, match=r"\[0, 30\)"):
        opened(partition).scan(start, end)


def test_an_unknown_column_is_refused_before_anything_is_read(partition: Path) -> None:
    """A column that does not exist and a column that is named twice are refused."""
    for columns in (["offset", "vaule"], ["key", "key"]):
        with pytest.raises(OptionError, match="each at most once"):
            opened(partition).scan(columns=columns)


def test_a_file_renamed_while_it_is_read_is_found_under_its_new_name(partition: Path) -> None:
    """Retention renames a segment a minute before it removes the segment."""
    (log_slice,) = opened(partition).slices(0, 30)
    stream = scan_slice(log_slice, columns=["offset"])
    first = next(stream).column(0).to_pylist()
    for name in NAMES:
        (partition / name).rename(partition / (name + ".deleted"))

    assert first == list(range(len(first)))
    assert list(range(len(first), 30)) == offsets_of(stream)


def test_a_file_removed_while_it_is_read_is_read_to_its_end(partition: Path) -> None:
    """The file that is open stays readable. The next file is gone, which is an error."""
    (log_slice,) = opened(partition).slices(0, 30)
    stream = scan_slice(log_slice, columns=["offset"])
    found = next(stream).column(0).to_pylist()
    for name in NAMES:
        (partition / name).unlink()
    with pytest.raises(LogChangedError, match=r"\[10, 30\)") as caught:
        found.extend(offset for batch in stream for offset in batch.column(0).to_pylist())

    assert list(range(10)) == found
    assert (str(partition), 10, 30) == (
        caught.value.path,
        caught.value.next_offset,
        caught.value.end_offset,
    )


def test_a_file_rewritten_while_it_waits_is_read_as_it_is_now(partition: Path) -> None:
    """Compaction leaves fewer records. The read repeats no record and misses none that is left."""
    (log_slice,) = opened(partition).slices(0, 30)
    stream = scan_slice(log_slice, columns=["offset"])
    found = next(stream).column(0).to_pylist()
    (partition / NAMES[1]).write_bytes(batches([13], [19], value=b"longer than before"))

    assert [*range(10), 13, 19, *range(20, 30)] == found + offsets_of(stream)


def test_segments_merged_while_one_is_read_give_each_row_once(partition: Path) -> None:
    """The cleaner merges segments into the first one.

    Records that were already read are not read again.
    """
    (log_slice,) = opened(partition).slices(0, 30)
    stream = scan_slice(log_slice, columns=["offset"])
    found = next(stream).column(0).to_pylist()
    (partition / NAMES[0]).write_bytes(batches([2], [9], [13], [19]))
    (partition / NAMES[1]).unlink()

    assert [*range(10), 13, 19, *range(20, 30)] == found + offsets_of(stream)


def test_a_slice_from_the_middle_of_a_file_notices_another_batch_there(partition: Path) -> None:
    """The slice is looked up again if the offset or checksum of its first batch has changed."""
    first = batches([10, 11, 12, 13, 16])  # as many bytes as the batch that it replaces
    index = (partition / NAMES[1]).with_suffix(".index")
    index.write_bytes(struct.pack(">ii", 9, len(first)))
    log_slice = opened(partition).slices(10, 20, len(first))[1]
    (partition / NAMES[1]).write_bytes(first + batches([17, 19], value=b"w" * 99))

    assert len(first) == log_slice.files[0].start
    assert [16, 17, 19] == offsets_of(scan_slice(log_slice))


@pytest.mark.parametrize("data", [batches(range(20, 25)), b"", None])
def test_a_log_that_was_truncated_under_the_read_is_an_error(
    partition: Path, data: bytes | None
) -> None:
    """A follower truncates records that its leader does not have.

    A read must not end there without an error.
    """
    (log_slice,) = opened(partition).slices(0, 30)
    path = partition / NAMES[2]
    path.unlink()
    if data is not None:
        path.write_bytes(data)

    with pytest.raises(LogChangedError, match=r"\[20, 30\) existed when"):
        offsets_of(scan_slice(log_slice))


def test_records_deleted_before_the_read_began_are_an_error(partition: Path) -> None:
    """Retention was faster than the read.

    The message names the file, the offsets and the remedy.
    """
    (log_slice,) = opened(partition).slices(0, 30)
    (partition / NAMES[0]).unlink()

    with pytest.raises(LogChangedError, match=r"\[0, 30\) .*load the path again") as caught:
        offsets_of(scan_slice(log_slice))
    assert f"{NAMES[0]}'; offsets" in str(caught.value), "the file existed at planning"


@pytest.mark.parametrize("columns", ["offset", "key", b"key"])
def test_a_name_in_the_place_of_columns_is_refused(partition: Path, columns: str) -> None:
    """A string would be taken for a list of its letters."""
    with pytest.raises(segmentlog.OptionError, match=r'a list of names: columns=\["offset"\]'):
        opened(partition).scan(columns=columns)


def test_a_partition_removed_before_the_read_began_is_an_error(partition: Path) -> None:
    """A deleted topic is not an empty topic."""
    (log_slice,) = opened(partition).slices(0, 30)
    partition.rename(partition.with_name("t-0.gone"))

    with pytest.raises(segmentlog.LogChangedError, match="existed when the read was planned"):
        offsets_of(scan_slice(log_slice))


def test_a_slice_without_files_has_no_rows() -> None:
    """Spark's empty partition is such a slice."""
    assert [] == offsets_of(scan_slice(LogSlice("t", 0, 0, 10, ())))


def test_records_appended_after_planning_are_not_read(partition: Path) -> None:
    """A read is a snapshot of its log."""
    log = opened(partition)
    stream = log.scan(columns=["offset"])
    with (partition / NAMES[2]).open("ab") as file:
        file.write(batches(range(30, 40)))

    assert list(range(30)) == offsets_of(stream)


def directory_of(partition: Path, *, high_watermark: int, is_clean: bool = True) -> Path:
    """The log directory of a partition, as a broker leaves it when it has stopped."""
    text = f"0\n1\nt 0 {high_watermark}\n"
    (partition.parent / "replication-offset-checkpoint").write_text(text)
    if is_clean:
        (partition.parent / ".kafka_cleanshutdown").touch()
    return partition.parent


@pytest.mark.parametrize(
    ("high_watermark", "is_clean", "expected"),
    [
        (30, True, [True, True, False]),
        (21, True, [True, True, False]),
        (20, True, [True, False, False]),
        (10, True, [False, False, False]),
        (30, False, [False, False, False]),
    ],
)
def test_indexes_are_mapped_only_below_committed_records(
    partition: Path, high_watermark: int, is_clean: bool, expected: list[bool]
) -> None:
    """An index above the committed records is truncated in place if a roll is undone."""
    directory = directory_of(partition, high_watermark=high_watermark, is_clean=is_clean)
    log = segmentlog.open_log_dir(directory).log("t", 0)

    assert expected == [segment.is_sealed for segment in log.segments]


def test_segments_that_retention_deletes_before_they_are_looked_at_are_not_missed(
    partition: Path,
) -> None:
    """A look-up continues in the segments that are left, and raises no error."""
    log = opened(partition)
    assert 3 == len(log.segments)
    (partition / NAMES[0]).unlink()

    assert (10_000, 10) == log.offset_for_timestamp(0)
    assert 10 == log.log_start_offset


def test_a_range_that_retention_deletes_while_it_is_cut_is_an_error(partition: Path) -> None:
    """The user asked for the offset at which the range starts, so it must not be skipped."""
    log = opened(partition)
    first = log.log_start_offset
    for name in NAMES[:2]:
        (partition / name).unlink()

    with pytest.raises(LogChangedError, match=r"now begins at offset 20; offsets \[3, 20\)"):
        log.slices(first + 3, 30, 100)


def test_a_segment_that_is_cut_before_it_is_looked_at_is_listed_again(partition: Path) -> None:
    """A broker may have truncated the log after the listing, so the files are listed again."""
    log = opened(partition)
    assert 3 == len(log.segments)
    (partition / NAMES[2]).unlink()
    cut = partition / NAMES[1]
    cut.write_bytes(cut.read_bytes()[:-10])

    assert log.offset_for_timestamp(19_000) is None
    assert (14_000, 14) == log.offset_for_timestamp(14_000)
    assert 15 == log.log_end_offset


def test_threads_list_a_log_once(partition: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second listing could find other files, and the threads would not read the same log."""
    listings: list[Listing] = []
    is_listing, may_end = threading.Event(), threading.Event()

    def list_slowly(path: str, *, before: Listing | None) -> Listing:
        is_listing.set()
        assert may_end.wait(60)
        listings.append(list_now(path, before=before))
        return listings[-1]

    monkeypatch.setattr(log_module, "list_now", list_slowly)
    log = segmentlog.Log(TopicPartition("t", 0), str(partition))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: log.segments)
        assert is_listing.wait(60)
        second = threads.submit(lambda: log.segments)
        assert not wait([second], timeout=0.1).done
        may_end.set()
        assert 3 == len(first.result()) == len(second.result())
    assert 1 == len(listings)


def test_a_log_goes_to_another_process(partition: Path) -> None:
    """A function of Spark or Dask may hold an opened log."""
    log = segmentlog.open_log_dir(partition.parent).log("t", 0)
    before = log.scan().read_all()

    assert before == pickle.loads(pickle.dumps(log)).scan().read_all()
    assert before == copy.deepcopy(log).scan().read_all()


def test_a_merged_segment_is_not_read_up_to_where_the_old_one_ended(partition: Path) -> None:
    """The end of the old segment lies inside a batch of the merged one, which is not torn."""
    (log_slice,) = opened(partition).slices(0, 10)
    merged = partition / "merged"
    merged.write_bytes(batches([2], [7], [13, 19], value=b"w" * 999))
    assert merged.stat().st_size > log_slice.files[0].end
    (partition / NAMES[1]).unlink()
    merged.rename(partition / NAMES[0])

    assert [2, 7] == offsets_of(scan_slice(log_slice, columns=["offset"]))


def test_segments_merged_before_the_read_began_are_read_as_they_are_now(partition: Path) -> None:
    """The first segment now has the remaining records of the second, which is gone."""
    (log_slice,) = opened(partition).slices(0, 30)
    merged = partition / "merged"
    merged.write_bytes(batches([3], [9], [15], [19]))
    merged.rename(partition / NAMES[0])
    (partition / NAMES[1]).unlink()

    assert [3, 9, 15, 19, *range(20, 30)] == offsets_of(scan_slice(log_slice))


def test_nothing_stays_open(partition: Path) -> None:
    """Reads, look-ups and an abandoned scan leave no descriptor open."""
    before = psutil.Process().num_fds()
    log = opened(partition)
    read = offsets_of(log.scan())
    found = log.offset_for_timestamp(11_000)
    abandoned = scan_slice(log.slices(0, 30)[0])
    next(abandoned)
    held = psutil.Process().num_fds()
    abandoned.close()

    assert (list(range(30)), (11_000, 11)) == (read, found)
    assert held > before
    assert before == psutil.Process().num_fds()


def test_times_are_bounds_of_a_scan(partition: Path) -> None:
    """The bounds are those of a look-up by time: a `datetime` with a zone, or milliseconds.

    A bound by time and a bound by offset exclude each other. Of a time and a number of last
    records, the later start counts.
    """
    log = opened(partition)
    at_12 = datetime(1970, 1, 1, 0, 0, 12, tzinfo=UTC)

    assert [*range(12, 30)] == offsets_of(log.scan(since=at_12))
    assert [12, 13] == offsets_of(log.scan(since=at_12, until=13_001))
    assert [*range(5, 12)] == offsets_of(log.scan(5, until=at_12))
    assert [] == offsets_of(log.scan(since=30_000))
    assert [*range(30)] == offsets_of(log.scan(until=30_000))
    assert [] == offsets_of(log.scan(since=20_000, until=10_000))
    assert (12, 30) == log.bounds(since=at_12)
    assert (28, 30) == log.bounds(since=at_12, last=2)
    assert (12, 30) == log.bounds(since=at_12, last=29)
    assert (12, 14) == log.bounds(since=at_12, until=13_001, last=9)
    assert (30, 30) == log.bounds(since=30_000, last=9)
    with pytest.raises(OptionError, match="give start_offset or since, not both"):
        log.scan(3, since=at_12)
    with pytest.raises(OptionError, match="no zone, and no zone is guessed"):
        log.scan(until=at_12.replace(tzinfo=None))


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ("read_up_to", "log_end"),
        ("isolation_level", "READ_COMMITTED"),
        ("on_corrupt_batch", "SKIP"),
    ],
)
def test_ends_take_no_other_words(partition: Path, option: str, word: str) -> None:
    """An end would be that of the default."""
    directory = segmentlog.open_log_dir(partition)
    (place,) = directory.topic_partitions()
    log, given = directory.log(*place), cast("Any", {option: word})
    calls: list[Callable[..., object]] = [
        log.end_offset,
        partial(directory.end_offsets, [place]),
    ]
    if option != "isolation_level":
        calls += [log.last_stable_offset, log.open_transactions]
    for call in calls:
        with pytest.raises(OptionError, match=option):
            call(**given)


@pytest.mark.parametrize("use_threads", [False, True])
def test_a_scan_is_the_same_on_threads(
    partition: Path, use_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With threads, slices are read ahead, and the threads end with the read."""
    monkeypatch.setattr(ordered_reads, "_SLICE_BYTES", 1)
    monkeypatch.setattr(ordered_reads.pa, "cpu_count", lambda: 2)  # even on one core
    log, others = opened(partition), set(threading.enumerate())
    reader = log.scan(3, 28, use_threads=use_threads)
    first = reader.read_next_batch()
    threads = set(threading.enumerate()) - others

    assert len(log.slices(3, 28, 1)) > 2
    assert use_threads == bool(threads)
    rest = [each for batch in reader for each in batch["offset"].to_pylist()]
    assert [*range(3, 28)] == first["offset"].to_pylist() + rest
    assert not any(each.is_alive() for each in threads)
