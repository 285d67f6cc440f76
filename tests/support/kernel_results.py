"""Print the kernels that run, and a digest of what they make of random rows and bytes."""

import hashlib
import random
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import segmentlog
from segmentlog import native
from segmentlog.format.kernels.crc32c import checksum

rng, found = np.random.default_rng(7), hashlib.sha256()
data = rng.integers(0, 256, 40_000, np.uint8)
for start in range(9):
    for length in (*range(300), 511, 512, 513, 1023, 4096, 16_383, 16_384, 16_385, 39_000):
        found.update(checksum(data, start, start + length).to_bytes(8, "big"))
chosen = random.Random(7)


def text(most: int) -> bytes | None:
    return None if chosen.random() < 0.1 else chosen.randbytes(chosen.randrange(most))


for codec in segmentlog.Codec:
    with tempfile.TemporaryDirectory() as directory:
        config = segmentlog.ProducerConfig(codec=codec, use_timestamps=True)
        for _ in range(3):
            n = chosen.randrange(1, 900)
            headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            rows = pa.table(
                {
                    "key": pa.array([text(12) for _ in range(n)], pa.binary()),
                    "value": pa.array([text(400) for _ in range(n)], pa.binary()),
                    "headers": pa.array(
                        [[("h", text(9))] * chosen.randrange(3) for _ in range(n)], headers
                    ),
                    "timestamp": pa.array(
                        [chosen.randrange(2**44) for _ in range(n)], pa.timestamp("ms", "UTC")
                    ),
                }
            )
            with segmentlog.open_writer(directory, "t", num_partitions=3, config=config) as w:
                w.append(rows)
        for path in sorted(Path(directory).rglob("*.log")):
            found.update(path.read_bytes())  # before the cleaner notes when it cleaned
        for _ in range(2):
            opened = segmentlog.open_log_dir(directory)
            for number in range(3):
                for columns in ({}, {"include_headers": True}, {"columns": ["offset", "key"]}):
                    table = opened.log("t", number).scan(**columns).read_all()
                    found.update(str(table.to_pylist()).encode())
            settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
            segmentlog.compact(directory, settings=settings, roll=True)
print(native.VARIANT, found.hexdigest())
