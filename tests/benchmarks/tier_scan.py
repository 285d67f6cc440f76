"""A scan of a tier in an S3 server, against a scan of the log's files in the same server."""

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from aiven_plugin import AivenPlugin, KeyPair, new_id
from measure import Digest, Row, compare
from query_data import QueryData
from s3_here import BUCKET, S3Server

import segmentlog

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
                    "the log's files in S3Proxy", "≥ 0.7",
                    f"{files.median / tier.median:.2f}", detail,
                )
            )  # fmt: skip
    return rows
