"""Arrow's memory of reads is in proportion to the rows that they return."""

import json
from pathlib import Path

import new_process
import numpy as np
import pyarrow as pa

import segmentlog
from segmentlog import Codec, ProducerConfig

MIB = 1 << 20
SHAPES: dict[str, tuple[int, int, bytes, Codec]] = {  # rows, keys, value, codec
    "small": (2_500_000, 1, b"v" * 4, Codec.NONE),
    "small, of many keys": (1_500_000, 300_000, b"v", Codec.NONE),
    "compressible": (150_000, 150_000, b"v" * 300, Codec.ZSTD),
    "wide": (4_000, 4_000, b"value" * 2_000, Codec.SNAPPY),
}
#: The rows and bytes of each read of each log, and the most bytes of Arrow's memory while it ran.
#: A pool of a read lives on, because caches may hold some of its memory.
MEASURED = """
import json, os, pyarrow as pa, segmentlog
pools = []
def measured(read):
    pools.append(pa.proxy_memory_pool(pa.system_memory_pool()))
    pa.set_memory_pool(pools[-1])
    n_rows, n_bytes = read()
    return n_rows, n_bytes, pools[-1].max_memory()
def size(table):
    return table.num_rows, table.nbytes
def drained(batches):
    return sum(each.num_rows for each in batches), 0
found = {}
for path in json.loads(os.environ["MEASURED_PATHS"]):
    logs = segmentlog.dataset(path)
    found[path] = {
        "read": measured(lambda: size(segmentlog.read(path))),
        "headers": measured(lambda: size(segmentlog.read(path, include_headers=True))),
        "latest": measured(lambda: size(segmentlog.latest(path))),
        "scan": measured(lambda: drained(logs.to_batches())),
        "timeline": measured(lambda: drained(logs.scanner(order="timestamp").to_batches())),
    }
print(json.dumps(found), flush=True)
os._exit(0)
"""


def write(directory: Path, shape: str) -> str:
    """A log of a shape."""
    n_rows, n_keys, value, codec = SHAPES[shape]
    keys = pa.array([b"%d" % each for each in range(n_keys)], pa.binary())
    rows = {
        "key": keys.take(pa.array(np.arange(n_rows) % n_keys)),
        "value": pa.array([value], pa.binary()).take(pa.array(np.zeros(n_rows, np.int64))),
    }
    with segmentlog.open_writer(directory, "t", config=ProducerConfig(codec=codec)) as writer:
        writer.append(pa.record_batch(rows))
        writer.flush()
    return str(directory)


def test_reads_hold_little_more_than_their_rows(tmp_path: Path) -> None:
    """A table has less than half as much again, and `latest` as much again and a map of keys."""
    paths = {shape: write(tmp_path / shape, shape) for shape in SHAPES}

    found = json.loads(new_process.run(MEASURED, MEASURED_PATHS=json.dumps([*paths.values()])))

    for shape, path in paths.items():
        n_rows, n_keys, *_ = SHAPES[shape]
        for name in ("read", "headers"):
            n_read, n_bytes, most = found[path][name]
            assert n_rows == n_read, (shape, name)
            assert most < 1.5 * n_bytes + 24 * MIB, (shape, name, n_bytes / MIB, most / MIB)
        n_read, n_bytes, most = found[path]["latest"]
        assert n_keys == n_read, shape
        assert most < 2 * n_bytes + 130 * n_keys + 100 * MIB, (shape, n_bytes / MIB, most / MIB)
        for name in ("scan", "timeline"):
            n_read, _, most = found[path][name]
            assert n_rows == n_read, (shape, name)
            assert most < 80 * MIB, (shape, name, most / MIB)
