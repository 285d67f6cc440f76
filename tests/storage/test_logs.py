"""Logs and directories: ends, damage, indexes that lie, slices, files that move."""

import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

import segmentlog
from segmentlog import (
    ChecksumMismatchError,
    LogChangedError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    ReadUpTo,
    TruncatedBatchError,
    UnknownTopicOrPartitionError,
)
from segmentlog.read.scan import scan_slice
from segmentlog.segments.listing import list_segments
from segmentlog.testing.reference import Record, encode_batch

WriteLog = Callable[..., Path]

TWENTY = [[(i, 1000 + 10 * i) for i in range(10)], [(i, 1000 + 10 * i) for i in range(10, 20)]]


def offsets_of(log: segmentlog.Log, start: int | None = None, end: int | None = None) -> list[int]:
    """Offsets that a scan yields."""
    return log.scan(start, end, columns=["offset"]).read_all()["offset"].to_pylist()


def only_log(path: Path) -> segmentlog.Log:
    """The one log of a partition directory."""
    return segmentlog.open_log_dir(path).log("t", 0)


def test_a_log_knows_its_offsets(write_log: WriteLog) -> None:
    """Start, end, size and rows of two segments."""
    log = only_log(write_log(TWENTY))

    assert (0, 20, None) == (log.log_start_offset, log.log_end_offset, log.high_watermark)
    assert list(range(20)) == offsets_of(log)
    assert [7, 8, 9, 10, 11] == offsets_of(log, 7, 12)
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 21 .* \[0, 20\)"):
        log.scan(0, 21)


def test_a_torn_tail_is_left_out_at_every_byte(
    write_log: WriteLog, caplog: pytest.LogCaptureFixture
) -> None:
    """However much of the last batch is missing, reading ends before it, and says so."""
    partition = write_log(TWENTY)
    active = partition / "00000000000000000010.log"
    data = active.read_bytes()
    last = len(data) // 10
    for n_bytes in range(1, last):
        active.write_bytes(data[:-n_bytes])
        caplog.clear()
        log = only_log(partition)

        assert log.log_end_offset == 19
        assert list(range(19)) == offsets_of(log)
        if data[-last:-n_bytes].strip(b"\0"):  # zeros alone could be preallocation
            assert f"{last - n_bytes} bytes behind it are left out" in caplog.text


def test_zeros_at_the_end_are_preallocation(
    write_log: WriteLog, caplog: pytest.LogCaptureFixture
) -> None:
    """A preallocated tail is silent."""
    partition = write_log(TWENTY)
    with (partition / "00000000000000000010.log").open("ab") as file:
        file.write(bytes(4096))

    assert only_log(partition).log_end_offset == 20
    assert list(range(20)) == offsets_of(only_log(partition))
    assert caplog.text == ""


def test_a_flipped_bit_in_the_last_batch_is_a_torn_tail(write_log: WriteLog) -> None:
    """Nothing good follows it, and nobody has promised it."""
    partition = write_log(TWENTY)
    active = partition / "00000000000000000010.log"
    data = bytearray(active.read_bytes())
    data[-1] ^= 1
    active.write_bytes(data)

    assert list(range(19)) == offsets_of(only_log(partition))


@pytest.mark.parametrize("batch", [0, 4, 8])
@pytest.mark.parametrize("segment", [0, 10])
def test_damage_with_good_batches_behind_it_fails_the_read(
    write_log: WriteLog, segment: int, batch: int
) -> None:
    """The error names file, byte and offset; rows before it may be read on their own."""
    partition = write_log(TWENTY)
    path = partition / f"{segment:020d}.log"
    data = bytearray(path.read_bytes())
    size = len(data) // 10
    data[batch * size + 70] ^= 4
    path.write_bytes(data)
    log = only_log(partition)

    with pytest.raises(ChecksumMismatchError) as caught:
        offsets_of(log)
    assert (str(path), batch * size, segment + batch) == (
        caught.value.path, caught.value.position, caught.value.base_offset,
    )  # fmt: skip
    assert list(range(segment + batch)) == offsets_of(log, 0, segment + batch)


def test_a_torn_tail_below_the_high_watermark_is_damage(
    write_log: WriteLog, tmp_path: Path
) -> None:
    """What was promised is never silently left out."""
    partition = write_log(TWENTY)
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 20\n")
    active = partition / "00000000000000000010.log"
    active.write_bytes(active.read_bytes()[:-3])

    with pytest.raises(TruncatedBatchError):
        offsets_of(only_log(partition))


def test_the_high_watermark_ends_the_read(
    write_log: WriteLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning names what lies beyond; `logEnd` reads it."""
    write_log(TWENTY)
    write_log([[(0, 1), (1, 1)]], name="u-3")
    (tmp_path / "replication-offset-checkpoint").write_text("0\n2\nt 0 15\nu 3 1\n")
    directory = segmentlog.open_log_dir(tmp_path)
    ends = directory.end_offsets(directory.topic_partitions())
    both = directory.end_offsets(directory.topic_partitions(), ReadUpTo.LOG_END)

    assert ends == {("t", 0): 15, ("u", 3): 1}
    assert both == {("t", 0): 20, ("u", 3): 2}
    assert len(caplog.records) == 1
    assert "t-0: 5 from 15, u-3: 1 from 1" in caplog.text
    assert list(range(15)) == offsets_of(directory.log("t", 0))


def test_a_high_watermark_beyond_the_log_is_clamped(
    write_log: WriteLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Checkpoints that were copied later than the log: its end counts, with a warning."""
    partition = write_log(TWENTY)
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 99\n")

    assert list(range(20)) == offsets_of(only_log(partition))
    assert "high watermark is 99, but the log ends at 20" in caplog.text


def test_the_log_start_may_be_inside_a_segment(write_log: WriteLog, tmp_path: Path) -> None:
    """DeleteRecords hides what is below the checkpoint."""
    partition = write_log(TWENTY)
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 13\n")
    log = only_log(partition)

    assert log.log_start_offset == 13
    assert list(range(13, 20)) == offsets_of(log)
    with pytest.raises(OffsetOutOfRangeError):
        log.scan(12)
    assert log.offset_for_timestamp(0) == (1130, 13)


INDEX_DAMAGE = {
    "deleted": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(len(path.read_bytes()))),
    "garbage": lambda path: path.write_bytes(os.urandom(len(path.read_bytes()))),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "positions shifted": lambda path: path.write_bytes(
        b"".join(
            path.read_bytes()[i : i + 4]
            + (int.from_bytes(path.read_bytes()[i + 4 : i + 8], "big") + 7).to_bytes(4, "big")
            for i in range(0, len(path.read_bytes()) // 8 * 8, 8)
        )
    ),
    "preallocated": lambda path: path.write_bytes(path.read_bytes() + bytes(240)),
}


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("damage", INDEX_DAMAGE)
def test_a_bad_index_never_changes_what_is_read(
    write_log: WriteLog, tmp_path: Path, kind: str, damage: str, is_clean: bool
) -> None:
    """Found out at use, then as if there were none; never an error."""
    partition = write_log(TWENTY)
    if is_clean:
        (tmp_path / ".kafka_cleanshutdown").touch()
    for path in partition.glob(f"*.{kind}"):
        INDEX_DAMAGE[damage](path)
    log = only_log(partition)
    cut = [
        offset
        for log_slice in log.slices(3, 18, 150)
        for batch in scan_slice(log_slice, columns=["offset"])
        for offset in batch.column(0).to_pylist()
    ]

    assert list(range(20)) == offsets_of(log)
    assert list(range(3, 18)) == cut
    for offset in range(20):
        assert log.offset_for_timestamp(1000 + 10 * offset) == (1000 + 10 * offset, offset)
    assert log.offset_for_timestamp(99_999) is None


@pytest.mark.parametrize("max_bytes", [0, 1, 100, 300, 10_000])
def test_slices_hold_each_offset_once(write_log: WriteLog, max_bytes: int) -> None:
    """Whatever the size, slices follow each other without gap or overlap."""
    log = only_log(write_log(TWENTY))
    for start, end in ((0, 20), (5, 6), (9, 11), (10, 20), (3, 17)):
        slices = log.slices(start, end, max_bytes)
        bounds = [(each.start_offset, each.end_offset) for each in slices]
        found = [
            offset
            for each in slices
            for batch in scan_slice(each, columns=["offset"])
            for offset in batch.column(0).to_pylist()
        ]

        assert list(range(start, end)) == found
        assert (start, end) == (bounds[0][0], bounds[-1][1])
        assert all(before[1] == after[0] for before, after in pairwise(bounds))
    assert log.slices(4, 4) == []


def test_times_out_of_order_are_found_in_offset_order(write_log: WriteLog) -> None:
    """The first record with a timestamp not below the one asked for, as a broker answers."""
    times = [100, 105, 103, 104, 110, 90, 90, 90, 120, 120]
    log = only_log(write_log([[(40 + i, time) for i, time in enumerate(times)]], interval=2))

    assert log.offset_for_timestamp(104) == (105, 41)
    assert log.offset_for_timestamp(111) == (120, 48)
    assert log.offset_for_timestamp(0) == (100, 40)
    assert log.offset_for_timestamp(121) is None


def test_only_current_partitions_are_listed(write_log: WriteLog, tmp_path: Path) -> None:
    """Deleted, future and stray replicas, foreign files and links are left out."""
    partition = write_log(TWENTY)
    for state in ("delete", "future", "stray"):
        shutil.copytree(partition, tmp_path / f"t-1.{'a' * 32}-{state}")
    shutil.copytree(partition, tmp_path / "__consumer_offsets-0")
    shutil.copytree(partition, tmp_path / "__cluster_metadata-0")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "t-2").write_text("a file")
    (tmp_path / "t-3").symlink_to(partition)
    directory = segmentlog.open_log_dir(tmp_path)

    assert directory.topics() == {"t": [0]}
    assert directory.topics(internal=True) == {"__consumer_offsets": [0], "t": [0]}


def test_unknown_names_come_with_a_hint(write_log: WriteLog, tmp_path: Path) -> None:
    """The nearest topic, or the partitions that there are."""
    write_log(TWENTY, name="orders-0")
    directory = segmentlog.open_log_dir(tmp_path)

    with pytest.raises(UnknownTopicOrPartitionError, match="did you mean 'orders'"):
        directory.log("order", 0)
    with pytest.raises(LookupError, match="it has partitions 0"):
        directory.log("orders", 7)


def test_the_same_partition_twice_is_refused(write_log: WriteLog, tmp_path: Path) -> None:
    """Both places are named, once somebody asks for it."""
    partition = write_log(TWENTY)
    shutil.copytree(partition, tmp_path / "other" / "t-0")
    directory = segmentlog.open_log_dir(tmp_path, tmp_path / "other")

    with pytest.raises(LogDirectoryError, match=r"other/t-0.*and so does"):
        directory.log("t", 0)


def test_a_linked_directory_and_a_lone_file_are_paths(write_log: WriteLog, tmp_path: Path) -> None:
    """A link is followed when it is what was asked for; a file means just itself."""
    partition = write_log(TWENTY)
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    lone = segmentlog.open_log_dir(partition / "00000000000000000010.log").log("t", 0)

    assert segmentlog.open_log_dir(tmp_path / "link").topics() == {"t": [0]}
    assert list(range(10, 20)) == offsets_of(lone)


def test_swap_files_stand_for_what_they_replace(write_log: WriteLog) -> None:
    """As a starting broker takes them: finished ones count, unfinished ones do not."""
    partition = write_log([[(0, 1)], [(1, 1)], [(2, 1)]])
    names = [f"{base:020d}.log" for base in range(3)]
    (partition / (names[0] + ".swap")).write_bytes(
        encode_batch([Record(0, 1, b"k", b"a"), Record(1, 1, b"k", b"b")])
    )
    (partition / (names[1] + ".deleted")).write_bytes(b"gone")
    swapped = [Path(segment.path).name for segment in list_segments(str(partition))]
    (partition / (names[0] + ".cleaned")).write_bytes(b"half")
    interrupted = [Path(segment.path).name for segment in list_segments(str(partition))]

    assert names[0] + ".swap" in swapped
    assert names == interrupted


def test_files_renamed_or_rewritten_under_a_read_are_found_again(write_log: WriteLog) -> None:
    """Renamed to `.deleted`, compacted under the same name, or merged into the one before."""
    partition = write_log(TWENTY)
    log = only_log(partition)
    (log_slice,) = log.slices(0, 20)
    second = partition / "00000000000000000010.log"
    second.rename(second.with_name(second.name + ".deleted"))

    assert list(range(20)) == _read(log_slice)

    second.with_name(second.name + ".deleted").unlink()
    first = partition / "00000000000000000000.log"
    kept = [Record(offset, 1, b"k", b"v") for offset in (3, 9, 15, 19)]
    first.write_bytes(b"".join(encode_batch([record]) for record in kept))

    assert [3, 9, 15, 19] == _read(log_slice)


def test_records_that_are_gone_are_an_error(write_log: WriteLog) -> None:
    """A read that was promised more than is left does not end quietly."""
    partition = write_log(TWENTY)
    (log_slice,) = only_log(partition).slices(0, 20)
    (partition / "00000000000000000000.log").unlink()

    with pytest.raises(LogChangedError, match=r"\[0, 20\)"):
        _read(log_slice)


def _read(log_slice: segmentlog.LogSlice) -> list[int]:
    return [
        offset
        for batch in scan_slice(log_slice, columns=["offset"])
        for offset in batch.column(0).to_pylist()
    ]


def test_nothing_stays_open(write_log: WriteLog) -> None:
    """Reading, looking up and an abandoned scan leave no descriptor behind."""
    partition = write_log(TWENTY)
    before = psutil.Process().num_fds()
    log = only_log(partition)
    offsets_of(log)
    log.offset_for_timestamp(1100)
    abandoned = scan_slice(log.slices(0, 20)[0])
    next(abandoned)
    abandoned.close()

    assert before == psutil.Process().num_fds()
