"""Checkpoint files are read, written, and refused when they are malformed."""

import os
import tracemalloc
from pathlib import Path

import pytest

from segmentlog.errors import CorruptCheckpointError
from segmentlog.format.names import HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT
from segmentlog.log.checkpoint import (
    OffsetCheckpoint,
    read_again,
    read_leader_epochs,
    read_offsets,
)
from segmentlog.model import TopicPartition


def test_a_right_file_gives_all_its_entries(tmp_path: Path) -> None:
    """Any white space separates topic, partition and offset. Lines may end as on Windows."""
    text = "0\n3\norders 0 1500\na.b-c\t12   -1\r\nx 1 9223372036854775807\n"
    (tmp_path / LOG_START_CHECKPOINT).write_text(text, newline="")
    expected = {
        TopicPartition("orders", 0): 1500,
        TopicPartition("a.b-c", 12): -1,
        TopicPartition("x", 1): 2**63 - 1,
    }

    assert expected == read_offsets(str(tmp_path), LOG_START_CHECKPOINT)


def test_a_high_watermark_below_0_is_none(tmp_path: Path) -> None:
    """A broker serves such a log to its end; one of 0 hides all records from reads."""
    checkpoint = tmp_path / HIGH_WATERMARK_CHECKPOINT
    text = "0\n2\norders 0 {}\norders 1 5\n"
    checkpoint.write_text(text.format(-1))
    found = read_again(str(tmp_path), HIGH_WATERMARK_CHECKPOINT)
    assert {TopicPartition("orders", 1): 5} == found.offsets
    for offset, expected in ((7, {0: 7, 1: 5}), (-3, {1: 5})):
        checkpoint.write_text(text.format(offset))
        found = read_again(str(tmp_path), HIGH_WATERMARK_CHECKPOINT, found)
        assert {TopicPartition("orders", i): at for i, at in expected.items()} == found.offsets


def test_a_file_without_a_last_line_end_is_whole(tmp_path: Path) -> None:
    """The last line counts with or without its line end."""
    (tmp_path / LOG_START_CHECKPOINT).write_text("0\n1\norders 0 7")

    assert {TopicPartition("orders", 0): 7} == read_offsets(str(tmp_path), LOG_START_CHECKPOINT)


@pytest.mark.parametrize("text", [None, "", "0", "0\n", "0\n0\n", "0\n0"])
def test_a_missing_or_empty_file_has_no_entries(tmp_path: Path, text: str | None) -> None:
    """A missing file, an empty file and a file with only a version mean no entries.

    Brokers read them in this way, too.
    """
    if text is not None:
        (tmp_path / LOG_START_CHECKPOINT).write_text(text)

    assert {} == read_offsets(str(tmp_path), LOG_START_CHECKPOINT)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("1\n0\n", 1, "version 0"),
        ("x\n0\n", 1, "'x'"),
        ("\n0\n", 1, "version"),
        ("\0\0", 1, "version"),
        ("orders 0 1\n", 1, "'orders 0 1'"),
        ("0\n2\norders 0 1\n", 2, "'2' entries, but the file has 1"),
        ("0\n1\norders 0 1\norders 1 1\n", 2, "'1' entries, but the file has 2"),
        ("0\n0\norders 0 1\n", 2, "'0' entries, but the file has 1"),
        ("0\nmany\norders 0 1\n", 2, "'many'"),
        ("0\n-1\n", 2, "'-1'"),
        ("0\n" + "9" * 23 + "\norders 0 1\n", 2, "999"),
        ("0\n1\norders 0 1\n\n", 2, "has 2"),
        ("0\n1\norders 0\n", 3, "'orders 0'"),
        ("0\n1\n\n", 3, "''"),
        ("0\n1\norders 0 1 2\n", 3, "'orders 0 1 2'"),
        ("0\n2\norders 0 1\norders x 1\n", 4, "'orders x 1'"),
        ("0\n2\norders 0 1\norders 1 one\n", 4, "'orders 1 one'"),
        ("0\n1\norders 0 1.5\n", 3, "1.5"),
        ("0\n1\norders 0 --1\n", 3, "--1"),
        ("0\n1\norders 0 -\n", 3, "'orders 0 -'"),
        ("0\n1\norders 0 ٣\n", 3, "'orders 0 ٣'"),
        ("0\n1\norders 0 " + "9" * 21 + "\n", 3, "999"),
    ],
)
def test_a_wrong_file_is_named_with_line_and_remedy(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    """The message names the line, the fault and the remedy."""
    path = tmp_path / LOG_START_CHECKPOINT
    path.write_text(text, encoding="utf-8")

    with pytest.raises(CorruptCheckpointError) as caught:
        read_offsets(str(tmp_path), LOG_START_CHECKPOINT)

    assert (str(path), line) == (caught.value.path, caught.value.line)
    assert f"{path}, line {line}: " in str(caught.value)
    assert said in str(caught.value)
    assert "; segmentlog recover makes the file readable again" in str(caught.value)


def test_bytes_that_are_no_text_are_a_wrong_version(tmp_path: Path) -> None:
    """Random bytes are reported as any other malformed file."""
    (tmp_path / LOG_START_CHECKPOINT).write_bytes(b"\xff\xfe\x00\x80" * 40)

    with pytest.raises(CorruptCheckpointError, match="expected version 0"):
        read_offsets(str(tmp_path), LOG_START_CHECKPOINT)


def test_the_message_about_high_watermarks_names_the_option_without_them(tmp_path: Path) -> None:
    """A user who cannot repair the file can read without it. The message names the option."""
    (tmp_path / HIGH_WATERMARK_CHECKPOINT).write_text("0\n1\n")

    with pytest.raises(CorruptCheckpointError, match="readUpTo=logEnd"):
        read_offsets(str(tmp_path), HIGH_WATERMARK_CHECKPOINT)


def test_leader_epochs_keep_their_order(tmp_path: Path) -> None:
    """Epochs and their start offsets keep the order of the file."""
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n3\n0 0\n4 120\n9 121\n")

    assert ((0, 0), (4, 120), (9, 121)) == read_leader_epochs(str(path))
    assert () == read_leader_epochs(str(tmp_path / "missing"))


def test_a_wrong_leader_epoch_is_named_with_its_line(tmp_path: Path) -> None:
    """A malformed line is refused with the remedy for this file."""
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n2\n0 0\n4 120 1\n")

    with pytest.raises(
        CorruptCheckpointError,
        match=r"line 4: .*; segmentlog recover builds it again from the log",
    ):
        read_leader_epochs(str(path))


def test_a_small_checkpoint_is_written_at_each_change(tmp_path: Path) -> None:
    """A checkpoint of a few partitions is written before each change returns."""
    kept = OffsetCheckpoint(str(tmp_path), LOG_START_CHECKPOINT)
    for partition in range(20):
        kept.put({TopicPartition("t", partition): 7})
        assert kept.offsets == read_offsets(str(tmp_path), LOG_START_CHECKPOINT)


def test_a_large_checkpoint_is_written_now_and_then(tmp_path: Path) -> None:
    """A large checkpoint is written after some of its changes.

    The caller asks for the last write.
    """
    many = {TopicPartition("t", partition): 1 for partition in range(6400)}
    OffsetCheckpoint(str(tmp_path), LOG_START_CHECKPOINT).put(many)
    kept, path = OffsetCheckpoint(str(tmp_path), LOG_START_CHECKPOINT), str(tmp_path)
    n_written, before = 0, 0
    for each in many:
        kept.put({each: 2})
        now = (tmp_path / LOG_START_CHECKPOINT).read_bytes().count(b" 2\n")
        n_written, before = n_written + (now != before), now
    kept.write()

    assert 50 < n_written < 70
    assert dict.fromkeys(many, 2) == kept.offsets == read_offsets(path, LOG_START_CHECKPOINT)


@pytest.mark.parametrize("begin", ["0\n1\norders 0 7\n", "", "0\n"])
def test_a_sparse_file_takes_no_memory_for_its_zeros(tmp_path: Path, begin: str) -> None:
    """A MiB of zeros is refused, and the file is not held."""
    path = tmp_path / LOG_START_CHECKPOINT
    path.write_text(begin)
    os.truncate(path, 64 << 20)
    tracemalloc.start()

    for read in (
        lambda: read_offsets(str(tmp_path), path.name),
        lambda: read_leader_epochs(str(path)),
    ):
        with pytest.raises(CorruptCheckpointError, match="are all zeros, as in no such file"):
            read()

    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 << 20  # half of the file
