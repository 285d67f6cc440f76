"""Tables of groups: the fold of millions of commits, and the lag of a large directory."""

import shutil
import struct
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from measure import Digest, Row, compare
from query_data import QueryData

import segmentlog

__all__ = ["fold", "lag"]

_N_GROUPS = 10_000


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _commits(directory: Path, n_commits: int, n_keys: int) -> None:
    """Write commits of random keys, as a coordinator of Kafka 3.9 does, in one partition."""
    keys = [
        b"\0\1"
        + _text(f"group-{i % _N_GROUPS:05d}")
        + _text("orders")
        + struct.pack(">i", i // _N_GROUPS)
        for i in range(n_keys)
    ]
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

        def last_of_each_key() -> Digest:
            columns = ["key", "value", "offset", "timestamp"]
            records = pa.Table.from_batches(log.scan(columns=columns))
            return (records.group_by("key").aggregate([("offset", "max")]).num_rows,)

        results = compare({"table": table, "hash": last_of_each_key}, rounds)
    seconds, of_hash = results["table"].median, results["hash"].median
    detail = (
        f"{seconds:.1f} s for {n_commits:,} commits of {n_keys:,} keys; bound by a hash table of "
        f"the keys: this one takes {of_hash:.1f} s"
    )
    against = "a scan, and the last offset of each key by Arrow's `group_by`"
    return [Row("offset commits to a table", against, "≥ 0.7", f"{of_hash / seconds:.2f}", detail)]


def _groups(directory: Path, n_groups: int, n_partitions: int) -> None:
    """Write empty groups that have each committed offsets of ten partitions of one topic."""
    groups = [f"group-{i:05d}" for i in range(n_groups)]
    empty = struct.pack(">h", 3) + _text("consumer") + struct.pack(">ihhqi", 5, -1, -1, 1000, 0)
    keys = [b"\0\2" + _text(group) for group in groups]
    values = [empty] * n_groups
    for i, group in enumerate(groups):
        for partition in range(i, i + 10):
            key = b"\0\1" + _text(group) + _text("orders")
            keys.append(key + struct.pack(">i", partition % n_partitions))
            values.append(struct.pack(">hqi", 3, i % 100, 5) + b"\0\0" + struct.pack(">q", 1000))
    records = pa.table(
        {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    )
    with segmentlog.open_writer(directory, "commits") as writer:
        writer.append(records)
    with segmentlog.open_writer(directory, "orders") as writer:
        writer.append(pa.table({"value": pa.array([bytes(100)] * 100, pa.binary())}))
    (directory / "commits-0").rename(directory / "__consumer_offsets-0")
    for partition in range(1, n_partitions):
        shutil.copytree(directory / "orders-0", directory / f"orders-{partition}")


def lag(data: QueryData, rounds: int) -> list[Row]:
    """The table ``consumer_lag`` of a directory of many groups and partitions."""
    size = 10_000 if data.n_small > 1_000_000 else 500
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        _groups(directory, size, size)

        def table() -> Digest:
            found = segmentlog.table(directory, "consumer_lag")
            return found.num_rows, pc.sum(found["lag"]).as_py()

        result = compare({"table": table}, rounds)["table"]
    detail = (
        f"{result.digest[0]:,} committed offsets; bound by the partitions: each is "
        "listed, and the end of its log is looked up"
    )
    work = f"`consumer_lag` of {size:,} groups and {size:,} partitions"
    return [Row(work, "the goal", "≤ 5 s", f"{result.median:.2f} s", detail)]
