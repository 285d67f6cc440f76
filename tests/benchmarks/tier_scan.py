"""A scan of a tier in an S3 server, against a scan of the log's files in the same server."""

import multiprocessing
import os
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pyarrow as pa
from aiven_plugin import AivenPlugin, KeyPair, new_id
from measure import Digest, Row, compare
from query_data import QueryData
from store_servers import BUCKET, S3Server

import segmentlog
from segmentlog.model import LogSlice
from segmentlog.reads import scan_slice

__all__ = ["scan"]

_CHUNK_BYTES = 4 << 20  # the plugin's default

_TIERS = {"as it is": (False, False), "zstd and AES-256-GCM": (True, True)}


def _reads(*path: str, **options: Any) -> Callable[[], Digest]:
    def run() -> Digest:
        n_rows = n_bytes = 0
        log = segmentlog.open_log_dir(*path, **options).log("tiered", 0)
        for batch in log.scan():
            n_rows += batch.num_rows
            n_bytes += batch["value"].nbytes
        return n_rows, n_bytes

    return run


def scan(data: QueryData, rounds: int) -> list[Row]:
    """A log of about 100 bytes a record, which S3Proxy holds in its memory."""
    scratch = data.directory("tier")
    rng = random.Random(1)
    values = [
        b'{"customer":"name","state":"open","n":' + rng.randbytes(60)
        for _ in range(data.n_small // 4)
    ]
    with segmentlog.open_writer(scratch / "log", "tiered") as writer:
        writer.append(pa.table({"value": values}))
    partition = scratch / "log" / "tiered-0"
    n_bytes = sum(each.stat().st_size for each in partition.glob("*.log"))
    keys = KeyPair(scratch)
    rows = []
    with S3Server() as server:

        def url(key: str) -> str:
            endpoint = f"http://127.0.0.1:{server.port}"
            return f"s3://{BUCKET}/{key}?endpoint_override={endpoint}&anonymous=true"

        server.copy(scratch / "log", "log")
        for number, (name, (compresses, encrypts)) in enumerate(_TIERS.items()):
            root = scratch / f"tier-{number}"
            plugin = AivenPlugin(root, "", _CHUNK_BYTES, compresses, keys if encrypts else None)
            plugin.copy_partition(partition, new_id(), with_last=True)
            server.copy(root, root.name)
            options = {"remote_storage": url(root.name), "remote_storage_layout": "aiven"}
            if encrypts:
                options["remote_storage_key_file"] = str(keys.file)
            results = compare({"tier": _reads(**options), "files": _reads(url("log"))}, rounds)
            tier, files = results["tier"], results["files"]
            detail = (
                f"{n_bytes / tier.median / 1e6:.0f} against {n_bytes / files.median / 1e6:.0f} "
                f"MB/s; ±{tier.spread:.0%}, ±{files.spread:.0%}; bound by the server"
            )
            rows.append(
                Row(
                    f"scan a tier of Aiven's plugin in S3Proxy, {name}",
                    "the log's files in S3Proxy",
                    "≥ 0.7",
                    f"{files.median / tier.median:.2f}",
                    detail,
                )
            )
            if not encrypts:
                tasks = _in_tasks(rounds, (), options)
                plain = _in_tasks(rounds, (url("log"),), {})
                rows.append(
                    Row(
                        f"scan a tier of Aiven's plugin in S3Proxy, {name}: {_N_TASKS} tasks",
                        "one task",
                        "≥ 1.7",
                        f"{tasks:.2f}",
                        f"the same with the log's files in S3Proxy: {plain:.2f}; bound by the "
                        f"{os.cpu_count()} cores, which the server and the tasks share",
                    )
                )
    return rows


_N_TASKS = 4


def _in_tasks(rounds: int, path: tuple[str, ...], options: dict[str, Any]) -> float:
    """How many times as quickly several processes read a log as one of them does."""
    log = segmentlog.open_log_dir(*path, **options).log("tiered", 0)
    slices = log.slices(0, log.log_end_offset, log.size_bytes // (4 * _N_TASKS))
    with ProcessPoolExecutor(_N_TASKS, multiprocessing.get_context("spawn")) as pool:

        def read(parts: list[list[LogSlice]]) -> Digest:
            return (sum(pool.map(_read, parts)),)

        quarters = [slices[i::_N_TASKS] for i in range(_N_TASKS)]
        contestants = {"tasks": lambda: read(quarters), "one": lambda: read([slices])}
        results = compare(contestants, rounds)
    return results["one"].median / results["tasks"].median


def _read(slices: list[LogSlice]) -> int:
    """Rows of slices, in a process of the pool."""
    return sum(batch.num_rows for each in slices for batch in scan_slice(each))
