"""Files that a query opens."""

from collections.abc import Callable

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest

import segmentlog

MINUTE = 60_000


@pytest.fixture
def dataset(write_log: Callable[..., object], tmp_path: object) -> pads.Dataset:
    """Two topics; one with segments of ten offsets, of which each is a minute's."""
    segments = [[(i, i * MINUTE) for i in range(base, base + 10)] for base in (0, 10, 20, 30)]
    write_log(segments, "a-0")
    write_log(segments, "a-1")
    write_log(segments, "b-0")
    return segmentlog.dataset(str(tmp_path))


def at(minute: int) -> pa.Scalar:
    """A time as Arrow has it."""
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
    dataset: pads.Dataset, opening: Callable, condition: pc.Expression, n_rows: int,
    logs: list[str],
) -> None:  # fmt: skip
    """Of the second query on: the first one cuts the slices, and looks up times."""
    dataset.count_rows(condition)
    with opening() as opened:
        assert n_rows == dataset.count_rows(condition)

    assert logs == opened


def test_only_partitions_in_range_are_cut(dataset: pads.Dataset, opening: Callable) -> None:
    """The first query plans, and needs the headers of no other partition."""
    with opening() as opened:
        assert 2 == dataset.count_rows((pc.field("topic") == "a") & (OFFSET == 15))

    assert {"a-0", "a-1"} == {each.split("/")[0] for each in opened}


def test_filters_of_duckdb_and_polars_narrow_too(dataset: pads.Dataset, opening: Callable) -> None:
    """As they write them: comparisons, lists, times."""
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
