"""Refusals of a writer: their messages, and that they neither lose nor leave anything."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plain_writes import ONE, values, write

import segmentlog
from segmentlog.errors import (
    ColumnError,
    InvalidRecordError,
    LogDirectoryError,
    LogLockedError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.names import HIGH_WATERMARK_CHECKPOINT
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import read_offsets, write_offsets
from segmentlog.model import TimestampType, TopicPartition
from segmentlog.store.lock import DirectoryLock
from segmentlog.writes.config import ProducerConfig


@pytest.mark.parametrize("missing", [0, 1])
def test_a_topic_of_which_a_partition_is_missing(tmp_path: Path, missing: int) -> None:
    """A broker may have several directories. Keys would get other partitions."""
    write(tmp_path, ONE, num_partitions=3)
    write(tmp_path, ONE, topic="whole")
    shutil.rmtree(tmp_path / f"t-{missing}")
    offsets = read_offsets(str(tmp_path), HIGH_WATERMARK_CHECKPOINT)
    del offsets[TopicPartition("t", missing)]
    write_offsets(str(tmp_path), HIGH_WATERMARK_CHECKPOINT, offsets)

    with pytest.raises(UnknownTopicOrPartitionError, match="write a topic only where") as caught:
        write(tmp_path, ONE)
    assert caught.value.partition == missing
    with pytest.raises(UnknownTopicOrPartitionError, match="write a topic only where"):
        write(tmp_path, ONE.append_column("topic", pa.array(["t"])), topic=None)
    write(tmp_path, ONE, topic="whole")
    assert [b"v", b"v"] == values(tmp_path, "whole")


def test_the_directory_of_a_partition(tmp_path: Path) -> None:
    """A log directory inside a partition would never be read."""
    write(tmp_path, ONE)
    with pytest.raises(LogDirectoryError, match=rf"name the log directory, {tmp_path}$"):
        write(tmp_path / "t-0", ONE)
    assert not [path for path in (tmp_path / "t-0").iterdir() if path.is_dir()]


@pytest.mark.parametrize("is_dangling", [False, True], ids=["linked", "dangling"])
@pytest.mark.parametrize("n_segments", [1, 2])
@pytest.mark.parametrize("linked", [0, 1])
def test_a_segment_that_is_a_link(
    tmp_path: Path, linked: int, n_segments: int, *, is_dangling: bool
) -> None:
    """Reads leave it out with a warning; a broker would find new records at offsets of its own."""
    logs = tmp_path / "logs"
    for _ in range(n_segments):
        write(logs, ONE, config=ProducerConfig(topic_config=TopicConfig(segment_bytes=80)))
    path = logs / "t-0" / f"{min(linked, n_segments - 1):020d}.log"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / ("nowhere" if is_dangling else "elsewhere"))
    before = {each: each.read_bytes() for each in (logs / "t-0").iterdir() if each.is_file()}

    with pytest.raises(LogDirectoryError, match="is a symbolic link") as caught:
        write(logs, ONE)
    assert str(path) == caught.value.path
    assert before == {each: each.read_bytes() for each in before}
    path.unlink()
    (tmp_path / "elsewhere").rename(path)
    write(logs, ONE)
    assert [b"v"] * (n_segments + 1) == values(logs)


def test_a_path_that_is_no_directory(tmp_path: Path) -> None:
    """The path itself is a file, or a parent of it."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "logs"):
        with pytest.raises(LogDirectoryError, match="name a directory, or a path where"):
            write(path, ONE)


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    """The settings are refused before any file is made."""
    refused: list[dict[str, Any]] = [{"num_partitions": n} for n in (0, -2, 10**11)]
    for options in (*refused, {"txn_app_id": "app", "txn_version": -1}):
        with pytest.raises(OptionError, match=r"give a whole number from [01] to"):
            write(tmp_path / "logs", ONE, **options)
    with segmentlog.open_writer(tmp_path / "logs", "t") as writer:
        with pytest.raises(OptionError, match="Arrow capsule interface"):
            writer.append([{"value": b"v"}])  # type: ignore[arg-type]
        for rows in (pa.array([{"value": "a"}, None]), pa.array([1])):
            with pytest.raises(OptionError, match=r"'rows' is .*Array.* not rows of a table"):
                writer.append(rows)
    calls: Any = (segmentlog.open_writer, segmentlog.open_log_dir, segmentlog.read)
    for call in calls:
        with pytest.raises(OptionError, match="'path' is '5'; give a path"):
            call(5, "t")
    with segmentlog.open_writer(tmp_path / "logs", "t") as writer:
        writer.append(ONE)
    assert [b"v"] == values(tmp_path / "logs")


def test_topics_are_created_in_a_brokers_directory_if_that_is_said(tmp_path: Path) -> None:
    """In other directories they are created unless the option forbids it."""
    (tmp_path / "meta.properties").touch()
    with pytest.raises(UnknownTopicOrPartitionError, match="create the topic with the broker"):
        write(tmp_path, ONE)
    write(tmp_path, ONE, auto_create_topics=True)
    with pytest.raises(UnknownTopicOrPartitionError):
        write(tmp_path / "other", ONE, auto_create_topics=False)
    assert [b"v"] == values(tmp_path)


def test_records_are_deleted_at_the_second_try(tmp_path: Path) -> None:
    """The first flush failed, and has deleted nothing."""
    write(tmp_path, ONE)
    with segmentlog.open_writer(tmp_path, "t", overwrite=True, lock_timeout_seconds=0) as writer:
        writer.append(ONE)
        with DirectoryLock(str(tmp_path)), pytest.raises(LogLockedError):
            writer.flush()
        assert [b"v"] == values(tmp_path)
        writer.append(pa.table({"value": [b"new"]}))
        writer.flush()
        writer.append(pa.table({"value": [b"newer"]}))
    assert [b"new", b"newer"] == values(tmp_path)


def test_rows_are_not_written_without_one_that_was_refused(tmp_path: Path) -> None:
    """Later calls fail, too, and the flush before stays."""
    bad = pa.table({"value": [b"good", b"bad"], "partition": [0, 7]})

    def go_on() -> None:
        with segmentlog.open_writer(tmp_path, "t") as writer:
            writer.append(ONE)
            writer.flush()
            writer.append(bad)
            with pytest.raises(InvalidRecordError, match="names partition 7"):
                writer.append(pa.table({"value": [b"other"]}))  # other columns: bad is written
            with pytest.raises(OptionError, match="append the other rows since"):
                writer.append(ONE)

    with pytest.raises(OptionError, match="append the other rows since"):
        go_on()
    assert [b"v"] == values(tmp_path)
    assert not [*tmp_path.glob("*.stage"), *tmp_path.glob("*.job")]


def test_a_row_that_is_refused_at_the_flush(tmp_path: Path) -> None:
    """The row was held until the flush. The other rows are not written, either."""
    writer = segmentlog.open_writer(tmp_path, "t")
    writer.append(pa.table({"value": [b"good", b"bad"], "partition": [0, 7]}))
    with pytest.raises(InvalidRecordError, match="names partition 7"):
        writer.flush()
    for call in (writer.flush, lambda: writer.append(ONE), writer.close):
        with pytest.raises(OptionError, match="append the other rows since"):
            call()
    writer.close()
    assert [] == [path.name for path in tmp_path.iterdir() if path.name[0] != "."]


def test_rows_of_which_none_was_taken(tmp_path: Path) -> None:
    """They lack a column. The rows before them are written."""
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(ONE)
        with pytest.raises(ColumnError, match="'value' is missing; the rows have: key"):
            writer.append(pa.table({"key": [b"k"]}))
        writer.append(ONE)
    assert [b"v", b"v"] == values(tmp_path)


@pytest.mark.parametrize("named", [2**31, -(2**31) - 1, 2**40])
def test_a_partition_that_no_topic_can_have(tmp_path: Path, named: int) -> None:
    """The error names the row."""
    rows = pa.table({"value": [b"a", b"b"], "partition": [0, named]})
    with pytest.raises(InvalidRecordError, match=f"no topic has a partition {named}") as caught:
        write(tmp_path, rows)
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("number", "kind"), [(3_000_000_000, pa.uint32()), (2**64 - 1, pa.uint64())]
)
def test_an_unsigned_number_of_no_partition(
    tmp_path: Path, number: int, kind: pa.DataType
) -> None:
    """Its bits are those of a negative number, which may be a valid one of the same column."""
    partitions = pa.array([None, 2, number, 1], kind)
    rows = pa.table({"value": [b"v"] * 4, "partition": partitions})
    with pytest.raises(InvalidRecordError, match=f"no topic has a partition {number}") as caught:
        write(tmp_path, rows, num_partitions=3)
    assert caught.value.row == 2


def test_a_row_that_keeps_its_offset_keeps_its_partition(tmp_path: Path) -> None:
    """Its partition may not be the one of its key."""
    columns = {"value": [b"a", b"b"], "offset": [0, 1], "partition": [0, None]}
    with pytest.raises(InvalidRecordError, match=r"row 1 .*its partition is null"):
        write(tmp_path, pa.table(columns), config=ProducerConfig(use_offsets=True))


def test_a_version_that_was_committed_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a counter that begins again would lose every job without notice."""
    write(tmp_path, ONE, txn_app_id="app", txn_version=5)
    with caplog.at_level(logging.WARNING):
        write(tmp_path, ONE, txn_app_id="app", txn_version=3)
    assert "version 3 of 'app' is not written to 't', which has version 5" in caplog.text
    assert [b"v"] == values(tmp_path)


def test_the_time_of_appending_is_that_of_writing(tmp_path: Path) -> None:
    """The times of the rows do not count, as in a broker."""
    config = ProducerConfig(
        topic_config=TopicConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME),
        use_timestamps=True,
    )
    times = pa.array([1_000_000, 2_000_000], pa.timestamp("us", "UTC"))
    write(tmp_path, pa.table({"value": [b"a", b"b"], "timestamp": times}), config=config)

    (batch,) = segmentlog.open_log_dir(tmp_path).log("t", 0).scan()
    assert {1} == set(batch.column("timestampType").to_pylist())
    assert {True} == {time.year > 2020 for time in batch.column("timestamp").to_pylist()}


def test_a_link_or_a_file_in_the_place_of_a_partition(tmp_path: Path) -> None:
    """A broken link, a link and a file are refused before rows are accepted."""
    place = tmp_path / "t-0"
    write(tmp_path, ONE, topic="other")
    before = sorted(path.name for path in tmp_path.iterdir())
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    for what in ("dangling", "empty"):
        place.symlink_to(elsewhere)
        for topic, rows in (("t", ONE), (None, ONE.append_column("topic", pa.array(["t"])))):
            with pytest.raises(LogDirectoryError, match="t-0: is a symbolic link"):
                write(tmp_path, rows, topic=topic)
        place.unlink()
        assert elsewhere.exists() == (what == "empty")
        elsewhere.mkdir(exist_ok=True)
    place.touch()
    for auto_create_topics in (True, False):
        with pytest.raises(LogDirectoryError, match="t-0: is not a directory"):
            write(tmp_path, ONE, auto_create_topics=auto_create_topics)
    write(tmp_path, ONE.append_column("topic", pa.array(["other"])), topic=None)
    place.unlink()
    assert before == sorted(path.name for path in tmp_path.iterdir())
    assert [] == list(elsewhere.iterdir())
    assert [b"v", b"v"] == values(tmp_path, "other")
