"""Query a log directory with DuckDB and with Polars, without Spark and Java.

Run with ``pip install . duckdb 'polars[pyarrow]' && python examples/duckdb_and_polars.py``.  Both
read the columns and the partitions that a query needs, and no others.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars as pl

import segmentlog
from segmentlog.polars import scan_log

DATA = str(Path(__file__).parent / "data")


def with_duckdb(directory: str) -> None:
    """A dataset is a relation, for any number of queries."""
    database = duckdb.connect()
    database.register("logs", segmentlog.dataset(directory, topics=["orders"]))
    database.sql(
        """
        select date_trunc('day', timestamp at time zone 'UTC')::date as day, count(*) as orders,
               sum((decode(value)->>'cents')::int) / 100 as total
        from logs group by day order by day
        """
    ).show()


def with_polars(directory: str) -> None:
    """A lazy frame; batches that are older than the filter asks for are not decoded."""
    since = datetime(2025, 10, 11, tzinfo=UTC)
    recent = scan_log(directory, topics="orders").filter(pl.col("timestamp") >= since)
    orders = recent.select(
        pl.col("value")
        .cast(pl.String)
        .str.json_decode(pl.Struct({"customer": pl.String, "cents": pl.Int64}))
        .struct.unnest(),
    )
    print(
        orders.group_by("customer")
        .agg(pl.len().alias("orders"), (pl.col("cents").sum() / 100).alias("total"))
        .sort("total", descending=True)
        .head(5)
        .collect()
    )


def main(directory: str = DATA) -> None:
    """The days by DuckDB, the best customers since a time by Polars."""
    with_duckdb(directory)
    with_polars(directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
