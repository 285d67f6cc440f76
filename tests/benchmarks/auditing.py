"""A table against its log: ``audit`` of rows in order, in no order, and of a hostile table."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import Digest, Row, compare
from planning import run_program

import segmentlog

__all__ = ["rows"]

_TOPIC = "audited"
_N_PARTITIONS = 4
_BLOCK = 1_000_000  # rows of a write, and of a row group
_AUDIT = """
before = peak()
import segmentlog
found = segmentlog.audit(sys.argv[1], None, sys.argv[2])
print(peak() - before, found.n_rows, found.count("missing"), found.count("duplicates"))
"""


def rows(scratch: Path, n_records: int, rounds: int) -> list[Row]:
    """The rows of the table about audits."""
    n_offsets = 5 * n_records
    logs = scratch / "logs"
    _write_log(logs, _N_PARTITIONS, n_offsets)
    draw = np.random.default_rng(1)
    numbers = np.arange(n_offsets, dtype=np.int64)
    moved = numbers + draw.integers(0, 100_000, n_offsets)
    per_partition = n_offsets // _N_PARTITIONS
    orders = {
        "in the order of offsets": numbers % per_partition * _N_PARTITIONS
        + numbers // per_partition,
        "whose rows are up to 100,000 places off": np.argsort(moved, kind="stable"),
        "in no order": draw.permutation(n_offsets),
    }
    found = []
    for name, order in orders.items():
        table = scratch / "table.parquet"
        _write_table(table, order % _N_PARTITIONS, order // _N_PARTITIONS)
        found.append(_speed(logs, table, name, n_offsets, rounds))
    return [*found, _memory(scratch, n_offsets)]


def _write_log(path: Path, n_partitions: int, n_offsets: int) -> None:
    """Records of 20 bytes, in turn for each partition."""
    with segmentlog.open_writer(path, _TOPIC, num_partitions=n_partitions) as writer:
        for start in range(0, n_offsets, _BLOCK):
            numbers = np.arange(start, min(start + _BLOCK, n_offsets))
            value = pa.repeat(pa.scalar(b"x" * 20), len(numbers))
            partition = pa.array((numbers % n_partitions).astype(np.int32))
            writer.append(pa.table({"value": value, "partition": partition}))


def _write_table(path: Path, partitions: np.ndarray, offsets: np.ndarray) -> None:
    columns = {"partition": partitions.astype(np.int32), "offset": offsets}
    pq.write_table(pa.table(columns), path, row_group_size=_BLOCK)


def _speed(logs: Path, table: Path, name: str, n_offsets: int, rounds: int) -> Row:
    def audited() -> Digest:
        found = segmentlog.audit(logs, _TOPIC, table)
        return found.n_rows, found.count("missing"), found.count("duplicates")

    def read() -> Digest:
        columns = pq.ParquetFile(table).iter_batches(columns=["partition", "offset"])
        return sum(each.num_rows for each in columns), 0, 0

    results = compare({"ours": audited, "theirs": read}, rounds)
    ours, theirs = results["ours"], results["theirs"]
    detail = (
        f"{n_offsets:,} offsets of {_N_PARTITIONS} partitions; ±{ours.spread:.0%}; bound by "
        f"reading the table, which alone has {n_offsets / theirs.median / 1e6:.0f} M rows/s, and "
        "by a bit for each row that is out of order"
    )
    figure = f"{n_offsets / ours.median / 1e6:.1f} M offsets/s"
    return Row(f"`segmentlog.audit` of a table {name}", "–", "≥ 20", figure, detail)


def _memory(scratch: Path, n_offsets: int) -> Row:
    """Gaps, duplicates and partitions without number, in no order, in a new interpreter."""
    n_partitions = 64
    logs, table = scratch / "many", scratch / "hostile.parquet"
    _write_log(logs, n_partitions, n_offsets)
    numbers = np.random.default_rng(2).integers(0, 2 * n_offsets, n_offsets)
    _write_table(table, numbers % n_partitions, numbers // n_partitions)
    most, *counts = run_program(_AUDIT, os.environ, str(logs), str(table))
    n_rows, n_missing, n_duplicates = map(int, counts)
    detail = (
        f"{n_rows:,} rows of {n_partitions} partitions in no order, {n_missing:,} offsets are "
        f"missing, {n_duplicates:,} are there several times; bound by imports, bitmaps of 64 MB, "
        "and the mapped pages of a temporary file"
    )
    return Row(
        "memory of an audit over the interpreter", "–", "< 400 MB", f"{most:.0f} MB", detail
    )
