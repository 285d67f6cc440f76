"""Rows, columns and sizes that a writer accepts or refuses."""

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from plain_writes import write

import segmentlog
from segmentlog.errors import (
    ColumnError,
    InvalidRecordError,
    OptionError,
)
from segmentlog.writes.config import ProducerConfig

pytestmark = pytest.mark.linux


def test_milliseconds_of_any_unit(tmp_path: Path) -> None:
    """Some times do not fit microseconds, and times in seconds may not fit milliseconds."""
    config = ProducerConfig(use_timestamps=True)
    for unit, count in (("s", 5), ("ms", 5_999), ("us", 5_999_999), ("ns", 5_999_999_999)):
        naive = pa.array([count, None], pa.timestamp(unit))
        times = naive.cast(pa.timestamp(unit, "Asia/Kolkata"))
        table = pa.table({"value": [unit.encode()] * 2, "timestamp": times})
        write(tmp_path / unit, table, config=config)
        in_utc = table.set_column(1, "timestamp", naive)
        write(tmp_path / f"{unit}-naive", in_utc, config=config)
        read = [segmentlog.read(tmp_path / f"{unit}{each}", "t") for each in ("", "-naive")]
        assert read[0]["timestamp"][0] == read[1]["timestamp"][0]
        (batch,) = segmentlog.open_log_dir(tmp_path / unit).log("t", 0).scan()
        first, second = batch.column("timestamp").cast(pa.int64()).to_pylist()
        assert (5000 if unit == "s" else 5999) * 1000 == first
        assert second > 10**15
    for count in (2**62, -(2**62)):
        times = pa.array([0, count], pa.timestamp("s", "UTC"))
        table = pa.table({"value": [b"a", b"b"], "timestamp": times})
        with pytest.raises(InvalidRecordError, match="64-bit milliseconds") as caught:
            write(tmp_path / "large", table, config=config)
        assert caught.value.row == 1


@pytest.mark.parametrize("has_topics", [False, True])
def test_a_row_is_named_as_the_task_has_counted_it(tmp_path: Path, has_topics: bool) -> None:
    """The number does not depend on the rows that are written together."""
    first = pa.table({"value": [b"a"] * 10, "topic": ["t", "u"] * 5, "partition": [0] * 10})
    names = [0, 0, 0, 7, 0, 0]
    second = pa.table({"value": [b"b"] * 6, "topic": ["u", "t"] * 3, "partition": names})
    config = ProducerConfig(buffer_memory=1)
    writer = segmentlog.open_writer(tmp_path, None if has_topics else "t", config=config)
    writer.append(first)
    with pytest.raises(InvalidRecordError, match="row 13 of the task cannot") as caught:
        writer.append(second)
    writer.abort()
    assert (13, "t", 7) == (caught.value.row, caught.value.topic, caught.value.partition)


def test_columns_of_one_name(tmp_path: Path) -> None:
    """Two columns of one name are ambiguous."""
    table = pa.Table.from_arrays([pa.array([b"a"]), pa.array([b"b"])], ["value", "value"])
    with pytest.raises(ColumnError, match="present more than once"):
        write(tmp_path, table)


@pytest.mark.parametrize("name", ["batch_size", "buffer_memory", "max_request_size"])
@pytest.mark.parametrize("size", [-1, 2**63])
def test_sizes_that_cannot_be(name: str, size: int) -> None:
    """The sizes are refused when they are given."""
    with pytest.raises(OptionError, match=f"option '{name}' is '{size}'"):
        ProducerConfig(**cast("Any", {name: size}))


@pytest.mark.parametrize("left", ["partition", ""])
def test_rows_of_a_log_warn_of_the_partitions_that_they_name(tmp_path: Path, left: str) -> None:
    """Rows that were read keep their old partitions in another topic, whatever their keys are."""
    given = pa.table({"key": [b"a", b"b", b"c"], "value": [b"1", b"2", b"3"]})
    with segmentlog.open_writer(tmp_path, "one") as writer:
        writer.append(given)
    read = segmentlog.read(tmp_path, "one")
    with (
        segmentlog.open_writer(tmp_path, "other", num_partitions=8) as writer,
        pytest.warns(UserWarning) as found,  # noqa: PT030 - several, told apart below
    ):
        writer.append(read.drop_columns(["topic", left] if left else ["topic"]))
    chosen = set(segmentlog.read(tmp_path, "other")["partition"].to_pylist())
    (warned,) = [each for each in found if "does not keep" in str(each.message)]

    assert __file__ == warned.filename
    assert (not left) == ("their column partition is used, and chooses" in str(warned.message))
    assert (not left) == (chosen == {0})
