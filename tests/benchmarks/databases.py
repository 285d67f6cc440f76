"""Equal rows in a log, in databases and in tables of files: append, scan, seek, bytes on disk.

Each store keeps its default settings, but for syncs: an append that has returned survives a power
cut, except in Delta, which never syncs.  A scan adds up the sizes of all values, in SQL.
PostgreSQL takes part if ``pip install pgserver 'psycopg[binary]'`` was run: the wheel carries a
server, but not for every Python.
"""

import importlib.util
import os
import random
import shutil
import sqlite3
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

import segmentlog

__all__ = ["measure"]

_BATCH_ROWS = 50_000
_SMALL_ROWS, _N_SMALL = 100, 30
_N_SEEKS = 30
_BEGIN_MS = 1_700_000_000_000
_CELLS = (
    "bulk append, 1,000 rows/s",
    "append of 100 rows, ms",
    "scan, M rows/s",
    "row by offset, ms",
    "96 rows by time, ms",
    "bytes a row",
)
_SUM = "select count(*), sum(octet_length(value)) from rows"


def rows(start: int, n_rows: int) -> pa.Table:
    """Rows of about 110 bytes, eight in a millisecond; half of a value is random."""
    draw = np.random.default_rng(start)
    noise = draw.bytes(40 * n_rows)
    text = b'{"customer":"name","state":"open","n":"customer'
    offsets = np.arange(start, start + n_rows)
    return pa.table(
        {
            "offset": offsets,
            "timestamp": _BEGIN_MS + offsets // 8,
            "key": pa.array([b"key-%06d" % (i % 1_000_000) for i in offsets], pa.binary()),
            "value": pa.array(
                [text + noise[40 * i : 40 * i + 40] for i in range(n_rows)], pa.binary()
            ),
        }
    )


class Store(ABC):
    """A store of rows.

    Parameters
    ----------
    path : a new directory.
    """

    name: ClassVar[str]

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def append(self, table: pa.Table) -> None:
        """Append rows durably."""

    @abstractmethod
    def scan(self) -> tuple[int, ...]:
        """Number of rows, and bytes of all values."""

    @abstractmethod
    def at_offset(self, offset: int) -> int:
        """Offset of the row that has this offset."""

    @abstractmethod
    def between(self, start_ms: int, end_ms: int) -> int:
        """Number of rows of these times."""

    def settle(self) -> None:  # noqa: B027 - most stores do nothing later
        """Do what the store would do some time after an append."""

    def close(self) -> None:  # noqa: B027
        """End it."""

    def n_bytes(self) -> int:
        """Bytes on the disk."""
        return sum(each.stat().st_blocks * 512 for each in self.path.rglob("*") if each.is_file())


def _sum_of(dataset: ds.Dataset) -> tuple[int, ...]:
    """The scan of a dataset, by DuckDB."""
    with duckdb.connect() as connection:
        connection.register("rows", dataset)
        return connection.execute(_SUM).fetchone()


class Segmentlog(Store):
    """A topic of one partition."""

    name = "segmentlog"
    codec = segmentlog.Codec.NONE

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        config = segmentlog.ProducerConfig(codec=self.codec, use_timestamps=True)
        self._writer = segmentlog.open_writer(path, "t", config=config)

    def append(self, table: pa.Table) -> None:
        """See `Store`."""
        times = table["timestamp"].cast(pa.timestamp("ms", "UTC"))
        self._writer.append(
            pa.table({"key": table["key"], "value": table["value"], "timestamp": times})
        )
        self._writer.flush()

    def scan(self) -> tuple[int, ...]:
        """See `Store`."""
        return _sum_of(segmentlog.dataset(self.path))

    def at_offset(self, offset: int) -> int:
        """See `Store`."""
        found = self._log().scan(offset, offset + 1).read_all()
        return found["offset"][0].as_py()

    def between(self, start_ms: int, end_ms: int) -> int:
        """See `Store`."""
        log = self._log()
        start = log.offset_for_timestamp(start_ms).offset
        rows = log.scan(start, start + 8 * (end_ms - start_ms) + 8).read_all()
        times = rows["timestamp"].cast(pa.int64())
        return pc.sum(
            pc.and_(pc.greater_equal(times, start_ms * 1000), pc.less(times, end_ms * 1000))
        ).as_py()

    def _log(self) -> segmentlog.Log:
        return segmentlog.open_log_dir(self.path).log("t", 0)

    def close(self) -> None:
        """See `Store`."""
        self._writer.close()


class SegmentlogZstd(Segmentlog):
    """A compressed topic."""

    name = "segmentlog, zstd"
    codec = segmentlog.Codec.ZSTD


class Sqlite(Store):
    """A table with an index of times; the offset is the number of the row."""

    name = "SQLite"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._open = sqlite3.connect(path / "rows.db")
        self._open.executescript(
            "pragma journal_mode=wal; pragma synchronous=full;"
            "create table rows (offset integer primary key, timestamp integer, key blob,"
            " value blob); create index times on rows (timestamp)"
        )

    def append(self, table: pa.Table) -> None:
        """See `Store`."""
        columns = (column.to_pylist() for column in table.columns)
        self._open.executemany("insert into rows values (?, ?, ?, ?)", zip(*columns, strict=True))
        self._open.commit()

    def scan(self) -> tuple[int, ...]:
        """See `Store`."""
        return self._one("select count(*), sum(length(value)) from rows")

    def at_offset(self, offset: int) -> int:
        """See `Store`."""
        return self._one("select offset, key, value from rows where offset = ?", offset)[0]

    def between(self, start_ms: int, end_ms: int) -> int:
        """See `Store`."""
        wanted = "timestamp >= ? and timestamp < ?"
        found = self._open.execute(f"select * from rows where {wanted}", (start_ms, end_ms))
        return len(found.fetchall())

    def _one(self, query: str, *arguments: int) -> tuple[int, ...]:
        return self._open.execute(query, arguments).fetchone()

    def settle(self) -> None:
        """See `Store`."""
        self._open.execute("pragma wal_checkpoint(truncate)")

    def close(self) -> None:
        """See `Store`."""
        self._open.close()


class DuckDb(Store):
    """A table with a primary key."""

    name = "DuckDB"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._open = duckdb.connect(str(path / "rows.duckdb"))
        self._open.execute(
            'create table rows ("offset" bigint primary key, timestamp bigint, key blob,'
            " value blob)"
        )

    def append(self, table: pa.Table) -> None:
        """See `Store`."""
        self._open.register("new_rows", table)
        self._open.execute("insert into rows select * from new_rows")
        self._open.unregister("new_rows")

    def scan(self) -> tuple[int, ...]:
        """See `Store`."""
        return self._open.execute(_SUM).fetchone()

    def at_offset(self, offset: int) -> int:
        """See `Store`."""
        query = 'select "offset", key, value from rows where "offset" = ?'
        return self._open.execute(query, [offset]).fetchone()[0]

    def between(self, start_ms: int, end_ms: int) -> int:
        """See `Store`."""
        query = "select * from rows where timestamp >= ? and timestamp < ?"
        return len(self._open.execute(query, [start_ms, end_ms]).fetchall())

    def settle(self) -> None:
        """See `Store`."""
        self._open.execute("checkpoint")

    def close(self) -> None:
        """See `Store`."""
        self._open.close()


class PostgreSql(Store):
    """A table with a primary key and an index of times, in its own server."""

    name = "PostgreSQL"

    def __init__(self, path: Path) -> None:
        import pgserver
        import psycopg

        super().__init__(path)
        self._server = pgserver.get_server(path / "data", cleanup_mode="delete")
        self._open = psycopg.connect(self._server.get_uri(), autocommit=True)
        self._open.execute(
            'create table rows ("offset" bigint primary key, timestamp bigint, key bytea,'
            " value bytea)"
        )
        self._open.execute("create index times on rows (timestamp)")

    def append(self, table: pa.Table) -> None:
        """See `Store`."""
        columns = (column.to_pylist() for column in table.columns)
        with self._open.cursor() as cursor, cursor.copy("copy rows from stdin") as copy:
            for row in zip(*columns, strict=True):
                copy.write_row(row)

    def scan(self) -> tuple[int, ...]:
        """See `Store`."""
        return self._one("select count(*), sum(length(value)) from rows")

    def at_offset(self, offset: int) -> int:
        """See `Store`."""
        return self._one('select "offset", key, value from rows where "offset" = %s', offset)[0]

    def between(self, start_ms: int, end_ms: int) -> int:
        """See `Store`."""
        query = "select * from rows where timestamp >= %s and timestamp < %s"
        return len(self._open.execute(query, (start_ms, end_ms)).fetchall())

    def _one(self, query: str, *arguments: int) -> tuple[int, ...]:
        return self._open.execute(query, arguments).fetchone()

    def settle(self) -> None:
        """See `Store`."""
        self._open.execute("vacuum analyze rows")

    def close(self) -> None:
        """See `Store`."""
        self._open.close()
        self._server.cleanup()

    def n_bytes(self) -> int:
        """See `Store`; without the logs and catalogs of the server."""
        return int(self._one("select pg_total_relation_size('rows')")[0])


class Parquet(Store):
    """A directory with a file for each append."""

    name = "Parquet files"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._n_files = 0

    def append(self, table: pa.Table) -> None:
        """See `Store`."""
        path = self.path / f"{self._n_files:06d}.parquet"
        pq.write_table(table, path)
        for each in (path, self.path):
            descriptor = os.open(each, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        self._n_files += 1

    def _rows(self) -> ds.Dataset:
        return ds.dataset(self.path, format="parquet")

    def scan(self) -> tuple[int, ...]:
        """See `Store`."""
        return _sum_of(self._rows())

    def at_offset(self, offset: int) -> int:
        """See `Store`."""
        found = self._rows().to_table(filter=ds.field("offset") == offset)
        return found["offset"][0].as_py()

    def between(self, start_ms: int, end_ms: int) -> int:
        """See `Store`."""
        time_of = ds.field("timestamp")
        return self._rows().to_table(filter=(time_of >= start_ms) & (time_of < end_ms)).num_rows


class Delta(Parquet):
    """A Delta table; its files are not merged."""

    name = "Delta"

    def append(self, table: pa.Table) -> None:
        """See `Store`."""
        write_deltalake(str(self.path), table, mode="append")

    def _rows(self) -> ds.Dataset:
        return DeltaTable(str(self.path)).to_pyarrow_dataset()


def _stores() -> Iterator[type[Store]]:
    yield from (Segmentlog, SegmentlogZstd, Sqlite, DuckDb)
    if all(map(importlib.util.find_spec, ("pgserver", "psycopg"))):
        yield PostgreSql
    yield from (Parquet, Delta)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _measured(kind: type[Store], path: Path, n_rows: int) -> list[str]:
    """The cells of a store."""
    path.mkdir()
    store, draw = kind(path), random.Random(1)
    batches = (rows(at, min(_BATCH_ROWS, n_rows - at)) for at in range(0, n_rows, _BATCH_ROWS))
    bulk = sum(_seconds(partial(store.append, each)) for each in batches)
    end = n_rows + _N_SMALL * _SMALL_ROWS
    batches = (rows(at, _SMALL_ROWS) for at in range(n_rows, end, _SMALL_ROWS))
    small = [_seconds(partial(store.append, each)) for each in batches]
    store.settle()
    n_found, n_bytes = map(int, store.scan())
    assert (end, 87 * end) == (n_found, n_bytes), (kind.name, n_found, n_bytes)
    scans = [_seconds(store.scan) for _ in range(3)]
    seeks, windows = [], []
    for offset in (draw.randrange(end) for _ in range(_N_SEEKS)):
        start_ms = _BEGIN_MS + min(offset, end - 200) // 8
        assert offset == store.at_offset(offset)
        assert store.between(start_ms, start_ms + 12) == 96
        seeks.append(_seconds(partial(store.at_offset, offset)))
        windows.append(_seconds(partial(store.between, start_ms, start_ms + 12)))
    size = store.n_bytes() / end
    store.close()
    shutil.rmtree(path)
    milliseconds = [f"{statistics.median(each) * 1e3:.2g}" for each in (small, seeks, windows)]
    return [
        f"{n_rows / bulk / 1e3:,.0f}",
        milliseconds[0],
        f"{end / statistics.median(scans) / 1e6:.1f}",
        *milliseconds[1:],
        f"{size:.0f}",
    ]


def measure(scratch: Path, sizes: Sequence[int]) -> str:
    """The table, as Markdown.

    Parameters
    ----------
    scratch : a directory on the disk that is measured.
    sizes : numbers of rows.
    """
    lines = [
        f"| rows | store | {' | '.join(_CELLS)} |",
        f"|---|---|{'---|' * len(_CELLS)}",
    ]
    for n_rows in sizes:
        for number, kind in enumerate(_stores()):
            cells = _measured(kind, scratch / f"{n_rows}-{number}", n_rows)
            lines.append(f"| {n_rows:,} | {kind.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
