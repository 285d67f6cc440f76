"""`segmentlog.polars.scan_log`."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from polars.testing import assert_frame_equal

import segmentlog
from segmentlog.polars import scan_log

PREDICATES = [
    pl.col("topic") == "orders",
    (pl.col("offset") > 100) & (pl.col("partition") == 1),
    pl.col("topic").is_in(["customers", "payments"]) | (pl.col("offset") == 5),
    pl.col("value").bin.starts_with(b'{"paid"'),
    pl.col("key").is_null(),
    pl.col("timestamp").dt.hour() == 12,
    pl.col("timestamp") > pl.datetime(2025, 10, 11, time_zone="UTC"),
    pl.col("timestamp") < datetime(2025, 10, 10, tzinfo=UTC),
    pl.col("timestamp").is_between(
        datetime(2025, 10, 10, tzinfo=UTC), datetime(2025, 10, 10, 6, 0, 0, 1, tzinfo=UTC)
    ),
    pl.col("timestamp") == datetime(2025, 10, 9, 8, 58, 8, tzinfo=UTC),
    pl.col("timestamp") > datetime(2100, 1, 1, tzinfo=UTC),
    pl.col("offset") % 7 == 3,
    pl.lit(False),
]


@pytest.mark.parametrize("predicate", PREDICATES, ids=str)
@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_predicates_keep_the_rows_that_polars_keeps(
    example_data: str, predicate: pl.Expr, engine: Any
) -> None:
    """Arrow knows some of the predicates. The queries have few columns, or all."""
    rows = pl.DataFrame(segmentlog.dataset(example_data).to_table())
    found = scan_log(example_data).filter(predicate)

    assert_frame_equal(rows.filter(predicate), found.collect(engine=engine))
    assert_frame_equal(
        rows.filter(predicate).select("value", "offset"),
        found.select("value", "offset").collect(engine=engine),
    )


def test_rows_of_other_times_are_not_made_rows_of_polars(
    example_data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch with matching and other rows is filtered first.

    A batch without matching rows is skipped.
    """
    first, end = datetime(2025, 10, 9, 12, tzinfo=UTC), datetime(2025, 10, 10, tzinfo=UTC)
    made, frame = [], pl.DataFrame

    def make(table: pa.Table) -> pl.DataFrame:
        made.append(pc.min_max(table["timestamp"]).as_py())
        return frame(table)

    rows = scan_log(example_data).filter(pl.col("timestamp").is_between(first, end, closed="left"))
    with monkeypatch.context() as patched:
        patched.setattr(pl, "DataFrame", make)
        found = rows.collect()

    assert found.height > 0
    assert {"min": None, "max": None} not in made
    assert first <= min(each["min"] for each in made)
    assert max(each["max"] for each in made) < end


def test_limits_and_options_reach_the_reader(
    write_log: Callable[..., Path], opening: Callable, tmp_path: Path
) -> None:
    """The first rows are those of the first log. The frame can be read again."""
    for name in ("a-0", "a-1", "b-0"):
        write_log([[(i, i) for i in range(10)]], name)
    frame = scan_log(tmp_path, topics=["a", "b"])
    frame.collect()

    assert [*range(10), 0, 1] == frame.head(12).collect()["offset"].to_list()
    assert 30 == frame.select(pl.len()).collect().item()
    with opening() as opened:
        frame.filter(pl.col("topic") == "b", pl.col("offset") < 5).collect()
    assert ["b-0/0"] == opened
    with pytest.raises(segmentlog.UnknownTopicOrPartitionError):
        scan_log(tmp_path, topics="c")


def test_a_filter_after_a_limit_sees_the_first_rows_alone(
    write_log: Callable[..., Path], tmp_path: Path
) -> None:
    """Slices and batches without matching rows count towards the limit."""
    for name in ("a-0", "a-1", "b-0"):
        write_log([[(i, i) for i in range(5)], [(i, 1000 * i) for i in range(5, 10)]], name)
    rows = scan_log(tmp_path).collect()
    late = pl.col("timestamp") >= datetime(1970, 1, 1, 0, 0, 6, tzinfo=UTC)

    for predicate in (late, pl.col("topic") == "b", pl.col("offset") > 7):
        for limit in (1, 7, 12, 25):
            found = scan_log(tmp_path).head(limit).filter(predicate).collect()
            assert_frame_equal(rows.head(limit).filter(predicate), found)


def test_polars_loads_with_the_first_call() -> None:
    """Neither `segmentlog` nor `segmentlog.polars` imports Polars."""
    code = "import sys, segmentlog.polars; print('polars' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"False"
