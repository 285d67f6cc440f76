"""``segmentlog.dataset``: queries of DuckDB and Polars, threads, and the order of time."""

import ctypes
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import numba
import numpy as np
import polars as pl
import pyarrow as pa
from measure import Digest, Result, Row, compare
from planning import run_program
from query_data import N_PARTITIONS, TOPIC, QueryData, median_window

import segmentlog
from segmentlog.arrow_dataset.log_scanner import MERGED_BYTES, merge_by_timestamp
from segmentlog.format.kernels import layout
from segmentlog.model import Codec
from segmentlog.polars import scan_log

__all__ = ["counting", "duckdb_and_polars", "threads", "timeline"]

#: Digests: rows, the sum of their offsets, and the bytes of their values.
_DUCKDB = 'select count(*), sum("offset"), sum(octet_length(value)) from logs'
_POLARS = [pl.len(), pl.col("offset").sum(), pl.col("value").bin.size().sum()]
_BOUNDS = {
    "all rows": "the copy of all bytes out of the page cache, and their checksums; the query over "
    "Parquet reads only two columns",
    "1 % by time": "reading whole slices, and all slices after the window, because timestamps "
    "need not rise",
}


def _window(n_records: int) -> tuple[datetime, datetime]:
    start, end = median_window(n_records)
    return datetime.fromtimestamp(start / 1000, UTC), datetime.fromtimestamp(end / 1000, UTC)


def _by_duckdb(relation: Callable[[], object], where: str) -> Callable[[], Digest]:
    def run() -> Digest:
        with duckdb.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            source = relation()
            if isinstance(source, list):
                connection.read_parquet(source).create_view("logs")
            else:
                connection.register("logs", source)
            found = connection.execute(f"{_DUCKDB} {where}").fetchone()
        return tuple(map(int, found))

    return run


def _by_polars(frame: Callable[[], pl.LazyFrame], where: pl.Expr | None) -> Callable[[], Digest]:
    def run() -> Digest:
        rows = frame() if where is None else frame().filter(where)
        return tuple(map(int, rows.select(_POLARS).collect().row(0)))

    return run


def duckdb_and_polars(data: QueryData, rounds: int) -> list[Row]:
    """Queries over Parquet and over logs, whose files are opened in every round."""
    logs, files = data.small, list(data.parquet)
    start, end = _window(data.n_small)
    sql = {"all rows": "", "1 % by time": f"where timestamp >= '{start}' and timestamp < '{end}'"}
    time = pl.col("timestamp")
    expressions = {"all rows": None, "1 % by time": (time >= start) & (time < end)}
    rows = []
    for what in sql:
        results = compare(
            {
                "DuckDB": _by_duckdb(lambda: segmentlog.dataset(logs), sql[what]),
                "DuckDB, Parquet": _by_duckdb(lambda: files, sql[what]),
                "Polars": _by_polars(lambda: scan_log(logs), expressions[what]),
                "Polars, Parquet": _by_polars(lambda: pl.scan_parquet(files), expressions[what]),
            },
            rounds,
        )
        rows += [_row(results, name, what, data.n_small) for name in ("DuckDB", "Polars")]
    return rows


def _row(results: dict[str, Result], name: str, what: str, n_records: int) -> Row:
    ours, theirs = results[name], results[f"{name}, Parquet"]
    detail = (
        f"{ours.median:.3f} against {theirs.median:.3f} s; {ours.digest[0]:,} of {n_records:,} "
        f"rows; ±{ours.spread:.0%}, ±{theirs.spread:.0%}; bound by {_BOUNDS[what]}"
    )
    work = f"{name}: {what}, of `segmentlog.dataset`"
    goal = "≥ 0.2" if what == "all rows" else "≥ 0.5"
    against = "the same query over Parquet"
    return Row(work, against, goal, f"{theirs.median / ours.median:.2f}", detail)


def _scan(directory: Path, **how: Any) -> Callable[[], Digest]:
    return _scan_of(segmentlog.dataset(directory), **how)


def _scan_of(logs: Any, **how: Any) -> Callable[[], Digest]:
    return lambda: (sum(batch.num_rows for batch in logs.scanner(**how).to_batches()),)


def _count(directory: str, partitions: tuple[int, ...]) -> int:
    """Rows of some partitions, each in one slice; it runs in a separate process or thread."""
    logs = segmentlog.open_log_dir(directory)
    scans = (logs.log(TOPIC, each).scan(use_threads=False) for each in partitions)
    return sum(batch.num_rows for scan in scans for batch in scan)


@cache
def _dataset(directory: str) -> Any:
    return segmentlog.dataset(directory)


def _count_all(directory: str, *, use_threads: bool) -> Digest:
    """Rows of a dataset, which this process has opened once."""
    return _scan_of(_dataset(directory), use_threads=use_threads)()


def _count_apart(directory: str, halves: Sequence[tuple[int, ...]]) -> Digest:
    """Rows of some partitions by each of some threads, which hand over no rows."""
    with ThreadPoolExecutor(len(halves)) as apart:
        return (sum(apart.map(_count, [directory] * len(halves), halves)),)


def threads(data: QueryData, rounds: int) -> list[Row]:
    """Slices side by side against one after the other.

    A read of 4 million rows takes 70 ms.  Ratios of such short reads differed too much from run
    to run: two threads came to 0.73 to 0.90 of two processes.
    """
    work = "all columns of a dataset"
    return [
        *_threads(data.longer(Codec.NONE), 5 * rounds, work, "≥ 1.4"),
        *_threads(data.longer(Codec.ZSTD), 5 * rounds, f"{work} of zstd", "≥ 1.6"),
    ]


_SCAN = """
import segmentlog
dataset = segmentlog.dataset(sys.argv[1])
before = peak()
print(sum(batch.num_rows for batch in dataset.to_batches()), peak() - before)
"""


def _processes(count: int) -> ProcessPoolExecutor:
    """New processes for contestants; this one's many objects slow its garbage collector down."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))


def _threads(directory: Path, rounds: int, work: str, goal: str) -> list[Row]:
    path = str(directory)
    halves = [tuple(range(each, N_PARTITIONS, 2)) for each in range(2)]
    with _processes(1) as alone, _processes(2) as processes:
        contestants: dict[str, Callable[[], Digest]] = {
            "threads": lambda: alone.submit(_count_all, path, use_threads=True).result(),
            "one": lambda: alone.submit(_count_all, path, use_threads=False).result(),
            "processes": lambda: (sum(processes.map(_count, [path] * 2, halves)),),
            "apart": lambda: alone.submit(_count_apart, path, halves).result(),
        }
        results = compare(contestants, rounds)
    n_rows = results["one"].digest[0]
    rates = {name: n_rows / each.median / 1e6 for name, each in results.items()}
    many, one, two = (results[name] for name in ("threads", "one", "processes"))
    memory = max(run_program(_SCAN, os.environ, path)[1] for _ in range(3))
    work = f"{work}, a thread for each core"
    halved = "two processes, each with half of the partitions"
    against_one = (
        f"{rates['threads']:.0f} against {rates['one']:.0f} M rows/s; {n_rows:,} rows; "
        f"±{many.spread:.0%}, ±{one.spread:.0%}; {memory:.0f} MB at most; bound by the second "
        f"core of the machine: two processes reach {one.median / two.median:.2f}"
    )
    against_two = (
        f"{rates['threads']:.0f} against {rates['processes']:.0f} M rows/s; {n_rows:,} rows; "
        f"±{many.spread:.0%}, ±{two.spread:.0%}; bound by the beginning of each slice, where "
        "threads take turns, and by memory for rows that wait for their turn: two threads that "
        "read the same halves, and drop the rows, reach "
        f"{two.median / results['apart'].median:.2f}"
    )
    return [
        Row(
            work, "one thread", f"{goal}, < 300 MB", f"{one.median / many.median:.2f}", against_one
        ),
        Row(work, halved, "≥ 0.85", f"{two.median / many.median:.2f}", against_two),
    ]


@cache
def _walk() -> Callable[[int, int], int]:
    """A walk over a file, of which a call of the system reads each header, and nothing else.

    It takes the descriptor and the size of a file, and returns the number of batches.
    """
    pread = ctypes.CDLL(None).pread
    pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
    pread.restype = ctypes.c_long

    @numba.njit  # noqa: TID251 - Python alone takes longer
    def walk(descriptor: int, n_bytes: int) -> int:
        header = np.empty(layout.HEADER_BYTES, np.uint8)
        position = n_batches = 0
        while position < n_bytes:
            pread(descriptor, header.ctypes, len(header), position)
            length = 0
            for byte in header[layout.BATCH_LENGTH_AT : layout.LEADER_EPOCH_AT]:
                length = length << 8 | byte
            position += layout.LOG_OVERHEAD + length
            n_batches += 1
        return n_batches

    walked: Callable[[int, int], int] = walk
    return walked


def counting(data: QueryData, rounds: int) -> list[Row]:
    """All rows counted by the headers of batches, and by a read of all bytes, by one thread."""
    small = (data.small, "16 KB")
    others = ((data.of_batches(size << 10), f"{size} KB") for size in (110, 1000))
    return [
        *_counting(*small, "the page cache", "≥ 10", rounds),
        *_counting(*small, "a disk", "≥ 1", rounds),
        *(
            row
            for directory, size in others
            for row in _counting(directory, size, "the page cache", "≥ 10", rounds)
        ),
    ]


def _counting(directory: Path, size: str, place: str, goal: str, rounds: int) -> list[Row]:
    paths = sorted(directory.glob("*/*.log"))
    buffer = bytearray(1 << 20)
    n_rows = segmentlog.dataset(directory).count_rows()
    n_batches = 0

    def count(*, check_crcs: bool) -> Callable[[], Digest]:
        logs = segmentlog.dataset(directory, check_crcs=check_crcs)
        return lambda: (logs.count_rows(use_threads=False),)

    def copied() -> Digest:
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        return (n_rows,)

    def walked() -> Digest:
        nonlocal n_batches
        n_batches = 0
        for path in paths:
            with path.open("rb", buffering=0) as file:
                n_batches += _walk()(file.fileno(), path.stat().st_size)
        return (n_rows,)

    def evict() -> None:
        for path in paths:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    contestants = {
        "headers": count(check_crcs=False),
        "all": count(check_crcs=True),
        "copied": copied,
        "walked": walked,
    }
    results = compare(contestants, rounds, evict if place == "a disk" else lambda: None)
    ours, theirs, read, walk = (results[name] for name in contestants)
    n_bytes = sum(path.stat().st_size for path in paths)
    detail = (
        f"{1000 * ours.median:.1f} against {1000 * theirs.median:.0f} ms; {n_rows:,} rows, "
        f"{n_bytes / 1e6:.0f} MB; ±{ours.spread:.0%}, ±{theirs.spread:.0%}; bound by a call of "
        f"the system for each header: {n_batches:,} of them alone take "
        f"{1000 * walk.median:.1f} ms; to copy all bytes takes {1000 * read.median:.0f} ms"
    )
    work = f"count of all rows by headers, batches of {size}, from {place}, one thread"
    against = "a count that reads all bytes, and checks them"
    return [Row(work, against, goal, f"{theirs.median / ours.median:.1f}", detail)]


def timeline(data: QueryData, rounds: int) -> list[Row]:
    """All partitions merged by time against one after the other, both by one thread."""
    directory = segmentlog.open_log_dir(data.small)
    in_memory = [
        [pa.Table.from_batches([each]) for each in directory.log(TOPIC, number).scan()]
        for number in range(N_PARTITIONS)
    ]

    def merged() -> Digest:
        """Rows that are read already."""
        batches = merge_by_timestamp(in_memory, MERGED_BYTES)
        return (sum(batch.num_rows for batch in batches),)

    results = compare(
        {
            "time": _scan(data.small, order="timestamp"),
            "offset": _scan(data.small, use_threads=False),
            "merge": merged,
        },
        rounds,
    )
    ours, theirs, merge = (results[name] for name in ("time", "offset", "merge"))
    detail = (
        f"{ours.digest[0] / ours.median / 1e6:.1f} against "
        f"{theirs.digest[0] / theirs.median / 1e6:.0f} M rows/s; {ours.digest[0]:,} rows; "
        f"±{ours.spread:.0%}, ±{theirs.spread:.0%}; bound by copies: every row goes to its place. "
        f"A merge of rows that are in memory takes {merge.median / ours.median:.0%} of the time, "
        f"so a read that cost nothing else would come to "
        f"{theirs.median / (theirs.median + merge.median):.2f}"
    )
    work = '`order="timestamp"`: four partitions merged by time'
    against = "the order of offsets, one thread"
    return [Row(work, against, "≥ 0.35", f"{theirs.median / ours.median:.2f}", detail)]
