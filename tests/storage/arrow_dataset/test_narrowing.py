"""A query opens only the files that its filter needs."""

import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest

import segmentlog
from segmentlog.arrow_dataset import bounds
from segmentlog.polars import scan_log
from segmentlog.reads import ordered_reads
from segmentlog.testing.damage import garble_records
from segmentlog.testing.reference import Record, encode_batch

MINUTE = 60_000
EPOCH, TWO = datetime(1970, 1, 1, tzinfo=UTC), timedelta(minutes=2)


@pytest.fixture
def dataset(write_log: Callable[..., object], tmp_path: object) -> pads.Dataset:
    """Two topics whose segments have ten offsets each.

    The record at each offset is one minute later than the record before it.
    """
    segments = [[(i, i * MINUTE) for i in range(base, base + 10)] for base in (0, 10, 20, 30)]
    write_log(segments, "a-0")
    write_log(segments, "a-1")
    write_log(segments, "b-0")
    return segmentlog.dataset(str(tmp_path))


def at(minute: int) -> pa.Scalar:
    """A number of minutes after 1970 as a timestamp of Arrow."""
    return pa.scalar(1000 * minute * MINUTE, pa.timestamp("us", "UTC"))


OFFSET, TIME = pc.field("offset"), pc.field("timestamp")
OPENED = [
    (pc.field("topic") == "b", 40, ["b-0/0", "b-0/10", "b-0/20", "b-0/30"]),
    ((pc.field("topic") == "a") & (OFFSET == 15), 2, ["a-0/10", "a-1/10"]),
    ((pc.field("partition") == 1) & (OFFSET >= 25), 15, ["a-1/20", "a-1/30"]),
    ((pc.field("partition") == 1) & OFFSET.isin([1, 39]), 2, ["a-1/0", "a-1/30"]),
    (pc.field("partition") == 7, 0, []),
    (OFFSET > 1000, 0, []),
    ((pc.field("partition") == 1) & (TIME >= at(31)), 9, ["a-1/30"]),
    ((pc.field("partition") == 1) & (TIME > at(39)), 0, []),
]


@pytest.mark.parametrize(("condition", "n_rows", "logs"), OPENED, ids=str)
def test_only_segments_in_range_are_opened(
    dataset: pads.Dataset,
    opening: Callable,
    condition: pc.Expression,
    n_rows: int,
    logs: list[str],
) -> None:
    """The second query opens only the segments that its filter needs.

    The first query cuts the slices and looks up times, so it opens more files.
    """
    dataset.count_rows(condition)
    with opening() as opened:
        assert n_rows == dataset.count_rows(condition)

    assert logs == opened


def test_only_partitions_in_range_are_cut(
    dataset: pads.Dataset, opening: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first query plans only the partitions that its filter allows."""
    monkeypatch.setattr(ordered_reads, "_SLICE_BYTES", 200)
    with opening() as opened:
        assert 2 == dataset.count_rows((pc.field("topic") == "a") & (OFFSET == 15))

    assert {"a-0", "a-1"} == {each.split("/")[0] for each in opened}


def test_filters_of_duckdb_and_polars_narrow_too(dataset: pads.Dataset, opening: Callable) -> None:
    """Comparisons and lists that DuckDB and Polars push down limit the segments to open."""
    list(dataset.get_fragments())
    logs = dataset
    frame = pl.scan_pyarrow_dataset(logs)

    with opening() as opened:
        where = "topic = 'a' and partition in (1, 5) and logs.offset = 15"
        assert [(1,)] == duckdb.sql(f"select count(*) from logs where {where}").fetchall()
    assert ["a-1/10"] == opened
    with opening() as opened:
        wanted = pl.col("topic").is_in(["a"]) & (pl.col("partition") == 1)
        assert 1 == len(frame.filter(wanted & (pl.col("offset") == 15)).collect())
    assert ["a-1/10"] == opened


def test_a_few_offsets_of_a_large_slice_are_read_alone(tmp_path: Path) -> None:
    """Slices are cut at the offsets that a filter selects. A filter on values cuts nothing."""
    rows = pa.table({"value": pa.array([b"v" * 100] * 60_000)})
    with segmentlog.open_writer(tmp_path, "t", num_partitions=1) as writer:
        writer.append(rows)
    dataset = segmentlog.dataset(tmp_path)
    (whole,) = dataset.slices()
    expected = [
        (OFFSET == 40_000, [(40_000, 40_001)]),
        ((OFFSET >= 100) & (OFFSET < 250), [(100, 250)]),
        (OFFSET.isin([7, 20]) | (OFFSET == 29_000), [(7, 29_001)]),
        (OFFSET < 1, [(0, 1)]),
        (
            (OFFSET > 29_900) & (OFFSET < 30_100),
            [(29_900, 30_100)],
        ),  # Arrow treats offsets as real numbers
        (OFFSET >= 59_999, [(59_999, 60_000)]),
        ((OFFSET < 100) | (OFFSET > 50_000), [(0, 60_000)]),
        (pc.field("value") == b"w", [(0, 60_000)]),
        (OFFSET > 60_000, []),
    ]

    for condition, ranges in expected:
        slices = list(dataset.slices(condition))
        assert ranges == [tuple(each.offsets) for each in slices], condition
        if ranges and ranges[0][1] - ranges[0][0] < 200:
            assert slices[0].n_bytes < whole.n_bytes / 10
        assert dataset.to_table(filter=condition).equals(dataset.to_table().filter(condition))


UTC_TIME = pa.timestamp("us", "UTC")
RANGES = [
    (None, None),
    (OFFSET > 3, None),
    (pc.scalar(False), None),
    (TIME >= at(1), (60_000, 2**63 - 1)),
    (TIME < at(1), (-(2**63), 60_000)),
    (TIME == at(1), (60_000, 60_001)),
    ((TIME > at(1)) & (OFFSET == 3) & (TIME <= at(2)), (60_001, 120_001)),
    (TIME.isin(pa.array([60_000_000, 180_000_000], UTC_TIME)), (60_000, 180_001)),
    ((TIME > at(1)) | (OFFSET == 3), None),
    (TIME < pa.scalar(-1_500, UTC_TIME), (-(2**63), -1)),
]


@pytest.mark.parametrize(("condition", "expected"), RANGES, ids=str)
def test_a_filter_bounds_times(
    condition: pc.Expression | None, expected: tuple[int, int] | None
) -> None:
    """The range is in milliseconds, and it never excludes a time that the filter accepts."""
    assert expected == bounds.timestamp_range(condition)


@pytest.mark.parametrize("codec", [0, 1])
def test_batches_of_other_times_are_not_decoded(tmp_path: Path, codec: int) -> None:
    """Garbled batches of append time before and after the range of times are not decoded."""
    batches = [
        encode_batch([Record(i, i * MINUTE, None, b"v" * 50)], attributes=8, codec=codec)
        for i in range(3)
    ]
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(b"".join(batches))
    for i in (0, 2):
        garble_records(i)(directory / f"{0:020d}.log")
    dataset = segmentlog.dataset(directory)
    condition = (TIME > at(0)) & (TIME < at(2))

    assert [1] == dataset.to_table(filter=condition)["offset"].to_pylist()
    for wanted in (TIME >= at(0), OFFSET >= 0):
        with pytest.raises(segmentlog.CorruptLogError):
            dataset.to_table(filter=wanted)
    between = (pl.col("timestamp") > pl.lit(EPOCH)) & (pl.col("timestamp") < pl.lit(EPOCH + TWO))
    assert [1] == scan_log(directory).filter(between).collect()["offset"].to_list()


def test_many_small_partitions_take_a_few_files_and_one_simplified_filter_each(
    write_log: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count by time opens no index. A filter by time is first compared as a number."""
    n_partitions, n_segments = 6, 5
    for partition in range(n_partitions):
        bases = range(0, 4 * n_segments, 4)
        segments = [[(i, 1000 * i) for i in range(base, base + 4)] for base in bases]
        write_log(segments, f"t-{partition}")
    real, opened, asked = os.open, Counter[str](), 0
    may_match = bounds._may_match

    def opening(path: str, *how: int) -> int:
        opened[Path(path).suffix] += 1
        return real(path, *how)

    def asking(*args: Any) -> list[int]:
        nonlocal asked
        asked += 1
        return may_match(*args)

    never = pc.field("timestamp") > pa.scalar(10**15, pa.timestamp("us", "UTC"))
    for is_counted_by_time in (False, True):
        logs = segmentlog.dataset(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr("os.open", opening)
            patch.setattr(bounds, "_may_match", asking)
            if is_counted_by_time:
                assert n_partitions == logs.count_by_time(timedelta(minutes=1)).num_rows
            else:
                assert 0 == logs.count_rows(never)
        of_indexes = opened[".index"] + opened[".timeindex"]
        assert n_partitions * n_segments == opened[".log"]
        assert of_indexes == (0 if is_counted_by_time else 2 * n_partitions * n_segments)
        opened.clear()
    bisections = 2 * 65  # for the bounds of times
    assert asked <= bisections + 2 + n_partitions
