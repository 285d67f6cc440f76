"""The fold of committed offsets, of which a busy ``__consumer_offsets`` has many millions."""

import struct
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from measure import Digest, Row, compare
from query_data import QueryData

import segmentlog

__all__ = ["fold"]

_N_GROUPS = 10_000


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _commits(directory: Path, n_commits: int, n_keys: int) -> None:
    """Write commits of random keys, as a coordinator of Kafka 3.9 does, in one partition."""
    keys = [
        b"\0\1" + _text(f"group-{i % _N_GROUPS:05d}") + _text("orders")
        + struct.pack(">i", i // _N_GROUPS)
        for i in range(n_keys)
    ]  # fmt: skip
    values = [
        struct.pack(">hqi", 3, i, 5) + b"\0\0" + struct.pack(">q", 1_700_000_000_000 + i)
        for i in range(1000)
    ]
    random = np.random.default_rng(1)
    with segmentlog.open_writer(directory, "commits") as writer:
        for begin in range(0, n_commits, 1_000_000):
            n_rows = min(1_000_000, n_commits - begin)
            chosen = pa.array(keys, pa.binary()).take(pa.array(random.integers(0, n_keys, n_rows)))
            given = pa.array(values, pa.binary()).take(pa.array(random.integers(0, 1000, n_rows)))
            writer.append(pa.table({"key": chosen, "value": given}))
    (directory / "commits-0").rename(directory / "__consumer_offsets-0")


def fold(data: QueryData, rounds: int) -> list[Row]:
    """Commits to the table ``group_offsets``, beside a scan of the columns that it needs."""
    n_commits = 10_000_000 if data.n_small > 1_000_000 else 200_000
    n_keys = n_commits // 20
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        _commits(directory, n_commits, n_keys)
        log = segmentlog.open_log_dir(directory).log("__consumer_offsets", 0)

        def table() -> Digest:
            return (segmentlog.table(directory, "group_offsets").num_rows,)

        def scan() -> Digest:
            columns = ["key", "value", "offset", "timestamp"]
            sum(batch.num_rows for batch in log.scan(columns=columns))
            return (n_keys,)  # each key was chosen at least once

        results = compare({"table": table, "scan": scan}, rounds)
    seconds, of_scan = results["table"].median, results["scan"].median
    detail = (
        f"{seconds:.1f} s for {n_commits:,} commits of {n_keys:,} keys, and {of_scan:.1f} s to "
        "scan them; bound by the hash table of keys"
    )
    return [
        Row("offset commits to a table", "a scan of them", "≥ 0.2", f"{of_scan / seconds:.2f}",
            detail)
    ]  # fmt: skip
