"""The listing of a partition directory: the files that are its log."""

import logging
import os
from pathlib import Path

import pytest

import segmentlog
from segmentlog.errors import LogDirectoryError
from segmentlog.log.listing import list_segments
from segmentlog.testing.reference import Record, encode_batch


def write_segment(directory: Path, name: str, offsets: range | list[int]) -> None:
    """A file with one record in each batch; the values identify the file."""
    batches = [encode_batch([Record(offset, 1, None, name.encode())]) for offset in offsets]
    (directory / name).write_bytes(b"".join(batches))


def listed(directory: Path) -> list[str]:
    """Names of the files that are the log."""
    return [Path(files.path).name for files in list_segments(str(directory))]


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Three segments of ten records."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    for base in (0, 10, 20):
        write_segment(directory, f"{base:020d}.log", range(base, base + 10))
    return directory


NAMES = ["00000000000000000000.log", "00000000000000000010.log", "00000000000000000020.log"]


def test_segments_are_sorted_by_base_offset_with_their_sizes(tmp_path: Path) -> None:
    """A size is that of the file when it was listed."""
    for base, n_bytes in ((9, 3), (10, 0), (2, 70)):
        (tmp_path / f"{base:020d}.log").write_bytes(bytes(n_bytes))
    expected = [(2, 70, False), (9, 3, False), (10, 0, False)]

    assert expected == [
        (files.base_offset, files.size, files.is_swap) for files in list_segments(str(tmp_path))
    ]


def test_a_directory_without_segments_is_an_empty_log(tmp_path: Path) -> None:
    """A partition that was just created has no segment, which is not an error."""
    (tmp_path / "leader-epoch-checkpoint").touch()

    assert not list_segments(str(tmp_path))


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A missing directory and a file in its place are refused, and the error has the path."""
    (tmp_path / "file").touch()

    for name in ("missing", "file"):
        with pytest.raises(LogDirectoryError, match=f"{name}: cannot be listed"):
            list_segments(str(tmp_path / name))


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000000005.index",
        "00000000000000000005.timeindex",
        "00000000000000000005.txnindex",
        "00000000000000000005.snapshot",
        "00000000000000000005.log.deleted",
        "00000000000000000005.log.bak",
        "00000000000000000005.logs",
        "server.log",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "00000000000000000005.index.swap",
        "00000000000000000005.log.swap.deleted",
    ],
)
def test_foreign_and_deleted_files_are_not_part_of_the_log(partition: Path, name: str) -> None:
    """A file with another kind of name neither adds a segment nor replaces one."""
    write_segment(partition, name, [5])

    assert NAMES == listed(partition)


def test_a_directory_named_as_a_segment_is_left_out(partition: Path) -> None:
    """Only files have records."""
    (partition / "00000000000000000030.log").mkdir()

    assert NAMES == listed(partition)


def test_a_symbolic_link_is_left_out_with_a_warning(
    partition: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A link may lead out of the log directory, where other files would be read."""
    write_segment(tmp_path, "elsewhere", [30])
    (partition / "00000000000000000030.log").symlink_to(tmp_path / "elsewhere")

    with caplog.at_level(logging.WARNING, logger="segmentlog"):
        names = listed(partition)

    assert NAMES == names
    assert "00000000000000000030.log is a symbolic link" in caplog.text


def test_a_swap_file_replaces_the_segment_of_its_base_offset(partition: Path) -> None:
    """Compaction has finished the swap file, and only its rename is missing."""
    write_segment(partition, NAMES[1] + ".swap", [12, 19])
    expected = [NAMES[0], NAMES[1] + ".swap", NAMES[2]]

    assert expected == listed(partition)
    assert [False, True, False] == [each.is_swap for each in list_segments(str(partition))]


def test_a_merged_swap_file_replaces_every_segment_that_it_covers(partition: Path) -> None:
    """Compaction merges small segments. Segments that it has replaced must not be read again."""
    write_segment(partition, NAMES[0] + ".swap", [3, 9, 12, 19])
    scan = segmentlog.open_log_dir(partition).log("t", 0).scan(columns=["offset"])
    expected = [3, 9, 12, 19, *range(20, 30)]

    assert [NAMES[0] + ".swap", NAMES[2]] == listed(partition)
    assert expected == scan.read_all()["offset"].to_pylist()


def test_the_range_of_several_swap_files_is_replaced(partition: Path) -> None:
    """A segment between two parts of a split segment is as old as the split segment."""
    write_segment(partition, NAMES[0] + ".swap", [0, 4])
    write_segment(partition, "00000000000000000005.log.swap", [5, 20, 24])
    expected = [NAMES[0] + ".swap", "00000000000000000005.log.swap"]

    assert expected == listed(partition)


def test_an_empty_swap_file_replaces_its_own_segment_only(partition: Path) -> None:
    """A swap file is empty if compaction has removed every record."""
    write_segment(partition, NAMES[0] + ".swap", [])

    assert [NAMES[0] + ".swap", *NAMES[1:]] == listed(partition)


def test_the_torn_end_of_a_swap_file_does_not_count(partition: Path) -> None:
    """Bytes after the last whole batch do not extend the range of the swap file."""
    write_segment(partition, NAMES[0] + ".swap", [3, 9])
    with (partition / (NAMES[0] + ".swap")).open("ab") as file:
        file.write(encode_batch([Record(25, 1, None, b"x")])[:-1])

    assert [NAMES[0] + ".swap", *NAMES[1:]] == listed(partition)


def test_a_swap_file_of_old_messages_replaces_what_it_covers(partition: Path) -> None:
    """Magic 1 has no last offset delta, so the offset of each message counts."""
    message = (14).to_bytes(8, "big") + (22).to_bytes(4, "big") + bytes(4) + b"\x01" + b"\x7f" * 17
    (partition / (NAMES[0] + ".swap")).write_bytes(message)
    (partition / NAMES[1]).write_bytes(message)

    assert [NAMES[0] + ".swap", NAMES[2]] == listed(partition)


def test_a_wrong_offset_at_the_end_of_a_swap_file_replaces_no_other_segment(
    partition: Path,
) -> None:
    """No checksum covers the offset, and the other segment does not have that batch."""
    write_segment(partition, NAMES[0] + ".swap", [0, 9 + 16])

    assert [NAMES[0] + ".swap", *NAMES[1:]] == listed(partition)


@pytest.mark.parametrize("suffix", [".log.cleaned", ".index.cleaned", ".timeindex.cleaned"])
@pytest.mark.parametrize("cleaned_base", [0, 10])
def test_a_cleaned_file_at_or_below_a_swap_file_takes_it_back(
    partition: Path, suffix: str, cleaned_base: int
) -> None:
    """Swap files are renamed from the last to the first.

    A cleaned file undoes the later swap files.
    """
    write_segment(partition, NAMES[1] + ".swap", [12])
    (partition / f"{cleaned_base:020d}{suffix}").touch()

    assert NAMES == listed(partition)


def test_a_cleaned_file_after_a_swap_file_does_not_count(partition: Path) -> None:
    """The cleaned file belongs to the next pass. The finished pass stays finished."""
    write_segment(partition, NAMES[0] + ".swap", [3])
    (partition / (NAMES[1] + ".cleaned")).touch()

    assert [NAMES[0] + ".swap", *NAMES[1:]] == listed(partition)


def test_a_cleaned_file_alone_changes_nothing(partition: Path) -> None:
    """Compaction has not finished writing the file."""
    write_segment(partition, NAMES[0] + ".cleaned", [3])

    assert NAMES == listed(partition)


def fill(directory: Path, n_segments: int) -> None:
    """Empty segments, and indexes beside them, so that the directory is a long one."""
    for base in range(n_segments):
        for kind in ("log", "index", "timeindex"):
            (directory / f"{base:020d}.{kind}").touch()


def test_a_segment_that_a_long_listing_passes_over_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment is made between a name that is already listed and one that is not."""
    fill(tmp_path, 100)
    real, passed_over = os.listdir, ["00000000000000000098.log"]

    def listdir(path: str) -> list[str]:
        missing = passed_over.pop() if passed_over else ""
        return [name for name in real(path) if name != missing]

    monkeypatch.setattr(os, "listdir", listdir)

    assert 100 == len(listed(tmp_path))
    assert not passed_over


@pytest.mark.parametrize("changes", [False, True])
def test_a_long_directory_is_listed_once_if_its_time_shows_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    """A segment that is made during the listing, and passed over, changes the time."""
    fill(tmp_path, 100)
    os.utime(tmp_path, (1, 1))
    real, calls = os.listdir, []

    def listdir(path: str) -> list[str]:
        calls.append(path)
        names = real(path)
        if changes and len(calls) == 1:
            (tmp_path / f"{100:020d}.log").touch()
        return names

    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setattr("segmentlog.store.fingerprint._is_old", lambda *_, **__: True)

    assert 100 == len(listed(tmp_path))
    assert (2 if changes else 1) == len(calls)


def test_segments_that_come_while_a_long_directory_is_listed_again_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first listing is complete without them, so a growing log is not listed for ever."""
    fill(tmp_path, 100)
    real = os.listdir
    bases = iter(range(100, 1000))

    def listdir(path: str) -> list[str]:
        (tmp_path / f"{next(bases):020d}.log").touch()
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)

    assert 101 == len(listed(tmp_path))


def test_a_segment_is_measured_once_its_successor_is_known(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size from before the names were listed could leave out the last batches of a segment."""
    real, last = os.listdir, partition / NAMES[-1]

    def listdir(path: str) -> list[str]:
        names = real(path)
        last.write_bytes(last.read_bytes() * 2)  # it grows, and rolls
        write_segment(partition, "00000000000000000040.log", [40])
        return real(path) if len(names) > len(NAMES) else [*names, "00000000000000000040.log"]

    monkeypatch.setattr(os, "listdir", listdir)

    sizes = [files.size for files in list_segments(str(partition))]
    assert sizes[-2] == last.stat().st_size


def test_a_file_that_is_renamed_between_its_name_and_its_size_is_listed_again(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction renames a finished file. A listing with neither name would have a hole."""
    (partition / NAMES[1]).rename(partition / f"{NAMES[1]}.swap")
    real = os.listdir

    def listdir(path: str) -> list[str]:
        names = real(path)
        if f"{NAMES[1]}.swap" in names:
            (partition / f"{NAMES[1]}.swap").rename(partition / NAMES[1])
        return names

    monkeypatch.setattr(os, "listdir", listdir)

    assert listed(partition) == NAMES
